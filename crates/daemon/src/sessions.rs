//! Sessions as the daemon keeps them: who holds which, what is due when, what their end does to their tasks, and whether anything
//! in them still works. How a lease goes is the model's; answering clients is in `handlers/session.rs`.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use belay_journal::DocRow;
use belay_model::session::lease;
use belay_model::{Lease, LeaseEffect, LeaseEvent, Level, StopOrder};
use belay_protocol::Timestamp;
use belay_protocol::event::Event;
use belay_protocol::session::{
    Defaults, Hold, Leftover, LeftoverStatus, OnEnd, SessionCounts, SessionInfo, SessionState, WaitResult,
};
use belay_protocol::task::{Status, TaskKind};
use serde::{Deserialize, Serialize};

use crate::config::bounds;
use crate::core::{Core, Task, Timer, TimerKey};
use crate::doc::Entry;
use crate::event::ClientId;
use crate::world::World;

/// The standing session of a person at the command line. It does not end.
pub(crate) const STANDING: &str = "user";

/// The kind of a session's document in the journal.
const SESSION: &str = "session";

/// A session as it stands in the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SessionDoc {
    pub number: u64,
    pub name: Option<String>,
    pub parent: Option<String>,
    /// Everything above it, from the outermost in.
    pub lineage: Vec<String>,
    pub hold: Hold,
    pub on_end: OnEnd,
    pub lease_ms: u64,
    pub grace_ms: u64,
    pub defaults: Defaults,
    pub max_tasks: Option<u64>,
    /// Of its token: a keyed hash.
    pub proof: String,
    pub opened_ms: i64,
    pub state: SessionState,
    pub ended_ms: Option<i64>,
    pub ended_by: Option<String>,
    pub reason: Option<String>,
    /// What did not come to a proper end in it.
    pub left: Vec<Leftover>,
}

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) doc: SessionDoc,
    /// When its lease is lost, or its grace is over.
    pub(crate) due: Option<TimerKey>,
    /// The connections that hold it.
    pub(crate) holders: BTreeSet<ClientId>,
    /// Ends that its client has not been told of, by the number of their event.
    pub(crate) notices: BTreeMap<u64, String>,
    /// Who waits for it to be drained, or for a notice.
    pub(crate) pending: Vec<u64>,
}

impl Session {
    pub(crate) const fn new(doc: SessionDoc) -> Self {
        Self { doc, due: None, holders: BTreeSet::new(), notices: BTreeMap::new(), pending: Vec::new() }
    }

    fn standing() -> Self {
        Self::new(SessionDoc {
            number: 0,
            name: None,
            parent: None,
            lineage: Vec::new(),
            hold: Hold::Nothing,
            on_end: OnEnd::Keep,
            lease_ms: 0,
            grace_ms: 0,
            defaults: Defaults::default(),
            max_tasks: None,
            proof: String::new(),
            opened_ms: 0,
            state: SessionState::Open,
            ended_ms: None,
            ended_by: None,
            reason: None,
            left: Vec::new(),
        })
    }
}

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

/// Who ends a session, and why.
#[derive(Clone, Debug)]
pub(crate) struct Ending {
    pub(crate) by: String,
    pub(crate) reason: Option<String>,
}

impl<W: World> Core<W> {
    // --- the record ---

    pub(crate) fn put_doc(&mut self, kind: &str, key: &str, body: Option<String>) {
        self.batch.docs.push(DocRow { kind: kind.to_owned(), key: key.to_owned(), body });
    }

    pub(crate) fn put_session(&mut self, id: &str) {
        let body = self.sessions.get(id).and_then(|session| serde_json::to_string(&session.doc).ok());
        if let Some(body) = body {
            self.put_doc(SESSION, id, Some(body));
        }
    }

    /// Reads the sessions of an earlier daemon. Whoever held one may come back to it within its grace; what an end had to bring
    /// about and did not is brought about when the tasks are known.
    pub(crate) fn load_sessions(&mut self) -> Result<(), belay_journal::Error> {
        self.sessions.insert(STANDING.to_owned(), Session::standing());
        for (id, body) in self.journal.docs(SESSION)? {
            match serde_json::from_str(&body) {
                Ok(doc) => drop(self.sessions.insert(id, Session::new(doc))),
                Err(error) => {
                    self.notice(
                        format!("the record of session {id} cannot be read: {error}"),
                        "it is left as it is",
                    );
                }
            }
        }
        self.load_notices()
    }

