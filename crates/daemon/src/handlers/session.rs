//! `session/open renew close get list wait notices`: what clients ask about sessions.

use belay_model::{LeaseEvent, Level, SessionId, StopOrder};
use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::event::Event;
use belay_protocol::session::{
    CloseParams, CloseResult, Defaults, GetParams, Hold, ListParams, ListResult, Notice, NoticesParams,
    NoticesResult, OpenParams, OpenResult, RenewParams, SessionInfo, SessionState, WaitParams,
};
use belay_record::writer::SMALLEST_LIMIT_BYTES;

use super::check::{at_most, check_clock, check_text};
use super::task_stop::{StopMany, Then, check_reason};
use crate::answer::{Caller, What};
use crate::config::bounds;
use crate::core::Core;
use crate::doc::Entry;
use crate::event::ClientId;
use crate::fingerprint;
use crate::record::journal_error;
use crate::rights::{Scope, make_token};
use crate::sessions::{Ending, STANDING, Session, SessionDoc};
use crate::world::World;

impl<W: World> Core<W> {
    pub(crate) fn session_open(&mut self, caller: &Caller, params: OpenParams) {
        if self.refuse_when_leaving(caller) {
            return;
        }
        match self.open_session(caller, params) {
            Ok(result) => self.reply(caller, &result),
            Err(error) => self.fail(caller, error),
        }
    }

    fn open_session(&mut self, caller: &Caller, params: OpenParams) -> Result<OpenResult, RpcError> {
        check_open(&params)?;
        let open = self.sessions.values().filter(|session| session.doc.state.is_open()).count();
        if open >= bounds::SESSIONS_OPEN {
            let message = format!("{open} sessions are open, which is the most there can be");
            return Err(RpcError::new(ErrorKind::Busy, message).hint("close some: belay sessions close ID"));
        }
        let scope = self.scope(caller);
        for doc in self.binding(&scope) {
            bound_defaults(&params, &doc.defaults)?;
        }
        let below = self
            .sessions
            .iter()
            .filter(|(id, session)| session.doc.state.is_open() && scope.covers(id, &session.doc.lineage));
        if scope != Scope::Person && below.count() > bounds::SESSIONS_BELOW {
            let message =
                format!("{} sessions are open below you, which is the most", bounds::SESSIONS_BELOW);
            return Err(RpcError::new(ErrorKind::Limit, message).hint("close some: belay sessions close ID"));
        }
        let (parent, lineage) = self.above(&scope)?;
        let id = SessionId::from_random(self.random()?).to_string();
        let token = make_token(&id, &self.random::<16>()?);
        self.refresh_settings();
        let usual = self.config.session;
        let OpenParams { name, hold, lease_ms, grace_ms, on_end, defaults, max_tasks } = params;
        let doc = SessionDoc {
            number: self.next_session_number(),
            name,
            parent: parent.clone(),
            lineage,
            hold,
            on_end,
            lease_ms: lease_ms.or(usual.lease_ms).unwrap_or(bounds::LEASE_MS),
            grace_ms: grace_ms.or(usual.grace_ms).unwrap_or(bounds::LEASE_GRACE_MS),
            defaults,
            max_tasks: max_tasks.or(usual.max_tasks),
            proof: fingerprint::keyed(&self.key, token.as_bytes()),
            opened_ms: self.now.wall_ms,
            state: SessionState::Open,
            ended_ms: None,
            ended_by: None,
            reason: None,
            left: Vec::new(),
        };
        let opened = Event::SessionOpened {
            session: id.clone(),
            name: doc.name.clone(),
            parent: parent.clone(),
            by: self.actor(caller, None),
        };
        let mut session = Session::new(doc);
        session.holders.insert(caller.client);
        self.sessions.insert(id.clone(), session);
        let mark = self.mark();
        self.put_session(&id);
        self.emit(&opened);
        // Said only when it is durable: whoever has a token has a session.
        if let Err(error) = self.commit() {
            self.sessions.remove(&id);
            self.take_back(mark);
            return Err(journal_error(&error));
        }
        self.lease_event(&id, LeaseEvent::Renewed, None);
        let session =
            self.session_now(&id).ok_or_else(|| RpcError::new(ErrorKind::Internal, "it is gone"))?;
        Ok(OpenResult { token, session })
    }

