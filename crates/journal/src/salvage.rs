//! Saves what can still be read of a damaged record into a new one.
//!
//! First through the database, row by row around the bad places; then, if there were any, straight from the pages. It works
//! on a copy, because reading a database with a log writes to it.

use std::collections::HashSet;
use std::fmt;
use std::path::Path;

use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::commit::{self, Refused};
use crate::doc::{self, DOC_COLUMNS};
use crate::open::beside;
use crate::pages::{self, Found};
use crate::row::{self, DocRow, EVENT_COLUMNS, EventRow, TASK_COLUMNS, TaskRow, Unsigned};
use crate::tree::Table;
use crate::{meta, schema, wal};

/// The kind of an event that stands for one that damage took away, or may have taken away. Its body is `{}`.
pub const LOST_KIND: &str = "lost";

/// A wider gap in the numbers is not filled; what lies before it is left out.
const MAX_GAP: u64 = 50_000;
/// A number above this is garbage, and could not be written in JSON either.
const MAX_NUMBER: u64 = 1 << 53;

/// What became of the rows.
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

/// Copies from the damaged record at `copy` (which may be absent or anything at all) into `new`.
pub(crate) fn salvage(copy: &Path, new: &mut Connection) -> rusqlite::Result<Kept> {
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
    saver.number_on(lost_frames)?;
    let kept = saver.kept;
    step.commit()?;
    Ok(kept)
}

struct Saver<'a> {
    new: &'a Connection,
    kept: Kept,
}

impl Saver<'_> {
    /// Says whether every table could be read to its end. Closing moves a log into the copy, where the pages can be read.
    fn through_database(&mut self, copy: &Path) -> rusqlite::Result<bool> {
        let Ok(mut old) = connect(copy) else { return Ok(false) };
        let _ = schema::migrate(&mut old, schema::MIGRATIONS);
        self.meta(&old)?;
        let tasks = Table { name: "task", key: "number", columns: TASK_COLUMNS };
        let tasks = tasks.walk(&old, &mut |row| match row::task(row) {
            Ok(task) => self.task(&task),
            Err(_) => Ok(()),
        })?;
        let events = Table { name: "event", key: "seq", columns: EVENT_COLUMNS };
        let events = events.walk(&old, &mut |row| match row::event(row) {
            Ok(event) => self.event(&event),
            Err(_) => Ok(()),
        })?;
        let docs = Table { name: "doc", key: "number", columns: DOC_COLUMNS };
        let docs = docs.walk(&old, &mut |row| match doc::doc(row) {
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
        for key in [meta::EVENT_LAST, meta::EVENT_MARK, meta::NUMBER_LAST] {
            if let Ok(value) = meta::number(old, key) {
                self.number(key, value)?;
            }
        }
        match meta::get::<[u8; 32]>(old, meta::SECRET) {
            Ok(Some(secret)) => meta::set(self.new, meta::SECRET, secret),
            _ => Ok(()),
        }
    }

    /// High-water marks only rise.
    fn number(&mut self, key: &str, value: u64) -> rusqlite::Result<()> {
        let known = [meta::EVENT_LAST, meta::EVENT_MARK, meta::NUMBER_LAST].contains(&key);
        if known && value < MAX_NUMBER && value > meta::number(self.new, key)? {
            meta::set(self.new, key, Unsigned(value))?;
        }
        Ok(())
    }

    /// The first to come with a number, an id or a token keeps it.
    fn task(&mut self, task: &TaskRow) -> rusqlite::Result<()> {
        if task.number >= MAX_NUMBER {
            return Ok(());
        }
        match commit::insert_task(self.new, task) {
            Ok(()) => self.kept.tasks += 1,
            Err(Refused::Failed(error)) if !is_clash(&error) => return Err(error),
            Err(_) => {}
        }
        Ok(())
    }

    /// What was read through the database is newer than what lies about on old pages: the first to come counts.
    fn doc(&mut self, doc: &DocRow) -> rusqlite::Result<()> {
        let sql = "INSERT INTO doc (kind, key, body) VALUES (?1, ?2, ?3) ON CONFLICT (kind, key) DO NOTHING";
        self.new.prepare_cached(sql)?.execute((&doc.kind, &doc.key, &doc.body))?;
        Ok(())
    }

    fn event(&mut self, event: &EventRow) -> rusqlite::Result<()> {
        // A number beyond the mark was never given: the row is garbage.
        let mark = meta::number(self.new, meta::EVENT_MARK)?;
        if event.seq == 0 || event.seq >= MAX_NUMBER || (mark > 0 && event.seq > mark) {
            return Ok(());
        }
        match commit::append(self.new, event) {
            Ok(()) => self.kept.events += 1,
            Err(error) if !is_clash(&error) => return Err(error),
            Err(_) => {}
        }
        Ok(())
    }

    /// Closes the numbering: what was lost between the kept events and after them is marked, and the next number is one
    /// that was surely never given.
    fn number_on(&mut self, lost_frames: u64) -> rusqlite::Result<()> {
        self.kept.lost_tasks = self.kept.lost_tasks.saturating_sub(self.kept.tasks);
        let numbers: Vec<u64> = self
            .new
            .prepare("SELECT seq FROM event ORDER BY seq DESC")?
            .query_map([], |row| row::unsigned(row, 0))?
            .collect::<rusqlite::Result<_>>()?;
        let marks = meta::number(self.new, meta::EVENT_LAST)?.max(meta::number(self.new, meta::EVENT_MARK)?);
        let known = marks.max(numbers.first().copied().unwrap_or(0));
        let at_ms = jiff::Timestamp::now().as_millisecond();
        // If nothing is known any more: the clock is ahead of every number that the lost record can have reached.
        let last = if known == 0 { u64::try_from(at_ms).unwrap_or(0) } else { known + lost_frames };
        let mut next = last + 1;
        for (index, number) in numbers.iter().enumerate() {
            if next - number > MAX_GAP {
                self.leave_out(*number, numbers.len() - index)?;
                break;
            }
            for seq in number + 1..next {
                self.mark_lost(seq, at_ms)?;
            }
            next = *number;
        }
        meta::set(self.new, meta::EVENT_LAST, Unsigned(last))?;
        meta::set(self.new, meta::EVENT_MARK, Unsigned(last + meta::EVENT_MARK_STEP))
    }

    fn mark_lost(&mut self, seq: u64, at_ms: i64) -> rusqlite::Result<()> {
        let (kind, body) = (LOST_KIND.to_owned(), "{}".to_owned());
        self.kept.lost_events += 1;
        commit::append(self.new, &EventRow { seq, at_ms, kind, body, task: None, session: None })
    }

    fn leave_out(&mut self, up_to: u64, count: usize) -> rusqlite::Result<()> {
        self.new.execute("DELETE FROM event WHERE seq <= ?1", [Unsigned(up_to)])?;
        self.kept.left_out = u64::try_from(count).unwrap_or(u64::MAX);
        self.kept.events = self.kept.events.saturating_sub(self.kept.left_out);
        Ok(())
    }
}

fn connect(copy: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let old = Connection::open_with_flags(copy, flags)?;
    // First of all, before anything is read: it makes the database forgive a file that is shorter than its head says.
    old.pragma_update(None, "writable_schema", true)?;
    Ok(old)
}

/// How many tasks the index of ids still names, whether or not their rows can be read.
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
