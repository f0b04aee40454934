//! The codec: the client's side of the protocol as a state machine. Lines in, messages out; calls in, frames out. It pairs
//! calls with replies, keeps the position of every subscription, and knows what to send again on a new connection. It does no
//! I/O and reads no clock: a driver moves the bytes, waits, and connects.

#[cfg(any(feature = "tokio", test))]
mod concurrent;
mod outgoing;
mod resume;
mod retry;
mod subscriptions;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use belay_protocol::methods::{Method, Notification};
use belay_protocol::rpc::{Answer, Version};
use belay_protocol::session::{SessionCloseResult, SessionHold, SessionInfo, SessionOpenResult};
use belay_protocol::{RpcError, read_json};

use self::outgoing::Outgoing;
use self::retry::Retry;
use self::subscriptions::{Kind, Subscriptions};
use crate::error::ClientError;
use crate::framing::Lines;
use crate::message::{self, DaemonRequest, Message, Parsed, RawReply, Response};
use crate::request::{self, Ids, Purpose, Request};

/// The state of one client, over all of its connections.
#[derive(Debug)]
pub(crate) struct Codec {
    lines: Lines,
    ids: Ids,
    /// Calls without a reply, in the order in which they were made.
    calls: BTreeMap<i64, PendingCall>,
    /// Requests that the codec has made itself.
    own: BTreeMap<i64, OwnCall>,
    subscriptions: Subscriptions,
    outgoing: Outgoing,
    /// Messages of the codec's own, to be passed on before the next line is read.
    ready: VecDeque<Message>,
    /// Sessions that are held by this connection.
    held: BTreeSet<String>,
    /// None: a lost connection is not replaced.
    retry: Option<Retry>,
    /// The daemon refuses calls because it shuts down.
    leaving: bool,
    /// The number of the connection.
    connection: u64,
}

#[derive(Debug)]
struct PendingCall {
    request: Arc<Request>,
    made_at: Instant,
    /// At least one byte of it was written to a connection that may have processed it.
    written: bool,
    /// The start of the task was passed on.
    announced: bool,
    /// The tasks whose stop was passed on, of a call that stops several.
    reported: HashSet<String>,
}

/// A request of the codec itself.
#[derive(Debug, PartialEq, Eq)]
enum OwnCall {
    /// Its reply does not matter.
    Ignored,
    /// Keeps a session that the last connection held.
    Renew(String),
    /// Goes on with the subscription of this id.
    Follow { id: i64, kind: Kind },
}

impl Codec {
    /// `resumes`: a lost connection is replaced, and what was pending goes on there.
    pub(crate) fn new(ids: Ids, resumes: bool) -> Self {
        Self {
            lines: Lines::default(),
            ids,
            calls: BTreeMap::new(),
            own: BTreeMap::new(),
            subscriptions: Subscriptions::default(),
            outgoing: Outgoing::default(),
            ready: VecDeque::new(),
            held: BTreeSet::new(),
            retry: resumes.then(Retry::default),
            leaving: false,
            connection: 0,
        }
    }

    pub(crate) fn set_resumes(&mut self, resumes: bool) {
        self.retry = resumes.then(Retry::default);
    }

    pub(crate) const fn resumes(&self) -> bool {
        self.retry.is_some()
    }

    pub(crate) const fn ids(&self) -> &Ids {
        &self.ids
    }

    // --- calls ---

    pub(crate) fn submit(&mut self, request: Request, now: Instant) {
        let request = Arc::new(request);
        self.subscriptions.add(request.id, &request.purpose);
        self.outgoing.push_request(Arc::clone(&request));
        let call =
            PendingCall { request, made_at: now, written: false, announced: false, reported: HashSet::new() };
        self.calls.insert(call.request.id, call);
    }

    /// The caller no longer waits: a reply that still comes is dropped.
    pub(crate) fn forget(&mut self, id: i64) {
        self.calls.remove(&id);
        self.unsubscribe(id);
    }

    /// Answers a request of the daemon, unless its connection is lost.
    pub(crate) fn answer(
        &mut self,
        request: &DaemonRequest,
        result: Result<&impl serde::Serialize, RpcError>,
    ) -> Result<(), ClientError> {
        if request.connection != self.connection {
            return Ok(());
        }
        let (result, error) = match result {
            Ok(result) => (Some(result), None),
            Err(error) => (None, Some(error)),
        };
        let answer = Answer { jsonrpc: Version::V2, id: Some(&request.id), result, error: error.as_ref() };
        let mut line = serde_json::to_vec(&answer).map_err(|e| ClientError::io("write an answer", e))?;
        line.push(b'\n');
        self.outgoing.push_line(line);
        Ok(())
    }

    /// Returns the id of the request.
    fn send_own<M: Method>(&mut self, call: OwnCall, params: &M::Params) -> i64 {
        let id = self.ids.take();
        // The parameters are short and consist of text and numbers: encoding them does not fail.
        if let Ok(line) = request::encode(id, M::NAME, 0, params) {
            self.own.insert(id, call);
            self.outgoing.push_line(line);
        }
        id
    }

    // --- bytes ---

    /// Where the driver puts the bytes that it reads.
    pub(crate) fn room(&mut self) -> Result<&mut Vec<u8>, ClientError> {
        let too_long = || ClientError::Malformed { what: "a line without an end".to_owned() };
        self.lines.room().ok_or_else(too_long)
    }

