//! Owners of tasks: sessions with their leases and completions, lanes, hooks that run at an end, and retention of what has
//! ended.

mod hooks;
mod lanes;
mod retention;
mod sessions;

pub(crate) use hooks::{HookPart, Hooks, check as check_hook};
pub(crate) use lanes::{Entering, Lanes, SeatDoc};
pub(crate) use retention::{CollectReply, Removable, Retention};
pub(crate) use sessions::{CompletionsReply, DrainedReply, STANDING, Session, Sessions};
