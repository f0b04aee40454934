//! Our standard input on its way to a task: one write at a time, and a pause while the task does not read. It does
//! no I/O itself: whoever polls hands in the bytes and the answers.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use belay_protocol::task::TaskWriteResult;
use belay_protocol::{Bytes, ErrorKind, RpcError};

/// How much the task may leave unread before we pause.
const PENDING_LIMIT: u64 = 1024 * 1024;
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// How much is read and sent at once.
pub(super) const CHUNK_BYTES: usize = 64 * 1024;

/// How much of what is typed or pasted waits for a task that does not read.
const KEY_BYTES: usize = 16 * 1024 * 1024;

#[derive(Debug)]
pub(super) struct Feed {
    /// Read, and not taken by the daemon yet.
    held: VecDeque<u8>,
    /// Our own input has ended.
    ended: bool,
    /// The end is passed on.
    close: bool,
    stage: Stage,
    pause: Duration,
    /// Of the portion at hand: it is sent again under the same number when the task was busy, and so it must not grow.
    number: u64,
    length: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Ready,
    /// The request with this id is on its way.
    Sent(i64),
    /// Nothing is sent before this moment.
    Paused(Instant),
    /// Closed, or the task takes no more.
    Done,
}

/// What to send next.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Portion {
    pub(super) data: Bytes,
    pub(super) close: bool,
    pub(super) number: u64,
}

impl Feed {
    /// `close`: the end of our input is the end of the task's.
    pub(super) const fn new(close: bool) -> Self {
        let pause = SHORTEST_PAUSE;
        Self { held: VecDeque::new(), ended: false, close, stage: Stage::Ready, pause, number: 0, length: 0 }
    }

    /// Whether our standard input is to be read now.
    pub(super) fn wants_input(&self) -> bool {
        matches!(self.stage, Stage::Ready) && self.held.is_empty() && !self.ended
    }

    /// What was read; nothing means the end.
    pub(super) fn input(&mut self, bytes: &[u8]) {
        self.held.extend(bytes);
        self.ended |= bytes.is_empty();
    }

    /// Keys come when they come, and are always read: one of them is the way out. Says how many bytes there is no room for,
    /// because the task has not read for very long.
    pub(super) fn keys(&mut self, bytes: &[u8]) -> usize {
        if self.stage == Stage::Done {
            return 0;
        }
        let room = KEY_BYTES.saturating_sub(self.held.len()).min(bytes.len());
        self.held.extend(&bytes[..room]);
        bytes.len() - room
    }

    /// When there will be something to do again.
    pub(super) const fn wake_at(&self) -> Option<Instant> {
        match self.stage {
            Stage::Paused(until) => Some(until),
            _ => None,
        }
    }

    pub(super) fn next(&mut self, now: Instant) -> Option<Portion> {
        if let Stage::Paused(until) = self.stage
            && now >= until
        {
            self.stage = Stage::Ready;
        }
        if self.length == 0 {
            self.length = self.held.len().min(CHUNK_BYTES);
        }
        if self.ended && !self.close && self.length == 0 {
            self.stage = Stage::Done;
        }
        let something = self.length > 0 || self.ended;
        (self.stage == Stage::Ready && something).then(|| Portion {
            data: Bytes(self.held.iter().take(self.length).copied().collect()),
            close: self.ended && self.length == 0,
            number: self.number,
        })
    }

    pub(super) const fn sent(&mut self, id: i64) {
        self.stage = Stage::Sent(id);
    }

    pub(super) fn is_answer(&self, id: i64) -> bool {
        self.stage == Stage::Sent(id)
    }

