//! How a task ended: one enum, tagged by `kind`. How it is concluded from what the shim saw is not decided here.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::BudgetName;
use crate::life::{CaptureFault, ClockName, Receipt, StartStage, StopCause, StopLevel, SurvivorInfo};

/// One list for the members of [`OutcomeKind`], their names on the wire, and the variants of [`Outcome`].
macro_rules! outcome_kinds {
    ($($member:ident = $name:literal),* $(,)?) => {
        /// The kind of an outcome, without its fields.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum OutcomeKind {
            $( $member, )*
        }

        impl OutcomeKind {
            pub const ALL: &[Self] = &[$( Self::$member, )*];

            /// The name on the wire.
            pub const fn name(self) -> &'static str {
                match self { $( Self::$member => $name, )* }
            }
        }

        impl Outcome {
            pub const fn kind(&self) -> OutcomeKind {
                match self { $( Self::$member { .. } => OutcomeKind::$member, )* }
            }

            /// What could not be captured of the task's output.
            pub const fn capture(&self) -> Option<&CaptureFault> {
                match self { $( Self::$member { capture, .. } => capture.as_ref(), )* }
            }
        }
    };
}

outcome_kinds! {
    Exited = "exited",
    Signaled = "signaled",
    Spawn = "spawn",
    Cancelled = "cancelled",
    TimedOut = "timed_out",
    Budget = "budget",
    StopFailed = "stop_failed",
    Lost = "lost",
}

/// How a task ended. `exit_code` and `signal` of a stopped task say how its leader ended, where that is known. `capture` is
/// there only if some of the output was lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Outcome {
    /// The command exited by itself.
    Exited {
        exit_code: i32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        capture: Option<CaptureFault>,
    },
    /// The command died of a signal that Belay did not send to stop it.
    Signaled {
        signal: i32,
        core_dumped: bool,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        capture: Option<CaptureFault>,
    },
    /// The command could not be started.
    Spawn {
        error: SpawnError,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        capture: Option<CaptureFault>,
    },
    /// An actor stopped the task.
    Cancelled {
        actor: String,
        reason: Option<String>,
        /// The level that was asked for; the receipt has the hardest one that was needed.
        level: StopLevel,
        receipt: Receipt,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exit_code: Option<i32>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signal: Option<i32>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        capture: Option<CaptureFault>,
    },
    /// A clock of the task ran out.
    TimedOut {
        clock: ClockName,
        limit_ms: u64,
        receipt: Receipt,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exit_code: Option<i32>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signal: Option<i32>,
        /// Of a stall: what was seen.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        capture: Option<CaptureFault>,
    },
    /// The task exceeded a budget.
    Budget {
        budget: BudgetInfo,
        receipt: Receipt,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exit_code: Option<i32>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signal: Option<i32>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        capture: Option<CaptureFault>,
    },
    /// The task was stopped, and some of its processes outlived SIGKILL.
    StopFailed {
        survivors: Vec<SurvivorInfo>,
        receipt: Receipt,
        /// Why the task was stopped.
        #[serde(flatten)]
        cause: StopCause,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exit_code: Option<i32>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signal: Option<i32>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        capture: Option<CaptureFault>,
    },
    /// The end of the task is not known.
    Lost {
        /// What is known about it.
        reason: String,
        survivors: Vec<SurvivorInfo>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        capture: Option<CaptureFault>,
    },
}

impl Outcome {
    /// The exit code of the leader, if it exited and that is known.
    pub const fn exit_code(&self) -> Option<i32> {
        match self {
            Self::Exited { exit_code, .. } => Some(*exit_code),
            Self::Cancelled { exit_code, .. }
            | Self::TimedOut { exit_code, .. }
            | Self::Budget { exit_code, .. }
            | Self::StopFailed { exit_code, .. } => *exit_code,
            Self::Signaled { .. } | Self::Spawn { .. } | Self::Lost { .. } => None,
        }
    }

    /// The signal that the leader died of, if it did and that is known.
    pub const fn signal(&self) -> Option<i32> {
        match self {
            Self::Signaled { signal, .. } => Some(*signal),
            Self::Cancelled { signal, .. }
            | Self::TimedOut { signal, .. }
            | Self::Budget { signal, .. }
            | Self::StopFailed { signal, .. } => *signal,
            Self::Exited { .. } | Self::Spawn { .. } | Self::Lost { .. } => None,
        }
    }

    /// What the stop did, if the task was stopped.
    pub const fn receipt(&self) -> Option<&Receipt> {
        match self {
            Self::Cancelled { receipt, .. }
            | Self::TimedOut { receipt, .. }
            | Self::Budget { receipt, .. }
            | Self::StopFailed { receipt, .. } => Some(receipt),
            Self::Exited { .. } | Self::Signaled { .. } | Self::Spawn { .. } | Self::Lost { .. } => None,
        }
    }

    /// The processes that outlived SIGKILL.
    pub fn survivors(&self) -> &[SurvivorInfo] {
        match self {
            Self::StopFailed { survivors, .. } | Self::Lost { survivors, .. } => survivors,
            Self::Exited { .. }
            | Self::Signaled { .. }
            | Self::Spawn { .. }
            | Self::Cancelled { .. }
            | Self::TimedOut { .. }
            | Self::Budget { .. } => &[],
        }
    }

    /// Who asked for the stop, if someone did.
    pub fn actor(&self) -> Option<&str> {
        match self {
            Self::Cancelled { actor, .. } => Some(actor),
            Self::StopFailed { cause: StopCause::Asked { order }, .. } => Some(&order.actor),
            Self::StopFailed { cause: StopCause::Clock { .. } | StopCause::Budget { .. }, .. }
            | Self::Exited { .. }
            | Self::Signaled { .. }
            | Self::Spawn { .. }
            | Self::TimedOut { .. }
            | Self::Budget { .. }
            | Self::Lost { .. } => None,
        }
    }

    /// The reason that was given for the stop, or what is known about a lost task.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Cancelled { reason, .. }
            | Self::TimedOut { reason, .. }
            | Self::StopFailed { cause: StopCause::Clock { reason, .. }, .. } => reason.as_deref(),
            Self::StopFailed { cause: StopCause::Asked { order }, .. } => order.reason.as_deref(),
            Self::Lost { reason, .. } => Some(reason),
            Self::StopFailed { cause: StopCause::Budget { .. }, .. }
            | Self::Exited { .. }
            | Self::Signaled { .. }
            | Self::Spawn { .. }
            | Self::Budget { .. } => None,
        }
    }

    /// The clock that ran out, if one did.
    pub const fn clock(&self) -> Option<ClockName> {
        match self {
            Self::TimedOut { clock, .. } | Self::StopFailed { cause: StopCause::Clock { clock, .. }, .. } => {
                Some(*clock)
            }
            Self::StopFailed { cause: StopCause::Asked { .. } | StopCause::Budget { .. }, .. }
            | Self::Exited { .. }
            | Self::Signaled { .. }
            | Self::Spawn { .. }
            | Self::Cancelled { .. }
            | Self::Budget { .. }
            | Self::Lost { .. } => None,
        }
    }
}

/// A budget that was exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BudgetInfo {
    pub name: BudgetName,
    pub limit: u64,
    pub used: u64,
}

/// Why a command could not be started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SpawnError {
    /// What was missing or refused.
    pub what: StartStage,
    /// The system's error number, where there is one.
    pub errno: Option<i32>,
    pub message: String,
}
