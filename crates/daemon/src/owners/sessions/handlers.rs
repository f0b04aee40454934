//! The methods `session/open`, `renew`, `close`, `get`, `list` and `wait`. `session/notices` is in
//! `completions`.

use belay_model::{LeaseEvent, Level, SessionId, StopOrder};
use belay_protocol::Timestamp;
use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::event::Event;
use belay_protocol::labels::{check_labels, has_labels};
use belay_protocol::session::{
    SessionCloseParams, SessionCloseResult, SessionDefaults, SessionGetParams, SessionHold, SessionInfo,
    SessionListParams, SessionListResult, SessionOpenParams, SessionOpenResult, SessionRenewParams,
    SessionState, SessionWaitParams, SessionWaitResult, UnfinishedStatus, UnfinishedTask,
};
use belay_protocol::task::{OnStall, StallParams, StopCounts};
use belay_record::writer::SMALLEST_LIMIT_BYTES;

use super::leases::Ending;
use super::{CompletionsReply, STANDING, Session, SessionDoc};
use crate::config::bounds;
use crate::host::Host;
use crate::keyed_hash;
use crate::requests::check::{at_most, check_clock, check_stall, check_text};
use crate::requests::{Answer, Caller, Reply, Scope, Waiter, make_token};
use crate::runtime::Core;
use crate::tasks::{AfterStops, Starter, StopManyReply, check_reason, journal_error};

/// `session/wait`: a wait until a session is drained.
#[derive(Debug)]
pub(crate) struct DrainedReply {
    session: String,
}

impl Reply for DrainedReply {
    fn session(&self) -> Option<&str> {
        Some(&self.session)
    }

    fn give_now<H: Host>(self, core: &mut Core<H>, waiter: Waiter) {
        match core.drained(&self.session) {
            Some(result) => core.reply(&waiter.caller, &result),
            None => core.fail(&waiter.caller, gone(&self.session)),
        }
    }
}

/// The parent and lineage of a task or session that is created from a scope.
pub(crate) struct Above {
    pub(crate) parent: Option<String>,
    /// The sessions and tasks above it, outermost first.
    pub(crate) lineage: Vec<String>,
}

impl<H: Host> Core<H> {
    pub(crate) fn session_open(
        &mut self,
        caller: &Caller,
        params: SessionOpenParams,
    ) -> Result<Answer, RpcError> {
        self.refuse_when_leaving()?;
        check_open(&params)?;
        let scope = self.scope(caller);
        let opened_with = self.open_key(&scope, &params);
        if let Some(with) = &opened_with
            && let Some(id) = self.sessions.by_key.get(&with.key).cloned()
        {
            return self.open_again(caller, &id, with);
        }
        self.check_session_limits(&scope, &params)?;
        let above = self.above(&scope)?;
        let id = SessionId::from_random(self.ctx.random()?).to_string();
        let token = match &opened_with {
            Some(with) => self.token_of_key(&id, with),
            None => make_token(&id, &self.ctx.random::<16>()?),
        };
        self.refresh_settings();
        let proof = keyed_hash::keyed(&self.ctx.key, token.as_bytes());
        let starter = self.starter(caller);
        let by = starter.actor.clone();
        let doc = SessionDoc { opened_with, ..self.new_session(params, above, proof, starter) };
        let opened = Event::SessionOpened {
            session: id.clone(),
            name: doc.name.clone(),
            parent: doc.parent.clone(),
            by: by.clone(),
        };
        let tags = doc.tags();
        let mut session = Session::new(doc);
        session.holders.insert(caller.client);
        self.sessions.insert(id.clone(), session);
        // What this call does not record is not taken back with it.
        self.record_session_levels();
        let mark = self.ctx.journal.mark();
        let event = self.ctx.record(opened, tags);
        self.sessions.update(&id, |session| session.doc.last_event = event);
        self.store_session(&id);
        // The token is given out only when the session is durable.
        if let Err(error) = self.commit() {
            self.sessions.remove(&id);
            self.ctx.journal.take_back(mark);
            return Err(journal_error(&error));
        }
        tracing::info!(session = id, by, "session opened");
        self.lease_event(&id, LeaseEvent::Renewed, None);
        let session = self
            .session_info(&id)
            .ok_or_else(|| RpcError::new(ErrorKind::Internal, "the new session is gone"))?;
        Ok(caller.answer(&SessionOpenResult { token, session }))
    }

