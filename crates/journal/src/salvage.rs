//! Copying what can still be read of a damaged database into a new one.
//!
//! First through the database, row by row around the unreadable pages; then, if there were any,
//! directly from the pages. It works on a copy, because reading a database with a log writes to it.

use std::collections::HashSet;
use std::fmt;
use std::path::Path;

use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::apply::{self, Refused};
use crate::open::beside;
use crate::pages::{self, Found};
use crate::row::{self, DOC_COLUMNS, DocRow, EVENT_COLUMNS, EventRow, TASK_COLUMNS, TaskRow, Unsigned};
use crate::tree::Table;
use crate::{meta, schema, wal};

/// The kind of an event that stands for one that was lost, or may have been lost, by damage. Its
/// body is `{}`.
pub const LOST_KIND: &str = "lost";

/// A wider gap in the numbers is not filled; the events before it are left out.
const MAX_GAP: u64 = 50_000;
/// A number above this is garbage, and could not be represented in JSON either.
const MAX_NUMBER: u64 = 1 << 53;
/// The single values that are numbers.
const NUMBERS: [&str; 5] =
    [meta::EVENT_LAST, meta::EVENT_MARK, meta::NUMBER_LAST, meta::BATCH_LAST, meta::JOURNAL];
/// What the buffer files say about the journal that the damaged database belonged to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FromBuffer {
    /// The journal's number; 0 if no file says it.
    pub(crate) journal: u64,
    /// The newest event number; 0 if no file says it.
    pub(crate) last_event: u64,
}

/// How many rows were kept and lost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    tasks: u64,
    events: u64,
    lost_tasks: u64,
    lost_events: u64,
    left_out: u64,
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tasks, events, lost_tasks, lost_events, left_out } = self;
        write!(f, "kept {tasks} tasks and {events} events, ")?;
        write!(f, "lost at least {lost_tasks} tasks and at most {lost_events} events")?;
        if *left_out > 0 {
            write!(f, ", left {left_out} events behind in the damaged file")?;
        }
        Ok(())
    }
}

/// Copies from the damaged database at `copy` (which may be absent or have any content) into `new`.
pub(crate) fn salvage(copy: &Path, new: &mut Connection, buffer: FromBuffer) -> rusqlite::Result<Kept> {
    let log = beside(copy, "-wal");
    let log_broken = wal::fault(&log).map_or(true, |fault| fault.is_some());
    let log_bytes = std::fs::metadata(&log).map_or(0, |file| file.len());
    let step = new.transaction()?;
    let mut saver = Saver { new: &step, kept: Kept::default() };
    let complete = saver.through_database(copy)?;
    if !complete {
        saver.by_pages(copy)?;
    }
    let lost_frames = if log_broken || !complete { wal::frames(log_bytes) } else { 0 };
    saver.finish(lost_frames, buffer)?;
    let kept = saver.kept;
    step.commit()?;
    Ok(kept)
}

struct Saver<'a> {
    new: &'a Connection,
    kept: Kept,
}

