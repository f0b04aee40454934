//! The daemon's bounds, and the settings in force. Where settings come from is in `settings`.

use std::path::PathBuf;
use std::time::Duration;

use belay_protocol::Bytes;
use belay_protocol::daemon::ContainmentInfo;
use belay_record::MemoryLog;

use crate::defaults::Defaults;
use crate::settings::{Found, Hook, Settings};

/// Bounds that no setting changes; what happens at each is written beside it.
pub mod bounds {
    /// Beyond it a new connection gets `busy` and is closed.
    pub const CLIENTS: usize = 512;
    /// Beyond it a start is refused with `limit`; `daemon.max_tasks` may be less.
    pub const LIVE_TASKS: usize = 10_000;
    /// The shortest time between two looks at whether a task gets on.
    pub const STALL_MS: u64 = 100;
    /// Hooks that run at once; the others wait as documents of the journal.
    pub const HOOKS: usize = 16;
    /// How often a hook that did not get as far as a process is started again.
    pub const HOOK_TRIES: u32 = 5;
    pub const HOOK_TTL_MS: u64 = 60_000;
    /// How much of a command or a reason a hook gets, and how long its own line may be.
    pub const HOOK_FACT_BYTES: usize = 4_096;
    pub const HOOK_LINE_BYTES: usize = 16_384;
    /// Beyond it a client is not read from until it has read: others are served meanwhile.
    pub const CLIENT_QUEUE_BYTES: usize = 1024 * 1024;
    /// What all clients together may have sent of lines that have no end yet; beyond it, a client that sends more of a long one
    /// gets `busy` and is closed.
    pub const UNFINISHED_BYTES: usize = 32 * 1024 * 1024;
    /// Beyond it a request is refused with `busy`.
    pub const PENDING_PER_CLIENT: usize = 4096;
    /// Calls of one client that wait for a worker; beyond it the client is not read from.
    pub const WORKER_CALLS_PER_CLIENT: usize = 2;
    pub const FOLLOWS_PER_CLIENT: usize = 256;
    /// Idle shims that are kept ready, and the most that are: beyond it an idle shim is closed.
    pub const SHIMS_READY: usize = 2;
    pub const SHIMS_READY_MOST: usize = 8;
    /// Shims that are being started at once.
    pub const SHIMS_SPAWNING: usize = 16;
    /// Ended tasks that are kept in memory, so that a caller that asks for one need not wait for the journal; longer commands
    /// are not.
    pub const RECENT_TASKS: usize = 128;
    pub const RECENT_TASK_BYTES: usize = 16 * 1024;
    /// Removed tasks that are remembered, so that a shim that still holds one may forget it.
    pub const REMOVED_REMEMBERED: usize = 1_000;
    /// What one read of output returns at most.
    pub const READ_BYTES: usize = 1024 * 1024;
    /// What one notification of a follower carries at most.
    pub const FOLLOW_BYTES: usize = 256 * 1024;
    pub const LIST_ITEMS: usize = 1_000;
    /// So many bytes of commands are in one page of tasks; the rest is in the next.
    pub const LIST_BYTES: usize = 1024 * 1024;
    pub const WAIT_MS: u64 = 600_000;
    pub const EVENT_WAIT_MS: u64 = 60_000;
    /// How long a line may be without its end before it is taken for a prompt.
    pub const OPEN_LINE_MS: u64 = 300;
    /// How long a write that there is no room for may wait before it is refused.
    pub const ROOM_MS: u64 = 600_000;
    /// The same with a shim of an earlier daemon, which may not report that there is room.
    pub const ROOM_ADOPTED_MS: u64 = 1_000;
    /// How long a shim may take to answer before the reply is given without it.
    pub const SHIM_ANSWER_MS: u64 = 2_000;
    pub const START_ANSWER_MS: u64 = 30_000;
    /// How long parsing a shell line may take, and how many are parsed at once; beyond either a line runs as written.
    pub const PARSE_MS: u64 = 5_000;
    pub const PARSES: usize = 32;
    /// The write buffer is flushed to the database when nothing was appended for so long, or at the latest then.
    pub const FLUSH_MS: u64 = 10;
    pub const FLUSH_LATEST_MS: u64 = 250;
    /// What a task in the foreground may write before its output goes to disk; and what the daemon keeps of such tasks that
    /// have ended: the last ones, up to these sums and as long as they take no more than one in so many of its descriptors.
    pub const MEMORY_BYTES: u64 = 1024 * 1024;
    pub const KEPT_MEMORY_BYTES: u64 = 64 * 1024 * 1024;
    pub const KEPT_MEMORY_TASKS: usize = 200;
    pub const KEPT_MEMORY_SHARE: u64 = 8;
    /// How long the caller of a foreground task may take to come back after a daemon has died.
    pub const CALLER_MS: u64 = 10_000;
    /// How long the acknowledgement to a shim whose task was stopped is held back.
    pub const DEFERRED_ACK_MS: u64 = 2;
    pub const COMMIT_RETRY_MS: u64 = 1_000;
    /// As long as the kernel takes.
    pub const SOCKET_NAME_BYTES: usize = 107;
    pub const NAME_BYTES: usize = 200;
    pub const TOKEN_BYTES: usize = 200;
    pub const REASON_BYTES: usize = 2_000;
    pub const NOTICES: usize = 50;
    /// Beyond it a session is refused with `busy`; of ended ones the oldest are forgotten.
    pub const SESSIONS_OPEN: usize = 10_000;
    pub const SESSIONS_ENDED: usize = 1_000;
    /// How many an agent may have open below it.
    pub const SESSIONS_BELOW: usize = 100;
    /// Idle lanes whose last generation is remembered; beyond it the oldest are forgotten.
    pub const LANES_IDLE: usize = 1_000;
    pub const LEASE_MS: u64 = 60_000;
    pub const LEASE_GRACE_MS: u64 = 30_000;
    pub const LEASE_LEAST_MS: u64 = 100;
    /// What a session remembers of what did not end properly in it: the last ones.
    pub const LEFTOVERS: usize = 100;
    /// Completions that a session's client has not acknowledged: beyond it the oldest are forgotten. And how many one reply has.
    pub const COMPLETIONS_PER_SESSION: usize = 10_000;
    pub const COMPLETIONS_AT_ONCE: usize = 100;
    /// Between two samples of tasks with budgets and the tasks below them.
    pub const BUDGET_SAMPLE_MS: u64 = 250;
    /// How deep tasks and sessions may be nested; beyond it a start is refused.
    pub const DEPTH: usize = 32;
    /// Beyond it a start is refused with `busy`: each that waits is a process.
    pub const LANE_QUEUE: usize = 1_000;
    /// The longest clock: a year. Longer ones are mistakes.
    pub const CLOCK_MS: u64 = 366 * 24 * 3_600_000;
    /// The daemon's log: beyond it `daemon.log` replaces `daemon.log.1` and begins anew, so that both together take twice as
    /// much at most.
    pub const LOG_FILE_BYTES: u64 = 1024 * 1024;
    /// One value in the log, and one line: the rest is cut off and marked.
    pub const LOG_VALUE_BYTES: usize = 512;
    pub const LOG_LINE_BYTES: usize = 4096;
    /// A step of the deciding thread that takes more processor time is reported in the log.
    pub const SLOW_STEP_US: u64 = 50_000;
    /// How many tasks one call may stop by id.
    pub const STOP_IDS: usize = 1_000;
    /// How many queued tasks and fences of a lane are listed, and how many processes and tasks in the preview of a stop.
    pub const LANE_ROWS: usize = 100;
    /// How much of a command the preview of a stop shows.
    pub const PREVIEW_CHARS: usize = 500;
    /// How many tasks one slice of a collection removes.
    pub const GC_ITEMS: usize = 200;
}

