//! What is going to happen and when, by the virtual clock. Of what is due in the same millisecond, chance decides the
//! order; what has an order of its own (a link, a connection) keeps it in its own queue.

use std::collections::BTreeMap;

use belay_daemon::effect::{LostTask, OutputRead, SampleItem};
use belay_daemon::input::{Input, JobId, ShimId};
use belay_journal::{EventRule, FlushJob, Query};

use super::process::Happening;
use super::rng::Rng;

#[derive(Debug)]
pub(crate) enum Job {
    StartDaemon,
    /// The daemon of this generation leaves, as it said it would.
    EndDaemon {
        daemon: u64,
    },
    /// The machine owes a daemon an event.
    Tell {
        daemon: u64,
        input: Box<Input>,
    },
    /// A worker of the daemon begins a job.
    Work {
        daemon: u64,
        job: Box<WorkerJob>,
    },
    SpawnShim {
        daemon: u64,
        shim: ShimId,
        name: String,
    },
    Connect {
        daemon: u64,
        shim: ShimId,
        name: String,
    },
    ReapLost {
        daemon: u64,
        lost: Box<LostTask>,
    },
    /// The next message of a link arrives.
    Down {
        link: u64,
    },
    Up {
        link: u64,
    },
    /// Something happens in a task's tree.
    Tree {
        task: String,
        happening: Happening,
    },
    /// A shim looks around: a child has died, or a round of killing is due.
    Wake {
        shim: usize,
    },
    /// A shim that has left disappears from the process table.
    ShimEnds {
        shim: usize,
    },
    ClientActs {
        client: usize,
    },
    /// The next line of a client reaches the daemon.
    ClientLine {
        client: usize,
        daemon: u64,
    },
    /// Somebody kills a shim.
    KillShim,
    SetWallClock,
}

/// What a daemon has given to one of its worker threads.
#[derive(Debug)]
pub(crate) enum WorkerJob {
    Flush(Box<FlushJob>),
    Read { job: JobId, query: Query },
    ExpireEvents { job: JobId, rule: EventRule },
    RemoveDirs { job: JobId, dirs: Vec<std::path::PathBuf> },
    Sample { job: JobId, items: Vec<SampleItem> },
    ReadOutput { job: JobId, read: Box<OutputRead> },
}

/// The worker threads of a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkerKind {
    Store,
    Reader,
    Files,
    Sampler,
    Output,
}

impl WorkerJob {
    pub(crate) const fn worker(&self) -> WorkerKind {
        match self {
            Self::Flush(_) | Self::ExpireEvents { .. } => WorkerKind::Store,
            Self::Read { .. } => WorkerKind::Reader,
            Self::RemoveDirs { .. } => WorkerKind::Files,
            Self::Sample { .. } => WorkerKind::Sampler,
            Self::ReadOutput { .. } => WorkerKind::Output,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Agenda {
    jobs: BTreeMap<(u64, u64, u64), Job>,
    count: u64,
}

impl Agenda {
    pub(crate) fn add(&mut self, at_ms: u64, rng: &mut Rng, job: Job) {
        self.count += 1;
        self.jobs.insert((at_ms, rng.draw(), self.count), job);
    }

    pub(crate) fn next_at(&self) -> Option<u64> {
        self.jobs.keys().next().map(|(at, ..)| *at)
    }

    pub(crate) fn take_due(&mut self, now_ms: u64) -> Option<Job> {
        let first = self.jobs.first_entry().filter(|entry| entry.key().0 <= now_ms)?;
        Some(first.remove())
    }
}
