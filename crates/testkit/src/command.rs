//! A command of a test: started, listened to, signalled, waited for with a deadline. What it writes is kept whole.

use std::io::{Read, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use belay_os::process::{Identity, identity};
use belay_os::signal::Signal;
use serde::de::DeserializeOwned;

use crate::look::send_signal;
use crate::wait::{LONG, wait_until};

/// What a command left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// None if it died of a signal.
    pub code: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

impl Output {
    /// Standard output as one JSON value.
    #[track_caller]
    pub fn json<T: DeserializeOwned>(&self) -> T {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|error| panic!("no JSON ({error}): {self}"))
    }

    /// Standard output as one JSON value a line.
    #[track_caller]
    pub fn json_lines<T: DeserializeOwned>(&self) -> Vec<T> {
        let lines = self.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines
            .map(|line| serde_json::from_slice(line).unwrap_or_else(|e| panic!("no JSON ({e}): {self}")))
            .collect()
    }

    /// Standard output without its line end.
    pub fn line(&self) -> String {
        String::from_utf8_lossy(&self.stdout).trim_end_matches('\n').to_owned()
    }

    /// The same, if it ended well.
    #[track_caller]
    pub fn ok(self) -> Self {
        assert_eq!(self.code, Some(0), "{self}");
        self
    }
}

impl std::fmt::Display for Output {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(4000)]).into_owned();
        write!(f, "code {:?}, stdout {:?}, stderr {:?}", self.code, shown(&self.stdout), shown(&self.stderr))
    }
}

/// A command that runs. Dropped, it is killed.
#[derive(Debug)]
pub struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Listener,
    stderr: Listener,
}

/// Reads one pipe to its end, beside the test.
#[derive(Debug)]
struct Listener {
    heard: Arc<Mutex<Vec<u8>>>,
    thread: JoinHandle<()>,
}

impl Listener {
    fn new(mut pipe: impl Read + Send + 'static) -> Self {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&heard);
        let thread = std::thread::spawn(move || {
            let mut buffer = vec![0; 64 * 1024];
            while let Ok(length @ 1..) = pipe.read(&mut buffer) {
                shared.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&buffer[..length]);
            }
        });
        Self { heard, thread }
    }

    fn heard(&self) -> MutexGuard<'_, Vec<u8>> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last of it, for people.
    fn end(&self) -> String {
        let heard = self.heard();
        format!(
            "{} bytes, at last {:?}",
            heard.len(),
            String::from_utf8_lossy(&heard[heard.len().saturating_sub(400)..])
        )
    }
}

impl Running {
    #[expect(clippy::disallowed_methods, reason = "tests start commands as people do, not as tasks")]
    pub fn start(mut command: Command, with_stdin: bool) -> Self {
        let stdin = if with_stdin { Stdio::piped() } else { Stdio::null() };
        command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let stdout = Listener::new(child.stdout.take().unwrap());
        let stderr = Listener::new(child.stderr.take().unwrap());
        Self { stdin: child.stdin.take(), child, stdout, stderr }
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    fn identity(&self) -> Identity {
        // Not reaped before `wait`, so the number is still its own.
        identity(self.pid()).unwrap()
    }

    pub fn signal(&self, signal: Signal) {
        send_signal(self.identity(), signal);
    }

    /// Writes to its standard input; call it beside something that reads what comes out.
    pub fn write(&mut self, bytes: &[u8]) {
        self.stdin.as_mut().expect("started without a standard input").write_all(bytes).unwrap();
    }

    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    pub fn stdout_so_far(&self) -> Vec<u8> {
        self.stdout.heard().clone()
    }

    pub fn stderr_so_far(&self) -> Vec<u8> {
        self.stderr.heard().clone()
    }

    /// Waits until its standard output is right.
    #[track_caller]
    pub fn wait_for_stdout(&self, what: &str, right: impl Fn(&[u8]) -> bool) -> Vec<u8> {
        wait_until(what, LONG, || {
            let heard = self.stdout.heard();
            if right(&heard) {
                return Ok(heard.clone());
            }
            drop(heard);
            Err(format!("stdout: {}; stderr: {}", self.stdout.end(), self.stderr.end()))
        })
    }

    /// Waits for its end and for the last of what it wrote.
    #[track_caller]
    pub fn finish(self) -> Output {
        self.finish_within(LONG * 2)
    }

    #[track_caller]
    pub fn finish_within(mut self, limit: Duration) -> Output {
        self.stdin = None;
        let status = wait_until("the end of a command", limit, || {
            let ended = self.child.try_wait().unwrap();
            ended.ok_or_else(|| {
                format!("it runs; stdout: {}; stderr: {}", self.stdout.end(), self.stderr.end())
            })
        });
        wait_until("the end of its pipes", LONG, || {
            let open = !self.stdout.thread.is_finished() || !self.stderr.thread.is_finished();
            if open { Err("somebody holds them open") } else { Ok(()) }.map_err(str::to_owned)
        });
        let taken = |listener: &Listener| std::mem::take(&mut *listener.heard());
        Output { code: status.code(), stdout: taken(&self.stdout), stderr: taken(&self.stderr) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A child that was waited for already is not signalled by this.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a command to its end.
#[track_caller]
pub fn finish(command: Command) -> Output {
    Running::start(command, false).finish()
}
