//! The task's standard input, a pipe or a terminal: what was sent and not yet read by the command. Bounded; never
//! blocks.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use belay_os::pty;
use belay_protocol::shim::WriteResult;

/// What may wait here for a command that does not read.
const MAX_PENDING_BYTES: usize = 1024 * 1024;

/// With no more than this waiting there is room: enough for a writer to go on for a while, once it is woken.
const ROOM_BYTES: usize = MAX_PENDING_BYTES / 2;

/// How many names of writes are remembered.
const MAX_KEYS: usize = 100;

#[derive(Debug)]
pub(crate) struct Stdin {
    pipe: Option<OwnedFd>,
    /// It is a terminal, which is never closed: its end-of-file character is typed.
    is_terminal: bool,
    pending: VecDeque<u8>,
    close_when_empty: bool,
    /// The names of the last writes that were taken.
    keys: VecDeque<String>,
    /// Somebody was refused, and is to be told when there is room.
    room_wanted: bool,
}

impl Stdin {
    pub(crate) fn pipe(pipe: Option<OwnedFd>) -> Self {
        let (pending, keys) = (VecDeque::new(), VecDeque::new());
        Self { pipe, is_terminal: false, pending, close_when_empty: false, keys, room_wanted: false }
    }

    pub(crate) fn terminal(master: Option<OwnedFd>) -> Self {
        Self { is_terminal: true, ..Self::pipe(master) }
    }

    /// The standard input of the next attempt: empty, and at its end if the earlier one was closed by whoever wrote to it. What
    /// was taken under a name is not taken once more.
    pub(crate) fn after(self, earlier: Self) -> Self {
        let close_when_empty = earlier.close_when_empty;
        let pipe = self.pipe.filter(|_| !close_when_empty);
        Self { pipe, close_when_empty, keys: earlier.keys, ..self }
    }

    pub(crate) const fn is_open(&self) -> bool {
        self.pipe.is_some() && !self.close_when_empty
    }

    /// The pipe, if there is something to write to it.
    pub(crate) fn wants(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().filter(|_| !self.pending.is_empty()).map(AsFd::as_fd)
    }

    /// Takes the data whole or not at all, and what it has taken under this name before not once more.
    pub(crate) fn accept(&mut self, data: &[u8], close: bool, key: Option<String>) -> WriteResult {
        if key.as_ref().is_some_and(|key| self.keys.contains(key)) {
            return WriteResult::Accepted { pending: self.pending.len() as u64 };
        }
        let result = self.take(data, close);
        if let (WriteResult::Accepted { .. }, Some(key)) = (&result, key) {
            if self.keys.len() == MAX_KEYS {
                self.keys.pop_front();
            }
            self.keys.push_back(key);
        }
        result
    }

    /// The same for one who may want to be told when there is room, if there is none. Says whether somebody is to be told now.
    pub(crate) fn offer(
        &mut self,
        data: &[u8],
        close: bool,
        key: Option<String>,
        room: bool,
    ) -> (WriteResult, bool) {
        let result = self.accept(data, close, key);
        if let WriteResult::Full { .. } = result {
            self.room_wanted |= room;
            return (result, false);
        }
        (result, self.has_room_again())
    }

    /// Whether somebody is to be told now that there is room; asked when something has been written, and true once.
    pub(crate) fn has_room_again(&mut self) -> bool {
        let is_time = self.room_wanted && self.pending.len() <= ROOM_BYTES;
        self.room_wanted &= !is_time;
        is_time
    }

    fn take(&mut self, data: &[u8], close: bool) -> WriteResult {
        if !self.is_open() {
            return WriteResult::Closed;
        }
        if !self.pending.is_empty() && self.pending.len() + data.len() > MAX_PENDING_BYTES {
            return WriteResult::Full { pending: self.pending.len() as u64 };
        }
        self.pending.extend(data);
        if close && self.is_terminal {
            self.pending.extend(self.pipe.as_ref().and_then(pty::end_of_input));
        } else {
            self.close_when_empty |= close;
        }
        // Of what nobody reads any more nothing is taken.
        if !self.flush() {
            return WriteResult::Closed;
        }
        WriteResult::Accepted { pending: self.pending.len() as u64 }
    }

