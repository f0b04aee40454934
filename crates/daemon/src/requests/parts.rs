//! Replies in parts: notifications that belong to one call and precede its result. What a client does not read waits here, so
//! that no reply grows with the number of tasks; the result of the call comes behind its parts.

use belay_protocol::methods::Notify;
use serde::Serialize;

use super::client::notification_line;
use super::{Caller, Requests};
use crate::host::Host;
use crate::input::ClientId;
use crate::runtime::Core;

/// A line that waits until its client has read what was sent before.
#[derive(Debug)]
pub(super) struct DelayedLine {
    line: Vec<u8>,
    is_reply: bool,
}

impl Requests {
    /// Whether lines for a client wait until it reads.
    pub(super) fn has_delayed_lines(&self, client: ClientId) -> bool {
        self.clients.get(&client).is_some_and(|client| !client.delayed.is_empty())
    }
}

impl<H: Host> Core<H> {
    /// Sends a part of the reply to a call, or keeps it until the client has read what was sent before.
    pub(crate) fn send_part<N: Notify>(&mut self, caller: &Caller, params: &N::Params) {
        if let Some(line) = notification_line::<N>(params) {
            self.send_or_delay(caller.client, DelayedLine { line, is_reply: false });
        }
    }

    /// Sends the result of a call behind its parts.
    pub(crate) fn reply_behind_parts<T: Serialize>(&mut self, caller: &Caller, result: &T) {
        if let Some(line) = caller.reply_line(result) {
            self.send_or_delay(caller.client, DelayedLine { line, is_reply: true });
        }
    }

    fn send_or_delay(&mut self, client: ClientId, part: DelayedLine) {
        let Some(state) = self.requests.clients.get_mut(&client) else { return };
        if state.is_congested() || !state.delayed.is_empty() {
            state.delayed.push_back(part);
        } else {
            self.send_lines(client, part.line, part.is_reply);
        }
    }

    /// The client has read: it gets what waits for it, as far as it keeps up.
    pub(super) fn send_delayed_lines(&mut self, client: ClientId) {
        while let Some(state) = self.requests.clients.get_mut(&client)
            && !state.is_congested()
            && let Some(part) = state.delayed.pop_front()
        {
            self.send_lines(client, part.line, part.is_reply);
        }
    }

    /// The daemon exits: everything that waits goes to the connections, which are written as far as their clients read.
    pub(crate) fn send_all_delayed_lines(&mut self) {
        let clients: Vec<ClientId> = self.requests.clients.keys().copied().collect();
        for client in clients {
            while let Some(part) =
                self.requests.clients.get_mut(&client).and_then(|state| state.delayed.pop_front())
            {
                self.send_lines(client, part.line, part.is_reply);
            }
        }
    }
}