    fn next_session_number(&self) -> u64 {
        self.sessions.values().map(|session| session.doc.number).max().unwrap_or(0) + 1
    }

    /// What is above something that is made in this name: its parent, and the whole lineage.
    pub(crate) fn above(&self, scope: &Scope) -> Result<(Option<String>, Vec<String>), RpcError> {
        let gone = || {
            RpcError::new(ErrorKind::WrongState, "the task or session in whose name this is asked is gone")
        };
        let (mut lineage, id) = match scope {
            Scope::Person => return Ok((None, Vec::new())),
            Scope::Session(id) => (self.sessions.get(id).ok_or_else(gone)?.doc.lineage.clone(), id),
            Scope::Task(id) => (self.tasks.get(id).ok_or_else(gone)?.entry.doc.lineage.clone(), id),
        };
        lineage.push(id.clone());
        if lineage.len() > bounds::DEPTH {
            let message = format!("{} tasks and sessions are nested in each other already", bounds::DEPTH);
            return Err(RpcError::new(ErrorKind::Limit, message).hint("start it from further out"));
        }
        Ok((Some(id.clone()), lineage))
    }

    pub(crate) fn session_renew(&mut self, caller: &Caller, params: &RenewParams) {
        let found = self.find_own_session(caller, &params.id).and_then(|id| {
            let session = self.sessions.get_mut(&id).ok_or_else(|| over(&id, None))?;
            if !session.doc.state.is_open() {
                return Err(over(&id, session.doc.reason.as_deref()));
            }
            session.holders.insert(caller.client);
            Ok(id)
        });
        match found {
            Ok(id) => {
                self.lease_event(&id, LeaseEvent::Renewed, None);
                self.reply_session(caller, &id);
            }
            Err(error) => self.fail(caller, error),
        }
    }

    /// The session that somebody means, if they may do something about it: a person, its own client, or one from above.
    fn find_own_session(&self, caller: &Caller, text: &str) -> Result<String, RpcError> {
        let scope = self.scope(caller);
        let id = self.find_session(&scope, text)?;
        let Some(session) = self.sessions.get(&id) else { return Ok(id) };
        if !scope.covers(&id, &session.doc.lineage) {
            let message = format!("session {id} binds you: only its own client, or a person, can do this");
            return Err(RpcError::new(ErrorKind::NotPermitted, message).field("id"));
        }
        if id == STANDING {
            let message = "the standing session needs no lease and does not end";
            return Err(RpcError::new(ErrorKind::WrongState, message).field("id"));
        }
        Ok(id)
    }

    fn reply_session(&mut self, caller: &Caller, id: &str) {
        if let Some(info) = self.session_now(id) {
            self.reply(caller, &info);
        }
    }

    pub(crate) fn session_close(&mut self, caller: &Caller, params: &CloseParams) {
        let found = check_text("actor", params.actor.as_deref(), bounds::NAME_BYTES)
            .and_then(|()| check_reason(params.reason.as_deref()))
            .and_then(|()| self.find_own_session(caller, &params.id));
        let id = match found {
            Ok(id) => id,
            Err(error) => return self.fail(caller, error),
        };
        let by = self.actor(caller, params.actor.as_deref());
        let order = StopOrder::new(Level::Terminate, by.clone(), params.reason.as_deref());
        if let Some(session) = self.sessions.get_mut(&id).filter(|session| session.doc.state.is_open()) {
            session.doc.on_end = params.on_end.unwrap_or(session.doc.on_end);
        }
        let open = self.bound_tasks(&id);
        let within = open.iter().map(|task| self.stop_deadline_ms(task, &order)).max();
        let then = Then::Close { session: id.clone() };
        let many = StopMany { done: Vec::new(), open: open.clone(), order: order.clone(), then };
        let pending = self.promise(caller.clone(), What::StopMany(Box::new(many)), Some(within.unwrap_or(0)));
        self.lease_event(&id, LeaseEvent::Closed, Some(&Ending { by, reason: order.reason }));
        if open.is_empty() {
            self.answer_is_due(pending);
        }
    }

