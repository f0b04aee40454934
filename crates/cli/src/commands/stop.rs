//! `belay stop`: several at once, a receipt for each.

use std::cell::Cell;

use belay_protocol::life::StopLevel;
use belay_protocol::methods::{Notification, TaskPreviewStop, TaskStop};
use belay_protocol::task::{
    LanePreview, StopFence, StopVerdict, TaskPreviewStopParams, TaskPreviewStopResult, TaskStatus,
    TaskStopParams, TaskStopResult,
};
use belay_protocol::{ErrorKind, RpcError};

use crate::args::{Fence, StopArgs};
use crate::context::Context;
use crate::duration::millis;
use crate::error::CliError;
use crate::many::{self, Next, Refused};
use crate::outcome;
use crate::ui::human;
use crate::ui::text::one_line;

pub(crate) fn run(args: &StopArgs, context: &mut Context) -> Result<u8, CliError> {
    if args.dry_run {
        return preview(args, context);
    }
    let worst = Cell::new(0);
    let ask = |id: &str| TaskStopParams {
        id: id.to_owned(),
        level: level(args),
        grace_ms: args.grace.map(millis),
        reason: args.reason.as_deref().map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned),
        actor: None,
        cascade: args.cascade,
        fence: fence(args),
        wait: true,
    };
    let stopped_below = |context: &mut Context, said| match said {
        Notification::TaskStopped(below) => {
            worst.set(worst.get().max(exit_code(&below.result)));
            tell(context, &below.result, args.json)
        }
        _ => Ok(()),
    };
    many::each_with_parts::<TaskStop>(context, &args.ids, ask, stopped_below, |context, id, result| {
        match verdict(id, result) {
            Ok(stopped) => {
                worst.set(worst.get().max(exit_code(&stopped)));
                tell(context, &stopped, args.json)?;
            }
            Err(error) => {
                if args.json {
                    context.out.json(&Refused { id, error: &error })?;
                }
                let error = CliError::from(error);
                worst.set(worst.get().max(error.exit_code().min(2)));
                context.complain(&error);
            }
        }
        Ok(Next::Done)
    })?;
    Ok(worst.get())
}

const fn fence(args: &StopArgs) -> StopFence {
    match args.fence {
        Fence::Auto => StopFence::Auto,
        Fence::Yes => StopFence::Yes,
        Fence::No => StopFence::No,
    }
}

/// What a stop would do; nothing is stopped.
fn preview(args: &StopArgs, context: &mut Context) -> Result<u8, CliError> {
    let mut worst = 0;
    let ask =
        |id: &str| TaskPreviewStopParams { id: id.to_owned(), cascade: args.cascade, fence: fence(args) };
    many::each::<TaskPreviewStop>(context, &args.ids, ask, |context, id, result| {
        match result {
            Ok(preview) if args.json => context.out.json(&preview)?,
            Ok(preview) => context.out.text(&preview_text(&preview))?,
            Err(error) => {
                if args.json {
                    context.out.json(&Refused { id, error: &error })?;
                }
                let error = CliError::from(error);
                worst = worst.max(error.exit_code().min(2));
                context.complain(&error);
            }
        }
        Ok(Next::Done)
    })?;
    Ok(worst)
}

/// A few lines for people.
pub(crate) fn preview_text(preview: &TaskPreviewStopResult) -> String {
    let id = &preview.id;
    if preview.status.is_ended() {
        return format!("{id} already ended: {}\n", outcome::status_name(preview.status));
    }
    let processes = human::count(preview.process_count, "process", "processes");
    let mut text =
        format!("{id} would be stopped: {processes}, killed after {}\n", human::duration(preview.grace_ms));
    let mut add = |line: String| {
        text.push_str("  ");
        text.push_str(&one_line(&line));
        text.push('\n');
    };
    for process in &preview.processes {
        add(format!("{} {}", process.pid, process.command));
    }
    let unlisted = preview.process_count - preview.processes.len() as u64;
    if unlisted > 0 {
        add(format!("and {}", human::count(unlisted, "other process", "other processes")));
    }
    if preview.below_count > 0 {
        let tasks = human::count(preview.below_count, "task", "tasks");
        let fate = if preview.below_is_stopped { "stopped first" } else { "not stopped without --cascade" };
        add(format!("{tasks} below it, {fate}:"));
        for task in &preview.below {
            add(format!("  {} {} {}", task.id, outcome::status_name(task.status), task.command));
        }
    }
    if let Some(lane) = &preview.lane {
        for line in lane_lines(lane) {
            add(line);
        }
    }
    text
}

