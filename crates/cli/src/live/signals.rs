//! Signals to a command that is there while a task runs, as bytes on sockets that a poll can wait for.

use std::io::{self, Read as _};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH};
use signal_hook::low_level::pipe;

use crate::caller::ProcStatus;

/// How many signals are listened for.
pub(super) const SIGNALS: usize = 7;

/// How often each has come since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Heard {
    pub(super) interrupts: usize,
    pub(super) terminates: usize,
    pub(super) hangups: usize,
    /// The detach key, where one was taken.
    pub(super) quits: usize,
    /// Our window has another size.
    pub(super) resizes: usize,
    /// SIGUSR1 and SIGUSR2, of a shell.
    pub(super) users: [usize; 2],
}

/// Which signals are listened for; the others do to us what they do to anybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heeded {
    /// Those of a terminal. SIGQUIT may be the detach key, and not the end of us.
    Usual { with_quit: bool },
    /// All that can be passed on.
    All,
}

#[derive(Debug)]
pub(super) struct Signals {
    /// The reading ends, for SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH, SIGUSR1 and SIGUSR2. One that we are told
    /// to ignore, and one that is not heeded, stays silent.
    sources: [UnixStream; SIGNALS],
    /// Keeps the other end of the silent ones open, so that a poll sees no end.
    _silent: Vec<UnixStream>,
}

impl Signals {
    pub(super) fn register(status: ProcStatus, heeded: Heeded) -> io::Result<Self> {
        let is_heeded = |signal| match heeded {
            Heeded::All => true,
            Heeded::Usual { with_quit } => {
                !matches!(signal, SIGUSR1 | SIGUSR2) && (signal != SIGQUIT || with_quit)
            }
        };
        let mut silent = Vec::new();
        let mut source = |signal| {
            let (read, write) = UnixStream::pair()?;
            read.set_nonblocking(true)?;
            if status.ignores(signal) || !is_heeded(signal) {
                silent.push(write);
            } else {
                pipe::register(signal, write)?;
            }
            Ok::<_, io::Error>(read)
        };
        let sources = [
            source(SIGINT)?,
            source(SIGTERM)?,
            source(SIGHUP)?,
            source(SIGQUIT)?,
            source(SIGWINCH)?,
            source(SIGUSR1)?,
            source(SIGUSR2)?,
        ];
        Ok(Self { sources, _silent: silent })
    }

    pub(super) fn poll_fds(&self) -> [PollFd<'_>; SIGNALS] {
        self.sources.each_ref().map(|source| PollFd::new(source, PollFlags::IN))
    }

    pub(super) fn take(&self) -> Heard {
        let [interrupts, terminates, hangups, quits, resizes, first, second] =
            self.sources.each_ref().map(drain);
        Heard { interrupts, terminates, hangups, quits, resizes, users: [first, second] }
    }
}

fn drain(mut source: &UnixStream) -> usize {
    let mut buffer = [0; 64];
    let mut count = 0;
    while let Ok(length) = source.read(&mut buffer) {
        if length == 0 {
            break;
        }
        count += length;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_counted() {
        let signals = Signals::register(ProcStatus::default(), Heeded::All).unwrap();
        assert_eq!(signals.take(), Heard::default());
        signal_hook::low_level::raise(SIGINT).unwrap();
        signal_hook::low_level::raise(SIGTERM).unwrap();
        signal_hook::low_level::raise(SIGINT).unwrap();
        signal_hook::low_level::raise(SIGQUIT).unwrap();
        signal_hook::low_level::raise(SIGUSR2).unwrap();
        let heard = Heard { interrupts: 2, terminates: 1, quits: 1, users: [0, 1], ..Heard::default() };
        assert_eq!(signals.take(), heard);
    }
}