    /// The tasks of the predecessor are known: leases go on, and ends that were under way are carried out.
    pub(crate) fn resume_sessions(&mut self) {
        let ids: Vec<String> = self.sessions.keys().cloned().collect();
        for id in ids {
            match self.sessions.get(&id).map(|session| (session.doc.state, session.doc.hold)) {
                // Nobody could renew it while there was no daemon: what was promised counts from now.
                Some((SessionState::Open, Hold::Lease)) => self.arm_session(&id, LeaseEffect::ArmLease),
                Some((SessionState::Open, Hold::Connection)) => self.lease_event(&id, LeaseEvent::Lost, None),
                Some((SessionState::Lapsed, _)) => self.arm_session(&id, LeaseEffect::ArmGrace),
                Some((SessionState::Ending, _)) => {
                    self.stop_tasks_of(&id);
                    self.session_may_be_over(&id);
                }
                Some((SessionState::Open, Hold::Nothing) | (SessionState::Ended, _)) | None => {}
            }
        }
    }

    // --- leases ---

    fn arm_session(&mut self, id: &str, effect: LeaseEffect) {
        let Some(session) = self.sessions.get(id) else { return };
        let SessionDoc { hold, lease_ms, grace_ms, .. } = session.doc;
        let (old, number) = (session.due, session.doc.number);
        let held = hold == Hold::Connection && !session.holders.is_empty();
        if let Some(key) = old {
            self.disarm(key);
        }
        let in_ms = match effect {
            LeaseEffect::ArmLease if held => None,
            LeaseEffect::ArmLease => Some(lease_ms),
            LeaseEffect::ArmGrace => Some(grace_ms),
            LeaseEffect::ApplyPolicy | LeaseEffect::Finish => None,
        };
        let due = in_ms.map(|ms| self.arm(ms, Timer::Lease(number)));
        if let Some(session) = self.sessions.get_mut(id) {
            session.due = due;
        }
    }

    /// The lease or the grace of the session with this number is over.
    pub(crate) fn lease_is_due(&mut self, number: u64) {
        let found = self.sessions.iter_mut().find(|(_, session)| session.doc.number == number);
        let Some((id, session)) = found else { return };
        session.due = None;
        let id = id.clone();
        let event = match session.doc.state {
            SessionState::Open => LeaseEvent::Lost,
            _ => LeaseEvent::GraceOver,
        };
        let ending = Ending { by: "lease".to_owned(), reason: Some("its lease was not renewed".to_owned()) };
        self.lease_event(&id, event, Some(&ending));
    }

    /// One thing happens to a session's lease: what is different now is recorded, told, and done.
    pub(crate) fn lease_event(&mut self, id: &str, event: LeaseEvent, ending: Option<&Ending>) {
        match self.lease_step(id, event, ending) {
            Some(effect @ (LeaseEffect::ArmLease | LeaseEffect::ArmGrace)) => self.arm_session(id, effect),
            Some(LeaseEffect::ApplyPolicy) => {
                self.arm_session(id, LeaseEffect::ApplyPolicy);
                self.end_all(id);
            }
            Some(LeaseEffect::Finish) => {
                self.serve_session(id);
                self.forget_old_sessions();
            }
            None => {}
        }
    }

    /// Records and tells what is different; what has to be done about it is the answer.
    fn lease_step(&mut self, id: &str, event: LeaseEvent, ending: Option<&Ending>) -> Option<LeaseEffect> {
        let session = self.sessions.get_mut(id).filter(|session| session.doc.hold != Hold::Nothing)?;
        let before = session.doc.state;
        let (next, effect) = lease(lease_of(before), event);
        session.doc.state = state_of(next);
        if let (Lease::Ending, Some(ending)) = (next, ending.filter(|_| before.is_open())) {
            session.doc.ended_by = Some(ending.by.clone());
            session.doc.reason.clone_from(&ending.reason);
            session.doc.ended_ms = Some(self.now.wall_ms);
        }
        let (by, reason) = (&session.doc.ended_by, &session.doc.reason);
        if before != session.doc.state {
            let (by, reason, doc) = (by.clone(), reason.clone(), &session.doc);
            let session = id.to_owned();
            let event = match doc.state {
                SessionState::Open => Event::SessionRegained { session },
                SessionState::Lapsed => Event::SessionLapsed { session, grace_ms: doc.grace_ms },
                SessionState::Ending => Event::SessionEnding { session, by, reason, on_end: doc.on_end },
                SessionState::Ended => Event::SessionEnded { session, by, reason },
            };
            self.put_session(id);
            self.emit(&event);
        }
        effect
    }

