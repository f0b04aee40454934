//! The rules a task runs under, fixed at its start: its clocks, and how hard a stop goes. Enforcing them is the shim's.

/// How hard a stop goes. A level that misses its deadline falls through to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Level {
    /// Let the work in hand end by itself. A shell command has one piece of work: itself.
    Drain,
    Interrupt,
    Terminate,
    Kill,
}

impl Level {
    pub const ALL: [Self; 4] = [Self::Drain, Self::Interrupt, Self::Terminate, Self::Kill];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Drain => "drain",
            Self::Interrupt => "interrupt",
            Self::Terminate => "terminate",
            Self::Kill => "kill",
        }
    }

    /// The level that follows when this one misses its deadline; after kill there is none.
    pub const fn next(self) -> Option<Self> {
        match self {
            Self::Drain => Some(Self::Interrupt),
            Self::Interrupt => Some(Self::Terminate),
            Self::Terminate => Some(Self::Kill),
            Self::Kill => None,
        }
    }
}

/// What the foreground limit does to a task that a caller waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnLimit {
    #[default]
    Stop,
    Detach,
}

/// What is done about a task that does not get on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnStall {
    #[default]
    Tell,
    Stop,
}

/// How often a task is looked at, and what follows when nothing has moved in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stall {
    pub after_ms: u64,
    pub policy: OnStall,
}

/// The clocks and the grace of one task. Milliseconds of monotonic time; none means no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Policy {
    /// Counts from the start until the task is detached; if it never had a caller, to its end.
    pub foreground_ms: Option<u64>,
    pub on_foreground_limit: OnLimit,
    /// Nobody ever waited for it.
    pub born_detached: bool,
    /// Counts from the moment nobody waits: the start of a detached task, or the detach.
    pub ttl_ms: Option<u64>,
    /// Counts from the last byte of output.
    pub silence_ms: Option<u64>,
    /// How long each stop level below kill may take, when the stop itself does not say.
    pub grace_ms: u64,
    /// How long after SIGKILL the tree may take to become empty before its survivors are named.
    pub kill_ms: u64,
    /// How often the command is run again when it has failed by itself.
    pub retries: u32,
    /// How long after each failure.
    pub retry_delay_ms: u64,
    /// None: nobody looks whether it gets on.
    pub stall: Option<Stall>,
}

impl Policy {
    pub const MAX_RETRIES: u32 = 1_000;
    pub const DEFAULT_RETRY_DELAY_MS: u64 = 1_000;
    pub const DEFAULT_GRACE_MS: u64 = 5_000;
    pub const DEFAULT_KILL_MS: u64 = 10_000;
    /// How long after its leader a tree may take to end before it is said that the leader has left others behind.
    pub const LEAVE_MS: u64 = 50;
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            foreground_ms: None,
            on_foreground_limit: OnLimit::Stop,
            born_detached: false,
            ttl_ms: None,
            silence_ms: None,
            grace_ms: Self::DEFAULT_GRACE_MS,
            kill_ms: Self::DEFAULT_KILL_MS,
            retries: 0,
            retry_delay_ms: Self::DEFAULT_RETRY_DELAY_MS,
            stall: None,
        }
    }
}
