//! The open record and everything that can be asked of it. Writing is in `commit` and `expire`, what is noted and not yet
//! in the database in `ahead`: every question finds that too.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::path::{Path, PathBuf};

use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, Params, params_from_iter};

use crate::ahead::{AHEAD_NAME, Ahead};
use crate::checkpoint::Checkpointer;
use crate::files::Files;
use crate::row::{self, Batch, Counts, EVENT_COLUMNS, EventPage, TASK_COLUMNS, TaskFilter, TaskRow, clamped};
use crate::{Error, meta, open};

/// A freshly opened record, and what happened to it on the way.
#[derive(Debug)]
pub struct Opened {
    pub journal: Journal,
    /// Empty when all is well.
    pub notices: Vec<Notice>,
}

/// Something that people should be told about the record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// What was wrong, what was kept and what was lost, as a sentence.
    pub what: String,
    /// Where the damaged file is now.
    pub path: Option<PathBuf>,
}

/// The durable record. One program writes it; anybody may read the file beside it.
pub struct Journal {
    /// Declared before `conn`: the thread's connection closes first, so that ours, the last, tidies the log away.
    pub(crate) checkpointer: Checkpointer,
    pub(crate) conn: Connection,
    pub(crate) path: PathBuf,
    /// The number that its notes carry.
    pub(crate) record: u64,
    pub(crate) totals: Cell<Totals>,
    pub(crate) ahead: RefCell<Ahead>,
    /// What is noted and not in the database yet, in order.
    pub(crate) waiting: RefCell<Vec<Batch>>,
    secret: Option<[u8; 32]>,
    files: Files,
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal")
            .field("path", &self.path)
            .field("totals", &self.totals.get())
            .finish_non_exhaustive()
    }
}

/// Sums over the record that are kept in memory: read once when it is opened, moved on by every write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Totals {
    pub(crate) live: u64,
    pub(crate) ended: u64,
    pub(crate) output_bytes: u64,
    pub(crate) first_event: u64,
    pub(crate) last_event: u64,
    pub(crate) event_mark: u64,
    pub(crate) last_number: u64,
}

impl Totals {
    fn read(conn: &Connection) -> rusqlite::Result<Self> {
        let (ended, output_bytes) = conn.query_row(
            "SELECT count(*), coalesce(sum(output_bytes), 0) FROM task INDEXED BY task_ended WHERE ended_ms IS NOT NULL",
            [],
            |row| Ok((row::unsigned(row, 0)?, row::unsigned(row, 1)?)),
        )?;
        let one = |sql: &str| conn.query_row(sql, [], |row| row::unsigned(row, 0));
        let last_event =
            one("SELECT coalesce(max(seq), 0) FROM event")?.max(meta::number(conn, meta::EVENT_LAST)?);
        let first_event = one("SELECT coalesce(min(seq), 0) FROM event")?;
        Ok(Self {
            live: one("SELECT count(*) FROM task INDEXED BY task_ended WHERE ended_ms IS NULL")?,
            ended,
            output_bytes,
            first_event: if first_event == 0 { last_event + 1 } else { first_event },
            last_event,
            event_mark: meta::number(conn, meta::EVENT_MARK)?,
            last_number: one("SELECT coalesce(max(number), 0) FROM task")?
                .max(meta::number(conn, meta::NUMBER_LAST)?),
        })
    }
}

impl Journal {
    /// Opens the record in `dir`, which must exist, or makes a new one.
    ///
    /// The whole file is checked each time. A damaged one is moved aside, never changed, and what can still be read of
    /// it is copied into a new one; the notice names it. Only one program may have the record open for writing: the
    /// caller sees to that.
    pub fn open(dir: &Path) -> Result<Opened, Error> {
        open::open(dir)
    }

    pub(crate) fn start(mut conn: Connection, dir: &Path, path: PathBuf) -> Result<Self, Error> {
        let totals = Totals::read(&conn).map_err(|error| Error::sql(&path, error))?;
        let checkpointer = Checkpointer::start(&mut conn, &path)?;
        let record = notes_number(&conn).map_err(|error| Error::sql(&path, error))?;
        let ahead = RefCell::new(Ahead::open(dir, record)?);
        let (totals, waiting) = (Cell::new(totals), RefCell::default());
        let files = Files::opened([path.clone(), open::beside(&path, "-wal"), dir.join(AHEAD_NAME)]);
        Ok(Self { checkpointer, conn, path, record, totals, ahead, waiting, secret: None, files })
    }

    pub fn task(&self, id: &str) -> Result<Option<TaskRow>, Error> {
        match self.waiting_task(|task| task.id == id) {
            Some(task) => Ok(Some(task)),
            None => self.one_task("id = ?1", id),
        }
    }