    /// A session has ended, and with it all that were opened inside of it: one look at the sessions, and one at the tasks.
    fn end_all(&mut self, id: &str) {
        let ending =
            Ending { by: format!("session:{id}"), reason: Some("the session above it ended".to_owned()) };
        let is_below = |session: &Session| {
            session.doc.state.is_open() && session.doc.lineage.iter().any(|above| above == id)
        };
        let below: Vec<String> =
            self.sessions.iter().filter(|(_, session)| is_below(session)).map(|(id, _)| id.clone()).collect();
        for inner in &below {
            self.lease_step(inner, LeaseEvent::Closed, Some(&ending));
            self.arm_session(inner, LeaseEffect::ApplyPolicy);
            if !self.tasks.is_empty() {
                self.stop_tasks_of(inner);
            }
        }
        self.stop_tasks_of(id);
        self.session_may_be_over(id);
        let busy = self.busy_sessions();
        for inner in below {
            let keeps = self.sessions.get(&inner).is_some_and(|inner| inner.doc.on_end == OnEnd::Keep);
            if keeps || !busy.contains(&inner) {
                self.lease_event(&inner, LeaseEvent::Emptied, None);
            }
        }
    }

    /// The sessions that have tasks which end with them.
    fn busy_sessions(&self) -> BTreeSet<String> {
        let bound = self.tasks.values().filter(|task| is_bound(&task.entry));
        bound.flat_map(|task| self.sessions_of(&task.entry)).collect()
    }

    /// What the end of a session means for its tasks, by its policy. Said again after a crash, and heard once.
    fn stop_tasks_of(&mut self, id: &str) {
        let Some(session) = self.sessions.get(id) else { return };
        let why = session.doc.reason.clone().unwrap_or_else(|| "closed".to_owned());
        let order = StopOrder::new(
            Level::Terminate,
            format!("session:{id}"),
            Some(&format!("the session ended: {why}")),
        );
        for task in self.bound_tasks(id) {
            self.order_stop(&task, order.clone());
        }
    }

    /// The live tasks that end with a session.
    pub(crate) fn bound_tasks(&self, id: &str) -> Vec<String> {
        if self.sessions.get(id).is_none_or(|session| session.doc.on_end != OnEnd::Stop) {
            return Vec::new();
        }
        let ends = |task: &&Task| is_bound(&task.entry) && is_in(id, &task.entry);
        self.tasks.values().filter(ends).map(|task| task.entry.id.clone()).collect()
    }

    pub(crate) fn session_may_be_over(&mut self, id: &str) {
        let is_ending =
            self.sessions.get(id).is_some_and(|session| session.doc.state == SessionState::Ending);
        if is_ending && self.bound_tasks(id).is_empty() {
            self.lease_event(id, LeaseEvent::Emptied, None);
        }
    }

    /// A connection has ended: sessions that it alone held lapse.
    pub(crate) fn holder_gone(&mut self, client: ClientId) {
        let lost = |session: &mut Session| {
            session.holders.remove(&client)
                && session.holders.is_empty()
                && session.doc.hold == Hold::Connection
        };
        let lost: Vec<String> =
            self.sessions.iter_mut().filter_map(|(id, session)| lost(session).then(|| id.clone())).collect();
        for id in lost {
            self.lease_event(&id, LeaseEvent::Lost, None);
        }
    }

