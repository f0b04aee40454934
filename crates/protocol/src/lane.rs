//! `lane/*`: named seats that at most one task holds, who waits for them, and who may not have them any more.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// What a start does when its lane is held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LaneMode {
    /// It is refused, and the holder named.
    #[default]
    Reject,
    /// It waits for its turn.
    Queue,
    /// The holder is stopped, and the task starts when nobody of the holder is left.
    Replace,
}

/// The seat that a start wants.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LaneParams {
    pub name: String,
    #[serde(default)]
    pub mode: LaneMode,
    /// The generation that the caller last held the lane in: refused if somebody else has had it since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
}

/// A task's place in its lane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LaneSeat {
    pub name: String,
    /// The number of its holding; none while it waits. Later holdings of a lane have higher numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// While it waits: 1 is next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LaneListParams {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// At most 1,000, which is also the default. 0 is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LaneListResult {
    /// By name.
    pub lanes: Vec<LaneInfo>,
    /// The number of the last event before this list was made, as in `task/list`.
    #[serde(default)]
    pub as_of: u64,
    #[serde(default)]
    pub next_cursor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LaneInfo {
    pub name: String,
    /// Of the last holding.
    pub generation: u64,
    pub holder: Option<LaneHolderInfo>,
    /// The tasks that wait, in order: the first 100.
    pub queue: Vec<LaneHolderInfo>,
    /// How many tasks wait.
    #[serde(default)]
    pub queued: u64,
    /// The newest 100.
    pub fences: Vec<LaneFenceInfo>,
    /// How many owners are fenced.
    #[serde(default)]
    pub fenced: u64,
}

/// A task that holds a lane or waits for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LaneHolderInfo {
    pub task: String,
    /// For whom: a session, the outermost task of an agent, or `user`.
    pub owner: String,
    pub since: Timestamp,
    /// Why the lane is held although the task has ended: some of it could not be stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked: Option<String>,
}

/// An owner that may not have the lane until it is released: somebody else has stopped what it had there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LaneFenceInfo {
    pub lane: String,
    pub owner: String,
    pub generation: u64,
    /// The task that was stopped.
    pub task: String,
    /// Who stopped it, when and why.
    pub by: String,
    pub at: Timestamp,
    pub reason: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LaneReleaseParams {
    pub name: String,
    /// Only this owner's fence. Default: all of them.
    #[serde(default)]
    pub owner: Option<String>,
    #[serde(default)]
    pub reason: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LaneReleaseResult {
    /// The lane after it.
    pub lane: LaneInfo,
    /// The fences that are gone.
    pub released: Vec<LaneFenceInfo>,
    /// The ended task whose rest no longer blocks the lane.
    pub unblocked: Option<String>,
}
