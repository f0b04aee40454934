//! The core and its journal: what is recorded, when it is durable, and what happens when the disk is full. Appending to the
//! write buffer is the commit; the database is brought up to date by a worker.

use std::collections::{HashMap, HashSet};

use belay_journal::{Batch, DocRow, EventRow, FlushDone, Found, ReadTicket, Rows, TaskRow, WriteBuffer};
use belay_protocol::Labels;
use belay_protocol::event::Event;

use crate::config::bounds;
use crate::effect::Effect;
use crate::host::{CrashPoint, Host};
use crate::input::Moment;
use crate::runtime::{Core, Phase, Stage, Timer, TimerKey};
use crate::tasks::StoredTask;

/// What is going to be recorded with the next commit, and the buffer it goes to.
#[derive(Debug)]
pub(crate) struct JournalWriter {
    buffer: WriteBuffer,
    batch: Batch,
    /// Where each task stands in `batch.put`.
    put: HashMap<String, usize>,
    /// The tasks in `batch.removed`.
    removed: HashSet<String>,
    /// Above the number of every task that was put.
    next_number: u64,
    /// A commit failed and is tried again then.
    retry: Option<TimerKey>,
    flush: Option<TimerKey>,
    flushing: bool,
    /// When the first and the last batch were appended that are not in the database yet.
    first_append_ms: u64,
    last_append_ms: u64,
    /// A leaving daemon has tried to flush everything.
    flushed_last: bool,
    /// Since when, in monotonic milliseconds, commits and flushes fail.
    commits_fail_since: Option<u64>,
    flushes_fail_since: Option<u64>,
}

/// How much the batch held at some point, to take back what came after it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    events: usize,
    docs: usize,
}

impl JournalWriter {
    pub(crate) fn new(buffer: WriteBuffer) -> Self {
        Self {
            buffer,
            batch: Batch::default(),
            put: HashMap::new(),
            removed: HashSet::new(),
            next_number: 0,
            retry: None,
            flush: None,
            flushing: false,
            first_append_ms: 0,
            last_append_ms: 0,
            flushed_last: false,
            commits_fail_since: None,
            flushes_fail_since: None,
        }
    }

    // --- recording ---

    /// Records an event. `tags`: what it is found by, as [`tags_column`] makes it.
    pub(crate) fn record(&mut self, now: Moment, event: &Event, tags: String) -> u64 {
        let seq = self.next_event();
        self.batch.events.push(EventRow {
            seq,
            at_ms: now.wall_ms,
            kind: event.kind().name().to_owned(),
            task: event.task().map(str::to_owned),
            session: event.session().map(str::to_owned),
            tags,
            // An event always serialises; if one did not, readers see it as lost.
            body: serde_json::to_string(event).unwrap_or_else(|_| "{}".to_owned()),
        });
        seq
    }

    /// The tasks that the events of this batch are about, each with the number of its event.
    fn events_of_tasks(&self) -> Vec<(String, u64)> {
        let events = self.batch.events.iter();
        events.filter_map(|event| Some((event.task.clone()?, event.seq))).collect()
    }

    pub(crate) fn put_task(&mut self, task: &StoredTask) {
        // A stored task always serialises; if one did not, keeping the old row is the lesser harm.
        let Ok(row) = task.to_row() else { return };
        self.next_number = self.next_number.max(row.number + 1);
        if let Some(&at) = self.put.get(&row.id) {
            self.batch.put[at] = row;
        } else {
            self.put.insert(row.id.clone(), self.batch.put.len());
            self.batch.put.push(row);
        }
    }

    /// The start of this task will not be recorded after all.
    pub(crate) fn take_back_task(&mut self, id: &str) {
        let Some(at) = self.put.remove(id) else { return };
        self.batch.put.swap_remove(at);
        if let Some(moved) = self.batch.put.get(at) {
            self.put.insert(moved.id.clone(), at);
        }
    }

