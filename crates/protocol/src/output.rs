//! `output/*`: reading by absolute offset, searching, following. Reading never consumes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::base64_bytes::Base64Bytes;
use crate::rpc::RequestId;
use crate::time::Timestamp;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StreamName {
    Stdout,
    Stderr,
}

/// Where a read begins, tagged by `kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
pub enum OutputFrom {
    /// At this absolute offset.
    Offset { offset: u64 },
    /// This many lines before the end.
    TailLines { lines: u64 },
}

impl Default for OutputFrom {
    fn default() -> Self {
        Self::Offset { offset: 0 }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OutputReadParams {
    pub id: String,
    #[serde(default)]
    pub from: OutputFrom,
    /// At most 1 MiB, which is also the default. 0 is refused.
    #[serde(default)]
    pub max_bytes: Option<u64>,
    #[serde(default)]
    pub stream: Option<StreamName>,
    /// Return text instead of base64. No character is split between two reads.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub text: bool,
}

/// A run of bytes of one stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OutputChunk {
    pub stream: StreamName,
    /// The absolute offset of its first byte.
    pub offset: u64,
    /// How many bytes of output it covers.
    pub bytes: u64,
    pub at: Timestamp,
    /// The bytes, unless text was asked for.
    #[serde(default, skip_serializing_if = "Base64Bytes::is_empty")]
    pub data: Base64Bytes,
    /// The text, if it was asked for. Bytes that are not UTF-8 are replaced by U+FFFD.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

impl OutputChunk {
    /// A chunk that carries its bytes.
    pub const fn of_bytes(stream: StreamName, offset: u64, at: Timestamp, data: Vec<u8>) -> Self {
        Self { stream, offset, bytes: data.len() as u64, at, data: Base64Bytes(data), text: None }
    }

    /// The same with text instead of bytes.
    pub fn into_text(self) -> Self {
        Self { text: Some(into_text(self.data.0)), data: Base64Bytes::default(), ..self }
    }

    /// The absolute offset behind its last byte.
    pub const fn end(&self) -> u64 {
        self.offset + self.bytes
    }
}

/// Bytes as text; those that are not UTF-8 are replaced.
pub fn into_text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OutputReadResult {
    pub id: String,
    pub chunks: Vec<OutputChunk>,
    /// Ranges within what was read that were not kept, as `[from, to)`.
    pub gaps: Vec<[u64; 2]>,
    /// Where to go on.
    pub next: u64,
    /// How many bytes the task has written in all.
    pub bytes: u64,
    /// Nothing more will come: the task has ended and this read reached its last byte.
    pub eof: bool,
}

/// The lines of both streams, or of one, in the order in which they end. What lies between the start of the search and
/// the first newline of a stream is a line too, and so is what a stream has written behind its last newline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OutputSearchParams {
    pub id: String,
    /// A regular expression (Rust's `regex` syntax), tried on each line without its newline. `.` is a character of
    /// UTF-8; `(?-u:.)` is any byte.
    pub pattern: String,
    /// Where the search begins, if there is no cursor.
    #[serde(default)]
    pub after: u64,
    #[serde(default)]
    pub stream: Option<StreamName>,
    /// Lines of context before and after each match. More than 50 are refused.
    #[serde(default)]
    pub context: u32,
    /// At most 1 000 matches in one answer, which is also the default. 0 is refused.
    #[serde(default)]
    pub max_matches: Option<u32>,
    /// What an earlier answer gave to go on with. All else must be as it was in that call.
    #[serde(default)]
    pub cursor: Option<OutputSearchCursor>,
    /// Return text instead of base64.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub text: bool,
}

impl OutputSearchParams {
    /// Lines of context are held in memory while a match may come.
    pub const MAX_CONTEXT: u32 = 50;
}

/// How far a search has come. It is made to be given back as it is, not to be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OutputSearchCursor {
    /// Every line that ends before this offset is done with.
    pub at: u64,
    /// Where the search ends: what was there when it began.
    pub until: Option<u64>,
    /// Where the line of each stream begins that has no end before `at`.
    pub stdout: Option<u64>,
    pub stderr: Option<u64>,
    /// The number of the last line that is done with.
    pub number: u64,
    /// How many of the next lines are context of a match.
    pub owed: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OutputLine {
    pub stream: StreamName,
    pub offset: u64,
    /// The line without its newline, unless text was asked for.
    #[serde(default, skip_serializing_if = "Base64Bytes::is_empty")]
    pub data: Base64Bytes,
    /// The line as text, if it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// False for a line of context.
    pub matched: bool,
}

impl OutputLine {
    /// The same with text instead of bytes.
    pub fn into_text(self) -> Self {
        Self { text: Some(into_text(self.data.0)), data: Base64Bytes::default(), ..self }
    }
}

/// A line that a search shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OutputSearchLine {
    #[serde(flatten)]
    pub line: OutputLine,
    /// Counted over the lines that were searched, the first being 1. Lines lie together if their numbers do.
    pub number: u64,
    /// Its newline has not come yet, and still may.
    pub open: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OutputSearchResult {
    pub id: String,
    pub lines: Vec<OutputSearchLine>,
    /// Ranges within what was searched that were not kept, as `[from, to)`. A line ends where one begins.
    pub gaps: Vec<[u64; 2]>,
    /// The cursor of the next call; none if this is complete.
    pub next: Option<OutputSearchCursor>,
    pub bytes: u64,
    /// The whole output that was there when the search began has been searched.
    pub complete: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OutputFollowParams {
    pub id: String,
    #[serde(default)]
    pub from: OutputFrom,
    #[serde(default)]
    pub stream: Option<StreamName>,
    /// Send text instead of base64. No character is split between two chunks.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub text: bool,
}

/// The answer to `output/follow`; what follows are notifications.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OutputFollowResult {
    pub id: String,
    pub follow: u64,
    pub from: u64,
}

/// Which subscriptions of this connection end: one by its number, or all of a task, also that of its start. The start is then
/// answered without the rest of the output.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OutputUnfollowParams {
    /// The number that `output/follow` returned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow: Option<u64>,
    /// The task. Either this or `follow` is required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OutputUnfollowResult {
    /// How many subscriptions have ended.
    pub ended: u64,
}

/// The notification `output/chunk`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OutputChunkNotification {
    /// The id of the call that asked for it: `output/follow`, or `task/start` with `follow`.
    pub request: RequestId,
    pub id: String,
    pub follow: u64,
    pub chunks: Vec<OutputChunk>,
    pub gaps: Vec<[u64; 2]>,
    pub next: u64,
}

/// The notification `output/end`: the task has ended and every byte of it has been sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OutputEndNotification {
    /// The id of the call that asked for the output.
    pub request: RequestId,
    pub id: String,
    pub follow: u64,
    pub bytes: u64,
}
