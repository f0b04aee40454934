//! Recovery of the write buffer: what the files of an earlier daemon hold and the database lacks is
//! written into it.
//!
//! Batches are numbered, so that exactly the missing ones are written, also after a crash during a
//! flush. A file that is damaged, cut off, foreign or does not fit is quarantined after its
//! readable batches were taken; event numbers that it may have held are not assigned again.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::Connection;

use crate::apply::{self, Duplicate};
use crate::buffer_file::{BufferFile, Entry, Kind, Scanned};
use crate::open::Notice;
use crate::row::{EventRow, Unsigned};
use crate::salvage::{LOST_KIND, fill_gaps};
use crate::store::{clear_files, event_bounds};
use crate::write_buffer::MAX_SPARE_FILES;
use crate::{Error, meta, quarantine};

/// What the buffer starts with after recovery.
#[derive(Debug, Default)]
pub(crate) struct Recovered {
    /// Batches that the database could not take because the disk is full.
    pub(crate) pending: Vec<Arc<Entry>>,
    /// The files that hold them.
    pub(crate) sealed: Vec<BufferFile>,
    /// Cleared files.
    pub(crate) spare: Vec<BufferFile>,
    pub(crate) notices: Vec<Notice>,
}

/// What the database has.
#[derive(Debug, Clone, Copy)]
struct Known {
    journal: u64,
    last_batch: u64,
    last_event: u64,
    event_mark: u64,
}

/// Why a file is quarantined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reject {
    NotAFile,
    Damaged,
    Foreign,
    DoesNotFit,
}

impl Reject {
    const fn sentence(self) -> &'static str {
        match self {
            Self::NotAFile => "something that is not a regular file was in the place of a write buffer file",
            Self::Damaged => "a write buffer file of the journal was damaged or cut off",
            Self::Foreign => "a write buffer file belonged to another journal",
            Self::DoesNotFit => "a write buffer file did not fit the journal's database",
        }
    }
}

/// What recovery is going to do.
#[derive(Debug, Default)]
struct Plan {
    /// Batches that the database lacks, in order.
    entries: Vec<Entry>,
    /// Files whose batches the database has, or will have.
    used: Vec<Scanned>,
    rejected: Vec<(PathBuf, Reject)>,
    /// How many times batches are missing between two files, or between the database and the first
    /// file.
    gaps: usize,
    /// The newest event number that may have been assigned.
    last_event: u64,
    /// Whether event numbers may be missing.
    has_lost_events: bool,
}

/// Brings the database up to date. `is_rebuilt`: it was salvaged from a damaged one, and may have
/// lost its batch number.
pub(crate) fn recover(
    conn: &Connection,
    path: &Path,
    files: Vec<Scanned>,
    is_rebuilt: bool,
) -> Result<Recovered, Error> {
    let failed = |error| Error::sql(path, error);
    let known = read_known(conn).map_err(failed)?;
    let plan = plan(files, known);
    let duplicate = match write(conn, &plan).map_err(failed) {
        Err(Error::Full { .. }) if plan.rejected.is_empty() && !plan.has_lost_events => {
            return keep(path, plan);
        }
        done => done?,
    };
    let mut notices = Vec::new();
    for (file, reject) in &plan.rejected {
        let moved = quarantine::move_file(file, "buffer").map_err(|error| Error::io(file, error))?;
        let what = format!("{}; it was quarantined", reject.sentence());
        notices.push(Notice { what, path: Some(moved) });
    }
    if plan.gaps > 0 && plan.rejected.is_empty() && !is_rebuilt {
        let what =
            "batches of the journal are missing, as after a power cut or the removal of a file".to_owned();
        notices.push(Notice { what, path: None });
    }
    if let Some(Duplicate { field, value }) = duplicate {
        let what = format!("a recovered task had the {field} {value:?} of another task, which was left out");
        notices.push(Notice { what, path: None });
    }
    let spare = clear_files(reopen(path, &plan.used)?);
    Ok(Recovered { spare, notices, ..Recovered::default() })
}

fn read_known(conn: &Connection) -> rusqlite::Result<Known> {
    Ok(Known {
        journal: meta::number(conn, meta::JOURNAL)?,
        last_batch: meta::number(conn, meta::BATCH_LAST)?,
        last_event: event_bounds(conn)?.last,
        event_mark: meta::number(conn, meta::EVENT_MARK)?,
    })
}

fn reopen(path: &Path, files: &[Scanned]) -> Result<Vec<BufferFile>, Error> {
    files.iter().map(|file| BufferFile::reopen(file).map_err(|error| Error::io(path, error))).collect()
}

