//! The shim protocol: what a daemon and the holder of one task say to each other. Frames are a little-endian
//! `u32` length and that many bytes of JSON; unknown fields are ignored, so that old and new can talk.

use serde::{Deserialize, Serialize};

use crate::bytes::Bytes;
use crate::life::{
    CaptureFault, ClockName, ExitStatus, OutputInfo, StartError, StopOrderInfo, StopReceipt, SurvivorInfo,
    TaskEnd,
};
use crate::task::{BudgetName, Budgets, OnTimeout, StallEvidence, StallParams, TerminalSize};

/// The version that this build speaks, and the oldest one of a shim that it can still adopt.
pub const SHIM_PROTOCOL: u32 = 2;
/// From this version on, a shim knows [`ToShim::SetStall`].
pub const SHIM_PROTOCOL_SET_STALL: u32 = 2;
pub const SHIM_PROTOCOL_OLDEST: u32 = 1;

/// The longest frame. Arguments and environment of one process are bounded by the kernel well below it.
pub const MAX_FRAME_BYTES: usize = 16 * 1024 * 1024;

/// From the daemon to a shim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToShim {
    /// The first words of a daemon that has just connected: the shim answers with `Hello`, and with every life
    /// event after number `seen` of the task it holds.
    Hello {
        protocol: u32,
        seen: u64,
    },
    Start(Box<Start>),
    /// The held task may begin. Said twice, or of another task, it says nothing.
    Admit {
        task: String,
    },
    Stop {
        order: StopOrderInfo,
    },
    /// Nobody waits for it any more; `by` says why.
    Detach {
        by: String,
    },
    Write {
        write: u64,
        data: Bytes,
        close: bool,
        #[serde(default)]
        key: Option<String>,
        /// If there is no room for it, say `Room` when there is.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        room: bool,
    },
    /// Change the size of the terminal. Only ever said to a shim that has told of one.
    Resize {
        resize: u64,
        size: TerminalSize,
    },
    /// One signal to the group of the leader.
    Signal {
        ask: u64,
        signal: i32,
    },
    /// The task waits for tasks that it has started, and need not get on itself; or no longer. Only ever said to the shim of a
    /// task that is looked at.
    Excuse {
        on: bool,
    },
    /// Check for progress in another way from now on, or no longer. Only sent to shims of protocol 2 and later.
    SetStall {
        stall: Option<StallParams>,
    },
    /// The task and what it has started have used more together than it may.
    OverBudget {
        budget: BudgetName,
        limit: u64,
        used: u64,
    },
    /// Say so whenever there is more output, or stop saying so.
    Watch {
        on: bool,
    },
    Query {
        query: u64,
    },
    /// The end is in the journal: forget it, and serve again if clean.
    Ack {
        task: String,
    },
}

/// Everything a shim needs to start a task. It is never written to disk: it holds the environment.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    pub task: String,
    /// The task's own directory, made by the shim when there is something to put into it.
    pub dir: Bytes,
    pub argv: Vec<Bytes>,
    /// The argument that a person would call the program: the shell's line is not a missing program.
    pub is_shell: bool,
    pub env: Vec<Bytes>,
    pub cwd: Bytes,
    #[serde(default)]
    pub umask: Option<u32>,
    #[serde(default)]
    pub rlimits: Vec<Rlimit>,
    pub stdin: bool,
    /// At this socket the caller hands its own standard input over.
    #[serde(default)]
    pub stdin_from: Option<String>,
    /// Standard error goes where standard output goes.
    #[serde(default)]
    pub merge: bool,
    /// A terminal of this size instead of pipes.
    #[serde(default)]
    pub pty: Option<TerminalSize>,
    pub detached: bool,
    pub clocks: Clocks,
    /// How much output is kept on disk.
    pub output_limit_bytes: u64,
    #[serde(default, skip_serializing_if = "Budgets::is_empty")]
    pub budgets: Budgets,
    /// So much of the output stays in memory while somebody waits for the task.
    #[serde(default)]
    pub memory_bytes: u64,
    /// Somebody waits for the pid. Otherwise it may be told together with what follows it.
    #[serde(default)]
    pub hurry: bool,
    /// It waits for its turn: the shim keeps all of this in its memory until `Admit` comes.
    #[serde(default)]
    pub held: bool,
}

impl std::fmt::Debug for Start {
    /// Without the environment: it may hold secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Start").field("task", &self.task).field("argv", &self.argv).finish_non_exhaustive()
    }
}

