//! The one table of the client protocol: every method with its name, parameters and result. The daemon's parser,
//! the client's calls and the generated schema all come from it.

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::error::{ErrorKind, RpcError, split_hint};
use crate::{config, daemon, event, lane, output, session, shell, task};

/// One method: a name and the types that go with it.
pub trait Method {
    const NAME: &'static str;
    type Params: Serialize + DeserializeOwned + JsonSchema;
    type Result: Serialize + DeserializeOwned + JsonSchema;
}

/// A method's name and the schemas of what goes in and comes out.
#[derive(Clone, Debug)]
pub struct MethodSchema {
    pub name: &'static str,
    pub about: &'static str,
    pub params: Schema,
    pub result: Schema,
}

macro_rules! methods {
    ($( $(#[doc = $about:literal])* $variant:ident = $name:literal ($params:ty) -> $result:ty; )*) => {
        $(
            $(#[doc = $about])*
            #[derive(Debug)]
            pub struct $variant;
            impl Method for $variant {
                const NAME: &'static str = $name;
                type Params = $params;
                type Result = $result;
            }
        )*

        /// A request with its parameters read.
        #[derive(Debug)]
        pub enum Call {
            $( $variant(Box<$params>), )*
        }

        impl Call {
            pub fn parse(method: &str, params: Option<&RawValue>) -> Result<Self, RpcError> {
                match method {
                    $( $name => Ok(Self::$variant(Box::new(read(params)?))), )*
                    _ => Err(unknown(method)),
                }
            }

            /// The name of the method.
            pub const fn name(&self) -> &'static str {
                match self {
                    $( Self::$variant(_) => $name, )*
                }
            }
        }

        /// Every method's name, in the order of the table.
        pub const NAMES: &[&str] = &[$( $name, )*];

        pub fn schemas(generator: &mut SchemaGenerator) -> Vec<MethodSchema> {
            vec![$( MethodSchema {
                name: $name,
                about: concat!($($about),*).trim_ascii(),
                params: generator.subschema_for::<$params>(),
                result: generator.subschema_for::<$result>(),
            }, )*]
        }
    };
}

methods! {
    /// Agree on versions. The first call on every connection.
    Hello = "daemon/hello" (daemon::HelloParams) -> daemon::HelloResult;
    /// How the daemon is.
    DaemonStatus = "daemon/status" (daemon::StatusParams) -> daemon::StatusResult;
    /// What is held how, what is stale, what is wrong, and what to do.
    DaemonDoctor = "daemon/doctor" (daemon::DoctorParams) -> daemon::DoctorResult;
    /// End the daemon; tasks run on unless asked otherwise.
    DaemonStop = "daemon/stop" (daemon::StopParams) -> daemon::StopDaemonResult;
    /// Remove what the rules of retention no longer keep.
    DaemonGc = "daemon/gc" (daemon::GcParams) -> daemon::GcResult;
    /// Open a session: a scope of its own, held by a lease.
    SessionOpen = "session/open" (session::OpenParams) -> session::OpenResult;
    /// Hold it on, or regain it.
    SessionRenew = "session/renew" (session::RenewParams) -> session::SessionInfo;
    /// End it; its policy is applied.
    SessionClose = "session/close" (session::CloseParams) -> session::CloseResult;
    SessionGet = "session/get" (session::GetParams) -> session::SessionInfo;
    /// Sessions, newest first.
    SessionList = "session/list" (session::ListParams) -> session::ListResult;
    /// Wait until nothing in it works any more.
    SessionWait = "session/wait" (session::WaitParams) -> session::WaitResult;
    /// The ends that the session has not been told of yet, each until it is acknowledged.
    SessionNotices = "session/notices" (session::NoticesParams) -> session::NoticesResult;
    /// The lanes, who holds them, who waits for them, and who may not have them.
    LaneList = "lane/list" (lane::ListParams) -> lane::ListResult;
    /// Let a fenced owner have the lane again.
    LaneRelease = "lane/release" (lane::ReleaseParams) -> lane::ReleaseResult;
    /// The settings: what counts now, and where each comes from.
    ConfigGet = "config/get" (config::GetParams) -> config::GetResult;
    /// Writes one setting into the file, or takes it out, and lets it count at once where that can be.
    ConfigSet = "config/set" (config::SetParams) -> config::SetResult;
    /// Start a command as a task.
    TaskStart = "task/start" (task::StartParams) -> task::TaskInfo;
    /// One task, with its processes.
    TaskGet = "task/get" (task::GetParams) -> task::TaskInfo;
    /// Tasks, newest first.
    TaskList = "task/list" (task::ListParams) -> task::ListResult;
    /// Wait for a task's end, for a match in its output, or for silence.
    TaskWait = "task/wait" (task::WaitParams) -> task::WaitResult;
    /// Stop a task and prove it.
    TaskStop = "task/stop" (task::StopParams) -> task::StopResult;
    /// Moves a task from the foreground to the background: whoever waits for it is answered at once, and nothing else about it
    /// changes. A task that nobody waits for, or that has ended, is answered as it is.
    TaskDetach = "task/detach" (task::DetachParams) -> task::TaskInfo;
    /// Write to a task's standard input.
    TaskWrite = "task/write" (task::WriteParams) -> task::WriteResult;
    /// Change the size of a task's terminal; its programs are told as by a window that changes.
    TaskResize = "task/resize" (task::ResizeParams) -> task::ResizeResult;
    /// Send one signal to the group of a task's first process, as a terminal or `kill` would. Nothing follows from it but what the
    /// task makes of it; to end a task, stop it.
    TaskSignal = "task/signal" (task::SignalParams) -> task::SignalResult;
    /// Forget an ended task and its output.
    TaskRemove = "task/remove" (task::RemoveParams) -> task::RemoveResult;
    /// Say what a command line means, and what `&` means in it, without running it.
    ShellRead = "shell/read" (shell::ReadParams) -> shell::ReadResult;
    /// Read output by absolute offset.
    OutputRead = "output/read" (output::ReadParams) -> output::ReadResult;
    /// Search output line by line.
    OutputSearch = "output/search" (output::SearchParams) -> output::SearchResult;
    /// Follow output as it comes.
    OutputFollow = "output/follow" (output::FollowParams) -> output::FollowResult;
    /// Follow it no longer.
    OutputUnfollow = "output/unfollow" (output::UnfollowParams) -> output::UnfollowResult;
    /// Read events after a number.
    EventRead = "event/read" (event::ReadParams) -> event::ReadResult;
    /// Follow events as they come.
    EventFollow = "event/follow" (event::FollowParams) -> event::FollowResult;
}

/// The names of notifications from the daemon.
pub mod notify {
    pub const TASK_STARTED: &str = "task/started";
    /// A task that is waited for waits for its turn in its lane.
    pub const TASK_QUEUED: &str = "task/queued";
    pub const OUTPUT_CHUNK: &str = "output/chunk";
    pub const OUTPUT_END: &str = "output/end";
    pub const EVENT_ITEM: &str = "event/item";
}

fn read<P: DeserializeOwned>(params: Option<&RawValue>) -> Result<P, RpcError> {
    const SCHEMA: &str = "the schema of every method is in docs/schema/client.json";
    let text = params.map_or("{}", RawValue::get);
    // An array would be read as the fields in the order in which they happen to be declared.
    if let Some(what) = not_an_object(text) {
        let message = format!("the parameters are an object with a field for each, not {what}");
        return Err(RpcError::invalid("params", message).hint(SCHEMA));
    }
    serde_json::from_str(text).map_err(|error| {
        let field = field_at_fault(text, &error).unwrap_or_else(|| "params".to_owned());
        // What was wrong may be long, and hostile.
        let said: String = error.to_string().chars().filter(|c| !c.is_control()).take(300).collect();
        if let Some((message, hint)) = split_hint(&said) {
            return RpcError::invalid(&field, message).hint(hint);
        }
        RpcError::invalid(&field, format!("the parameters do not fit: {said}")).hint(SCHEMA)
    })
}

/// What a JSON value is, if it is no object.
fn not_an_object(value: &str) -> Option<&'static str> {
    match value.trim_start().as_bytes().first()? {
        b'{' => None,
        b'[' => Some("an array"),
        b'"' => Some("a string"),
        b't' | b'f' => Some("a boolean"),
        b'n' => Some("null"),
        _ => Some("a number"),
    }
}

/// The field that an error is about: by its name, or by the position of the error.
fn field_at_fault(text: &str, error: &serde_json::Error) -> Option<String> {
    let message = error.to_string();
    if ["missing field `", "unknown field `", "duplicate field `"]
        .iter()
        .any(|words| message.starts_with(words))
    {
        return message.split('`').nth(1).map(str::to_owned);
    }
    let lines_before: usize =
        text.split_inclusive('\n').take(error.line().checked_sub(1)?).map(str::len).sum();
    field_around(text, text.as_ptr().addr() + lines_before + error.column())
}

/// The name of the innermost field whose value contains the address.
fn field_around(object: &str, address: usize) -> Option<String> {
    let fields: BTreeMap<String, &RawValue> = serde_json::from_str(object).ok()?;
    let holds = |value: &RawValue| {
        let start = value.get().as_ptr().addr();
        (start..=start + value.get().len()).contains(&address)
    };
    let (name, value) = fields.into_iter().find(|(_, value)| holds(value))?;
    field_around(value.get(), address).or(Some(name))
}

fn unknown(method: &str) -> RpcError {
    let shown: String = method.chars().filter(|c| !c.is_control()).take(60).collect();
    RpcError::new(ErrorKind::UnknownMethod, format!("there is no method {shown:?}"))
        .field("method")
        .hint(format!("methods: {}", NAMES.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_field_at_fault_is_named_whatever_is_wrong_with_it() {
        for (params, field) in [
            (r"{}", "id"),
            (r#"{"id": "x", "more": 1}"#, "more"),
            (r#"{"id": 17}"#, "id"),
            ("{\n \"id\": \"x\",\n \"level\": \"hard\"}", "level"),
            (r#"{"id": "x", "grace_ms": -1, "wait": true}"#, "grace_ms"),
            (r#"{"wait": "yes", "id": "x"}"#, "wait"),
            (r#"{"id": ["x"]}"#, "id"),
            (r"[]", "params"),
            (r#"["sh-1"]"#, "params"),
            (r"null", "params"),
            (r"-1", "params"),
        ] {
            let raw = RawValue::from_string(params.to_owned()).unwrap();
            let error = Call::parse("task/stop", Some(&raw)).unwrap_err();
            assert_eq!(error.data.field.as_deref(), Some(field), "{params}: {error}");
        }
    }
}
