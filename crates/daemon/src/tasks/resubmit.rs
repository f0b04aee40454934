//! Starts that were recorded but lost in a daemon crash before a shim received them. The environment was in the dead daemon's
//! memory only; but a caller that gave a token resubmits its start, and then the task goes on with the same id and the same
//! place in its lane.

use belay_protocol::error::RpcError;
use belay_protocol::life::{StartError, StartStage, TaskEnd};
use belay_protocol::task::{TaskStartParams, TaskStatus};

use super::StoredTask;
use crate::config::bounds;
use crate::host::Host;
use crate::keyed_hash;
use crate::requests::{Answer, Caller, make_token};
use crate::runtime::{Core, Timer};

impl<H: Host> Core<H> {
    /// Nothing of this task was ever started. Its caller may resubmit it for a while, if it gave a token.
    pub(crate) fn await_resubmit(&mut self, id: &str) {
        let Some(task) = self.tasks.get(id) else { return };
        if let Some(stop) = task.stop.clone() {
            // Nothing of it runs, and nothing of it will.
            return self.end_queued(id, stop.order);
        }
        let doc = &task.stored.doc;
        if task.stored.token.is_none() || doc.hook.is_some() || doc.boot != self.ctx.boot {
            return self.end_not_handed_over(id);
        }
        tracing::info!(
            task = id,
            within_ms = bounds::CALLER_MS,
            "start lost in a crash: awaiting its caller"
        );
        let deadline = self.ctx.schedule(bounds::CALLER_MS, Timer::ResubmitDeadline(id.to_owned()));
        self.tasks.update(id, |task| {
            task.shim = None;
            task.stored.doc.shim = None;
            task.stored.doc.status = TaskStatus::Queued;
            task.reset(true);
            task.awaiting_resubmit = Some(deadline);
        });
        self.tasks.mark_changed(id);
    }

    pub(crate) fn resubmit_missed(&mut self, id: &str) {
        if self.tasks.get(id).is_some_and(|task| task.awaiting_resubmit.is_some()) {
            self.end_not_handed_over(id);
        }
    }

    fn end_not_handed_over(&mut self, task: &str) {
        tracing::warn!(task, "start lost in a crash: ended as not started");
        let message = "the daemon died while handing the command over: it was not started".to_owned();
        let error = StartError { stage: StartStage::Holder, errno: 0, message };
        self.end_unstarted(task, TaskEnd::Spawn { error });
    }

    /// The caller has submitted the same start again.
    pub(super) fn resubmit_start(
        &mut self,
        caller: &Caller,
        params: TaskStartParams,
        mut stored: StoredTask,
    ) -> Result<Answer, RpcError> {
        let id = stored.id.clone();
        let token = make_token(&id, &self.ctx.random::<16>()?);
        stored.doc.proof = keyed_hash::keyed(&self.ctx.key, token.as_bytes());
        let command = self.prepare_command(&params);
        let mut start = self.start_message(&params, command, &stored, &token)?;
        start.held = stored.doc.lane.as_ref().is_some_and(|seat| seat.generation.is_none());
        let shim = self.take_ready_shim(&mut stored, start.held);
        let before = self.tasks.update(&id, |task| std::mem::replace(&mut task.stored, stored));
        self.tasks.mark_changed(&id);
        if let Err(error) = self.commit() {
            // It goes on waiting, and can be submitted once more.
            self.tasks.update(&id, |task| task.stored = before.unwrap_or_else(|| task.stored.clone()));
            self.tasks.mark_changed(&id);
            self.shims.put_back_ready(shim);
            return Err(super::journal_error(&error));
        }
        let deadline = self.tasks.update(&id, |task| {
            task.start = Some(start);
            task.awaiting_resubmit.take()
        });
        self.ctx.cancel(deadline.flatten());
        self.begin_recorded_start(caller, &params, &id, shim);
        self.announce_start(&id);
        Ok(Answer::Later)
    }
}
