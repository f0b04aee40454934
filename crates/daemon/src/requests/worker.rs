//! Calls that wait for a worker: the journal's reader, a sample, a removal. The job and what is done with its result are in
//! `runtime::jobs`.

use belay_protocol::error::{ErrorKind, RpcError};

use super::{Answer, Caller, Reply, Waiter};
use crate::host::Host;
use crate::runtime::Core;

/// A call that waits for a worker and for nothing else.
#[derive(Debug)]
pub(crate) struct WorkerReply;

impl Reply for WorkerReply {
    fn give_now<H: Host>(self, _: &mut Core<H>, _: Waiter) {}

    fn delays_exit(&self) -> bool {
        true
    }

    fn is_at_worker(&self) -> bool {
        true
    }
}

/// Gives the reply that a worker's result makes possible.
pub(crate) type Finish<H> =
    Box<dyn FnOnce(&mut Core<H>, Box<dyn FnOnce(&mut Core<H>, &Caller) -> Result<Answer, RpcError>>)>;

impl<H: Host> Core<H> {
    /// Owes a reply until a worker has answered. `begin` starts the job and calls `finish` with what makes the reply; if the
    /// caller has gone by then, nothing happens.
    pub(crate) fn await_worker(&mut self, caller: &Caller, begin: impl FnOnce(&mut Self, Finish<H>)) {
        let reply = self.defer_reply(caller.clone(), WorkerReply, None);
        let finish: Finish<H> = Box::new(move |core, make| {
            let Some((waiter, WorkerReply)) = core.take_reply(reply) else { return };
            let done = make(core, &waiter.caller);
            core.finish_call(&waiter.caller, done);
        });
        begin(self, finish);
    }
}

/// A worker has answered something else than it was asked.
pub(crate) fn internal() -> RpcError {
    RpcError::new(ErrorKind::Internal, "a worker of the daemon gave no answer").hint("belay doctor says more")
}
