//! `event/*`: the numbered, durable record of everything that happened. One enum holds every event type with its fields.

mod kind;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::RpcError;
use crate::labels::Labels;
use crate::life::{ExitStatus, StopCause, StopLevel};
use crate::rpc::RequestId;
use crate::session::{OnSessionEnd, SessionCounts};
use crate::task::{DetachedBy, OnStall, Outcome, StallEvidence, StallParams, TaskStatus};
use crate::time::Timestamp;

pub use kind::{EventGroup, EventKind, EventTypePattern, UnknownEventType};

/// One event: its number, its time, its type and the fields of that type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventInfo {
    pub seq: u64,
    pub at: Timestamp,
    #[serde(flatten)]
    pub event: Event,
}

/// By hand: each variant of the union has the fields that all events share.
impl JsonSchema for EventInfo {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "EventInfo".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let (seq, at) = (generator.subschema_for::<u64>(), generator.subschema_for::<Timestamp>());
        let mut schema = Event::json_schema(generator);
        schema.insert(
            "description".to_owned(),
            "One event: its number, its time, its type and the fields of that type.".into(),
        );
        let variants = schema.get_mut("oneOf").and_then(Value::as_array_mut);
        for variant in variants.into_iter().flatten() {
            variant["properties"]["seq"] = seq.clone().into();
            variant["properties"]["at"] = at.clone().into();
            if let Some(Value::Array(required)) = variant.get_mut("required") {
                required.extend(["seq".into(), "at".into()]);
            }
        }
        schema
    }
}

