//! `task/pulse`: how much a set of tasks writes and uses now. Cheaper than describing each of them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::TaskStatus;
use crate::time::Timestamp;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskPulseParams {
    /// 1 to 1,000 whole ids.
    pub ids: Vec<String>,
}

/// How much a task writes and uses now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TaskPulse {
    pub id: String,
    pub status: TaskStatus,
    /// How many bytes it has written in all.
    pub output_bytes: u64,
    /// When its last output came, as in `TaskInfo`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_output_at: Option<Timestamp>,
    /// How many processes it has now.
    pub processes: u64,
    /// Their resident memory. Memory that several share is counted for each of them.
    pub memory_bytes: u64,
    /// The processor time of the processes that live now.
    pub cpu_ms: u64,
    /// The number of the last event about the task, as in `TaskInfo`.
    pub last_event: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TaskPulseResult {
    /// In the order of the ids.
    pub pulses: Vec<TaskPulse>,
    /// The ids of tasks that do not exist, or that the caller may not see.
    pub unknown: Vec<String>,
    /// The number of the last event before the tasks were looked at, as in `task/list`.
    pub as_of: u64,
}
