//! What a driver with many callers needs of the codec: giving up single calls, pausing subscriptions whose consumer is slow, and
//! failing everything at once.

use belay_protocol::call::CallCancelParams;
use belay_protocol::methods::CallCancel;
use belay_protocol::rpc::RequestId;

use super::{Codec, OwnCall};

impl Codec {
    /// The caller no longer waits, and the client cancels the call at the daemon.
    pub(crate) fn cancel(&mut self, id: i64) {
        let Some(call) = self.calls.remove(&id) else { return };
        self.unsubscribe(id);
        if call.written {
            let params = CallCancelParams { request: RequestId::Number(id) };
            self.send_own::<CallCancel>(OwnCall::Ignored, &params);
        } else {
            self.outgoing.withdraw(id);
        }
    }

    /// Ends a subscription at the daemon and keeps its position.
    pub(crate) fn pause(&mut self, id: i64) {
        if let Some((kind, follow)) = self.subscriptions.pause(id) {
            self.unfollow(kind, follow);
        }
    }

    /// Goes on with a subscription that was paused, now or with the next connection.
    pub(crate) fn unpause(&mut self, id: i64, is_connected: bool) {
        if self.subscriptions.unpause(id) && is_connected {
            self.follow_again(id);
        }
    }

    /// Drops every pending call and subscription, because there is no connection for them. The next call may try again.
    #[cfg(feature = "tokio")]
    pub(crate) fn drop_all(&mut self) {
        self.held.clear();
        self.calls.clear();
        self.subscriptions = super::subscriptions::Subscriptions::default();
        self.retry = self.retry.as_ref().map(|_| super::retry::Retry::default());
    }
}
