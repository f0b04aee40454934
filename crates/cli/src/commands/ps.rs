//! `belay ps`: the tasks that run, or all that are known.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use belay_protocol::Timestamp;
use belay_protocol::methods::TaskList;
use belay_protocol::task::{TaskHealth, TaskInfo, TaskListParams};

use crate::args::PsArgs;
use crate::context::{self, Context};
use crate::duration::millis;
use crate::error::CliError;
use crate::outcome;
use crate::ui::human;
use crate::ui::style::Style;
use crate::ui::table::{Cell, Column, Table};

/// The session of a person at the command line, which need not be named.
const STANDING: &str = "user";

pub(crate) fn run(args: &PsArgs, context: &mut Context) -> Result<u8, CliError> {
    let mut client = context.connect()?;
    let mut params = list_params(args);
    let mut tasks = Vec::new();
    loop {
        let page = client.call::<TaskList>(&params)?;
        if args.json {
            for task in &page.tasks {
                context.out.json(task)?;
            }
        } else {
            tasks.extend(page.tasks);
        }
        params.cursor = page.next_cursor;
        if params.cursor.is_none() {
            break;
        }
    }
    if args.json {
        return Ok(0);
    }
    if tasks.is_empty() {
        context.note(empty(args.all));
        context.hint(if args.all {
            "start one: belay run -d -- COMMAND"
        } else {
            "ended tasks: belay ps -a"
        });
        return Ok(0);
    }
    let (width, colour) = (context.term.width, context.term.colour_out);
    let depths = if args.tree { tree(&mut tasks) } else { vec![0; tasks.len()] };
    context.out.text(&render(&tasks, &depths, args.all, context::now(), width, colour))?;
    Ok(0)
}

fn list_params(args: &PsArgs) -> TaskListParams {
    let before = |ago: Duration| Timestamp(context::now().0 - i64::try_from(millis(ago)).unwrap_or(i64::MAX));
    TaskListParams {
        all: args.all,
        status: args.status.clone(),
        session: args.session.clone(),
        lane: args.lane.clone(),
        name: args.name.clone(),
        text: args.text.clone(),
        actor: args.actor.clone(),
        labels: args.label.iter().cloned().collect(),
        ended_before: args.ended_before.map(before),
        cursor: None,
        limit: None,
    }
}

const fn empty(all: bool) -> &'static str {
    if all { "There are no tasks." } else { "No tasks are running." }
}

/// Puts each task below what has started it, newest first within one level, and says how deep each is.
pub(crate) fn tree(tasks: &mut Vec<TaskInfo>) -> Vec<usize> {
    let known: BTreeSet<String> = tasks.iter().map(|task| task.id.clone()).collect();
    let above = |task: &TaskInfo| {
        let lineage = task.lineage.iter().rev();
        lineage.chain(&task.parent).find(|above| known.contains(*above)).cloned()
    };
    let mut below: BTreeMap<Option<String>, Vec<TaskInfo>> = BTreeMap::new();
    for task in tasks.drain(..) {
        below.entry(above(&task)).or_default().push(task);
    }
    let mut depths = Vec::new();
    let mut next: Vec<(TaskInfo, usize)> = Vec::new();
    let push = |next: &mut Vec<(TaskInfo, usize)>, found: Option<Vec<TaskInfo>>, depth: usize| {
        next.extend(found.unwrap_or_default().into_iter().rev().map(|task| (task, depth)));
    };
    push(&mut next, below.remove(&None), 0);
    while let Some((task, depth)) = next.pop() {
        push(&mut next, below.remove(&Some(task.id.clone())), depth + 1);
        tasks.push(task);
        depths.push(depth);
    }
    depths
}

pub(crate) fn render(
    tasks: &[TaskInfo],
    depths: &[usize],
    all: bool,
    now: Timestamp,
    width: Option<usize>,
    colour: bool,
) -> String {
    let named = tasks.iter().any(|task| task.name.is_some());
    let sessions = tasks.iter().any(|task| task.session != STANDING);
    let mut columns = vec![Column::new("ID")];
    if named {
        columns.push(Column::new("NAME").flexible(8));
    }
    if sessions {
        columns.push(Column::new("SESSION"));
    }
    let age = Column::new(if all { "AGE/ENDED" } else { "AGE" });
    columns.extend([
        Column::new("STATUS"),
        age,
        Column::new("PID").right(),
        Column::new("COMMAND").flexible(10),
    ]);
    let mut table = Table::new(columns);
    for (task, depth) in tasks.iter().zip(depths) {
        let mut row = vec![Cell::new(&format!("{}{}", "  ".repeat(*depth), task.id))];
        if named {
            row.push(Cell::new(task.name.as_deref().unwrap_or("-")));
        }
        if sessions {
            row.push(Cell::new(if task.session == STANDING { "-" } else { &task.session }));
        }
        row.extend([
            Cell::new(&status(task)).style(style(task)),
            Cell::new(&age_text(task, now)),
            Cell::new(&task.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string())),
            Cell::new(&command(task)),
        ]);
        table.row(row);
    }
    table.render(width, colour)
}

/// The command; before it, where it cannot be cut off, that its first process has left others behind.
fn command(task: &TaskInfo) -> String {
    match outcome::left_words(task) {
        Some(words) => format!("({words}) {}", task.command),
        None => task.command.clone(),
    }
}

fn status(task: &TaskInfo) -> String {
    if task.health == TaskHealth::Stalled {
        return format!("{} (stalled)", outcome::short(task));
    }
    outcome::short(task)
}

const fn style(task: &TaskInfo) -> Style {
    match task.health {
        TaskHealth::Stalled => Style::Busy,
        TaskHealth::Ok => outcome::status_style(task.status),
    }
}

fn age_text(task: &TaskInfo, now: Timestamp) -> String {
    match task.ended_at {
        Some(ended) => human::ago(ended, now),
        None => human::duration(human::between(task.started_at.unwrap_or(task.created_at), now)),
    }
}
