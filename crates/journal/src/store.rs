//! The writing side of the database: flushes, removal of expired events, and checkpoints.
//!
//! One worker thread owns it. It never reads for a query and decides nothing about when to run.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rusqlite::hooks::Wal;
use rusqlite::{Connection, MAIN_DB};

use crate::buffer_file::BufferFile;
use crate::row::{self, EventRule, Expired, Unsigned, clamped, is_older};
use crate::write_buffer::{FlushDone, FlushJob, MAX_SPARE_FILES};
use crate::{Error, apply, meta};

/// A log of this many pages is moved into the database, without hindering readers.
const PASSIVE_PAGES: u32 = 1000;
/// A log of this many pages is moved even if that has to wait (up to the busy timeout) for readers
/// to leave it.
const RESTART_PAGES: u32 = 16 * PASSIVE_PAGES;

/// The connection that writes.
pub struct Store {
    conn: Connection,
    path: PathBuf,
    /// The length of the write-ahead log after the last commit.
    log_pages: Arc<AtomicU32>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Store {
    pub(crate) fn new(mut conn: Connection, path: &Path) -> Result<Self, Error> {
        let log_pages = Arc::new(AtomicU32::new(0));
        let seen = Arc::clone(&log_pages);
        let hook = move |_: &mut Wal, pages: i32| {
            seen.store(u32::try_from(pages).unwrap_or(0), Ordering::Relaxed);
            Ok(())
        };
        conn.wal_hook(Some(hook)).map_err(|error| Error::sql(path, error))?;
        Ok(Self { conn, path: path.to_owned(), log_pages })
    }

    /// Writes the batches in one transaction and clears their files.
    ///
    /// The result goes to [`WriteBuffer::end_flush`](crate::WriteBuffer::end_flush).
    pub fn flush(&mut self, job: FlushJob) -> FlushDone {
        let entries = job.entries.iter().map(Arc::as_ref);
        let write = || apply::write_entries(&self.conn, entries, apply::insert_event);
        match apply::transaction(&self.conn, write) {
            Ok(duplicate) => {
                let cleared = clear_files(job.files);
                self.checkpoint();
                FlushDone { result: duplicate.map_or(Ok(()), |met| Err(met.into())), job: None, cleared }
            }
            Err(error) => {
                let result = Err(Error::sql(&self.path, error));
                FlushDone { result, job: Some(job), cleared: Vec::new() }
            }
        }
    }

    /// Removes the events that the rule does not keep, oldest first, of those that are in the
    /// database.
    pub fn expire_events(&mut self, rule: &EventRule) -> Result<Expired, Error> {
        let conn = &self.conn;
        let remove = || {
            let EventBounds { first, last } = event_bounds(conn)?;
            let surplus = rule.max_count.map_or(0, |max| (last + 1 - first).saturating_sub(max));
            let removed = count_expired(conn, rule, surplus)?;
            let first_event = first + removed;
            if removed > 0 {
                conn.prepare_cached("DELETE FROM event WHERE seq < ?1")?.execute([Unsigned(first_event)])?;
                meta::set(conn, meta::EVENT_LAST, Unsigned(last))?;
            }
            Ok(Expired { removed, first_event })
        };
        let expired = apply::transaction(conn, remove).map_err(|error| Error::sql(&self.path, error))?;
        self.checkpoint();
        Ok(expired)
    }

    /// Moves a long log into the database. An error (full disk, a long read) is not reported: the
    /// log holds everything, and the next flush tries again.
    fn checkpoint(&self) {
        use rusqlite::wal::CheckpointMode as Mode;
        let pages = self.log_pages.load(Ordering::Relaxed);
        if pages >= RESTART_PAGES {
            let _ = self.conn.wal_checkpoint_v2(Some(MAIN_DB), Mode::RESTART);
        } else if pages >= PASSIVE_PAGES {
            let _ = self.conn.wal_checkpoint_v2(Some(MAIN_DB), Mode::PASSIVE);
        }
    }

    #[cfg(test)]
    pub(crate) const fn connection(&self) -> &Connection {
        &self.conn
    }
}

/// Clears the files of batches that the database has, and removes those that are not needed for
/// reuse. A file that cannot be cleared stays: its batches are skipped by their numbers when the
/// journal is opened.
pub(crate) fn clear_files(files: Vec<BufferFile>) -> Vec<BufferFile> {
    let mut cleared: Vec<BufferFile> = Vec::new();
    for mut file in files {
        if cleared.len() >= MAX_SPARE_FILES {
            let _ = std::fs::remove_file(&file.path);
        } else if file.clear().is_ok() {
            cleared.push(file);
        }
    }
    cleared
}

/// The event numbers of a database.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EventBounds {
    /// The oldest kept, or `last + 1` if none is.
    pub(crate) first: u64,
    /// The newest ever written.
    pub(crate) last: u64,
}

