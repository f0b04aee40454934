//! Leases of sessions: how they lapse, are regained and end, and the stop of the tasks that end
//! with a session.

use belay_journal::Loaded;
use belay_model::session::lease;
use belay_model::{Lease, LeaseEffect, LeaseEvent, Level, StopOrder};
use belay_protocol::event::Event;
use belay_protocol::session::{OnSessionEnd, SessionHold, SessionState};

use super::{DOC_KIND, STANDING, Session, SessionDoc};
use crate::config::bounds;
use crate::host::Host;
use crate::input::ClientId;
use crate::runtime::{Core, Timer, Work};

const fn lease_of(state: SessionState) -> Lease {
    match state {
        SessionState::Open => Lease::Held,
        SessionState::Lapsed => Lease::Lapsed,
        SessionState::Ending => Lease::Ending,
        SessionState::Ended => Lease::Ended,
    }
}

const fn state_of(lease: Lease) -> SessionState {
    match lease {
        Lease::Held => SessionState::Open,
        Lease::Lapsed => SessionState::Lapsed,
        Lease::Ending => SessionState::Ending,
        Lease::Ended => SessionState::Ended,
    }
}

/// The actor that ends a session, and the reason.
#[derive(Clone, Debug)]
pub(super) struct Ending {
    pub(super) by: String,
    pub(super) reason: Option<String>,
}

impl<H: Host> Core<H> {
    // --- the journal ---

    pub(super) fn store_session(&mut self, id: &str) {
        let doc = self.sessions.get(id).map(|session| &session.doc);
        if let Some(body) = doc.and_then(|doc| serde_json::to_string(doc).ok()) {
            self.ctx.journal.put_doc(DOC_KIND, id, Some(body));
        }
    }

    /// Loads the sessions of an earlier daemon. Their holders may reconnect within the grace
    /// period; an end that was under way is completed once the tasks are adopted.
    pub(crate) fn load_sessions(&mut self, loaded: &mut Loaded) {
        self.sessions.insert(STANDING.to_owned(), Session::standing());
        for (id, body) in loaded.docs.remove(DOC_KIND).unwrap_or_default() {
            match serde_json::from_str::<SessionDoc>(&body) {
                Ok(doc) => self.sessions.insert(id, Session::new(doc)),
                Err(error) => self.ctx.notice(
                    format!("the record of session {id} cannot be read: {error}"),
                    "the session is not loaded; its record is kept",
                ),
            }
        }
        self.load_completions(loaded);
        self.load_session_levels(loaded);
    }

    /// Called once the tasks of the earlier daemon are adopted: resumes leases, and completes ends
    /// that were under way.
    pub(crate) fn resume_sessions(&mut self) {
        let ids: Vec<String> = self.sessions.all.keys().cloned().collect();
        for id in ids {
            self.record_session_level(&id);
            match self.sessions.get(&id).map(|session| (session.doc.state, session.doc.hold)) {
                // No client could renew the lease while there was no daemon, so it starts again in
                // full.
                Some((SessionState::Open, SessionHold::Lease)) => self.arm_lease(&id, LeaseEffect::ArmLease),
                Some((SessionState::Open, SessionHold::Connection)) => {
                    self.lease_event(&id, LeaseEvent::Lost, None);
                }
                Some((SessionState::Lapsed, _)) => self.arm_lease(&id, LeaseEffect::ArmGrace),
                Some((SessionState::Ending, _)) => {
                    self.stop_tasks_of_session(&id);
                    self.end_session_if_drained(&id);
                }
                Some((SessionState::Open, SessionHold::Nothing) | (SessionState::Ended, _)) | None => {}
            }
        }
    }

    // --- leases ---

    fn arm_lease(&mut self, id: &str, effect: LeaseEffect) {
        let Some(session) = self.sessions.get(id) else { return };
        let SessionDoc { hold, lease_ms, grace_ms, .. } = session.doc;
        let held = hold == SessionHold::Connection && !session.holders.is_empty();
        let old = session.due;
        self.ctx.cancel(old);
        let in_ms = match effect {
            LeaseEffect::ArmLease if held => None,
            LeaseEffect::ArmLease => Some(lease_ms),
            LeaseEffect::ArmGrace => Some(grace_ms),
            LeaseEffect::ApplyPolicy | LeaseEffect::Finish => None,
        };
        let due = in_ms.map(|ms| self.ctx.schedule(ms, Timer::Lease(id.to_owned())));
        self.sessions.update(id, |session| session.due = due);
    }

    /// The lease or the grace period of a session is over.
    pub(crate) fn lease_due(&mut self, id: &str) {
        let state = self.sessions.update(id, |session| {
            session.due = None;
            session.doc.state
        });
        let event = match state {
            Some(SessionState::Open) => LeaseEvent::Lost,
            Some(_) => LeaseEvent::GraceOver,
            None => return,
        };
        let ending = Ending { by: "lease".to_owned(), reason: Some("its lease was not renewed".to_owned()) };
        self.lease_event(id, event, Some(&ending));
    }

