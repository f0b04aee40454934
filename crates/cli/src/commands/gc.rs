//! `belay gc`: what the rules of retention no longer keep is removed now.

use belay_protocol::daemon::{DaemonGcParams, DaemonGcResult};
use belay_protocol::methods::{DaemonGc, Notification};
use serde::Serialize;
use std::fmt::Write as _;

use crate::args::GcArgs;
use crate::context::Context;
use crate::error::CliError;
use crate::ui::human;
use crate::ui::text::one_line;

pub(crate) fn run(args: &GcArgs, context: &mut Context) -> Result<u8, CliError> {
    let params = DaemonGcParams { all: args.all, dry_run: args.dry_run };
    let mut removed = Vec::new();
    let result = context.connect()?.call_with_parts::<DaemonGc>(&params, |part| {
        if let Notification::TaskRemoved(part) = part {
            removed.extend(part.ids);
        }
    })?;
    let DaemonGcResult { freed_bytes, events_expired, dry_run, .. } = result;
    let collected = Collected { removed, freed_bytes, events_expired, dry_run };
    if args.json {
        context.out.json(&collected)?;
    } else {
        context.out.text(&render(&collected))?;
    }
    Ok(0)
}

/// What a collection removed, or would remove.
#[derive(Debug, Serialize)]
pub(crate) struct Collected {
    pub(crate) removed: Vec<String>,
    pub(crate) freed_bytes: u64,
    pub(crate) events_expired: u64,
    pub(crate) dry_run: bool,
}

pub(crate) fn render(result: &Collected) -> String {
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
