//! The harness of the end-to-end tests: a real daemon in a home of its own, the `belay` command with its output caught
//! whole, an independent look at `/proc`, and waiting with a deadline. It is no part of the product, and it proves
//! nothing by itself.
//!
//! A [`World`] ends with a check: whoever of it is still alive, or whatever cgroup it left, fails the test by name.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a harness that cannot go on says so by panicking"
)]

mod building;
mod command;
mod examples;
mod look;
pub mod sim;
mod tmux;
mod wait;
mod world;

pub use building::{Builder, copy_program};
pub use command::{Output, Running, finish};
pub use examples::{doc_world, example};
pub use look::{Frozen, Seen, carrying, end, freeze, is_alive, look_at, send_signal};
pub use tmux::{Modes, PROMPT, Tmux};
pub use wait::{LONG, wait_until};
pub use world::{NOBODY, World};

/// Whether these tests may do what only root may.
pub fn is_root() -> bool {
    look::own_uid() == 0
}