impl Saver<'_> {
    /// Returns whether every table could be read to its end. Closing moves a log into the copy,
    /// where its pages can be read.
    fn through_database(&mut self, copy: &Path) -> rusqlite::Result<bool> {
        let Ok(mut old) = connect(copy) else { return Ok(false) };
        let _ = schema::migrate(&mut old, schema::MIGRATIONS);
        self.meta(&old)?;
        // A migration fails if the damage is in its way: then the column has its old name, or is absent.
        let tags = match schema::version(&old) {
            Ok(schema::VERSION) => "tags",
            Ok(4) => "lineage",
            _ => "''",
        };
        let task_columns = TASK_COLUMNS.replace("tags", tags);
        let event_columns = EVENT_COLUMNS.replace("tags", tags);
        let tasks = Table { name: "task", key: "number", columns: &task_columns };
        let tasks = tasks.walk(&old, &mut |row| match row::task(row) {
            Ok(task) => self.task(&task),
            Err(_) => Ok(()),
        })?;
        let events = Table { name: "event", key: "seq", columns: &event_columns };
        let events = events.walk(&old, &mut |row| match row::event(row) {
            Ok(event) => self.event(&event),
            Err(_) => Ok(()),
        })?;
        let docs = Table { name: "doc", key: "number", columns: DOC_COLUMNS };
        let docs = docs.walk(&old, &mut |row| match row::doc(row) {
            Ok(doc) => self.doc(&doc),
            Err(_) => Ok(()),
        })?;
        self.kept.lost_tasks = named_tasks(&old);
        Ok(tasks && events && docs)
    }

    fn by_pages(&mut self, copy: &Path) -> rusqlite::Result<()> {
        pages::scan(copy, &mut |found| match found {
            Found::Task(task) => self.task(&task),
            Found::Event(event) => self.event(&event),
            Found::Doc(doc) => self.doc(&doc),
            Found::Number(key, value) => self.number(&key, value),
            Found::Secret(key, value) if key == meta::SECRET => meta::set(self.new, meta::SECRET, value),
            Found::Secret(..) => Ok(()),
        })
    }

    fn meta(&mut self, old: &Connection) -> rusqlite::Result<()> {
        for key in NUMBERS {
            if let Ok(value) = meta::number(old, key) {
                self.number(key, value)?;
            }
        }
        match meta::get::<[u8; 32]>(old, meta::SECRET) {
            Ok(Some(secret)) => meta::set(self.new, meta::SECRET, secret),
            _ => Ok(()),
        }
    }

    /// High-water marks only rise. (The journal's number never changes.)
    fn number(&mut self, key: &str, value: u64) -> rusqlite::Result<()> {
        if NUMBERS.contains(&key) && value < MAX_NUMBER && value > meta::number(self.new, key)? {
            meta::set(self.new, key, Unsigned(value))?;
        }
        Ok(())
    }

    /// The first row with a number, an id or a token keeps it.
    fn task(&mut self, task: &TaskRow) -> rusqlite::Result<()> {
        if task.number >= MAX_NUMBER {
            return Ok(());
        }
        match apply::insert_task(self.new, task) {
            Ok(()) => self.kept.tasks += 1,
            Err(Refused::Failed(error)) if !is_clash(&error) => return Err(error),
            Err(_) => {}
        }
        Ok(())
    }

    /// Rows read through the database are newer than those on old pages: the first row counts.
    fn doc(&mut self, doc: &DocRow) -> rusqlite::Result<()> {
        let sql = "INSERT INTO doc (kind, key, body) VALUES (?1, ?2, ?3) ON CONFLICT (kind, key) DO NOTHING";
        self.new.prepare_cached(sql)?.execute((&doc.kind, &doc.key, &doc.body))?;
        Ok(())
    }

    fn event(&mut self, event: &EventRow) -> rusqlite::Result<()> {
        // The database never held a number beyond the mark: the row is garbage.
        let mark = meta::number(self.new, meta::EVENT_MARK)?;
        if event.seq == 0 || event.seq >= MAX_NUMBER || (mark > 0 && event.seq > mark) {
            return Ok(());
        }
        match apply::insert_event(self.new, event) {
            Ok(()) => self.kept.events += 1,
            Err(error) if !is_clash(&error) => return Err(error),
            Err(_) => {}
        }
        Ok(())
    }

    /// Fills the gaps in the event numbers and sets the last number to one that no event is above.
    fn finish(&mut self, lost_frames: u64, buffer: FromBuffer) -> rusqlite::Result<()> {
        self.kept.lost_tasks = self.kept.lost_tasks.saturating_sub(self.kept.tasks);
        if meta::number(self.new, meta::JOURNAL)? == 0 && buffer.journal != 0 {
            meta::set(self.new, meta::JOURNAL, Unsigned(buffer.journal))?;
        }
        let newest: u64 =
            self.new.query_row("SELECT coalesce(max(seq), 0) FROM event", [], |row| row::unsigned(row, 0))?;
        let marks = meta::number(self.new, meta::EVENT_LAST)?.max(meta::number(self.new, meta::EVENT_MARK)?);
        let known = marks.max(newest);
        let last = if buffer.last_event > 0 {
            // The buffer is newer than anything lost with the log.
            known.max(buffer.last_event)
        } else if known > 0 {
            known + lost_frames
        } else {
            // Nothing is known: the clock is ahead of every number that the lost database can have
            // reached.
            u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or(0)
        };
        let filled = fill_gaps(self.new, last)?;
        self.kept.lost_events = filled.lost;
        self.kept.left_out = filled.left_out;
        self.kept.events = self.kept.events.saturating_sub(filled.left_out);
        Ok(())
    }
}

