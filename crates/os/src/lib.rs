//! Starting, watching, signalling and counting processes on Linux: the only crate with `unsafe`, and the only one
//! that may start or signal a process. It knows no task, no protocol and no policy, makes no thread, and never panics.
//!
//! Nothing here signals a bare pid. A process is named by its pid and its start time ([`Identity`]), by a pidfd, by
//! the cgroup it lives in, or because it is a direct child that has not been reaped.

#[cfg(not(target_os = "linux"))]
compile_error!(
    "belay-os holds process trees with pidfds, child subreapers and cgroups, which only Linux has; \
     there is no weaker version of it for other systems."
);

pub mod cgroup;
pub mod daemonize;
pub mod fds;
pub mod limits;
pub mod process;
pub mod pty;
pub mod signal;
pub mod slots;
pub mod spawn;
pub mod tree;

mod born;
mod child;
mod clone;
mod lost;
mod probe;
mod walk;

pub use cgroup::{Cgroup, Layout, Probe};
pub use process::{Identity, Pid, ProcessInfo};
pub use signal::{Delivery, Signal, SignalFd};
pub use spawn::{Rlimit, Session, SpawnError, SpawnSpec, Spawned, Stage};
pub use tree::{Exit, KillResult, Reaped, SignalReport, Tree};
