//! The list of all settings: the name of each in the file, its allowed values, its built-in value,
//! and whether a change takes effect at once.

use belay_protocol::vars;

use super::value::{Kind, Value};
use crate::config::{Config, Retention, bounds};
use crate::defaults::Defaults;

/// A setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    IdleExit,
    Cgroup,
    MaxTasks,
    KeepAge,
    KeepTasks,
    KeepOutput,
    KeepEvents,
    Timeout,
    OnTimeout,
    Ttl,
    Silence,
    Grace,
    OutputLimit,
    SessionLease,
    SessionGrace,
    SessionMaxTasks,
    OnEnd,
}

impl Key {
    pub const ALL: [Self; 17] = [
        Self::IdleExit,
        Self::Cgroup,
        Self::MaxTasks,
        Self::KeepAge,
        Self::KeepTasks,
        Self::KeepOutput,
        Self::KeepEvents,
        Self::Timeout,
        Self::OnTimeout,
        Self::Ttl,
        Self::Silence,
        Self::Grace,
        Self::OutputLimit,
        Self::SessionLease,
        Self::SessionGrace,
        Self::SessionMaxTasks,
        Self::OnEnd,
    ];

    /// The table of the file and the name in that table, separated by a dot.
    pub const fn name(self) -> &'static str {
        match self {
            Self::IdleExit => "daemon.idle_exit",
            Self::Cgroup => "daemon.cgroup",
            Self::MaxTasks => "daemon.max_tasks",
            Self::KeepAge => "retention.age",
            Self::KeepTasks => "retention.tasks",
            Self::KeepOutput => "retention.output",
            Self::KeepEvents => "retention.events",
            Self::Timeout => "defaults.timeout",
            Self::OnTimeout => "defaults.on_timeout",
            Self::Ttl => "defaults.ttl",
            Self::Silence => "defaults.silence",
            Self::Grace => "defaults.grace",
            Self::OutputLimit => "defaults.output_limit",
            Self::SessionLease => "session.lease",
            Self::SessionGrace => "session.grace",
            Self::SessionMaxTasks => "session.max_tasks",
            Self::OnEnd => "hooks.on_end",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|key| key.name() == name)
    }

    /// Its table, and its name in that table.
    pub(super) fn parts(self) -> (&'static str, &'static str) {
        self.name().split_once('.').unwrap_or(("", self.name()))
    }

    pub(super) const fn kind(self) -> Kind {
        const fn clock(least_ms: u64) -> Kind {
            Kind::Duration { least_ms, never: false }
        }
        const fn count(most: u64) -> Kind {
            Kind::Count { least: 1, most }
        }
        match self {
            Self::IdleExit => Kind::Duration { least_ms: 1, never: true },
            Self::Cgroup => Kind::Flag,
            Self::MaxTasks | Self::SessionMaxTasks => count(bounds::LIVE_TASKS as u64),
            Self::KeepTasks => Kind::Count { least: 0, most: 10_000_000 },
            Self::KeepEvents => Kind::Count { least: 0, most: 100_000_000 },
            Self::KeepOutput => Kind::Size { least: 0 },
            Self::KeepAge | Self::Grace | Self::SessionGrace => clock(0),
            Self::Timeout | Self::Ttl | Self::Silence => clock(1),
            Self::SessionLease => clock(1_000),
            Self::OnTimeout => Kind::Word(&["stop", "detach"]),
            Self::OutputLimit => Kind::Size { least: belay_record::writer::SMALLEST_LIMIT_BYTES },
            Self::OnEnd => Kind::Command,
        }
    }

    pub(super) fn built_in(self) -> Option<Value> {
        let keep = Retention::default();
        match self {
            Self::IdleExit => {
                Some(Value::Ms(u64::try_from(Config::DEFAULT_IDLE_EXIT.as_millis()).unwrap_or(u64::MAX)))
            }
            Self::Cgroup => Some(Value::Flag(true)),
            Self::MaxTasks => Some(Value::Count(bounds::LIVE_TASKS as u64)),
            Self::KeepAge => Some(Value::Ms(keep.age_ms)),
            Self::KeepTasks => Some(Value::Count(keep.tasks)),
            Self::KeepOutput => Some(Value::Bytes(keep.output_bytes)),
            Self::KeepEvents => Some(Value::Count(keep.events)),
            Self::OnTimeout => Some(Value::Word("stop")),
            Self::Grace => Some(Value::Ms(belay_model::Policy::DEFAULT_GRACE_MS)),
            Self::OutputLimit => Some(Value::Bytes(Defaults::OUTPUT_LIMIT_BYTES)),
            Self::Timeout
            | Self::Ttl
            | Self::Silence
            | Self::SessionLease
            | Self::SessionGrace
            | Self::SessionMaxTasks
            | Self::OnEnd => None,
        }
    }

    /// The environment variable that overrides the file.
    pub(super) const fn variable(self) -> Option<&'static str> {
        match self {
            Self::IdleExit => Some(vars::IDLE_EXIT),
            Self::Cgroup => Some(vars::CGROUP),
            Self::KeepAge | Self::KeepTasks | Self::KeepOutput | Self::KeepEvents => Some(vars::RETENTION),
            _ => None,
        }
    }

    /// Whether a change takes effect at once. If not, it takes effect at the next start of the
    /// daemon.
    pub(super) const fn is_live(self) -> bool {
        !matches!(self, Self::IdleExit | Self::Cgroup)
    }
}