    /// The next frame to write: the bytes that are left of it, and descriptors that go with the first of them.
    pub(crate) fn frame(&self) -> Option<outgoing::Frame<'_>> {
        self.outgoing.frame()
    }

    /// So many bytes of the frame were written.
    pub(crate) fn wrote(&mut self, bytes: usize) {
        if let Some(id) = self.outgoing.wrote(bytes)
            && let Some(call) = self.calls.get_mut(&id)
        {
            call.written = true;
        }
    }

    // --- messages ---

    /// Whether a message can be passed on without another read.
    pub(crate) fn has_message(&self) -> bool {
        !self.ready.is_empty() || self.lines.has_line()
    }

    /// The next message for the caller. None: more bytes are needed.
    pub(crate) fn next(&mut self) -> Result<Option<Message>, ClientError> {
        loop {
            if let Some(message) = self.ready.pop_front() {
                return Ok(Some(message));
            }
            let Some(line) = self.lines.next_line() else { return Ok(None) };
            let message = match message::parse(line)? {
                Parsed::Reply { id, result } => self.reply(id, result)?.map(Message::Response),
                Parsed::Notification(notification) => self.notification(*notification)?,
                Parsed::Request { id, method, params } => {
                    let connection = self.connection;
                    Some(Message::Request(DaemonRequest { method, id, params, connection }))
                }
                Parsed::Unknown => None,
            };
            if message.is_some() {
                return Ok(message);
            }
        }
    }

    /// The result of this call, if its reply is the next line: parsed once, straight into its type, because it may be long.
    pub(crate) fn take_result<M: Method>(&mut self, id: i64) -> Option<M::Result> {
        if self.calls.get(&id)?.request.purpose != Purpose::Plain {
            return None;
        }
        let (replied, result) = message::split_result(self.lines.peek_line()?)?;
        if replied != id {
            return None;
        }
        // One that is not understood is read again as a message, and becomes an error there.
        let result = read_json(result).ok()?;
        self.lines.next_line();
        self.calls.remove(&id);
        self.made_progress();
        Some(result)
    }

    fn reply(
        &mut self,
        id: i64,
        result: Result<RawReply, RpcError>,
    ) -> Result<Option<Response>, ClientError> {
        if let Some(own) = self.own.remove(&id) {
            self.own_reply(id, own, result)?;
            return Ok(None);
        }
        let Some(call) = self.calls.get(&id) else { return Ok(None) };
        if let Err(error) = &result
            && error.is_leaving()
            && self.resumes()
            && call.request.repeatable
        {
            self.leaving = true;
            return Ok(None);
        }
        let request = Arc::clone(&call.request);
        self.calls.remove(&id);
        self.made_progress();
        match &result {
            Ok(raw) => self.record(&request, raw)?,
            Err(_) => self.subscriptions.remove(id),
        }
        Ok(Some(Response { id, result: result.map_err(ClientError::Rpc) }))
    }

    /// Keeps what a reply says about subscriptions and sessions.
    fn record(&mut self, request: &Request, raw: &RawReply) -> Result<(), ClientError> {
        match &request.purpose {
            Purpose::Plain => Ok(()),
            Purpose::StartWithOutput { .. } => {
                let task: message::Named = message::read(raw, request.method)?;
                self.subscriptions.set_task(request.id, task.id);
                Ok(())
            }
            Purpose::FollowOutput { .. } => {
                self.begin_subscription(request.id, request.id, Kind::Output, raw)
            }
            Purpose::FollowEvents(_) => self.begin_subscription(request.id, request.id, Kind::Events, raw),
            Purpose::HoldSession => {
                // One reply has the session in a field, the other one is it.
                let session = message::read::<SessionOpenResult>(raw, request.method)
                    .map(|opened| opened.session)
                    .or_else(|_| message::read::<SessionInfo>(raw, request.method))?;
                if session.hold == SessionHold::Connection && session.state.is_open() {
                    self.held.insert(session.id);
                }
                Ok(())
            }
            Purpose::CloseSession => {
                let closed: SessionCloseResult = message::read(raw, request.method)?;
                self.held.remove(&closed.session.id);
                Ok(())
            }
        }
    }

    fn notification(&mut self, notification: Notification) -> Result<Option<Message>, ClientError> {
        let Some(wire) = message::request_of(&notification) else { return Ok(None) };
        let passed_on = match notification {
            Notification::TaskQueued(_) | Notification::TaskRemoved(_) => {
                self.calls.contains_key(&wire).then_some(notification)
            }
            Notification::TaskStarted(_) => {
                let call = self.calls.get_mut(&wire);
                call.and_then(|call| (!std::mem::replace(&mut call.announced, true)).then_some(notification))
            }
            // A call that was repeated reports the tasks again that it had reported before.
            Notification::TaskStopped(ref stopped) => {
                let call = self.calls.get_mut(&wire);
                let is_new = call.is_some_and(|call| call.reported.insert(stopped.result.id.clone()));
                is_new.then_some(notification)
            }
            Notification::OutputChunk(chunk) => self.output_chunk(wire, *chunk),
            Notification::OutputEnd(end) => self.output_end(wire, *end),
            Notification::EventItem(item) => self.event_item(wire, *item),
            Notification::EventEnd(end) => return self.event_end(wire, *end),
        };
        if passed_on.is_some() {
            self.made_progress();
        }
        Ok(passed_on.map(Message::Notification))
    }

    fn made_progress(&mut self) {
        if let Some(retry) = &mut self.retry {
            retry.made_progress();
        }
    }
}