/// What happened, tagged by `type`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type")]
pub enum Event {
    /// The task is recorded; nothing of it runs yet.
    #[serde(rename = "task.created")]
    TaskCreated {
        task: String,
        session: String,
        /// The command as a person would type it.
        command: String,
        name: Option<String>,
        parent: Option<String>,
        /// Why the record is younger than the task: its shim was found running and the journal did not list it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        found: Option<String>,
    },
    /// The first process of the task runs.
    #[serde(rename = "task.started")]
    TaskStarted {
        task: String,
        session: String,
        pid: i32,
        /// Only of a task that is run again when it fails.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attempt: Option<u32>,
    },
    /// The first process of the task has exited; others may live on.
    #[serde(rename = "task.leader_exited")]
    TaskLeaderExited { task: String, session: String, exit: ExitStatus },
    /// An attempt has failed, and the next one begins after `next_ms`.
    #[serde(rename = "task.attempt_ended")]
    TaskAttemptEnded { task: String, session: String, exit: ExitStatus, attempt: u32, next_ms: u64 },
    /// The task makes no progress.
    #[serde(rename = "task.stalled")]
    TaskStalled {
        task: String,
        session: String,
        /// When the check found no progress. The event can be recorded later, if there was no daemon.
        since: Timestamp,
        #[serde(flatten)]
        evidence: StallEvidence,
        policy: Option<OnStall>,
    },
    /// A stalled task makes progress again.
    #[serde(rename = "task.recovered")]
    TaskRecovered { task: String, session: String },
    /// A client has changed how the task is checked for progress; null: it is not checked any more.
    #[serde(rename = "task.stall_set")]
    TaskStallSet { task: String, session: String, stall: Option<StallParams> },
    /// The task was moved to the background.
    #[serde(rename = "task.detached")]
    TaskDetached { task: String, session: String, by: DetachedBy },
    /// A client sent a signal to the task.
    #[serde(rename = "task.signalled")]
    TaskSignalled { task: String, session: String, signal: String, by: String },
    /// The task is being stopped, at this level and for this cause.
    #[serde(rename = "task.stopping")]
    TaskStopping {
        task: String,
        session: String,
        level: StopLevel,
        #[serde(flatten)]
        cause: StopCause,
    },
    /// The task has ended; its outcome is final.
    #[serde(rename = "task.ended")]
    TaskEnded { task: String, session: String, status: TaskStatus, outcome: Option<Outcome> },
    /// The record and the output of an ended task were removed.
    #[serde(rename = "task.removed")]
    TaskRemoved { task: String, session: String },
    /// A new daemon has found the task's shim.
    #[serde(rename = "task.adopted")]
    TaskAdopted { task: String, session: String },
    /// A client has opened the session.
    #[serde(rename = "session.opened")]
    SessionOpened { session: String, name: Option<String>, parent: Option<String>, by: String },
    /// A task of the session works again: the session is not drained any more.
    #[serde(rename = "session.busy")]
    SessionBusy { session: String, counts: SessionCounts },
    /// No task of the session works any more: all have ended, or are stalled. Not recorded for the standing session.
    #[serde(rename = "session.drained")]
    SessionDrained { session: String, counts: SessionCounts },
    /// The lease is lost; the session ends after `grace_ms` unless it is renewed.
    #[serde(rename = "session.lapsed")]
    SessionLapsed { session: String, grace_ms: u64 },
    /// A lapsed session was renewed in time.
    #[serde(rename = "session.regained")]
    SessionRegained { session: String },
    /// The session is over; its tasks are being stopped or kept.
    #[serde(rename = "session.ending")]
    SessionEnding { session: String, by: Option<String>, reason: Option<String>, on_end: OnSessionEnd },
    /// The session is over and none of its tasks is being stopped any more.
    #[serde(rename = "session.ended")]
    SessionEnded { session: String, by: Option<String>, reason: Option<String> },
    /// The task waits for its lane; place 1 is next.
    #[serde(rename = "lane.queued")]
    LaneQueued { task: String, session: String, lane: String, place: Option<u64>, owner: Option<String> },
    /// The task holds the lane.
    #[serde(rename = "lane.granted")]
    LaneGranted { task: String, session: String, lane: String, generation: u64, owner: Option<String> },
    /// The holder of the lane has ended; `blocked` says why the lane is not free.
    #[serde(rename = "lane.left")]
    LaneLeft { task: String, session: String, lane: String, generation: Option<u64>, blocked: Option<String> },
    /// The owner of the task may not use the lane until it is released.
    #[serde(rename = "lane.fenced")]
    LaneFenced {
        task: String,
        session: String,
        lane: String,
        owner: String,
        generation: u64,
        by: String,
        reason: Option<String>,
    },
    /// Fences were removed, or an ended task whose processes survived no longer blocks the lane.
    #[serde(rename = "lane.released")]
    LaneReleased {
        lane: String,
        owners: Vec<String>,
        unblocked: Option<String>,
        by: String,
        reason: Option<String>,
    },
    /// A daemon has started on this home.
    #[serde(rename = "daemon.started")]
    DaemonStarted {
        version: String,
        /// How many tasks of the previous daemon it looks for.
        adopting: u64,
    },
    /// The daemon is about to exit; tasks that still run are adopted by the next one.
    #[serde(rename = "daemon.stopping")]
    DaemonStopping,
    /// An entry of the journal that was damaged, or that this version cannot read. A client reads a type that it does not know
    /// as this one.
    #[serde(rename = "lost", other)]
    Lost,
}

impl Event {
    /// The task that the event is about.
    pub fn task(&self) -> Option<&str> {
        match self {
            Self::TaskCreated { task, .. }
            | Self::TaskStarted { task, .. }
            | Self::TaskLeaderExited { task, .. }
            | Self::TaskAttemptEnded { task, .. }
            | Self::TaskStalled { task, .. }
            | Self::TaskRecovered { task, .. }
            | Self::TaskStallSet { task, .. }
            | Self::TaskDetached { task, .. }
            | Self::TaskSignalled { task, .. }
            | Self::TaskStopping { task, .. }
            | Self::TaskEnded { task, .. }
            | Self::TaskRemoved { task, .. }
            | Self::TaskAdopted { task, .. }
            | Self::LaneQueued { task, .. }
            | Self::LaneGranted { task, .. }
            | Self::LaneLeft { task, .. }
            | Self::LaneFenced { task, .. } => Some(task),
            Self::SessionOpened { .. }
            | Self::SessionBusy { .. }
            | Self::SessionDrained { .. }
            | Self::SessionLapsed { .. }
            | Self::SessionRegained { .. }
            | Self::SessionEnding { .. }
            | Self::SessionEnded { .. }
            | Self::LaneReleased { .. }
            | Self::DaemonStarted { .. }
            | Self::DaemonStopping
            | Self::Lost => None,
        }
    }

