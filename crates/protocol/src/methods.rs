//! The method table of the client protocol: every call of a client, every notification of the daemon and every call of the
//! daemon to a client, with its types. The daemon's parser, the client and the generated schema all come from it.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::error::{ErrorKind, RpcError};
use crate::params::read_params;
use crate::{call, config, daemon, event, lane, output, permission, session, shell, task};

/// Whether a call can be sent again on a new connection when the old one was lost before the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// Sent twice, it has the effect of once: reads, waits and idempotent calls.
    Safe,
    /// The same, if its parameters carry a token (`task/start`) or a key (`task/write`, `session/open`).
    WithToken,
    /// It is unknown whether it took effect, and a second one might be another one.
    Never,
}

impl Repeat {
    /// The word in the schema.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Safe => "safe",
            Self::WithToken => "with_token",
            Self::Never => "never",
        }
    }
}

/// A call: its name, its parameters and its result.
pub trait Method {
    const NAME: &'static str;
    const REPEAT: Repeat;
    type Params: Serialize + DeserializeOwned + JsonSchema + 'static;
    type Result: Serialize + DeserializeOwned + JsonSchema;
}

/// A notification from the daemon: its name and its parameters.
pub trait Notify {
    const NAME: &'static str;
    type Params: Serialize + DeserializeOwned + JsonSchema;
}

/// A line of the table with its schemas.
#[derive(Clone, Debug)]
pub struct MethodSchema {
    /// The name of its type in Rust, from which the names of its messages are made.
    pub type_name: &'static str,
    pub name: &'static str,
    pub about: &'static str,
    pub params: Schema,
    /// None: a notification.
    pub result: Option<Schema>,
    /// None: not a call of a client.
    pub repeat: Option<Repeat>,
}

/// The whole table with its schemas.
#[derive(Clone, Debug)]
pub struct TableSchema {
    pub calls: Vec<MethodSchema>,
    pub notifications: Vec<MethodSchema>,
    pub client_calls: Vec<MethodSchema>,
}

