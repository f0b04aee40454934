//! `task/write`: writes to the standard input of a task, and waits of callers for room in its
//! buffer. The shim holds the buffer; the daemon keeps no input.

use belay_model::State;
use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::shim::{ToShim, WriteResult as ShimWrite};
use belay_protocol::task::{TaskWriteParams, TaskWriteResult};

use super::signal::not_running;
use super::{Task, TaskEnded};
use crate::config::bounds;
use crate::host::Host;
use crate::input::ShimId;
use crate::requests::check::check_text;
use crate::requests::{Answer, Caller, Reply, ReplyId, Waiter, shim_unanswered};
use crate::runtime::Core;

/// A write that waits for the shim's answer.
#[derive(Debug)]
pub(crate) struct WriteReply {
    task: String,
    bytes: u64,
    room_ms: Option<u64>,
}

/// A write that the shim had no room for. The refusal is sent when there is room again.
#[derive(Debug)]
pub(crate) struct WritableWait {
    task: String,
    refusal: Box<RpcError>,
}

impl Reply for WriteReply {
    fn tasks(&self) -> Vec<&str> {
        vec![&self.task]
    }

    fn complete<H: Host>(self, core: &mut Core<H>, waiter: Waiter, _: &TaskEnded) {
        core.fail(&waiter.caller, ended());
    }

    fn give_now<H: Host>(self, core: &mut Core<H>, waiter: Waiter) {
        core.fail(&waiter.caller, shim_unanswered("the write may have been accepted"));
    }
}

impl Reply for WritableWait {
    fn tasks(&self) -> Vec<&str> {
        vec![&self.task]
    }

    fn complete<H: Host>(self, core: &mut Core<H>, waiter: Waiter, _: &TaskEnded) {
        core.fail(&waiter.caller, ended());
    }

    fn give_now<H: Host>(self, core: &mut Core<H>, waiter: Waiter) {
        core.fail(&waiter.caller, *self.refusal);
    }

    fn daemon_leaves<H: Host>(self, core: &mut Core<H>, waiter: Waiter) {
        core.fail(&waiter.caller, *self.refusal);
    }
}

fn ended() -> RpcError {
    RpcError::new(ErrorKind::WrongState, "the task has ended and no longer reads its standard input")
        .field("id")
}

impl<H: Host> Core<H> {
    pub(crate) fn task_write(
        &mut self,
        caller: &Caller,
        params: TaskWriteParams,
    ) -> Result<Answer, RpcError> {
        self.refuse_when_leaving()?;
        check_text("key", params.key.as_deref(), bounds::NAME_BYTES)?;
        check_room(params.room_ms)?;
        let id = params.id.clone();
        self.with_task(caller, &id, move |core, caller, task| {
            core.check_fence(caller, &task)?;
            let id = task.id().to_owned();
            if core.tasks.get(&id).is_some_and(Task::is_queued) {
                let error = RpcError::new(
                    ErrorKind::Busy,
                    "the task is queued and does not read its standard input yet",
                );
                let refusal = error.field("id").hint("try again when it is running");
                core.refuse_when_writable(caller.clone(), id, refusal, params.room_ms);
                return Ok(Answer::Later);
            }
            let shim = core.tasks.get(&id).and_then(Task::shim).ok_or_else(not_running)?;
            let TaskWriteParams { data, close, key, room_ms, .. } = params;
            let reply = WriteReply { task: id, bytes: data.0.len() as u64, room_ms };
            let write = core.defer_reply(caller.clone(), reply, Some(bounds::SHIM_ANSWER_MS));
            let room = room_ms.is_some();
            core.ctx.tell_shim(shim, ToShim::Write { write: write.0, data, close, key, room });
            Ok(Answer::Later)
        })
    }

    /// The shim has accepted or refused a write.
    pub(crate) fn shim_wrote(&mut self, write: u64, result: &ShimWrite) {
        let Some((waiter, reply)) = self.take_reply::<WriteReply>(ReplyId(write)) else { return };
        let WriteReply { task, bytes, room_ms } = reply;
        let caller = waiter.caller;
        match result {
            ShimWrite::Accepted { pending } => {
                let accepted = TaskWriteResult { id: task, accepted_bytes: bytes, pending_bytes: *pending };
                self.reply(&caller, &accepted);
            }
            ShimWrite::Closed => {
                let error =
                    RpcError::new(ErrorKind::WrongState, "the task has no open standard input").field("id");
                self.fail(
                    &caller,
                    error.hint("it was started without --stdin, or has closed its standard input"),
                );
            }
            ShimWrite::Full { .. } if self.is_between_attempts(&task) => {
                let message = "the task is between two attempts and does not read its standard input";
                let hint = "try again when the next attempt has begun";
                let refusal = RpcError::new(ErrorKind::Busy, message).field("id").hint(hint);
                self.refuse_when_writable(caller, task, refusal, room_ms);
            }
            ShimWrite::Full { pending } => {
                let message =
                    format!("the standard input of the command is full: {pending} bytes are not read yet");
                let refusal = RpcError::new(ErrorKind::Busy, message)
                    .hint("try again when the command has read some of it");
                self.refuse_when_writable(caller, task, refusal, room_ms);
            }
        }
    }

    fn is_between_attempts(&self, id: &str) -> bool {
        self.tasks.get(id).is_some_and(|task| matches!(task.state, State::Resting(_)))
    }

    /// Refuses a write for which there is no room: at once, or when there is room again, so that
    /// the caller need not poll. Nothing was accepted, so the caller can repeat the whole write.
    fn refuse_when_writable(
        &mut self,
        caller: Caller,
        task: String,
        refusal: RpcError,
        room_ms: Option<u64>,
    ) {
        let Some(room_ms) = room_ms else { return self.fail(&caller, refusal) };
        let shim = self.tasks.get(&task).and_then(Task::shim);
        let is_adopted = shim.is_some_and(|shim| self.shims.is_adopted(shim));
        let most_ms = if is_adopted { bounds::ROOM_ADOPTED_MS } else { bounds::ROOM_MS };
        let reply = WritableWait { task, refusal: Box::new(refusal) };
        self.defer_reply(caller, reply, Some(room_ms.min(most_ms)));
    }

    /// The command has read from its standard input, or has closed it.
    pub(crate) fn shim_has_room(&mut self, shim: ShimId) {
        if let Some(task) = self.shims.task_of(shim).map(str::to_owned) {
            self.wake_writers(&task);
        }
    }

    /// A task that has started, or whose next attempt has begun, may read its standard input.
    pub(super) fn wake_writers_if_running(&mut self, id: &str) {
        if self.tasks.get(id).is_some_and(|task| matches!(task.state, State::Running(_))) {
            self.wake_writers(id);
        }
    }

    fn wake_writers(&mut self, id: &str) {
        for reply in self.requests.of_task(id) {
            if self.requests.reply::<WritableWait>(reply).is_some() {
                self.reply_due(reply);
            }
        }
    }
}

fn check_room(room_ms: Option<u64>) -> Result<(), RpcError> {
    if room_ms.is_some_and(|ms| ms > bounds::ROOM_MS) {
        let message = format!("room_ms must be at most {}", bounds::ROOM_MS);
        return Err(RpcError::invalid("room_ms", message).hint("repeat the call to wait longer"));
    }
    Ok(())
}
