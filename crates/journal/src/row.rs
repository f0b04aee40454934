//! Rows, batches, filters and retention rules, and how rows map to columns.
//!
//! These are neither wire types nor model types: a body is opaque text.

use rusqlite::{Row, ToSql, types::ToSqlOutput};
use serde::{Deserialize, Serialize};

/// One task, as last put.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TaskRow {
    pub id: String,
    /// Start order: unique, assigned by the daemon from
    /// [`WriteBuffer::next_number`](crate::WriteBuffer::next_number), never changed.
    pub number: u64,
    /// The caller's idempotency token: unique among the tasks kept.
    pub token: Option<String>,
    pub session: String,
    pub parent: Option<String>,
    pub name: Option<String>,
    /// When the start was recorded. The task may have been queued after that.
    pub started_ms: i64,
    /// None while the task is live.
    pub ended_ms: Option<i64>,
    pub output_bytes: u64,
    pub body: String,
    /// What the task is found by, as `/tag/…/tag/`; empty if there is nothing. A tag is the id of something above the task,
    /// or a label; it contains no slash.
    pub tags: String,
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
    /// What the event is found by, as in [`TaskRow::tags`].
    pub tags: String,
}

/// One keyed document, for example a session or a lane. The journal does not interpret its body.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DocRow {
    pub kind: String,
    pub key: String,
    /// None removes the document.
    pub body: Option<String>,
}

/// Changes that are committed together or not at all.
///
/// Removals are applied first, so that a removed task's token is free for a task put in the same
/// batch. A task that is both put and removed is removed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Batch {
    pub put: Vec<TaskRow>,
    /// Numbered from [`WriteBuffer::last_event`](crate::WriteBuffer::last_event) + 1, in order.
    pub events: Vec<EventRow>,
    /// Task ids; unknown ids are ignored.
    pub removed: Vec<String>,
    /// Applied in order: the last row for a key counts.
    pub docs: Vec<DocRow>,
}

impl Batch {
    pub fn is_empty(&self) -> bool {
        self.put.is_empty() && self.events.is_empty() && self.removed.is_empty() && self.docs.is_empty()
    }

    /// The tasks that the batch leaves in the journal.
    pub(crate) fn kept_tasks(&self) -> impl Iterator<Item = &TaskRow> {
        self.put.iter().filter(|task| !self.removed.contains(&task.id))
    }
}

/// Which tasks to list. A field that is None or empty does not restrict.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TaskFilter {
    pub ended: Option<bool>,
    /// Only tasks that ended before this time.
    pub ended_before_ms: Option<i64>,
    /// Only tasks with a smaller number: the cursor of the next page.
    pub before: Option<u64>,
    pub limit: usize,
    pub session: Option<String>,
    pub parent: Option<String>,
    pub name: Option<String>,
    /// Only this task and the tasks below this id.
    pub scope: Option<String>,
    /// Only tasks that have all of these tags.
    pub tags: Vec<String>,
    /// Only tasks for which this is true. It runs on the reader's thread, for every row that the other fields select.
    pub predicate: Option<RowPredicate>,
    /// Stop after this many rows for the predicate: [`TaskPage::floor`] says how far the query came.
    pub max_examined: Option<usize>,
}

/// A condition that depends on what only the caller understands: the body of a row.
#[derive(Clone)]
pub struct RowPredicate(std::sync::Arc<dyn Fn(&TaskRow) -> bool + Send + Sync>);

impl RowPredicate {
    pub fn new(predicate: impl Fn(&TaskRow) -> bool + Send + Sync + 'static) -> Self {
        Self(std::sync::Arc::new(predicate))
    }

    fn holds(&self, task: &TaskRow) -> bool {
        (self.0)(task)
    }
}

impl std::fmt::Debug for RowPredicate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RowPredicate")
    }
}

/// Two predicates are equal if they are the same one.
impl PartialEq for RowPredicate {
    fn eq(&self, other: &Self) -> bool {
        std::sync::Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for RowPredicate {}

impl TaskFilter {
    pub(crate) fn matches(&self, task: &TaskRow) -> bool {
        let same = |wanted: &Option<String>, found: Option<&str>| {
            wanted.as_deref().is_none_or(|wanted| found == Some(wanted))
        };
        self.ended.is_none_or(|ended| ended == task.ended_ms.is_some())
            && self.before.is_none_or(|before| task.number < before)
            && same(&self.session, Some(&task.session))
            && same(&self.parent, task.parent.as_deref())
            && same(&self.name, task.name.as_deref())
            && self.ended_before_ms.is_none_or(|before| task.ended_ms.is_some_and(|ended| ended < before))
            && self.scope.as_deref().is_none_or(|scope| task_is_within(task, scope))
            && self.tags.iter().all(|tag| task.tags.contains(&tag_part(tag)))
            && self.satisfies_predicate(task)
    }

    /// The part of the filter that the database cannot check.
    pub(crate) fn satisfies_predicate(&self, task: &TaskRow) -> bool {
        self.predicate.as_ref().is_none_or(|predicate| predicate.holds(task))
    }
}

/// Which events to return. A field that is None does not restrict.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EventFilter {
    pub task: Option<String>,
    pub session: Option<String>,
    /// Event types such as `task.ended`, or all of a group as `task.*`. Empty: all types.
    pub types: Vec<String>,
    /// Only events of this task or session, or of a task below this id.
    pub scope: Option<String>,
    /// Only events that have all of these tags.
    pub tags: Vec<String>,
}

impl EventFilter {
    /// Whether an event is wanted.
    pub fn matches(&self, event: &EventRow) -> bool {
        let same = |wanted: &Option<String>, found: &Option<String>| wanted.is_none() || wanted == found;
        let is_type = |pattern: &String| match pattern.strip_suffix('*') {
            Some(prefix) => event.kind.starts_with(prefix),
            None => event.kind == *pattern,
        };
        same(&self.task, &event.task)
            && same(&self.session, &event.session)
            && (self.types.is_empty() || self.types.iter().any(is_type))
            && self.scope.as_deref().is_none_or(|scope| event_is_within(event, scope))
            && self.tags.iter().all(|tag| event.tags.contains(&tag_part(tag)))
    }
}

pub(crate) fn task_is_within(task: &TaskRow, scope: &str) -> bool {
    task.id == scope || task.tags.contains(&tag_part(scope))
}

fn event_is_within(event: &EventRow, scope: &str) -> bool {
    event.task.as_deref() == Some(scope)
        || event.session.as_deref() == Some(scope)
        || event.tags.contains(&tag_part(scope))
}

/// How a tag appears in the column.
pub(crate) fn tag_part(id: &str) -> String {
    format!("/{id}/")
}

/// One page of a list of tasks, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TaskPage {
    pub tasks: Vec<TaskRow>,
    /// Every matching task with this number or a higher one is in the page; lower ones were not examined. None: there is
    /// nothing below the page.
    pub floor: Option<u64>,
}

