//! The one table of the client protocol: every method with its name, parameters and result. The daemon's parser,
//! the client's calls and the generated schema all come from it.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::error::{ErrorKind, RpcError};
use crate::{daemon, event, output, task};

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
    /// Start a command as a task.
    TaskStart = "task/start" (task::StartParams) -> task::TaskInfo;
    /// One task, with its processes.
    TaskGet = "task/get" (task::GetParams) -> task::TaskInfo;
    /// Tasks, newest first.
    TaskList = "task/list" (task::ListParams) -> task::ListResult;
    /// Wait for a task's end.
    TaskWait = "task/wait" (task::WaitParams) -> task::WaitResult;
    /// Stop a task and prove it.
    TaskStop = "task/stop" (task::StopParams) -> task::StopResult;
    /// Write to a task's standard input.
    TaskWrite = "task/write" (task::WriteParams) -> task::WriteResult;
    /// Forget an ended task and its output.
    TaskRemove = "task/remove" (task::RemoveParams) -> task::RemoveResult;
    /// Read output by absolute offset.
    OutputRead = "output/read" (output::ReadParams) -> output::ReadResult;
    /// Search output line by line.
    OutputSearch = "output/search" (output::SearchParams) -> output::SearchResult;
    /// Follow output as it comes.
    OutputFollow = "output/follow" (output::FollowParams) -> output::FollowResult;
    /// Read events after a number.
    EventRead = "event/read" (event::ReadParams) -> event::ReadResult;
    /// Follow events as they come.
    EventFollow = "event/follow" (event::FollowParams) -> event::FollowResult;
}

/// The names of notifications from the daemon.
pub mod notify {
    pub const TASK_STARTED: &str = "task/started";
    pub const OUTPUT_CHUNK: &str = "output/chunk";
    pub const OUTPUT_END: &str = "output/end";
    pub const EVENT_ITEM: &str = "event/item";
}

fn read<P: DeserializeOwned>(params: Option<&RawValue>) -> Result<P, RpcError> {
    let text = params.map_or("{}", RawValue::get);
    serde_json::from_str(text).map_err(|error| {
        let message = error.to_string();
        // serde names the field in backquotes; programs get it without having to read the sentence.
        let field = message.split('`').nth(1).unwrap_or("params").to_owned();
        RpcError::invalid(&field, format!("the parameters do not fit: {message}"))
    })
}

fn unknown(method: &str) -> RpcError {
    let shown: String = method.chars().filter(|c| !c.is_control()).take(60).collect();
    RpcError::new(ErrorKind::UnknownMethod, format!("there is no method {shown:?}"))
        .field("method")
        .hint(format!("methods: {}", NAMES.join(", ")))
}
