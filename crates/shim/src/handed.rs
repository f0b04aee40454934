//! A standard input that the caller hands over: the descriptor itself, so that what the command does not read is there for
//! others, and what it is stays what it is. It comes over a socket of the caller's, not through the daemon.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use belay_model::{SpawnFailure, SpawnStage};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix, SocketFlags,
    SocketType, connect, recvmsg, socket_with, sockopt,
};

/// How long a caller may take. It waits for the task that this is part of, and does nothing else.
const LIMIT: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Takes it from whoever listens under this name. It waits, but not for long: a caller that does not answer gets no task.
pub(crate) fn take(name: &str) -> Result<OwnedFd, SpawnFailure> {
    receive(name).map_err(|error| SpawnFailure {
        stage: SpawnStage::Resources,
        errno: error.raw_os_error().unwrap_or(0),
        message: format!("the caller did not hand its standard input over: {error}"),
    })
}

fn receive(name: &str) -> io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    // Anybody can listen under a name; only our own user is listened to.
    if sockopt::socket_peercred(&socket)?.uid != rustix::process::getuid() {
        return Err(io::Error::from(io::ErrorKind::PermissionDenied));
    }
    if rustix::event::poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&LIMIT))? == 0 {
        return Err(io::Error::from(io::ErrorKind::TimedOut));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut passed = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(
        &socket,
        &mut [IoSliceMut::new(&mut byte)],
        &mut passed,
        RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT,
    )?;
    let mut fds = passed.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    fds.find_map(|mut fds| fds.next()).ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))
}
