//! `task/get`: one task, with its processes and what its shim knows of its clocks.

use belay_protocol::error::RpcError;
use belay_protocol::shim::{Now, ToShim};
use belay_protocol::task::TaskGetParams;

use super::process_view::task_info_reply;
use super::{TaskEnded, TaskRef};
use crate::config::bounds;
use crate::host::Host;
use crate::requests::{Answer, Caller, Reply, ReplyId, Waiter};
use crate::runtime::Core;

/// A `task/get` that waits for the shim's answer.
#[derive(Debug)]
pub(crate) struct InspectReply {
    task: String,
}

impl Reply for InspectReply {
    fn tasks(&self) -> Vec<&str> {
        vec![&self.task]
    }

    fn complete<H: Host>(self, core: &mut Core<H>, waiter: Waiter, ended: &TaskEnded) {
        core.reply(&waiter.caller, ended.info());
    }

    /// The shim did not answer in time: the reply goes without what it knows.
    fn give_now<H: Host>(self, core: &mut Core<H>, waiter: Waiter) {
        core.reply_live(&waiter.caller, &self.task, true, None, task_info_reply());
    }
}

impl<H: Host> Core<H> {
    pub(crate) fn task_get(&mut self, caller: &Caller, params: TaskGetParams) -> Result<Answer, RpcError> {
        self.with_task(caller, &params.id, |core, caller, task| core.inspect(caller, &task))
    }

    fn inspect(&mut self, caller: &Caller, task: &TaskRef) -> Result<Answer, RpcError> {
        let shim = self.tasks.get(task.id()).and_then(super::Task::shim);
        let Some(shim) = shim else { return self.reply_task(caller, task, true) };
        let reply = InspectReply { task: task.id().to_owned() };
        let query = self.defer_reply(caller.clone(), reply, Some(bounds::SHIM_ANSWER_MS));
        self.ctx.tell_shim(shim, ToShim::Query { query: query.0 });
        Ok(Answer::Later)
    }

    /// A shim has answered a query.
    pub(crate) fn shim_answered(&mut self, now: &Now) {
        let Some((waiter, reply)) = self.take_reply::<InspectReply>(ReplyId(now.query)) else { return };
        self.reply_live(&waiter.caller, &reply.task, true, Some(now), task_info_reply());
    }
}
