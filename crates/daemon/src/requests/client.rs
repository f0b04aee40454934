//! Connections of clients: reading their lines, queueing what goes to them, and closing them. What they may do is in
//! `access`.

use std::collections::VecDeque;

use belay_protocol::daemon::{ClientInfo, Surface};
use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::methods::{Call, Notify};
use belay_protocol::read_json;
use belay_protocol::rpc::{Answer as AnswerMessage, Notification, Request, RequestId, Version};
use serde::Serialize;

use super::parts::DelayedLine;
use super::{Origin, Scope};
use crate::config::bounds;
use crate::effect::Effect;
use crate::host::Host;
use crate::input::ClientId;
use crate::runtime::{Core, Stage};

#[derive(Debug)]
pub(crate) struct Client {
    pub(super) uid: u32,
    /// The process that made the connection, and when, in the kernel's ticks.
    pub(super) pid: i32,
    pub(super) connected_ticks: u64,
    /// Where the process that made the connection is.
    pub(super) origin: Origin,
    /// In whose name it acts, since its hello; before it, an empty session, which matches nothing.
    pub(super) scope: Scope,
    pub(super) said_hello: bool,
    /// The program and what it is for its user, since its hello.
    pub(super) info: Option<ClientInfo>,
    pub(super) surface: Surface,
    /// Bytes that were sent and have not left yet.
    queued_bytes: usize,
    /// Its subscriptions to output, by number.
    follows: Vec<u64>,
    /// Parts of replies that it has not kept up with, in order.
    pub(super) delayed: VecDeque<DelayedLine>,
}

impl Client {
    pub(crate) const fn scope(&self) -> &Scope {
        &self.scope
    }

    pub(crate) const fn has_said_hello(&self) -> bool {
        self.said_hello
    }

    /// The process that made the connection, and when, in the kernel's ticks.
    pub(crate) const fn process(&self) -> (i32, u64) {
        (self.pid, self.connected_ticks)
    }

    /// Whether it has not read so much that nothing more is sent to it for now.
    pub(crate) const fn is_congested(&self) -> bool {
        self.queued_bytes >= bounds::CLIENT_QUEUE_BYTES
    }

    pub(crate) fn follows(&self) -> &[u64] {
        &self.follows
    }

    pub(crate) fn add_follow(&mut self, follow: u64) {
        self.follows.push(follow);
    }

    pub(crate) fn drop_follow(&mut self, follow: u64) {
        self.follows.retain(|other| *other != follow);
    }
}

/// Who gets a reply. A request without an id gets none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) client: ClientId,
    pub(crate) request: Option<RequestId>,
}

/// What a handler returns.
#[derive(Debug)]
pub(crate) enum Answer {
    /// The reply; none if the call wants none.
    Now(Option<Vec<u8>>),
    /// A pending reply gives it.
    Later,
    /// It was sent already, because something that comes after it had to be sent, too.
    Sent,
}

impl Caller {
    /// The reply to this call, as a line; none if the call wants no reply.
    pub(crate) fn reply_line<T: Serialize>(&self, result: &T) -> Option<Vec<u8>> {
        let id = self.request.as_ref()?;
        line(&AnswerMessage { jsonrpc: Version::V2, id: Some(id), result: Some(result), error: None }).ok()
    }

    pub(crate) fn answer<T: Serialize>(&self, result: &T) -> Answer {
        Answer::Now(self.reply_line(result))
    }
}

/// A message as it goes out.
pub(crate) fn line<M: Serialize>(message: &M) -> serde_json::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}

/// A notification as it goes out.
pub(crate) fn notification_line<N: Notify>(params: &N::Params) -> Option<Vec<u8>> {
    line(&Notification { jsonrpc: Version::V2, method: N::NAME, params }).ok()
}

/// The message of an error, unless it may quote what the client sent: an environment, input for a task, a token. The field at
/// fault is not loggable either: of an unknown one, the name is whatever the client sent.
pub(crate) fn loggable_cause(error: &RpcError) -> Option<&str> {
    match error.data.kind {
        ErrorKind::Malformed
        | ErrorKind::UnknownMethod
        | ErrorKind::Invalid
        | ErrorKind::NotFound
        | ErrorKind::Ambiguous
        | ErrorKind::TooLarge => None,
        ErrorKind::Conflict
        | ErrorKind::NotPermitted
        | ErrorKind::WrongState
        | ErrorKind::Expired
        | ErrorKind::LaneHeld
        | ErrorKind::Fenced
        | ErrorKind::Limit
        | ErrorKind::Busy
        | ErrorKind::Deadline
        | ErrorKind::DiskFull
        | ErrorKind::Unsupported
        | ErrorKind::Cancelled
        | ErrorKind::Stale
        | ErrorKind::Version
        | ErrorKind::ShuttingDown
        | ErrorKind::Internal => Some(&error.message),
    }
}

impl<H: Host> Core<H> {
    pub(crate) fn client_connected(&mut self, client: ClientId, uid: u32, ancestors: &[i32], in_task: bool) {
        let state = Client {
            uid,
            pid: ancestors.first().copied().unwrap_or(0),
            connected_ticks: self.ctx.host.boot_ticks(),
            origin: self.origin(ancestors, in_task),
            scope: Scope::Session(String::new()),
            said_hello: false,
            info: None,
            surface: Surface::default(),
            queued_bytes: 0,
            follows: Vec::new(),
            delayed: VecDeque::new(),
        };
        tracing::debug!(client = client.0, origin = ?state.origin, "connected");
        self.requests.clients.insert(client, state);
    }

