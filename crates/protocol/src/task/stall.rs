//! Tasks that should get on: how often they are looked at, and what was seen of one that does not.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ProcessInfo;
use crate::time::Timestamp;

/// What is done about a task that does not get on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnStall {
    /// It is told, and the task goes on.
    #[default]
    Tell,
    Stop,
}

/// Look every so often whether a task gets on: whether it has written anything or worked noticeably since the last look, or
/// waits for a task that it has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StallParams {
    /// At least 100.
    pub after_ms: u64,
    #[serde(default)]
    pub policy: OnStall,
}

/// Change how a live task is checked for progress. The check begins anew, and a stalled task recovers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskSetStallParams {
    pub id: String,
    pub stall: StallSetting,
}

/// How a task is checked for progress, tagged by `kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum StallSetting {
    /// It is not checked.
    Off,
    /// It is checked every `after_ms`, which is at least 100.
    Check {
        after_ms: u64,
        #[serde(default)]
        policy: OnStall,
    },
}

impl From<Option<StallParams>> for StallSetting {
    fn from(params: Option<StallParams>) -> Self {
        params.map_or(Self::Off, |StallParams { after_ms, policy }| Self::Check { after_ms, policy })
    }
}

impl StallSetting {
    pub const fn params(self) -> Option<StallParams> {
        match self {
            Self::Off => None,
            Self::Check { after_ms, policy } => Some(StallParams { after_ms, policy }),
        }
    }
}

/// What was seen of a task that does not get on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StallEvidence {
    /// The time since the check before: in it, the task has written nothing. `output.last_at` of the task says when its last
    /// output came.
    pub silent_ms: u64,
    /// How much processor time all its processes together have used in it.
    pub cpu_ms: u64,
    /// How much it had written before.
    pub output_bytes: u64,
    /// Who is there and in which state, at most 20 of them.
    pub processes: Vec<ProcessInfo>,
    /// How many more there are.
    #[serde(default)]
    pub more: u64,
}

/// A task that makes no progress: when that was found, and by what evidence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StallInfo {
    pub since: Timestamp,
    #[serde(flatten)]
    pub evidence: StallEvidence,
}