/// The disk is full: the batches stay in their files, and go with the first flush that succeeds.
fn keep(path: &Path, plan: Plan) -> Result<Recovered, Error> {
    let (empty, full) = plan.used.into_iter().partition::<Vec<_>, _>(|file| file.kind == Kind::Empty);
    // A file of batches that the database has is cleared with the others.
    let sealed = reopen(path, &full)?;
    let mut spare = reopen(path, &empty)?;
    spare.truncate(MAX_SPARE_FILES);
    let pending = plan.entries.into_iter().map(Arc::new).collect();
    Ok(Recovered { pending, sealed, spare, notices: Vec::new() })
}

/// Decides about files that are in the order of their batches.
fn plan(files: Vec<Scanned>, known: Known) -> Plan {
    let mut plan = Plan { last_event: known.last_event, ..Plan::default() };
    let mut expected = known.last_batch + 1;
    // What the last file may have held beyond its readable batches, if it is damaged.
    let mut tail_event = None;
    let (mut unreadable, mut unreadable_events, mut is_replaced) = (0, 0, false);
    for mut file in files {
        let reject = match (file.kind, file.header) {
            (Kind::NotAFile, _) => {
                is_replaced = true;
                Some(Reject::NotAFile)
            }
            (Kind::Empty, _) => None,
            (_, None) => {
                unreadable += 1;
                unreadable_events += file.most_events();
                Some(Reject::Damaged)
            }
            (_, Some(header)) if header.journal != known.journal => {
                is_replaced = true;
                Some(Reject::Foreign)
            }
            (kind, Some(header)) => {
                if header.first_batch > expected {
                    // Numbers are unique: what is missing ends exactly where this file begins.
                    plan.gaps += 1;
                    expected = header.first_batch;
                    plan.last_event = plan.last_event.max(header.next_event.saturating_sub(1));
                }
                tail_event = None;
                let is_fitting = plan.take_entries(std::mem::take(&mut file.entries), &mut expected);
                if kind == Kind::Damaged {
                    tail_event = Some(file.max_event);
                }
                match (kind, is_fitting) {
                    (Kind::Damaged, _) => Some(Reject::Damaged),
                    (_, false) => Some(Reject::DoesNotFit),
                    _ => None,
                }
            }
        };
        match reject {
            Some(reject) => plan.rejected.push((file.path, reject)),
            None => plan.used.push(file),
        }
    }
    // An unreadable file explains a gap; without a gap, it may have been the last file.
    let is_unreadable = unreadable > plan.gaps;
    if tail_event.is_some() || is_unreadable || is_replaced {
        let held = plan.last_event;
        let lost = if is_unreadable { unreadable_events } else { 0 };
        plan.last_event = held.max(tail_event.unwrap_or(0)).saturating_add(lost).max(known.event_mark);
        plan.has_lost_events |= plan.last_event > held;
    }
    plan.has_lost_events |= plan.gaps > 0;
    plan
}

impl Plan {
    /// Takes the batches that the database lacks. Returns false if one does not follow those before
    /// it.
    fn take_entries(&mut self, entries: Vec<Entry>, expected: &mut u64) -> bool {
        let first_missing = *expected;
        for entry in entries.into_iter().skip_while(|entry| entry.number < first_missing) {
            let events = &entry.batch.events;
            let first = events.first().map_or(self.last_event + 1, |event| event.seq);
            let is_consecutive = events.iter().zip(first..).all(|(event, expected)| event.seq == expected);
            if entry.number != *expected || !is_consecutive || first > self.last_event + 1 {
                self.last_event = self.last_event.max(entry.last_event);
                self.has_lost_events = true;
                return false;
            }
            // The numbers of a salvaged database were closed with lost events, which this batch
            // still has.
            self.has_lost_events |= first <= self.last_event;
            self.last_event = self.last_event.max(entry.last_event);
            *expected += 1;
            self.entries.push(entry);
        }
        true
    }
}

fn write(conn: &Connection, plan: &Plan) -> rusqlite::Result<Option<Duplicate>> {
    if plan.entries.is_empty() && !plan.has_lost_events {
        return Ok(None);
    }
    apply::transaction(conn, || {
        if !plan.has_lost_events {
            return apply::write_entries(conn, &plan.entries, apply::insert_event);
        }
        let duplicate = apply::write_entries(conn, &plan.entries, replace_lost_event)?;
        fill_gaps(conn, plan.last_event)?;
        Ok(duplicate)
    })
}

/// Writes an event where there is none, or only one that stands for it.
fn replace_lost_event(conn: &Connection, event: &EventRow) -> rusqlite::Result<()> {
    conn.prepare_cached("DELETE FROM event WHERE seq = ?1 AND kind = ?2")?
        .execute((Unsigned(event.seq), LOST_KIND))?;
    let is_free =
        !conn.prepare_cached("SELECT 1 FROM event WHERE seq = ?1")?.exists([Unsigned(event.seq)])?;
    if is_free { apply::insert_event(conn, event) } else { Ok(()) }
}
