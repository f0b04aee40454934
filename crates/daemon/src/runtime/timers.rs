//! The timers of the core: what is due when, by the monotonic clock. They do not know what to do when one is due.

use std::collections::BTreeMap;

use crate::input::ShimId;
use crate::requests::ReplyId;

/// Names a scheduled timer. Timers of the same millisecond are due in the order in which they were scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TimerKey {
    at_ms: u64,
    number: u64,
}

impl TimerKey {
    pub(crate) const fn at_ms(self) -> u64 {
        self.at_ms
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    /// A pending reply is due.
    Reply(ReplyId),
    /// Clients are served even if some shims of an earlier daemon have not answered.
    AdoptionDeadline,
    /// A live shim that could not be reached is tried again.
    ReconnectShim(ShimId),
    /// The caller of this foreground task has not come back.
    CallerDeadline(String),
    /// The caller of a task that an earlier daemon recorded as ended had its time to come back for the output.
    OrphanOutput(ShimId, String),
    /// The start of this task has not been resubmitted.
    ResubmitDeadline(String),
    /// Acknowledged completions are removed from the journal.
    DropAcknowledged,
    /// Tasks with budgets are sampled together with the tasks below them.
    SampleBudgets,
    /// The lease or the grace period of this session is over.
    Lease(String),
    /// The output of a task may have been quiet for long enough for a wait.
    Quiet(ReplyId),
    /// A shim that was sent a stop may be stuck.
    StopWatchdog(ShimId),
    /// Acknowledgements that were held back are sent.
    DeferredAcks,
    /// The daemon has been idle for long enough to exit.
    Idle,
    /// The journal could not be written and is tried again.
    RetryCommit,
    /// The write buffer goes to the database.
    Flush,
}

impl Timer {
    /// The kind of the timer, for the cost of steps.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Reply(..) => "reply",
            Self::AdoptionDeadline => "adoption_deadline",
            Self::ReconnectShim(..) => "reconnect_shim",
            Self::CallerDeadline(..) => "caller_deadline",
            Self::OrphanOutput(..) => "orphan_output",
            Self::ResubmitDeadline(..) => "resubmit_deadline",
            Self::DropAcknowledged => "drop_acknowledged",
            Self::SampleBudgets => "sample_budgets",
            Self::Lease(..) => "lease",
            Self::Quiet(..) => "quiet",
            Self::StopWatchdog(..) => "stop_watchdog",
            Self::DeferredAcks => "deferred_acks",
            Self::Idle => "idle",
            Self::RetryCommit => "retry_commit",
            Self::Flush => "flush",
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Timers {
    queue: BTreeMap<TimerKey, Timer>,
    last: u64,
}

impl Timers {
    pub(crate) fn schedule(&mut self, at_ms: u64, timer: Timer) -> TimerKey {
        self.last += 1;
        let key = TimerKey { at_ms, number: self.last };
        self.queue.insert(key, timer);
        key
    }

    pub(crate) fn cancel(&mut self, key: TimerKey) {
        self.queue.remove(&key);
    }

    pub(crate) fn next_deadline(&self) -> Option<u64> {
        self.queue.keys().next().map(|key| key.at_ms)
    }

    /// Takes one timer that is due: between two of them the loop serves others.
    pub(crate) fn take_due(&mut self, now_ms: u64) -> Option<Timer> {
        let first = self.queue.first_entry().filter(|entry| entry.key().at_ms <= now_ms)?;
        Some(first.remove())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_are_taken_one_by_one_in_order() {
        let mut timers = Timers::default();
        timers.schedule(20, Timer::Flush);
        timers.schedule(10, Timer::Idle);
        let cancelled = timers.schedule(10, Timer::SampleBudgets);
        timers.schedule(10, Timer::DeferredAcks);
        timers.cancel(cancelled);
        assert_eq!(timers.next_deadline(), Some(10));
        assert_eq!(timers.take_due(9), None);
        assert_eq!(timers.take_due(15), Some(Timer::Idle));
        assert_eq!(timers.take_due(15), Some(Timer::DeferredAcks));
        assert_eq!(timers.take_due(15), None);
        assert_eq!(timers.take_due(20), Some(Timer::Flush));
    }
}
