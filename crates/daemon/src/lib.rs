//! The daemon: one per home. It keeps the registry and the journal, hands tasks to shims, adopts them after a crash,
//! and answers clients. It holds no process itself: that is the shims' work, and it may die at any instant.

mod admission;
mod adopt;
mod again;
mod answer;
mod commit;
pub mod config;
pub mod core;
pub mod defaults;
mod doc;
pub mod event;
mod excuse;
mod fingerprint;
mod follow;
mod foreground;
mod handlers;
mod hooks;
mod info;
mod io;
mod lanes;
mod life;
mod lines;
mod notices;
mod pool;
mod record;
mod retention;
mod rights;
mod room;
mod sessions;
pub mod settings;
mod stray;
mod subtree;
mod telling;
pub mod world;

pub use io::{main, reader_main};
