//! The pure heart of Belay: what a task is, how it lives, and how it can end.
//!
//! No I/O, no clock, no async and no wire format in here: shim, daemon, simulator and property tests all run
//! the same [`life::step`]. Whatever touches the world lives in another crate.

pub mod id;
pub mod lane;
pub mod life;
pub mod outcome;
pub mod policy;
pub mod session;
pub mod table;

pub use id::{BadId, Kind, SessionId, TaskId};
pub use lane::Lane;
pub use life::{Delivered, Effect, Event, Leader, Running, State, Step, Stopping, step};
pub use outcome::{Cause, Clock, Exit, Outcome, SpawnFailure, SpawnStage, StopOrder, Survivor};
pub use policy::{Level, OnLimit, Policy};
pub use session::{Lease, LeaseEffect, LeaseEvent};
