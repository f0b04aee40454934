//! The one way to standard output and standard error. A reader that went away ends the program quietly; a device
//! that is full is an error that is told.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags};
use rustix::fs::FileType;
use rustix::io::Errno;
use serde::Serialize;

use crate::error::CliError;

/// What is gathered before it is written.
const BUFFER_BYTES: usize = 64 * 1024;

/// Standard output, gathered and written in large pieces. It must be flushed: what is dropped is lost.
pub(crate) struct Out {
    buffer: Vec<u8>,
    to: Box<dyn Write>,
}

impl std::fmt::Debug for Out {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Out").field("waiting_bytes", &self.buffer.len()).finish_non_exhaustive()
    }
}

/// A descriptor of the process, written to without a second buffer.
struct Descriptor(BorrowedFd<'static>);

impl Write for Descriptor {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::write(self.0, bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Out {
    pub(crate) fn stdout() -> Self {
        Self::over(Descriptor(rustix::stdio::stdout()))
    }

    pub(crate) fn over(to: impl Write + 'static) -> Self {
        Self { buffer: Vec::new(), to: Box::new(to) }
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<(), CliError> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= BUFFER_BYTES { self.flush() } else { Ok(()) }
    }

    pub(crate) fn text(&mut self, text: &str) -> Result<(), CliError> {
        self.bytes(text.as_bytes())
    }

    pub(crate) fn line(&mut self, text: &str) -> Result<(), CliError> {
        self.buffer.extend_from_slice(text.as_bytes());
        self.bytes(b"\n")
    }

    /// One object, one line.
    pub(crate) fn json<T: Serialize>(&mut self, value: &T) -> Result<(), CliError> {
        serde_json::to_writer(&mut self.buffer, value).map_err(|error| CliError::output(&error.into()))?;
        self.bytes(b"\n")
    }

    pub(crate) fn flush(&mut self) -> Result<(), CliError> {
        let result = self.to.write_all(&self.buffer).and_then(|()| self.to.flush());
        self.buffer.clear();
        result.map_err(|error| CliError::output(&error))
    }
}

/// Whether the kernel tells when the last reader of a stream has gone: at a pipe and a socket.
pub(crate) fn tells_when_unread(stream: BorrowedFd<'_>) -> bool {
    let kind = rustix::fs::fstat(stream).map(|stat| FileType::from_raw_mode(stat.st_mode));
    matches!(kind, Ok(FileType::Fifo | FileType::Socket))
}

/// Whether it has told; errors and hang-ups come unasked.
pub(crate) fn is_unread(stream: &PollFd<'_>) -> bool {
    stream.revents().intersects(PollFlags::ERR | PollFlags::HUP)
}

/// Waits for something to read from another; an error if nobody reads our standard output any more.
pub(crate) fn wait_for(other: impl AsFd) -> Result<(), CliError> {
    let stdout = rustix::stdio::stdout();
    let mut fds = vec![PollFd::new(&other, PollFlags::IN)];
    if tells_when_unread(stdout) {
        fds.push(PollFd::new(&stdout, PollFlags::empty()));
    }
    loop {
        match rustix::event::poll(&mut fds, None) {
            Ok(_) if fds[1..].iter().any(is_unread) => return Err(CliError::output(&Errno::PIPE.into())),
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(CliError::io("wait", &errno.into())),
        }
    }
}

/// A line for people on standard error. If nobody reads there, there is nobody to tell.
pub(crate) fn note(line: &str) {
    let _ = Descriptor(rustix::stdio::stderr()).write_all(format!("{line}\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::os::unix::net::UnixStream;

    use super::Out;

    #[test]
    fn a_reader_that_went_away_ends_it_quietly() {
        let (near, far) = UnixStream::pair().unwrap();
        drop(far);
        let mut out = Out::over(near);
        out.line("hello").unwrap();
        let error = out.flush().unwrap_err();
        assert!(error.is_quiet());
        assert_eq!(error.exit_code(), 0);
    }

    #[test]
    fn a_full_device_is_an_error() {
        let mut out = Out::over(OpenOptions::new().write(true).open("/dev/full").unwrap());
        out.line("hello").unwrap();
        let error = out.flush().unwrap_err();
        assert_eq!(error.exit_code(), 1);
        assert_eq!(error.render(false), "error: cannot write to standard output: No space left on device\n");
    }
}
