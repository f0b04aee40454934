//! What each method does, a file a noun. Reading parameters and finding the handler is `answer`'s work.

pub(crate) mod check;
mod config;
mod daemon;
mod event;
mod lane;
mod output;
mod session;
pub(crate) mod task;
mod task_list;
pub(crate) mod task_start;
pub(crate) mod task_stop;
pub(crate) mod task_wait;
pub(crate) mod terminal;