    /// Handles an event of a session's lease: records the change and acts on it.
    pub(super) fn lease_event(&mut self, id: &str, event: LeaseEvent, ending: Option<&Ending>) {
        match self.step_lease(id, event, ending) {
            Some(effect @ (LeaseEffect::ArmLease | LeaseEffect::ArmGrace)) => self.arm_lease(id, effect),
            Some(LeaseEffect::ApplyPolicy) => {
                self.arm_lease(id, LeaseEffect::ApplyPolicy);
                self.end_session_tree(id);
            }
            Some(LeaseEffect::Finish) => {
                self.serve_session_waiters(id);
                self.remove_old_sessions();
            }
            None => {}
        }
    }

    /// Applies an event to a lease and records the change. Returns the effect that follows.
    fn step_lease(&mut self, id: &str, event: LeaseEvent, ending: Option<&Ending>) -> Option<LeaseEffect> {
        let now_ms = self.ctx.now.wall_ms;
        self.sessions.get(id).filter(|session| session.doc.hold != SessionHold::Nothing)?;
        let (before, after, effect) = self.sessions.update(id, |session| {
            let before = session.doc.state;
            let (next, effect) = lease(lease_of(before), event);
            session.doc.state = state_of(next);
            if let (Lease::Ending, Some(ending)) = (next, ending.filter(|_| before.is_open())) {
                session.doc.ended_by = Some(ending.by.clone());
                session.doc.reason.clone_from(&ending.reason);
                session.doc.ended_ms = Some(now_ms);
            }
            (before, session.doc.state, effect)
        })?;
        if before != after {
            self.record_lease_change(id);
        }
        effect
    }

    fn record_lease_change(&mut self, id: &str) {
        let Some(Session { doc, .. }) = self.sessions.get(id) else { return };
        let (session, by, reason) = (id.to_owned(), doc.ended_by.clone(), doc.reason.clone());
        let event = match doc.state {
            SessionState::Open => Event::SessionRegained { session },
            SessionState::Lapsed => Event::SessionLapsed { session, grace_ms: doc.grace_ms },
            SessionState::Ending => Event::SessionEnding { session, by, reason, on_end: doc.on_end },
            SessionState::Ended => Event::SessionEnded { session, by, reason },
        };
        let state = doc.state.name();
        tracing::info!(session = id, state, by = doc.ended_by, reason = doc.reason, "session changed");
        let tags = doc.tags();
        let event = self.ctx.record(event, tags);
        self.sessions.update(id, |session| session.doc.last_event = event);
        self.store_session(id);
    }

    // --- the end of a session ---

    /// Ends a session and every session below it.
    fn end_session_tree(&mut self, id: &str) {
        let ending =
            Ending { by: format!("session:{id}"), reason: Some("the session above it ended".to_owned()) };
        let below = self.sessions.open_below(id);
        for inner in &below {
            self.step_lease(inner, LeaseEvent::Closed, Some(&ending));
            self.arm_lease(inner, LeaseEffect::ApplyPolicy);
            self.stop_tasks_of_session(inner);
        }
        self.stop_tasks_of_session(id);
        self.end_session_if_drained(id);
        for inner in below {
            self.end_session_if_drained(&inner);
        }
    }

    /// Stops the tasks that end with a session. After a crash the stop is ordered again; it takes
    /// effect only once.
    fn stop_tasks_of_session(&mut self, id: &str) {
        let tasks = self.tasks_ending_with(id);
        let Some(session) = self.sessions.get(id).filter(|_| !tasks.is_empty()) else { return };
        let why = session.doc.reason.clone().unwrap_or_else(|| "closed".to_owned());
        let order = StopOrder::new(
            Level::Terminate,
            format!("session:{id}"),
            Some(&format!("the session ended: {why}")),
        );
        self.do_in_slices(Work::Stop { tasks: tasks.into(), order, fence_for: None });
    }

    /// The live tasks that end with a session.
    pub(super) fn tasks_ending_with(&self, id: &str) -> Vec<String> {
        if self.sessions.get(id).is_none_or(|session| session.doc.on_end != OnSessionEnd::Stop) {
            return Vec::new();
        }
        let ending = self.tasks.of_session(id).filter(|task| task.stored().ends_with_session());
        ending.map(|task| task.id().to_owned()).collect()
    }

    /// Completes the end of a session once all tasks that end with it have ended.
    pub(super) fn end_session_if_drained(&mut self, id: &str) {
        let Some(session) = self.sessions.get(id) else { return };
        let is_drained = session.doc.on_end != OnSessionEnd::Stop || self.tasks.tally(id).bound == 0;
        if session.doc.state == SessionState::Ending && is_drained {
            self.lease_event(id, LeaseEvent::Emptied, None);
        }
    }

    /// A connection was closed: sessions without another holder lapse.
    pub(crate) fn session_holder_gone(&mut self, client: ClientId) {
        for id in self.sessions.drop_holder(client) {
            self.lease_event(&id, LeaseEvent::Lost, None);
        }
    }

    /// Removes an ended session if too many are kept. A session that a call waits for is not
    /// removed.
    fn remove_old_sessions(&mut self) {
        if self.sessions.ended.len() <= bounds::SESSIONS_ENDED {
            return;
        }
        let free = self.sessions.ended.iter().find(|ended| !self.requests.has_session_waiters(&ended.id));
        if let Some(id) = free.map(|ended| ended.id.clone()) {
            self.remove_completions(&id, |_| true);
            self.sessions.remove(&id);
            self.ctx.journal.put_doc(DOC_KIND, &id, None);
            self.forget_session_level(&id);
        }
    }
}
