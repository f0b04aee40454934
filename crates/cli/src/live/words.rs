//! What people are told when a command is over for them: why it ended, or that it goes on without them.

use belay_protocol::task::{Outcome, TaskInfo, TaskStatus};

use crate::context::Context;
use crate::error::CliError;
use crate::outcome;

/// Nobody waits for it any more, and it goes on: the id, and what to type next.
/// `quiet`: standard output is not for the id.
pub(super) fn released(context: &mut Context, task: &TaskInfo, quiet: bool) -> Result<u8, CliError> {
    let ended = task.status.is_ended();
    if outcome::left_behind(task).is_none() && !quiet {
        context.out.line(&task.id)?;
        context.out.flush()?;
    }
    if !ended {
        context.note(&format!("belay: {}", outcome::runs_on(task)));
    }
    if let Some(line) = task.spec.line() {
        context.note(&format!("belay: {}", line.explanation));
    }
    context.hint(&outcome::go_on(task));
    Ok(outcome::released_code(task))
}

/// What people are told beside the exit code; nothing for an ordinary end.
pub(crate) fn explanation(task: &TaskInfo, stopped_here: bool) -> Option<String> {
    let capture = task.outcome.as_ref().and_then(Outcome::capture);
    let ordinary = match task.status {
        TaskStatus::Completed => true,
        TaskStatus::Failed => {
            matches!(task.outcome, None | Some(Outcome::Exited { .. } | Outcome::Signaled { .. }))
        }
        TaskStatus::Cancelled => stopped_here,
        _ => false,
    };
    match (ordinary, capture) {
        (true, None) => None,
        (true, Some(fault)) => {
            Some(format!("belay: {}: not all output was kept: {}", task.id, fault.message))
        }
        (false, _) => Some(format!("belay: {} {}", task.id, outcome::sentence(task))),
    }
}
