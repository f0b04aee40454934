//! The Rust client: the only road to the daemon. It finds the socket, starts the daemon where there is none, and
//! speaks the client protocol over one blocking connection.
//!
//! There is no async runtime and no thread in here, because every `belay ps` pays for what this crate loads. It
//! prints nothing and reads no environment by itself: [`Places::from_env`] is handed a way to read it.

mod call;
mod connect;
mod dirs;
mod error;
mod excerpt;
mod lines;
mod places;
mod start;
#[cfg(test)]
mod tests;

pub use call::{Client, Message, Notification, Response, decode};
pub use dirs::{check_home, check_runtime_dir};
pub use error::ClientError;
pub use excerpt::{Excerpt, Part, report};
pub use places::{Places, PlacesError, SOCKET_PATH_LIMIT};
pub use start::start_daemon;
