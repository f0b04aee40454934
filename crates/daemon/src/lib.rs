//! The daemon: one per home. It keeps the registry and the journal, hands tasks to shims, adopts them after a crash,
//! and answers clients. It holds no process itself: that is the shims' work, and it may die at any instant.
//!
//! `runtime` is the core and what every subsystem may use; `requests`, `tasks`, `shims`, `owners` and `events` are the
//! subsystems; `io` carries out what the core decides. `docs/architecture.md` is the map.

pub mod config;
mod daemon;
pub mod defaults;
pub mod effect;
mod events;
pub mod host;
pub mod input;
mod io;
mod keyed_hash;
mod owners;
mod requests;
pub mod runtime;
pub mod settings;
mod shims;
mod tasks;
#[cfg(test)]
mod tests;

pub use io::{main, reader_main};
