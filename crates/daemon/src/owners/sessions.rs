//! Sessions: their holders, their leases, what happens to their tasks at their end, and whether
//! they are drained. The state machine of a lease is in the model.

mod completions;
mod handlers;
mod leases;
mod levels;
mod open_key;

pub(crate) use completions::CompletionsReply;
pub(crate) use handlers::DrainedReply;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use belay_protocol::Labels;
use belay_protocol::daemon::ClientInfo;
use belay_protocol::session::{OnSessionEnd, SessionHold, SessionState, UnfinishedTask};
use serde::{Deserialize, Serialize};

use crate::defaults::Defaults;
use crate::input::ClientId;
use crate::runtime::{Index, Table, TimerKey, tags_column};
use completions::Acknowledged;

/// The standing session of a person at the command line. It does not end.
pub(crate) const STANDING: &str = "user";

/// The kind of a session's document in the journal.
const DOC_KIND: &str = "session";

/// A session as it is stored in the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SessionDoc {
    number: u64,
    name: Option<String>,
    parent: Option<String>,
    /// The sessions and tasks above it, outermost first.
    lineage: Vec<String>,
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    labels: Labels,
    /// The actor that opened it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    opened_by: String,
    /// The program that opened it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    client: Option<ClientInfo>,
    hold: SessionHold,
    on_end: OnSessionEnd,
    lease_ms: u64,
    grace_ms: u64,
    defaults: belay_protocol::session::SessionDefaults,
    max_tasks: Option<u64>,
    /// A keyed hash of its token.
    proof: String,
    /// The key of the call that opened it, with the scope of its caller, and a hash of the parameters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    opened_with: Option<OpenKey>,
    opened_ms: i64,
    state: SessionState,
    ended_ms: Option<i64>,
    ended_by: Option<String>,
    reason: Option<String>,
    /// Tasks that did not end properly in it.
    left: Vec<UnfinishedTask>,
    /// The number of the last event about it.
    #[serde(default)]
    last_event: u64,
}

/// What makes two calls of `session/open` the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct OpenKey {
    key: String,
    fingerprint: String,
}

impl SessionDoc {
    /// What its events are found by in the journal.
    fn tags(&self) -> String {
        tags_column(&self.lineage, &self.labels)
    }
}

#[derive(Debug)]
pub(crate) struct Session {
    doc: SessionDoc,
    /// When its lease lapses, or its grace period is over.
    due: Option<TimerKey>,
    /// The connections that hold it.
    holders: BTreeSet<ClientId>,
    /// The level that was recorded last: some of its tasks work.
    busy: bool,
    /// Completions that its client has not acknowledged, by event number.
    completions: BTreeMap<u64, String>,
}

impl Session {
    const fn new(doc: SessionDoc) -> Self {
        Self { doc, due: None, holders: BTreeSet::new(), busy: false, completions: BTreeMap::new() }
    }

    fn standing() -> Self {
        Self::new(SessionDoc {
            number: 0,
            name: None,
            parent: None,
            lineage: Vec::new(),
            labels: Labels::new(),
            opened_by: String::new(),
            client: None,
            hold: SessionHold::Nothing,
            on_end: OnSessionEnd::Keep,
            lease_ms: 0,
            grace_ms: 0,
            defaults: belay_protocol::session::SessionDefaults::default(),
            max_tasks: None,
            proof: String::new(),
            opened_with: None,
            opened_ms: 0,
            state: SessionState::Open,
            ended_ms: None,
            ended_by: None,
            reason: None,
            left: Vec::new(),
            last_event: 0,
        })
    }

    pub(crate) fn lineage(&self) -> &[String] {
        &self.doc.lineage
    }

    pub(crate) const fn is_open(&self) -> bool {
        self.doc.state.is_open()
    }

    pub(crate) fn reason(&self) -> Option<&str> {
        self.doc.reason.as_deref()
    }

    pub(crate) const fn on_end(&self) -> OnSessionEnd {
        self.doc.on_end
    }

    pub(crate) const fn defaults(&self) -> &belay_protocol::session::SessionDefaults {
        &self.doc.defaults
    }

    pub(crate) const fn max_tasks(&self) -> Option<u64> {
        self.doc.max_tasks
    }

    pub(crate) fn has_proof(&self, proof: &str) -> bool {
        self.doc.proof == proof
    }

    fn is_ended(&self) -> bool {
        self.doc.state == SessionState::Ended
    }
}

/// The standing session, the open sessions, and the most recently ended sessions.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    all: Table<String, Session>,
    by_number: Table<u64, String>,
    by_name: Index<String, String>,
    by_holder: Index<ClientId, String>,
    /// Sessions by the key of the call that opened them.
    by_key: HashMap<String, String>,
    /// The sessions below each session or task.
    below: Index<String, String>,
    open: BTreeSet<String>,
    /// How many open sessions are below each session or task.
    open_below: HashMap<String, usize>,
    /// Sessions whose lease or grace period is running.
    running: BTreeSet<String>,
    /// Ended sessions in the order in which they are removed.
    ended: BTreeSet<RemovalOrder>,
    acknowledged: Acknowledged,
}

/// The order in which ended sessions are removed: outermost sessions last, then sessions with
/// completions, then the newest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct RemovalOrder {
    is_outermost: bool,
    has_completions: bool,
    number: u64,
    id: String,
}

