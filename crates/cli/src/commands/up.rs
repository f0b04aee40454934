//! `belay up`: the daemon is there, and this is where.

use std::ffi::OsStr;

use belay_client::{Client, Places, start_daemon};
use belay_protocol::daemon::{DaemonStatusParams, DaemonStatusResult};
use belay_protocol::methods::DaemonStatus;
use belay_protocol::vars;

use crate::args::UpArgs;
use crate::context::{self, Context};
use crate::duration;
use crate::error::{CliError, Kind};

/// How often a daemon that dies at that moment is looked for again.
const MAX_TRIES: u32 = 5;

pub(crate) fn run(args: &UpArgs, context: &mut Context) -> Result<u8, CliError> {
    let places = context.places()?;
    let mut tries = 0;
    let (status, was_there) = loop {
        match look_or_start(args, &places) {
            // One that dies while it is asked is followed by another.
            Err(error) if error.kind == Kind::Disconnected && tries < MAX_TRIES => tries += 1,
            other => break other?,
        }
    };
    if args.json {
        context.out.json(&status)?;
        return Ok(0);
    }
    context.out.text(&render(&status, &places, was_there))?;
    if was_there && args.idle_exit.is_some() {
        context.note("It was running already, so --idle-exit changes nothing: `belay down` first.");
    }
    Ok(0)
}

/// How the daemon is, and whether it was there already.
fn look_or_start(args: &UpArgs, places: &Places) -> Result<(DaemonStatusResult, bool), CliError> {
    let found = match Client::connect(places) {
        Ok(client) => Some(client),
        Err(error) if error.is_absent() => None,
        Err(error) => return Err(error.into()),
    };
    let was_there = found.is_some();
    let mut client = match found {
        Some(client) => client,
        None => start(args, places)?,
    };
    Ok((client.call::<DaemonStatus>(&DaemonStatusParams::default())?, was_there))
}

fn start(args: &UpArgs, places: &Places) -> Result<Client, CliError> {
    let exe = context::exe();
    let idle_exit = args.idle_exit.map(duration::format);
    let env: Vec<(&str, &OsStr)> = idle_exit.iter().map(|text| (vars::IDLE_EXIT, OsStr::new(text))).collect();
    start_daemon(places, &exe, &env)?;
    Ok(Client::connect_or_start(places, &exe)?)
}

pub(crate) fn render(status: &DaemonStatusResult, places: &Places, was_there: bool) -> String {
    let state = if was_there { "is already running" } else { "is ready" };
    format!(
        "The daemon {state}: pid {}, version {}.\n  state    {}\n  socket   {}\n\
         Next: belay run -d -- COMMAND   to start something, belay ps   to see it.\n",
        status.pid,
        status.version,
        places.home.display(),
        places.socket().display(),
    )
}
