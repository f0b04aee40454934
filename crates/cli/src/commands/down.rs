//! `belay down`: the daemon ends; tasks run on, or are stopped first, with a receipt for each.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use belay_client::Client;
use belay_protocol::daemon::{DaemonStatusParams, DaemonStopParams};
use belay_protocol::methods::{DaemonStatus, DaemonStop, Notification};
use belay_protocol::task::TaskStopResult;
use serde::Serialize;

use crate::args::DownArgs;
use crate::commands::status::{Nothing, Present};
use crate::commands::stop;
use crate::context::Context;
use crate::duration::millis;
use crate::error::CliError;
use crate::ui::human;
use crate::ui::text::one_line;

/// How long a daemon that has answered may take to leave.
const LEAVING: Duration = Duration::from_secs(5);

pub(crate) fn run(args: &DownArgs, context: &mut Context) -> Result<u8, CliError> {
    let paths = context.paths()?;
    let mut client = match Client::connect_if_alive(&paths) {
        Ok(client) => client,
        // Tasks outlive their daemon: only a new one can tell whether there are any, and stop them.
        Err(error) if error.is_absent() && args.stop_tasks && paths.home.join("journal.db").exists() => {
            context.connect()?
        }
        Err(error) if error.is_absent() => {
            if args.json {
                // What runs without one, only one could tell.
                context.out.json(&Present { running: false, more: &Nothing {} })?;
            } else {
                context.note("No daemon is running.");
            }
            return Ok(0);
        }
        Err(error) => return Err(error.into()),
    };
    if args.stop_tasks {
        let live = client.call::<DaemonStatus>(&DaemonStatusParams::default())?.tasks_live;
        if live > 0 {
            context.note(&format!("stopping {}…", human::count(live, "task", "tasks")));
        }
    }
    let params =
        DaemonStopParams { stop_tasks: args.stop_tasks, grace_ms: args.grace.map(millis), reason: None };
    let mut receipts = Vec::new();
    let left_running = client
        .call_with_parts::<DaemonStop>(&params, |part| {
            if let Notification::TaskStopped(part) = part {
                receipts.push(part.result);
            }
        })?
        .left_running;
    let result = Stopped { receipts, left_running };
    // The connection ends when the daemon does, so that the next command meets no daemon that is about to exit.
    let gone = client.wait_closed(Instant::now() + LEAVING);
    if args.json {
        context.out.json(&Present { running: !gone, more: &result })?;
    } else {
        context.out.text(&render(&result, gone))?;
    }
    Ok(result.receipts.iter().map(stop::exit_code).max().unwrap_or(0).max(u8::from(!gone)))
}

/// What became of the tasks.
#[derive(Debug, Serialize)]
pub(crate) struct Stopped {
    pub(crate) receipts: Vec<TaskStopResult>,
    pub(crate) left_running: u64,
}

pub(crate) fn render(result: &Stopped, gone: bool) -> String {
    let mut text = String::new();
    for receipt in &result.receipts {
        text.push_str(&one_line(&stop::line(receipt)));
        text.push('\n');
    }
    text.push_str(if gone {
        "The daemon has ended.\n"
    } else {
        "The daemon was told to end and is still there; `belay status` tells more.\n"
    });
    if result.left_running > 0 {
        let tasks = human::count(result.left_running, "task runs", "tasks run");
        let _ = writeln!(text, "{tasks} on; the next daemon adopts them.");
    }
    text
}
