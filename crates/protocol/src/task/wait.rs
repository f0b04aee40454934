//! `task/wait`: what is waited for, and what was met.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::TaskInfo;
use crate::output::{OutputSearchCursor, OutputSearchLine, StreamName};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskWaitParams {
    pub id: String,
    /// What to wait for. The end of the task always ends the wait.
    #[serde(default, skip_serializing_if = "WaitUntil::is_default")]
    pub until: WaitUntil,
    /// At most ten minutes; ask again to wait longer. Default: ten minutes.
    #[serde(default)]
    pub timeout_ms: Option<u64>,
    /// Wait as its caller does, in the foreground: a detach answers this wait, and the end of this connection is dealt with
    /// as the end of the caller's.
    #[serde(default)]
    pub attach: bool,
    /// Until a line of its output matches. What is there already counts; the end of the task ends the wait too.
    #[serde(default, rename = "match", skip_serializing_if = "Option::is_none")]
    pub matching: Option<OutputMatchParams>,
    /// Until it has written nothing for so long. The silence before this wait counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silence_ms: Option<u64>,
}

impl TaskWaitParams {
    /// A wait for nothing but the end.
    pub fn for_end(id: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            until: WaitUntil::Ended,
            timeout_ms: None,
            attach: false,
            matching: None,
            silence_ms: None,
        }
    }
}

/// What a wait waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WaitUntil {
    #[default]
    Ended,
    /// The command runs, or could not be started.
    Started,
    /// The turn of an agent has ended.
    Turn,
    /// An agent waits for a permission or for other input.
    InputNeeded,
}

impl WaitUntil {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
    fn is_default(&self) -> bool {
        *self == Self::Ended
    }
}

/// What a line of output is to match, as in `output/search`. One that has no end yet, such as a prompt, counts when nothing has followed
/// for 0.3 s.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OutputMatchParams {
    pub pattern: String,
    /// Where the search begins, if there is no cursor.
    #[serde(default)]
    pub after: u64,
    #[serde(default)]
    pub stream: Option<StreamName>,
    /// What an earlier wait for the same gave to go on with.
    #[serde(default)]
    pub cursor: Option<OutputSearchCursor>,
    /// Return the line as text instead of base64.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub text: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WaitMet {
    Ended,
    Started,
    Turn,
    InputNeeded,
    /// It goes on, and whoever waited as its caller is released.
    Detached,
    Match,
    Silence,
    Timeout,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TaskWaitResult {
    pub id: String,
    pub met: WaitMet,
    /// The line that matched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<OutputSearchLine>,
    /// How to go on looking for a match, missing nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<OutputMatchNext>,
    pub task: TaskInfo,
}

/// From where the next wait for a match looks on: exactly, with the cursor; or from the beginning of the oldest line that
/// is not finished, with the offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OutputMatchNext {
    pub after: u64,
    pub cursor: OutputSearchCursor,
}

impl From<OutputSearchCursor> for OutputMatchNext {
    fn from(cursor: OutputSearchCursor) -> Self {
        let open = [cursor.stdout, cursor.stderr].into_iter().flatten();
        Self { after: open.chain([cursor.at]).min().unwrap_or(cursor.at), cursor }
    }
}
