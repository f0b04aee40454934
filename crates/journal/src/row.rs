//! What goes into the record and what comes out: plain values, and how they sit in columns.
//!
//! Not wire types and not model types: bodies are opaque text.

use rusqlite::{Row, ToSql, types::ToSqlOutput};
use serde::{Deserialize, Serialize};

/// One task, as last put.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TaskRow {
    pub id: String,
    /// Start order: unique, given by the daemon from [`Journal::next_number`](crate::Journal::next_number), never changed.
    pub number: u64,
    /// The caller's idempotency token: unique among the tasks kept.
    pub token: Option<String>,
    pub session: String,
    pub parent: Option<String>,
    pub name: Option<String>,
    /// When it was recorded: its start was asked for then, and may have had to wait.
    pub started_ms: i64,
    /// None while the task lives.
    pub ended_ms: Option<i64>,
    pub output_bytes: u64,
    pub body: String,
}

/// One event. Never changed once written.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct EventRow {
    pub seq: u64,
    pub at_ms: i64,
    pub kind: String,
    pub task: Option<String>,
    pub session: Option<String>,
    pub body: String,
}

/// One keyed document: a session, a lane, a wish. The record knows its kind and its key, and nothing of what it says.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DocRow {
    pub kind: String,
    pub key: String,
    /// None takes the document away.
    pub body: Option<String>,
}

/// What is written together or not at all.
///
/// Removals come first, so that a removed task's token is free for a task put in the same batch; a task that is both
/// put and removed is removed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Batch {
    pub put: Vec<TaskRow>,
    /// Numbered from [`Journal::last_event`](crate::Journal::last_event) + 1, in order.
    pub events: Vec<EventRow>,
    /// Ids; those not in the record are passed over.
    pub removed: Vec<String>,
    /// In order: the last word on a key counts.
    pub docs: Vec<DocRow>,
}

impl Batch {
    pub fn is_empty(&self) -> bool {
        self.put.is_empty() && self.events.is_empty() && self.removed.is_empty() && self.docs.is_empty()
    }
}

/// Which tasks to list. What is None does not restrict.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TaskFilter {
    pub ended: Option<bool>,
    /// Only tasks with a smaller number: the cursor for the next page.
    pub before: Option<u64>,
    pub limit: usize,
    pub session: Option<String>,
    pub parent: Option<String>,
    pub name: Option<String>,
    /// Only tasks with these words in their body. Every body is looked through for them.
    pub mentions: Option<String>,
}

impl TaskFilter {
    pub(crate) fn lets_through(&self, task: &TaskRow) -> bool {
        let same = |wanted: &Option<String>, found: Option<&str>| {
            wanted.as_deref().is_none_or(|wanted| found == Some(wanted))
        };
        self.ended.is_none_or(|ended| ended == task.ended_ms.is_some())
            && self.before.is_none_or(|before| task.number < before)
            && same(&self.session, Some(&task.session))
            && same(&self.parent, task.parent.as_deref())
            && same(&self.name, task.name.as_deref())
            && self.mentions.as_deref().is_none_or(|words| task.body.contains(words))
    }
}

/// A stretch of events, with the ends of what is kept.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EventPage {
    pub events: Vec<EventRow>,
    /// The oldest number still kept, or `last + 1` if none is. A reader whose cursor is below `first - 1` has missed some.
    pub first: u64,
    /// The newest number ever given; 0 before the first.
    pub last: u64,
}

/// How much the record holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    pub live: u64,
    pub ended: u64,
    /// Total of the ended tasks.
    pub output_bytes: u64,
    pub events: u64,
    /// As in [`EventPage::first`].
    pub first_event: u64,
    pub last_event: u64,
}

/// Which events may stay: those among the newest `max_count` that are also no older than `max_age_ms`.
///
/// Only ever the oldest go, so that what is kept has no hole: an old event behind a younger one (a clock set back)
/// waits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventRule {
    pub now_ms: i64,
    pub max_age_ms: Option<u64>,
    pub max_count: Option<u64>,
    /// At most so many are removed in one call.
    pub limit: usize,
}

/// Which ended tasks may stay: the most recently ended, up to each of these bounds. Live tasks always stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskRule {
    pub now_ms: i64,
    pub max_age_ms: Option<u64>,
    pub max_count: Option<u64>,
    pub max_output_bytes: Option<u64>,
    /// At most so many are named in one call.
    pub limit: usize,
}

/// The columns of [`task`], in its order.
pub(crate) const TASK_COLUMNS: &str =
    "number, id, token, session, parent, name, started_ms, ended_ms, output_bytes, body";

/// The columns of [`event`], in its order.
pub(crate) const EVENT_COLUMNS: &str = "seq, at_ms, kind, task, session, body";

pub(crate) fn task(row: &Row<'_>) -> rusqlite::Result<TaskRow> {
    Ok(TaskRow {
        number: unsigned(row, 0)?,
        id: row.get(1)?,
        token: row.get(2)?,
        session: row.get(3)?,
        parent: row.get(4)?,
        name: row.get(5)?,
        started_ms: row.get(6)?,
        ended_ms: row.get(7)?,
        output_bytes: unsigned(row, 8)?,
        body: row.get(9)?,
    })
}

pub(crate) fn event(row: &Row<'_>) -> rusqlite::Result<EventRow> {
    Ok(EventRow {
        seq: unsigned(row, 0)?,
        at_ms: row.get(1)?,
        kind: row.get(2)?,
        task: row.get(3)?,
        session: row.get(4)?,
        body: row.get(5)?,
    })
}

pub(crate) fn unsigned(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    let value: i64 = row.get(column)?;
    u64::try_from(value).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(column, value))
}

/// A number on its way into a column; `SQLite` integers are signed, so the upper half is refused, not wrapped.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unsigned(pub(crate) u64);

impl ToSql for Unsigned {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        let value =
            i64::try_from(self.0).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
        Ok(ToSqlOutput::from(value))
    }
}

/// A count on its way into a comparison or a `LIMIT`: what does not fit means "no bound", which the largest integer says.
pub(crate) fn clamped<N: TryInto<i64>>(value: N) -> i64 {
    value.try_into().unwrap_or(i64::MAX)
}
