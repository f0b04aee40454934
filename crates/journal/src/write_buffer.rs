//! The write buffer: batches that are committed and not yet in the database, in a row of files and
//! in memory.
//!
//! Appending is the commit. The buffer belongs to the deciding thread and never touches `SQLite`:
//! it hands batches to the [`Store`](crate::Store), and merges those that a snapshot lacks into
//! what the [`Reader`](crate::Reader) found.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::buffer_file::{self, BufferFile, Entry, Header};
use crate::files::Files;
use crate::merge::{self, Later};
use crate::row::{Batch, EventRow};
use crate::{Error, FILE_NAME, Field, Found, Rows};

/// Once this much is unflushed, nothing more is appended.
pub(crate) const MAX_UNFLUSHED_BYTES: u64 = 64 * 1024 * 1024;

/// How much of the last flushed batches stays in memory for clients that follow the events.
const KEPT_FLUSHED_BYTES: u64 = 32 * 1024;

/// While flushes fail, no more files than this are sealed: the current one goes on.
const MAX_SEALED_FILES: usize = 8;

/// How many cleared files are kept for reuse.
pub(crate) const MAX_SPARE_FILES: usize = 2;

/// Committed batches on their way to the database. Lives on the deciding thread.
#[derive(Debug)]
pub struct WriteBuffer {
    dir: PathBuf,
    /// The database, which errors name.
    path: PathBuf,
    /// The database files, to notice when they are removed.
    database: Files,
    journal: u64,
    generation: u64,
    current: Option<BufferFile>,
    /// Files that no flush has taken yet and that get no more batches, oldest first.
    sealed: Vec<BufferFile>,
    spare: Vec<BufferFile>,
    /// Consecutive batches: everything unflushed, and before it what open reads and followers of
    /// events still need.
    entries: VecDeque<Arc<Entry>>,
    last_batch: u64,
    /// The last batch that is known to be in the database.
    flushed: u64,
    /// The last batch of the flush under way.
    flushing: Option<u64>,
    unflushed_bytes: u64,
    kept_flushed_bytes: u64,
    /// The last batch that puts or removes a task.
    last_task_batch: u64,
    first_event: u64,
    last_event: u64,
    last_number: u64,
    /// Every event above this number is in memory.
    dropped_event: u64,
    /// Open reads: the value of `flushed` when each began.
    reads: BTreeMap<u64, u64>,
    next_read: u64,
    scratch: Vec<u8>,
}

/// What the buffer starts with.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) dir: PathBuf,
    pub(crate) database: Files,
    pub(crate) journal: u64,
    pub(crate) generation: u64,
    /// The last batch that is in the database.
    pub(crate) flushed: u64,
    /// Recovered batches that the database could not take.
    pub(crate) pending: Vec<Arc<Entry>>,
    /// The files that hold them.
    pub(crate) sealed: Vec<BufferFile>,
    pub(crate) spare: Vec<BufferFile>,
    /// The numbers in the database.
    pub(crate) first_event: u64,
    pub(crate) last_event: u64,
    pub(crate) last_number: u64,
}

/// Batches for the store, with the files that hold them.
#[derive(Debug)]
pub struct FlushJob {
    pub(crate) entries: Vec<Arc<Entry>>,
    pub(crate) files: Vec<BufferFile>,
}

/// The result of a flush, on its way back to the buffer.
#[derive(Debug)]
pub struct FlushDone {
    pub(crate) result: Result<(), Error>,
    /// The batches, if the database does not have them.
    pub(crate) job: Option<FlushJob>,
    /// Files that were cleared for reuse.
    pub(crate) cleared: Vec<BufferFile>,
}

impl FlushDone {
    /// What [`WriteBuffer::end_flush`] will return.
    pub const fn result(&self) -> Result<(), &Error> {
        self.result.as_ref().copied()
    }
}

/// An open read. It must go back with [`WriteBuffer::end_read`] or [`WriteBuffer::cancel_read`]:
/// until then batches are kept for it.
#[derive(Debug)]
#[must_use = "batches are kept in memory until the read ends or is cancelled"]
pub struct ReadTicket {
    id: u64,
    /// The last batch when the read began.
    begun: u64,
}

impl WriteBuffer {
    pub(crate) fn new(start: Start) -> Self {
        let mut buffer = Self {
            path: start.dir.join(FILE_NAME),
            dir: start.dir,
            database: start.database,
            journal: start.journal,
            generation: start.generation,
            current: None,
            sealed: start.sealed,
            spare: start.spare,
            entries: VecDeque::new(),
            last_batch: start.flushed,
            flushed: start.flushed,
            flushing: None,
            unflushed_bytes: 0,
            kept_flushed_bytes: 0,
            last_task_batch: 0,
            first_event: start.first_event,
            last_event: start.last_event,
            last_number: start.last_number,
            dropped_event: start.last_event,
            reads: BTreeMap::new(),
            next_read: 0,
            scratch: Vec::new(),
        };
        for entry in start.pending {
            buffer.add(entry);
        }
        buffer
    }

