//! The closed list of what can reach the daemon's core, and of what it can want done. Nothing else connects the core
//! to the world.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use crate::world::CrashPoint;
use belay_protocol::RpcError;
use belay_protocol::life::SurvivorInfo;
use belay_protocol::output::{SearchCursor, SearchResult};
use belay_protocol::shell::{ReadParams, ReadResult};
use belay_protocol::shim::{FromShim, ProcessId, ToShim};
use regex::bytes::{Regex, RegexBuilder};

/// Names a connection of a client, for the life of this daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub u64);

/// Names a shim, for the life of this daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShimId(pub u64);

/// The two clocks of a moment: one for telling, one for measuring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    pub wall_ms: i64,
    pub mono_ms: u64,
}

#[derive(Debug)]
pub enum Event {
    ClientCame {
        client: ClientId,
        uid: u32,
        /// The process that made the connection, and those above it, from the inside out.
        ancestors: Vec<i32>,
        /// It is of some task, by its cgroup or because it was left to this daemon, whether or not a shim is above it.
        of_a_task: bool,
    },
    ClientSaid {
        client: ClientId,
        line: Vec<u8>,
    },
    /// So many bytes that were queued for the client have left.
    ClientWrote {
        client: ClientId,
        bytes: usize,
    },
    /// The client says no more, and listens still: it has closed its writing side.
    ClientSaidAll {
        client: ClientId,
    },
    ClientGone {
        client: ClientId,
    },
    /// A shim asked for with [`Action::SpawnShim`] runs, or could not be started.
    ShimSpawned {
        shim: ShimId,
        process: ProcessId,
    },
    ShimNotSpawned {
        shim: ShimId,
        error: String,
    },
    /// A shim asked for with [`Action::ConnectShim`] is reached, or nobody is there.
    ShimConnected {
        shim: ShimId,
    },
    ShimUnreachable {
        shim: ShimId,
        error: String,
        /// Its socket is gone: a shim takes it away when it leaves by itself, which it does only when it holds nothing.
        left: bool,
    },
    /// Everything that one read brought.
    ShimSaid {
        shim: ShimId,
        messages: Vec<FromShim>,
    },
    ShimGone {
        shim: ShimId,
    },
    /// What [`Action::KillLost`] found and left.
    LostKilled {
        lost: Box<LostTask>,
        found: u64,
        survivors: Vec<SurvivorInfo>,
    },
    Searched {
        search: u64,
        result: Box<Result<Searched, RpcError>>,
    },
    /// What [`Action::ReadLine`] found; nothing if the line could not be read.
    LineRead {
        reading: u64,
        result: Option<Box<ReadResult>>,
    },
    /// A timer may be due.
    Tick,
    /// The system asks the daemon to end.
    Terminate,
}

#[derive(Debug)]
pub enum Action {
    /// One message, or several: each is a line.
    Send {
        client: ClientId,
        lines: Vec<u8>,
    },
    /// Let the connection go when everything has left.
    CloseClient {
        client: ClientId,
    },
    SpawnShim {
        shim: ShimId,
        name: String,
    },
    /// What a dead shim left that held no task: its socket and its cgroup. Nothing if it lives.
    ClearShim {
        name: String,
        process: ProcessId,
        cgroup: Option<PathBuf>,
    },
    /// Nobody listens there any more.
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
    /// Let the connection go. An idle shim then leaves by itself.
    DropShim {
        shim: ShimId,
    },
    KillLost(Box<LostTask>),
    Search {
        search: u64,
        what: Box<Search>,
    },
    /// A shell line is to be read, in a process of its own.
    ReadLine {
        reading: u64,
        params: Box<ReadParams>,
    },
    RemoveDir {
        path: PathBuf,
    },
    /// A place where a fault can be injected, between two other actions.
    Reach(CrashPoint),
    /// Everything is durable and said: end the process.
    Exit,
}

/// How to find what is left of a task whose shim is gone.
#[derive(Clone, Debug)]
pub struct LostTask {
    pub task: String,
    pub shim: ProcessId,
    pub leader: Option<ProcessId>,
    pub cgroup: Option<PathBuf>,
    /// Its shim was started by an earlier daemon, and left nobody to this one.
    pub adopted: bool,
}

/// A regular expression, compiled by whoever uses it first: that may take long, and is not done on the thread that decides.
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

    /// Ready to be used, or what is wrong with it.
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
    pub result: SearchResult,
    /// From where to look on when more has been written: what is not finished is looked at again.
    pub resume: SearchCursor,
}

/// A search that runs beside the core, because it may take long.
#[derive(Clone, Debug)]
pub struct Search {
    pub params: belay_protocol::output::SearchParams,
    pub pattern: Pattern,
    pub dir: PathBuf,
    /// The log, if it lies in memory.
    pub memory: Option<Arc<belay_record::MemoryLog>>,
    /// How many bytes the task has written, and whether it may write more.
    pub bytes: u64,
    pub ended: bool,
}
