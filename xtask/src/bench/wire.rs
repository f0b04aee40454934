//! The few fields of results that the benchmarks use. Everything else is ignored, so that a binary with a slightly
//! different protocol can be measured too.

use belay_protocol::daemon::{DaemonGcParams, DaemonStatusParams, DaemonStopParams, StepCostInfo};
use belay_protocol::methods::{self, Method, Repeat};
use belay_protocol::task::{self, TaskGetParams, TaskListParams, TaskStartParams, TaskWaitParams};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::run::Outcome;

/// A method whose result is read as another type.
macro_rules! lenient {
    ($( $(#[doc = $about:literal])* $name:ident = $of:ident ($params:ty) -> $result:ty; )*) => {
        $(
            $(#[doc = $about])*
            #[derive(Debug)]
            pub(crate) struct $name;
            impl Method for $name {
                const NAME: &'static str = methods::$of::NAME;
                const REPEAT: Repeat = methods::$of::REPEAT;
                type Params = $params;
                type Result = $result;
            }
        )*
    };
}

lenient! {
    Start = TaskStart (TaskStartParams) -> Task;
    Wait = TaskWait (TaskWaitParams) -> Waited;
    Get = TaskGet (TaskGetParams) -> Task;
    List = TaskList (TaskListParams) -> Listed;
    Stop = TaskStop (task::TaskStopParams) -> serde_json::Value;
    Detach = TaskDetach (task::TaskDetachParams) -> serde_json::Value;
    DaemonStatus = DaemonStatus (DaemonStatusParams) -> Status;
    DaemonStop = DaemonStop (DaemonStopParams) -> serde_json::Value;
    Gc = DaemonGc (DaemonGcParams) -> Collected;
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Task {
    pub(crate) id: String,
    pub(crate) status: String,
    pub(crate) pid: Option<i32>,
    #[serde(default)]
    pub(crate) detached: bool,
    pub(crate) output: Output,
    #[serde(default)]
    pub(crate) held_by: Option<HeldBy>,
}

impl Task {
    pub(crate) fn is_running(&self) -> bool {
        self.status == "running"
    }

    pub(crate) fn completed(&self) -> Outcome {
        match self.status.as_str() {
            "completed" => Ok(()),
            other => Err(format!("the task is {other}").into()),
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Output {
    pub(crate) bytes: u64,
    #[serde(default)]
    pub(crate) gaps: Vec<serde_json::Value>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct HeldBy {
    pub(crate) shim_pid: i32,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Waited {
    pub(crate) task: Task,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Listed {
    pub(crate) tasks: Vec<Task>,
    #[serde(default)]
    pub(crate) next_cursor: Option<String>,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Status {
    pub(crate) pid: i32,
    pub(crate) tasks_live: u64,
    pub(crate) tasks_ended: u64,
    pub(crate) events_last: u64,
    pub(crate) containment: Containment,
    /// Absent from binaries that do not measure their steps.
    #[serde(default)]
    pub(crate) steps: Option<StepCostInfo>,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Containment {
    pub(crate) cgroup: Option<String>,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Collected {
    pub(crate) removed: u64,
}
