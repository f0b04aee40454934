//! Where a task can stand. What moves it from one place to the next is in `life`.

use crate::outcome::{Cause, Exit, Outcome, StopOrder};
use crate::policy::Level;

/// Where a task stands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Recorded, and waiting for a seat: in the daemon, or in the memory of its shim.
    Queued {
        detached: bool,
    },
    /// Handed over to be spawned; a stop that comes now is kept until the pid is known.
    Starting {
        detached: bool,
        stop: Option<StopOrder>,
        attempt: u32,
    },
    Running(Running),
    /// Between two attempts: the last one has failed, its tree is empty, and the next begins when its clock rings.
    Resting(Resting),
    Stopping(Stopping),
    Ended(Outcome),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Running {
    pub leader: Leader,
    pub detached: bool,
    /// The first is 1.
    pub attempt: u32,
    /// It did not get on when it was last looked at.
    pub stalled: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Resting {
    pub detached: bool,
    /// The one that has failed.
    pub attempt: u32,
    pub last: Exit,
}

/// The first process of the tree. The task goes on when it has exited and others have not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Leader {
    Alive,
    Exited(Exit),
}

impl Leader {
    pub const fn exit(self) -> Option<Exit> {
        match self {
            Self::Alive => None,
            Self::Exited(exit) => Some(exit),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stopping {
    pub leader: Leader,
    pub detached: bool,
    pub attempt: u32,
    pub cause: Cause,
    pub level: Level,
    pub grace_ms: u64,
    pub delivered: Delivered,
}

/// Whom the signals of a stop have reached so far. It decides whether the stop or the command itself was the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Delivered {
    pub leader: bool,
    pub others: bool,
    /// A signal other than SIGKILL was among them, which a process may answer with any exit code.
    pub gentle: bool,
}

impl Delivered {
    pub(crate) const fn merge(self, more: Self) -> Self {
        Self {
            leader: self.leader || more.leader,
            others: self.others || more.others,
            gentle: self.gentle || more.gentle,
        }
    }

    /// Whether the command ended by itself although a stop was under way: nothing reached it, or only a SIGKILL
    /// that came too late, which shows in its exit status.
    pub(crate) const fn came_too_late(self, leader: Leader) -> bool {
        if !self.leader && !self.others {
            return true;
        }
        match leader {
            Leader::Alive => false,
            Leader::Exited(exit) => !self.gentle && !self.others && !exit.is_sigkill(),
        }
    }
}

impl State {
    pub const fn new(detached: bool) -> Self {
        Self::Queued { detached }
    }

    pub const fn is_ended(&self) -> bool {
        matches!(self, Self::Ended(_))
    }

    pub const fn outcome(&self) -> Option<&Outcome> {
        match self {
            Self::Ended(outcome) => Some(outcome),
            Self::Queued { .. }
            | Self::Starting { .. }
            | Self::Running(_)
            | Self::Resting(_)
            | Self::Stopping(_) => None,
        }
    }

    /// The word on the wire.
    pub const fn status(&self) -> &'static str {
        match self {
            Self::Queued { .. } => "queued",
            Self::Starting { .. } => "starting",
            Self::Running(_) => "running",
            Self::Resting(_) => "resting",
            Self::Stopping(_) => "stopping",
            Self::Ended(outcome) => outcome.status(),
        }
    }

    /// Whether nobody waits for the task. An ended task is waited for by nobody.
    pub const fn detached(&self) -> bool {
        match self {
            Self::Queued { detached } | Self::Starting { detached, .. } => *detached,
            Self::Running(running) => running.detached,
            Self::Resting(resting) => resting.detached,
            Self::Stopping(stopping) => stopping.detached,
            Self::Ended(_) => true,
        }
    }

    pub const fn leader(&self) -> Option<Leader> {
        match self {
            Self::Running(running) => Some(running.leader),
            Self::Stopping(stopping) => Some(stopping.leader),
            Self::Queued { .. } | Self::Starting { .. } | Self::Resting(_) | Self::Ended(_) => None,
        }
    }

    /// Which attempt it is that was begun last; 0 as long as there is none, and when all is over.
    pub const fn attempt(&self) -> u32 {
        match self {
            Self::Starting { attempt, .. } => *attempt,
            Self::Running(running) => running.attempt,
            Self::Resting(resting) => resting.attempt,
            Self::Stopping(stopping) => stopping.attempt,
            Self::Queued { .. } | Self::Ended(_) => 0,
        }
    }

    /// Whether it runs and does not get on.
    pub const fn is_stalled(&self) -> bool {
        match self {
            Self::Running(running) => running.stalled,
            Self::Queued { .. }
            | Self::Starting { .. }
            | Self::Resting(_)
            | Self::Stopping(_)
            | Self::Ended(_) => false,
        }
    }

    /// Whether something of it has run, and not all is over.
    pub const fn has_begun(&self) -> bool {
        match self {
            Self::Queued { .. } | Self::Ended(_) => false,
            Self::Starting { attempt, .. } => *attempt > 1,
            Self::Running(_) | Self::Resting(_) | Self::Stopping(_) => true,
        }
    }
}
