//! Commands that are run again: when the next attempt may begin, by a count of its own, and which ends there are in between.

use belay_model::{Clock, Exit};
use belay_protocol::life::{ExitStatus, StopOrderInfo, TaskEnd};
use belay_record::convert::Wire as _;

use super::Checked;
use super::truth::{LAG_MS, Truth};

impl Truth {
    /// A process is about to be made: for the first time, or because the last attempt failed by itself and its time has come.
    pub(crate) fn may_begin(&self, now_ms: u64) -> Checked {
        if self.failure.is_some() || (self.attempts > 0 && self.rests_since_ms.is_none()) {
            return Err("it was started twice".to_owned());
        }
        let Some(since_ms) = self.rests_since_ms else { return Ok(()) };
        let due_ms = since_ms + self.clocks.retry_delay_ms;
        let failed = self.leader_exit().is_some_and(|exit| exit != Exit::SUCCESS);
        let in_time = (due_ms..=due_ms + LAG_MS).contains(&now_ms);
        let left = self.attempts <= self.clocks.retries;
        let alone = self.alive().next().is_none();
        if failed && in_time && left && alone && self.orders.is_empty() && self.cause.is_none() {
            return Ok(());
        }
        Err(format!("it was run again at {now_ms}, due {due_ms}, after {} attempts: {self:?}", self.attempts))
    }

    /// The shim says that the task is between two attempts.
    pub(crate) const fn rests(&mut self, now_ms: u64) {
        if self.rests_since_ms.is_none() {
            self.rests_since_ms = Some(now_ms);
            self.due[2] = None;
        }
    }

    /// A limit has ended a task that rests: was it time?
    pub(crate) fn ran_out_resting(&mut self, now_ms: u64, clock: Clock) -> Checked {
        let due = self.due_of(clock);
        self.ran_out_resting = Some(clock);
        match due {
            Some(due) if (due..=due + LAG_MS).contains(&now_ms) => Ok(()),
            due => Err(format!("the {} clock ended it at {now_ms} in between, due {due:?}", clock.name())),
        }
    }

    /// The next attempt is not late.
    pub(crate) fn begins_in_time(&self, now_ms: u64) -> Checked {
        match self.rests_since_ms.map(|since_ms| since_ms + self.clocks.retry_delay_ms + LAG_MS) {
            Some(latest) if now_ms > latest => {
                Err(format!("it rests, and was to begin again until {latest}"))
            }
            _ => Ok(()),
        }
    }

    /// Whether this end, of a task that rested, is the true one. None if it did not rest.
    pub(crate) fn judge_resting(&self, end: &TaskEnd) -> Option<bool> {
        self.rests_since_ms?;
        let is_last = |exit: &Option<ExitStatus>| self.leader_exit().map(|exit| exit.to_wire()) == *exit;
        let asked = |order: &StopOrderInfo| self.orders.iter().any(|known| known.actor == order.actor);
        match end {
            TaskEnd::Cancelled { order, exit } => Some(asked(order) && is_last(exit)),
            TaskEnd::TimedOut { clock, exit, .. } => {
                Some(self.ran_out_resting.map(|clock| clock.to_wire()) == Some(*clock) && is_last(exit))
            }
            TaskEnd::Exited { .. } | TaskEnd::Budget { .. } | TaskEnd::StopFailed { .. } => Some(false),
            // As for any other.
            TaskEnd::Spawn { .. } | TaskEnd::Lost { .. } => None,
        }
    }

    /// What failed by itself is over only if no attempt is left, or somebody wanted it to be.
    pub(crate) fn is_given_up(&self, exit: ExitStatus) -> bool {
        exit == Exit::SUCCESS.to_wire() || self.attempts > self.clocks.retries || self.cause.is_some()
    }
}
