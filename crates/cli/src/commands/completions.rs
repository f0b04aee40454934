//! `belay completions`: what a shell needs to complete our commands, from the one definition of them.

use crate::args::{self, CompletionsArgs};
use crate::context::Context;
use crate::error::CliError;

pub(crate) fn run(args: &CompletionsArgs, context: &mut Context) -> Result<u8, CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut args::command(), "belay", &mut script);
    context.out.bytes(&script)?;
    Ok(0)
}