    pub(crate) fn client_line(&mut self, client: ClientId, line: &[u8]) {
        let request = match read_json::<Request<'_>>(line) {
            Ok(request) => request,
            Err(error) => {
                tracing::debug!(client = client.0, bytes = line.len(), "malformed request");
                let message = format!("not a JSON-RPC 2.0 request on one line: {error}");
                let answer = AnswerMessage::<()> {
                    jsonrpc: Version::V2,
                    id: None,
                    result: None,
                    error: Some(&RpcError::new(ErrorKind::Malformed, message)),
                };
                return self.send(client, &answer);
            }
        };
        let caller = Caller { client, request: request.id.clone() };
        tracing::trace!(client = client.0, bytes = line.len(), "request");
        let done = Call::parse(&request.method, request.params).and_then(|call| {
            self.steps.set_cause(call.name());
            self.call(&caller, call)
        });
        self.finish_call(&caller, done);
    }

    /// Sends what a handler returned.
    pub(crate) fn finish_call(&mut self, caller: &Caller, done: Result<Answer, RpcError>) {
        match done {
            Ok(Answer::Now(Some(line))) => self.send_reply(caller.client, line),
            Ok(Answer::Now(None) | Answer::Later | Answer::Sent) => {}
            Err(error) => self.fail(caller, error),
        }
    }

    /// So many bytes have left at once. True if something follows from it: the client follows something and there may be more for
    /// it, or it has all output of an ended task.
    pub fn bytes_left(&mut self, client: ClientId, bytes: usize) -> bool {
        let Some(state) = self.requests.clients.get_mut(&client) else { return false };
        state.queued_bytes = state.queued_bytes.saturating_sub(bytes);
        let has_left = state.queued_bytes == 0 && self.tasks.owes_output(client);
        has_left
            || !state.delayed.is_empty()
            || !state.follows.is_empty()
            || self.events.is_behind(client, self.ctx.journal.last_event())
    }

    pub(crate) fn client_written(&mut self, client: ClientId, bytes: usize) {
        let Some(state) = self.requests.clients.get_mut(&client) else { return };
        state.queued_bytes = state.queued_bytes.saturating_sub(bytes);
        let queued_bytes = state.queued_bytes;
        if queued_bytes > bounds::CLIENT_QUEUE_BYTES / 2 {
            return;
        }
        let follows = state.follows.clone();
        if queued_bytes == 0 {
            self.output_has_left(client);
        }
        self.send_delayed_lines(client);
        self.send_available_to(&follows);
        self.serve_event_follows(client);
    }

    /// A client that leaves takes nothing with it but its own waits: its tasks follow their policies.
    pub(crate) fn client_gone(&mut self, client: ClientId) {
        let Some(state) = self.requests.clients.remove(&client) else { return };
        self.requests.half_closed.remove(&client);
        for follow in state.follows {
            self.drop_follow(follow);
        }
        self.events.drop_client(client);
        self.drop_unsent_output(client);
        self.caller_gone(client);
        self.session_holder_gone(client);
        for reply in self.requests.of_client(client) {
            if !self.requests.survives_client(reply) {
                self.take_any_reply(reply);
            }
        }
    }

    /// Closes clients that send no more and have every reply.
    pub(crate) fn close_drained_clients(&mut self) {
        if self.requests.half_closed.is_empty() {
            return;
        }
        for client in std::mem::take(&mut self.requests.half_closed) {
            let Some(state) = self.requests.clients.get(&client) else { continue };
            let waits = self.requests.count_of_client(client) > 0
                || self.requests.has_delayed_lines(client)
                || state.follows.iter().any(|follow| self.tasks.follow_owes_reply(*follow));
            if waits {
                self.requests.half_closed.insert(client);
            } else {
                self.ctx.effects.push(Stage::Unconditional, Effect::CloseClient { client });
            }
        }
    }

    // --- sending ---

    fn send<M: Serialize>(&mut self, client: ClientId, message: &M) {
        if let Ok(line) = line(message) {
            self.send_reply(client, line);
        }
    }

    pub(crate) fn send_reply(&mut self, client: ClientId, lines: Vec<u8>) {
        self.send_lines(client, lines, true);
    }

    pub(crate) fn send_lines(&mut self, client: ClientId, lines: Vec<u8>, is_reply: bool) {
        let Some(state) = self.requests.clients.get_mut(&client) else { return };
        state.queued_bytes += lines.len();
        self.ctx.effects.push(Stage::Unconditional, Effect::Send { client, lines, is_reply });
    }

    pub(crate) fn reply<T: Serialize>(&mut self, caller: &Caller, result: &T) {
        if let Some(line) = caller.reply_line(result) {
            self.send_reply(caller.client, line);
        }
    }

    pub(crate) fn fail(&mut self, caller: &Caller, error: RpcError) {
        tracing::debug!(
            client = caller.client.0,
            kind = ?error.data.kind,
            cause = loggable_cause(&error),
            "refused"
        );
        if let Some(id) = &caller.request {
            let answer =
                AnswerMessage::<()> { jsonrpc: Version::V2, id: Some(id), result: None, error: Some(&error) };
            self.send(caller.client, &answer);
        }
    }

    pub(crate) fn notify<N: Notify>(&mut self, client: ClientId, params: &N::Params) {
        if let Some(line) = notification_line::<N>(params) {
            self.send_lines(client, line, false);
        }
    }
}
