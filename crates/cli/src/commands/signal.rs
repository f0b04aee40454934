//! `belay signal`: one signal, and nothing after it. It is asked for once: a signal that came twice would be two.

use belay_client::ClientError;
use belay_protocol::methods::TaskSignal;
use belay_protocol::task::TaskSignalParams;

use crate::args::SignalArgs;
use crate::context::Context;
use crate::error::CliError;
use crate::many::Refused;
use crate::ui::human;

pub(crate) fn run(args: &SignalArgs, context: &mut Context) -> Result<u8, CliError> {
    let mut client = context.connect()?;
    let mut code = 0;
    for id in &args.ids {
        let params = TaskSignalParams { id: id.clone(), signal: args.signal.clone() };
        match client.call::<TaskSignal>(&params) {
            Ok(sent) if args.json => context.out.json(&sent)?,
            Ok(sent) => {
                let many = human::count(sent.processes, "process", "processes");
                context.out.line(&format!("{} sent {} to {many}", sent.id, args.signal.to_uppercase()))?;
            }
            Err(ClientError::Rpc(error)) => {
                if args.json {
                    context.out.json(&Refused { id, error: &error })?;
                }
                let error = CliError::from(error);
                code = code.max(error.exit_code());
                context.complain(&error);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(code)
}
