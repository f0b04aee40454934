//! Everything around the core: sockets, processes, files, timers and worker threads. It carries out effects and decides
//! nothing.

mod clients;
mod connection;
mod daemon_log;
mod dirs;
mod hub;
mod kill_orphans;
mod linux_host;
mod listener;
mod sampler;
mod search;
mod settings_file;
mod shell_parse_client;
mod shell_parse_worker;
mod shims;
mod start;
mod timer;
mod workers;

pub use shell_parse_worker::main as reader_main;
pub use start::main;
