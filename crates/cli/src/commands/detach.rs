//! `belay detach`: from the foreground to the background, for whoever waits and whoever watches.

use belay_protocol::methods::TaskDetach;
use belay_protocol::task::{TaskDetachParams, TaskInfo};

use crate::args::DetachArgs;
use crate::context::Context;
use crate::error::CliError;
use crate::many::{self, Next, Refused};
use crate::outcome;
use crate::ui::text::one_line;

pub(crate) fn run(args: &DetachArgs, context: &mut Context) -> Result<u8, CliError> {
    let mut worst = 0;
    let ask = |id: &str| TaskDetachParams { id: id.to_owned(), actor: None };
    many::each::<TaskDetach>(context, &args.ids, ask, |context, id, result| {
        match result {
            Ok(task) if args.json => context.out.json(&task)?,
            Ok(task) => context.out.line(&one_line(&line(&task)))?,
            Err(error) => {
                if args.json {
                    context.out.json(&Refused { id, error: &error })?;
                }
                let error = CliError::from(error);
                worst = worst.max(error.exit_code());
                context.complain(&error);
            }
        }
        Ok(Next::Done)
    })?;
    Ok(worst)
}

/// One line for people.
pub(crate) fn line(task: &TaskInfo) -> String {
    let id = &task.id;
    if task.status.is_ended() {
        return format!("{id} has ended: {}", outcome::sentence(task));
    }
    let how = outcome::background(task.status).unwrap_or("runs in the background");
    match &task.detached_by {
        Some(by) => format!("{id} {how} (detached by {by})"),
        None => format!("{id} {how}"),
    }
}
