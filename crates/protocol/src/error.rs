//! Errors on the wire: a JSON-RPC code, a sentence, and typed data that names the field and the way out.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::lane::LaneFenceInfo;

/// What went wrong, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The line was no JSON-RPC message.
    Malformed,
    UnknownMethod,
    /// A parameter is missing or wrong; `field` names it.
    Invalid,
    NotFound,
    /// Several tasks fit what was asked for.
    Ambiguous,
    /// The same idempotency token came with other parameters.
    Conflict,
    NotPermitted,
    /// The task is not in a state in which this can be done.
    WrongState,
    /// What was asked for has been removed by the rules of retention; `data.from` says where one can go on.
    Expired,
    TooLarge,
    /// The lane is held by somebody else; `ids` names the task.
    LaneHeld,
    /// The caller may not have this lane any more; `data.fence` says who fenced it, when and why.
    Fenced,
    /// The caller's generation of this lane is outdated: the lane has had another holder since.
    Stale,
    /// A limit of the session or of the configuration is reached; nothing was started.
    Limit,
    /// A bound of the daemon is reached: connections, tasks, descriptors.
    Busy,
    /// The call's deadline passed before an answer was there.
    Deadline,
    DiskFull,
    /// The client cancelled the call.
    Cancelled,
    /// This version of the daemon cannot do it.
    Unsupported,
    /// The two sides speak different versions.
    Version,
    ShuttingDown,
    Internal,
}

impl ErrorKind {
    pub const fn code(self) -> i64 {
        match self {
            Self::Malformed => -32700,
            Self::UnknownMethod => -32601,
            Self::Invalid => -32602,
            Self::Internal => -32603,
            Self::NotFound => -32001,
            Self::Ambiguous => -32002,
            Self::Conflict => -32003,
            Self::NotPermitted => -32004,
            Self::WrongState => -32005,
            Self::Expired => -32006,
            Self::TooLarge => -32007,
            Self::Busy => -32008,
            Self::Deadline => -32009,
            Self::DiskFull => -32010,
            Self::Version => -32011,
            Self::ShuttingDown => -32012,
            Self::LaneHeld => -32013,
            Self::Fenced => -32014,
            Self::Limit => -32015,
            Self::Unsupported => -32016,
            Self::Cancelled => -32017,
            Self::Stale => -32018,
        }
    }
}

/// The error object of JSON-RPC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RpcError {
    pub code: i64,
    pub message: String,
    /// Boxed, so that a `Result` that may carry it stays small.
    pub data: Box<ErrorData>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorData {
    pub kind: ErrorKind,
    /// The parameter at fault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// The ids that fitted, for `ambiguous`; the task that has the token, for `conflict`; the holder, for `lane_held`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<String>,
    /// Where a reader can go on, for `expired`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<u64>,
    /// Who may not have the lane any more and why, for `fenced`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<LaneFenceInfo>,
}

impl RpcError {
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let data =
            Box::new(ErrorData { kind, field: None, hint: None, ids: Vec::new(), from: None, fence: None });
        Self { code: kind.code(), message: message.into(), data }
    }

    /// The daemon is on its way out and is as good as gone: the next one is to be asked.
    pub fn is_leaving(&self) -> bool {
        self.data.kind == ErrorKind::ShuttingDown
    }

    pub fn invalid(field: &str, message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message).field(field)
    }

    pub fn field(mut self, field: &str) -> Self {
        self.data.field = Some(field.to_owned());
        self
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.data.hint = Some(hint.into());
        self
    }

    pub fn ids(mut self, ids: Vec<String>) -> Self {
        self.data.ids = ids;
        self
    }

    pub fn fence(mut self, fence: LaneFenceInfo) -> Self {
        self.data.fence = Some(fence);
        self
    }

    pub fn from_position(mut self, from: u64) -> Self {
        self.data.from = Some(from);
        self
    }
}

/// Stands between a message and its hint in the text of a parse error.
const HINT_MARK: &str = " (hint: ";

/// The text of a parse error that carries a hint of its own. [`split_hint`] takes it apart.
pub(crate) fn with_hint(message: &impl std::fmt::Display, hint: &str) -> String {
    format!("{message}{HINT_MARK}{hint})")
}

/// The message and the hint of a parse error, where it carries one. What the parser adds about the position is dropped.
pub(crate) fn split_hint(text: &str) -> Option<(&str, &str)> {
    let (message, rest) = text.split_once(HINT_MARK)?;
    Some((message, rest.rsplit_once(')')?.0))
}

impl std::fmt::Display for RpcError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for RpcError {}
