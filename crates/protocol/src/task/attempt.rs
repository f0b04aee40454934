//! A task that is run again when it fails: which attempt it is, and how the last one ended.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::life::ExitStatus;

/// Which run of a command it is that is run again when it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AttemptInfo {
    /// The one that was begun last; 0 before the first.
    pub number: u32,
    /// How many there may be in all.
    pub of: u32,
    /// How the last one that failed ended, and was followed by another or will be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<ExitStatus>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
pub(super) const fn is_zero(number: &u32) -> bool {
    *number == 0
}
