//! `task/stop`: how it is asked for, and what it answers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Status;
use crate::lane::FenceInfo;
use crate::life::{Receipt, StopLevel};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StopParams {
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
    /// Answer when the tree is empty (or given up on), with the receipt. Default: true.
    #[serde(default = "yes")]
    pub wait: bool,
}

const fn yes() -> bool {
    true
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
pub struct StopResult {
    pub id: String,
    pub result: StopVerdict,
    /// The status after the stop.
    pub status: Option<Status>,
    pub receipt: Option<Receipt>,
    /// Whoever held a lane with it may not have that lane until it is released.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fenced: Option<FenceInfo>,
    /// With `cascade`: what was stopped below it, in the order in which it ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub below: Vec<StopResult>,
}

impl StopResult {
    /// Without a receipt yet, or without need of one.
    pub const fn bare(id: String, result: StopVerdict, status: Option<Status>) -> Self {
        Self { id, result, status, receipt: None, fenced: None, below: Vec::new() }
    }
}
