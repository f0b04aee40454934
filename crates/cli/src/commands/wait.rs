//! `belay wait`: until all of them have ended. With one id the exit code is the task's own.

use std::time::{Duration, Instant};

use belay_protocol::methods::TaskWait;
use belay_protocol::task::{Met, Status, TaskInfo, WaitParams};

use crate::args::WaitArgs;
use crate::context::Context;
use crate::duration::{self, millis};
use crate::error::CliError;
use crate::many::{self, Next, Refused};
use crate::outcome;
use crate::ui::human;
use crate::ui::text::one_line;

/// The longest wait that a daemon takes; longer ones are asked for again.
const LONGEST: Duration = Duration::from_mins(10);

pub(crate) fn run(args: &WaitArgs, context: &mut Context) -> Result<u8, CliError> {
    let deadline = args.timeout.map(|limit| Instant::now() + limit);
    let left = || deadline.map_or(LONGEST, |at| at.saturating_duration_since(Instant::now()).min(LONGEST));
    let ask = |id: &str| WaitParams { id: id.to_owned(), timeout_ms: Some(millis(left())), attach: false };
    let mut codes = Vec::new();
    let alone = args.ids.len() == 1;
    many::each::<TaskWait>(context, &args.ids, ask, |context, id, result| {
        let waited = match result {
            Ok(waited) => waited,
            Err(error) if alone => return Err(error.into()),
            Err(error) => {
                if args.json {
                    context.out.json(&Refused { id, error: &error })?;
                }
                context.complain(&error.into());
                codes.push(1);
                return Ok(Next::Done);
            }
        };
        let over = deadline.is_some_and(|at| Instant::now() >= at);
        if waited.met == Met::Timeout && !over {
            return Ok(Next::Again);
        }
        codes.push(code(&waited.task, waited.met, alone));
        if args.json {
            context.out.json(&waited)?;
        } else if waited.met == Met::Ended {
            context.out.line(&one_line(&line(&waited.task)))?;
        } else {
            let limit = duration::format(args.timeout.unwrap_or_default());
            context.note(&format!(
                "{} is still {} after {limit}",
                waited.id,
                outcome::status_name(waited.task.status)
            ));
        }
        context.out.flush()?;
        Ok(Next::Done)
    })?;
    Ok(codes.into_iter().max().unwrap_or(0))
}

fn code(task: &TaskInfo, met: Met, alone: bool) -> u8 {
    match met {
        // Only a caller in the foreground is answered so, which this command is not.
        Met::Timeout | Met::Detached => 1,
        Met::Ended if alone => outcome::exit_code(task),
        Met::Ended => u8::from(task.status != Status::Completed),
    }
}

pub(crate) fn line(task: &TaskInfo) -> String {
    let ran = task.ended_at.map(|ended| human::took(human::between(task.started_at, ended)));
    let ran = ran.map(|ran| format!(", after {ran}")).unwrap_or_default();
    format!("{} {}{ran}", task.id, outcome::sentence(task))
}
