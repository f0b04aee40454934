//! `task/*`: starting, looking, waiting, stopping, writing, removing.

mod attempt;
mod detached_by;
mod limits;
mod list;
mod outcome;
mod preview_stop;
mod pulse;
mod spec;
mod stall;
mod status;
mod stop;
mod wait;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::bytes::Bytes;
use crate::daemon::ClientInfo;
use crate::labels::Labels;
use crate::lane::{LaneParams, LaneSeat};
use crate::life::{OutputInfo, StopLevel};
use crate::output::StreamName;
use crate::rpc::RequestId;
use crate::time::Timestamp;

pub use attempt::AttemptInfo;
pub use detached_by::DetachedBy;
pub use limits::{BudgetName, Budgets, NoLimit};
pub use list::{TaskListParams, TaskListResult};
pub use outcome::{AgentUsage, BudgetInfo, Outcome, OutcomeKind, SpawnError, StopReason};
pub use preview_stop::{LanePreview, TaskBelow, TaskPreviewStopParams, TaskPreviewStopResult};
pub use pulse::{TaskPulse, TaskPulseParams, TaskPulseResult};
pub use spec::{
    AgentInfo, AgentSpec, PermissionPolicy, ShellCommand, ShellInfo, ShellSpec, TaskKind, TaskSpec,
    TaskSpecInfo, TerminalSize,
};
pub use stall::{OnStall, StallEvidence, StallInfo, StallParams, StallSetting, TaskSetStallParams};
pub use status::{TaskHealth, TaskStatus};
pub use stop::{
    StopCounts, StopFence, StopVerdict, TaskStopManyParams, TaskStopManyResult, TaskStopParams,
    TaskStopResult, TaskStoppedNotification,
};
pub use wait::{OutputMatchNext, OutputMatchParams, TaskWaitParams, TaskWaitResult, WaitMet, WaitUntil};

/// When a start is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AnswerWhen {
    /// As soon as the command runs, or could not be started.
    #[default]
    Started,
    /// When the task has ended: the caller is in the foreground. The id comes before, in a `task/started` notification.
    Ended,
}

/// What happens to a task in the foreground when its `timeout_ms` has passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnTimeout {
    #[default]
    Stop,
    /// It goes on, nobody waits for it any more, and its time-to-live begins.
    Detach,
}

/// What happens to a task in the foreground when the connection of whoever waits for it ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnDisconnect {
    #[default]
    Detach,
    Stop,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskStartParams {
    /// What to run.
    pub spec: TaskSpec,
    /// An absolute path.
    pub cwd: Bytes,
    /// The environment, as `NAME=value`. It is handed to the command and kept nowhere. Unless `inherit_env` is set, it is the
    /// whole environment.
    #[serde(default)]
    pub env: Vec<Bytes>,
    /// Begin with the environment of the process that made the connection, as it was when that process was started (the
    /// kernel does not show later changes); variables in `env` and `set_env` replace those of the same name.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub inherit_env: bool,
    /// What was set on purpose, on top of `env`: part of what an idempotency token compares.
    #[serde(default)]
    pub set_env: BTreeMap<String, Bytes>,
    /// What it can be called by wherever an id is taken. Several may have the same.
    #[serde(default)]
    pub name: Option<String>,
    /// To find it and its events by: at most 32. Keys have up to 64 characters of `a-z A-Z 0-9 - _ . /`, values up to 256 bytes.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// The file mode creation mask of the command. Default: that of the daemon.
    #[serde(default)]
    pub umask: Option<u32>,
    /// Resource limits of the caller, `[resource, soft, hard]` by the kernel's numbers; `18446744073709551615` is none.
    #[serde(default)]
    pub rlimits: Vec<[u64; 3]>,
    /// Nobody waits: the time-to-live counts from the start.
    #[serde(default)]
    pub detached: bool,
    /// For the foreground; if it is detached from the start, for the whole run.
    #[serde(default)]
    pub timeout_ms: Option<u64>,
    /// What to do when `timeout_ms` has passed while the task is in the foreground. Default: stop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_timeout: Option<OnTimeout>,
    #[serde(default)]
    pub on_disconnect: OnDisconnect,
    /// Counts from the moment nobody waits.
    #[serde(default)]
    pub ttl_ms: Option<u64>,
    /// Stop the task (outcome `timed_out`, clock `silence`) if it writes nothing for so long. To be told of a task that makes no
    /// progress, use `stall`.
    #[serde(default)]
    pub silence_ms: Option<u64>,
    /// Look whether it gets on. None: nobody looks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stall: Option<StallParams>,
    /// Clocks that it shall not have although a setting gives one to every task.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub no_limits: Vec<NoLimit>,
    /// How long each level of a stop may take before the next one. Default: 5,000.
    #[serde(default)]
    pub grace_ms: Option<u64>,
    /// Run it again, at most so often (1 000), when it has failed by itself: with an exit code other than 0, or of a signal that
    /// nobody here sent. It stays one task, with one log and one end; limits count over all attempts.
    #[serde(default, skip_serializing_if = "attempt::is_zero")]
    pub retries: u32,
    /// How long after each failure. Default: 1 000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_delay_ms: Option<u64>,
    /// How much output is kept: beyond it the middle is dropped, and marked as a gap. Default: 256 MiB.
    #[serde(default)]
    pub output_limit_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Budgets::is_empty")]
    pub budgets: Budgets,
    /// A line for the shell that is run once when the task has ended, however it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notify: Option<String>,
    /// Two starts with the same token are one task.
    #[serde(default)]
    pub token: Option<String>,
    /// The start was announced before, and is repeated with its token by a client that reconnects: if its task is not known any
    /// more, fail with `not_found` instead of starting it again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub resume: bool,
    /// The session it belongs to, if not the caller's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// It outlives its session, whatever the session's policy says. Not for whoever runs inside the session.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep: bool,
    /// The seat it wants to hold, alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lane: Option<LaneParams>,
    #[serde(default)]
    pub answer: AnswerWhen,
    /// Send the output to this connection as `output/chunk` notifications.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow: Option<StartFollowParams>,
}

