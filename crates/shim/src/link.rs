//! The shim's side of its connection to a daemon: frames in, frames out, never blocking. What is said is decided elsewhere.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use belay_protocol::shim::{FromShim, ToShim};
use belay_record::frame::{self, Frames};

/// More unread bytes than this mean that the daemon no longer reads; it is then treated as gone. A life is a few
/// kilobytes in all, so a daemon that is merely slow never gets there.
const MAX_UNREAD_BYTES: usize = 1024 * 1024;

#[derive(Debug)]
pub(crate) struct Link {
    stream: UnixStream,
    frames: Frames,
    out: Vec<u8>,
}

impl Link {
    pub(crate) fn new(fd: OwnedFd) -> io::Result<Self> {
        let stream = UnixStream::from(fd);
        stream.set_nonblocking(true)?;
        Ok(Self { stream, frames: Frames::default(), out: Vec::new() })
    }

    /// Whether everything said so far has left.
    pub(crate) const fn is_flushed(&self) -> bool {
        self.out.is_empty()
    }

    pub(crate) fn send(&mut self, message: &FromShim) -> io::Result<()> {
        frame::put(&mut self.out, message).map_err(io::Error::other)?;
        if self.out.len() > MAX_UNREAD_BYTES {
            return Err(io::Error::from(io::ErrorKind::TimedOut));
        }
        Ok(())
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        while !self.out.is_empty() {
            match self.stream.write(&self.out) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::WriteZero)),
                Ok(written) => drop(self.out.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads what is there. False at the end of the connection.
    pub(crate) fn fill(&mut self, buffer: &mut [u8]) -> io::Result<bool> {
        loop {
            match self.stream.read(buffer) {
                Ok(0) => return Ok(false),
                Ok(length) => {
                    self.frames.feed(&buffer[..length]);
                    if length < buffer.len() {
                        return Ok(true);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    pub(crate) fn next(&mut self) -> io::Result<Option<ToShim>> {
        self.frames.take().map_err(io::Error::other)
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
