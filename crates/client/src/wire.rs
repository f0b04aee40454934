//! Moving bytes between a socket and the codec: one read, one write, descriptors included. It waits only where it says so.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use crate::error::ClientError;

/// The most descriptors that one request can carry: what the kernel accepts with one message.
pub(crate) const MAX_FDS: usize = 253;

/// Waits until there is something to read.
pub(crate) fn wait_readable(socket: impl AsFd, deadline: Instant) -> Result<(), ClientError> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(|_| ClientError::Deadline)?;
        let mut fds = [PollFd::new(&socket, PollFlags::IN)];
        match rustix::event::poll(&mut fds, Some(&left)) {
            Ok(0) => return Err(ClientError::Deadline),
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(ClientError::io("wait for the daemon", errno)),
        }
    }
}

/// One read into the spare room of a buffer.
pub(crate) fn read(socket: impl AsFd, buffer: &mut Vec<u8>) -> Result<(), ClientError> {
    loop {
        match rustix::io::read(socket.as_fd(), spare_capacity(buffer)) {
            Ok(0) | Err(Errno::CONNRESET) => return Err(ClientError::Closed),
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(ClientError::io("read from the daemon", errno)),
        }
    }
}

/// One write. Descriptors go with the first byte.
pub(crate) fn write(socket: impl AsFd, bytes: &[u8], fds: &[OwnedFd]) -> Result<usize, Errno> {
    let flags = SendFlags::NOSIGNAL;
    loop {
        let sent = if fds.is_empty() {
            rustix::net::send(&socket, bytes, flags)
        } else {
            let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
            let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
            let mut passed = SendAncillaryBuffer::new(&mut space);
            passed.push(SendAncillaryMessage::ScmRights(&borrowed));
            rustix::net::sendmsg(&socket, &[IoSlice::new(bytes)], &mut passed, flags)
        };
        match sent {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

/// Why a write failed.
pub(crate) fn write_error(errno: Errno) -> ClientError {
    match errno {
        Errno::PIPE | Errno::CONNRESET => ClientError::Closed,
        Errno::AGAIN => ClientError::Deadline,
        _ => ClientError::io("write to the daemon", errno),
    }
}