    /// The session that the event, or its task, belongs to.
    pub fn session(&self) -> Option<&str> {
        match self {
            Self::TaskCreated { session, .. }
            | Self::TaskStarted { session, .. }
            | Self::TaskLeaderExited { session, .. }
            | Self::TaskAttemptEnded { session, .. }
            | Self::TaskStalled { session, .. }
            | Self::TaskRecovered { session, .. }
            | Self::TaskStallSet { session, .. }
            | Self::TaskDetached { session, .. }
            | Self::TaskSignalled { session, .. }
            | Self::TaskStopping { session, .. }
            | Self::TaskEnded { session, .. }
            | Self::TaskRemoved { session, .. }
            | Self::TaskAdopted { session, .. }
            | Self::SessionOpened { session, .. }
            | Self::SessionBusy { session, .. }
            | Self::SessionDrained { session, .. }
            | Self::SessionLapsed { session, .. }
            | Self::SessionRegained { session }
            | Self::SessionEnding { session, .. }
            | Self::SessionEnded { session, .. }
            | Self::LaneQueued { session, .. }
            | Self::LaneGranted { session, .. }
            | Self::LaneLeft { session, .. }
            | Self::LaneFenced { session, .. } => Some(session),
            Self::LaneReleased { .. } | Self::DaemonStarted { .. } | Self::DaemonStopping | Self::Lost => {
                None
            }
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EventReadParams {
    /// Events with a higher number. 0: from the oldest that is kept.
    #[serde(default)]
    pub after: u64,
    /// At most 1 000, which is also the default. 0 is refused.
    #[serde(default)]
    pub max: Option<u32>,
    /// If there is none yet, wait so long for one; at most one minute.
    #[serde(default)]
    pub wait_ms: u64,
    #[serde(default, skip_serializing_if = "EventFilter::is_none")]
    pub only: EventFilter,
}

/// Which events are wanted. A field that is absent does not restrict; events keep their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EventFilter {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// Only events about this session and its tasks, not about sessions below it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub types: Vec<EventTypePattern>,
    /// Only events about tasks and sessions that have all of these labels.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
}

impl EventFilter {
    pub fn is_none(&self) -> bool {
        self.task.is_none() && self.session.is_none() && self.types.is_empty() && self.labels.is_empty()
    }

    /// Whether an event of this type about this task and session is wanted.
    pub fn matches(&self, kind: EventKind, task: Option<&str>, session: Option<&str>) -> bool {
        let fits = |wanted: &Option<String>, is: Option<&str>| {
            wanted.as_ref().is_none_or(|wanted| is == Some(wanted.as_str()))
        };
        fits(&self.task, task)
            && fits(&self.session, session)
            && (self.types.is_empty() || self.types.iter().any(|pattern| pattern.matches(kind)))
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EventReadResult {
    pub events: Vec<EventInfo>,
    /// The number to give as `after` next time.
    pub next: u64,
    /// The oldest number that is kept and the newest that there is.
    pub first: u64,
    pub last: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EventFollowParams {
    /// Events with a higher number. 0: from the oldest that is kept.
    #[serde(default)]
    pub after: u64,
    #[serde(default, skip_serializing_if = "EventFilter::is_none")]
    pub only: EventFilter,
}

/// The answer to `event/follow`. The events come as `event/item` notifications.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EventFollowResult {
    /// The number of the subscription.
    pub follow: u64,
    pub after: u64,
    pub first: u64,
    pub last: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EventUnfollowParams {
    /// The number that `event/follow` returned.
    pub follow: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EventUnfollowResult {
    /// How many subscriptions have ended.
    pub ended: u64,
}

/// The notification `event/item`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EventItemNotification {
    /// The id of the `event/follow` call.
    pub request: RequestId,
    /// The number of the subscription.
    pub follow: u64,
    pub event: EventInfo,
}

/// The notification `event/end`: the subscription has ended because events could not be read, or were removed before they
/// could be sent. The error says where to go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EventEndNotification {
    /// The id of the `event/follow` call.
    pub request: RequestId,
    /// The number of the subscription.
    pub follow: u64,
    /// The number of the last event that was sent, or passed over because the filter excludes it.
    pub after: u64,
    pub error: RpcError,
}

#[cfg(test)]
mod tests;
