//! `task/preview_stop`: what a stop would do, without doing it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ProcessInfo, StopFence, TaskStatus};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskPreviewStopParams {
    pub id: String,
    /// As in `task/stop`: stop what is below the task, too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cascade: bool,
    /// As in `task/stop`.
    #[serde(default, skip_serializing_if = "StopFence::is_default")]
    pub fence: StopFence,
}

/// What a stop of a task would do now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TaskPreviewStopResult {
    pub id: String,
    /// An ended task is not stopped: everything else is empty then.
    pub status: TaskStatus,
    /// The processes that would be signalled: the first 100.
    pub processes: Vec<ProcessInfo>,
    pub process_count: u64,
    /// How long the processes may take to end after the first signal, before they are killed.
    pub grace_ms: u64,
    /// The live tasks below it: the first 100. They are stopped with `cascade`, and go on without it.
    pub below: Vec<TaskBelow>,
    pub below_count: u64,
    pub below_is_stopped: bool,
    /// What would happen to its lane; none if it holds none and waits for none.
    pub lane: Option<LanePreview>,
}

/// A live task below another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TaskBelow {
    pub id: String,
    pub name: Option<String>,
    pub status: TaskStatus,
    pub command: String,
}

/// What a stop would do to a lane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LanePreview {
    pub lane: String,
    /// The task holds the lane now; else it waits for it.
    pub is_holder: bool,
    /// The owner that would be fenced from the lane.
    pub fenced: Option<String>,
    /// Queued tasks of that owner, which would be stopped, too: the first 100.
    pub stopped: Vec<String>,
    /// The task that would hold the lane next.
    pub next: Option<String>,
}
