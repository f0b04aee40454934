//! The words for where a task stands, and for how it is.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskStatus {
    Queued,
    Starting,
    Running,
    /// Between two attempts of a command that failed: nothing of it runs now.
    Retrying,
    /// An agent between two turns: it waits for a prompt.
    Idle,
    /// An agent that waits for a permission or for other input.
    InputNeeded,
    Stopping,
    Completed,
    Failed,
    Cancelled,
    TimedOut,
    Lost,
    StopFailed,
}

impl TaskStatus {
    /// Every status, live ones first.
    pub const ALL: &[Self] = &[
        Self::Queued,
        Self::Starting,
        Self::Running,
        Self::Retrying,
        Self::Idle,
        Self::InputNeeded,
        Self::Stopping,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
        Self::TimedOut,
        Self::Lost,
        Self::StopFailed,
    ];

    pub const fn is_ended(self) -> bool {
        match self {
            Self::Queued
            | Self::Starting
            | Self::Running
            | Self::Retrying
            | Self::Idle
            | Self::InputNeeded
            | Self::Stopping => false,
            Self::Completed
            | Self::Failed
            | Self::Cancelled
            | Self::TimedOut
            | Self::Lost
            | Self::StopFailed => true,
        }
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Retrying => "retrying",
            Self::Idle => "idle",
            Self::InputNeeded => "input_needed",
            Self::Stopping => "stopping",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::TimedOut => "timed_out",
            Self::Lost => "lost",
            Self::StopFailed => "stop_failed",
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskHealth {
    #[default]
    Ok,
    Stalled,
}