fn lane_lines(preview: &LanePreview) -> Vec<String> {
    let LanePreview { lane, is_holder, fenced, stopped, next } = preview;
    let mut lines = Vec::new();
    if let Some(owner) = fenced {
        lines.push(format!("{owner} would be fenced from lane {lane}"));
    }
    lines.extend(
        stopped
            .iter()
            .map(|task| format!("{task} would be stopped, too: it waits for lane {lane} for the same owner")),
    );
    lines.push(match (is_holder, next) {
        (true, Some(next)) => format!("{next} would hold lane {lane} next"),
        (true, None) => format!("lane {lane} would be free"),
        (false, _) => format!("it would leave the queue of lane {lane}"),
    });
    lines
}

const fn level(args: &StopArgs) -> Option<StopLevel> {
    match (args.drain, args.interrupt, args.kill) {
        (true, _, _) => Some(StopLevel::Drain),
        (_, true, _) => Some(StopLevel::Interrupt),
        (_, _, true) => Some(StopLevel::Kill),
        _ => None,
    }
}

/// "Not found" and "not permitted" are answers, however the daemon words them.
fn verdict(id: &str, result: Result<TaskStopResult, RpcError>) -> Result<TaskStopResult, RpcError> {
    let answered = |result| TaskStopResult::bare(id.to_owned(), result, None);
    match result {
        Err(error) => match error.data.kind {
            ErrorKind::NotFound => Ok(answered(StopVerdict::NotFound)),
            ErrorKind::NotPermitted => Ok(answered(StopVerdict::NotPermitted)),
            _ => Err(error),
        },
        ok => ok,
    }
}

pub(crate) fn exit_code(stopped: &TaskStopResult) -> u8 {
    match stopped.result {
        StopVerdict::NotFound | StopVerdict::NotPermitted | StopVerdict::Ambiguous => 1,
        StopVerdict::Accepted | StopVerdict::AlreadyEnded => {
            // Not ended by the deadline is not stopped, whatever may come of it later.
            let failed =
                stopped.status.is_some_and(|status| status == TaskStatus::StopFailed || !status.is_ended());
            if failed { 3 } else { 0 }
        }
    }
}

fn tell(context: &mut Context, stopped: &TaskStopResult, json: bool) -> Result<(), CliError> {
    if json {
        context.out.json(stopped)?;
    } else {
        tell_one(context, stopped)?;
    }
    if let Some(fence) = stopped.fenced.as_ref().filter(|_| !json) {
        context.out.flush()?;
        let fenced = format!("{} is fenced from lane {}", fence.owner, fence.lane);
        context.note(&format!("{fenced}; belay lanes release {} removes the fence", fence.lane));
    }
    // Each receipt when it comes: the next one may take its whole grace.
    context.out.flush()
}

/// To those who read answers, or to those who read what went wrong.
fn tell_one(context: &mut Context, stopped: &TaskStopResult) -> Result<(), CliError> {
    if exit_code(stopped) == 0 {
        return context.out.line(&one_line(&line(stopped)));
    }
    context.out.flush()?;
    context.note(&line(stopped));
    if stopped.result == StopVerdict::NotFound {
        context.way_out("belay ps -a lists them; ended ones are removed by the rules of retention");
    }
    Ok(())
}

/// One line for people.
pub(crate) fn line(stopped: &TaskStopResult) -> String {
    let id = &stopped.id;
    let status = stopped.status.map_or("ended", outcome::status_name);
    let receipt = stopped.receipt.as_ref().map(outcome::receipt);
    match stopped.result {
        StopVerdict::NotFound if id.is_empty() => "an empty id names no task".to_owned(),
        StopVerdict::NotFound => format!("{id} not found: there is no task with that id or name"),
        StopVerdict::NotPermitted => format!("{id} not permitted: this task is not yours to stop"),
        StopVerdict::Ambiguous => format!("{id} not stopped: several tasks match"),
        StopVerdict::AlreadyEnded if stopped.status == Some(TaskStatus::Completed) => {
            format!("{id} already ended: {status} (exit 0)")
        }
        StopVerdict::AlreadyEnded => format!("{id} already ended: {status}"),
        StopVerdict::Accepted => match (stopped.status, receipt) {
            (Some(TaskStatus::StopFailed), Some(receipt)) => format!("{id} stop failed: {receipt}"),
            (Some(TaskStatus::StopFailed), None) => format!("{id} stop failed"),
            (Some(TaskStatus::Cancelled) | None, Some(receipt)) => format!("{id} stopped: {receipt}"),
            (Some(_), Some(receipt)) => format!("{id} {status}: {receipt}"),
            (Some(now), None) if !now.is_ended() => {
                format!("{id} not stopped: still {status}, its shim does not answer; belay doctor says more")
            }
            (Some(TaskStatus::Lost), None) => {
                format!("{id} lost: nobody can say how it ended; belay inspect {id} says what is known")
            }
            (_, None) => format!("{id} {status}"),
        },
    }
}
