//! `belay inspect`: everything about one task, as a block that can be read from top to bottom.

use std::fmt::Write as _;

use belay_protocol::Timestamp;
use belay_protocol::lane::LaneSeat;
use belay_protocol::methods::TaskGet;
use belay_protocol::task::{
    Budgets, ClockInfo, Outcome, ProcessInfo, TaskGetParams, TaskHealth, TaskInfo, TerminalSize,
};

use crate::args::InspectArgs;
use crate::context::{self, Context};
use crate::error::CliError;
use crate::outcome;
use crate::ui::human;
use crate::ui::style::Style;
use crate::ui::table::{Cell, Column, Table};
use crate::ui::text::one_line;

/// How many gaps are listed before the rest is only counted.
const GAPS_SHOWN: usize = 8;

/// From how long a wait before the start on both moments are shown; below, they are one to whoever reads.
const WAIT_SHOWN_MS: u64 = 1000;

pub(crate) fn run(args: &InspectArgs, context: &mut Context) -> Result<u8, CliError> {
    let task = context.connect()?.call::<TaskGet>(&TaskGetParams { id: args.id.clone() })?;
    if args.json {
        context.out.json(&task)?;
    } else {
        let text = render(&task, context::now(), context.term.width, context.term.colour_out);
        context.out.text(&text)?;
    }
    Ok(0)
}

/// The block, line by line; every value is made harmless on its way in.
struct Block {
    text: String,
    colour: bool,
}

impl Block {
    fn line(&mut self, name: &str, value: &str) {
        self.styled(name, value, Style::Plain);
    }

    fn styled(&mut self, name: &str, value: &str, style: Style) {
        let name = Style::Bold.paint(&format!("{name:<11}"), self.colour);
        let value = style.paint(&one_line(value), self.colour);
        let _ = writeln!(self.text, "{name}{value}");
    }

    fn option(&mut self, name: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.line(name, value);
        }
    }
}

pub(crate) fn render(task: &TaskInfo, now: Timestamp, width: Option<usize>, colour: bool) -> String {
    let mut block = Block { text: String::new(), colour };
    identity(&mut block, task);
    life(&mut block, task, now);
    output(&mut block, task, now);
    clocks(&mut block, task);
    budgets(&mut block, task);
    if let Some(outcome) = &task.outcome {
        end(&mut block, task, outcome);
    }
    let Some(processes) = task.processes.as_ref().filter(|all| !all.is_empty()) else { return block.text };
    block.text.push('\n');
    block.text.push_str(&process_table(processes, width, colour));
    block.text
}

fn identity(block: &mut Block, task: &TaskInfo) {
    block.line("Task", &task.id);
    block.option("Name", task.name.as_deref());
    if !task.labels.is_empty() {
        let labels: Vec<String> = task.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        block.line("Labels", &labels.join(", "));
    }
    block.line("Command", &task.command);
    if let Some(line) = task.spec.line() {
        block.line("Line", &line.explanation);
    }
    block.line("Directory", &task.cwd.to_text_lossy());
    block.line("Session", &task.session);
    block.option("Parent", task.parent.as_deref());
    block.option("Started by", starter(task).as_deref());
    block.option("Lane", task.lane.as_ref().map(seat).as_deref());
    if task.keep {
        block.line("Keep", "it outlives its session");
    }
}

/// `user:ada via cli (belay 0.1.0)`.
fn starter(task: &TaskInfo) -> Option<String> {
    let client = task.client.as_ref().map(|client| format!(" ({} {})", client.name, client.version));
    (!task.started_by.is_empty()).then(|| format!("{}{}", task.started_by, client.unwrap_or_default()))
}

fn seat(seat: &LaneSeat) -> String {
    match (seat.place, seat.generation) {
        (Some(1), _) => format!("{}, next in line", seat.name),
        (Some(place), _) => format!("{}, place {place} in line", seat.name),
        (None, Some(generation)) => format!("{}, generation {generation}", seat.name),
        (None, None) => seat.name.clone(),
    }
}

fn life(block: &mut Block, task: &TaskInfo, now: Timestamp) {
    let state = if task.status.is_ended() {
        outcome::sentence(task)
    } else {
        let how = match (&task.detached_by, task.detached) {
            (Some(by), _) => format!("detached by {by}"),
            (None, true) => "detached".to_owned(),
            (None, false) => "in the foreground".to_owned(),
        };
        format!("{}, {how}", outcome::status_name(task.status))
    };
    block.styled("Status", &state, outcome::status_style(task.status));
    if task.health == TaskHealth::Stalled {
        let words = task.stall.as_deref().map(|stall| outcome::stalled(stall, now));
        block.styled("Health", words.as_deref().unwrap_or("stalled"), Style::Busy);
        for process in task.stall.iter().flat_map(|stall| &stall.evidence.processes) {
            block.line("  seen", &format!("{} {} {}", process.pid, process.state, process.command));
        }
    }
    if let Some(stopping) = &task.stopping {
        let why = stopping.reason.as_deref().map(|reason| format!(": {reason}")).unwrap_or_default();
        let left = task.clocks.grace.and_then(|grace| grace.remaining_ms);
        let next = left.map(|ms| format!("; the next level in {}", human::duration(ms))).unwrap_or_default();
        let level = stopping.level.name();
        block.styled("Stopping", &format!("{level}, by {}{why}{next}", stopping.actor), Style::Busy);
    }
    times(block, task, now);
    block.option("Attempt", outcome::attempt(task).as_deref());
    if let Some(leader) = &task.leader {
        let state = match (leader.exit_code, leader.signal) {
            (_, Some(signal)) => format!(", died of {}", human::signal(signal)),
            (Some(code), None) => format!(", left with exit {code}"),
            (None, None) => String::new(),
        };
        let goes_on = if state.is_empty() || task.status.is_ended() { "" } else { "; its tree lives on" };
        block.line("Leader", &format!("pid {}{state}{goes_on}", leader.pid));
    }
    if let Some(held) = &task.held_by {
        let cgroup = held.cgroup.as_ref().map(|path| format!(", cgroup {}", path.to_text_lossy()));
        block.line("Held by", &format!("shim {}{}", held.shim_pid, cgroup.unwrap_or_default()));
    }
}

