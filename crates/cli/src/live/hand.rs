//! Our standard input, handed over as it is: whoever holds the task comes and gets the descriptor. Nothing is read here.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg, sockopt};

use crate::error::CliError;

#[derive(Debug)]
pub(crate) struct Hand {
    listener: UnixListener,
    /// Where it can be got.
    pub(crate) name: String,
}

impl Hand {
    pub(crate) fn new() -> Result<Self, CliError> {
        let name = format!("belay-{}", belay_client::random_token()?);
        let made = SocketAddr::from_abstract_name(&name)
            .and_then(|address| UnixListener::bind_addr(&address))
            .and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
        let listener = made.map_err(|error| CliError::io("hand the standard input over", &error))?;
        Ok(Self { listener, name })
    }

    /// Gives it to everybody of ours who has come for it: a start that is asked for again comes again.
    pub(super) fn give(&self) {
        while let Ok((stream, _)) = self.listener.accept() {
            let ours =
                sockopt::socket_peercred(&stream).is_ok_and(|peer| peer.uid == rustix::process::getuid());
            if ours {
                // Whoever is gone again does not need it.
                let _ = send(&stream);
            }
        }
    }
}

fn send(stream: &UnixStream) -> io::Result<()> {
    let fds = [rustix::stdio::stdin()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut passed = SendAncillaryBuffer::new(&mut space);
    passed.push(SendAncillaryMessage::ScmRights(&fds));
    sendmsg(stream, &[IoSlice::new(b"0")], &mut passed, SendFlags::NOSIGNAL)?;
    Ok(())
}

impl AsFd for Hand {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}
