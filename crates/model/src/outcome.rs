//! How a task can end, each way told apart. The receipt with its times is the shim's; here is only the fact.

use crate::policy::Level;

/// How one process ended, as the kernel tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Exit {
    Code(i32),
    Signal { signal: i32, core_dumped: bool },
}

const SIGKILL: i32 = 9;

impl Exit {
    pub const SUCCESS: Self = Self::Code(0);

    pub const fn is_sigkill(self) -> bool {
        matches!(self, Self::Signal { signal: SIGKILL, .. })
    }
}

/// The clocks of a task. The last four are not limits: a leader that has left others behind, a pause between two attempts,
/// and a stop that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Clock {
    Foreground,
    Ttl,
    Silence,
    /// It is time to look whether the task gets on.
    Stall,
    /// The leader has exited and nobody knows yet whether others stay.
    Leave,
    /// The last attempt has failed and the next has not begun.
    Retry,
    Grace,
    Kill,
}

impl Clock {
    pub const ALL: [Self; 8] = [
        Self::Foreground,
        Self::Ttl,
        Self::Silence,
        Self::Stall,
        Self::Leave,
        Self::Retry,
        Self::Grace,
        Self::Kill,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Foreground => "timeout",
            Self::Ttl => "ttl",
            Self::Silence => "silence",
            Self::Stall => "stall",
            Self::Leave => "leave",
            Self::Retry => "retry",
            Self::Grace => "grace",
            Self::Kill => "kill",
        }
    }
}

/// A stop as somebody asked for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StopOrder {
    pub level: Level,
    pub grace_ms: Option<u64>,
    pub actor: String,
    /// Never blank: a reason of spaces is none.
    pub reason: Option<String>,
}

impl StopOrder {
    pub fn new(level: Level, actor: impl Into<String>, reason: Option<&str>) -> Self {
        let reason = reason.map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned);
        Self { level, grace_ms: None, actor: actor.into(), reason }
    }
}

/// What a task may use only so much of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Budget {
    Output,
    Memory,
    Processes,
}

impl Budget {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Output => "output",
            Self::Memory => "memory",
            Self::Processes => "processes",
        }
    }
}

/// Why a running task is being stopped.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    Asked(StopOrder),
    /// The reason is what was seen, where that is more than the clock.
    Clock {
        clock: Clock,
        limit_ms: u64,
        reason: Option<String>,
    },
    Budget {
        budget: Budget,
        limit: u64,
        used: u64,
    },
}

/// What was being done when a start failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SpawnStage {
    /// No process, memory or descriptor to be had.
    Resources,
    Cwd,
    Program,
    Shell,
    /// Arguments and environment together are longer than the system takes.
    Arguments,
    Limits,
    /// Anything of Belay's own: cgroup, pipes, the shim.
    Holder,
}

impl SpawnStage {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Resources => "resources",
            Self::Cwd => "cwd",
            Self::Program => "program",
            Self::Shell => "shell",
            Self::Arguments => "arguments",
            Self::Limits => "limits",
            Self::Holder => "holder",
        }
    }
}

/// Why a command could not be started: the stage, the system's number for it, and a sentence.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SpawnFailure {
    pub stage: SpawnStage,
    pub errno: i32,
    pub message: String,
}

/// A process that is still alive after everything was tried.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Survivor {
    pub pid: i32,
    pub start_ticks: u64,
    pub uid: u32,
    pub command: String,
}

/// The one end of a task.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The command ended by itself, or of a signal that nobody here sent.
    Exited(Exit),
    /// Somebody asked for the stop, and it reached the task. Queued tasks have no exit.
    Cancelled {
        order: StopOrder,
        exit: Option<Exit>,
    },
    TimedOut {
        clock: Clock,
        limit_ms: u64,
        reason: Option<String>,
        exit: Option<Exit>,
    },
    OverBudget {
        budget: Budget,
        limit: u64,
        used: u64,
        exit: Option<Exit>,
    },
    NotStarted(SpawnFailure),
    /// Shim and evidence are both gone: nobody can say how it ended.
    Lost {
        known: String,
        survivors: Vec<Survivor>,
    },
    /// SIGKILL was sent and these are still there.
    StopFailed {
        cause: Cause,
        survivors: Vec<Survivor>,
        exit: Option<Exit>,
    },
}

impl Outcome {
    /// The word on the wire.
    pub const fn status(&self) -> &'static str {
        match self {
            Self::Exited(Exit::Code(0)) => "completed",
            Self::Exited(_) | Self::OverBudget { .. } | Self::NotStarted(_) => "failed",
            Self::Cancelled { .. } => "cancelled",
            Self::TimedOut { .. } => "timed_out",
            Self::Lost { .. } => "lost",
            Self::StopFailed { .. } => "stop_failed",
        }
    }

    /// How the leader ended, where that is known.
    pub const fn exit(&self) -> Option<Exit> {
        match self {
            Self::Exited(exit) => Some(*exit),
            Self::Cancelled { exit, .. }
            | Self::TimedOut { exit, .. }
            | Self::OverBudget { exit, .. }
            | Self::StopFailed { exit, .. } => *exit,
            Self::NotStarted(_) | Self::Lost { .. } => None,
        }
    }
}