fn times(block: &mut Block, task: &TaskInfo, now: Timestamp) {
    let created = task.created_at;
    let has_waited = task.started_at.is_none_or(|started| human::between(created, started) >= WAIT_SHOWN_MS);
    // A daemon of an earlier version does not say it.
    if has_waited && created != Timestamp::default() {
        block.line("Created", &format!("{created} ({})", human::ago(created, now)));
    }
    if let Some(started) = task.started_at {
        block.line("Started", &format!("{started} ({})", human::ago(started, now)));
    }
    if let Some(ended) = task.ended_at {
        let ran = task.started_at.map(|started| human::took(human::between(started, ended)));
        let ran = ran.map(|ran| format!(", after {ran}")).unwrap_or_default();
        block.line("Ended", &format!("{ended} ({}{ran})", human::ago(ended, now)));
    }
}

fn output(block: &mut Block, task: &TaskInfo, now: Timestamp) {
    if let Some(TerminalSize { rows, cols }) = task.spec.pty() {
        block.line("Terminal", &format!("{rows} rows, {cols} columns"));
    }
    let sums = &task.output;
    let place = match (sums.bytes, sums.on_disk) {
        (0, _) => "",
        (_, true) => ", on disk",
        (_, false) => ", in memory",
    };
    let first = if sums.first > 0 { format!(", readable from {}", sums.first) } else { String::new() };
    let last = sums.last_at.map(|at| format!(", last {}", human::ago(at, now))).unwrap_or_default();
    block.line("Output", &format!("{} ({} bytes){place}{first}{last}", human::size(sums.bytes), sums.bytes));
    for [from, to] in sums.gaps.iter().take(GAPS_SHOWN) {
        block.styled(
            "  gap",
            &format!("{from}–{to}: {} bytes not kept", to.saturating_sub(*from)),
            Style::Busy,
        );
    }
    if sums.gaps.len() > GAPS_SHOWN {
        block.line("  gap", &format!("and {} more", sums.gaps.len() - GAPS_SHOWN));
    }
}

fn clocks(block: &mut Block, task: &TaskInfo) {
    let all = &task.clocks;
    let named = [
        ("Time limit", all.timeout),
        ("To live", all.ttl),
        ("Silence", all.silence),
        ("Stall", all.stall),
        ("Grace", all.grace),
    ];
    for (name, clock) in named {
        if let Some(clock) = clock {
            block.line(name, &clock_text(clock));
        }
    }
}

fn budgets(block: &mut Block, task: &TaskInfo) {
    let Budgets { output_bytes, memory_bytes, processes } = task.budgets;
    let parts = [
        output_bytes.map(|bytes| format!("{} of output", human::size(bytes))),
        memory_bytes.map(|bytes| format!("{} of memory", human::size(bytes))),
        processes.map(|many| human::count(many, "process", "processes")),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if !parts.is_empty() {
        block.line("Budgets", &parts.join(", "));
    }
}

fn clock_text(clock: ClockInfo) -> String {
    let limit = human::duration(clock.limit_ms);
    match clock.remaining_ms {
        Some(left) => format!("{limit}, {} left", human::duration(left)),
        None => format!("{limit}, not running"),
    }
}

fn end(block: &mut Block, task: &TaskInfo, outcome: &Outcome) {
    if let Some(receipt) = outcome.receipt() {
        let by = format!("{} by {}: ", receipt.level.name(), receipt.actor);
        block.line("Receipt", &format!("{by}{}", outcome::receipt(receipt)));
    }
    let told = outcome.receipt().is_some_and(|receipt| !receipt.survivors.is_empty());
    if !outcome.survivors().is_empty() && !told {
        block.styled("Survivors", &outcome::survivors(outcome.survivors()), Style::Bad);
    }
    if let Some(fault) = outcome.capture() {
        let text = format!("{} ({} bytes lost)", fault.message, fault.lost_bytes);
        block.styled("Capture", &text, Style::Bad);
    }
    block.line("Exit code", &format!("{} from `belay wait {}`", outcome::exit_code(task), task.id));
}

fn process_table(processes: &[ProcessInfo], width: Option<usize>, colour: bool) -> String {
    let mut table = Table::new(vec![
        Column::new("PID").right(),
        Column::new("PARENT").right(),
        Column::new("STATE"),
        Column::new("MEMORY").right(),
        Column::new("CPU").right(),
        Column::new("COMMAND").flexible(10),
    ]);
    for process in processes {
        table.row(vec![
            Cell::new(&process.pid.to_string()),
            Cell::new(&process.ppid.to_string()),
            Cell::new(&process.state),
            Cell::new(&human::size(process.rss_bytes)),
            Cell::new(&human::took(process.cpu_ms)),
            Cell::new(&process.command),
        ]);
    }
    table.render(width, colour)
}