    pub(crate) fn remove_task(&mut self, id: &str) {
        self.batch.removed.push(id.to_owned());
        self.removed.insert(id.to_owned());
    }

    /// `None` removes the document.
    pub(crate) fn put_doc(&mut self, kind: &str, key: &str, body: Option<String>) {
        self.batch.docs.push(DocRow { kind: kind.to_owned(), key: key.to_owned(), body });
    }

    fn drop_batch(&mut self) {
        self.batch = Batch::default();
        self.put.clear();
        self.removed.clear();
    }

    pub(crate) const fn mark(&self) -> Mark {
        Mark { events: self.batch.events.len(), docs: self.batch.docs.len() }
    }

    /// What was recorded since the mark will not be written.
    pub(crate) fn take_back(&mut self, mark: Mark) {
        self.batch.events.truncate(mark.events);
        self.batch.docs.truncate(mark.docs);
    }

    // --- looking ---

    /// The number of the next event.
    pub(crate) fn next_event(&self) -> u64 {
        self.buffer.last_event() + self.batch.events.len() as u64 + 1
    }

    pub(crate) fn last_event(&self) -> u64 {
        self.buffer.last_event()
    }

    pub(crate) fn first_event(&self) -> u64 {
        self.buffer.first_event()
    }

    /// Above the number of every task recorded or about to be.
    pub(crate) fn next_task_number(&self) -> u64 {
        self.buffer.next_number().max(self.next_number)
    }

    pub(crate) fn is_batch_empty(&self) -> bool {
        self.batch.is_empty()
    }

    pub(crate) const fn is_retrying(&self) -> bool {
        self.retry.is_some()
    }

    pub(crate) fn is_flushed(&self) -> bool {
        self.buffer.is_flushed()
    }

    pub(crate) const fn has_flushed_last(&self) -> bool {
        self.flushed_last
    }

    /// An end that could not be written yet, because the disk is full: lookups and lists include it.
    pub(crate) fn unwritten_end(&self, id: &str) -> Option<&TaskRow> {
        let row = self.batch.put.get(*self.put.get(id)?)?;
        Some(row).filter(|row| row.ended_ms.is_some())
    }

    pub(crate) fn unwritten_ends(&self) -> impl Iterator<Item = &TaskRow> {
        self.batch.put.iter().filter(|row| row.ended_ms.is_some())
    }

    /// Whether a removal of this task could not be written yet.
    pub(crate) fn is_being_removed(&self, id: &str) -> bool {
        self.removed.contains(id)
    }

    pub(crate) fn file_bytes(&self) -> u64 {
        self.buffer.file_bytes()
    }

    pub(crate) fn missing_files(&self) -> Vec<std::path::PathBuf> {
        self.buffer.missing_files()
    }

    pub(crate) fn events_in_memory(&self, after: u64, max: usize) -> Option<Vec<&EventRow>> {
        self.buffer.events_in_memory(after, max)
    }

    pub(crate) fn begin_read(&mut self) -> ReadTicket {
        self.buffer.begin_read()
    }

    pub(crate) fn end_read(&mut self, ticket: ReadTicket, found: Found) -> Rows {
        self.buffer.end_read(ticket, found)
    }

    pub(crate) fn cancel_read(&mut self, ticket: ReadTicket) {
        self.buffer.cancel_read(ticket);
    }

    pub(crate) fn events_expired(&mut self, first_event: u64) {
        self.buffer.events_expired(first_event);
    }

    /// Appends what was recorded. That is the commit.
    fn append(&mut self, now: Moment) -> Result<(), belay_journal::Error> {
        let was_flushed = self.buffer.is_flushed();
        self.buffer.append(&mut self.batch)?;
        self.put.clear();
        self.removed.clear();
        self.last_append_ms = now.mono_ms;
        if was_flushed {
            self.first_append_ms = now.mono_ms;
        }
        Ok(())
    }
}