    /// Appends one batch with one write: that is the commit. Takes the batch out of `batch` and
    /// returns its number (1, 2, …, growing over the life of the database).
    ///
    /// On an error nothing of it counts and `batch` is unchanged. An empty batch is not written;
    /// the number returned is that of the last batch. What the caller has to ensure, because
    /// nothing can refuse it later: the ids, numbers and tokens of the tasks put do not collide
    /// with those of other tasks kept.
    ///
    /// When this returns the batch survives the death of the process. It survives a power cut once
    /// the operating system has written the file or a checkpoint after its flush is done.
    pub fn append(&mut self, batch: &mut Batch) -> Result<u64, Error> {
        if batch.is_empty() {
            return Ok(self.last_batch);
        }
        check_sequence(&batch.events, self.last_event)?;
        check_range(batch)?;
        if self.unflushed_bytes >= MAX_UNFLUSHED_BYTES {
            return Err(Error::Backlog { path: self.path.clone(), bytes: self.unflushed_bytes });
        }
        let number = self.last_batch + 1;
        let last_event = batch.events.last().map_or(self.last_event, |event| event.seq);
        let bytes = self.write(number, last_event, batch).map_err(|error| Error::io(&self.path, error))?;
        self.add(Arc::new(Entry { number, last_event, bytes, batch: std::mem::take(batch) }));
        Ok(number)
    }

    fn write(&mut self, number: u64, last_event: u64, batch: &Batch) -> io::Result<u64> {
        let mut current = match self.current.take() {
            Some(current) => current,
            None => self.next_file()?,
        };
        let header = Header {
            journal: self.journal,
            generation: self.generation,
            first_batch: number,
            next_event: self.last_event + 1,
        };
        let written = current.append(&header, number, last_event, batch, &mut self.scratch);
        self.current = Some(current);
        written
    }

    /// A cleared file for the next batches.
    fn next_file(&mut self) -> io::Result<BufferFile> {
        self.generation = self.generation.wrapping_add(1);
        while let Some(file) = self.spare.pop() {
            // The next daemon would not find batches in a file that was removed.
            if file.is_in_place() {
                return Ok(file);
            }
        }
        BufferFile::create(&self.dir)
    }

    /// Counts a batch that is in a file.
    fn add(&mut self, entry: Arc<Entry>) {
        let batch = &entry.batch;
        self.last_batch = entry.number;
        self.last_event = entry.last_event;
        self.last_number = batch.put.iter().map(|task| task.number).fold(self.last_number, u64::max);
        if !batch.put.is_empty() || !batch.removed.is_empty() {
            self.last_task_batch = entry.number;
        }
        self.unflushed_bytes += entry.bytes;
        self.entries.push_back(entry);
    }

    /// The newest event number ever assigned, also when that event has expired; 0 before the first.
    pub const fn last_event(&self) -> u64 {
        self.last_event
    }

    /// The oldest event number still kept, or `last_event + 1` if none is.
    pub const fn first_event(&self) -> u64 {
        self.first_event
    }

    /// The number for the next task: above every number ever put.
    pub const fn next_number(&self) -> u64 {
        self.last_number + 1
    }

    /// Whether the database has every batch.
    pub const fn is_flushed(&self) -> bool {
        self.flushed == self.last_batch
    }

    /// Whether a batch that the database lacks puts or removes a task.
    pub const fn holds_unflushed_tasks(&self) -> bool {
        self.last_task_batch > self.flushed
    }

    /// The size of the batches that the database lacks.
    pub const fn unflushed_bytes(&self) -> u64 {
        self.unflushed_bytes
    }

    /// Seals the current file and hands everything unflushed to the store. None: there is nothing
    /// to do, or a flush is under way. After several failed flushes, the newest batches may be left
    /// to the flush after this one.
    pub fn begin_flush(&mut self) -> Option<FlushJob> {
        if self.is_flushed() || self.flushing.is_some() {
            return None;
        }
        if self.sealed.len() < MAX_SEALED_FILES {
            self.sealed.extend(self.current.take());
        }
        let last = self.sealed.last()?.last_batch;
        self.flushing = Some(last);
        let from = self.entries.partition_point(|entry| entry.number <= self.flushed);
        let to = self.entries.partition_point(|entry| entry.number <= last);
        let entries = self.entries.range(from..to).cloned().collect();
        Some(FlushJob { entries, files: std::mem::take(&mut self.sealed) })
    }

    /// Ends a flush. On success the batches are dropped, unless an older read
    /// is open; on failure they stay and go with the next flush.
    ///
    /// [`Error::Duplicate`] is no failure in this sense: the batches are in the database, except
    /// for the value that another task has.
    pub fn end_flush(&mut self, done: FlushDone) -> Result<(), Error> {
        let FlushDone { result, job, cleared } = done;
        let last = self.flushing.take();
        self.spare.extend(cleared);
        if let Some(job) = job {
            // Nothing was sealed since: one flush is under way at a time.
            self.sealed = job.files;
        } else if let Some(last) = last {
            for entry in self.entries.iter().filter(|entry| (self.flushed + 1..=last).contains(&entry.number))
            {
                self.unflushed_bytes -= entry.bytes;
                self.kept_flushed_bytes += entry.bytes;
            }
            self.flushed = last;
            self.drop_entries();
        }
        result
    }