impl RemovalOrder {
    fn of(id: &str, session: &Session) -> Self {
        Self {
            is_outermost: session.doc.lineage.is_empty(),
            has_completions: !session.completions.is_empty(),
            number: session.doc.number,
            id: id.to_owned(),
        }
    }
}

impl Sessions {
    pub(crate) fn get(&self, id: &str) -> Option<&Session> {
        self.all.get(id)
    }

    /// Whether a lease or a grace period is running. If so, the daemon does not exit when idle.
    pub(crate) fn has_running_lease(&self) -> bool {
        !self.running.is_empty()
    }

    /// The sessions that a text may refer to: by id, by the prefix of an id, or by the name of an
    /// open session.
    pub(crate) fn candidates(&self, text: &str) -> Vec<String> {
        let mut found: BTreeSet<String> = BTreeSet::new();
        if self.all.contains_key(text) {
            found.insert(text.to_owned());
        }
        if text.len() > 3 {
            let from = self.all.range(text.to_owned()..);
            found.extend(from.map(|(id, _)| id).take_while(|id| id.starts_with(text)).cloned());
        }
        found.extend(self.by_name.of(text).cloned());
        found.into_iter().collect()
    }

    /// The defaults of a session and of those above it, innermost first.
    pub(crate) fn defaults_of(&self, id: &str) -> Vec<Defaults> {
        let own = self.all.get(id);
        let above = own.into_iter().flat_map(|own| own.doc.lineage.iter().rev());
        let above = above.filter_map(|id| self.all.get(id));
        own.into_iter().chain(above).map(|session| Defaults::from(session.doc.defaults)).collect()
    }

    /// The open sessions below this session or task.
    fn open_below(&self, id: &str) -> Vec<String> {
        let below = self.below.of(id);
        below.filter(|id| self.open.contains(*id)).cloned().collect()
    }

    // --- changing ---

    fn insert(&mut self, id: String, session: Session) {
        self.by_number.insert(session.doc.number, id.clone());
        for above in &session.doc.lineage {
            self.below.add(above.clone(), id.clone());
        }
        if let Some(with) = &session.doc.opened_with {
            self.by_key.insert(with.key.clone(), id.clone());
        }
        let holders: Vec<ClientId> = session.holders.iter().copied().collect();
        self.all.insert(id.clone(), session);
        for client in holders {
            self.by_holder.add(client, id.clone());
        }
        self.index(&id);
    }

    fn remove(&mut self, id: &str) {
        self.unindex(id);
        let Some(session) = self.all.remove(id) else { return };
        self.by_number.remove(&session.doc.number);
        if let Some(with) = &session.doc.opened_with {
            self.by_key.remove(&with.key);
        }
        for above in &session.doc.lineage {
            self.below.remove(above, id);
        }
        for client in &session.holders {
            self.by_holder.remove(client, id);
        }
    }

    /// Changes a session and updates the indexes.
    fn update<R>(&mut self, id: &str, change: impl FnOnce(&mut Session) -> R) -> Option<R> {
        self.unindex(id);
        let result = self.all.get_mut(id).map(change);
        self.index(id);
        result
    }

    /// The level of a session was recorded. No index depends on it.
    fn set_level(&mut self, id: &str, busy: bool, event: u64) {
        if let Some(session) = self.all.get_mut(id) {
            session.busy = busy;
            session.doc.last_event = event;
        }
    }

    fn add_holder(&mut self, id: &str, client: ClientId) {
        if let Some(session) = self.all.get_mut(id) {
            session.holders.insert(client);
            self.by_holder.add(client, id.to_owned());
        }
    }

    /// Removes a closed connection from its sessions. Returns the sessions that have no holder
    /// left.
    fn drop_holder(&mut self, client: ClientId) -> Vec<String> {
        let held = self.by_holder.take(&client);
        let is_lost = |id: &String| {
            self.all.get_mut(id).is_some_and(|session| {
                session.holders.remove(&client)
                    && session.holders.is_empty()
                    && session.doc.hold == SessionHold::Connection
            })
        };
        held.into_iter().filter(is_lost).collect()
    }

    fn next_number(&self) -> u64 {
        self.by_number.keys().next_back().map_or(1, |last| last + 1)
    }

    fn index(&mut self, id: &str) {
        let Some(session) = self.all.get(id) else { return };
        if session.is_open() {
            if self.open.insert(id.to_owned()) {
                for above in &session.doc.lineage {
                    *self.open_below.entry(above.clone()).or_default() += 1;
                }
            }
            if let Some(name) = &session.doc.name {
                self.by_name.add(name.clone(), id.to_owned());
            }
        }
        if session.due.is_some() {
            self.running.insert(id.to_owned());
        }
        if session.is_ended() {
            self.ended.insert(RemovalOrder::of(id, session));
        }
    }

    fn unindex(&mut self, id: &str) {
        let Some(session) = self.all.get(id) else { return };
        if self.open.remove(id) {
            for above in &session.doc.lineage {
                if let Some(count) = self.open_below.get_mut(above) {
                    *count -= 1;
                    if *count == 0 {
                        self.open_below.remove(above);
                    }
                }
            }
        }
        if let Some(name) = &session.doc.name {
            self.by_name.remove(name, id);
        }
        self.running.remove(id);
        self.ended.remove(&RemovalOrder::of(id, session));
    }
}
