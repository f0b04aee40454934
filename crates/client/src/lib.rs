//! The Rust client of Belay: it finds the daemon, starts it if there is none, and speaks the client protocol with it.
//!
//! - [`Client`] blocks. It has no threads and no async runtime.
//! - `AsyncClient` runs on tokio (feature `tokio`): concurrent calls, subscriptions as streams.
//!
//! Both are drivers around one codec, which does no I/O. Methods, parameters and results are the types of [`protocol`], and a
//! call names its method as a type.
//!
//! ```
//! use belay_client::protocol::methods::{TaskStart, TaskWait};
//! use belay_client::protocol::task::{Outcome, ShellCommand, TaskStartParams, TaskWaitParams};
//! use belay_client::{Client, ClientError};
//!
//! # let world = belay_testkit::doc_world();
//! # let (paths, belay) = (world.paths(), world.program());
//! // `paths` is usually `Paths::from_env(|name| std::env::var_os(name))?`, and `belay` the path of the program.
//! let mut client = Client::connect_or_start(&paths, belay)?;
//! let command = ShellCommand::argv(["/bin/sh", "-c", "echo hello; exit 3"]);
//! let task = client.call::<TaskStart>(&TaskStartParams { detached: true, ..TaskStartParams::new(command, "/") })?;
//! let ended = client.call_by::<TaskWait>(&TaskWaitParams::for_end(&task.id), None)?.task;
//! assert_eq!(ended.outcome.and_then(|outcome| outcome.exit_code()), Some(3));
//! # Ok::<(), ClientError>(())
//! ```
//!
//! # Subscriptions
//!
//! `output/follow`, `event/follow` and a `task/start` with `follow` are subscriptions: their notifications carry the id of the
//! call. Output and events are passed on once and in order, over all connections of the client.
//!
//! ```
//! use belay_client::protocol::methods::{Notification, TaskStart};
//! use belay_client::protocol::task::{AnswerWhen, ShellCommand, StartFollowParams, TaskStartParams};
//! use belay_client::{Client, ClientError, Message, decode};
//!
//! # let world = belay_testkit::doc_world();
//! # let (paths, belay) = (world.paths(), world.program());
//! let mut client = Client::connect_or_start(&paths, belay)?;
//! let start = client.send::<TaskStart>(&TaskStartParams {
//!     answer: AnswerWhen::Ended,
//!     follow: Some(StartFollowParams::default()),
//!     ..TaskStartParams::new(ShellCommand::argv(["/bin/echo", "hello"]), "/")
//! })?;
//! let mut output = Vec::new();
//! let task = loop {
//!     match client.receive()? {
//!         Message::Notification(Notification::OutputChunk(new)) => {
//!             output.extend(new.chunks.into_iter().flat_map(|chunk| chunk.data.0));
//!         }
//!         Message::Response(response) if response.id == start => break decode::<TaskStart>(&response.result?)?,
//!         _ => {}
//!     }
//! };
//! assert_eq!((output.as_slice(), task.output.bytes), (&b"hello\n"[..], 6));
//! # Ok::<(), ClientError>(())
//! ```
//!
//! # When the daemon restarts
//!
//! A client that was made with `connect_or_start` resumes. When its connection is lost, or the daemon answers that it shuts
//! down, the client connects again, starts a daemon if there is none, renews the sessions that its connection held, and then
//!
//! - sends a pending call again if it is safe to repeat ([`Repeat`](protocol::methods::Repeat)). A start gets a token and a
//!   write a key if the caller gave none, so that both take effect once. A wait keeps its original deadline.
//! - lets a pending call that is not safe to repeat fail with [`ClientError::OutcomeUnknown`].
//! - resumes every subscription at its position.
//!
//! It gives up when five connections in a row were lost without any progress, or when no daemon can be started.
//!
//! ```
//! use belay_client::protocol::methods::{TaskStart, TaskWait};
//! use belay_client::protocol::task::{ShellCommand, TaskStartParams, TaskStatus, TaskWaitParams};
//! use belay_client::{Client, ClientError, Message, decode};
//!
//! # let world = belay_testkit::doc_world();
//! # let (paths, belay) = (world.paths(), world.program());
//! let mut client = Client::connect_or_start(&paths, belay)?;
//! let command = ShellCommand::argv(["/bin/sleep", "0.5"]);
//! let task = client.call::<TaskStart>(&TaskStartParams { detached: true, ..TaskStartParams::new(command, "/") })?;
//! let wait = client.send::<TaskWait>(&TaskWaitParams::for_end(&task.id))?;
//! # let kill_the_daemon = || { world.kill_daemon(); };
//! kill_the_daemon();
//! let Message::Response(response) = client.receive()? else { panic!("a wait has no notifications") };
//! assert_eq!(response.id, wait);
//! assert_eq!(decode::<TaskWait>(&response.result?)?.task.status, TaskStatus::Completed);
//! # Ok::<(), ClientError>(())
//! ```
//!
//! The crate prints nothing, and reads the environment only where a caller passes a way to read it ([`Paths::from_env`]).

#[cfg(feature = "tokio")]
mod asynchronous;
mod blocking;
mod codec;
mod connect;
mod cursor;
mod dirs;
mod error;
mod framing;
mod message;
mod paths;
mod request;
mod start;
#[cfg(test)]
mod tests;
mod wire;

pub use belay_protocol as protocol;

#[cfg(feature = "tokio")]
pub use asynchronous::{
    AsyncClient, AsyncOptions, EventPiece, EventStream, ForegroundPiece, ForegroundTask, OutputStream,
};
pub use blocking::Client;
pub use cursor::{OutputCursor, OutputPiece};
pub use dirs::{check_home, check_runtime_dir};
pub use error::ClientError;
pub use message::{DaemonRequest, Message, RawReply, Response, decode};
pub use paths::{Paths, PathsError, SOCKET_PATH_LIMIT};
pub use request::random_token;
pub use start::start_daemon;
