//! `event/*`: the numbered, durable record of everything that happened.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::time::Timestamp;

/// One event. What is special to its type stands beside these fields.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EventInfo {
    pub seq: u64,
    pub at: Timestamp,
    /// `task.created started leader_exited attempt_ended stalled recovered detached signalled stopping ended removed adopted`,
    /// `session.opened lapsed regained ending ended`, `lane.queued granted left fenced released`, `daemon.started stopping`.
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

impl EventInfo {
    /// Every type that there is.
    pub const TYPES: &[&str] = &[
        "task.created",
        "task.started",
        "task.leader_exited",
        "task.attempt_ended",
        "task.stalled",
        "task.recovered",
        "task.detached",
        "task.signalled",
        "task.stopping",
        "task.ended",
        "task.removed",
        "task.adopted",
        "session.opened",
        "session.lapsed",
        "session.regained",
        "session.ending",
        "session.ended",
        "lane.queued",
        "lane.granted",
        "lane.left",
        "lane.fenced",
        "lane.released",
        "daemon.started",
        "daemon.stopping",
    ];
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadParams {
    /// Events with a higher number. 0: from the oldest that is kept.
    #[serde(default)]
    pub after: u64,
    /// At most 1 000, which is also the default. 0 is refused.
    #[serde(default)]
    pub max: Option<u32>,
    /// If there is none yet, wait so long for one; at most one minute.
    #[serde(default)]
    pub wait_ms: u64,
    #[serde(default, skip_serializing_if = "Filter::is_none")]
    pub only: Filter,
}

/// Which events are wanted. What is not said does not restrict; numbers go on as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Filter {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// `task.ended`, or all of a kind: `task.*`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub types: Vec<String>,
}

impl Filter {
    pub fn is_none(&self) -> bool {
        self.task.is_none() && self.session.is_none() && self.types.is_empty()
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReadResult {
    pub events: Vec<EventInfo>,
    /// The number to give as `after` next time.
    pub next: u64,
    /// The oldest number that is kept and the newest that there is.
    pub first: u64,
    pub last: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FollowParams {
    #[serde(default)]
    pub after: u64,
    #[serde(default, skip_serializing_if = "Filter::is_none")]
    pub only: Filter,
}

/// The answer to `event/follow`; what follows are `event/item` notifications, each an [`EventInfo`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FollowResult {
    pub after: u64,
    pub first: u64,
    pub last: u64,
}
