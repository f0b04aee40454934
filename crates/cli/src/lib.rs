//! `belay`, as people and scripts type it. Commands only: what they ask for is done by the daemon, and the road
//! there is `belay-client`.

mod args;
mod caller;
mod commands;
mod context;
mod error;
mod excerpt;
mod keys;
mod live;
mod many;
mod outcome;
#[cfg(test)]
mod tests;
mod ui;

use std::ffi::OsString;
use std::process::ExitCode;

use belay_protocol::units as duration;

pub use crate::commands::shell::is_called_as_shell;

use crate::args::Verb;
use crate::context::Context;
use crate::error::CliError;

/// Runs one command line, program name first. Returns what the process is to end with.
pub fn main(args: impl Iterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.collect();
    let mut context = Context::from_process();
    let result = dispatch(&args, &mut context);
    // What was answered so far is answered, whatever went wrong after it.
    let flushed = context.out.flush();
    match (result, flushed) {
        (Ok(code), Ok(())) => ExitCode::from(code),
        (Err(error), _) | (Ok(_), Err(error)) => {
            context.complain(&error);
            ExitCode::from(error.exit_code())
        }
    }
}

fn dispatch(args: &[OsString], context: &mut Context) -> Result<u8, CliError> {
    match args {
        [name, rest @ ..] if is_called_as_shell(name) => commands::shell::run(name, rest.to_vec(), context),
        [_, flag] if flag == "--version" || flag == "-V" => {
            context.out.line(concat!("belay ", env!("CARGO_PKG_VERSION")))?;
            Ok(0)
        }
        [] | [_] => {
            context.out.text(&args::command().render_help().to_string())?;
            Ok(0)
        }
        _ => match args::parse(args) {
            Ok(verb) => run(verb, context),
            // Help that was asked for is no error, and goes where answers go.
            Err(error) => {
                let code = error.exit_code();
                let _ = error.print();
                Ok(u8::try_from(code).unwrap_or(2))
            }
        },
    }
}

fn run(verb: Verb, context: &mut Context) -> Result<u8, CliError> {
    match verb {
        Verb::Run(args) => commands::run::run(*args, context),
        Verb::Ps(args) => commands::ps::run(&args, context),
        Verb::Inspect(args) => commands::inspect::run(&args, context),
        Verb::Logs(args) => commands::logs::run(args, context),
        Verb::Wait(args) => commands::wait::run(&args, context),
        Verb::Stop(args) => commands::stop::run(&args, context),
        Verb::Detach(args) => commands::detach::run(&args, context),
        Verb::Attach(args) => commands::attach::run(&args, context),
        Verb::Send(args) => commands::send::run(&args, context),
        Verb::Signal(args) => commands::signal::run(&args, context),
        Verb::Shell(args) => commands::shell::run("belay".as_ref(), args.args, context),
        Verb::Rm(args) => commands::rm::run(&args, context),
        Verb::Gc(args) => commands::gc::run(&args, context),
        Verb::Events(args) => commands::events::run(args, context),
        Verb::Sessions(args) => commands::sessions::run(args, context),
        Verb::Lanes(args) => commands::lanes::run(&args, context),
        Verb::Up(args) => commands::up::run(&args, context),
        Verb::Down(args) => commands::down::run(&args, context),
        Verb::Status(args) => commands::status::run(&args, context),
        Verb::Doctor(args) => commands::doctor::run(&args, context),
        Verb::DaemonLog(args) => commands::daemon_log::run(&args, context),
        Verb::Config(args) => commands::config::run(&args, context),
        Verb::Completions(args) => commands::completions::run(&args, context),
    }
}