/// What a task, session or event is found by in the journal: the ids above it, outermost first, and its labels.
pub(crate) fn tags_column(lineage: &[String], labels: &Labels) -> String {
    if lineage.is_empty() && labels.is_empty() {
        return String::new();
    }
    let mut column = String::from("/");
    for id in lineage {
        column.push_str(id);
        column.push('/');
    }
    for (key, value) in labels {
        column.push_str(&label_tag(key, value));
        column.push('/');
    }
    column
}

/// A label as a tag. No id begins with `@`, and no tag contains a slash.
pub(crate) fn label_tag(key: &str, value: &str) -> String {
    let escaped = |text: &str| text.replace('%', "%25").replace('/', "%2F");
    format!("@{}={}", escaped(key), escaped(value))
}

impl<H: Host> Core<H> {
    /// Makes everything recorded so far durable, and lets the effects leave that wait for it.
    pub(crate) fn commit(&mut self) -> Result<(), belay_journal::Error> {
        self.record_session_levels();
        for (task, event) in self.ctx.journal.events_of_tasks() {
            self.tasks.note_event(&task, event);
        }
        for task in self.tasks.take_changed() {
            if let Some(task) = self.tasks.get(&task) {
                self.ctx.journal.put_task(task.stored());
            }
        }
        if !self.ctx.journal.is_batch_empty() {
            self.ctx.journal.append(self.ctx.now)?;
        }
        let retry = self.ctx.journal.retry.take();
        self.ctx.cancel(retry);
        if let Some(since_ms) = self.ctx.journal.commits_fail_since.take() {
            let failed_ms = self.ctx.now.mono_ms.saturating_sub(since_ms);
            tracing::info!(failed_ms, "the journal can be written again");
        }
        if self.ctx.effects.committed() {
            self.ctx.schedule(bounds::DEFERRED_ACK_MS, Timer::DeferredAcks);
        }
        self.serve_event_readers();
        Ok(())
    }

    /// Commits, or reports why not and tries again later. Nothing is lost: shims keep what is not acknowledged.
    pub(crate) fn commit_or_retry(&mut self) {
        let Err(error) = self.commit() else { return };
        tracing::debug!(%error, retry_ms = bounds::COMMIT_RETRY_MS, "commit failed");
        self.ctx.journal.commits_fail_since.get_or_insert(self.ctx.now.mono_ms);
        self.ctx.notice(
            format!("the journal cannot be written: {error}"),
            "free some disk space; it is tried again",
        );
        if self.ctx.phase == Phase::Leaving {
            // A daemon that cannot write leaves all the same: the shims keep what is not acknowledged.
            self.ctx.journal.drop_batch();
            self.ctx.effects.drop_uncommitted();
        } else {
            self.retry_commit_later();
        }
    }

    pub(crate) fn retry_commit_later(&mut self) {
        if self.ctx.journal.retry.is_none() {
            self.ctx.journal.retry = Some(self.ctx.schedule(bounds::COMMIT_RETRY_MS, Timer::RetryCommit));
        }
    }

    pub(crate) fn retry_commit(&mut self) {
        self.ctx.journal.retry = None;
        self.commit_or_retry();
    }

    /// Whether something was recorded in this step that has to be committed.
    pub(crate) fn has_uncommitted(&self) -> bool {
        !self.ctx.journal.is_batch_empty() || self.tasks.has_changed() || self.has_unrecorded_levels()
    }

    // --- the database behind the buffer ---

    /// What is in the buffer does not stay there for long.
    pub(crate) fn watch_buffer(&mut self) {
        let journal = &self.ctx.journal;
        if !journal.buffer.is_flushed() && journal.flush.is_none() && !journal.flushing {
            self.ctx.journal.flush = Some(self.ctx.schedule(bounds::FLUSH_MS, Timer::Flush));
        }
    }

