//! Everything that can reach the daemon's core: one closed enum of inputs, and the ids they carry. What the core wants
//! done in return is in `effect`.

use belay_journal::{Expired, FlushDone, Found};
use belay_protocol::RpcError;
use belay_protocol::shell::ShellReadResult;
use belay_protocol::shim::{FromShim, ProcessId};

use crate::effect::{LostTask, OutputPage, Reaped, Sample, Searched};

/// Names a client's connection for the life of this daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub u64);

/// Names a shim for the life of this daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShimId(pub u64);

/// Names a job that a worker runs beside the core; its result comes back under the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(pub u64);

/// The two clocks of a moment: one to tell the time, one to measure it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    pub wall_ms: i64,
    pub mono_ms: u64,
}

#[derive(Debug)]
pub enum Input {
    ClientConnected {
        client: ClientId,
        uid: u32,
        /// The process that made the connection and its ancestors, innermost first.
        ancestors: Vec<i32>,
        /// It belongs to some task, by its cgroup or as an orphan of this daemon, even if no shim is above it.
        in_task: bool,
    },
    ClientLine {
        client: ClientId,
        line: Vec<u8>,
    },
    /// So many bytes queued for the client have left. 0: there may be room for more.
    ClientWritten {
        client: ClientId,
        bytes: usize,
    },
    /// The client has closed its writing side and still reads.
    ClientHalfClosed {
        client: ClientId,
    },
    ClientGone {
        client: ClientId,
    },
    /// A shim asked for with [`Effect::SpawnShim`](crate::effect::Effect::SpawnShim) runs, or could not be started.
    ShimSpawned {
        shim: ShimId,
        process: ProcessId,
    },
    ShimNotSpawned {
        shim: ShimId,
        error: String,
    },
    /// A shim asked for with [`Effect::ConnectShim`](crate::effect::Effect::ConnectShim) is reached, or does not answer.
    ShimConnected {
        shim: ShimId,
    },
    ShimUnreachable {
        shim: ShimId,
        error: String,
        /// Its socket is gone: a shim removes it when it exits by itself, which it does only when it holds nothing.
        left: bool,
    },
    /// Everything that one read brought.
    ShimMessages {
        shim: ShimId,
        messages: Vec<FromShim>,
    },
    ShimGone {
        shim: ShimId,
    },
    /// The result of [`Effect::ReapLost`](crate::effect::Effect::ReapLost).
    LostReaped {
        lost: Box<LostTask>,
        result: Reaped,
    },
    Searched {
        job: JobId,
        result: Box<Result<Searched, RpcError>>,
    },
    /// None: the line could not be parsed in time.
    LineParsed {
        job: JobId,
        result: Option<Box<ShellReadResult>>,
    },
    Sampled {
        job: JobId,
        sample: Box<Sample>,
    },
    JournalRead {
        job: JobId,
        result: Box<Result<Found, belay_journal::Error>>,
    },
    JournalFlushed(Box<FlushDone>),
    EventsExpired {
        job: JobId,
        result: Result<Expired, belay_journal::Error>,
    },
    /// Directories of removed tasks are gone; so much disk space was freed.
    DirsRemoved {
        job: JobId,
        freed_bytes: u64,
    },
    OutputRead {
        job: JobId,
        result: Box<Result<OutputPage, RpcError>>,
    },
    SettingsWritten {
        job: JobId,
        result: std::io::Result<()>,
    },
    /// A timer may be due.
    Tick,
    /// The core said that it has work left ([`Core::has_backlog`](crate::runtime::Core::has_backlog)).
    Continue,
    /// The system asks the daemon to exit.
    Terminate,
}

impl Input {
    /// What kind of input it is, for the log and for the cost of steps.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::ClientConnected { .. } => "client_connected",
            Self::ClientLine { .. } => "request",
            Self::ClientWritten { .. } => "client_written",
            Self::ClientHalfClosed { .. } => "client_half_closed",
            Self::ClientGone { .. } => "client_gone",
            Self::ShimSpawned { .. } => "shim_spawned",
            Self::ShimNotSpawned { .. } => "shim_not_spawned",
            Self::ShimConnected { .. } => "shim_connected",
            Self::ShimUnreachable { .. } => "shim_unreachable",
            Self::ShimMessages { .. } => "shim_messages",
            Self::ShimGone { .. } => "shim_gone",
            Self::LostReaped { .. } => "lost_reaped",
            Self::Searched { .. } => "searched",
            Self::LineParsed { .. } => "line_parsed",
            Self::Sampled { .. } => "sampled",
            Self::JournalRead { .. } => "journal_read",
            Self::JournalFlushed(_) => "journal_flushed",
            Self::EventsExpired { .. } => "events_expired",
            Self::DirsRemoved { .. } => "dirs_removed",
            Self::OutputRead { .. } => "output_read",
            Self::SettingsWritten { .. } => "settings_written",
            Self::Tick => "tick",
            Self::Continue => "continue",
            Self::Terminate => "terminate",
        }
    }
}
