//! The runtime of the core: the core itself, what every subsystem may use, the order of effects, timers, the commit, and
//! continuations of jobs that run on workers. It knows no request and no kind of task.

mod backlog;
mod commit;
mod context;
mod core;
mod effects;
mod index;
mod jobs;
mod phase;
mod step_cost;
mod table;
#[cfg(test)]
mod tests;
mod timers;

pub(crate) use backlog::Work;
pub(crate) use commit::{JournalWriter, label_tag, tags_column};
pub(crate) use context::Context;
pub use core::Core;
pub(crate) use effects::{Effects, Stage};
pub(crate) use index::Index;
pub(crate) use jobs::Jobs;
pub(crate) use phase::Phase;
pub(crate) use step_cost::StepCost;
pub(crate) use table::Table;
pub(crate) use timers::{Timer, TimerKey, Timers};