/// A resource limit, by the kernel's number of it; `u64::MAX` is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rlimit {
    pub resource: u32,
    pub soft: u64,
    pub hard: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clocks {
    #[serde(default)]
    pub timeout_ms: Option<u64>,
    #[serde(default)]
    pub on_timeout: OnTimeout,
    #[serde(default)]
    pub ttl_ms: Option<u64>,
    #[serde(default)]
    pub silence_ms: Option<u64>,
    pub grace_ms: u64,
    pub kill_ms: u64,
    /// How often it is run again when it has failed by itself, and how long after each failure.
    #[serde(default, skip_serializing_if = "none")]
    pub retries: u32,
    #[serde(default)]
    pub retry_delay_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stall: Option<StallParams>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
const fn none(number: &u32) -> bool {
    *number == 0
}

/// From a shim to the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromShim {
    Hello(Hello),
    /// Clean, and ready for a task.
    Ready,
    Life(LifeItem),
    /// So much has been written by now. Said while somebody watches, and once when the first of it is on disk.
    Output {
        bytes: u64,
    },
    /// The output lies in memory, in files that the shim has open under these numbers; or no longer.
    Memory {
        numbers: Option<[i32; 2]>,
    },
    /// What was asked for with `Query`.
    Now(Box<Now>),
    /// It was sent to so many.
    Signalled {
        ask: u64,
        processes: u64,
    },
    Written {
        write: u64,
        result: WriteResult,
    },
    /// The command has read much of what waited for it, or reads no more. Said once after a write that asked for it was refused.
    Room,
    /// The size that the terminal has now; none where there is no terminal.
    Resized {
        resize: u64,
        pty: Option<TerminalSize>,
    },
}

impl FromShim {
    /// The kind of the message.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Hello(_) => "hello",
            Self::Ready => "ready",
            Self::Life(_) => "life",
            Self::Output { .. } => "output",
            Self::Memory { .. } => "memory",
            Self::Now(_) => "now",
            Self::Signalled { .. } => "signalled",
            Self::Written { .. } => "written",
            Self::Room => "room",
            Self::Resized { .. } => "resized",
        }
    }
}

/// Who a shim is and what it holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    pub protocol: u32,
    pub version: String,
    pub shim: String,
    pub process: ProcessId,
    #[serde(default)]
    pub cgroup: Option<Bytes>,
    #[serde(default)]
    pub task: Option<String>,
    /// The task waits for its turn: `Admit` has not come.
    #[serde(default)]
    pub queued: bool,
    /// What the task is, for a daemon whose journal does not know it.
    #[serde(default)]
    pub spec: Option<Box<Spec>>,
    /// As in `Memory`.
    #[serde(default)]
    pub memory: Option<[i32; 2]>,
}

/// What a shim knows of its task and may tell: not its environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    pub argv: Vec<Bytes>,
    pub is_shell: bool,
    pub cwd: Bytes,
    pub detached: bool,
    pub clocks: Clocks,
    /// When the shim was told of it, whether or not it had to wait then.
    pub started_ms: i64,
    #[serde(default, skip_serializing_if = "Budgets::is_empty")]
    pub budgets: Budgets,
    /// The size that its terminal has now.
    #[serde(default)]
    pub pty: Option<TerminalSize>,
}

/// A pid with its start time: one process, for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProcessId {
    pub pid: i32,
    pub start_ticks: u64,
}

/// One thing that changed a task's state, numbered from 1 within the task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LifeItem {
    pub task: String,
    pub number: u64,
    pub at_ms: i64,
    pub event: LifeEvent,
    /// Present with the event that ended the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<Box<EndRecord>>,
}

/// The events of a life that change its state, as the shim saw them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LifeEvent {
    Spawned {
        process: ProcessId,
        mono_ms: u64,
    },
    SpawnFailed {
        error: StartError,
    },
    LeaderExited {
        exit: ExitStatus,
    },
    TreeEmpty,
    Detach {
        by: String,
    },
    Stop {
        order: StopOrderInfo,
    },
    ClockRanOut {
        clock: ClockName,
    },
    BudgetRanOut {
        budget: BudgetName,
        limit: u64,
        used: u64,
    },
    Stalled {
        evidence: Box<StallEvidence>,
    },
    Recovered,
    /// The check for progress was changed by a client.
    StallSet {
        stall: Option<StallParams>,
    },
    Signalled {
        leader: bool,
        others: bool,
        gentle: bool,
    },
    Survivors {
        survivors: Vec<SurvivorInfo>,
    },
    ShimLost {
        known: String,
        survivors: Vec<SurvivorInfo>,
    },
}

/// The end as the shim tells it, and as it stands in the end file when no daemon was there to hear it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndRecord {
    pub end: TaskEnd,
    pub ended_at_ms: i64,
    #[serde(default)]
    pub receipt: Option<StopReceipt>,
    pub output: OutputInfo,
    #[serde(default)]
    pub capture: Option<CaptureFault>,
}

/// A shim's present, for `inspect`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Now {
    pub query: u64,
    pub output: OutputInfo,
    #[serde(default)]
    pub capture: Option<CaptureFault>,
    /// What is left on each running clock.
    pub clocks: Vec<(ClockName, u64)>,
    #[serde(default)]
    pub stdin_open: bool,
    #[serde(default)]
    pub pty: Option<TerminalSize>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WriteResult {
    /// Accepted whole; `pending` bytes wait in the shim for the command to read them.
    Accepted { pending: u64 },
    /// There is no standard input, or it has been closed.
    Closed,
    /// The command does not read and the shim's buffer is full.
    Full { pending: u64 },
}