pub(crate) fn event_bounds(conn: &Connection) -> rusqlite::Result<EventBounds> {
    let one = |sql| conn.prepare_cached(sql)?.query_row([], |row| row::unsigned(row, 0));
    let last = one("SELECT coalesce(max(seq), 0) FROM event")?.max(meta::number(conn, meta::EVENT_LAST)?);
    let first = one("SELECT coalesce(min(seq), 0) FROM event")?;
    Ok(EventBounds { first: if first == 0 { last + 1 } else { first }, last })
}

/// How many of the oldest events expire: those beyond the count, then up to the first that is young
/// enough.
fn count_expired(conn: &Connection, rule: &EventRule, surplus: u64) -> rusqlite::Result<u64> {
    let mut statement = conn.prepare_cached("SELECT at_ms FROM event ORDER BY seq LIMIT ?1")?;
    let mut rows = statement.query([clamped(rule.limit)])?;
    let mut count = 0;
    while let Some(row) = rows.next()? {
        if count >= surplus && !is_older(row.get(0)?, rule.now_ms, rule.max_age_ms) {
            break;
        }
        count += 1;
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::{Batch, EventRow, TaskRow};
    use crate::{Opened, Query, Rows, WriteBuffer};

    fn batch(seq: u64, body_bytes: usize) -> Batch {
        let id = format!("sh-{seq}");
        Batch {
            put: vec![TaskRow { id, number: seq, body: "x".repeat(body_bytes), ..TaskRow::default() }],
            events: vec![EventRow { seq, kind: "task/started".to_owned(), ..EventRow::default() }],
            ..Batch::default()
        }
    }

    fn flush(buffer: &mut WriteBuffer, store: &mut Store) -> Result<(), Error> {
        let done = store.flush(buffer.begin_flush().unwrap());
        buffer.end_flush(done)
    }

    #[test]
    fn full_database_keeps_batches_in_buffer() {
        let dir = tempfile::tempdir().unwrap();
        let Opened { mut buffer, mut store, mut reader, .. } = crate::open(dir.path()).unwrap();
        buffer.append(&mut batch(1, 10)).unwrap();
        flush(&mut buffer, &mut store).unwrap();
        store.connection().pragma_update(None, "max_page_count", 20).unwrap();
        // A small batch before the large one: the flush is whole or absent.
        buffer.append(&mut batch(2, 10)).unwrap();
        buffer.append(&mut batch(3, 200_000)).unwrap();
        let refused = flush(&mut buffer, &mut store).unwrap_err();
        assert!(matches!(refused, Error::Full { .. }), "{refused:?}");
        let stored = || -> u64 {
            let count = "SELECT count(*) FROM task";
            store.connection().query_row(count, [], |row| row::unsigned(row, 0)).unwrap()
        };
        assert_eq!(stored(), 1);
        assert_eq!((buffer.last_event(), buffer.is_flushed()), (3, false));
        let ticket = buffer.begin_read();
        let ids = ["sh-1", "sh-2", "sh-3"].map(str::to_owned).to_vec();
        let found = reader.run(&Query::Tasks(ids)).unwrap();
        assert_eq!(found.snapshot(), 1);
        let Rows::Tasks(tasks) = buffer.end_read(ticket, found) else { panic!() };
        assert_eq!(tasks.len(), 3);
        store.connection().pragma_update(None, "max_page_count", 1_000_000).unwrap();
        flush(&mut buffer, &mut store).unwrap();
        let stored: u64 = store
            .connection()
            .query_row("SELECT count(*) FROM task", [], |row| row::unsigned(row, 0))
            .unwrap();
        assert_eq!((stored, buffer.is_flushed()), (3, true));
    }

    #[test]
    fn damage_found_while_running_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let Opened { mut buffer, mut store, mut reader, .. } = crate::open(dir.path()).unwrap();
        buffer.append(&mut batch(1, 10)).unwrap();
        flush(&mut buffer, &mut store).unwrap();
        store.connection().execute_batch("UPDATE task SET body = CAST(x'ff00ff' AS TEXT)").unwrap();
        let ticket = buffer.begin_read();
        let reported = reader.run(&Query::Tasks(vec!["sh-1".to_owned()])).unwrap_err();
        buffer.cancel_read(ticket);
        assert!(matches!(reported, Error::Corrupt { .. }), "{reported:?}");
        // The failed query leaves no transaction open.
        reader.run(&Query::Tasks(vec!["sh-2".to_owned()])).unwrap();
    }
}
