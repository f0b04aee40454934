//! `output/unfollow`: ends subscriptions to output, by number or by task.

use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::output::{OutputUnfollowParams, OutputUnfollowResult};

use super::output_subscription::Follow;
use crate::host::Host;
use crate::input::ClientId;
use crate::requests::{Answer, Caller};
use crate::runtime::Core;

impl<H: Host> Core<H> {
    pub(crate) fn output_unfollow(
        &mut self,
        caller: &Caller,
        params: OutputUnfollowParams,
    ) -> Result<Answer, RpcError> {
        match (params.follow, params.id) {
            (Some(follow), None) => {
                let ended = self.unfollow(caller.client, |id, _| id == follow);
                if ended == 0 {
                    return Err(no_such_follow(follow));
                }
                Ok(caller.answer(&OutputUnfollowResult { ended }))
            }
            (None, Some(id)) => self.with_task(caller, &id, |core, caller, task| {
                let ended = core.unfollow(caller.client, |_, follow| follow.task() == task.id());
                Ok(caller.answer(&OutputUnfollowResult { ended }))
            }),
            (Some(_), Some(_)) => Err(RpcError::invalid("id", "id and follow exclude each other")
                .hint("give the number of one subscription, or the task")),
            (None, None) => Err(RpcError::invalid("follow", "there is neither follow nor id")
                .hint("give the number of one subscription, or the task")),
        }
    }

    /// A start was cancelled: drops its subscription. True if its reply was waiting for the last output only.
    pub(crate) fn cancel_start_output(&mut self, caller: &Caller) -> bool {
        let client = self.requests.client(caller.client);
        let follows = client.map(|client| client.follows().to_vec()).unwrap_or_default();
        let Some(follow) = self.tasks.follow_of(&follows, caller) else { return false };
        let owes_reply = self.tasks.follow_owes_reply(follow);
        self.drop_follow(follow);
        owes_reply
    }

    /// Ends subscriptions of a client. Returns how many.
    fn unfollow(&mut self, client: ClientId, is_meant: impl Fn(u64, &Follow) -> bool) -> u64 {
        let follows =
            self.requests.client(client).map(|client| client.follows().to_vec()).unwrap_or_default();
        let is_meant = |id: &u64| self.tasks.follows.get(id).is_some_and(|follow| is_meant(*id, follow));
        let own: Vec<u64> = follows.into_iter().filter(is_meant).collect();
        for follow in &own {
            self.end_subscription(*follow);
        }
        own.len() as u64
    }
}

/// The error for a subscription that this connection does not have.
pub(crate) fn no_such_follow(follow: u64) -> RpcError {
    RpcError::new(ErrorKind::NotFound, format!("this connection has no subscription {follow}"))
        .field("follow")
        .hint("a subscription ends by itself after output/end")
}
