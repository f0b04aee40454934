//! Writing batches into the database: the statements, and one transaction for any number of
//! batches.
//!
//! When that happens is decided in `store` and `recover`.

use std::collections::HashSet;

use rusqlite::{Connection, OptionalExtension, ffi};

use crate::buffer_file::Entry;
use crate::meta;
use crate::row::{Batch, DocRow, EventRow, TaskRow, Unsigned, unsigned};
use crate::{Error, Field};

/// Why a row was not written, before the path is known.
#[derive(Debug)]
pub(crate) enum Refused {
    Duplicate { field: Field, value: String },
    Failed(rusqlite::Error),
}

impl From<rusqlite::Error> for Refused {
    fn from(error: rusqlite::Error) -> Self {
        Self::Failed(error)
    }
}

/// A value that another task has, and that was therefore left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Duplicate {
    pub(crate) field: Field,
    pub(crate) value: String,
}

impl From<Duplicate> for Error {
    fn from(Duplicate { field, value }: Duplicate) -> Self {
        Self::Duplicate { field, value }
    }
}

/// Runs `write` in one transaction, which is rolled back on an error.
pub(crate) fn transaction<T>(
    conn: &Connection,
    write: impl FnOnce() -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    conn.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
    let done = write().and_then(|value| conn.prepare_cached("COMMIT")?.execute([]).map(|_| value));
    if !conn.is_autocommit() {
        // If this fails too, the next BEGIN reports why.
        let _ = conn.execute_batch("ROLLBACK");
    }
    done
}

/// Writes batches that follow each other, and that they are in the database. To be called in a
/// transaction.
///
/// Nothing is refused: of a task with a token that another task has, all but the token is written;
/// a task with the id or the number of another is left out. The first such value is returned.
pub(crate) fn write_entries<'a>(
    conn: &Connection,
    entries: impl IntoIterator<Item = &'a Entry>,
    write_event: impl Fn(&Connection, &EventRow) -> rusqlite::Result<()>,
) -> rusqlite::Result<Option<Duplicate>> {
    let mut duplicate = None;
    let mut last = None;
    for entry in entries {
        let met = write_tasks(conn, &entry.batch)?;
        duplicate = duplicate.or(met);
        for event in &entry.batch.events {
            write_event(conn, event)?;
        }
        for doc in &entry.batch.docs {
            write_doc(conn, doc)?;
        }
        last = Some(entry);
    }
    if let Some(last) = last {
        meta::set(conn, meta::BATCH_LAST, Unsigned(last.number))?;
        raise_event_mark(conn, last.last_event)?;
    }
    Ok(duplicate)
}

/// Keeps the mark ahead of the events in the database.
pub(crate) fn raise_event_mark(conn: &Connection, last_event: u64) -> rusqlite::Result<()> {
    if last_event + meta::EVENT_MARK_STEP / 2 > meta::number(conn, meta::EVENT_MARK)? {
        meta::set(conn, meta::EVENT_MARK, Unsigned(last_event + meta::EVENT_MARK_STEP))?;
    }
    Ok(())
}

/// Removes and puts the tasks of a batch.
pub(crate) fn write_tasks(conn: &Connection, batch: &Batch) -> rusqlite::Result<Option<Duplicate>> {
    let removed: HashSet<&str> = batch.removed.iter().map(String::as_str).collect();
    if !removed.is_empty() {
        // The numbers of removed tasks stay used, also of those put in the same batch.
        let highest = batch.put.iter().map(|task| task.number).max().unwrap_or(0);
        let known = last_number(conn)?;
        meta::set(conn, meta::NUMBER_LAST, Unsigned(known.max(highest)))?;
    }
    for id in &removed {
        conn.prepare_cached("DELETE FROM task WHERE id = ?1")?.execute([id])?;
    }
    let mut duplicate = None;
    for task in batch.put.iter().filter(|task| !removed.contains(task.id.as_str())) {
        let met = put_or_leave_out(conn, task)?;
        duplicate = duplicate.or(met);
    }
    Ok(duplicate)
}

/// The highest task number ever put.
pub(crate) fn last_number(conn: &Connection) -> rusqlite::Result<u64> {
    let kept = conn
        .prepare_cached("SELECT coalesce(max(number), 0) FROM task")?
        .query_row([], |row| unsigned(row, 0))?;
    Ok(kept.max(meta::number(conn, meta::NUMBER_LAST)?))
}

fn put_or_leave_out(conn: &Connection, task: &TaskRow) -> rusqlite::Result<Option<Duplicate>> {
    let (field, value) = match put(conn, task) {
        Ok(()) => return Ok(None),
        Err(Refused::Failed(error)) => return Err(error),
        Err(Refused::Duplicate { field, value }) => (field, value),
    };
    if field == Field::Token {
        match put(conn, &TaskRow { token: None, ..task.clone() }) {
            Err(Refused::Failed(error)) => return Err(error),
            Ok(()) | Err(Refused::Duplicate { .. }) => {}
        }
    }
    Ok(Some(Duplicate { field, value }))
}

/// The stored columns that decide how a task is overwritten.
struct Stored {
    id: String,
    token: Option<String>,
    session: String,
    parent: Option<String>,
    name: Option<String>,
    started_ms: i64,
    ended_ms: Option<i64>,
    tags: String,
}