    pub fn task_by_token(&self, token: &str) -> Result<Option<TaskRow>, Error> {
        match self.waiting_task(|task| task.token.as_deref() == Some(token)) {
            Some(task) => Ok(Some(task)),
            None => self.one_task("token = ?1", token),
        }
    }

    /// The task as it was noted last.
    fn waiting_task(&self, wanted: impl Fn(&TaskRow) -> bool) -> Option<TaskRow> {
        let waiting = self.waiting.borrow();
        waiting.iter().rev().flat_map(|batch| batch.put.iter().rev()).find(|task| wanted(task)).cloned()
    }

    fn one_task(&self, condition: &str, value: &str) -> Result<Option<TaskRow>, Error> {
        let sql = format!("SELECT {TASK_COLUMNS} FROM task WHERE {condition}");
        let found =
            self.conn.prepare_cached(&sql).and_then(|mut s| s.query_row([value], row::task).optional());
        found.map_err(|error| self.failed(error))
    }

    /// The tasks that have not ended, oldest first.
    pub fn live(&self) -> Result<Vec<TaskRow>, Error> {
        let condition = "task INDEXED BY task_ended WHERE ended_ms IS NULL ORDER BY number";
        let settled = self.settle();
        let mut rows = self.all(&format!("SELECT {TASK_COLUMNS} FROM {condition}"), [], row::task)?;
        if settled.is_err() {
            self.overlay(&mut rows, &TaskFilter { ended: Some(false), ..TaskFilter::default() });
            rows.sort_unstable_by_key(|task| task.number);
        }
        Ok(rows)
    }

    /// Where the database cannot be brought up to date, because the disk is full: what is noted takes the place of what
    /// is there.
    fn overlay(&self, rows: &mut Vec<TaskRow>, filter: &TaskFilter) {
        for batch in self.waiting.borrow().iter() {
            for task in &batch.put {
                rows.retain(|row| row.number != task.number);
                rows.extend(filter.lets_through(task).then(|| task.clone()));
            }
        }
    }

    /// The tasks that pass the filter, newest first.
    pub fn tasks(&self, filter: &TaskFilter) -> Result<Vec<TaskRow>, Error> {
        let settled = self.settle();
        let mut sql = format!("SELECT {TASK_COLUMNS} FROM task WHERE true");
        let mut values = Vec::new();
        sql.push_str(match filter.ended {
            Some(true) => " AND ended_ms IS NOT NULL",
            Some(false) => " AND ended_ms IS NULL",
            None => "",
        });
        if let Some(before) = filter.before {
            sql.push_str(" AND number < ?");
            values.push(Value::Integer(clamped(before)));
        }
        let texts = [("session", &filter.session), ("parent", &filter.parent), ("name", &filter.name)];
        for (column, text) in texts {
            if let Some(text) = text {
                sql.push_str(" AND ");
                sql.push_str(column);
                sql.push_str(" = ?");
                values.push(Value::Text(text.clone()));
            }
        }
        if let Some(words) = &filter.mentions {
            sql.push_str(" AND instr(body, ?) > 0");
            values.push(Value::Text(words.clone()));
        }
        sql.push_str(" ORDER BY number DESC LIMIT ?");
        values.push(Value::Integer(clamped(filter.limit)));
        let mut rows = self.all(&sql, params_from_iter(values), row::task)?;
        if settled.is_err() {
            self.overlay(&mut rows, filter);
            rows.sort_unstable_by_key(|task| std::cmp::Reverse(task.number));
            rows.truncate(filter.limit);
        }
        Ok(rows)
    }

    /// The ids that begin with `prefix`, in order. No character of it has a special meaning.
    pub fn resolve(&self, prefix: &str, limit: usize) -> Result<Vec<String>, Error> {
        let most = clamped(limit);
        let id = |row: &rusqlite::Row<'_>| row.get(0);
        let mut ids = match after_all_with(prefix) {
            Some(end) => {
                let sql = "SELECT id FROM task WHERE id >= ?1 AND id < ?2 ORDER BY id LIMIT ?3";
                self.all(sql, (prefix, end, most), id)?
            }
            None => {
                self.all("SELECT id FROM task WHERE id >= ?1 ORDER BY id LIMIT ?2", (prefix, most), id)?
            }
        };
        let waiting = self.waiting.borrow();
        let noted = waiting.iter().flat_map(|batch| &batch.put).filter(|task| task.id.starts_with(prefix));
        ids.extend(noted.map(|task| task.id.clone()));
        ids.sort_unstable();
        ids.dedup();
        ids.truncate(limit);
        Ok(ids)
    }

    /// How much is held. Costs next to nothing: the sums are kept.
    pub fn counts(&self) -> Counts {
        // What cannot be brought in now is not counted yet, and whoever noted it has been told.
        let _ = self.settle();
        let Totals { live, ended, output_bytes, first_event, last_event, .. } = self.totals.get();
        let events = last_event + 1 - first_event;
        Counts { live, ended, output_bytes, events, first_event, last_event }
    }

