//! Callers that wait for a task in the foreground: their connections, and what happens to the task
//! when a connection is closed. Detaching is in `detach`.

use belay_model::{Level, StopOrder};
use belay_protocol::task::OnDisconnect;

use super::detach::DISCONNECT;
use crate::config::bounds;
use crate::host::Host;
use crate::input::ClientId;
use crate::runtime::{Core, Timer};

impl<H: Host> Core<H> {
    /// Records that a caller on this connection waits for the task in the foreground.
    pub(super) fn attach_caller(&mut self, id: &str, client: ClientId) {
        let deadline = self.tasks.update(id, |task| {
            if task.state.detached() {
                return None;
            }
            task.caller = Some(client);
            task.caller_deadline.take()
        });
        self.ctx.cancel(deadline.flatten());
    }

    /// A connection was closed: applies the disconnect policy of each foreground task that its
    /// callers waited for.
    pub(crate) fn caller_gone(&mut self, client: ClientId) {
        for id in self.tasks.of_caller(client) {
            if self.tasks.get(&id).is_some_and(|task| !task.state.detached()) {
                self.apply_disconnect_policy(&id);
            }
        }
    }

    /// A caller cancelled the call with which it waited in the foreground: as if its connection had been closed, unless another
    /// call of the same connection waits for the task.
    pub(crate) fn caller_gave_up(&mut self, id: &str, client: ClientId) {
        let waits = |reply: &crate::requests::ReplyId| {
            self.requests.caller(*reply).is_some_and(|caller| caller.client == client)
                && self.requests.answered_by_detach(*reply).is_some()
        };
        let is_waited_for = self.requests.of_task(id).iter().any(waits);
        let is_caller =
            self.tasks.get(id).is_some_and(|task| task.caller == Some(client) && !task.state.detached());
        if is_caller && !is_waited_for {
            self.apply_disconnect_policy(id);
        }
    }

    /// A foreground task of an earlier daemon was adopted: its caller has some time to reconnect.
    pub(crate) fn await_caller(&mut self, id: &str) {
        if self.tasks.get(id).is_none_or(|task| task.state.detached()) {
            return;
        }
        let deadline = self.ctx.schedule(bounds::CALLER_MS, Timer::CallerDeadline(id.to_owned()));
        let older = self.tasks.update(id, |task| task.caller_deadline.replace(deadline));
        self.ctx.cancel(older.flatten());
    }

    pub(crate) fn caller_missed(&mut self, id: &str) {
        let is_missing =
            self.tasks.get(id).is_some_and(|task| task.caller.is_none() && !task.state.detached());
        if is_missing {
            self.apply_disconnect_policy(id);
        }
    }

    fn apply_disconnect_policy(&mut self, id: &str) {
        let policy = self.tasks.update(id, |task| {
            (task.caller, task.caller_deadline) = (None, None);
            task.stored.doc.on_disconnect
        });
        match policy {
            Some(OnDisconnect::Detach) => self.order_detach(id, DISCONNECT.to_owned()),
            Some(OnDisconnect::Stop) => {
                let reason = "the connection of its foreground caller was closed";
                self.order_stop(id, StopOrder::new(Level::Terminate, DISCONNECT, Some(reason)));
            }
            None => {}
        }
    }
}