    pub(crate) fn answer_close(
        &mut self,
        caller: &Caller,
        id: &str,
        receipts: Vec<belay_protocol::task::StopResult>,
    ) {
        match self.session_now(id) {
            Some(session) => self.reply(caller, &CloseResult { session, receipts }),
            None => self.fail(caller, gone(id)),
        }
    }

    pub(crate) fn session_get(&mut self, caller: &Caller, params: &GetParams) {
        match self.find_session(&self.scope(caller), &params.id) {
            Ok(id) => self.reply_session(caller, &id),
            Err(error) => self.fail(caller, error),
        }
    }

    pub(crate) fn session_list(&mut self, caller: &Caller, params: &ListParams) {
        match self.list_sessions(&self.scope(caller), params) {
            Ok(result) => self.reply(caller, &result),
            Err(error) => self.fail(caller, error),
        }
    }

    fn list_sessions(&self, scope: &Scope, params: &ListParams) -> Result<ListResult, RpcError> {
        let limit = at_most("limit", params.limit, bounds::LIST_ITEMS)?;
        let before = params.cursor.as_ref().map(|cursor| cursor.parse::<u64>()).transpose();
        let before =
            before.map_err(|_| RpcError::invalid("cursor", "that is no cursor of an earlier list"))?;
        let is_wanted = |id: &str, session: &Session| {
            self.sees_session(scope, id, session)
                && before.is_none_or(|before| session.doc.number < before)
                && (params.all || session.doc.state != SessionState::Ended)
        };
        let mut found: Vec<(u64, &String)> = self
            .sessions
            .iter()
            .filter(|(id, session)| is_wanted(id, session))
            .map(|(id, session)| (session.doc.number, id))
            .collect();
        found.sort_unstable_by_key(|(number, _)| std::cmp::Reverse(*number));
        let more = found.len() > limit;
        found.truncate(limit);
        let next_cursor = found.last().filter(|_| more).map(|(number, _)| number.to_string());
        let counts = self.count_sessions();
        let info = |id: &String| self.session_info(id, counts.get(id.as_str()).copied().unwrap_or_default());
        let sessions: Vec<SessionInfo> = found.into_iter().filter_map(|(_, id)| info(id)).collect();
        Ok(ListResult { sessions, next_cursor })
    }

    pub(crate) fn session_wait(&mut self, caller: &Caller, params: &WaitParams) {
        let id = match self.find_session(&self.scope(caller), &params.id) {
            Ok(id) => id,
            Err(error) => return self.fail(caller, error),
        };
        let within = params.timeout_ms.unwrap_or(bounds::WAIT_MS).min(bounds::WAIT_MS);
        self.promise(caller.clone(), What::Drained { session: id.clone() }, Some(within));
        self.serve_session(&id);
    }

    pub(crate) fn session_notices(&mut self, caller: &Caller, params: &NoticesParams) {
        let found = at_most("max", params.max, bounds::NOTICES_AT_ONCE)
            .and_then(|max| Ok((self.find_own_session(caller, &params.id)?, max)));
        let (id, max) = match found {
            Ok(found) => found,
            Err(error) => return self.fail(caller, error),
        };
        if let Some(ack) = params.ack {
            self.forget_notices(&id, |seq, _| seq <= ack);
        }
        let within = params.wait_ms.min(bounds::EVENT_WAIT_MS);
        self.promise(caller.clone(), What::Notices { session: id.clone(), max }, Some(within));
        self.serve_session(&id);
    }

    /// Whoever waits for something about a session that is so now is answered.
    pub(crate) fn serve_session(&mut self, id: &str) {
        let Some(session) = self.sessions.get(id).filter(|session| !session.pending.is_empty()) else {
            return;
        };
        let (has_notices, waiting) = (!session.notices.is_empty(), session.pending.clone());
        let drained = self.session_now(id).is_some_and(|info| info.drained);
        for pending in waiting {
            let is_so = match self.pending.get(&pending).map(|pending| &pending.what) {
                Some(What::Drained { .. }) => drained,
                Some(What::Notices { .. }) => has_notices,
                _ => false,
            };
            if is_so {
                self.answer_is_due(pending);
            }
        }
    }

