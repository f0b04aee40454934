//! The words for where a task stands, and for how it is.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Queued,
    Starting,
    Running,
    /// Between two attempts of a command that failed: nothing of it runs now.
    Resting,
    Stopping,
    Completed,
    Failed,
    Cancelled,
    TimedOut,
    Lost,
    StopFailed,
}

impl Status {
    pub const fn is_ended(self) -> bool {
        match self {
            Self::Queued | Self::Starting | Self::Running | Self::Resting | Self::Stopping => false,
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
            Self::Resting => "resting",
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
pub enum Health {
    #[default]
    Ok,
    Stalled,
}