/// What [`fill_gaps`] changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Filled {
    /// Events that were added in place of lost ones.
    pub(crate) lost: u64,
    /// Events that were removed, because they are before a gap that is too wide to fill.
    pub(crate) left_out: u64,
}

/// Closes the event numbers up to `last`, which becomes the newest number: a lost event is put into
/// each gap, also behind the newest event.
pub(crate) fn fill_gaps(conn: &Connection, last: u64) -> rusqlite::Result<Filled> {
    let numbers: Vec<u64> = conn
        .prepare("SELECT seq FROM event ORDER BY seq DESC")?
        .query_map([], |row| row::unsigned(row, 0))?
        .collect::<rusqlite::Result<_>>()?;
    let at_ms = jiff::Timestamp::now().as_millisecond();
    let mut filled = Filled::default();
    let mut next = last + 1;
    for (index, number) in numbers.iter().enumerate() {
        if next - number > MAX_GAP {
            conn.execute("DELETE FROM event WHERE seq <= ?1", [Unsigned(*number)])?;
            filled.left_out = u64::try_from(numbers.len() - index).unwrap_or(u64::MAX);
            break;
        }
        for seq in number + 1..next {
            let (kind, body) = (LOST_KIND.to_owned(), "{}".to_owned());
            apply::insert_event(conn, &EventRow { seq, at_ms, kind, body, ..EventRow::default() })?;
            filled.lost += 1;
        }
        next = *number;
    }
    meta::set(conn, meta::EVENT_LAST, Unsigned(last))?;
    apply::raise_event_mark(conn, last)?;
    Ok(filled)
}

fn connect(copy: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let old = Connection::open_with_flags(copy, flags)?;
    // Before anything is read: it makes SQLite accept a file that is shorter than its header says.
    old.pragma_update(None, "writable_schema", true)?;
    Ok(old)
}

/// How many tasks the index of ids still contains, whether or not their rows can be read.
fn named_tasks(old: &Connection) -> u64 {
    let mut numbers = HashSet::new();
    if let Ok(mut statement) = old.prepare("SELECT number FROM task INDEXED BY task_id ORDER BY id")
        && let Ok(rows) = statement.query_map([], |row| row::unsigned(row, 0))
    {
        numbers.extend(rows.map_while(Result::ok));
    }
    u64::try_from(numbers.len()).unwrap_or(u64::MAX)
}

fn is_clash(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows are read through the database also if it cannot be migrated: they are newer than those
    /// on stale pages.
    #[test]
    fn rows_are_read_without_migration() {
        let dir = tempfile::tempdir().unwrap();
        let copy = dir.path().join("copy.db");
        let mut old = Connection::open(&copy).unwrap();
        schema::migrate(&mut old, &schema::MIGRATIONS[..3]).unwrap();
        // The column is there already: the next migration fails.
        old.execute_batch(
            "INSERT INTO task VALUES (1, 'sh-1', NULL, 'se-1', NULL, NULL, 5, NULL, 0, '{}');
             INSERT INTO event VALUES (1, 5, 'task.started', 'sh-1', NULL, '{}');
             ALTER TABLE event ADD COLUMN lineage TEXT",
        )
        .unwrap();
        drop(old);
        let mut new = Connection::open_in_memory().unwrap();
        schema::migrate(&mut new, schema::MIGRATIONS).unwrap();
        let mut saver = Saver { new: &new, kept: Kept::default() };
        assert!(saver.through_database(&copy).unwrap(), "every row was read");
        assert_eq!((saver.kept.tasks, saver.kept.events), (1, 1));
        let old = connect(&copy).unwrap();
        assert_eq!(schema::version(&old).unwrap(), 3, "the migration failed");
    }
}
