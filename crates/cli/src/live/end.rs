//! The end of being there: our terminal as it was, and what people are told.

use belay_protocol::task::{DetachedBy, OnDisconnect, Outcome};

use super::engine::{Left, Live};
use super::words::{explanation, released};
use crate::context::Context;
use crate::error::{CliError, Kind};
use crate::outcome;

/// What a command ends with whose reader went away: 128 and SIGPIPE.
const PIPE_CLOSED: u8 = 141;
const HUNG_UP: u8 = 129;
const TERMINATED: u8 = 143;

impl Live<'_> {
    /// From here on our terminal is ours again.
    pub(super) fn give_back_terminal(&mut self) {
        let went_by_key =
            self.left == Some(Left::ByKey) || self.last.as_ref().is_some_and(|task| !task.status.is_ended());
        if let Some(raw) = self.raw.take() {
            raw.give_back(went_by_key);
        }
        for note in std::mem::take(&mut self.notes) {
            self.context.note(&note);
        }
        if self.lost_keys > 0 {
            self.context
                .note(&format!("belay: {} typed bytes are lost: the task did not read", self.lost_keys));
        }
    }

    pub(super) fn end(self) -> Result<u8, CliError> {
        let goes_on = self.last.as_ref().is_some_and(|task| self.goes_on(task));
        let fate = if self.is_stopped_without_us() { "is being stopped" } else { "runs on" };
        match (self.left, self.last) {
            (Some(left), None) => gone(left, fate, self.context, self.id.as_deref(), self.broken),
            (_, Some(task)) if goes_on => {
                if self.json {
                    self.context.out.json(&task)?;
                }
                released(self.context, &task, self.json || self.with_keys)
            }
            (_, Some(task)) => {
                if self.json {
                    self.context.out.json(&task)?;
                }
                if let Some(error) = self.broken {
                    return unread(error);
                }
                if let Some(text) = explanation(&task, self.order.is_some()) {
                    self.context.note(&text);
                }
                Ok(outcome::exit_code(&task))
            }
            (None, None) => Err(CliError::new(Kind::Unreachable, "nothing was heard of the task's end")),
        }
    }

    /// Whether the task does not go on when we go: a stop was asked for here, or its policy has it so.
    fn is_stopped_without_us(&self) -> bool {
        let by_policy = self.role.params().is_some_and(|params| params.on_disconnect == OnDisconnect::Stop);
        by_policy || matches!(self.order, Some((_, true)))
    }
}

impl Live<'_> {
    /// As the shell itself would end: with its code, or of its signal. Only what a shell never does is told.
    pub(super) fn end_as_shell(self) -> Result<u8, CliError> {
        let Some(task) = self.last else {
            return Err(CliError::new(Kind::Unreachable, "nothing was heard of the shell's end"));
        };
        if let Some(leader) = outcome::left_behind(&task) {
            // What it left behind is held and listed; a shell says nothing of it.
            return Ok(leader.signal.map_or_else(|| outcome::leader_code(leader), die_of));
        }
        if !task.status.is_ended() {
            let by = task.detached_by.as_ref().map_or("somebody", DetachedBy::as_str);
            let how = outcome::background(task.status).unwrap_or("goes on in the background");
            self.context.note(&format!(
                "belay: detached by {by}; it {how} as task {0}: belay logs {0} shows its output, \
                 belay wait {0} waits for it, belay stop {0} ends it",
                task.id
            ));
            return Ok(outcome::released_code(&task));
        }
        if let Some(error) = self.broken {
            return unread(error);
        }
        if let Some(text) = explanation(&task, self.order.is_some()) {
            self.context.note(&text);
        }
        // One whose task was stopped by somebody else has not been killed itself. It ends with the code: there are callers that
        // never notice the end of a shell that died.
        let died_itself = |outcome: &&Outcome| matches!(outcome, Outcome::Signaled { .. });
        let own = task.outcome.as_ref().filter(|outcome| self.order.is_some() || died_itself(outcome));
        let signal = own.and_then(Outcome::signal);
        Ok(signal.map_or_else(|| outcome::exit_code(&task), die_of))
    }
}

/// Ends us of the same signal, so that whoever waits for us sees what it would have seen. A core file of ours would say
/// nothing about the command.
fn die_of(signal: i32) -> u8 {
    let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Core, none);
    let _ = signal_hook::low_level::emulate_default_handler(signal);
    let _ = signal_hook::low_level::raise(signal);
    u8::try_from(128 + signal).unwrap_or(1)
}

/// We are gone before the task's end was heard of.
fn gone(
    left: Left,
    fate: &str,
    context: &Context,
    id: Option<&str>,
    broken: Option<CliError>,
) -> Result<u8, CliError> {
    let name = id.unwrap_or("the task");
    match left {
        Left::HungUp => {
            context.note(&format!("belay: the terminal is gone; {name} {fate}"));
            Ok(HUNG_UP)
        }
        Left::Told => Ok(TERMINATED),
        Left::ByKey => {
            context.note(&format!("belay: left {name}, which {fate}"));
            context.hint(&format!("belay attach {name} to come back, belay stop {name} to end it"));
            Ok(0)
        }
        Left::Unread => broken.map_or(Ok(PIPE_CLOSED), unread),
    }
}

/// Our own output could not be written.
fn unread(error: CliError) -> Result<u8, CliError> {
    if error.is_quiet() { Ok(PIPE_CLOSED) } else { Err(error) }
}