/// A range of events, with the bounds of what is kept.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EventPage {
    pub events: Vec<EventRow>,
    /// The last event number that was examined, matching or not: the next query asks for `after =
    /// next`.
    pub next: u64,
    /// The oldest number still kept, or `last + 1` if none is. A client whose cursor is below
    /// `first - 1` has missed events.
    pub first: u64,
    /// The newest number ever assigned; 0 before the first.
    pub last: u64,
}

/// Which events are kept: those among the newest `max_count` that are also no older than
/// `max_age_ms`.
///
/// Only the oldest events are removed, so that the kept numbers have no gap: an old event behind a
/// younger one (the clock was set back) is kept as long as the younger one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventRule {
    pub now_ms: i64,
    pub max_age_ms: Option<u64>,
    pub max_count: Option<u64>,
    /// At most this many events are removed in one call.
    pub limit: usize,
}

/// How many events a call removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Expired {
    /// Fewer than the rule's limit: no expired event is left.
    pub removed: u64,
    /// The oldest number still kept, or the last number + 1 if none is.
    pub first_event: u64,
}

/// Which ended tasks are kept: the most recently ended, up to each of these bounds. Live tasks are
/// always kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskRule {
    pub now_ms: i64,
    pub max_age_ms: Option<u64>,
    pub max_count: Option<u64>,
    pub max_output_bytes: Option<u64>,
    /// At most this many tasks are returned by one query.
    pub limit: usize,
    /// The number of ended tasks when the read begins, as the caller counts them.
    pub count: u64,
    /// The total of their output bytes.
    pub bytes: u64,
    /// Only tasks that come after this one in the order of their ends: when it ended, and its number.
    pub after: Option<(i64, u64)>,
}

/// An ended task that a [`TaskRule`] no longer keeps.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExpiredTask {
    pub id: String,
    pub number: u64,
    pub session: String,
    pub tags: String,
    pub output_bytes: u64,
    pub ended_ms: i64,
}

impl ExpiredTask {
    /// The retention view of a task; None while it is live.
    pub(crate) fn of(task: &TaskRow) -> Option<Self> {
        Some(Self {
            id: task.id.clone(),
            number: task.number,
            session: task.session.clone(),
            tags: task.tags.clone(),
            output_bytes: task.output_bytes,
            ended_ms: task.ended_ms?,
        })
    }

    /// The order of retention: the longest ended first.
    pub(crate) const fn order(&self) -> (i64, u64) {
        (self.ended_ms, self.number)
    }
}

pub(crate) fn is_older(at_ms: i64, now_ms: i64, max_age_ms: Option<u64>) -> bool {
    max_age_ms.is_some_and(|max| now_ms.saturating_sub(at_ms) > clamped(max))
}

/// The columns of [`task`], in its order.
pub(crate) const TASK_COLUMNS: &str =
    "number, id, token, session, parent, name, started_ms, ended_ms, output_bytes, body, tags";

/// The columns of [`event`], in its order.
pub(crate) const EVENT_COLUMNS: &str = "seq, at_ms, kind, task, session, body, tags";

/// The columns of [`doc`], in its order.
pub(crate) const DOC_COLUMNS: &str = "kind, key, body";

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
        tags: row.get(10)?,
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
        tags: row.get(6)?,
    })
}

pub(crate) fn doc(row: &Row<'_>) -> rusqlite::Result<DocRow> {
    Ok(DocRow { kind: row.get(0)?, key: row.get(1)?, body: row.get(2)? })
}

pub(crate) fn unsigned(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    let value: i64 = row.get(column)?;
    u64::try_from(value).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(column, value))
}

/// A number to be stored in a column. `SQLite` integers are signed, so the upper half is refused,
/// not wrapped.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unsigned(pub(crate) u64);

impl ToSql for Unsigned {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        let value =
            i64::try_from(self.0).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
        Ok(ToSqlOutput::from(value))
    }
}

/// A count used in a comparison or a `LIMIT`: a value that does not fit means "no bound", as the
/// largest integer does.
pub(crate) fn clamped<N: TryInto<i64>>(value: N) -> i64 {
    value.try_into().unwrap_or(i64::MAX)
}