/// What is kept of ended tasks and of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    pub age_ms: u64,
    pub tasks: u64,
    pub output_bytes: u64,
    pub events: u64,
}

impl Default for Retention {
    fn default() -> Self {
        const DAY_MS: u64 = 24 * 3_600_000;
        Self { age_ms: 7 * DAY_MS, tasks: 20_000, output_bytes: 4 << 30, events: 200_000 }
    }
}

/// What a session gets that does not say otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionDefaults {
    pub lease_ms: Option<u64>,
    pub grace_ms: Option<u64>,
    pub max_tasks: Option<u64>,
}

#[derive(Clone, Debug)]
pub struct Config {
    pub home: PathBuf,
    pub runtime_dir: PathBuf,
    /// None: never leave.
    pub idle_exit: Option<Duration>,
    pub retention: Retention,
    pub containment: ContainmentInfo,
    pub max_tasks: usize,
    /// How many tasks that ended in the foreground have their output kept.
    pub kept_outputs: usize,
    /// For tasks whose start does not say otherwise.
    pub defaults: Defaults,
    pub session: SessionDefaults,
    /// Run when a task has ended.
    pub on_end: Option<Hook>,
    /// What hooks have in their environment.
    pub hook_env: Vec<Bytes>,
    /// Where all of it comes from.
    pub settings: Settings,
}

impl Config {
    pub const DEFAULT_IDLE_EXIT: Duration = Duration::from_mins(30);

    pub fn new(
        home: PathBuf,
        runtime_dir: PathBuf,
        containment: ContainmentInfo,
        settings: Settings,
    ) -> Self {
        let mut config = Self {
            home,
            runtime_dir,
            idle_exit: settings.idle_exit(),
            retention: Retention::default(),
            containment,
            max_tasks: bounds::LIVE_TASKS,
            kept_outputs: bounds::KEPT_MEMORY_TASKS,
            defaults: Defaults::default(),
            session: SessionDefaults::default(),
            on_end: None,
            hook_env: Vec::new(),
            settings,
        };
        config.apply();
        config
    }

    /// For a daemon that may have so many descriptors: what it keeps must leave it enough to work with.
    pub(crate) fn within(mut self, descriptors: u64) -> Self {
        let most = descriptors / bounds::KEPT_MEMORY_SHARE / MemoryLog::DESCRIPTORS;
        self.kept_outputs = usize::try_from(most).unwrap_or(usize::MAX).min(bounds::KEPT_MEMORY_TASKS);
        self
    }

    /// What the file says now; a file that is wrong changes nothing.
    pub(crate) fn take_over(&mut self, found: &Found) {
        self.settings.take_over(found);
        self.apply();
    }

    /// Those that may change while the daemon runs.
    fn apply(&mut self) {
        self.retention = self.settings.retention();
        self.max_tasks = self.settings.max_tasks();
        self.defaults = self.settings.defaults();
        self.session = self.settings.session();
        self.on_end = self.settings.on_end();
    }

    pub fn task_dir(&self, id: &str) -> PathBuf {
        self.home.join("tasks").join(id)
    }
}
