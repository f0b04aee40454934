//! What a start may say about its limits beside their lengths.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A clock that a task can be without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NoLimit {
    Timeout,
    Ttl,
    Silence,
}
