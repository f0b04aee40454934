//! What a shim says, and when it leaves: at once, or a moment later together with what follows. It decides nothing about
//! the life of a task.

use std::io;

use belay_os::process::monotonic_ms;
use belay_protocol::shim::{FromShim, LifeEvent, LifeItem};

use super::Shim;
use crate::link::Link;

/// How long news that nobody waits for may wait for what follows them: a short task is told in one breath.
const HOLD_MS: u64 = 3;

impl Shim {
    pub(super) fn say(&mut self, message: &FromShim) {
        let can_wait = match message {
            FromShim::Life(LifeItem { event: LifeEvent::Spawned { .. }, .. }) => !self.hurry,
            // Whoever waited for the task is answered with a detach; and a daemon that hears of the leader's death is awake when it
            // hears of the end.
            FromShim::Life(LifeItem {
                event: LifeEvent::Detach { .. } | LifeEvent::LeaderExited { .. },
                ..
            }) => false,
            FromShim::Life(item) => item.end.is_none(),
            FromShim::Memory { .. } => true,
            FromShim::Output { .. } => !self.watched,
            _ => false,
        };
        let nothing_queued = self.link.as_ref().is_some_and(Link::is_flushed);
        self.hold_until_ms = match self.hold_until_ms {
            // Never longer than the first of them, and never with something before it that cannot wait.
            Some(until_ms) if can_wait => Some(until_ms),
            None if can_wait && nothing_queued => Some(monotonic_ms() + HOLD_MS),
            _ => None,
        };
        if self.link.as_mut().is_some_and(|link| link.send(message).is_err()) {
            // The loop notices the missing link and tells the core.
            self.link_broken = true;
        }
    }

    /// Says how much output there is, if somebody wants to know and has heard the last word. That there is any on disk is said
    /// once in any case: the daemon need not look for what a silent task has written.
    pub(super) fn tell_output(&mut self) -> bool {
        let Some(task) = &self.task else { return false };
        let bytes = task.output.bytes();
        let is_first = self.told_bytes == 0 && task.output.memory().is_none();
        // What is held back is no sign of a daemon that does not read.
        let heard = self.hold_until_ms.is_some() || self.link.as_ref().is_some_and(Link::is_flushed);
        let news = (self.watched || is_first) && heard && bytes > self.told_bytes;
        if news {
            self.told_bytes = bytes;
            self.say(&FromShim::Output { bytes });
        }
        news
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        if self.hold_until_ms.is_some_and(|until_ms| monotonic_ms() < until_ms) {
            return Ok(());
        }
        self.hold_until_ms = None;
        let broken = self.link.as_mut().is_some_and(|link| link.flush().is_err());
        if broken || self.link_broken { self.lose_daemon() } else { Ok(()) }
    }
}
