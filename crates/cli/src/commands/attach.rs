//! `belay attach`: to be there for a while with a task that runs. Whoever attaches looks on: to leave changes nothing about it.

use belay_client::Client;
use belay_protocol::methods::{OutputRead, TaskGet};
use belay_protocol::output::{OutputFrom as Begin, OutputReadParams};
use belay_protocol::task::{TaskGetParams, TaskInfo, TerminalSize};
use belay_protocol::vars;

use super::logs;
use crate::args::{AttachArgs, LogsArgs};
use crate::caller::ProcStatus;
use crate::context::Context;
use crate::error::CliError;
use crate::live::{self, Input, Ours, Plan, RECENT_BYTES, Recent, Role};
use crate::outcome;

/// So many lines of what came before are shown where there is no screen.
const LINES: u64 = 10;

pub(crate) fn run(args: &AttachArgs, context: &mut Context) -> Result<u8, CliError> {
    let mut client = context.connect()?;
    let task = client.call::<TaskGet>(&TaskGetParams { id: args.id.clone() })?;
    if task.status.is_ended() {
        return ended(&task, context);
    }
    if std::env::var(vars::TASK).is_ok_and(|own| own == task.id) {
        return Err(CliError::usage(format!("{} is the task that this command runs in", task.id))
            .hint("it would show itself to itself without end"));
    }
    let plan = match (task.spec.pty(), Ours::find()) {
        (Some(size), Some(ours)) => at_screen(&mut client, &task, size, ours)?,
        _ => on_lines(&task, context),
    };
    drop(client);
    plan.go(context, ProcStatus::read())
}

/// The same last lines as of one that runs, and its code.
fn ended(task: &TaskInfo, context: &mut Context) -> Result<u8, CliError> {
    let args = LogsArgs {
        id: task.id.clone(),
        follow: false,
        after: None,
        head: None,
        tail: Some(LINES),
        stream: None,
        grep: None,
        brief: None,
        context: 0,
        raw: false,
        json: false,
    };
    logs::run(args, context)?;
    context.out.flush()?;
    context.note(&format!("belay: {} has ended: {}", task.id, outcome::sentence(task)));
    Ok(outcome::exit_code(task))
}

/// Its screen on ours, its keyboard ours.
fn at_screen(client: &mut Client, task: &TaskInfo, size: TerminalSize, ours: Ours) -> Result<Plan, CliError> {
    let (opening, next) = screen(client, task, size)?;
    Ok(Plan {
        role: Role::Viewer { id: task.id.clone() },
        input: Input::Keys(ours),
        from: Some(Begin::Offset { offset: next }),
        opening,
        json: false,
    })
}

/// What its screen shows, and the offset of the first byte that is not in it.
fn screen(client: &mut Client, task: &TaskInfo, size: TerminalSize) -> Result<(Vec<u8>, u64), CliError> {
    let first = task.output.bytes.saturating_sub(RECENT_BYTES);
    let mut recent = Recent::new(size, first > 0);
    let mut from = first;
    let mut end = None;
    loop {
        let begin = Begin::Offset { offset: from };
        let params =
            OutputReadParams { id: task.id.clone(), from: begin, max_bytes: None, stream: None, text: false };
        let page = client.call::<OutputRead>(&params)?;
        page.chunks.iter().for_each(|chunk| recent.feed(&chunk.data.0));
        // What was there when we began; a noisy task would never let us in otherwise.
        let end = *end.get_or_insert(page.bytes);
        if page.next >= end || page.next == from {
            return Ok((recent.picture(live::size_for_task()), page.next));
        }
        from = page.next;
    }
}

/// Its last lines and what comes. Only a person at a terminal ends its input; the end of a pipe or a file is ours alone.
fn on_lines(task: &TaskInfo, context: &Context) -> Plan {
    let close = context.term.stdin && task.spec.pty().is_none();
    Plan {
        role: Role::Viewer { id: task.id.clone() },
        input: Input::Bytes { close },
        from: Some(Begin::TailLines { lines: LINES }),
        opening: Vec::new(),
        json: false,
    }
}
