//! Writing a batch: noted at once or in one transaction, whole or not at all, and never a wait for the disk.

use std::collections::HashSet;

use rusqlite::{Connection, OptionalExtension, ffi};

use crate::ahead::Noted;
use crate::journal::Totals;
use crate::row::{Batch, EventRow, TaskRow, Unsigned, unsigned};
use crate::salvage::LOST_KIND;
use crate::{Error, Field, Journal};
use crate::{doc, meta};

/// Why a batch was not written, before the path is known.
pub(crate) enum Refused {
    Taken(Field, String),
    Failed(rusqlite::Error),
}

impl From<rusqlite::Error> for Refused {
    fn from(error: rusqlite::Error) -> Self {
        Self::Failed(error)
    }
}

impl Journal {
    /// Writes the batch: all of it, or on any error nothing of it. The journal can be used on after an error.
    ///
    /// When this returns the batch survives the death of this process; it survives a power cut from the next
    /// checkpoint on.
    pub fn commit(&mut self, batch: &Batch) -> Result<(), Error> {
        if batch.is_empty() {
            return Ok(());
        }
        in_sequence(&batch.events, self.last_event())?;
        self.settle()?;
        self.write(std::slice::from_ref(batch))
    }

    /// As [`Journal::commit`], and much faster: the batch is written down beside the database, and comes into it with
    /// others by [`Journal::settle`], which the caller sees to within a moment. Takes the batch out of `batch`; on an
    /// error it stays there.
    ///
    /// For a batch that removes nothing and whose ids, numbers and tokens are known to collide with no other's: what the
    /// database would refuse is refused to everybody who settles.
    pub fn note(&mut self, batch: &mut Batch) -> Result<(), Error> {
        debug_assert!(batch.removed.is_empty(), "a removal is committed");
        if batch.is_empty() {
            return Ok(());
        }
        in_sequence(&batch.events, self.last_event())?;
        // Every number ever given is at most the mark: also those that damage to the notes may take away.
        let beyond_mark = self.last_event() + batch.events.len() as u64 > self.totals.get().event_mark;
        if self.ahead.borrow().is_full() || beyond_mark {
            self.settle()?;
        }
        if beyond_mark {
            self.raise_mark()?;
        }
        self.ahead.borrow_mut().note(batch)?;
        self.count_noted(batch);
        self.waiting.borrow_mut().push(std::mem::take(batch));
        Ok(())
    }

    fn count_noted(&self, batch: &Batch) {
        let mut totals = self.totals.get();
        totals.last_event = batch.events.last().map_or(totals.last_event, |event| event.seq);
        totals.last_number = batch.put.iter().map(|task| task.number).fold(totals.last_number, u64::max);
        self.totals.set(totals);
    }

    /// Whether something is noted that is not in the database yet.
    pub fn is_settled(&self) -> bool {
        !self.ahead.borrow().holds_notes()
    }

    /// Whether tasks are among what is noted.
    pub fn holds_noted_tasks(&self) -> bool {
        self.waiting.borrow().iter().any(|batch| !batch.put.is_empty())
    }

    /// Brings what is noted into the database, in one transaction. On an error it stays noted.
    pub fn settle(&self) -> Result<(), Error> {
        if self.is_settled() {
            return Ok(());
        }
        self.write(&self.waiting.borrow())?;
        self.waiting.borrow_mut().clear();
        // Before anything else is written: notes that are older than the database must never be taken over again.
        self.ahead.borrow_mut().clear()
    }

    fn write(&self, batches: &[Batch]) -> Result<(), Error> {
        if batches.is_empty() {
            return Ok(());
        }
        let mut totals = self.totals.get();
        match write(&self.conn, batches, &mut totals) {
            Ok(()) => {
                self.wrote(totals);
                Ok(())
            }
            Err(Refused::Taken(field, value)) => Err(Error::Duplicate { field, value }),
            Err(Refused::Failed(error)) => Err(self.failed(error)),
        }
    }

    fn raise_mark(&self) -> Result<(), Error> {
        let mut totals = self.totals.get();
        totals.event_mark = totals.last_event + meta::EVENT_MARK_STEP;
        meta::set(&self.conn, meta::EVENT_MARK, Unsigned(totals.event_mark))
            .map_err(|error| self.failed(error))?;
        self.totals.set(totals);
        Ok(())
    }

    /// What was noted is in the database, or was never meant to be.
    pub(crate) fn forget_notes(&self) -> Result<(), Error> {
        self.ahead.borrow_mut().clear()
    }

    /// Notes were lost, and nobody knows which: every number that they may have carried is used up.
    pub(crate) fn give_up_numbers(&self) -> Result<(), Error> {
        let Totals { last_event, event_mark, .. } = self.totals.get();
        let at_ms = jiff::Timestamp::now().as_millisecond();
        let lost = |seq| EventRow {
            seq,
            at_ms,
            kind: LOST_KIND.to_owned(),
            body: "{}".to_owned(),
            ..EventRow::default()
        };
        let events = (last_event + 1..=event_mark).map(lost).collect();
        self.write(&[Batch { events, ..Batch::default() }])
    }