    /// Up to `max` events with a number above `after`, in order.
    pub fn events(&self, after: u64, max: usize) -> Result<EventPage, Error> {
        let sql = format!("SELECT {EVENT_COLUMNS} FROM event WHERE seq > ?1 ORDER BY seq LIMIT ?2");
        let waiting = self.waiting.borrow();
        // Whoever keeps up finds everything that is new among the last notes.
        let begins_by =
            |batch: &Batch| batch.events.first().is_some_and(|event| event.seq <= after.saturating_add(1));
        let from = waiting.iter().rposition(begins_by);
        let mut events = match from {
            Some(_) => Vec::new(),
            None => self.all(&sql, (clamped(after), clamped(max)), row::event)?,
        };
        let waiting = waiting.iter().skip(from.unwrap_or(0));
        let noted = waiting.flat_map(|batch| &batch.events).filter(|event| event.seq > after);
        events.extend(noted.take(max - events.len()).cloned());
        let Totals { first_event, last_event, .. } = self.totals.get();
        Ok(EventPage { events, first: first_event, last: last_event })
    }

    /// The newest event number ever given, also when that event has expired; 0 before the first.
    pub fn last_event(&self) -> u64 {
        self.totals.get().last_event
    }

    /// The number for the next task: above every number ever put.
    pub fn next_number(&self) -> u64 {
        self.totals.get().last_number + 1
    }

    /// This record's own random key, made when first asked for. It moves with what is kept of a damaged record.
    pub fn secret(&mut self) -> Result<[u8; 32], Error> {
        if let Some(secret) = self.secret {
            return Ok(secret);
        }
        let stored: Option<[u8; 32]> =
            meta::get(&self.conn, meta::SECRET).map_err(|error| self.failed(error))?;
        let secret = if let Some(secret) = stored {
            secret
        } else {
            let mut fresh = [0; 32];
            getrandom::fill(&mut fresh).map_err(|error| Error::Io {
                path: self.path.clone(),
                source: std::io::Error::other(error),
            })?;
            meta::set(&self.conn, meta::SECRET, fresh).map_err(|error| self.failed(error))?;
            fresh
        };
        self.secret = Some(secret);
        Ok(secret)
    }

    /// The size on disk, log included.
    pub fn file_bytes(&self) -> u64 {
        let size = |path: &Path| std::fs::metadata(path).map_or(0, |file| file.len());
        size(&self.path) + size(&open::beside(&self.path, "-wal"))
    }

    /// Its files that are no longer where they were opened. What is written goes on into them, and nobody will find it.
    pub fn missing_files(&self) -> Vec<PathBuf> {
        self.files.missing()
    }

    /// Moves the sums on to `next` after a write that succeeded.
    pub(crate) fn wrote(&self, next: Totals) {
        self.totals.set(next);
        self.checkpointer.committed();
    }

    pub(crate) fn failed(&self, error: rusqlite::Error) -> Error {
        Error::sql(&self.path, error)
    }

    pub(crate) fn all<T>(
        &self,
        sql: &str,
        values: impl Params,
        decode: impl FnMut(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, Error> {
        let rows = self.conn.prepare_cached(sql).and_then(|mut s| s.query_map(values, decode)?.collect());
        rows.map_err(|error| self.failed(error))
    }
}

/// Made with the record; a record from before there were notes gets one now. Where there is no room for it the next start
/// has another, and finds no notes either.
fn notes_number(conn: &Connection) -> rusqlite::Result<u64> {
    let known = meta::number(conn, meta::NOTES)?;
    if known != 0 {
        return Ok(known);
    }
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
    let number = (u64::from_le_bytes(random) >> 1) | 1;
    let _ = meta::set(conn, meta::NOTES, row::Unsigned(number));
    Ok(number)
}

/// The smallest text above every text that begins with `prefix`, if there is one. (Text is compared byte by byte, which in
/// UTF-8 is the order of the characters.)
fn after_all_with(prefix: &str) -> Option<String> {
    let mut end = prefix.to_owned();
    while let Some(last) = end.pop() {
        let next = (u32::from(last) + 1..=u32::from(char::MAX)).find_map(char::from_u32);
        if let Some(next) = next {
            end.push(next);
            return Some(end);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::after_all_with;

    #[test]
    fn the_end_of_a_prefix_steps_over_surrogates_and_the_last_character() {
        assert_eq!(after_all_with("sh-a").as_deref(), Some("sh-b"));
        assert_eq!(after_all_with("a\u{d7ff}").as_deref(), Some("a\u{e000}"));
        assert_eq!(after_all_with("a\u{10ffff}").as_deref(), Some("b"));
        assert_eq!(after_all_with("\u{10ffff}"), None);
        assert_eq!(after_all_with(""), None);
    }
}
