//! Reads a command line with a real shell grammar and says what `&` means in it.
//!
//! It starts no process and changes no file: the one question that only a real shell can answer is asked through
//! [`Checker`], which the caller gives. Only [`Verdict::Detach`] changes anything; with every other verdict the line
//! runs as written and its tree is held. So every doubt ends in `Held`, and none in `Detach`.

mod bounded;
mod check;
mod glance;
mod grammar;
mod judge;
mod reader;
mod reading;
mod scan;
mod shell;

pub use check::{Answer, Checker, UNSET_FOR_CHECK};
pub use glance::may_be_asynchronous;
pub use reader::{Limits, Reader};
pub use reading::{Reading, Verdict, Why, explain};
pub use shell::{Dialect, Shell};
