//! Clients and the answers they were promised: reading their lines, queueing what goes to them, and keeping every
//! promise by its deadline.

use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::event::Filter;
use belay_protocol::lane::FenceInfo;
use belay_protocol::methods::Call;
use belay_protocol::read_json;
use belay_protocol::rpc::{Answer, Notification, Request, RequestId, Version};
use belay_protocol::task::{AnswerWhen, StartParams, StopResult, StopVerdict};
use serde::Serialize;

use crate::config::bounds;
use crate::core::{Core, Phase, Timer, TimerKey};
use crate::event::{Action, ClientId};
use crate::handlers::task_stop::{StopMany, Then};
use crate::handlers::task_wait::Until;
use crate::retention::Collection;
use crate::rights::{Origin, Scope};
use crate::world::World;

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) uid: u32,
    /// Where the process is that made the connection.
    origin: Origin,
    /// In whose name it speaks, since the handshake; before it, in nobody's.
    pub(crate) scope: Scope,
    /// The handshake is done.
    greeted: bool,
    /// Bytes that were sent and have not left yet.
    pub(crate) queued_bytes: usize,
    pub(crate) pending: usize,
    pub(crate) follows: Vec<u64>,
    /// The number of the last event that was sent, if it follows events.
    pub(crate) events_after: Option<u64>,
    pub(crate) events_only: Filter,
}

/// Whom an answer goes to. A request without an id gets none.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) client: ClientId,
    pub(crate) request: Option<RequestId>,
}

impl Caller {
    /// The line that answers this call, if it wants an answer.
    pub(crate) fn answer<T: Serialize>(&self, result: &T) -> Option<Vec<u8>> {
        let id = self.request.as_ref()?;
        line(&Answer { jsonrpc: Version::V2, id: Some(id), result: Some(result), error: None }).ok()
    }
}

/// An answer that was promised and cannot be given yet.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) caller: Caller,
    pub(crate) what: What,
    timer: Option<TimerKey>,
}

#[derive(Debug)]
pub(crate) enum What {
    Start {
        task: String,
        when: AnswerWhen,
        /// What whoever waits for the end has been told last: that it waits for its turn, or has begun.
        told: Option<&'static str>,
    },
    Wait {
        task: String,
        /// In the place of its caller.
        attached: bool,
        /// What may end it before the task does.
        until: Option<Box<Until>>,
    },
    Stop {
        task: String,
        fenced: Option<FenceInfo>,
    },
    Detach {
        task: String,
    },
    Inspect {
        task: String,
    },
    Write {
        task: String,
        bytes: u64,
        room_ms: Option<u64>,
    },
    /// A write that there was no room for, and whoever asked is told when there is.
    Room {
        task: String,
        refusal: Box<RpcError>,
    },
    Signal {
        task: String,
    },
    Resize {
        task: String,
    },
    Events {
        after: u64,
        max: usize,
        only: Box<Filter>,
    },
    StopMany(Box<StopMany>),
    /// `session/wait`.
    Drained {
        session: String,
    },
    Notices {
        session: String,
        max: usize,
    },
    /// The answer of a search comes from beside the core.
    Search,
    /// A collection that has gone so far, and goes on with this timer.
    Collect(Box<Collection>),
    /// A line is read beside the core; then the task is started whose line it is, or the reading itself is the answer.
    Reading {
        start: Option<Box<StartParams>>,
    },
}

impl Pending {
    /// A daemon that leaves gives these answers first.
    pub(crate) const fn must_be_kept(&self) -> bool {
        match &self.what {
            What::StopMany(many) => matches!(many.then, Then::Leave),
            What::Search => true,
            _ => false,
        }
    }

    /// The task whose end answers it.
    pub(crate) fn awaited(&self) -> Option<&str> {
        match &self.what {
            What::Start { task, .. } | What::Wait { task, .. } | What::Stop { task, .. } => Some(task),
            _ => None,
        }
    }

    pub(crate) fn task(&self) -> Option<&str> {
        match &self.what {
            What::Start { task, .. }
            | What::Wait { task, .. }
            | What::Stop { task, .. }
            | What::Detach { task }
            | What::Inspect { task }
            | What::Write { task, .. }
            | What::Room { task, .. }
            | What::Signal { task }
            | What::Resize { task } => Some(task),
            What::Events { .. }
            | What::StopMany(_)
            | What::Drained { .. }
            | What::Notices { .. }
            | What::Search
            | What::Collect(_)
            | What::Reading { .. } => None,
        }
    }

