//! `task/remove`: forgets an ended task and its output. Removal by rule is retention's work.

use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::task::{TaskRemoveParams, TaskRemoveResult};

use super::{TaskRef, not_found};
use crate::host::Host;
use crate::owners::Removable;
use crate::requests::{Answer, Caller};
use crate::runtime::Core;

impl<H: Host> Core<H> {
    pub(crate) fn task_remove(
        &mut self,
        caller: &Caller,
        params: TaskRemoveParams,
    ) -> Result<Answer, RpcError> {
        self.with_task(caller, &params.id, |core, caller, task| {
            let TaskRef::Ended(stored) = task else {
                let message = format!("task {} has not ended", task.id());
                let error = RpcError::new(ErrorKind::WrongState, message).field("id");
                return Err(error.hint(format!("stop it first: belay stop {}", task.id())));
            };
            let removable = Removable::of(&stored);
            if core.retention.is_removed(&stored.id) {
                return Err(not_found(&stored.id));
            }
            core.await_worker(caller, |core, finish| {
                let id = stored.id.clone();
                core.forget_tasks(vec![removable], move |core, freed_bytes| {
                    let result = TaskRemoveResult { id, freed_bytes };
                    finish(core, Box::new(move |_, caller| Ok(caller.answer(&result))));
                });
            });
            Ok(Answer::Later)
        })
    }
}