    fn check_session_limits(&self, scope: &Scope, params: &SessionOpenParams) -> Result<(), RpcError> {
        let open = self.sessions.open.len();
        if open >= bounds::SESSIONS_OPEN {
            let message = format!("{open} sessions are open, which is the limit");
            return Err(RpcError::new(ErrorKind::Busy, message).hint("close some: belay sessions close ID"));
        }
        for session in self.sessions_around(scope) {
            check_defaults_within(params, session.defaults())?;
        }
        let below = scope.id().map_or(0, |id| {
            let own = usize::from(self.sessions.open.contains(id));
            own + self.sessions.open_below.get(id).copied().unwrap_or(0)
        });
        if below > bounds::SESSIONS_BELOW {
            let message =
                format!("{} sessions are open below the caller, which is the limit", bounds::SESSIONS_BELOW);
            return Err(RpcError::new(ErrorKind::Limit, message).hint("close some: belay sessions close ID"));
        }
        Ok(())
    }

    fn new_session(
        &self,
        params: SessionOpenParams,
        above: Above,
        proof: String,
        starter: Starter,
    ) -> SessionDoc {
        let default = self.ctx.config.session;
        let SessionOpenParams { name, labels, hold, lease_ms, grace_ms, on_end, defaults, max_tasks, key: _ } =
            params;
        SessionDoc {
            number: self.sessions.next_number(),
            name,
            parent: above.parent,
            lineage: above.lineage,
            labels,
            opened_by: starter.actor,
            client: starter.client,
            hold,
            on_end,
            lease_ms: lease_ms.or(default.lease_ms).unwrap_or(bounds::LEASE_MS),
            grace_ms: grace_ms.or(default.grace_ms).unwrap_or(bounds::LEASE_GRACE_MS),
            defaults,
            max_tasks: max_tasks.or(default.max_tasks),
            proof,
            opened_with: None,
            opened_ms: self.ctx.now.wall_ms,
            state: SessionState::Open,
            ended_ms: None,
            ended_by: None,
            reason: None,
            left: Vec::new(),
            last_event: 0,
        }
    }

    /// The parent and lineage of a task or session that is created from this scope.
    pub(crate) fn above(&self, scope: &Scope) -> Result<Above, RpcError> {
        let gone =
            || RpcError::new(ErrorKind::WrongState, "the task or session of this connection has ended");
        let (mut lineage, id) = match scope {
            Scope::Person => return Ok(Above { parent: None, lineage: Vec::new() }),
            Scope::Session(id) => (self.sessions.get(id).ok_or_else(gone)?.doc.lineage.clone(), id),
            Scope::Task(id) => (self.tasks.get(id).ok_or_else(gone)?.stored().doc.lineage.clone(), id),
        };
        lineage.push(id.clone());
        if lineage.len() > bounds::DEPTH {
            let message = format!("tasks and sessions are nested {} deep, which is the limit", bounds::DEPTH);
            return Err(
                RpcError::new(ErrorKind::Limit, message).hint("start it from a task or session further out")
            );
        }
        Ok(Above { parent: Some(id.clone()), lineage })
    }

    pub(crate) fn session_renew(
        &mut self,
        caller: &Caller,
        params: &SessionRenewParams,
    ) -> Result<Answer, RpcError> {
        let id = self.find_own_session(caller, &params.id)?;
        let session = self.sessions.get(&id).ok_or_else(|| over(&id, None))?;
        if !session.is_open() {
            return Err(over(&id, session.reason()));
        }
        self.sessions.add_holder(&id, caller.client);
        self.lease_event(&id, LeaseEvent::Renewed, None);
        self.answer_session(caller, &id)
    }