    /// Writes what there is room for. Says whether somebody may still read it.
    pub(crate) fn flush(&mut self) -> bool {
        while let Some(pipe) = &self.pipe {
            let (front, _) = self.pending.as_slices();
            if front.is_empty() {
                if self.close_when_empty {
                    self.pipe = None;
                }
                return true;
            }
            match rustix::io::write(pipe, front) {
                Ok(written) => drop(self.pending.drain(..written)),
                Err(rustix::io::Errno::AGAIN) => return true,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => self.close(),
            }
        }
        false
    }

    /// Nobody reads any more.
    pub(crate) fn close(&mut self) {
        self.pipe = None;
        self.pending = VecDeque::new();
    }
}

#[cfg(test)]
mod tests {
    use belay_os::{fds, pty};

    use super::*;

    #[test]
    fn a_pipe_is_closed_and_a_terminal_is_told() {
        let (reader, writer) = fds::pipe(0).unwrap();
        let mut stdin = Stdin::pipe(Some(writer));
        assert_eq!(stdin.accept(b"last", true, None), WriteResult::Accepted { pending: 0 });
        assert_eq!(stdin.accept(b"more", false, None), WriteResult::Closed);
        let mut heard = [0; 9];
        assert_eq!(rustix::io::read(&reader, &mut heard), Ok(4));
        assert_eq!(rustix::io::read(&reader, &mut heard), Ok(0));

        let pty::Pty { master, slave } = pty::open(24, 80).unwrap();
        let mut stdin = Stdin::terminal(Some(master));
        let key = || Some("one".to_owned());
        assert_eq!(stdin.accept(b"line\n", true, key()), WriteResult::Accepted { pending: 0 });
        assert_eq!(
            stdin.accept(b"line\n", true, key()),
            WriteResult::Accepted { pending: 0 },
            "named, so once"
        );
        assert!(stdin.is_open());
        stdin.accept(b"next\n", false, None);
        assert_eq!(rustix::io::read(&slave, &mut heard), Ok(5));
        assert_eq!(rustix::io::read(&slave, &mut heard), Ok(0), "an end");
        assert_eq!(rustix::io::read(&slave, &mut heard), Ok(5), "and no end");
        assert_eq!(&heard[..5], b"next\n");
    }

    #[test]
    fn whoever_was_refused_is_told_once_when_much_has_been_read() {
        let (reader, writer) = fds::pipe(0).unwrap();
        rustix::io::ioctl_fionbio(&writer, true).unwrap();
        let mut stdin = Stdin::pipe(Some(writer));
        let chunk = vec![0; 64 * 1024];
        let full = loop {
            match stdin.offer(&chunk, false, None, true) {
                (WriteResult::Accepted { .. }, told) => assert!(!told, "nobody was refused"),
                other => break other,
            }
        };
        let WriteResult::Full { pending } = full.0 else { panic!("{full:?}") };
        assert!(!full.1 && !stdin.has_room_again());
        let mut left = pending;
        while !stdin.has_room_again() {
            assert!(left > ROOM_BYTES as u64, "there was room before");
            rustix::io::read(&reader, &mut vec![0; chunk.len()]).unwrap();
            stdin.flush();
            left = stdin.pending.len() as u64;
        }
        assert!(left <= ROOM_BYTES as u64 && !stdin.has_room_again(), "once");
        // Of one that nobody reads any more, too.
        while !matches!(stdin.offer(&chunk, false, None, true).0, WriteResult::Full { .. }) {}
        drop(reader);
        stdin.flush();
        assert!(stdin.has_room_again());
        assert_eq!(stdin.offer(&chunk, false, None, true), (WriteResult::Closed, false));
    }

    #[test]
    fn the_next_attempt_has_an_input_of_its_own_unless_it_was_closed() {
        let key = || Some("one".to_owned());
        let accepted = WriteResult::Accepted { pending: 0 };
        let next = || {
            let (reader, writer) = fds::pipe(0).unwrap();
            (reader, Stdin::pipe(Some(writer)))
        };
        let (_reader, mut first) = next();
        assert_eq!(first.accept(b"a", false, key()), accepted);
        first.close();
        let (reader, second) = next();
        let mut second = second.after(first);
        assert_eq!(second.accept(b"a", false, key()), accepted, "named, so once");
        assert_eq!(second.accept(b"b", true, None), accepted);
        let mut heard = [0; 9];
        assert_eq!(rustix::io::read(&reader, &mut heard), Ok(1));
        assert_eq!(&heard[..1], b"b");
        let (reader, third) = next();
        let third = third.after(second);
        assert!(!third.is_open());
        assert_eq!(rustix::io::read(&reader, &mut heard), Ok(0), "an end");
    }
}
