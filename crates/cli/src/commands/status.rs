//! `belay status`: how the daemon is. It starts none.

use std::fmt::Write as _;

use belay_client::Client;
use belay_protocol::Timestamp;
use belay_protocol::daemon::{DaemonStatusParams, DaemonStatusResult};
use belay_protocol::methods::DaemonStatus;
use serde::Serialize;

use crate::args::StatusArgs;
use crate::context::{self, Context};
use crate::error::CliError;
use crate::ui::human;
use crate::ui::style::Style;
use crate::ui::text::one_line;

/// What scripts are told: whether there is a daemon, and what it has answered.
#[derive(Debug, Serialize)]
pub(crate) struct Present<'a, T> {
    pub(crate) running: bool,
    #[serde(flatten)]
    pub(crate) more: &'a T,
}

/// There is no more to say of one that is not there.
#[derive(Debug, Serialize)]
pub(crate) struct Nothing {}

pub(crate) fn run(args: &StatusArgs, context: &mut Context) -> Result<u8, CliError> {
    let mut client = match Client::connect_if_alive(&context.paths()?) {
        Ok(client) => client,
        Err(error) if error.is_absent() => {
            if args.json {
                context.out.json(&Present { running: false, more: &Nothing {} })?;
            } else {
                context.note("No daemon is running.");
                context.hint("any command that needs one starts it; so does `belay up`");
            }
            return Ok(1);
        }
        Err(error) => return Err(error.into()),
    };
    let status = client.call::<DaemonStatus>(&DaemonStatusParams::default())?;
    if args.json {
        context.out.json(&Present { running: true, more: &status })?;
    } else {
        context.out.text(&render(&status, context::now(), context.term.colour_out))?;
    }
    Ok(0)
}

pub(crate) fn render(status: &DaemonStatusResult, now: Timestamp, colour: bool) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        let name = Style::Bold.paint(&format!("{name:<12}"), colour);
        let _ = writeln!(text, "{name}{}", one_line(value));
    };
    let up = human::duration(status.uptime_ms);
    line("Daemon", &format!("belay {}, pid {}, up {up}", status.version, status.pid));
    line("State", &status.home.to_text_lossy());
    line("Sockets", &status.runtime_dir.to_text_lossy());
    line("Tasks", &format!("{} live, {} ended", status.tasks_live, status.tasks_ended));
    let (output, journal) = (human::size(status.output_bytes), human::size(status.journal_bytes));
    line("Kept", &format!("{output} of output, {journal} of records"));
    line("Events", &format!("{} to {}", status.events_first, status.events_last));
    line("Clients", &format!("{}, calls waiting: {}", status.clients, status.calls_waiting));
    line("Shims", &format!("{} ready", status.shims_ready));
    let held = &status.containment;
    let cgroup = held.cgroup.as_ref().map(|path| format!(" at {}", path.to_text_lossy())).unwrap_or_default();
    line("Containment", &format!("{}{cgroup} ({}): {}", held.kind.name(), held.layout.name(), held.why));
    let idle =
        status.idle_exit_ms.map_or_else(|| "never".to_owned(), |ms| format!("after {}", human::duration(ms)));
    line("Leaves", &format!("{idle}, when it holds nothing"));
    for notice in &status.notices {
        let hint = notice.hint.as_deref().map(|hint| format!(" (hint: {hint})")).unwrap_or_default();
        line("Notice", &format!("{}: {}{hint}", human::ago(notice.at, now), notice.message));
    }
    text
}