    /// Finds the session that the parameter `id` names.
    fn find_session_by_id(&self, caller: &Caller, text: &str) -> Result<String, RpcError> {
        self.find_session(&self.scope(caller), text).map_err(|error| error.field("id"))
    }

    /// Finds the session that a caller names, if it may act on it: a person, the session's client,
    /// or a scope above it.
    pub(super) fn find_own_session(&self, caller: &Caller, text: &str) -> Result<String, RpcError> {
        let scope = self.scope(caller);
        let id = self.find_session_by_id(caller, text)?;
        let Some(session) = self.sessions.get(&id) else { return Ok(id) };
        if !scope.covers(&id, session.lineage()) {
            let message = format!("you run inside session {id}: only its client or a person may do this");
            return Err(RpcError::new(ErrorKind::NotPermitted, message).field("id"));
        }
        if id == STANDING {
            let message = "the standing session needs no lease and does not end";
            return Err(RpcError::new(ErrorKind::WrongState, message).field("id"));
        }
        Ok(id)
    }

    fn answer_session(&self, caller: &Caller, id: &str) -> Result<Answer, RpcError> {
        let info = self.session_info(id).ok_or_else(|| gone(id))?;
        Ok(caller.answer(&info))
    }

    pub(crate) fn session_close(
        &mut self,
        caller: &Caller,
        params: &SessionCloseParams,
    ) -> Result<Answer, RpcError> {
        check_text("actor", params.actor.as_deref(), bounds::NAME_BYTES)?;
        check_reason(params.reason.as_deref())?;
        let id = self.find_own_session(caller, &params.id)?;
        let by = self.actor(caller, params.actor.as_deref());
        let order = StopOrder::new(Level::Terminate, by.clone(), params.reason.as_deref());
        if self.sessions.get(&id).is_some_and(Session::is_open)
            && let Some(on_end) = params.on_end
        {
            self.sessions.update(&id, |session| session.doc.on_end = on_end);
        }
        let open = self.tasks_ending_with(&id);
        let within = open.iter().map(|task| self.stop_deadline_ms(task, &order)).max();
        let then = AfterStops::CloseSession { session: id.clone() };
        let ending = Ending { by, reason: order.reason.clone() };
        let stops = StopManyReply::new(&open, order, then);
        let reply = self.defer_reply(caller.clone(), stops, Some(within.unwrap_or(0)));
        self.lease_event(&id, LeaseEvent::Closed, Some(&ending));
        if open.is_empty() {
            self.reply_due(reply);
        }
        Ok(Answer::Later)
    }

    /// Replies to `session/close`: the tasks of the session have been stopped, or the deadline has
    /// passed.
    pub(crate) fn answer_close(&mut self, caller: &Caller, id: &str, counts: StopCounts) {
        match self.session_info(id) {
            Some(session) => self.reply_behind_parts(caller, &SessionCloseResult { session, counts }),
            None => self.fail(caller, gone(id)),
        }
    }

    pub(crate) fn session_get(
        &mut self,
        caller: &Caller,
        params: &SessionGetParams,
    ) -> Result<Answer, RpcError> {
        let id = self.find_session_by_id(caller, &params.id)?;
        self.answer_session(caller, &id)
    }

    pub(crate) fn session_list(
        &mut self,
        caller: &Caller,
        params: &SessionListParams,
    ) -> Result<Answer, RpcError> {
        // What was recorded before this call is contained in the list.
        self.commit_or_retry();
        let scope = self.scope(caller);
        let limit = at_most("limit", params.limit, bounds::LIST_ITEMS)?;
        check_labels("labels", &params.labels)?;
        let before = params.cursor.as_ref().map(|cursor| cursor.parse::<u64>()).transpose();
        let before =
            before.map_err(|_| RpcError::invalid("cursor", "that is no cursor of an earlier list"))?;
        let newest_first = self.sessions.by_number.range(..before.unwrap_or(u64::MAX)).rev();
        let is_wanted = |id: &str| {
            let is_kept = self.sessions.get(id).is_some_and(|session| {
                (params.all || !session.is_ended()) && has_labels(&params.labels, &session.doc.labels)
            });
            is_kept && self.sees_session(&scope, id)
        };
        let mut wanted = newest_first.filter(|(_, id)| is_wanted(id)).peekable();
        let (mut sessions, mut bytes) = (Vec::new(), 0);
        let mut next_cursor = None;
        while let Some((number, id)) = wanted.next() {
            let Some(info) = self.session_info(id) else { continue };
            bytes += session_bytes(&info);
            sessions.push(info);
            if sessions.len() == limit || bytes > bounds::LIST_BYTES {
                next_cursor = wanted.peek().map(|_| number.to_string());
                break;
            }
        }
        let as_of = self.ctx.journal.last_event();
        Ok(caller.answer(&SessionListResult { sessions, as_of, next_cursor }))
    }

