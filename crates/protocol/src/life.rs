//! The words of a task's life on the wire: levels, clocks, ends, receipts. Both protocols use them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::task::BudgetName;
use crate::time::Timestamp;

/// Where a stop begins. Each level goes over to the next one if the tree is not empty after the grace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopLevel {
    /// Wait for the task to end by itself.
    Drain,
    /// SIGINT.
    Interrupt,
    /// SIGTERM.
    Terminate,
    /// SIGKILL, at once.
    Kill,
}

impl StopLevel {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Drain => "drain",
            Self::Interrupt => "interrupt",
            Self::Terminate => "terminate",
            Self::Kill => "kill",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ClockName {
    Timeout,
    Ttl,
    Silence,
    /// It is time to look whether the task gets on.
    Stall,
    /// The leader has exited, and whether others stay is being seen.
    Leave,
    /// The last attempt has failed, and the next begins when it rings.
    Retry,
    Grace,
    Kill,
}

impl ClockName {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Ttl => "ttl",
            Self::Silence => "silence",
            Self::Stall => "stall",
            Self::Leave => "leave",
            Self::Retry => "retry",
            Self::Grace => "grace",
            Self::Kill => "kill",
        }
    }
}

/// How one process ended: one of the two is there. Shims of every version write it like this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExitStatus {
    /// It exited with this code.
    Code(i32),
    /// It died of this signal.
    Signal { number: i32, core_dumped: bool },
}

/// A stop as somebody asked for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StopOrderInfo {
    pub level: StopLevel,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<u64>,
    pub actor: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A process that outlived SIGKILL.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SurvivorInfo {
    pub pid: i32,
    /// When it started, in the kernel's ticks since boot: with the pid it names one process for ever.
    pub start_ticks: u64,
    pub uid: u32,
    pub command: String,
}

/// One signal of a stop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SignalSent {
    pub signal: String,
    /// How many processes got it.
    pub processes: u64,
    /// How many may not be signalled by us.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub refused: u64,
    pub at: Timestamp,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// What a stop did: to whom, when, and what is left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StopReceipt {
    /// The hardest level that was needed.
    pub level: StopLevel,
    pub actor: String,
    #[serde(default)]
    pub reason: Option<String>,
    pub signals: Vec<SignalSent>,
    pub requested_at: Timestamp,
    /// When the tree was proved empty; none if it was not.
    pub empty_at: Option<Timestamp>,
    /// From the request to the proof (or to giving up), by a monotonic clock.
    pub took_ms: u64,
    pub survivors: Vec<SurvivorInfo>,
}

/// What was being done when a start failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StartStage {
    Resources,
    Cwd,
    Program,
    Shell,
    Arguments,
    Limits,
    Holder,
}

impl StartStage {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Resources => "resources",
            Self::Cwd => "cwd",
            Self::Program => "program",
            Self::Shell => "shell",
            Self::Arguments => "arguments",
            Self::Limits => "limits",
            Self::Holder => "holder",
        }
    }
}

/// Why a command could not be started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StartError {
    pub stage: StartStage,
    /// The system's error number, 0 where there is none.
    pub errno: i32,
    pub message: String,
}

/// How a task ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum TaskEnd {
    Exited {
        exit: ExitStatus,
    },
    Cancelled {
        order: StopOrderInfo,
        exit: Option<ExitStatus>,
    },
    TimedOut {
        clock: ClockName,
        limit_ms: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        exit: Option<ExitStatus>,
    },
    Budget {
        budget: BudgetName,
        limit: u64,
        used: u64,
        exit: Option<ExitStatus>,
    },
    Spawn {
        error: StartError,
    },
    Lost {
        known: String,
        survivors: Vec<SurvivorInfo>,
    },
    StopFailed {
        cause: StopCause,
        survivors: Vec<SurvivorInfo>,
        exit: Option<ExitStatus>,
    },
}

/// Why a task is being stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "cause")]
pub enum StopCause {
    Asked {
        order: StopOrderInfo,
    },
    Clock {
        clock: ClockName,
        limit_ms: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    Budget {
        budget: BudgetName,
        limit: u64,
        used: u64,
    },
}

/// What capturing the output could not do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CaptureFault {
    pub message: String,
    /// Bytes that were read from the command and could not be kept.
    pub lost_bytes: u64,
}

/// The sums of a task's output.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OutputInfo {
    /// How many bytes the task has written in all: the next absolute offset.
    pub bytes: u64,
    /// Ranges that were not kept, as `[from, to)`.
    pub gaps: Vec<[u64; 2]>,
    /// The lowest offset that can be read.
    pub first: u64,
    pub on_disk: bool,
    /// When the last bytes were read from the task, to about a tenth of a second; none if it has written nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_at: Option<Timestamp>,
}
