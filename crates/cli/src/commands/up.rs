//! `belay up`: the daemon is there, and this is where.

use std::ffi::OsStr;

use belay_client::{Client, Paths, start_daemon};
use belay_protocol::daemon::{DaemonStatusParams, DaemonStatusResult};
use belay_protocol::methods::DaemonStatus;
use belay_protocol::vars;

use crate::args::UpArgs;
use crate::context::{self, Context};
use crate::duration;
use crate::error::CliError;

pub(crate) fn run(args: &UpArgs, context: &mut Context) -> Result<u8, CliError> {
    let paths = context.paths()?;
    let (status, was_there) = look_or_start(args, &paths)?;
    if args.json {
        context.out.json(&status)?;
        return Ok(0);
    }
    context.out.text(&render(&status, &paths, was_there))?;
    if was_there && args.idle_exit.is_some() {
        context.note("It was running already, so --idle-exit changes nothing: `belay down` first.");
    }
    Ok(0)
}

/// The status of the daemon, and whether it was running already.
fn look_or_start(args: &UpArgs, paths: &Paths) -> Result<(DaemonStatusResult, bool), CliError> {
    let exe = context::exe();
    let (mut client, was_there) = match Client::connect(paths) {
        Ok(client) => (client.resuming(paths, &exe), true),
        Err(error) if error.is_absent() => {
            start(args, paths)?;
            (Client::connect_or_start(paths, &exe)?, false)
        }
        Err(_) => (Client::connect_or_start(paths, &exe)?, true),
    };
    Ok((client.call::<DaemonStatus>(&DaemonStatusParams::default())?, was_there))
}

fn start(args: &UpArgs, paths: &Paths) -> Result<(), CliError> {
    let idle_exit = args.idle_exit.map(duration::format);
    let env: Vec<(&str, &OsStr)> = idle_exit.iter().map(|text| (vars::IDLE_EXIT, OsStr::new(text))).collect();
    Ok(start_daemon(paths, &context::exe(), &env)?)
}

pub(crate) fn render(status: &DaemonStatusResult, paths: &Paths, was_there: bool) -> String {
    let state = if was_there { "is already running" } else { "is ready" };
    format!(
        "The daemon {state}: pid {}, version {}.\n  state    {}\n  socket   {}\n\
         Next: belay run -d -- COMMAND   to start something, belay ps   to see it.\n",
        status.pid,
        status.version,
        paths.home.display(),
        paths.socket().display(),
    )
}
