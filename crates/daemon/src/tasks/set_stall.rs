//! `task/set_stall`: changes how a live task is checked for progress. The shim makes the change, and reports it as a part of the
//! task's life.

use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::shim::{SHIM_PROTOCOL_SET_STALL, ToShim};
use belay_protocol::task::{OnStall, StallParams, TaskSetStallParams};
use belay_record::convert::stall_from_wire;

use super::process_view::task_info_reply;
use super::{Task, TaskEnded, TaskRef};
use crate::config::bounds;
use crate::host::Host;
use crate::requests::check::check_stall;
use crate::requests::{Answer, Caller, Reply, Waiter, shim_unanswered};
use crate::runtime::Core;

/// A change that waits for the shim's report.
#[derive(Debug)]
pub(crate) struct SetStallReply {
    task: String,
    wanted: Option<StallParams>,
}

impl Reply for SetStallReply {
    fn tasks(&self) -> Vec<&str> {
        vec![&self.task]
    }

    fn complete<H: Host>(self, core: &mut Core<H>, waiter: Waiter, _: &TaskEnded) {
        core.fail(&waiter.caller, has_ended());
    }

    fn give_now<H: Host>(self, core: &mut Core<H>, waiter: Waiter) {
        core.fail(&waiter.caller, shim_unanswered("the change may have been made"));
    }
}

impl<H: Host> Core<H> {
    pub(crate) fn task_set_stall(
        &mut self,
        caller: &Caller,
        params: TaskSetStallParams,
    ) -> Result<Answer, RpcError> {
        check_stall("stall", params.stall.params())?;
        let id = params.id.clone();
        self.with_task(caller, &id, move |core, caller, task| core.set_stall_of(caller, &params, &task))
    }

    fn set_stall_of(
        &mut self,
        caller: &Caller,
        params: &TaskSetStallParams,
        task: &TaskRef,
    ) -> Result<Answer, RpcError> {
        let id = task.id();
        let stored = self.tasks.get(id).ok_or_else(has_ended)?.stored().clone();
        self.check_may_relax(caller, params)?;
        let stall = params.stall.params();
        if stored.doc.stall() == stall {
            return self.reply_task(caller, task, false);
        }
        let is_changed = self.tasks.update(id, |task| {
            let Some(start) = &mut task.start else { return false };
            // No shim has it yet: it starts with the new setting.
            start.clocks.stall = stall;
            task.stored.doc.clocks.stall = stall;
            task.policy.stall = stall.map(stall_from_wire);
            true
        });
        if is_changed == Some(true) {
            self.tasks.mark_changed(id);
            return self.reply_task(caller, task, false);
        }
        let shim = self.tasks.get(id).and_then(Task::shim).ok_or_else(|| {
            RpcError::new(ErrorKind::WrongState, "no shim holds the task at the moment")
                .field("id")
                .hint("try again later")
        })?;
        if self.shims.protocol(shim) < SHIM_PROTOCOL_SET_STALL {
            let message = format!("the shim of {id} is of an older version, which cannot change this");
            return Err(RpcError::new(ErrorKind::Unsupported, message).field("id"));
        }
        let reply = SetStallReply { task: id.to_owned(), wanted: stall };
        self.defer_reply(caller.clone(), reply, Some(bounds::SHIM_ANSWER_MS));
        self.ctx.tell_shim(shim, ToShim::SetStall { stall });
        Ok(Answer::Later)
    }

    /// What runs inside a session may not weaken the check that the session asks for.
    fn check_may_relax(&self, caller: &Caller, params: &TaskSetStallParams) -> Result<(), RpcError> {
        let scope = self.scope(caller);
        let around = self.sessions_around(&scope).into_iter();
        let required = around.filter_map(|session| session.defaults().stall);
        let asked = params.stall.params();
        for required in required {
            let is_weaker = asked.is_none_or(|asked| {
                asked.after_ms > required.after_ms
                    || (required.policy == OnStall::Stop && asked.policy != OnStall::Stop)
            });
            if is_weaker {
                let message = format!("the session checks its tasks at least every {} ms", required.after_ms);
                return Err(RpcError::new(ErrorKind::NotPermitted, message)
                    .field("stall")
                    .hint("only the session's own client or a person may request that"));
            }
        }
        Ok(())
    }

    /// The shim has changed how this task is checked for progress.
    pub(super) fn stall_was_set(&mut self, id: &str) {
        self.update_stall_exemption(Some(id));
        let now = self.tasks.get(id).and_then(|task| task.stored().doc.stall());
        for reply in self.requests.of_task(id) {
            // Another client may have asked for something else.
            if self.requests.reply::<SetStallReply>(reply).is_none_or(|reply| reply.wanted != now) {
                continue;
            }
            if let Some((waiter, _)) = self.take_reply::<SetStallReply>(reply) {
                self.reply_live(&waiter.caller, id, false, None, task_info_reply());
            }
        }
    }
}

fn has_ended() -> RpcError {
    RpcError::new(ErrorKind::WrongState, "the task has ended, so its progress is not checked").field("id")
}