    /// Ended sessions are kept while there is room. Those that were opened inside of others go first, then those that have nothing
    /// to tell, then the oldest; never one that somebody asks about.
    fn forget_old_sessions(&mut self) {
        let is_ended = |session: &Session| session.doc.state == SessionState::Ended;
        let ended = self.sessions.values().filter(|session| is_ended(session)).count();
        if ended <= bounds::SESSIONS_ENDED {
            return;
        }
        let worth = |session: &Session| {
            (session.doc.lineage.is_empty(), !session.notices.is_empty(), session.doc.number)
        };
        let free =
            self.sessions.iter().filter(|(_, session)| is_ended(session) && session.pending.is_empty());
        let least = free.min_by_key(|(_, session)| worth(session)).map(|(id, _)| id.clone());
        if let Some(id) = least {
            self.forget_notices(&id, |_, _| true);
            self.sessions.remove(&id);
            self.put_doc(SESSION, &id, None);
        }
    }

    // --- looking ---

    /// The live tasks of every session, counted in one go.
    pub(crate) fn count_sessions(&self) -> HashMap<&str, SessionCounts> {
        let mut counts: HashMap<&str, SessionCounts> = HashMap::new();
        for task in self.tasks.values() {
            let mut count = |session| count_task(counts.entry(session).or_default(), task);
            if !task.entry.doc.lineage.contains(&task.entry.session) {
                count(task.entry.session.as_str());
            }
            for above in &task.entry.doc.lineage {
                if self.sessions.contains_key(above) {
                    count(above.as_str());
                }
            }
        }
        counts
    }

    pub(crate) fn session_info(&self, id: &str, counts: SessionCounts) -> Option<SessionInfo> {
        let session = self.sessions.get(id)?;
        let doc = &session.doc;
        Some(SessionInfo {
            id: id.to_owned(),
            name: doc.name.clone(),
            state: doc.state,
            parent: doc.parent.clone(),
            hold: doc.hold,
            on_end: doc.on_end,
            lease_ms: doc.lease_ms,
            grace_ms: doc.grace_ms,
            due_in_ms: session.due.map(|(at, _)| at.saturating_sub(self.now.mono_ms)),
            defaults: doc.defaults,
            max_tasks: doc.max_tasks,
            opened_at: Timestamp(if id == STANDING { self.started.wall_ms } else { doc.opened_ms }),
            ended_at: doc.ended_ms.map(Timestamp),
            ended_by: doc.ended_by.clone(),
            reason: doc.reason.clone(),
            drained: is_drained(counts),
            counts,
            notices: session.notices.len() as u64,
        })
    }

    pub(crate) fn session_now(&self, id: &str) -> Option<SessionInfo> {
        let mut counts = SessionCounts::default();
        for task in self.tasks.values().filter(|task| is_in(id, &task.entry)) {
            count_task(&mut counts, task);
        }
        self.session_info(id, counts)
    }

    /// How a wait for a session to be drained is answered.
    pub(crate) fn drained(&self, id: &str) -> Option<WaitResult> {
        let info = self.session_now(id)?;
        let mut left = self.sessions.get(id)?.doc.left.clone();
        let live = self.tasks.values().filter(|task| is_in(id, &task.entry));
        left.extend(live.filter_map(|task| {
            let stalled = task.entry.doc.stalled.as_ref()?;
            let why = format!("nothing has come of it since {}", stalled.since);
            Some(Leftover { id: task.entry.id.clone(), status: LeftoverStatus::Stalled, why })
        }));
        Some(WaitResult { drained: info.drained, session: info, left })
    }
}

/// Whether a task ends with its session. What was to be run when a task has ended, is run.
fn is_bound(entry: &Entry) -> bool {
    !entry.doc.keep && entry.doc.hook.is_none()
}

/// Whether a task is in a session or below it.
pub(crate) fn is_in(session: &str, entry: &Entry) -> bool {
    entry.session == session || entry.doc.lineage.iter().any(|above| above == session)
}

/// A stalled task works no more than a dead one.
const fn is_drained(counts: SessionCounts) -> bool {
    counts.agents + counts.shells == counts.stalled
}

fn count_task(counts: &mut SessionCounts, task: &Task) {
    match task.entry.doc.kind {
        TaskKind::Shell => counts.shells += 1,
        TaskKind::Agent => counts.agents += 1,
    }
    match (task.entry.doc.status, task.state.detached()) {
        (Status::Queued, _) => counts.queued += 1,
        (_, true) => counts.detached += 1,
        (_, false) => counts.foreground += 1,
    }
    counts.stalled += u64::from(task.entry.doc.stalled.is_some());
}