/// The subscription of a start to the output of its task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StartFollowParams {
    /// The absolute offset to begin at: for a start that is repeated with its token. Output before it may come all the same if
    /// the task has not written as much.
    #[serde(default)]
    pub from: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<StreamName>,
    /// Send text instead of base64. No character is split between two chunks.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub text: bool,
}

impl TaskStartParams {
    /// The start of a task with an empty environment, in the foreground, without limits of its own. Everything else is set
    /// by field.
    pub fn new(spec: impl Into<TaskSpec>, cwd: impl Into<Bytes>) -> Self {
        Self {
            spec: spec.into(),
            cwd: cwd.into(),
            env: Vec::new(),
            inherit_env: false,
            set_env: BTreeMap::new(),
            name: None,
            labels: Labels::new(),
            umask: None,
            rlimits: Vec::new(),
            detached: false,
            timeout_ms: None,
            on_timeout: None,
            on_disconnect: OnDisconnect::default(),
            ttl_ms: None,
            silence_ms: None,
            stall: None,
            no_limits: Vec::new(),
            grace_ms: None,
            retries: 0,
            retry_delay_ms: None,
            output_limit_bytes: None,
            budgets: Budgets::default(),
            notify: None,
            token: None,
            resume: false,
            session: None,
            keep: false,
            lane: None,
            answer: AnswerWhen::default(),
            follow: None,
        }
    }
}

impl std::fmt::Debug for TaskStartParams {
    /// Without the environment: it may hold secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TaskStartParams").field("spec", &self.spec).finish_non_exhaustive()
    }
}

