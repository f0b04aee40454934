//! `task/stop`: how it is asked for, and what it answers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::TaskStatus;
use crate::lane::LaneFenceInfo;
use crate::life::{StopLevel, StopReceipt};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskStopParams {
    pub id: String,
    /// Default: terminate.
    #[serde(default)]
    pub level: Option<StopLevel>,
    #[serde(default)]
    pub grace_ms: Option<u64>,
    #[serde(default)]
    pub reason: Option<String>,
    /// Who asks, as the caller names itself; the user is always added.
    #[serde(default)]
    pub actor: Option<String>,
    /// Everything that it has started through Belay first, leaf first, and then itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cascade: bool,
    /// Whether the owner of the task is fenced from its lane.
    #[serde(default, skip_serializing_if = "StopFence::is_default")]
    pub fence: StopFence,
    /// Answer when the tree is empty (or given up on), with the receipt. Default: true.
    #[serde(default = "yes")]
    pub wait: bool,
}

const fn yes() -> bool {
    true
}

/// Whether a stop fences the owner of the task from its lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopFence {
    /// If the caller is not the owner, nor acts for it.
    #[default]
    Auto,
    /// In any case, also if the caller is the owner.
    Yes,
    No,
}

impl StopFence {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
    fn is_default(&self) -> bool {
        *self == Self::Auto
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopVerdict {
    Accepted,
    AlreadyEnded,
    NotFound,
    NotPermitted,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TaskStopResult {
    pub id: String,
    pub result: StopVerdict,
    /// The status after the stop.
    pub status: Option<TaskStatus>,
    pub receipt: Option<StopReceipt>,
    /// Whoever held a lane with it may not have that lane until it is released.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fenced: Option<LaneFenceInfo>,
    /// With `cascade`: what was stopped below it, in the order in which it ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub below: Vec<TaskStopResult>,
}

impl TaskStopResult {
    /// Without a receipt yet, or without need of one.
    pub const fn bare(id: String, result: StopVerdict, status: Option<TaskStatus>) -> Self {
        Self { id, result, status, receipt: None, fenced: None, below: Vec::new() }
    }
}
