//! What travels: the client protocol (JSON-RPC 2.0, a message a line) and the shim protocol (length-prefixed JSON).
//!
//! Types and names only. Nothing here opens a socket, and nothing of the core is in here: core types and wire
//! types meet in one file of the `record` crate. The two protocols are versioned apart, because a shim outlives
//! the daemon that started it.

pub mod base64_bytes;
pub mod bytes;
pub mod call;
pub mod config;
pub mod daemon;
pub mod error;
pub mod event;
pub mod json;
pub mod labels;
pub mod lane;
pub mod life;
pub mod methods;
pub mod output;
mod params;
pub mod permission;
pub mod rpc;
pub mod schema;
pub mod session;
pub mod shell;
pub mod shim;
pub mod task;
pub mod time;
pub mod units;
pub mod vars;

pub use base64_bytes::Base64Bytes;
pub use bytes::Bytes;
pub use error::{ErrorData, ErrorKind, RpcError};
pub use json::read_json;
pub use labels::Labels;
pub use time::Timestamp;

/// The version of the client protocol that this build speaks, and the oldest one that it still understands.
pub const CLIENT_PROTOCOL: u32 = 1;
pub const CLIENT_PROTOCOL_OLDEST: u32 = 1;

/// The longest line a client may send. A start carries a whole environment, so it is generous.
pub const MAX_REQUEST_BYTES: usize = 8 * 1024 * 1024;
