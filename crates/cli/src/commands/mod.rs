//! One file for each verb. Each asks the daemon, and hands what came back to a pure function that renders it.

pub(crate) mod attach;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod daemon_log;
pub(crate) mod detach;
pub(crate) mod doctor;
pub(crate) mod down;
pub(crate) mod events;
pub(crate) mod gc;
pub(crate) mod inspect;
pub(crate) mod lanes;
pub(crate) mod logs;
pub(crate) mod ps;
pub(crate) mod rm;
pub(crate) mod run;
pub(crate) mod send;
pub(crate) mod sessions;
pub(crate) mod shell;
pub(crate) mod signal;
pub(crate) mod status;
pub(crate) mod stop;
pub(crate) mod up;
pub(crate) mod wait;
