//! What the tests share: where the examples are, unique markers, an independent look for survivors, and starting
//! things through belay-os. It does not decide what is right.

use std::ffi::{CStr, CString};
use std::fs;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use belay_os::spawn::{Rlimit, Session, SpawnError, SpawnSpec, Spawned, spawn};
use belay_os::{Pid, fds};
use rustix::process::{WaitId, WaitIdOptions, WaitIdStatus};

pub(crate) fn example(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let path = tests.parent().unwrap().parent().unwrap().join("examples").join(name);
    assert!(path.exists(), "{} is missing: `cargo build -p belay-os --examples` makes it", path.display());
    path
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Says aloud that a part of a test cannot be run here.
pub(crate) fn not_run(what: &str, why: &str) {
    println!("NOT RUN: {what}: {why}");
}

/// A word that no other process has in its command line.
pub(crate) fn marker() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let (own, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    format!("zoo-{own}-{count}-{}-end", belay_os::process::monotonic_us())
}

/// Who has the marker in the command line and lives, read without the help of belay-os.
pub(crate) fn alive(marker: &str) -> Vec<Pid> {
    let pids =
        fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid: &Pid| {
        let shows = |path: PathBuf| {
            let cmdline = fs::read(path).unwrap_or_default();
            cmdline.windows(marker.len()).any(|window| window == marker.as_bytes())
        };
        // A process whose first thread has exited shows its command line only in its other threads.
        let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let shown = || threads.map(|thread| thread.path().join("cmdline")).any(shows);
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("").trim();
        let dead = field("State:").starts_with(['Z', 'X']) && field("Threads:") == "1";
        !status.is_empty() && !dead && shown()
    })
    .collect()
}

/// Waits until something is so, and fails with what was last seen if it is not so in time.
pub(crate) fn eventually<T: std::fmt::Debug>(
    what: &str,
    mut look: impl FnMut() -> T,
    right: impl Fn(&T) -> bool,
) -> T {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let seen = look();
        if right(&seen) {
            return seen;
        }
        assert!(Instant::now() < until, "{what}: last seen {seen:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// What is to be different from an ordinary start.
#[derive(Default)]
pub(crate) struct Order<'a> {
    pub(crate) cwd: Option<&'a CStr>,
    pub(crate) umask: Option<u32>,
    pub(crate) rlimits: &'a [Rlimit],
    pub(crate) stdin: Option<BorrowedFd<'a>>,
    pub(crate) stderr: Option<BorrowedFd<'a>>,
    pub(crate) cgroup: Option<BorrowedFd<'a>>,
    pub(crate) new_session: bool,
    /// A session with its standard input as its terminal.
    pub(crate) terminal: bool,
}

/// Starts a command with its output in a pipe.
pub(crate) fn start(
    argv: &[&str],
    envp: &[&str],
    order: &Order<'_>,
) -> Result<(Spawned, fs::File), SpawnError> {
    let null = fds::null().unwrap();
    let (reader, writer) = fds::pipe(0).unwrap();
    let (argv, envp) = (strings(argv), strings(envp));
    let spec = SpawnSpec {
        argv: &argv,
        envp: &envp,
        cwd: order.cwd,
        umask: order.umask,
        rlimits: order.rlimits,
        stdin: order.stdin.unwrap_or(null.as_fd()),
        stdout: writer.as_fd(),
        stderr: order.stderr.unwrap_or(rustix::stdio::stderr()),
        cgroup: order.cgroup,
        session: match (order.terminal, order.new_session) {
            (true, _) => Session::Terminal,
            (false, true) => Session::NewSession,
            (false, false) => Session::NewGroup,
        },
    };
    spawn(&spec).map(|spawned| (spawned, fs::File::from(reader)))
}

fn strings(words: &[&str]) -> Vec<CString> {
    words.iter().map(|word| CString::new(*word).unwrap()).collect()
}

pub(crate) fn finish(pidfd: BorrowedFd<'_>) -> WaitIdStatus {
    rustix::process::waitid(WaitId::PidFd(pidfd), WaitIdOptions::EXITED).unwrap().unwrap()
}

/// What a command wrote until it ended, and its exit code.
pub(crate) fn output(started: Result<(Spawned, fs::File), SpawnError>) -> (String, i32) {
    let (spawned, mut file) = started.unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    (text, finish(spawned.pidfd.as_fd()).exit_status().unwrap())
}
