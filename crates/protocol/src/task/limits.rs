//! What a start may say about its limits beside the lengths of its clocks: those that it shall not have, and budgets.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A clock that a task can be without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NoLimit {
    Timeout,
    Ttl,
    Silence,
    /// The check for progress.
    Stall,
}

/// The budget that a task has exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BudgetName {
    Output,
    Memory,
    Processes,
}

impl BudgetName {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Output => "output",
            Self::Memory => "memory",
            Self::Processes => "processes",
        }
    }
}

/// What a task may use in all. Going beyond one stops it, with that budget as its outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Budgets {
    /// Bytes written, both streams together. Not how much of it is kept: that is `output_limit_bytes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_bytes: Option<u64>,
    /// Memory of all its processes together, at any moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Processes with their threads, at any moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<u64>,
}

impl Budgets {
    pub const fn is_empty(&self) -> bool {
        self.output_bytes.is_none() && self.memory_bytes.is_none() && self.processes.is_none()
    }
}
