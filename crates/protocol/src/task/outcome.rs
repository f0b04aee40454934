//! How a task ended: one enum, tagged by `kind`. How it is concluded from what the shim saw is not decided here.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::BudgetName;
use crate::life::{CaptureFault, ClockName, StartStage, StopCause, StopLevel, StopReceipt, SurvivorInfo};

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
    TurnEnded = "turn_ended",
    Refused = "refused",
    MaxTokens = "max_tokens",
    Authentication = "authentication",
    Protocol = "protocol",
    Empty = "empty",
}

impl OutcomeKind {
    /// Whether only an agent ends like this.
    pub const fn is_of_agent(self) -> bool {
        match self {
            Self::TurnEnded
            | Self::Refused
            | Self::MaxTokens
            | Self::Authentication
            | Self::Protocol
            | Self::Empty => true,
            Self::Exited
            | Self::Signaled
            | Self::Spawn
            | Self::Cancelled
            | Self::TimedOut
            | Self::Budget
            | Self::StopFailed
            | Self::Lost => false,
        }
    }
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
        receipt: StopReceipt,
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
        receipt: StopReceipt,
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
        receipt: StopReceipt,
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
        receipt: StopReceipt,
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
    /// The agent ended its turn.
    TurnEnded {
        stop_reason: StopReason,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        usage: Option<AgentUsage>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        capture: Option<CaptureFault>,
    },
    /// The agent refused the prompt.
    Refused {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        capture: Option<CaptureFault>,
    },
    /// The agent reached its limit of tokens.
    MaxTokens {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        usage: Option<AgentUsage>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        capture: Option<CaptureFault>,
    },
    /// The agent is not signed in.
    Authentication {
        message: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        capture: Option<CaptureFault>,
    },
    /// The agent broke its protocol, or exited during a turn.
    Protocol {
        message: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exit_code: Option<i32>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signal: Option<i32>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        capture: Option<CaptureFault>,
    },
    /// The agent ended its turn without saying anything.
    Empty {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        capture: Option<CaptureFault>,
    },
}

/// Why an agent ended its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    EndTurn,
    MaxTurnRequests,
    Cancelled,
}

/// What a turn of an agent used, as far as the agent reported it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AgentUsage {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
}

impl Outcome {
    /// The exit code of the leader, if it exited and that is known.
    pub const fn exit_code(&self) -> Option<i32> {
        match self {
            Self::Exited { exit_code, .. } => Some(*exit_code),
            Self::Cancelled { exit_code, .. }
            | Self::TimedOut { exit_code, .. }
            | Self::Budget { exit_code, .. }
            | Self::StopFailed { exit_code, .. }
            | Self::Protocol { exit_code, .. } => *exit_code,
            Self::Signaled { .. }
            | Self::Spawn { .. }
            | Self::Lost { .. }
            | Self::TurnEnded { .. }
            | Self::Refused { .. }
            | Self::MaxTokens { .. }
            | Self::Authentication { .. }
            | Self::Empty { .. } => None,
        }
    }

    /// The signal that the leader died of, if it did and that is known.
    pub const fn signal(&self) -> Option<i32> {
        match self {
            Self::Signaled { signal, .. } => Some(*signal),
            Self::Cancelled { signal, .. }
            | Self::TimedOut { signal, .. }
            | Self::Budget { signal, .. }
            | Self::StopFailed { signal, .. }
            | Self::Protocol { signal, .. } => *signal,
            Self::Exited { .. }
            | Self::Spawn { .. }
            | Self::Lost { .. }
            | Self::TurnEnded { .. }
            | Self::Refused { .. }
            | Self::MaxTokens { .. }
            | Self::Authentication { .. }
            | Self::Empty { .. } => None,
        }
    }

    /// What the stop did, if the task was stopped.
    pub const fn receipt(&self) -> Option<&StopReceipt> {
        match self {
            Self::Cancelled { receipt, .. }
            | Self::TimedOut { receipt, .. }
            | Self::Budget { receipt, .. }
            | Self::StopFailed { receipt, .. } => Some(receipt),
            Self::Exited { .. }
            | Self::Signaled { .. }
            | Self::Spawn { .. }
            | Self::Lost { .. }
            | Self::TurnEnded { .. }
            | Self::Refused { .. }
            | Self::MaxTokens { .. }
            | Self::Authentication { .. }
            | Self::Protocol { .. }
            | Self::Empty { .. } => None,
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
            | Self::Budget { .. }
            | Self::TurnEnded { .. }
            | Self::Refused { .. }
            | Self::MaxTokens { .. }
            | Self::Authentication { .. }
            | Self::Protocol { .. }
            | Self::Empty { .. } => &[],
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
            | Self::Lost { .. }
            | Self::TurnEnded { .. }
            | Self::Refused { .. }
            | Self::MaxTokens { .. }
            | Self::Authentication { .. }
            | Self::Protocol { .. }
            | Self::Empty { .. } => None,
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
            Self::Authentication { message, .. } | Self::Protocol { message, .. } => Some(message),
            Self::StopFailed { cause: StopCause::Budget { .. }, .. }
            | Self::Exited { .. }
            | Self::Signaled { .. }
            | Self::Spawn { .. }
            | Self::Budget { .. }
            | Self::TurnEnded { .. }
            | Self::Refused { .. }
            | Self::MaxTokens { .. }
            | Self::Empty { .. } => None,
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
            | Self::Lost { .. }
            | Self::TurnEnded { .. }
            | Self::Refused { .. }
            | Self::MaxTokens { .. }
            | Self::Authentication { .. }
            | Self::Protocol { .. }
            | Self::Empty { .. } => None,
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