    pub(crate) fn answer_drained(&mut self, caller: &Caller, id: &str) {
        match self.drained(id) {
            Some(result) => self.reply(caller, &result),
            None => self.fail(caller, gone(id)),
        }
    }

    pub(crate) fn answer_notices(&mut self, caller: &Caller, id: &str, max: usize) {
        let Some(session) = self.sessions.get(id) else { return self.fail(caller, gone(id)) };
        let told: Vec<(u64, String)> =
            session.notices.iter().take(max).map(|(seq, task)| (*seq, task.clone())).collect();
        let more = (session.notices.len() - told.len()) as u64;
        // Of a task that was removed meanwhile there is nothing to tell.
        let known = |(seq, task): (u64, String)| {
            let task = self.entry(&task).ok().map(|entry| Self::ended_info(&entry))?;
            Some(Notice { seq, task })
        };
        let notices = told.into_iter().filter_map(known).collect();
        self.reply(caller, &NoticesResult { notices, more });
    }

    /// Whether whoever waits with this was told for the session: in its name, or on a connection that holds it.
    pub(crate) fn speaks_for(&self, client: ClientId, session: &str) -> bool {
        let holds = self.sessions.get(session).is_some_and(|session| session.holders.contains(&client));
        let scope = self.clients.get(&client).map(|client| &client.scope);
        holds || matches!(scope, Some(Scope::Session(id)) if id == session)
    }

    /// An end is told by the answer to a wait: no notice has to.
    pub(crate) fn told_by_wait(&mut self, caller: &Caller, entry: &Entry) {
        if entry.session != STANDING && self.speaks_for(caller.client, &entry.session) {
            self.told_of(&entry.session, &entry.id);
        }
    }
}

/// A session that is opened inside of another gives its tasks no more than that one does.
fn bound_defaults(params: &OpenParams, outer: &Defaults) -> Result<(), RpcError> {
    let own = &params.defaults;
    for (field, asked, most) in [
        ("defaults.timeout_ms", own.timeout_ms, outer.timeout_ms),
        ("defaults.ttl_ms", own.ttl_ms, outer.ttl_ms),
        ("defaults.silence_ms", own.silence_ms, outer.silence_ms),
        ("defaults.grace_ms", own.grace_ms, outer.grace_ms),
        ("defaults.output_limit_bytes", own.output_limit_bytes, outer.output_limit_bytes),
    ] {
        if let (Some(asked), Some(most)) = (asked, most)
            && asked > most
        {
            let message = format!("the session around it allows {most}, and {asked} was asked for");
            return Err(RpcError::new(ErrorKind::NotPermitted, message)
                .field(field)
                .hint("ask for no more than that"));
        }
    }
    Ok(())
}

fn gone(id: &str) -> RpcError {
    RpcError::new(ErrorKind::NotFound, format!("session {id} has ended, and is no longer kept")).field("id")
}

fn over(id: &str, reason: Option<&str>) -> RpcError {
    let why = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
    RpcError::new(ErrorKind::WrongState, format!("session {id} has ended{why}"))
        .field("id")
        .hint("its tasks can still be listed, read and stopped; open a new session to start some")
}

fn check_open(params: &OpenParams) -> Result<(), RpcError> {
    check_text("name", params.name.as_deref(), bounds::NAME_BYTES)?;
    if params.name.as_deref() == Some(STANDING) || params.name.as_deref().is_some_and(SessionId::is_prefix) {
        return Err(
            RpcError::invalid("name", "that name would be taken for an id").hint("choose another one")
        );
    }
    if params.hold == Hold::Nothing {
        let message = "only the standing session is held by nothing";
        return Err(RpcError::invalid("hold", message).hint("lease, or connection"));
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
    check_clock("grace_ms", defaults.grace_ms).map_err(|error| error.field("defaults.grace_ms"))?;
    if defaults.output_limit_bytes.is_some_and(|limit| limit < SMALLEST_LIMIT_BYTES) {
        let message =
            format!("less than {SMALLEST_LIMIT_BYTES} bytes of output cannot be kept head and tail");
        return Err(RpcError::invalid("defaults.output_limit_bytes", message));
    }
    if params.max_tasks == Some(0) {
        return Err(RpcError::invalid("max_tasks", "nothing could ever be started in it"));
    }
    Ok(())
}
