//! `session/*`: one client's scope, held by a lease. What a task may do is its scope's; what becomes of it is its session's.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::daemon::ClientInfo;
use crate::labels::Labels;
use crate::task::{OnTimeout, StallParams, StopCounts, TaskInfo};
use crate::time::Timestamp;

/// What becomes of a session's tasks when it ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnSessionEnd {
    #[default]
    Stop,
    Keep,
}

impl OnSessionEnd {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Keep => "keep",
        }
    }
}

/// What holds a session open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SessionHold {
    /// `session/renew`, before each `lease_ms` is over.
    #[default]
    Lease,
    /// The connections on which it was opened or renewed: it lapses when the last of them has ended.
    Connection,
    /// Nothing has to: the standing session of a person, which does not end.
    Nothing,
}

/// What the tasks of a session get that do not say otherwise. Whoever runs inside the session may ask for less, not for more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionDefaults {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_timeout: Option<OnTimeout>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silence_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_limit_bytes: Option<u64>,
    /// How tasks are checked for progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stall: Option<StallParams>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionOpenParams {
    #[serde(default)]
    pub name: Option<String>,
    /// To find it and its events by; bounds as in `task/start`.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    #[serde(default)]
    pub hold: SessionHold,
    /// How long it is held without being renewed. Default: one minute.
    #[serde(default)]
    pub lease_ms: Option<u64>,
    /// How long after the lease is lost it can be regained before the session ends. Default: half a minute.
    #[serde(default)]
    pub grace_ms: Option<u64>,
    #[serde(default)]
    pub on_end: OnSessionEnd,
    #[serde(default)]
    pub defaults: SessionDefaults,
    /// How many of its tasks may live at a time.
    #[serde(default)]
    pub max_tasks: Option<u64>,
    /// A key for this call: two calls of one scope with the same key open one session, and both get its token. Send it again if
    /// you do not know whether the first call arrived. The same key with other parameters is a `conflict`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// The new session, and the token with which its client proves to be it (`daemon/hello`). The token is not stored; only a call
/// with the same `key` gets it again.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SessionOpenResult {
    pub token: String,
    pub session: SessionInfo,
}

impl std::fmt::Debug for SessionOpenResult {
    /// Without the token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenResult").field("session", &self.session).finish_non_exhaustive()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SessionState {
    Open,
    /// The lease is lost; it can be regained until the grace is over.
    Lapsed,
    /// It has ended, and its tasks are being stopped.
    Ending,
    Ended,
}

impl SessionState {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Lapsed => "lapsed",
            Self::Ending => "ending",
            Self::Ended => "ended",
        }
    }

    /// Whether tasks can be started in it.
    pub const fn is_open(self) -> bool {
        matches!(self, Self::Open | Self::Lapsed)
    }
}

/// The live tasks of a session and of everything below it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SessionCounts {
    pub agents: u64,
    pub shells: u64,
    pub foreground: u64,
    pub detached: u64,
    pub queued: u64,
    pub stalled: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SessionInfo {
    pub id: String,
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    pub state: SessionState,
    /// The task or session that opened it.
    pub parent: Option<String>,
    /// Who opened it, and through which surface: `user:ada via cli`. Empty for the standing session.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub opened_by: String,
    /// The client program that opened it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<ClientInfo>,
    pub hold: SessionHold,
    pub on_end: OnSessionEnd,
    pub lease_ms: u64,
    pub grace_ms: u64,
    /// Until the lease is lost, or, of a lapsed one, until it ends.
    pub due_in_ms: Option<u64>,
    pub defaults: SessionDefaults,
    pub max_tasks: Option<u64>,
    pub opened_at: Timestamp,
    pub ended_at: Option<Timestamp>,
    /// Who ended it: an actor, or `lease`.
    pub ended_by: Option<String>,
    pub reason: Option<String>,
    /// Nothing in it works any more: what is live, if anything, is stalled.
    pub drained: bool,
    pub counts: SessionCounts,
    /// Ends that its client has not been told of yet.
    pub notices: u64,
    /// The number of the last event about the session itself that this description contains.
    #[serde(default)]
    pub last_event: u64,
}

/// A session is named by its id, by an unambiguous beginning of it, by the name of an open one, or `user` for the standing one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionRenewParams {
    pub id: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionGetParams {
    pub id: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionListParams {
    /// Ended ones too.
    #[serde(default)]
    pub all: bool,
    /// Only sessions with all of these labels.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    #[serde(default)]
    pub cursor: Option<String>,
    /// At most 1 000, which is also the default. 0 is refused.
    #[serde(default)]
    pub limit: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SessionListResult {
    /// Newest first.
    pub sessions: Vec<SessionInfo>,
    /// The number of the last event before this list was made, as in `task/list`.
    #[serde(default)]
    pub as_of: u64,
    #[serde(default)]
    pub next_cursor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionCloseParams {
    pub id: String,
    /// Instead of what was said when it was opened.
    #[serde(default)]
    pub on_end: Option<OnSessionEnd>,
    #[serde(default)]
    pub reason: Option<String>,
    /// What the caller calls itself.
    #[serde(default)]
    pub actor: Option<String>,
}

/// The answer to `session/close`, when every task that had to be stopped is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SessionCloseResult {
    pub session: SessionInfo,
    /// How the stops went; the receipts came before, as `task/stopped` notifications.
    pub counts: StopCounts,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionWaitParams {
    pub id: String,
    /// Default and most: ten minutes. Then it is answered as it is.
    #[serde(default)]
    pub timeout_ms: Option<u64>,
}

/// A task that is not done and that nobody has to wait for, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnfinishedTask {
    pub id: String,
    pub status: UnfinishedStatus,
    pub why: String,
}

/// Why a task is not waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UnfinishedStatus {
    Stalled,
    StopFailed,
    Lost,
}

impl UnfinishedStatus {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stalled => "stalled",
            Self::StopFailed => "stop_failed",
            Self::Lost => "lost",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SessionWaitResult {
    pub session: SessionInfo,
    pub drained: bool,
    /// What did not come to a proper end: stalled, not to be stopped, or lost. The last ones, at most 100.
    pub left: Vec<UnfinishedTask>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionNoticesParams {
    pub id: String,
    /// Those up to this number were received: they are not told again.
    #[serde(default)]
    pub ack: Option<u64>,
    /// If there is none, wait so long for one; at most one minute.
    #[serde(default)]
    pub wait_ms: u64,
    /// At most 100, which is also the default. 0 is refused.
    #[serde(default)]
    pub max: Option<u32>,
}

/// The end of a task that nobody of the session has been told of: neither asked to wait for it, nor stopped it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SessionNotice {
    /// The number of the event `task.ended`. To be given as `ack` next time.
    pub seq: u64,
    pub task: TaskInfo,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SessionNoticesResult {
    /// Oldest first. Told again until they are acknowledged.
    pub notices: Vec<SessionNotice>,
    /// How many more there are.
    pub more: u64,
}