    /// Takes over what an earlier program noted and did not live to bring into the database. Says how many batches do
    /// not fit behind what is there, which only damage or a power cut can bring about.
    pub(crate) fn take_over(&self, mut noted: Noted) -> Result<usize, Error> {
        let mut last = self.last_event();
        let mut fitting = 0;
        for batch in &mut noted.batches {
            // The program may have died after the database had them and before it forgot the notes.
            batch.events.retain(|event| event.seq > last);
            if in_sequence(&batch.events, last).is_err() {
                break;
            }
            last = batch.events.last().map_or(last, |event| event.seq);
            fitting += 1;
        }
        let left = noted.batches.split_off(fitting).len();
        match self.write(&noted.batches) {
            // They stay notes, and are found in them, until there is room.
            Err(Error::Full { .. }) if left == 0 && !noted.damaged => {
                self.ahead.borrow_mut().resume(&noted);
                for batch in noted.batches {
                    self.count_noted(&batch);
                    self.waiting.borrow_mut().push(batch);
                }
                Ok(0)
            }
            done => done.map(|()| left),
        }
    }
}

fn in_sequence(events: &[EventRow], last: u64) -> Result<(), Error> {
    for (expected, event) in (last + 1..).zip(events) {
        if event.seq != expected {
            return Err(Error::Sequence { expected, found: event.seq });
        }
    }
    Ok(())
}

/// One transaction, with its beginning and its end prepared once: they are a good part of a small commit.
fn write(conn: &Connection, batches: &[Batch], totals: &mut Totals) -> Result<(), Refused> {
    conn.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
    let rows = batches.iter().try_for_each(|batch| write_rows(conn, batch, totals));
    let done = rows.and_then(|()| {
        conn.prepare_cached("COMMIT").and_then(|mut commit| commit.execute([])).map_err(Refused::from)
    });
    if !conn.is_autocommit() {
        // Where even this fails the next BEGIN does, and says why.
        let _ = conn.execute_batch("ROLLBACK");
    }
    done.map(|_| ())
}

fn write_rows(step: &Connection, batch: &Batch, totals: &mut Totals) -> Result<(), Refused> {
    let removed: HashSet<&str> = batch.removed.iter().map(String::as_str).collect();
    for id in &removed {
        remove(step, id, totals)?;
    }
    for task in batch.put.iter().filter(|task| !removed.contains(task.id.as_str())) {
        put(step, task, totals)?;
    }
    for event in &batch.events {
        append(step, event)?;
        totals.last_event = event.seq;
    }
    for row in &batch.docs {
        doc::write(step, row)?;
    }
    if totals.last_event > totals.event_mark {
        totals.event_mark = totals.last_event + meta::EVENT_MARK_STEP;
        meta::set(step, meta::EVENT_MARK, Unsigned(totals.event_mark))?;
    }
    // Also numbers of tasks that were put and removed in one batch stay used.
    let highest = batch.put.iter().map(|task| task.number).max().unwrap_or(0).max(totals.last_number);
    totals.last_number = highest;
    if !removed.is_empty() {
        meta::set(step, meta::NUMBER_LAST, Unsigned(highest))?;
    }
    Ok(())
}

fn remove(conn: &Connection, id: &str, totals: &mut Totals) -> Result<(), Refused> {
    let gone = conn
        .prepare_cached("DELETE FROM task WHERE id = ?1 RETURNING ended_ms, output_bytes")?
        .query_row([id], |row| Ok((row.get(0)?, unsigned(row, 1)?)))
        .optional()?;
    if let Some((ended_ms, output_bytes)) = gone {
        totals.forget(ended_ms, output_bytes);
    }
    Ok(())
}

/// What decides how a task is written over.
struct Before {
    id: String,
    token: Option<String>,
    session: String,
    parent: Option<String>,
    name: Option<String>,
    started_ms: i64,
    ended_ms: Option<i64>,
    output_bytes: u64,
}

impl Before {
    fn read(conn: &Connection, number: u64) -> rusqlite::Result<Option<Self>> {
        let sql = "SELECT id, token, session, parent, name, started_ms, ended_ms, output_bytes FROM task WHERE number = ?1";
        let decode = |row: &rusqlite::Row<'_>| {
            Ok(Self {
                id: row.get(0)?,
                token: row.get(1)?,
                session: row.get(2)?,
                parent: row.get(3)?,
                name: row.get(4)?,
                started_ms: row.get(5)?,
                ended_ms: row.get(6)?,
                output_bytes: unsigned(row, 7)?,
            })
        };
        conn.prepare_cached(sql)?.query_row([Unsigned(number)], decode).optional()
    }

    /// Whether only what changes in the course of a life differs: then the indexes need not be touched.
    fn same_labels(&self, task: &TaskRow) -> bool {
        self.token == task.token
            && self.session == task.session
            && self.parent == task.parent
            && self.name == task.name
            && self.started_ms == task.started_ms
    }
}

