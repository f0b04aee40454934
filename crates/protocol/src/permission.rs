//! `permission/*`: questions of agents that a client or a person decides. The daemon asks clients; the first answer counts.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// What an option of a permission request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PermissionOptionKind {
    AllowOnce,
    AllowAlways,
    RejectOnce,
    RejectAlways,
}

/// One possible answer to a permission request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PermissionOption {
    pub id: String,
    pub name: String,
    pub kind: PermissionOptionKind,
}

/// An agent asks for permission.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PermissionAskParams {
    /// The id of the permission request.
    pub permission: String,
    /// The agent.
    pub task: String,
    /// What the agent wants to do, in a sentence.
    pub title: String,
    pub options: Vec<PermissionOption>,
    /// When the request is denied if no client has answered.
    pub expires_at: Timestamp,
}

/// The decision of a client, tagged by `decision`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "decision", rename_all = "snake_case")]
pub enum PermissionAskResult {
    /// One of the options.
    Selected { option: String },
    /// This client does not decide; another client or a person may.
    Declined,
}
