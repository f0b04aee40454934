//! `belay rm`: forget ended tasks and their output.

use belay_protocol::methods::TaskRemove;
use belay_protocol::task::{TaskRemoveParams, TaskRemoveResult};
use belay_protocol::{ErrorKind, RpcError};

use crate::args::RmArgs;
use crate::context::Context;
use crate::error::CliError;
use crate::many::{self, Next, Refused};
use crate::ui::human;
use crate::ui::text::one_line;

pub(crate) fn run(args: &RmArgs, context: &mut Context) -> Result<u8, CliError> {
    let mut worst = 0;
    let ask = |id: &str| TaskRemoveParams { id: id.to_owned() };
    many::each::<TaskRemove>(context, &args.ids, ask, |context, id, result| {
        match result {
            Ok(removed) if args.json => context.out.json(&removed)?,
            Ok(removed) => context.out.line(&one_line(&line(&removed)))?,
            Err(error) => {
                worst = 1;
                if args.json {
                    context.out.json(&Refused { id, error: &error })?;
                }
                context.complain(&refusal(error));
            }
        }
        Ok(Next::Done)
    })?;
    Ok(worst)
}

fn refusal(error: RpcError) -> CliError {
    let still_runs = error.data.kind == ErrorKind::WrongState && error.data.hint.is_none();
    let shown = CliError::from(error);
    if still_runs { shown.hint("stop it first: belay stop ID") } else { shown }
}

pub(crate) fn line(removed: &TaskRemoveResult) -> String {
    format!("{} removed, {} freed", removed.id, human::size(removed.freed_bytes))
}
