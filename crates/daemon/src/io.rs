//! The daemon's hands: sockets, processes, files and timers around the core. It decides nothing.

mod alarm;
mod dirs;
mod door;
mod lost;
mod outbox;
mod reader;
mod reading;
mod real;
mod run;
mod search;
mod server;
mod settings_file;
mod shims;
mod start;

pub use reader::main as reader_main;
pub use start::main;
