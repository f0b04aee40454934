//! `belay gc`: what the rules of retention no longer keep is removed now.

use belay_protocol::daemon::{DaemonGcParams, DaemonGcResult};
use belay_protocol::methods::DaemonGc;
use std::fmt::Write as _;

use crate::args::GcArgs;
use crate::context::Context;
use crate::error::CliError;
use crate::ui::human;
use crate::ui::text::one_line;

pub(crate) fn run(args: &GcArgs, context: &mut Context) -> Result<u8, CliError> {
    let params = DaemonGcParams { all: args.all, dry_run: args.dry_run };
    let result = context.connect()?.call_by::<DaemonGc>(&params, None)?;
    if args.json {
        context.out.json(&result)?;
    } else {
        context.out.text(&render(&result))?;
    }
    Ok(0)
}

pub(crate) fn render(result: &DaemonGcResult) -> String {
    let mut text = String::new();
    for id in &result.removed {
        let verb = if result.dry_run { "would be removed" } else { "removed" };
        let _ = writeln!(text, "{} {verb}", one_line(id));
    }
    let tasks = human::count(u64::try_from(result.removed.len()).unwrap_or(u64::MAX), "task", "tasks");
    let events = human::count(result.events_expired, "event", "events");
    let freed = human::size(result.freed_bytes);
    let _ = if result.dry_run {
        writeln!(text, "{tasks} and {events} would go, {freed} would be freed")
    } else {
        writeln!(text, "{tasks} and {events} removed, {freed} freed")
    };
    text
}