/// A task as everybody sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TaskInfo {
    pub id: String,
    pub kind: TaskKind,
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    pub status: TaskStatus,
    pub health: TaskHealth,
    /// While it is stalled: what was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stall: Option<Box<StallInfo>>,
    pub detached: bool,
    /// Who moved it to the background, if it did not start there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detached_by: Option<DetachedBy>,
    /// The command as a person would type it.
    pub command: String,
    /// What is particular to tasks of this kind.
    pub spec: TaskSpecInfo,
    pub cwd: Bytes,
    pub session: String,
    pub parent: Option<String>,
    /// Who started it, and through which surface: `user:ada via cli`. Empty for a task whose start this journal does not know.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub started_by: String,
    /// The client program that started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<ClientInfo>,
    /// Everything above it, tasks and sessions, from the outermost in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lineage: Vec<String>,
    /// The seat that it holds, held, or waits for.
    pub lane: Option<LaneSeat>,
    /// It outlives its session.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep: bool,
    /// When it was asked for and recorded.
    #[serde(default)]
    pub created_at: Timestamp,
    /// When its command was started, the first time if it is run again; none as long as it waits for its turn, and for ever if it
    /// never was started.
    pub started_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    pub pid: Option<i32>,
    pub leader: Option<LeaderInfo>,
    /// Only of a task that is run again when it fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<AttemptInfo>,
    /// Only in `task/get`: walking the process table is not free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<Vec<ProcessInfo>>,
    pub output: OutputInfo,
    pub clocks: ClocksInfo,
    #[serde(default, skip_serializing_if = "Budgets::is_empty")]
    pub budgets: Budgets,
    /// While it is being stopped: why, how, and how long that may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopping: Option<StoppingInfo>,
    pub outcome: Option<Outcome>,
    /// The number of the last event about the task that this description contains.
    #[serde(default)]
    pub last_event: u64,
    /// How the tree is held: `cgroup` and `subreaper`, or `subreaper` alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_by: Option<HeldBy>,
}

/// The notifications `task/queued` and `task/started`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TaskStartNotification {
    /// The id of the `task/start` call.
    pub request: RequestId,
    pub task: TaskInfo,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HeldBy {
    pub shim_pid: i32,
    pub cgroup: Option<Bytes>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LeaderInfo {
    pub pid: i32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProcessInfo {
    pub pid: i32,
    pub ppid: i32,
    /// The kernel's letter: `R`, `S`, `D`, `T`, `Z`…
    pub state: String,
    pub command: String,
    pub rss_bytes: u64,
    pub cpu_ms: u64,
}

/// The limits of a task, and what is left of each that is running now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClocksInfo {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<ClockInfo>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<ClockInfo>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silence: Option<ClockInfo>,
    /// Until it is looked at again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stall: Option<ClockInfo>,
    /// Runs between two attempts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<ClockInfo>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace: Option<ClockInfo>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClockInfo {
    pub limit_ms: u64,
    /// None when the clock is not running now.
    pub remaining_ms: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StoppingInfo {
    pub level: StopLevel,
    pub actor: String,
    #[serde(default)]
    pub reason: Option<String>,
}

/// A task is named by its id, by an unambiguous beginning of it, or by its name: that means the one live task of that name, or
/// else the last that was started with it. What can be an id is taken as one first. So it is in every call that takes the id of a
/// task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskGetParams {
    pub id: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskWriteParams {
    pub id: String,
    #[serde(default)]
    pub data: Bytes,
    /// Close standard input after the data. At a terminal the end-of-file character is typed instead, once, and standard
    /// input stays open, as it does for a person who types Ctrl-D.
    #[serde(default)]
    pub close: bool,
    /// A name for this write: written twice under one name, it is applied once. So it can be asked for again when nobody
    /// knows whether the first asking arrived. The last hundred names of a task are remembered.
    #[serde(default)]
    pub key: Option<String>,
    /// If there is no room for it, because the command does not read or has not begun: refuse it with `busy` only when there may
    /// be, or after so many milliseconds, at most 600 000. Nothing of it was taken then. Without it, it is refused at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub room_ms: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TaskWriteResult {
    pub id: String,
    pub accepted_bytes: u64,
    /// Bytes that the command has not read yet.
    pub pending_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskSignalParams {
    pub id: String,
    /// `INT`, `SIGUSR1`, `10`.
    pub signal: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TaskSignalResult {
    pub id: String,
    /// How many processes it was sent to.
    pub processes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskResizeParams {
    pub id: String,
    pub rows: u16,
    pub cols: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TaskResizeResult {
    pub id: String,
    pub rows: u16,
    pub cols: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskDetachParams {
    pub id: String,
    /// What the caller calls itself; the user is always added.
    #[serde(default)]
    pub actor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskRemoveParams {
    pub id: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TaskRemoveResult {
    pub id: String,
    pub freed_bytes: u64,
}

/// The notification `task/removed`: records that `daemon/gc` has removed, or would remove.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TaskRemovedNotification {
    /// The id of the `daemon/gc` call.
    pub request: RequestId,
    pub ids: Vec<String>,
}
