//! `daemon/*`: the handshake, the state of the daemon itself, and its end.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::bytes::Bytes;
use crate::task::StopCounts;
use crate::time::Timestamp;

/// The first call on every connection: until it is answered, nothing else is.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DaemonHelloParams {
    pub client: ClientInfo,
    /// The client protocol that the caller speaks.
    pub protocol: u32,
    /// What the client is for its user. Receipts and events name it: `user:ada via cli`.
    #[serde(default)]
    pub surface: Surface,
    /// The token of a session or of a task: everything on this connection is then done in its name, and only what is below it
    /// can be seen. What runs inside a task is taken as that task, with a token or without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}

impl std::fmt::Debug for DaemonHelloParams {
    /// Without the token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DaemonHelloParams").field("client", &self.client).finish_non_exhaustive()
    }
}

/// The name and version of a client program. Tasks and sessions that it starts carry it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClientInfo {
    /// At most 200 bytes, without control characters.
    pub name: String,
    /// At most 200 bytes, without control characters.
    pub version: String,
}

impl ClientInfo {
    pub fn new(name: &str, version: &str) -> Self {
        Self { name: name.to_owned(), version: version.to_owned() }
    }
}

/// What a client is for its user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Surface {
    /// The `belay` command.
    Cli,
    /// The MCP server.
    Mcp,
    /// The web page.
    Web,
    /// The terminal user interface.
    Tui,
    /// A dispatcher of a fleet.
    Fleet,
    /// Any other program.
    #[default]
    Api,
}

impl Surface {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cli => "cli",
            Self::Mcp => "mcp",
            Self::Web => "web",
            Self::Tui => "tui",
            Self::Fleet => "fleet",
            Self::Api => "api",
        }
    }
}

/// In whose name a connection speaks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum ScopeInfo {
    /// A person at the command line, or a program of theirs: sees all of theirs.
    Person,
    Session {
        id: String,
    },
    Task {
        id: String,
    },
}

/// Among the capabilities of a daemon that knows `room_ms` of `task/write`.
pub const ROOM: &str = "room";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DaemonHelloResult {
    pub version: String,
    pub protocol: u32,
    pub pid: i32,
    pub home: Bytes,
    /// Features that not every daemon of this protocol has. A client need not read them.
    pub capabilities: Vec<String>,
    #[serde(default = "person")]
    pub scope: ScopeInfo,
}

const fn person() -> ScopeInfo {
    ScopeInfo::Person
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DaemonStatusParams {
    /// Also return the cost of steps for each kind of input.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub step_kinds: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DaemonStatusResult {
    pub version: String,
    pub pid: i32,
    pub home: Bytes,
    pub runtime_dir: Bytes,
    pub started_at: Timestamp,
    pub uptime_ms: u64,
    pub tasks_live: u64,
    pub tasks_ended: u64,
    pub output_bytes: u64,
    pub journal_bytes: u64,
    pub events_first: u64,
    pub events_last: u64,
    pub clients: u64,
    /// Calls that wait for their answer: for the end of a task, mostly.
    #[serde(default)]
    pub calls_waiting: u64,
    pub shims_ready: u64,
    pub containment: ContainmentInfo,
    /// None: it never leaves by itself.
    pub idle_exit_ms: Option<u64>,
    /// The cost of the steps of the daemon's deciding thread.
    pub steps: StepCostInfo,
    /// What people should know: damaged files set aside, a full disk, lost tasks.
    pub notices: Vec<DaemonNotice>,
}

/// The steps of the daemon's deciding thread: how many there were, and the longest of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StepCostInfo {
    pub count: u64,
    /// The most processor time that one step took, in microseconds.
    pub longest_cpu_us: u64,
    /// The most time that passed during one step, in microseconds.
    pub longest_wall_us: u64,
    /// The same for each kind of input that there was, if the caller asked for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<StepKindInfo>,
}

