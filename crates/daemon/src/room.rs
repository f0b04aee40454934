//! What becomes of a write to a task's standard input, as its shim says it, and who waits there for room. The bytes themselves
//! are the shim's: nobody keeps them here.

use belay_model::State;
use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::shim::WriteResult as ShimWrite;
use belay_protocol::task::WriteResult;

use crate::answer::{Caller, Pending, What};
use crate::config::bounds;
use crate::core::Core;
use crate::event::ShimId;
use crate::world::World;

impl<W: World> Core<W> {
    pub(crate) fn shim_wrote(&mut self, write: u64, result: &ShimWrite) {
        let Some(Pending { what: What::Write { task, bytes, room_ms }, caller, .. }) =
            self.take_pending(write)
        else {
            return;
        };
        match result {
            ShimWrite::Accepted { pending } => {
                let accepted = WriteResult { id: task, accepted_bytes: bytes, pending_bytes: *pending };
                self.reply(&caller, &accepted);
            }
            ShimWrite::Closed => {
                let error =
                    RpcError::new(ErrorKind::WrongState, "the task has no open standard input").field("id");
                self.fail(&caller, error.hint("it was started without --stdin, or reads no more"));
            }
            ShimWrite::Full { .. } if self.is_resting(&task) => {
                let message = "the task is between two attempts, and nobody reads now";
                let hint = "try again when the next attempt has begun";
                let refusal = RpcError::new(ErrorKind::Busy, message).field("id").hint(hint);
                self.refuse_when_room(caller, task, refusal, room_ms);
            }
            ShimWrite::Full { pending } => {
                let message =
                    format!("the command does not read: {pending} bytes are waiting for it already");
                let refusal = RpcError::new(ErrorKind::Busy, message).hint("try again when it has read");
                self.refuse_when_room(caller, task, refusal, room_ms);
            }
        }
    }

    fn is_resting(&self, id: &str) -> bool {
        self.tasks.get(id).is_some_and(|task| matches!(task.state, State::Resting(_)))
    }

    /// There is no room for what was to be written. Whoever does not want to ask again and again is told so only when there is:
    /// nothing was taken, so nothing can come twice.
    pub(crate) fn refuse_when_room(
        &mut self,
        caller: Caller,
        task: String,
        refusal: RpcError,
        room_ms: Option<u64>,
    ) {
        let Some(room_ms) = room_ms else { return self.fail(&caller, refusal) };
        let shim = self.tasks.get(&task).and_then(|task| self.shims.get(&task.shim?));
        let is_adopted = shim.is_some_and(|shim| shim.adopted);
        let most_ms = if is_adopted { bounds::ROOM_ADOPTED_MS } else { bounds::ROOM_MS };
        self.promise(caller, What::Room { task, refusal: Box::new(refusal) }, Some(room_ms.min(most_ms)));
    }

    /// The command has read, or reads no more.
    pub(crate) fn shim_has_room(&mut self, shim: ShimId) {
        if let Some(task) = self.shims.get(&shim).and_then(|shim| shim.task.clone()) {
            self.tell_of_room(&task);
        }
    }

    /// One whose turn has come, or whose next attempt has begun, may read.
    pub(crate) fn may_read_now(&mut self, id: &str) {
        if self.tasks.get(id).is_some_and(|task| matches!(task.state, State::Running(_))) {
            self.tell_of_room(id);
        }
    }

    fn tell_of_room(&mut self, id: &str) {
        let Some(task) = self.tasks.get(id) else { return };
        let waits = |pending: &u64| {
            self.pending.get(pending).is_some_and(|pending| matches!(pending.what, What::Room { .. }))
        };
        let waiting: Vec<u64> = task.pending.iter().copied().filter(waits).collect();
        for pending in waiting {
            self.answer_is_due(pending);
        }
    }
}
