//! Tests of belay-os against the real kernel. Trees are held by the `holder` example in a process of its own, because
//! a tree belongs to a whole process and tests are threads of one.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "the helpers of tests are tests too")]

mod cgroup;
mod daemonize;
mod lost;
mod spawn;
mod support;
mod zoo;
