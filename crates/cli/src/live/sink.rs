//! Where the bytes of a task go: our own two streams, exactly. A reader that does not read holds up the
//! bytes, never the signals.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;

use belay_protocol::output::StreamName;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::FileType;
use rustix::io::{Errno, ReadWriteFlags};

use super::signals::{SIGNALS, Signals};
use crate::ui::out;

/// What a pipe that is ready to be written takes without waiting.
const SURE_BYTES: usize = 4096;

/// What is written at once to a file, which never makes us wait for a reader.
const FILE_BYTES: usize = 1024 * 1024;

/// One of our streams.
#[derive(Debug)]
struct Target {
    fd: BorrowedFd<'static>,
    is_file: bool,
    /// Whether the kernel tells when the last reader has gone: at a pipe and a socket.
    tells: bool,
    /// Whether it has told.
    unread: bool,
    open: bool,
}

#[derive(Debug)]
pub(super) struct Sink {
    stdout: Target,
    stderr: Target,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Wrote(usize),
    /// A signal came first.
    Signal,
}

impl Sink {
    pub(super) fn new() -> Self {
        Self { stdout: Target::new(rustix::stdio::stdout()), stderr: Target::new(rustix::stdio::stderr()) }
    }

    /// From now on what goes to this stream is dropped.
    pub(super) const fn close(&mut self, stream: StreamName) {
        match stream {
            StreamName::Stdout => self.stdout.open = false,
            StreamName::Stderr => self.stderr.open = false,
        }
    }

    /// What tells when a reader goes. Nothing, if what we write to one of them is kept for others than those.
    pub(super) fn readers(&self) -> impl Iterator<Item = PollFd<'_>> {
        let both = [&self.stdout, &self.stderr];
        let all_tell = both.iter().all(|target| target.tells);
        let watched = both.into_iter().filter(move |target| all_tell && !target.unread);
        // Errors and hang-ups come unasked.
        watched.map(|target| PollFd::new(&target.fd, PollFlags::empty()))
    }

    /// Looks which readers have gone; whether nobody is left.
    pub(super) fn is_unread(&mut self) -> bool {
        for target in [&mut self.stdout, &mut self.stderr] {
            target.unread = target.unread || target.has_no_reader();
        }
        self.stdout.unread && self.stderr.unread
    }

    pub(super) fn is_terminal(&self, stream: StreamName) -> bool {
        rustix::termios::isatty(self.target(stream).fd)
            || rustix::termios::tcgetwinsize(self.target(stream).fd) == Err(Errno::IO)
    }

    /// The one that still takes something, stdout first.
    pub(super) const fn open_stream(&self) -> Option<StreamName> {
        match (self.stdout.open, self.stderr.open) {
            (true, _) => Some(StreamName::Stdout),
            (false, true) => Some(StreamName::Stderr),
            (false, false) => None,
        }
    }

    const fn target(&self, stream: StreamName) -> &Target {
        match stream {
            StreamName::Stdout => &self.stdout,
            StreamName::Stderr => &self.stderr,
        }
    }

    pub(super) fn write_some(
        &self,
        stream: StreamName,
        bytes: &[u8],
        signals: &Signals,
    ) -> Result<Progress, Errno> {
        let target = self.target(stream);
        if !target.open {
            return Ok(Progress::Wrote(bytes.len()));
        }
        if target.is_file {
            return target.write(&bytes[..bytes.len().min(FILE_BYTES)]);
        }
        let mut fds = signals.poll_fds().to_vec();
        fds.push(PollFd::new(&target.fd, PollFlags::OUT));
        match rustix::event::poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        let ready = |fd: &PollFd| !fd.revents().is_empty();
        if fds[..SIGNALS].iter().any(ready) {
            return Ok(Progress::Signal);
        }
        if !ready(&fds[SIGNALS]) {
            return Ok(Progress::Wrote(0));
        }
        target.write_what_fits(&bytes[..bytes.len().min(FILE_BYTES)])
    }
}

impl Target {
    fn new(fd: BorrowedFd<'static>) -> Self {
        let kind = rustix::fs::fstat(fd).map(|stat| FileType::from_raw_mode(stat.st_mode));
        let tells = out::tells_when_unread(fd);
        Self { fd, is_file: kind == Ok(FileType::RegularFile), tells, unread: false, open: true }
    }

    fn has_no_reader(&self) -> bool {
        let mut fds = [PollFd::new(&self.fd, PollFlags::empty())];
        let now = rustix::event::Timespec::default();
        let told = rustix::event::poll(&mut fds, Some(&now));
        self.tells && told.is_ok() && out::is_unread(&fds[0])
    }

    /// As much as there is room for, without waiting; the rest waits for the next poll.
    fn write_what_fits(&self, bytes: &[u8]) -> Result<Progress, Errno> {
        let here = u64::MAX;
        match rustix::io::pwritev2(self.fd, &[IoSlice::new(bytes)], here, ReadWriteFlags::NOWAIT) {
            Ok(length) => Ok(Progress::Wrote(length)),
            Err(Errno::INTR | Errno::AGAIN) => Ok(Progress::Wrote(0)),
            // Not every kernel, and no terminal, can be asked not to wait.
            Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS | Errno::SPIPE) => {
                self.write(&bytes[..bytes.len().min(SURE_BYTES)])
            }
            Err(errno) => Err(errno),
        }
    }

    fn write(&self, bytes: &[u8]) -> Result<Progress, Errno> {
        match rustix::io::write(self.fd, bytes) {
            Ok(length) => Ok(Progress::Wrote(length)),
            // Somebody made the stream non-blocking; the next poll waits.
            Err(Errno::INTR | Errno::AGAIN) => Ok(Progress::Wrote(0)),
            Err(errno) => Err(errno),
        }
    }
}
