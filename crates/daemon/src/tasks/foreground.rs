//! Callers that wait for a task in the foreground: which connection they are on, and what happens when it ends. Detaching is in
//! `detach`.

use belay_model::{Level, StopOrder};
use belay_protocol::task::OnDisconnect;

use super::detach::DISCONNECT;
use crate::config::bounds;
use crate::host::Host;
use crate::input::ClientId;
use crate::runtime::{Core, Timer};

impl<H: Host> Core<H> {
    /// A caller on this connection waits for this task in the foreground.
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

    /// A connection has ended: the tasks that were waited for on it follow their policies.
    pub(crate) fn caller_gone(&mut self, client: ClientId) {
        for id in self.tasks.of_caller(client) {
            if self.tasks.get(&id).is_some_and(|task| !task.state.detached()) {
                self.apply_disconnect_policy(&id);
            }
        }
    }

    /// A foreground task of an earlier daemon was adopted without its caller, which may come back.
    pub(crate) fn await_caller(&mut self, id: &str) {
        if self.tasks.get(id).is_none_or(|task| task.state.detached()) {
            return;
        }
        let deadline = self.ctx.schedule(bounds::CALLER_MS, Timer::CallerDeadline(id.to_owned()));
        let older = self.tasks.update(id, |task| task.caller_deadline.replace(deadline));
        self.ctx.cancel(older.flatten());
    }

    pub(crate) fn caller_missed(&mut self, id: &str) {
        let is_missed =
            self.tasks.get(id).is_some_and(|task| task.caller.is_none() && !task.state.detached());
        if is_missed {
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
                let reason = "the connection of whoever waited for it has ended";
                self.order_stop(id, StopOrder::new(Level::Terminate, DISCONNECT, Some(reason)));
            }
            None => {}
        }
    }
}