/// The steps for one kind of input of the daemon's deciding thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StepKindInfo {
    /// The input, and the method or the timer that caused it. For diagnosis: names can change.
    pub kind: String,
    pub count: u64,
    pub longest_cpu_us: u64,
    pub longest_wall_us: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ContainmentInfo {
    pub kind: ContainmentKind,
    pub layout: CgroupLayout,
    pub cgroup: Option<Bytes>,
    pub why: String,
    /// How budgets of memory and processes are enforced.
    #[serde(default)]
    pub budgets: BudgetEnforcement,
}

/// What holds the processes of a task together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ContainmentKind {
    /// A cgroup, and the subreaper.
    Cgroup,
    /// The subreaper alone.
    Subreaper,
}

impl ContainmentKind {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cgroup => "cgroup",
            Self::Subreaper => "subreaper",
        }
    }
}

/// Which cgroup hierarchy the machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CgroupLayout {
    V2,
    Hybrid,
    V1,
    None,
    /// Cgroups are switched off by a setting; the machine was not probed.
    Off,
}

impl CgroupLayout {
    pub const fn name(self) -> &'static str {
        match self {
            Self::V2 => "v2",
            Self::Hybrid => "hybrid",
            Self::V1 => "v1",
            Self::None => "none",
            Self::Off => "off",
        }
    }
}

/// Who enforces a budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BudgetEnforcer {
    /// The kernel, at once.
    Kernel,
    /// The holder of the task, which looks four times a second: a budget can be exceeded for a moment.
    #[default]
    Sampling,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BudgetEnforcement {
    pub memory: BudgetEnforcer,
    pub processes: BudgetEnforcer,
    /// Why the kernel does not, where it does not.
    pub why: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DaemonNotice {
    pub at: Timestamp,
    pub message: String,
    pub hint: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DaemonStopParams {
    /// Stop every task first; without it they run on and the next daemon adopts them.
    #[serde(default)]
    pub stop_tasks: bool,
    #[serde(default)]
    pub grace_ms: Option<u64>,
    #[serde(default)]
    pub reason: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DaemonStopResult {
    /// How the stops went; the receipts came before, as `task/stopped` notifications.
    pub counts: StopCounts,
    /// Tasks that run on.
    pub left_running: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DaemonGcParams {
    /// Remove every ended task, whatever the rules say.
    #[serde(default)]
    pub all: bool,
    #[serde(default)]
    pub dry_run: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DaemonGcResult {
    /// How many tasks; their ids came before, as `task/removed` notifications.
    pub removed: u64,
    pub freed_bytes: u64,
    pub events_expired: u64,
    pub dry_run: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DaemonDoctorParams {}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FindingVerdict {
    Ok,
    /// Good to know, nothing to do.
    Note,
    /// Works, but not as well as it could.
    Warning,
    Problem,
}

/// What a finding of `daemon/doctor` or `belay doctor` is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FindingTopic {
    Home,
    Socket,
    Daemon,
    /// The caller runs inside a task.
    Lineage,
    Containment,
    Budgets,
    Tasks,
    Journal,
    /// The daemon's own log.
    Log,
    Shims,
    Survivors,
    /// Servers outside of Belay (cron, docker, systemd) that a task can hand work to.
    Outside,
    /// A notice of the daemon, as in `daemon/status`.
    Notice,
}

impl FindingTopic {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Home => "home",
            Self::Socket => "socket",
            Self::Daemon => "daemon",
            Self::Lineage => "lineage",
            Self::Containment => "containment",
            Self::Budgets => "budgets",
            Self::Tasks => "tasks",
            Self::Journal => "journal",
            Self::Log => "log",
            Self::Shims => "shims",
            Self::Survivors => "survivors",
            Self::Outside => "outside",
            Self::Notice => "notice",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DoctorFinding {
    pub verdict: FindingVerdict,
    pub topic: FindingTopic,
    pub message: String,
    #[serde(default)]
    pub hint: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DaemonDoctorResult {
    pub findings: Vec<DoctorFinding>,
}