    /// Forgets flushed batches that no open read can lack, from the oldest on, until few enough
    /// bytes are kept.
    fn drop_entries(&mut self) {
        // Reads begin in order, and `flushed` only grows: the first read needs the oldest batches.
        let needed_after = self.reads.values().next().copied().unwrap_or(self.flushed);
        while let Some(oldest) = self.entries.front()
            && oldest.number <= needed_after
            && self.kept_flushed_bytes > KEPT_FLUSHED_BYTES
        {
            self.kept_flushed_bytes -= oldest.bytes;
            self.dropped_event = oldest.last_event;
            self.entries.pop_front();
        }
    }

    /// Announces a read that is about to be handed to the reader: batches that its snapshot may
    /// lack are kept until it ends.
    pub fn begin_read(&mut self) -> ReadTicket {
        let id = self.next_read;
        self.next_read += 1;
        self.reads.insert(id, self.flushed);
        ReadTicket { id, begun: self.last_batch }
    }

    /// Merges what was appended after the snapshot into what was found, and ends the read.
    pub fn end_read(&mut self, ticket: ReadTicket, found: Found) -> Rows {
        let after = |number| self.entries.partition_point(|entry| entry.number <= number);
        let (begun, snapshot) = (after(ticket.begun), after(found.snapshot));
        let later = Later {
            entries: self.entries.range(snapshot..).map(Arc::as_ref).collect(),
            begun: ticket.begun,
            between: self.entries.range(begun.min(snapshot)..snapshot).map(Arc::as_ref).collect(),
            first_event: self.first_event,
            last_event: self.last_event,
        };
        let rows = merge::merge(found, &later);
        self.cancel_read(ticket);
        rows
    }

    /// Ends a read that failed or is not wanted any more.
    pub fn cancel_read(&mut self, ticket: ReadTicket) {
        self.reads.remove(&ticket.id);
        self.drop_entries();
    }

    /// Up to `max` events after this number, if all of them are still in memory. None: ask the
    /// reader.
    pub fn events_in_memory(&self, after: u64, max: usize) -> Option<Vec<&EventRow>> {
        let after = after.max(self.first_event.saturating_sub(1));
        if after < self.dropped_event {
            return None;
        }
        let from = self.entries.partition_point(|entry| entry.last_event <= after);
        let events = self.entries.range(from..).flat_map(|entry| &entry.batch.events);
        Some(events.filter(|event| event.seq > after).take(max).collect())
    }

    /// Records that the store has removed events: the oldest number kept is now this.
    pub fn events_expired(&mut self, first_event: u64) {
        self.first_event = self.first_event.max(first_event);
    }

    /// The size on disk: the database, its log and the buffer files.
    pub fn file_bytes(&self) -> u64 {
        let files = self.sealed.iter().chain(&self.spare).chain(&self.current);
        // Files that a flush under way has are counted by their content.
        let flushing = if self.flushing.is_some() { self.unflushed_bytes } else { 0 };
        self.database.bytes() + files.map(BufferFile::len).sum::<u64>() + flushing
    }

    /// Files of the journal that are no longer where they were opened. What is written goes on into
    /// them, and the next daemon will not find it.
    pub fn missing_files(&self) -> Vec<PathBuf> {
        let mut missing = self.database.missing();
        let files = self.sealed.iter().chain(&self.current);
        missing.extend(files.filter(|file| !file.is_in_place()).map(|file| file.path.clone()));
        missing
    }
}

fn check_sequence(events: &[EventRow], last: u64) -> Result<(), Error> {
    for (expected, event) in (last + 1..).zip(events) {
        if event.seq != expected {
            return Err(Error::Sequence { expected, found: event.seq });
        }
    }
    Ok(())
}

/// The database stores signed integers, and a flush can refuse nothing.
fn check_range(batch: &Batch) -> Result<(), Error> {
    let numbers = batch.put.iter().map(|task| (Field::Number, task.number));
    let sizes = batch.put.iter().map(|task| (Field::OutputBytes, task.output_bytes));
    match numbers.chain(sizes).find(|(_, value)| i64::try_from(*value).is_err()) {
        Some((field, value)) => Err(Error::TooLarge { field, value }),
        None => Ok(()),
    }
}

/// The batches in the buffer files of `dir` that may not be in the database yet, in order. For
/// tools that look into a home from outside.
pub fn unflushed(dir: &Path) -> io::Result<Vec<Batch>> {
    let entries = buffer_file::scan_dir(dir)?.into_iter().flat_map(|file| file.entries);
    Ok(entries.map(|entry| entry.batch).collect())
}

#[cfg(test)]
mod tests;
