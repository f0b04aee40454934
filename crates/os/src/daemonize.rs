//! Leaving the terminal behind, and telling the one who waits there that all is well. It starts no other program.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::process::{Pid, monotonic_ms, own_pid};

/// More than any message that a start has to tell.
const MESSAGE_LIMIT: usize = 64 * 1024;

/// Which of the two one is after [`daemonize`].
#[derive(Debug)]
pub enum Forked {
    /// Still at the terminal.
    Parent(Readiness),
    /// In the background.
    Child(ReadyPipe),
}

/// Where the parent waits for the child.
#[derive(Debug)]
pub struct Readiness {
    pid: Pid,
    pipe: OwnedFd,
}

/// Where the child says that it is ready. Dropped without a word, or lost with the process, it says nothing.
#[derive(Debug)]
pub struct ReadyPipe(OwnedFd);

/// Forks; the child gets a session of its own, the root directory, and `/dev/null` for its streams. To be called before
/// any thread is made: only the calling one goes along.
pub fn daemonize() -> io::Result<Forked> {
    let null = crate::fds::null()?;
    let (reader, writer) = crate::fds::pipe_above_stdio()?;
    // SAFETY: with one thread a forked child may do what its parent may.
    match unsafe { libc::fork() } {
        0 => {
            drop(reader);
            rustix::process::setsid()?;
            rustix::process::chdir("/")?;
            crate::fds::replace_stdio(null.as_fd())?;
            Ok(Forked::Child(ReadyPipe(writer)))
        }
        pid if pid > 0 => Ok(Forked::Parent(Readiness { pid, pipe: reader })),
        _ => Err(io::Error::last_os_error()),
    }
}

impl Readiness {
    /// The child's process number.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// What the child said before it closed its end, at most `within_ms` from now; empty if it died or had nothing to
    /// say. [`io::ErrorKind::TimedOut`] if it is still silent.
    pub fn wait(&self, within_ms: u64) -> io::Result<String> {
        let until_ms = monotonic_ms().saturating_add(within_ms);
        let mut message = Vec::new();
        let mut buffer = [0_u8; 4096];
        while message.len() < MESSAGE_LIMIT {
            let left_ms = until_ms.saturating_sub(monotonic_ms());
            if !readable(&self.pipe, left_ms)? {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match rustix::io::read(&self.pipe, &mut buffer) {
                Ok(0) => break,
                Ok(filled) => message.extend_from_slice(buffer.get(..filled).unwrap_or_default()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(String::from_utf8_lossy(&message).into_owned())
    }
}

/// Whether there is something to read, or the end, within the time.
fn readable(fd: &OwnedFd, within_ms: u64) -> io::Result<bool> {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    match rustix::event::poll(&mut fds, Some(&timespec_us(within_ms.saturating_mul(1000)))) {
        Ok(count) => Ok(count > 0),
        Err(rustix::io::Errno::INTR) => Ok(within_ms > 0),
        Err(error) => Err(error.into()),
    }
}

/// A length of time as the kernel takes it.
pub(crate) fn timespec_us(length_us: u64) -> Timespec {
    let micros = i32::try_from(length_us % 1_000_000).unwrap_or(0);
    Timespec {
        tv_sec: i64::try_from(length_us / 1_000_000).unwrap_or(i64::MAX),
        tv_nsec: (micros * 1000).into(),
    }
}

impl ReadyPipe {
    /// Says it and closes the pipe. That nobody listens any more is no error.
    pub fn tell(self, text: &str) -> io::Result<()> {
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            match rustix::io::write(&self.0, rest) {
                Ok(written) => rest = rest.get(written..).unwrap_or_default(),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::PIPE) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Wipes a variable out of the environment that `/proc/PID/environ` shows, and that `fork` hands on. Removing it the
/// ordinary way leaves it readable there; a daemon that was first started from inside a task would be taken for a part
/// of it. To be called before any thread is made.
pub fn forget_env(name: &str) {
    unsafe extern "C" {
        static mut environ: *mut *mut libc::c_char;
    }
    let mut wiped = Vec::new();
    // SAFETY: with one thread nobody else reads or changes the environment. The list is null-ended; its strings lie in
    // writable memory that the C library never frees, and are overwritten only within their length.
    unsafe {
        let mut at = environ;
        while !at.is_null() && !(*at).is_null() {
            let entry = CStr::from_ptr(*at).to_bytes();
            if entry.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&b'=')) {
                wiped.push((*at, entry.len()));
            }
            at = at.add(1);
        }
        std::env::remove_var(name);
        for (start, length) in wiped {
            std::ptr::write_bytes(start, b'_', length);
        }
    }
}

/// Whether the calling process has one thread only, as [`daemonize`] and the tree functions need it.
pub fn is_single_threaded() -> bool {
    crate::process::stat(own_pid()).is_some_and(|stat| stat.threads == 1)
}