    pub(crate) fn session_wait(
        &mut self,
        caller: &Caller,
        params: &SessionWaitParams,
    ) -> Result<Answer, RpcError> {
        let id = self.find_session_by_id(caller, &params.id)?;
        let within = params.timeout_ms.unwrap_or(bounds::WAIT_MS).min(bounds::WAIT_MS);
        self.defer_reply(caller.clone(), DrainedReply { session: id.clone() }, Some(within));
        self.serve_session_waiters(&id);
        Ok(Answer::Later)
    }

    /// Answers the calls that wait for a session and whose condition is now met.
    pub(super) fn serve_session_waiters(&mut self, id: &str) {
        if !self.requests.has_session_waiters(id) {
            return;
        }
        let Some(session) = self.sessions.get(id) else { return };
        let has_completions = !session.completions.is_empty();
        let is_drained = self.tasks.tally(id).is_drained();
        for reply in self.requests.of_session(id) {
            let is_met = (is_drained && self.requests.reply::<DrainedReply>(reply).is_some())
                || (has_completions && self.requests.reply::<CompletionsReply>(reply).is_some());
            if is_met {
                self.reply_due(reply);
            }
        }
    }

    fn drained(&self, id: &str) -> Option<SessionWaitResult> {
        let info = self.session_info(id)?;
        let mut left = self.sessions.get(id)?.doc.left.clone();
        if info.counts.stalled > 0 {
            left.extend(self.tasks.of_session(id).filter_map(|task| {
                let stalled = task.stored().doc.stalled.as_ref()?;
                let why = format!("no progress since {}", stalled.since);
                Some(UnfinishedTask { id: task.id().to_owned(), status: UnfinishedStatus::Stalled, why })
            }));
        }
        Some(SessionWaitResult { drained: info.drained, session: info, left })
    }

    pub(super) fn session_info(&self, id: &str) -> Option<SessionInfo> {
        let session = self.sessions.get(id)?;
        let doc = &session.doc;
        let tally = self.tasks.tally(id);
        let opened_ms = if id == STANDING { self.ctx.started.wall_ms } else { doc.opened_ms };
        Some(SessionInfo {
            id: id.to_owned(),
            name: doc.name.clone(),
            labels: doc.labels.clone(),
            state: doc.state,
            parent: doc.parent.clone(),
            opened_by: doc.opened_by.clone(),
            client: doc.client.clone(),
            hold: doc.hold,
            on_end: doc.on_end,
            lease_ms: doc.lease_ms,
            grace_ms: doc.grace_ms,
            due_in_ms: session.due.map(|due| due.at_ms().saturating_sub(self.ctx.now.mono_ms)),
            defaults: doc.defaults,
            max_tasks: doc.max_tasks,
            opened_at: Timestamp(opened_ms),
            ended_at: doc.ended_ms.map(Timestamp),
            ended_by: doc.ended_by.clone(),
            reason: doc.reason.clone(),
            drained: tally.is_drained(),
            counts: tally.counts,
            notices: session.completions.len() as u64,
            last_event: doc.last_event,
        })
    }
}

/// About how large a session is in a reply.
fn session_bytes(session: &SessionInfo) -> usize {
    let labels: usize = session.labels.iter().map(|(key, value)| key.len() + value.len() + 8).sum();
    1_000 + labels + session.reason.as_ref().map_or(0, String::len)
}

