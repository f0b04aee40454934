//! Everything that the daemon's core can want done: one closed enum of effects, and the jobs that workers run beside the
//! core. In which order effects leave is decided in `runtime::effects`.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use belay_journal::{EventRule, FlushJob, Query};
use belay_protocol::life::{OutputInfo, SurvivorInfo};
use belay_protocol::output::{OutputSearchCursor, OutputSearchParams, OutputSearchResult};
use belay_protocol::shell::ShellReadParams;
use belay_protocol::shim::{ProcessId, ToShim};
use belay_protocol::task::ProcessInfo;
use belay_record::{EndFile, MemoryLog};
use regex::bytes::{Regex, RegexBuilder};

use crate::host::CrashPoint;
use crate::input::{ClientId, JobId, ShimId};
pub use crate::tasks::{OutputPage, OutputRead};

#[derive(Debug)]
pub enum Effect {
    /// One message or several, each a line.
    Send {
        client: ClientId,
        lines: Vec<u8>,
        /// A reply to a call: a leaving daemon waits until the client has read it.
        is_reply: bool,
    },
    /// Close the connection once everything queued has left.
    CloseClient {
        client: ClientId,
    },
    SpawnShim {
        shim: ShimId,
        name: String,
    },
    /// Remove what a dead shim without a task left: its socket and its cgroup. Nothing if it lives.
    ClearShim {
        name: String,
        process: ProcessId,
        cgroup: Option<PathBuf>,
    },
    RemoveSocket {
        name: String,
    },
    ConnectShim {
        shim: ShimId,
        name: String,
    },
    ToShim {
        shim: ShimId,
        message: ToShim,
    },
    /// Close the connection. An idle shim then exits by itself.
    CloseShim {
        shim: ShimId,
    },
    /// Find out how a task ended whose shim is gone.
    ReapLost(Box<LostTask>),
    Search {
        job: JobId,
        search: Box<Search>,
    },
    /// Parse a shell line in a process of its own.
    ParseLine {
        job: JobId,
        params: Box<ShellReadParams>,
    },
    /// Look at processes and logs of tasks.
    Sample {
        job: JobId,
        items: Vec<SampleItem>,
    },
    ReadJournal {
        job: JobId,
        query: Query,
    },
    /// Read output from disk.
    ReadOutput {
        job: JobId,
        read: Box<OutputRead>,
    },
    FlushJournal(Box<FlushJob>),
    ExpireEvents {
        job: JobId,
        rule: EventRule,
    },
    RemoveDirs {
        job: JobId,
        dirs: Vec<PathBuf>,
    },
    RemoveEndFile {
        dir: PathBuf,
    },
    WriteSettings {
        job: JobId,
        path: PathBuf,
        text: Vec<u8>,
    },
    /// A place between two other effects where a test can inject a crash.
    CrashPoint(CrashPoint),
    /// Everything is durable and sent: end the process.
    Exit,
}

/// A task whose shim is gone, and how to find out what became of it: first by its end file.
#[derive(Clone, Debug)]
pub struct LostTask {
    pub task: String,
    /// The task's directory, where the end file would be.
    pub dir: PathBuf,
    pub without_end_file: WithoutEndFile,
}

/// What to do about a lost task that has no end file.
#[derive(Clone, Debug)]
pub enum WithoutEndFile {
    /// Find and kill what is left of its tree.
    Kill(LostTree),
    /// Nothing: the shim never received the task, or the machine was restarted.
    Report,
}

/// How to find what is left of a tree whose shim is gone.
#[derive(Clone, Debug)]
pub struct LostTree {
    pub shim: ProcessId,
    pub leader: Option<ProcessId>,
    pub cgroup: Option<PathBuf>,
    /// Its shim was started by an earlier daemon: its orphans did not come to this one.
    pub adopted: bool,
}

/// What became of a lost task.
#[derive(Debug)]
pub enum Reaped {
    EndFile(Box<EndFile>),
    /// There is no end file; nothing was done.
    Nothing {
        /// Why the end file could not be read, if there is one.
        error: Option<String>,
    },
    Killed {
        found: u64,
        survivors: Vec<SurvivorInfo>,
        error: Option<String>,
    },
}

/// A regular expression, compiled by the worker that uses it first: that may take long.
#[derive(Clone, Debug)]
pub struct Pattern {
    source: Arc<str>,
    compiled: Arc<OnceLock<Result<Regex, String>>>,
}

impl Pattern {
    /// How large one may become.
    const COMPILED_BYTES: usize = 4 * 1024 * 1024;

    pub fn new(source: &str) -> Self {
        Self { source: source.into(), compiled: Arc::default() }
    }

    /// The compiled expression, or what is wrong with it.
    pub fn get(&self) -> Result<&Regex, &str> {
        let compile = || {
            let built = RegexBuilder::new(&self.source).size_limit(Self::COMPILED_BYTES).build();
            built.map_err(|error| error.to_string())
        };
        self.compiled.get_or_init(compile).as_ref().map_err(String::as_str)
    }
}

/// What a search found.
#[derive(Clone, Debug)]
pub struct Searched {
    pub result: OutputSearchResult,
    /// Where to continue when more has been written: unfinished lines are searched again.
    pub resume: OutputSearchCursor,
}

/// A search over one task's output.
#[derive(Clone, Debug)]
pub struct Search {
    pub params: OutputSearchParams,
    pub pattern: Pattern,
    pub dir: PathBuf,
    /// The log, if it is in memory.
    pub memory: Option<Arc<MemoryLog>>,
    /// How many bytes the task has written, if it has ended.
    pub ended_bytes: Option<u64>,
}

/// What to look at of one task.
#[derive(Clone, Debug)]
pub struct SampleItem {
    pub task: String,
    /// Below which process, and in which cgroup, to look for its processes.
    pub tree: Option<TreeRoot>,
    /// The directory of its log, for the sums of its output.
    pub log_dir: Option<PathBuf>,
}

#[derive(Clone, Debug)]
pub struct TreeRoot {
    pub shim: ProcessId,
    pub cgroup: Option<PathBuf>,
}

/// What a sample found, by task.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    pub processes: HashMap<String, Vec<ProcessInfo>>,
    pub usage: HashMap<String, belay_os::limits::Usage>,
    pub output: HashMap<String, OutputInfo>,
}
