//! The pure heart of Belay: what a task is, how it lives, and how it can end.
//!
//! No I/O, no clock, no async and no wire format in here: shim, daemon, simulator and property tests all run
//! the same [`life::step`]. Whatever touches the world lives in another crate.

pub mod health;
pub mod id;
pub mod lane;
pub mod life;
pub mod outcome;
pub mod policy;
pub mod session;
pub mod state;
pub mod table;

pub use health::{Evidence, Verdict, judge};
pub use id::{BadId, Kind, SessionId, TaskId};
pub use lane::Lane;
pub use life::{Effect, Event, Step, step};
pub use outcome::{Budget, Cause, Clock, Exit, Outcome, SpawnFailure, SpawnStage, StopOrder, Survivor};
pub use policy::{Level, OnLimit, OnStall, Policy, Stall};
pub use session::{Lease, LeaseEffect, LeaseEvent};
pub use state::{Delivered, Leader, Resting, Running, State, Stopping};