    /// The session that it is about.
    fn session(&self) -> Option<&str> {
        match &self.what {
            What::Drained { session } | What::Notices { session, .. } => Some(session),
            _ => None,
        }
    }
}

/// A message as it goes out.
pub(crate) fn line<M: Serialize>(message: &M) -> serde_json::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}

impl<W: World> Core<W> {
    pub(crate) fn client_came(&mut self, client: ClientId, uid: u32, ancestors: &[i32], of_a_task: bool) {
        let state = Client {
            uid,
            origin: self.origin(ancestors, of_a_task),
            scope: Scope::Session(String::new()),
            greeted: false,
            queued_bytes: 0,
            pending: 0,
            follows: Vec::new(),
            events_after: None,
            events_only: Filter::default(),
        };
        self.clients.insert(client, state);
    }

    pub(crate) fn client_said(&mut self, client: ClientId, line: &[u8]) {
        let request = match read_json::<Request<'_>>(line) {
            Ok(request) => request,
            Err(error) => {
                let message = format!("not a JSON-RPC 2.0 request on one line: {error}");
                let caller = Caller { client, request: None };
                let answer = Answer::<()> {
                    jsonrpc: Version::V2,
                    id: None,
                    result: None,
                    error: Some(&RpcError::new(ErrorKind::Malformed, message)),
                };
                self.send(caller.client, &answer);
                return;
            }
        };
        let caller = Caller { client, request: request.id.clone() };
        match Call::parse(&request.method, request.params) {
            Ok(call) => self.call(&caller, call),
            Err(error) => self.fail(&caller, error),
        }
    }

    /// The one place where a method meets its handler.
    fn call(&mut self, caller: &Caller, call: Call) {
        let Some(client) = self.clients.get(&caller.client) else { return };
        if !client.greeted && !matches!(call, Call::Hello(_)) {
            let error = RpcError::new(ErrorKind::Version, "the first call of a connection is daemon/hello")
                .hint("send {\"method\": \"daemon/hello\", \"params\": {\"client\": \"NAME VERSION\", \"protocol\": 1}}");
            return self.fail(caller, error);
        }
        if client.pending >= bounds::PENDING_PER_CLIENT {
            let error =
                RpcError::new(ErrorKind::Busy, "this connection has too many calls waiting for an answer")
                    .hint(format!("at most {} at a time", bounds::PENDING_PER_CLIENT));
            return self.fail(caller, error);
        }
        match call {
            Call::Hello(params) => self.hello(caller, &params),
            Call::DaemonStatus(_) => self.daemon_status(caller),
            Call::DaemonDoctor(_) => self.daemon_doctor(caller),
            Call::DaemonStop(params) => self.daemon_stop(caller, &params),
            Call::DaemonGc(params) => self.daemon_gc(caller, &params),
            Call::SessionOpen(params) => self.session_open(caller, *params),
            Call::SessionRenew(params) => self.session_renew(caller, &params),
            Call::SessionClose(params) => self.session_close(caller, &params),
            Call::SessionGet(params) => self.session_get(caller, &params),
            Call::SessionList(params) => self.session_list(caller, &params),
            Call::SessionWait(params) => self.session_wait(caller, &params),
            Call::SessionNotices(params) => self.session_notices(caller, &params),
            Call::LaneList(_) => self.lane_list(caller),
            Call::LaneRelease(params) => self.lane_release(caller, &params),
            Call::ConfigGet(params) => self.config_get(caller, &params),
            Call::ConfigSet(params) => self.config_set(caller, &params),
            Call::TaskStart(params) => self.task_start(caller, *params),
            Call::TaskGet(params) => self.task_get(caller, &params),
            Call::TaskList(params) => self.task_list(caller, &params),
            Call::TaskWait(params) => self.task_wait(caller, &params),
            Call::TaskStop(params) => self.task_stop(caller, &params),
            Call::TaskDetach(params) => self.task_detach(caller, &params),
            Call::TaskWrite(params) => self.task_write(caller, *params),
            Call::TaskSignal(params) => self.task_signal(caller, &params),
            Call::TaskResize(params) => self.task_resize(caller, &params),
            Call::TaskRemove(params) => self.task_remove(caller, &params),
            Call::ShellRead(params) => self.shell_read(caller, *params),
            Call::OutputRead(params) => self.output_read(caller, &params),
            Call::OutputSearch(params) => self.output_search(caller, *params),
            Call::OutputFollow(params) => self.output_follow(caller, &params),
            Call::OutputUnfollow(params) => self.output_unfollow(caller, &params),
            Call::EventRead(params) => self.event_read(caller, &params),
            Call::EventFollow(params) => self.event_follow(caller, &params),
        }
    }

    /// The handshake: from now on the connection speaks in somebody's name.
    pub(crate) fn greet(&mut self, client: ClientId, token: Option<&str>) -> Result<Scope, RpcError> {
        let origin = self.clients.get(&client).map_or(Origin::Unknown, |client| client.origin.clone());
        let scope = self.scope_for(&origin, token)?;
        if let Some(client) = self.clients.get_mut(&client) {
            client.greeted = true;
            client.scope = scope.clone();
        }
        Ok(scope)
    }

    /// So many bytes have left at once. Whether the client follows something, and there may be more for it.
    pub fn has_left(&mut self, client: ClientId, bytes: usize) -> bool {
        let Some(state) = self.clients.get_mut(&client) else { return false };
        state.queued_bytes = state.queued_bytes.saturating_sub(bytes);
        let is_behind = |after| after < self.journal.last_event();
        !state.follows.is_empty() || state.events_after.is_some_and(is_behind)
    }

    pub(crate) fn client_wrote(&mut self, client: ClientId, bytes: usize) {
        let Some(state) = self.clients.get_mut(&client) else { return };
        state.queued_bytes = state.queued_bytes.saturating_sub(bytes);
        if state.queued_bytes > bounds::CLIENT_QUEUE_BYTES / 2 {
            return;
        }
        for follow in state.follows.clone() {
            self.pump(follow);
        }
        self.serve_event_follower(client);
    }

    /// A client that leaves takes nothing with it but its own waits: the tasks go on.
    pub(crate) fn client_gone(&mut self, client: ClientId) {
        let Some(state) = self.clients.remove(&client) else { return };
        for follow in state.follows {
            self.drop_follow(follow);
        }
        self.caller_gone(client);
        self.holder_gone(client);
        let gone: Vec<u64> = self
            .pending
            .iter()
            .filter(|(_, pending)| pending.caller.client == client)
            .map(|(id, _)| *id)
            .collect();
        for id in gone {
            // A stop of many goes on without its asker.
            if !matches!(self.pending.get(&id), Some(Pending { what: What::StopMany(_), .. })) {
                self.take_pending(id);
            }
        }
    }

    /// Whoever says no more and has every answer is let go.
    pub(crate) fn let_go(&mut self) {
        for client in std::mem::take(&mut self.said_all) {
            let Some(state) = self.clients.get(&client) else { continue };
            let ends = |follow: &u64| self.follows.get(follow).is_some_and(|follow| follow.answer.is_some());
            if state.pending > 0 || state.follows.iter().any(ends) {
                self.said_all.push(client);
            } else {
                self.actions.push(Action::CloseClient { client });
            }
        }
    }

    // --- saying things ---

    pub(crate) fn send<M: Serialize>(&mut self, client: ClientId, message: &M) {
        if let Ok(line) = line(message) {
            self.send_lines(client, line);
        }
    }

    pub(crate) fn send_lines(&mut self, client: ClientId, lines: Vec<u8>) {
        let Some(state) = self.clients.get_mut(&client) else { return };
        state.queued_bytes += lines.len();
        self.actions.push(Action::Send { client, lines });
    }

    pub(crate) fn reply<T: Serialize>(&mut self, caller: &Caller, result: &T) {
        if let Some(line) = caller.answer(result) {
            self.send_lines(caller.client, line);
        }
    }

    pub(crate) fn fail(&mut self, caller: &Caller, error: RpcError) {
        if let Some(id) = &caller.request {
            let answer =
                Answer::<()> { jsonrpc: Version::V2, id: Some(id), result: None, error: Some(&error) };
            self.send(caller.client, &answer);
        }
    }

    pub(crate) fn notify<P: Serialize>(&mut self, client: ClientId, method: &str, params: &P) {
        self.send(client, &Notification { jsonrpc: Version::V2, method, params });
    }

    // --- promises ---

    /// Promises an answer by a deadline.
    pub(crate) fn promise(&mut self, caller: Caller, what: What, within_ms: Option<u64>) -> u64 {
        let id = self.next_number();
        let timer = within_ms.map(|ms| self.arm(ms, Timer::Answer(id)));
        if let Some(client) = self.clients.get_mut(&caller.client) {
            client.pending += 1;
        }
        let pending = Pending { caller, what, timer };
        if let Some(task) = pending.task().and_then(|task| self.tasks.get_mut(task)) {
            task.pending.push(id);
        }
        if let Some(session) = pending.session().and_then(|session| self.sessions.get_mut(session)) {
            session.pending.push(id);
        }
        self.pending.insert(id, pending);
        id
    }

    /// Takes a promise back in order to answer it (or because nobody is there to hear the answer).
    pub(crate) fn take_pending(&mut self, id: u64) -> Option<Pending> {
        let pending = self.pending.remove(&id)?;
        if let Some(key) = pending.timer {
            self.disarm(key);
        }
        if let Some(client) = self.clients.get_mut(&pending.caller.client) {
            client.pending -= 1;
        }
        if let Some(task) = pending.task().and_then(|task| self.tasks.get_mut(task)) {
            task.pending.retain(|other| *other != id);
        }
        if let Some(session) = pending.session().and_then(|session| self.sessions.get_mut(session)) {
            session.pending.retain(|other| *other != id);
        }
        if let What::Wait { task, until: Some(until), .. } = &pending.what {
            self.stop_looking(task, until);
        }
        Some(pending)
    }

    /// The deadline of a promise has come: the answer is what is known now.
    pub(crate) fn answer_is_due(&mut self, id: u64) {
        if self.looks_to_the_end(id) {
            return;
        }
        let Some(Pending { caller, what, .. }) = self.take_pending(id) else { return };
        match what {
            What::Start { task, .. } | What::Inspect { task } => {
                // The caller always gets the id, however slow the start is.
                if let Some(info) = self.live_info(&task, true, None) {
                    self.reply(&caller, &info);
                }
            }
            What::Wait { task, until, .. } => self.wait_is_due(&caller, &task, until.as_deref()),
            What::Stop { task, fenced } => {
                let status = self.tasks.get(&task).map(|task| task.entry.doc.status);
                let bare = StopResult::bare(task, StopVerdict::Accepted, status);
                self.reply(&caller, &StopResult { fenced, ..bare });
            }
            What::Detach { .. } => self.unanswered(&caller, "it may still be detached"),
            What::Room { refusal, .. } => self.fail(&caller, *refusal),
            What::Write { .. } => self.unanswered(&caller, "the write may have been accepted"),
            What::Signal { .. } => self.unanswered(&caller, "the signal may have been sent"),
            What::Resize { .. } => self.unanswered(&caller, "the size may have been changed"),
            What::Events { after, max, only } => self.answer_events(&caller, &only, after, max),
            What::StopMany(many) => self.finish_many(&caller, *many),
            What::Drained { session } => self.answer_drained(&caller, &session),
            What::Notices { session, max } => self.answer_notices(&caller, &session, max),
            What::Search => {}
            What::Collect(so_far) => self.go_on_collecting(caller, *so_far),
            What::Reading { start } => self.go_on_unread(&caller, start),
        }
    }

    /// A shim has not answered in time.
    fn unanswered(&mut self, caller: &Caller, perhaps: &str) {
        let error = RpcError::new(ErrorKind::Deadline, "the holder of the task did not answer in time")
            .hint(format!("look at it with inspect; {perhaps}"));
        self.fail(caller, error);
    }

    /// The daemon leaves before the answer is there.
    pub(crate) fn refuse_pending(&mut self, id: u64) {
        let Some(Pending { caller, what, .. }) = self.take_pending(id) else { return };
        match what {
            What::Reading { .. } => {
                self.refuse_when_leaving(&caller);
                return;
            }
            What::Room { refusal, .. } => return self.fail(&caller, *refusal),
            _ => {}
        }
        let error = RpcError::new(ErrorKind::ShuttingDown, "the daemon is leaving; the task goes on")
            .hint("ask again: the next call starts a daemon that adopts it");
        self.fail(&caller, error);
    }

    /// All but those that are kept by a daemon that leaves, and those that wait for the end of one of these.
    pub(crate) fn refuse_promises(&mut self, stopped: &[String]) {
        let is_refused = |pending: &Pending| {
            let is_due = pending.awaited().is_some_and(|task| stopped.iter().any(|other| other == task));
            !is_due && !pending.must_be_kept()
        };
        let refused: Vec<u64> =
            self.pending.iter().filter(|(_, pending)| is_refused(pending)).map(|(id, _)| *id).collect();
        for id in refused {
            self.refuse_pending(id);
        }
    }

    pub(crate) fn refuse_when_leaving(&mut self, caller: &Caller) -> bool {
        let leaving = self.phase == Phase::Leaving;
        if leaving {
            let error =
                RpcError::new(ErrorKind::ShuttingDown, "the daemon is leaving and starts nothing new")
                    .hint("try again: the next call starts a new one");
            self.fail(caller, error);
        }
        leaving
    }
}
