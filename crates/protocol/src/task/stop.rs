//! `task/stop`: how it is asked for, and what it answers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::TaskStatus;
use crate::lane::LaneFenceInfo;
use crate::life::{StopLevel, StopReceipt};
use crate::rpc::RequestId;

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
    pub(super) fn is_default(&self) -> bool {
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
    /// Several tasks match. Only `task/stop_many` answers so; `task/stop` fails with the error that names them.
    Ambiguous,
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
    /// With `cascade`: how the stops of what was below it went. Their receipts came before, as `task/stopped` notifications.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub below: Option<StopCounts>,
}

/// How the stops of several tasks went. The receipt of each comes as a `task/stopped` notification before the result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StopCounts {
    /// All of them.
    pub tasks: u64,
    /// Ended by the stop.
    pub stopped: u64,
    /// Ended before the stop reached them.
    pub already_ended: u64,
    /// `stop_failed`, or not ended at the deadline.
    pub failed: u64,
    /// No such task, not permitted, or several tasks match: nothing was done.
    pub refused: u64,
}

impl StopCounts {
    pub fn add(&mut self, result: &TaskStopResult) {
        self.tasks += 1;
        let is_failed =
            result.status.is_some_and(|status| status == TaskStatus::StopFailed || !status.is_ended());
        *match result.result {
            StopVerdict::NotFound | StopVerdict::NotPermitted | StopVerdict::Ambiguous => &mut self.refused,
            StopVerdict::Accepted | StopVerdict::AlreadyEnded if is_failed => &mut self.failed,
            StopVerdict::Accepted => &mut self.stopped,
            StopVerdict::AlreadyEnded => &mut self.already_ended,
        } += 1;
    }
}

/// The notification `task/stopped`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TaskStoppedNotification {
    /// The id of the call that stops several tasks.
    pub request: RequestId,
    pub result: TaskStopResult,
}

/// Stop several tasks. Each is stopped by itself: none waits for another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskStopManyParams {
    /// At most 1,000. Ids, beginnings of ids, or names.
    pub ids: Vec<String>,
    /// Default: terminate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<StopLevel>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Who asks, as the caller names itself; the user is always added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor: Option<String>,
    /// Whether the owners of the tasks are fenced from their lanes.
    #[serde(default, skip_serializing_if = "StopFence::is_default")]
    pub fence: StopFence,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TaskStopManyResult {
    pub counts: StopCounts,
}

impl TaskStopResult {
    /// Without a receipt yet, or without need of one.
    pub const fn bare(id: String, result: StopVerdict, status: Option<TaskStatus>) -> Self {
        Self { id, result, status, receipt: None, fenced: None, below: None }
    }
}
