//! The names of event types, and the patterns that select them. What an event of each type carries is in [`Event`].

use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::Event;
use crate::error::with_hint;

/// One list for the members of [`EventKind`], their names on the wire, and the variants of [`Event`].
macro_rules! event_kinds {
    ($($member:ident = $name:literal),* $(,)?) => {
        /// The type of an event, without its fields.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
        pub enum EventKind {
            $( #[serde(rename = $name)] $member, )*
        }

        impl EventKind {
            /// Every type, in the order of the documentation.
            pub const ALL: &[Self] = &[$( Self::$member, )*];

            /// The name on the wire.
            pub const fn name(self) -> &'static str {
                match self { $( Self::$member => $name, )* }
            }
        }

        impl Event {
            pub const fn kind(&self) -> EventKind {
                match self { $( Self::$member { .. } => EventKind::$member, )* }
            }
        }
    };
}

event_kinds! {
    TaskCreated = "task.created",
    TaskStarted = "task.started",
    TaskLeaderExited = "task.leader_exited",
    TaskAttemptEnded = "task.attempt_ended",
    TaskStalled = "task.stalled",
    TaskRecovered = "task.recovered",
    TaskStallSet = "task.stall_set",
    TaskDetached = "task.detached",
    TaskSignalled = "task.signalled",
    TaskStopping = "task.stopping",
    TaskEnded = "task.ended",
    TaskRemoved = "task.removed",
    TaskAdopted = "task.adopted",
    SessionOpened = "session.opened",
    SessionBusy = "session.busy",
    SessionDrained = "session.drained",
    SessionLapsed = "session.lapsed",
    SessionRegained = "session.regained",
    SessionEnding = "session.ending",
    SessionEnded = "session.ended",
    LaneQueued = "lane.queued",
    LaneGranted = "lane.granted",
    LaneLeft = "lane.left",
    LaneFenced = "lane.fenced",
    LaneReleased = "lane.released",
    DaemonStarted = "daemon.started",
    DaemonStopping = "daemon.stopping",
    Lost = "lost",
}

impl EventKind {
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.name() == name)
    }

    /// The group of the type; none for [`Self::Lost`].
    pub const fn group(self) -> Option<EventGroup> {
        match self {
            Self::TaskCreated
            | Self::TaskStarted
            | Self::TaskLeaderExited
            | Self::TaskAttemptEnded
            | Self::TaskStalled
            | Self::TaskRecovered
            | Self::TaskStallSet
            | Self::TaskDetached
            | Self::TaskSignalled
            | Self::TaskStopping
            | Self::TaskEnded
            | Self::TaskRemoved
            | Self::TaskAdopted => Some(EventGroup::Task),
            Self::SessionOpened
            | Self::SessionBusy
            | Self::SessionDrained
            | Self::SessionLapsed
            | Self::SessionRegained
            | Self::SessionEnding
            | Self::SessionEnded => Some(EventGroup::Session),
            Self::LaneQueued | Self::LaneGranted | Self::LaneLeft | Self::LaneFenced | Self::LaneReleased => {
                Some(EventGroup::Lane)
            }
            Self::DaemonStarted | Self::DaemonStopping => Some(EventGroup::Daemon),
            Self::Lost => None,
        }
    }
}

/// All event types that begin with the same noun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EventGroup {
    Task,
    Session,
    Lane,
    Daemon,
}

impl EventGroup {
    pub const ALL: &[Self] = &[Self::Task, Self::Session, Self::Lane, Self::Daemon];

    /// The pattern that selects the group.
    pub const fn pattern(self) -> &'static str {
        match self {
            Self::Task => "task.*",
            Self::Session => "session.*",
            Self::Lane => "lane.*",
            Self::Daemon => "daemon.*",
        }
    }
}

/// Selects events by type: one type (`task.ended`) or a group (`task.*`). A string on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EventTypePattern {
    Kind(EventKind),
    Group(EventGroup),
}

impl EventTypePattern {
    /// What to write instead of an unknown type.
    pub const HINT: &str = "task.ended, or task.* for all about tasks; belay events shows them";

    pub fn matches(self, kind: EventKind) -> bool {
        match self {
            Self::Kind(wanted) => wanted == kind,
            Self::Group(wanted) => kind.group() == Some(wanted),
        }
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Kind(kind) => kind.name(),
            Self::Group(group) => group.pattern(),
        }
    }

    fn all() -> impl Iterator<Item = Self> {
        let kinds = EventKind::ALL.iter().copied().map(Self::Kind);
        kinds.chain(EventGroup::ALL.iter().copied().map(Self::Group))
    }
}

/// The text is neither an event type nor a group of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownEventType {
    /// Without control characters, and cut: the text may be long, and hostile.
    shown: String,
}

impl std::fmt::Display for UnknownEventType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "there is no type of event {:?}", self.shown)
    }
}

impl std::error::Error for UnknownEventType {}

impl FromStr for EventTypePattern {
    type Err = UnknownEventType;

    fn from_str(text: &str) -> Result<Self, UnknownEventType> {
        let unknown =
            || UnknownEventType { shown: text.chars().filter(|c| !c.is_control()).take(40).collect() };
        Self::all().find(|pattern| pattern.as_str() == text).ok_or_else(unknown)
    }
}

impl Serialize for EventTypePattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for EventTypePattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|error| de::Error::custom(with_hint(&error, Self::HINT)))
    }
}

impl JsonSchema for EventTypePattern {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "EventTypePattern".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let names: Vec<&str> = Self::all().map(Self::as_str).collect();
        json_schema!({
            "description": "Selects events by type: one type (`task.ended`) or a group (`task.*`).",
            "type": "string",
            "enum": names,
        })
    }
}