/// The defaults of a session opened inside another session must not exceed the outer session's.
fn check_defaults_within(params: &SessionOpenParams, outer: &SessionDefaults) -> Result<(), RpcError> {
    let own = &params.defaults;
    let stops = |stall: Option<StallParams>| stall.is_some_and(|stall| stall.policy == OnStall::Stop);
    if own.stall.is_some() && stops(outer.stall) && !stops(own.stall) {
        let message = "the outer session stops tasks that make no progress, and does not allow less";
        return Err(RpcError::new(ErrorKind::NotPermitted, message)
            .field("defaults.stall")
            .hint("use the policy stop, or leave out stall"));
    }
    for (field, requested, most) in [
        ("defaults.timeout_ms", own.timeout_ms, outer.timeout_ms),
        ("defaults.ttl_ms", own.ttl_ms, outer.ttl_ms),
        ("defaults.silence_ms", own.silence_ms, outer.silence_ms),
        ("defaults.stall", own.stall.map(|stall| stall.after_ms), outer.stall.map(|stall| stall.after_ms)),
        ("defaults.grace_ms", own.grace_ms, outer.grace_ms),
        ("defaults.output_limit_bytes", own.output_limit_bytes, outer.output_limit_bytes),
    ] {
        if let (Some(requested), Some(most)) = (requested, most)
            && requested > most
        {
            let message = format!("the outer session allows at most {most}, and {requested} was requested");
            return Err(RpcError::new(ErrorKind::NotPermitted, message)
                .field(field)
                .hint("request no more than that"));
        }
    }
    Ok(())
}

pub(super) fn gone(id: &str) -> RpcError {
    RpcError::new(ErrorKind::NotFound, format!("session {id} has ended and was removed")).field("id")
}

pub(super) fn over(id: &str, reason: Option<&str>) -> RpcError {
    let why = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
    RpcError::new(ErrorKind::WrongState, format!("session {id} has ended{why}"))
        .field("id")
        .hint("its tasks can still be listed, read and stopped; open a new session to start some")
}

fn check_open(params: &SessionOpenParams) -> Result<(), RpcError> {
    check_text("name", params.name.as_deref(), bounds::NAME_BYTES)?;
    check_labels("labels", &params.labels)?;
    check_text("key", params.key.as_deref(), bounds::TOKEN_BYTES)?;
    if params.name.as_deref() == Some(STANDING) || params.name.as_deref().is_some_and(SessionId::is_prefix) {
        let message = "the name looks like the id of a session";
        return Err(RpcError::invalid("name", message).hint("choose another name"));
    }
    if params.hold == SessionHold::Nothing {
        let message = "only the standing session has no holder";
        return Err(RpcError::invalid("hold", message).hint("use lease or connection"));
    }
    check_clock("lease_ms", params.lease_ms)?;
    check_clock("grace_ms", params.grace_ms)?;
    if params.lease_ms.is_some_and(|ms| ms < bounds::LEASE_LEAST_MS) {
        let message = format!("a lease of less than {} ms cannot be renewed in time", bounds::LEASE_LEAST_MS);
        return Err(RpcError::invalid("lease_ms", message));
    }
    let defaults = &params.defaults;
    for (field, limit) in [
        ("defaults.timeout_ms", defaults.timeout_ms),
        ("defaults.ttl_ms", defaults.ttl_ms),
        ("defaults.silence_ms", defaults.silence_ms),
    ] {
        check_clock(field, limit)?;
    }
    check_stall("defaults.stall", defaults.stall)?;
    check_clock("grace_ms", defaults.grace_ms).map_err(|error| error.field("defaults.grace_ms"))?;
    if defaults.output_limit_bytes.is_some_and(|limit| limit < SMALLEST_LIMIT_BYTES) {
        let message =
            format!("the output limit must be at least {SMALLEST_LIMIT_BYTES} bytes, for head and tail");
        return Err(RpcError::invalid("defaults.output_limit_bytes", message));
    }
    if params.max_tasks == Some(0) {
        return Err(RpcError::invalid("max_tasks", "max_tasks must be at least 1"));
    }
    Ok(())
}
