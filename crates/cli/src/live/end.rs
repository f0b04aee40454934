//! The end of being there: our terminal as it was, and what people are told.

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
    }

    pub(super) fn end(self) -> Result<u8, CliError> {
        let goes_on = self.last.as_ref().is_some_and(|task| self.goes_on(task));
        match (self.left, self.last) {
            (Some(left), None) => gone(left, self.context, self.id.as_deref(), self.broken),
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
}

/// We are gone before the task's end was heard of.
fn gone(left: Left, context: &Context, id: Option<&str>, broken: Option<CliError>) -> Result<u8, CliError> {
    let name = id.unwrap_or("the task");
    match left {
        Left::HungUp => {
            context.note(&format!("belay: the terminal is gone; {name} runs on"));
            Ok(HUNG_UP)
        }
        Left::Told => Ok(TERMINATED),
        Left::ByKey => {
            context.note(&format!("belay: left {name}, which runs on"));
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
