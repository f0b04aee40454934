//! The end of a task: one value, passed down one list of everything that follows from it. `task_ended` is
//! that list.

use std::sync::Arc;

use belay_protocol::task::{Outcome, TaskInfo};
use belay_record::MemoryLog;

use super::{StoredTask, ended_info};
use crate::effect::Effect;
use crate::host::{CrashPoint, Host};
use crate::input::ShimId;
use crate::requests::{Progress, Reply as _, ReplyId};
use crate::runtime::{Core, Stage};

/// A task that has ended.
#[derive(Debug)]
pub(crate) struct TaskEnded {
    stored: StoredTask,
    info: TaskInfo,
    /// The number of the event that records its end.
    event: u64,
    shim: Option<ShimId>,
    memory: Option<Arc<MemoryLog>>,
    follows: Vec<u64>,
}

impl TaskEnded {
    pub(crate) fn id(&self) -> &str {
        &self.stored.id
    }

    pub(crate) const fn stored(&self) -> &StoredTask {
        &self.stored
    }

    pub(crate) const fn info(&self) -> &TaskInfo {
        &self.info
    }

    pub(crate) const fn event(&self) -> u64 {
        self.event
    }

    /// The subscriptions to its output.
    pub(crate) fn follows(&self) -> &[u64] {
        &self.follows
    }
}

impl<H: Host> Core<H> {
    /// A task has ended and its end is recorded: durable first, then waiting callers get their replies, then its shim may forget
    /// it.
    pub(super) fn task_ended(&mut self, id: &str) {
        let Some(ended) = self.take_ended(id) else { return };
        // Recorded, in the same commit as the end:
        self.ctx.journal.put_task(&ended.stored);
        self.enqueue_hooks(&ended);
        self.count_output_above(&ended);
        self.leave_lane(&ended);
        self.record_completion(&ended);
        // In memory:
        self.update_stall_exemption(ended.stored.parent.as_deref());
        self.release_shim(&ended);
        // A daemon that dies now reports the end again, and reports the same. (If the disk is full it is reported all
        // the same, and the shim keeps it.)
        self.commit_or_retry();
        // Now it may be reported:
        self.keep_output(&ended);
        self.complete_replies(&ended);
        self.serve_sessions_of(&ended.stored);
        self.complete_last_replies(&ended);
        self.end_follows(&ended);
        self.retention.task_ended(ended.stored.kept_bytes());
        self.tasks.remember(ended.stored);
    }

    fn take_ended(&mut self, id: &str) -> Option<TaskEnded> {
        let event = self.ctx.journal.next_event() - 1;
        let mut task = self.tasks.remove(id)?;
        task.stored.doc.last_event = event;
        self.ctx.cancel(task.caller_deadline);
        self.ctx.cancel(task.awaiting_resubmit);
        let info = ended_info(&task.stored);
        log_end(&info);
        let (shim, memory, follows) = (task.shim, task.memory, task.follows);
        Some(TaskEnded { stored: task.stored, info, event, shim, memory, follows })
    }

    /// Once the end is durable, and followers have the output that only the shim has, the shim may forget it and serve again.
    fn release_shim(&mut self, ended: &TaskEnded) {
        self.ctx.effects.push(Stage::AfterCommit, Effect::CrashPoint(CrashPoint::AfterEnd));
        let Some(shim) = ended.shim else { return };
        self.disarm_watchdog(shim);
        self.shims.task_over(shim);
        // A shim whose task was stopped has a cgroup to make anew, which would take the processor from the caller that waits
        // for the receipt.
        let was_stopped = ended.stored.doc.end.as_ref().is_some_and(|end| end.receipt.is_some());
        let stage = if was_stopped { Stage::Deferred } else { Stage::AfterReplies };
        if !self.keep_in_shim(ended, shim) {
            self.acknowledge_end(shim, ended.stored.id.clone(), stage);
        }
    }

    /// Output that is not on disk stays readable for a while.
    fn keep_output(&mut self, ended: &TaskEnded) {
        if !ended.info.output.on_disk {
            self.tasks.keep_memory(ended.id(), ended.info.output.bytes, ended.memory.clone());
        }
    }

    /// Replies about this task.
    fn complete_replies(&mut self, ended: &TaskEnded) {
        for reply in self.requests.of_task(ended.id()) {
            if !self.requests.completes_last(reply) {
                self.complete_reply(reply, ended);
            }
        }
    }

    /// Replies that are completed last: stops of several tasks, once the sessions of this one know of its end.
    fn complete_last_replies(&mut self, ended: &TaskEnded) {
        for reply in self.requests.of_task(ended.id()) {
            if self.requests.completes_last(reply) {
                self.complete_reply(reply, ended);
            }
        }
    }

    fn complete_reply(&mut self, reply: ReplyId, ended: &TaskEnded) {
        let Some((progress, awaits_end)) = self.requests.report_end(reply, ended) else { return };
        if progress == Progress::Keep {
            self.send_receipts(reply);
            return self.wait_sees_end(reply);
        }
        let Some((waiter, pending)) = self.take_any_reply(reply) else { return };
        if awaits_end {
            self.acknowledge_by_reply(&waiter.caller, &ended.stored);
        }
        pending.complete(self, waiter, ended);
    }

    fn end_follows(&mut self, ended: &TaskEnded) {
        for follow in ended.follows() {
            self.end_follow(*follow, ended.info.output.bytes);
        }
    }
}

/// An ordinary end interests only the task's owner and is logged for debugging; one with survivors or lost output is a warning.
fn log_end(info: &TaskInfo) {
    let (task, status) = (info.id.as_str(), info.status.name());
    let outcome = info.outcome.as_ref();
    let (exit_code, signal) = (outcome.and_then(Outcome::exit_code), outcome.and_then(Outcome::signal));
    tracing::debug!(task, status, exit_code, signal, "ended");
    let survivors = outcome.map_or(0, |outcome| outcome.survivors().len());
    if survivors > 0 {
        tracing::warn!(task, status, survivors, "ended with survivors");
    }
    if let Some(fault) = outcome.and_then(Outcome::capture) {
        tracing::warn!(task, lost_bytes = fault.lost_bytes, cause = fault.message, "output incomplete");
    }
}
