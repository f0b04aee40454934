//! `call/*`: calls about other calls of the same connection.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rpc::RequestId;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CallCancelParams {
    /// The id of the call to cancel.
    pub request: RequestId,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CallCancelResult {
    /// False: the call had been answered, or was never made.
    pub cancelled: bool,
}
