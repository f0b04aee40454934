//! The state that a starting daemon reads once, before any worker runs.
//!
//! Batches that the database could not take, because the disk is full, are included.

use std::collections::BTreeMap;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension as _};

use crate::buffer_file::Entry;
use crate::merge::task_changes;
use crate::meta;
use crate::reader::all;
use crate::row::{self, DOC_COLUMNS, DocRow, EVENT_COLUMNS, EventRow, TASK_COLUMNS, TaskRow, clamped};

/// How many of the last events are loaded.
const RECENT_EVENTS: usize = 1000;

/// What a starting daemon needs of the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// The journal's random key. It is preserved when a damaged database is rebuilt.
    pub secret: [u8; 32],
    /// Tasks without an end, oldest first.
    pub live: Vec<TaskRow>,
    /// Token and task id of every task kept, live or ended.
    pub tokens: Vec<(String, String)>,
    /// Documents: kind, key, body.
    pub docs: BTreeMap<String, BTreeMap<String, String>>,
    /// The number of ended tasks.
    pub ended: u64,
    /// The total of their output bytes.
    pub output_bytes: u64,
    /// The last 1,000 events, in order.
    pub recent_events: Vec<EventRow>,
}

pub(crate) fn load(conn: &Connection, pending: &[Arc<Entry>]) -> rusqlite::Result<Loaded> {
    let mut loaded = Loaded {
        secret: meta::get(conn, meta::SECRET)?.unwrap_or_default(),
        live: live(conn)?,
        tokens: tokens(conn)?,
        docs: BTreeMap::new(),
        ended: 0,
        output_bytes: 0,
        recent_events: recent_events(conn)?,
    };
    let docs = all(conn, &format!("SELECT {DOC_COLUMNS} FROM doc"), [], row::doc)?;
    for doc in docs {
        loaded.put_doc(doc);
    }
    let totals = "SELECT count(*), coalesce(sum(output_bytes), 0) FROM task INDEXED BY task_ended
        WHERE ended_ms IS NOT NULL";
    (loaded.ended, loaded.output_bytes) =
        conn.query_row(totals, [], |row| Ok((row::unsigned(row, 0)?, row::unsigned(row, 1)?)))?;
    loaded.add_pending(conn, pending)?;
    Ok(loaded)
}

fn live(conn: &Connection) -> rusqlite::Result<Vec<TaskRow>> {
    let from = "task INDEXED BY task_ended WHERE ended_ms IS NULL ORDER BY number";
    all(conn, &format!("SELECT {TASK_COLUMNS} FROM {from}"), [], row::task)
}

fn tokens(conn: &Connection) -> rusqlite::Result<Vec<(String, String)>> {
    let sql = "SELECT token, id FROM task WHERE token IS NOT NULL ORDER BY number";
    all(conn, sql, [], |row| Ok((row.get(0)?, row.get(1)?)))
}

fn recent_events(conn: &Connection) -> rusqlite::Result<Vec<EventRow>> {
    let sql = format!("SELECT {EVENT_COLUMNS} FROM event ORDER BY seq DESC LIMIT ?1");
    let mut events = all(conn, &sql, [clamped(RECENT_EVENTS)], row::event)?;
    events.reverse();
    Ok(events)
}

impl Loaded {
    fn put_doc(&mut self, doc: DocRow) {
        let DocRow { kind, key, body } = doc;
        match body {
            Some(body) => {
                self.docs.entry(kind).or_default().insert(key, body);
            }
            None => {
                self.docs.entry(kind).or_default().remove(&key);
            }
        }
    }

    fn add_pending(&mut self, conn: &Connection, pending: &[Arc<Entry>]) -> rusqlite::Result<()> {
        let entries = || pending.iter().map(Arc::as_ref);
        let changes = task_changes(entries());
        for id in changes.keys() {
            if let Some(output_bytes) = ended_bytes(conn, id)? {
                self.ended -= 1;
                self.output_bytes -= output_bytes;
            }
        }
        self.live.retain(|task| !changes.contains_key(task.id.as_str()));
        self.tokens.retain(|(_, id)| !changes.contains_key(id.as_str()));
        let mut changed: Vec<&TaskRow> = changes.into_values().flatten().collect();
        changed.sort_unstable_by_key(|task| task.number);
        for task in changed {
            self.tokens.extend(task.token.clone().map(|token| (token, task.id.clone())));
            if task.ended_ms.is_some() {
                self.ended += 1;
                self.output_bytes += task.output_bytes;
            } else {
                self.live.push(task.clone());
            }
        }
        self.live.sort_by_key(|task| task.number);
        for entry in entries() {
            for doc in &entry.batch.docs {
                self.put_doc(doc.clone());
            }
            self.recent_events.extend(entry.batch.events.iter().cloned());
        }
        self.docs.retain(|_, docs| !docs.is_empty());
        let surplus = self.recent_events.len().saturating_sub(RECENT_EVENTS);
        self.recent_events.drain(..surplus);
        Ok(())
    }
}

/// The output bytes of a task that has ended in the database.
fn ended_bytes(conn: &Connection, id: &str) -> rusqlite::Result<Option<u64>> {
    conn.prepare_cached("SELECT output_bytes FROM task WHERE id = ?1 AND ended_ms IS NOT NULL")?
        .query_row([id], |row| row::unsigned(row, 0))
        .optional()
}
