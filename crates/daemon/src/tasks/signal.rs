//! `task/signal`: sends one signal to the process group of a task's leader. It does not stop the
//! task: that is `stop`.

use belay_os::signal::Signal;
use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::event::Event;
use belay_protocol::shim::ToShim;
use belay_protocol::task::{TaskSignalParams, TaskSignalResult};

use super::TaskEnded;
use crate::config::bounds;
use crate::host::Host;
use crate::requests::{Answer, Caller, Reply, ReplyId, Waiter, shim_unanswered};
use crate::runtime::Core;

/// A signal that waits for the shim's answer.
#[derive(Debug)]
pub(crate) struct SignalReply {
    task: String,
}

impl Reply for SignalReply {
    fn tasks(&self) -> Vec<&str> {
        vec![&self.task]
    }

    fn complete<H: Host>(self, core: &mut Core<H>, waiter: Waiter, _: &TaskEnded) {
        core.fail(&waiter.caller, not_running());
    }

    fn give_now<H: Host>(self, core: &mut Core<H>, waiter: Waiter) {
        core.fail(&waiter.caller, shim_unanswered("the signal may have been sent"));
    }
}

impl<H: Host> Core<H> {
    pub(crate) fn task_signal(
        &mut self,
        caller: &Caller,
        params: TaskSignalParams,
    ) -> Result<Answer, RpcError> {
        let signal = Signal::from_name(&params.signal).ok_or_else(|| {
            let shown: String = params.signal.chars().filter(|c| !c.is_control()).take(30).collect();
            RpcError::invalid("signal", format!("there is no signal {shown:?}"))
                .hint("INT, TERM, USR1, HUP, or a number; kill -l lists them")
        })?;
        self.with_task(caller, &params.id, move |core, caller, task| {
            core.check_fence(caller, &task)?;
            let task = core.tasks.get(task.id()).ok_or_else(not_running)?;
            let shim = task.shim.ok_or_else(not_running)?;
            let (id, tags) = (task.id().to_owned(), task.stored.tags());
            let event = Event::TaskSignalled {
                task: id.clone(),
                session: task.session().to_owned(),
                signal: signal.name().to_owned(),
                by: core.actor(caller, None),
            };
            let reply = SignalReply { task: id };
            let ask = core.defer_reply(caller.clone(), reply, Some(bounds::SHIM_ANSWER_MS));
            core.ctx.record(event, tags);
            core.ctx.tell_shim(shim, ToShim::Signal { ask: ask.0, signal: signal.as_raw() });
            Ok(Answer::Later)
        })
    }

    pub(crate) fn shim_signalled(&mut self, ask: u64, processes: u64) {
        if let Some((waiter, SignalReply { task })) = self.take_reply(ReplyId(ask)) {
            self.reply(&waiter.caller, &TaskSignalResult { id: task, processes });
        }
    }
}

pub(super) fn not_running() -> RpcError {
    RpcError::new(ErrorKind::WrongState, "the task is not running, so nothing can be written or sent to it")
        .field("id")
}