fn put(conn: &Connection, task: &TaskRow, totals: &mut Totals) -> Result<(), Refused> {
    match Before::read(conn, task.number)? {
        None => insert_task(conn, task)?,
        Some(before) if before.id != task.id => {
            return Err(Refused::Taken(Field::Number, task.number.to_string()));
        }
        Some(before) => {
            totals.forget(before.ended_ms, before.output_bytes);
            if before.same_labels(task) {
                update_life(conn, task, before.ended_ms)?;
            } else {
                update_all(conn, task)?;
            }
        }
    }
    totals.count(task.ended_ms, task.output_bytes);
    Ok(())
}

pub(crate) fn insert_task(conn: &Connection, task: &TaskRow) -> Result<(), Refused> {
    let sql = "INSERT INTO task (number, id, token, session, parent, name, started_ms, ended_ms, output_bytes, body)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
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
    ));
    done.map(|_| ()).map_err(|error| taken(error, task))
}

fn update_life(conn: &Connection, task: &TaskRow, ended_before: Option<i64>) -> rusqlite::Result<()> {
    if ended_before == task.ended_ms {
        let sql = "UPDATE task SET output_bytes = ?2, body = ?3 WHERE number = ?1";
        conn.prepare_cached(sql)?.execute((
            Unsigned(task.number),
            Unsigned(task.output_bytes),
            &task.body,
        ))?;
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
        output_bytes = ?8, body = ?9 WHERE number = ?1";
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
    ));
    done.map(|_| ()).map_err(|error| taken(error, task))
}

pub(crate) fn append(conn: &Connection, event: &EventRow) -> rusqlite::Result<()> {
    let sql = "INSERT INTO event (seq, at_ms, kind, task, session, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    conn.prepare_cached(sql)?.execute((
        Unsigned(event.seq),
        event.at_ms,
        &event.kind,
        &event.task,
        &event.session,
        &event.body,
    ))?;
    Ok(())
}

/// A broken uniqueness, named; anything else as it is.
fn taken(error: rusqlite::Error, task: &TaskRow) -> Refused {
    if error.sqlite_extended_error_code() == Some(ffi::SQLITE_CONSTRAINT_UNIQUE) {
        let message = error.to_string();
        if message.contains("task.token") {
            return Refused::Taken(Field::Token, task.token.clone().unwrap_or_default());
        }
        if message.contains("task.id") {
            return Refused::Taken(Field::Id, task.id.clone());
        }
    }
    Refused::Failed(error)
}

impl Totals {
    fn count(&mut self, ended_ms: Option<i64>, output_bytes: u64) {
        if ended_ms.is_some() {
            self.ended += 1;
            self.output_bytes = self.output_bytes.saturating_add(output_bytes);
        } else {
            self.live += 1;
        }
    }

    fn forget(&mut self, ended_ms: Option<i64>, output_bytes: u64) {
        if ended_ms.is_some() {
            self.ended = self.ended.saturating_sub(1);
            self.output_bytes = self.output_bytes.saturating_sub(output_bytes);
        } else {
            self.live = self.live.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(seq: u64, body_bytes: usize) -> Batch {
        let id = format!("sh-{seq}");
        Batch {
            put: vec![TaskRow { id, number: seq, body: "x".repeat(body_bytes), ..TaskRow::default() }],
            events: vec![EventRow { seq, kind: "task/started".to_owned(), ..EventRow::default() }],
            ..Batch::default()
        }
    }

    #[test]
    fn a_full_database_refuses_the_batch_whole_and_takes_it_later() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(dir.path()).unwrap().journal;
        journal.commit(&batch(1, 10)).unwrap();
        journal.conn.pragma_update(None, "max_page_count", 20).unwrap();
        let refused = journal.commit(&batch(2, 200_000)).unwrap_err();
        assert!(matches!(refused, Error::Full { .. }), "{refused:?}");
        assert_eq!(journal.last_event(), 1);
        assert_eq!(journal.task("sh-2").unwrap(), None);
        journal.commit(&batch(2, 10)).unwrap();
        journal.conn.pragma_update(None, "max_page_count", 1_000_000).unwrap();
        journal.commit(&batch(3, 200_000)).unwrap();
        assert_eq!(journal.counts().live, 3);
    }

    #[test]
    fn damage_met_while_running_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(dir.path()).unwrap().journal;
        journal.commit(&batch(1, 10)).unwrap();
        journal.conn.execute_batch("UPDATE task SET body = CAST(x'ff00ff' AS TEXT)").unwrap();
        let told = journal.task("sh-1").unwrap_err();
        assert!(matches!(told, Error::Corrupt { .. }), "{told:?}");
    }
}