    /// The answer to the last portion. An error is one that people should hear of.
    pub(super) fn answered(
        &mut self,
        result: Result<TaskWriteResult, RpcError>,
        now: Instant,
    ) -> Result<(), RpcError> {
        match result {
            Ok(written) => {
                let taken = usize::try_from(written.accepted_bytes).unwrap_or(usize::MAX).min(self.length);
                let closing = self.length == 0;
                self.number += 1;
                self.length = 0;
                self.held.drain(..taken);
                if closing {
                    self.stage = Stage::Done;
                } else if written.pending_bytes > PENDING_LIMIT || taken == 0 {
                    self.rest(now);
                } else {
                    self.pause = SHORTEST_PAUSE;
                    self.stage = Stage::Ready;
                }
                Ok(())
            }
            Err(error) => match error.data.kind {
                ErrorKind::Busy => {
                    self.rest(now);
                    Ok(())
                }
                // The task has ended or closed its end: what a pipe would say with SIGPIPE.
                ErrorKind::WrongState | ErrorKind::NotFound => {
                    self.stage = Stage::Done;
                    Ok(())
                }
                _ => {
                    self.stage = Stage::Done;
                    Err(error)
                }
            },
        }
    }

    fn rest(&mut self, now: Instant) {
        self.stage = Stage::Paused(now + self.pause);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(accepted_bytes: u64, pending_bytes: u64) -> TaskWriteResult {
        TaskWriteResult { id: "sh-1".into(), accepted_bytes, pending_bytes }
    }

    #[test]
    fn bytes_go_out_one_portion_at_a_time_and_then_the_close() {
        let now = Instant::now();
        let mut feed = Feed::new(true);
        assert!(feed.wants_input());
        assert_eq!(feed.next(now), None);
        feed.input(b"hello");
        assert_eq!(feed.next(now), Some(Portion { data: "hello".into(), close: false, number: 0 }));
        feed.sent(7);
        assert!(feed.is_answer(7) && !feed.is_answer(8));
        assert_eq!(feed.next(now), None);
        feed.answered(Ok(written(3, 0)), now).unwrap();
        assert_eq!(feed.next(now), Some(Portion { data: "lo".into(), close: false, number: 1 }));
        feed.sent(8);
        feed.answered(Ok(written(2, 0)), now).unwrap();
        feed.input(b"");
        assert_eq!(feed.next(now), Some(Portion { data: "".into(), close: true, number: 2 }));
        feed.sent(9);
        feed.answered(Ok(written(0, 0)), now).unwrap();
        assert!(!feed.wants_input());
        assert_eq!(feed.next(now), None);
    }

    #[test]
    fn a_task_that_does_not_read_is_waited_for() {
        let now = Instant::now();
        let mut feed = Feed::new(true);
        feed.input(b"x");
        feed.sent(1);
        feed.answered(Err(RpcError::new(ErrorKind::Busy, "full")), now).unwrap();
        assert_eq!(feed.next(now), None);
        assert_eq!(feed.wake_at(), Some(now + SHORTEST_PAUSE));
        assert!(feed.next(now + SHORTEST_PAUSE).is_some());
        feed.sent(2);
        feed.answered(Ok(written(1, PENDING_LIMIT + 1)), now).unwrap();
        assert_eq!(feed.wake_at(), Some(now + SHORTEST_PAUSE * 2));
        assert!(!feed.wants_input());
    }

    #[test]
    fn keys_that_come_meanwhile_are_another_portion() {
        let now = Instant::now();
        let mut feed = Feed::new(false);
        feed.keys(b"ab");
        assert_eq!(feed.next(now).unwrap().data, "ab".into());
        feed.sent(1);
        feed.keys(b"c");
        feed.answered(Err(RpcError::new(ErrorKind::Busy, "full")), now).unwrap();
        let later = now + SHORTEST_PAUSE;
        assert_eq!(feed.next(later), Some(Portion { data: "ab".into(), close: false, number: 0 }));
        feed.sent(2);
        feed.answered(Ok(written(2, 0)), now).unwrap();
        assert_eq!(feed.next(now), Some(Portion { data: "c".into(), close: false, number: 1 }));
    }

    #[test]
    fn an_end_that_is_not_passed_on_is_the_end_of_asking() {
        let now = Instant::now();
        let mut feed = Feed::new(false);
        feed.input(b"x");
        feed.input(b"");
        assert!(feed.next(now).is_some());
        feed.sent(1);
        feed.answered(Ok(written(1, 0)), now).unwrap();
        assert_eq!((feed.next(now), feed.wants_input(), feed.wake_at()), (None, false, None));
    }
}
