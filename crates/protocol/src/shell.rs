//! `shell/read`: what a command line means, said without running it; and what was made of the line of a task.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::bytes::Bytes;

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ShellReadParams {
    pub line: Bytes,
    /// Default: bash where there is one, else sh.
    #[serde(default)]
    pub shell: Option<Bytes>,
    /// Where a shell is that is named by a relative path. An absolute path.
    #[serde(default)]
    pub cwd: Option<Bytes>,
    /// As in `task/start`: a shell named without a path is looked for in its PATH.
    #[serde(default)]
    pub env: Vec<Bytes>,
}

impl std::fmt::Debug for ShellReadParams {
    /// Without the environment: it may hold secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadParams").field("line", &self.line).finish_non_exhaustive()
    }
}

/// What is done with a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LineVerdict {
    /// Nothing in it is asynchronous: it runs as written.
    Plain,
    /// It is one asynchronous command and nothing else: that command becomes a detached task, without the `&`.
    Detach,
    /// It runs as written, and whatever it leaves behind is held.
    Held,
    /// The shell does not accept it. It runs as written all the same, and the shell says what is wrong.
    SyntaxError,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ShellReadResult {
    pub verdict: LineVerdict,
    /// The same for people, in a sentence.
    pub explanation: String,
    /// What runs in the place of the line, if it is detached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Bytes>,
    /// The shell that would run it.
    pub shell: Bytes,
    /// Where `&` is an operator of its own in the line: from, to, in bytes.
    pub ampersands: Vec<[u64; 2]>,
}

/// What was made of a task's line, where something in it is asynchronous or the shell refused it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LineInfo {
    pub verdict: LineVerdict,
    pub explanation: String,
}
