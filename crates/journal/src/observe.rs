//! A journal seen from outside: what is durable in a directory that a daemon writes to. For tools and tests; it changes
//! nothing, and needs nothing of the daemon.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::{Connection, OpenFlags};

use crate::buffer_file::{self, Entry};
use crate::reader::all;
use crate::row::{self, EVENT_COLUMNS, EventRow, TASK_COLUMNS, TaskRow, clamped};
use crate::{Error, FILE_NAME, Loaded, load, meta};

/// A connection that only reads.
pub struct Observer {
    conn: Connection,
    dir: PathBuf,
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl Observer {
    pub fn open(dir: &Path) -> Result<Self, Error> {
        let path = dir.join(FILE_NAME);
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let conn = Connection::open_with_flags(&path, flags).map_err(|error| Error::sql(&path, error))?;
        Ok(Self { conn, dir: dir.to_owned() })
    }

    /// Events after this number, in order.
    pub fn events(&self, after: u64, max: usize) -> Result<Vec<EventRow>, Error> {
        let sql = format!("SELECT {EVENT_COLUMNS} FROM event WHERE seq > ?1 ORDER BY seq LIMIT ?2");
        let found = all(&self.conn, &sql, (clamped(after), clamped(max)), row::event);
        let mut events = found.map_err(|error| self.failed(error))?;
        let last = events.last().map_or(after, |event| event.seq);
        let entries = self.unflushed()?;
        let later = entries.iter().flat_map(|entry| &entry.batch.events).filter(|event| event.seq > last);
        events.extend(later.cloned());
        events.truncate(max);
        Ok(events)
    }

    /// A task as it was put last.
    pub fn task(&self, id: &str) -> Result<Option<TaskRow>, Error> {
        let sql = format!("SELECT {TASK_COLUMNS} FROM task WHERE id = ?1");
        let found = all(&self.conn, &sql, [id], row::task);
        let mut task = found.map_err(|error| self.failed(error))?.pop();
        for entry in self.unflushed()? {
            if let Some(put) = entry.batch.put.iter().rfind(|task| task.id == id) {
                task = Some(put.clone());
            }
            if entry.batch.removed.iter().any(|removed| removed == id) {
                task = None;
            }
        }
        Ok(task)
    }

    /// Everything that a starting daemon would read.
    pub fn load(&self) -> Result<Loaded, Error> {
        let pending = self.unflushed()?;
        load::load(&self.conn, &pending).map_err(|error| self.failed(error))
    }

    /// The batches that are only in the buffer.
    fn unflushed(&self) -> Result<Vec<Arc<Entry>>, Error> {
        let flushed = meta::number(&self.conn, meta::BATCH_LAST).map_err(|error| self.failed(error))?;
        let files = buffer_file::scan_dir(&self.dir).map_err(|error| Error::io(&self.dir, error))?;
        let entries = files.into_iter().flat_map(|file| file.entries);
        Ok(entries.filter(|entry| entry.number > flushed).map(Arc::new).collect())
    }

    fn failed(&self, error: rusqlite::Error) -> Error {
        Error::sql(&self.dir.join(FILE_NAME), error)
    }
}
