//! `task/detach`: moves a task from the foreground to the background. The shim decides when a running task is detached; waiting
//! callers return then.

use belay_model::{Event, State, step};
use belay_protocol::error::RpcError;
use belay_protocol::shim::ToShim;
use belay_protocol::task::{DetachedBy, TaskDetachParams};

use super::process_view::task_info_reply;
use super::{TaskEnded, TaskRef};
use crate::config::bounds;
use crate::host::Host;
use crate::requests::check::check_text;
use crate::requests::{Answer, Caller, DetachAnswer, Reply, ReplyId, Waiter, shim_unanswered};
use crate::runtime::Core;

/// Who detaches a task whose caller's connection has ended.
pub(super) const DISCONNECT: &str = "disconnect";

/// A detach that waits for the shim.
#[derive(Debug)]
pub(crate) struct DetachReply {
    task: String,
}

impl Reply for DetachReply {
    fn tasks(&self) -> Vec<&str> {
        vec![&self.task]
    }

    fn answered_by_detach(&self) -> Option<DetachAnswer> {
        Some(DetachAnswer::Task)
    }

    fn complete<H: Host>(self, core: &mut Core<H>, waiter: Waiter, ended: &TaskEnded) {
        core.reply(&waiter.caller, ended.info());
    }

    fn give_now<H: Host>(self, core: &mut Core<H>, waiter: Waiter) {
        core.fail(&waiter.caller, shim_unanswered("it may still be detached"));
    }
}

impl<H: Host> Core<H> {
    pub(crate) fn task_detach(
        &mut self,
        caller: &Caller,
        params: TaskDetachParams,
    ) -> Result<Answer, RpcError> {
        check_text("actor", params.actor.as_deref(), bounds::NAME_BYTES)?;
        let id = params.id.clone();
        self.with_task(caller, &id, move |core, caller, task| {
            let is_foreground =
                |task: &TaskRef| core.tasks.get(task.id()).is_some_and(|task| !task.state.detached());
            if !is_foreground(&task) {
                return core.reply_task(caller, &task, false);
            }
            let reply = DetachReply { task: task.id().to_owned() };
            core.defer_reply(caller.clone(), reply, Some(bounds::SHIM_ANSWER_MS));
            let by = core.actor(caller, params.actor.as_deref());
            core.order_detach(task.id(), by);
            Ok(Answer::Later)
        })
    }

    /// Carries a detach to wherever the task is. One that has ended or is detached by then stays as it is.
    pub(super) fn order_detach(&mut self, id: &str, by: String) {
        let Some(task) = self.tasks.get(id) else { return };
        if let Some(shim) = task.shim {
            return self.ctx.tell_shim(shim, ToShim::Detach { by });
        }
        let State::Queued { .. } = task.state else { return };
        let by = DetachedBy::from(by);
        let event = belay_protocol::event::Event::TaskDetached {
            task: id.to_owned(),
            session: task.stored.session.clone(),
            by: by.clone(),
        };
        self.ctx.journal.record(self.ctx.now, &event, task.stored.tags());
        self.tasks.update(id, |task| {
            task.state = step(&task.policy, task.state.clone(), Event::Detach).state;
            task.stored.doc.detached_by = Some(by);
            if let Some(start) = &mut task.start {
                // The shim never knows it otherwise. The foreground limit was for the caller.
                start.detached = true;
                start.memory_bytes = 0;
                start.clocks.timeout_ms = None;
            }
        });
        self.tasks.mark_changed(id);
        self.tasks.detached.push(id.to_owned());
    }

    /// Tasks that were detached in this step: waiting callers return, with the id and how to go on with it.
    pub(crate) fn answer_detached_callers(&mut self) {
        if self.tasks.detached.is_empty() {
            return;
        }
        for id in std::mem::take(&mut self.tasks.detached) {
            let follows = self.tasks.update(&id, |task| {
                task.caller = None;
                (task.caller_deadline.take(), task.follows.clone())
            });
            let Some((deadline, follows)) = follows else { continue };
            self.ctx.cancel(deadline);
            for reply in self.requests.of_task(&id) {
                self.answer_detached_caller(reply, &id, &follows);
            }
        }
    }

    fn answer_detached_caller(&mut self, reply: ReplyId, id: &str, follows: &[u64]) {
        let Some(answer) = self.requests.answered_by_detach(reply) else { return };
        let Some((waiter, _)) = self.take_any_reply(reply) else { return };
        match answer {
            DetachAnswer::Wait => self.answer_detached_wait(&waiter.caller, id),
            DetachAnswer::Task => match self.tasks.follow_of(follows, &waiter.caller) {
                Some(follow) => self.detach_follow(follow, waiter.caller),
                None => self.reply_live(&waiter.caller, id, true, None, task_info_reply()),
            },
        }
    }
}
