//! Queries, what the reader found in its snapshot, and the merged result.
//!
//! The SQL is in `reader`, the merging in `merge`.

use crate::row::{EventFilter, EventPage, EventRow, ExpiredTask, TaskFilter, TaskPage, TaskRow, TaskRule};

/// How many rows a query reads beyond its limit, because batches that its snapshot lacks may remove
/// some of them. If they remove more, the merged page is shorter than its limit although more rows
/// exist.
pub(crate) const MARGIN: usize = 256;

/// How many events one query examines at most, so that it never takes long.
pub(crate) const MAX_EXAMINED_EVENTS: usize = 10_000;

/// How many bytes of bodies one list or page of events reads, and the row beyond them: rows can be long.
pub(crate) const MAX_BYTES: usize = 2 * 1024 * 1024;

/// What can be asked of the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Query {
    /// Tasks by exact id, in the order of the ids; missing tasks are left out.
    Tasks(Vec<String>),
    /// Ids that begin with `prefix`, in order, of tasks within `scope`. No character of the prefix
    /// has a special meaning.
    Prefix { prefix: String, scope: Option<String>, limit: usize },
    /// Tasks that match the filter, newest first.
    List(TaskFilter),
    /// Up to `max` matching events with a number above `after`, in order. One query examines at
    /// most 10,000 events: [`EventPage::next`] says how far it came.
    Events { after: u64, max: usize, filter: EventFilter },
    /// The ended tasks that the rule no longer keeps, the longest ended first; never a live one.
    /// They stay in the journal until a batch removes them. If batches are appended while the query
    /// runs, it may return fewer tasks than expire, never more. (That assumes that an ended task
    /// keeps its end and its size.)
    Expired(TaskRule),
}

/// What a query returned, merged with the batches that its snapshot lacked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rows {
    Tasks(Vec<TaskRow>),
    List(TaskPage),
    Ids(Vec<String>),
    Events(EventPage),
    Expired(Vec<ExpiredTask>),
}

/// What the reader found in one snapshot of the database:
/// [`WriteBuffer::end_read`](crate::WriteBuffer::end_read) turns it into [`Rows`].
#[derive(Debug)]
pub struct Found {
    pub(crate) query: Query,
    pub(crate) snapshot: u64,
    pub(crate) rows: FoundRows,
}

impl Found {
    /// The number of the last batch that the snapshot contains.
    pub const fn snapshot(&self) -> u64 {
        self.snapshot
    }
}

/// Rows of the snapshot. `cut`: the limit and the margin were reached, so more rows may follow the
/// last one.
#[derive(Debug)]
pub(crate) enum FoundRows {
    Tasks(Vec<TaskRow>),
    Ids {
        ids: Vec<String>,
        cut: bool,
    },
    /// `floor`: tasks with a lower number were not examined.
    List {
        tasks: Vec<TaskRow>,
        floor: Option<u64>,
    },
    Events(FoundEvents),
    Expired {
        tasks: Vec<ExpiredTask>,
        cut: bool,
    },
}

#[derive(Debug)]
pub(crate) struct FoundEvents {
    pub(crate) events: Vec<EventRow>,
    pub(crate) next: u64,
    /// The oldest event number that the snapshot keeps.
    pub(crate) first: u64,
    /// Whether `next` is the last event of the snapshot.
    pub(crate) is_end: bool,
}