    /// Flushes when nothing was appended for a moment, or at the latest after a while: a burst goes in one transaction.
    pub(crate) fn flush_when_quiet(&mut self) {
        let journal = &mut self.ctx.journal;
        journal.flush = None;
        let now_ms = self.ctx.now.mono_ms;
        let is_quiet = now_ms.saturating_sub(journal.last_append_ms) >= bounds::FLUSH_MS;
        let is_late = now_ms.saturating_sub(journal.first_append_ms) >= bounds::FLUSH_LATEST_MS;
        if is_quiet || is_late {
            self.flush_journal();
        } else {
            self.ctx.journal.flush = Some(self.ctx.schedule(bounds::FLUSH_MS, Timer::Flush));
        }
    }

    /// Hands everything unflushed to the worker that owns the database.
    pub(crate) fn flush_journal(&mut self) {
        let timer = self.ctx.journal.flush.take();
        self.ctx.cancel(timer);
        if self.ctx.journal.flushing {
            return;
        }
        // A flush without tasks has no crash point: there is nothing to test.
        let matters = self.ctx.journal.buffer.holds_unflushed_tasks();
        let Some(job) = self.ctx.journal.buffer.begin_flush() else {
            self.ctx.journal.flushed_last |= self.ctx.phase == Phase::Leaving;
            return;
        };
        self.ctx.journal.flushing = true;
        if matters {
            self.ctx.effects.push(Stage::Unconditional, Effect::CrashPoint(CrashPoint::BeforeFlush));
        }
        self.ctx.effects.push(Stage::Unconditional, Effect::FlushJournal(Box::new(job)));
    }

    /// Goes on when the database has what was recorded so far, or cannot take it.
    pub(crate) fn flush_then(&mut self, then: impl FnOnce(&mut Self) + 'static) {
        if self.ctx.journal.is_flushed() {
            return then(self);
        }
        let cause = self.steps.cause();
        self.after_flush.push(Box::new(move |core| {
            core.steps.set_cause(cause);
            then(core);
        }));
        self.flush_journal();
    }

    pub(crate) fn journal_flushed(&mut self, done: FlushDone) {
        let matters = self.ctx.journal.buffer.holds_unflushed_tasks();
        let flushed = self.ctx.journal.buffer.end_flush(done);
        self.ctx.journal.flushing = false;
        if matters {
            self.ctx.crash_point(CrashPoint::AfterFlush);
        }
        let journal = &mut self.ctx.journal;
        journal.first_append_ms = self.ctx.now.mono_ms;
        if self.ctx.phase == Phase::Leaving {
            // What could not be flushed is in the buffer, for the next daemon.
            journal.flushed_last = flushed.is_err() || journal.buffer.is_flushed();
        }
        if let Err(error) = flushed {
            tracing::debug!(%error, retry_ms = bounds::COMMIT_RETRY_MS, "flush failed");
            self.ctx.journal.flushes_fail_since.get_or_insert(self.ctx.now.mono_ms);
            self.ctx.notice(
                format!("the journal cannot be brought up to date: {error}"),
                "free some disk space; nothing is lost, and it is tried again",
            );
            if self.ctx.phase != Phase::Leaving {
                self.ctx.journal.flush = Some(self.ctx.schedule(bounds::COMMIT_RETRY_MS, Timer::Flush));
            }
        } else if let Some(since_ms) = self.ctx.journal.flushes_fail_since.take() {
            let failed_ms = self.ctx.now.mono_ms.saturating_sub(since_ms);
            tracing::info!(failed_ms, "the journal's database is up to date again");
        }
        for then in std::mem::take(&mut self.after_flush) {
            then(self);
        }
    }

    /// Whether the database has everything and every shim may forget what is in it.
    pub fn is_settled(&self) -> bool {
        self.ctx.journal.is_flushed() && !self.ctx.journal.flushing && self.ctx.effects.delays_nothing()
    }
}
