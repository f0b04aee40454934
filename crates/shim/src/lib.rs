//! The shim: one small process per task. It is the parent of the tree, holds its pipes, clocks and exit status, and
//! outlives the daemon. No threads and no async runtime; it serves one task after another while it is provably clean.

mod budget;
pub mod core;
mod handed;
mod kill;
mod link;
mod output;
mod run;
mod spawn;
mod stdin;

pub use run::main;
