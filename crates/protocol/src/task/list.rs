//! `task/list`: the filters of a list of tasks, and one page of it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{TaskInfo, TaskStatus};
use crate::labels::Labels;
use crate::time::Timestamp;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskListParams {
    /// Ended tasks too. They are also included if `ended_before` or a status of ended tasks is given.
    #[serde(default)]
    pub all: bool,
    /// Only tasks with one of these statuses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub status: Vec<TaskStatus>,
    /// Only tasks of this session and below it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Only tasks that hold, held or wait for this lane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lane: Option<String>,
    /// Only tasks with exactly this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Only tasks whose command, name or id contains this text, in any case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Only tasks whose `started_by` contains this text: `user:ada`, `via mcp`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor: Option<String>,
    /// Only tasks with all of these labels.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// Only tasks that ended before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_before: Option<Timestamp>,
    #[serde(default)]
    pub cursor: Option<String>,
    /// At most 1 000, which is also the default. 0 is refused.
    #[serde(default)]
    pub limit: Option<u32>,
}

/// One page of a list. Go on as long as there is a `next_cursor`: with a filter, a page can have few rows or none before
/// the last one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TaskListResult {
    /// Newest first.
    pub tasks: Vec<TaskInfo>,
    /// The number of the last event before this list was made. Follow from that of the first page, and skip an event about a task
    /// of a later page if its number is not above the task's `last_event`: no change is missed or applied twice.
    #[serde(default)]
    pub as_of: u64,
    #[serde(default)]
    pub next_cursor: Option<String>,
}
