//! Jobs that workers run beside the core, and what the core does with each result: one continuation per job. A job that
//! belongs to a call also has a pending reply; this table knows nothing of callers.
//!
//! Three kinds of jobs need no continuation here: a search and the parse of a line are found by their pending reply, whose id is
//! the id of the job; a lost task and a flush carry all that is needed in their result.

use std::collections::HashMap;

use belay_journal::{Expired, Query, ReadTicket, Rows};
use belay_protocol::RpcError;

use crate::effect::{Effect, Sample, SampleItem};
use crate::host::Host;
use crate::input::JobId;
use crate::runtime::{Core, Stage};
use crate::tasks::{OutputPage, OutputRead, journal_error};

type Continuation<H, T> = Box<dyn FnOnce(&mut Core<H>, T)>;

/// What to do with the result of a job, by what it is.
enum Then<H: Host> {
    Rows(ReadTicket, Continuation<H, Result<Rows, RpcError>>),
    Sample(Continuation<H, Sample>),
    Expired(Continuation<H, Result<Expired, RpcError>>),
    Output(Continuation<H, Result<OutputPage, RpcError>>),
    Freed(Continuation<H, u64>),
    Written(Continuation<H, std::io::Result<()>>),
}

struct Job<H: Host> {
    /// The method or the timer that began the job.
    cause: &'static str,
    then: Then<H>,
}

pub(crate) struct Jobs<H: Host> {
    running: HashMap<JobId, Job<H>>,
}

impl<H: Host> Default for Jobs<H> {
    fn default() -> Self {
        Self { running: HashMap::new() }
    }
}

impl<H: Host> Core<H> {
    /// Asks the journal's reader, and continues with what it found, merged with what was appended meanwhile.
    pub(crate) fn read_journal(
        &mut self,
        query: Query,
        then: impl FnOnce(&mut Self, Result<Rows, RpcError>) + 'static,
    ) {
        let ticket = self.ctx.journal.begin_read();
        let job = self.add_job(Then::Rows(ticket, Box::new(then)));
        self.ctx.effects.push(Stage::Unconditional, Effect::ReadJournal { job, query });
    }

    pub(crate) fn sample(&mut self, items: Vec<SampleItem>, then: impl FnOnce(&mut Self, Sample) + 'static) {
        let job = self.add_job(Then::Sample(Box::new(then)));
        self.ctx.effects.push(Stage::Unconditional, Effect::Sample { job, items });
    }

    pub(crate) fn expire_events(
        &mut self,
        rule: belay_journal::EventRule,
        then: impl FnOnce(&mut Self, Result<Expired, RpcError>) + 'static,
    ) {
        let job = self.add_job(Then::Expired(Box::new(then)));
        self.ctx.effects.push(Stage::Unconditional, Effect::ExpireEvents { job, rule });
    }

    /// Reads output, and continues with what was read: at once if the log is in memory, which is small.
    pub(crate) fn read_output(
        &mut self,
        read: OutputRead,
        then: impl FnOnce(&mut Self, Result<OutputPage, RpcError>) + 'static,
    ) {
        if read.is_in_memory() {
            let page = read.run();
            return then(self, page);
        }
        let job = self.add_job(Then::Output(Box::new(then)));
        self.ctx.effects.push(Stage::Unconditional, Effect::ReadOutput { job, read: Box::new(read) });
    }

    /// Removes directories at this stage.
    pub(crate) fn remove_dirs(
        &mut self,
        stage: Stage,
        dirs: Vec<std::path::PathBuf>,
        then: impl FnOnce(&mut Self, u64) + 'static,
    ) {
        let job = self.add_job(Then::Freed(Box::new(then)));
        self.ctx.effects.push(stage, Effect::RemoveDirs { job, dirs });
    }

    pub(crate) fn write_settings(
        &mut self,
        path: std::path::PathBuf,
        text: Vec<u8>,
        then: impl FnOnce(&mut Self, std::io::Result<()>) + 'static,
    ) {
        let job = self.add_job(Then::Written(Box::new(then)));
        self.ctx.effects.push(Stage::Unconditional, Effect::WriteSettings { job, path, text });
    }

    fn add_job(&mut self, then: Then<H>) -> JobId {
        let job = JobId(self.ctx.next_number());
        self.jobs.running.insert(job, Job { cause: self.steps.cause(), then });
        job
    }

    fn take_job(&mut self, job: JobId) -> Option<Then<H>> {
        let Job { cause, then } = self.jobs.running.remove(&job)?;
        self.steps.set_cause(cause);
        Some(then)
    }

    // --- results ---

    pub(crate) fn journal_read(
        &mut self,
        job: JobId,
        result: Result<belay_journal::Found, belay_journal::Error>,
    ) {
        let Some(Then::Rows(ticket, then)) = self.take_job(job) else { return };
        match result {
            Ok(found) => {
                let rows = self.ctx.journal.end_read(ticket, found);
                then(self, Ok(rows));
            }
            Err(error) => {
                self.ctx.journal.cancel_read(ticket);
                tracing::warn!(%error, "a read of the journal failed");
                then(self, Err(journal_error(&error)));
            }
        }
    }

    pub(crate) fn sampled(&mut self, job: JobId, sample: Sample) {
        if let Some(Then::Sample(then)) = self.take_job(job) {
            then(self, sample);
        }
    }

    pub(crate) fn events_expired(&mut self, job: JobId, result: Result<Expired, belay_journal::Error>) {
        if let Ok(expired) = &result {
            self.ctx.journal.events_expired(expired.first_event);
        }
        if let Some(Then::Expired(then)) = self.take_job(job) {
            then(self, result.map_err(|error| journal_error(&error)));
        }
    }

    pub(crate) fn output_read_done(&mut self, job: JobId, page: Result<OutputPage, RpcError>) {
        if let Some(Then::Output(then)) = self.take_job(job) {
            then(self, page);
        }
    }

    pub(crate) fn dirs_removed(&mut self, job: JobId, freed_bytes: u64) {
        if let Some(Then::Freed(then)) = self.take_job(job) {
            then(self, freed_bytes);
        }
    }

    pub(crate) fn settings_written(&mut self, job: JobId, result: std::io::Result<()>) {
        if let Some(Then::Written(then)) = self.take_job(job) {
            then(self, result);
        }
    }
}