macro_rules! methods {
    (
        calls { $( $(#[doc = $about:literal])* $call:ident = $name:literal ($params:ty) -> $result:ty, $repeat:ident; )* }
        notifications { $( $(#[doc = $note_about:literal])* $note:ident = $note_name:literal ($note_params:ty); )* }
        client_calls {
            $( $(#[doc = $ask_about:literal])* $ask:ident = $ask_name:literal ($ask_params:ty) -> $ask_result:ty; )*
        }
    ) => {
        $(
            $(#[doc = $about])*
            #[derive(Debug)]
            pub struct $call;
            impl Method for $call {
                const NAME: &'static str = $name;
                const REPEAT: Repeat = Repeat::$repeat;
                type Params = $params;
                type Result = $result;
            }
        )*

        /// Calls that the daemon makes to a client.
        pub mod client_calls {
            use super::*;
            $(
                $(#[doc = $ask_about])*
                #[derive(Debug)]
                pub struct $ask;
                impl Method for $ask {
                    const NAME: &'static str = $ask_name;
                    const REPEAT: Repeat = Repeat::Never;
                    type Params = $ask_params;
                    type Result = $ask_result;
                }
            )*
        }

        /// Notifications from the daemon.
        pub mod notifications {
            use super::*;
            $(
                $(#[doc = $note_about])*
                #[derive(Debug)]
                pub struct $note;
                impl Notify for $note {
                    const NAME: &'static str = $note_name;
                    type Params = $note_params;
                }
            )*
        }

        /// A call of a client with its parameters read.
        #[derive(Debug)]
        pub enum Call {
            $( $call(Box<$params>), )*
        }

        impl Call {
            pub fn parse(method: &str, params: Option<&RawValue>) -> Result<Self, RpcError> {
                match method {
                    $( $name => Ok(Self::$call(Box::new(read_params(params)?))), )*
                    _ => Err(unknown(method)),
                }
            }

            /// The name of the method.
            pub const fn name(&self) -> &'static str {
                match self {
                    $( Self::$call(_) => $name, )*
                }
            }
        }

        /// A notification from the daemon with its parameters read.
        #[derive(Clone, Debug, PartialEq, Serialize)]
        #[serde(tag = "method", content = "params")]
        pub enum Notification {
            $( #[serde(rename = $note_name)] $note(Box<$note_params>), )*
        }

        impl Notification {
            /// None: a notification that this version does not know.
            pub fn parse(method: &str, params: &RawValue) -> serde_json::Result<Option<Self>> {
                match method {
                    $( $note_name => Ok(Some(Self::$note(Box::new(serde_json::from_str(params.get())?)))), )*
                    _ => Ok(None),
                }
            }
        }

        /// Every call of a client by name, in the order of the table.
        pub const NAMES: &[&str] = &[$( $name, )*];

        /// The table with its schemas.
        pub fn schemas(generator: &mut SchemaGenerator) -> TableSchema {
            TableSchema {
                calls: vec![$( MethodSchema {
                    type_name: stringify!($call),
                    name: $name,
                    about: concat!($($about),*).trim_ascii(),
                    params: generator.subschema_for::<$params>(),
                    result: Some(generator.subschema_for::<$result>()),
                    repeat: Some(Repeat::$repeat),
                }, )*],
                notifications: vec![$( MethodSchema {
                    type_name: stringify!($note),
                    name: $note_name,
                    about: concat!($($note_about),*).trim_ascii(),
                    params: generator.subschema_for::<$note_params>(),
                    result: None,
                    repeat: None,
                }, )*],
                client_calls: vec![$( MethodSchema {
                    type_name: stringify!($ask),
                    name: $ask_name,
                    about: concat!($($ask_about),*).trim_ascii(),
                    params: generator.subschema_for::<$ask_params>(),
                    result: Some(generator.subschema_for::<$ask_result>()),
                    repeat: None,
                }, )*],
            }
        }
    };
}

methods! {
    calls {
        /// Agree on versions and on the scope of the connection. The first call on every connection.
        DaemonHello = "daemon/hello" (daemon::DaemonHelloParams) -> daemon::DaemonHelloResult, Safe;
        /// Get the status of the daemon.
        DaemonStatus = "daemon/status" (daemon::DaemonStatusParams) -> daemon::DaemonStatusResult, Safe;
        /// Check how tasks are contained, what is stale and what is wrong, and say what to do about it.
        DaemonDoctor = "daemon/doctor" (daemon::DaemonDoctorParams) -> daemon::DaemonDoctorResult, Safe;
        /// Stop the daemon. Tasks keep running unless the call says otherwise.
        DaemonStop = "daemon/stop" (daemon::DaemonStopParams) -> daemon::DaemonStopResult, Never;
        /// Remove the ended tasks and events that the retention rules do not keep.
        DaemonGc = "daemon/gc" (daemon::DaemonGcParams) -> daemon::DaemonGcResult, Never;
        /// Open a session: a scope for tasks, held by a lease or by connections.
        SessionOpen = "session/open" (session::SessionOpenParams) -> session::SessionOpenResult, WithToken;
        /// Renew the lease of a session, or regain a session whose lease has lapsed.
        SessionRenew = "session/renew" (session::SessionRenewParams) -> session::SessionInfo, Safe;
        /// Close a session and apply its policy to its tasks.
        SessionClose = "session/close" (session::SessionCloseParams) -> session::SessionCloseResult, Safe;
        /// Get one session.
        SessionGet = "session/get" (session::SessionGetParams) -> session::SessionInfo, Safe;
        /// List sessions, newest first.
        SessionList = "session/list" (session::SessionListParams) -> session::SessionListResult, Safe;
        /// Wait until the session is drained: none of its tasks is working.
        SessionWait = "session/wait" (session::SessionWaitParams) -> session::SessionWaitResult, Safe;
        /// List the completions that the session's client has not acknowledged.
        SessionNotices = "session/notices" (session::SessionNoticesParams) -> session::SessionNoticesResult, Safe;
        /// List lanes with their holders, queues and fences.
        LaneList = "lane/list" (lane::LaneListParams) -> lane::LaneListResult, Safe;
        /// Remove the fences of a lane, so that the fenced owners can use it again.
        LaneRelease = "lane/release" (lane::LaneReleaseParams) -> lane::LaneReleaseResult, Never;
        /// Get the settings, each with its source.
        ConfigGet = "config/get" (config::ConfigGetParams) -> config::ConfigGetResult, Safe;
        /// Write one setting to the file, or remove it, and apply it at once where that is possible.
        ConfigSet = "config/set" (config::ConfigSetParams) -> config::ConfigSetResult, Never;
        /// Start a task.
        TaskStart = "task/start" (task::TaskStartParams) -> task::TaskInfo, WithToken;
        /// Get one task, with its processes.
        TaskGet = "task/get" (task::TaskGetParams) -> task::TaskInfo, Safe;
        /// List tasks, newest first.
        TaskList = "task/list" (task::TaskListParams) -> task::TaskListResult, Safe;
        /// Get how much a set of tasks writes and uses now.
        TaskPulse = "task/pulse" (task::TaskPulseParams) -> task::TaskPulseResult, Safe;
        /// Wait until a task ends, a line of its output matches, or its output is silent.
        TaskWait = "task/wait" (task::TaskWaitParams) -> task::TaskWaitResult, Safe;
        /// Stop a task and return the receipt.
        TaskStop = "task/stop" (task::TaskStopParams) -> task::TaskStopResult, Safe;
        /// Say what a stop of a task would do, without doing it.
        TaskPreviewStop = "task/preview_stop" (task::TaskPreviewStopParams) -> task::TaskPreviewStopResult, Safe;
        /// Stop several tasks; each receipt comes as a `task/stopped` notification.
        TaskStopMany = "task/stop_many" (task::TaskStopManyParams) -> task::TaskStopManyResult, Safe;
        /// Move a task from the foreground to the background: waiting callers return at once, and nothing else about the task
        /// changes. For a task in the background, or one that has ended, the call returns the task as it is.
        TaskDetach = "task/detach" (task::TaskDetachParams) -> task::TaskInfo, Safe;
        /// Write to the standard input of a task.
        TaskWrite = "task/write" (task::TaskWriteParams) -> task::TaskWriteResult, WithToken;
        /// Change the size of a task's terminal; its programs get SIGWINCH.
        TaskResize = "task/resize" (task::TaskResizeParams) -> task::TaskResizeResult, Safe;
        /// Send one signal to the process group of the task's leader, as a terminal or `kill` would. To end a task, use
        /// `task/stop`.
        TaskSignal = "task/signal" (task::TaskSignalParams) -> task::TaskSignalResult, Never;
        /// Change how a live task is checked for progress, or end the check.
        TaskSetStall = "task/set_stall" (task::TaskSetStallParams) -> task::TaskInfo, Safe;
        /// Remove the record and the output of an ended task.
        TaskRemove = "task/remove" (task::TaskRemoveParams) -> task::TaskRemoveResult, Never;
        /// Parse a command line and say what Belay does with a `&` in it, without running it.
        ShellRead = "shell/read" (shell::ShellReadParams) -> shell::ShellReadResult, Safe;
        /// Read output from an absolute offset.
        OutputRead = "output/read" (output::OutputReadParams) -> output::OutputReadResult, Safe;
        /// Search output line by line.
        OutputSearch = "output/search" (output::OutputSearchParams) -> output::OutputSearchResult, Safe;
        /// Subscribe to output: it is sent as `output/chunk` notifications.
        OutputFollow = "output/follow" (output::OutputFollowParams) -> output::OutputFollowResult, Safe;
        /// End subscriptions to output.
        OutputUnfollow = "output/unfollow" (output::OutputUnfollowParams) -> output::OutputUnfollowResult, Never;
        /// Read events after a number.
        EventRead = "event/read" (event::EventReadParams) -> event::EventReadResult, Safe;
        /// Subscribe to events: they are sent as `event/item` notifications.
        EventFollow = "event/follow" (event::EventFollowParams) -> event::EventFollowResult, Safe;
        /// End a subscription to events.
        EventUnfollow = "event/unfollow" (event::EventUnfollowParams) -> event::EventUnfollowResult, Never;
        /// Cancel a pending call of this connection: it fails with `cancelled`. A wait ends and its task goes on. A start that
        /// waits for the end is treated as if its connection had ended. What a call has begun, such as a stop, goes on.
        CallCancel = "call/cancel" (call::CallCancelParams) -> call::CallCancelResult, Never;
    }
    notifications {
        /// To a caller of `task/start` that waits for the end: the task waits for its lane.
        TaskQueued = "task/queued" (task::TaskStartNotification);
        /// To a caller of `task/start` that waits for the end: the task has an id and has started.
        TaskStarted = "task/started" (task::TaskStartNotification);
        /// To a caller that stops several tasks: one of them has ended, or the deadline has passed. The calls are
        /// `task/stop_many`, `task/stop` with `cascade` (for what is below the task), `session/close` and `daemon/stop`.
        TaskStopped = "task/stopped" (task::TaskStoppedNotification);
        /// To a caller of `daemon/gc`: these tasks were removed, or would be.
        TaskRemoved = "task/removed" (task::TaskRemovedNotification);
        /// Output of a subscription.
        OutputChunk = "output/chunk" (output::OutputChunkNotification);
        /// The task of a subscription has ended, and every byte of its output has been sent.
        OutputEnd = "output/end" (output::OutputEndNotification);
        /// An event of a subscription.
        EventItem = "event/item" (event::EventItemNotification);
        /// A subscription to events has ended with an error.
        EventEnd = "event/end" (event::EventEndNotification);
    }
    client_calls {
        /// Decide on a permission request of an agent.
        PermissionAsk = "permission/ask" (permission::PermissionAskParams) -> permission::PermissionAskResult;
    }
}

fn unknown(method: &str) -> RpcError {
    let shown: String = method.chars().filter(|c| !c.is_control()).take(60).collect();
    RpcError::new(ErrorKind::UnknownMethod, format!("there is no method {shown:?}"))
        .field("method")
        .hint(format!("methods: {}", NAMES.join(", ")))
}