impl Stored {
    fn read(conn: &Connection, number: u64) -> rusqlite::Result<Option<Self>> {
        let sql =
            "SELECT id, token, session, parent, name, started_ms, ended_ms, tags FROM task WHERE number = ?1";
        let decode = |row: &rusqlite::Row<'_>| {
            Ok(Self {
                id: row.get(0)?,
                token: row.get(1)?,
                session: row.get(2)?,
                parent: row.get(3)?,
                name: row.get(4)?,
                started_ms: row.get(5)?,
                ended_ms: row.get(6)?,
                tags: row.get(7)?,
            })
        };
        conn.prepare_cached(sql)?.query_row([Unsigned(number)], decode).optional()
    }

    /// Whether only the columns differ that change while a task runs: then the indexes need not be
    /// touched.
    fn has_same_labels(&self, task: &TaskRow) -> bool {
        self.token == task.token
            && self.session == task.session
            && self.parent == task.parent
            && self.name == task.name
            && self.started_ms == task.started_ms
            && self.tags == task.tags
    }
}

fn put(conn: &Connection, task: &TaskRow) -> Result<(), Refused> {
    match Stored::read(conn, task.number)? {
        None => insert_task(conn, task),
        Some(stored) if stored.id != task.id => {
            Err(Refused::Duplicate { field: Field::Number, value: task.number.to_string() })
        }
        Some(stored) if stored.has_same_labels(task) => {
            update_progress(conn, task, stored.ended_ms).map_err(Refused::from)
        }
        Some(_) => update_all(conn, task),
    }
}

pub(crate) fn insert_task(conn: &Connection, task: &TaskRow) -> Result<(), Refused> {
    let sql = "INSERT INTO task
        (number, id, token, session, parent, name, started_ms, ended_ms, output_bytes, body, tags)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)";
    let done = conn.prepare_cached(sql)?.execute((
        Unsigned(task.number),
        &task.id,
        &task.token,
        &task.session,
        &task.parent,
        &task.name,
        task.started_ms,
        task.ended_ms,
        Unsigned(task.output_bytes),
        &task.body,
        &task.tags,
    ));
    done.map(|_| ()).map_err(|error| refused(error, task))
}

fn update_progress(conn: &Connection, task: &TaskRow, ended_before: Option<i64>) -> rusqlite::Result<()> {
    if ended_before == task.ended_ms {
        let sql = "UPDATE task SET output_bytes = ?2, body = ?3 WHERE number = ?1";
        let values = (Unsigned(task.number), Unsigned(task.output_bytes), &task.body);
        conn.prepare_cached(sql)?.execute(values)?;
    } else {
        let sql = "UPDATE task SET ended_ms = ?2, output_bytes = ?3, body = ?4 WHERE number = ?1";
        let values = (Unsigned(task.number), task.ended_ms, Unsigned(task.output_bytes), &task.body);
        conn.prepare_cached(sql)?.execute(values)?;
    }
    Ok(())
}

fn update_all(conn: &Connection, task: &TaskRow) -> Result<(), Refused> {
    let sql =
        "UPDATE task SET token = ?2, session = ?3, parent = ?4, name = ?5, started_ms = ?6, ended_ms = ?7,
        output_bytes = ?8, body = ?9, tags = ?10 WHERE number = ?1";
    let done = conn.prepare_cached(sql)?.execute((
        Unsigned(task.number),
        &task.token,
        &task.session,
        &task.parent,
        &task.name,
        task.started_ms,
        task.ended_ms,
        Unsigned(task.output_bytes),
        &task.body,
        &task.tags,
    ));
    done.map(|_| ()).map_err(|error| refused(error, task))
}

pub(crate) fn insert_event(conn: &Connection, event: &EventRow) -> rusqlite::Result<()> {
    let sql = "INSERT INTO event (seq, at_ms, kind, task, session, body, tags)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
    conn.prepare_cached(sql)?.execute((
        Unsigned(event.seq),
        event.at_ms,
        &event.kind,
        &event.task,
        &event.session,
        &event.body,
        &event.tags,
    ))?;
    Ok(())
}

pub(crate) fn write_doc(conn: &Connection, doc: &DocRow) -> rusqlite::Result<()> {
    match &doc.body {
        Some(body) => {
            let sql = "INSERT INTO doc (kind, key, body) VALUES (?1, ?2, ?3)
                ON CONFLICT (kind, key) DO UPDATE SET body = ?3";
            conn.prepare_cached(sql)?.execute((&doc.kind, &doc.key, body))?;
        }
        None => {
            conn.prepare_cached("DELETE FROM doc WHERE kind = ?1 AND key = ?2")?
                .execute((&doc.kind, &doc.key))?;
        }
    }
    Ok(())
}

/// Names a violated uniqueness; other errors stay as they are.
fn refused(error: rusqlite::Error, task: &TaskRow) -> Refused {
    if error.sqlite_extended_error_code() == Some(ffi::SQLITE_CONSTRAINT_UNIQUE) {
        let message = error.to_string();
        if message.contains("task.token") {
            let value = task.token.clone().unwrap_or_default();
            return Refused::Duplicate { field: Field::Token, value };
        }
        if message.contains("task.id") {
            return Refused::Duplicate { field: Field::Id, value: task.id.clone() };
        }
    }
    Refused::Failed(error)
}
