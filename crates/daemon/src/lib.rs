//! The daemon: one per home. It keeps the registry and the journal, hands tasks to shims, adopts them after a crash,
//! and answers clients. It holds no process itself: that is the shims' work, and it may die at any instant.

mod adopt;
mod answer;
mod commit;
pub mod config;
pub mod core;
pub mod defaults;
mod doc;
pub mod event;
mod fingerprint;
mod follow;
mod foreground;
mod handlers;
mod hooks;
mod info;
mod io;
mod life;
mod lines;
mod pool;
mod record;
mod retention;
pub mod settings;
mod stray;
pub mod world;

pub use io::{main, reader_main};
