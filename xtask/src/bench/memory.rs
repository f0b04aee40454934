//! `memory`: what each running task costs besides its own processes, in proportional memory (PSS).

use std::collections::BTreeSet;

use belay_os::process::descendants;
use belay_protocol::task::TaskListParams;

use super::measure::number;
use super::report::{Report, Target};
use super::subject::Subject;
use super::value::{Unit, Value};
use super::wire::List;
use super::world::{World, start_detached};
use crate::run::Outcome;

const TASKS: u32 = 200;

pub(crate) fn run(subject: &Subject, report: &mut Report) -> Outcome {
    let world = World::new(subject)?;
    let mut client = world.connect()?;
    let before = held_bytes(&world, &BTreeSet::new())?;
    for _ in 0..TASKS {
        start_detached(&mut client, &["/bin/sleep", "1000"])?;
    }
    let listed = client.call::<List>(&TaskListParams::default())?.tasks;
    let commands: BTreeSet<i32> = listed.iter().filter_map(|task| task.pid).collect();
    if commands.len() != TASKS as usize {
        return Err(format!("{} of {TASKS} tasks run", commands.len()).into());
    }
    let after = held_bytes(&world, &commands)?;
    let each = number(after.saturating_sub(before)) / f64::from(TASKS);
    report.alone(
        "memory",
        "a running task: its shim, and what the daemon grows by (PSS, MB)",
        Value::new(each, Unit::Bytes),
        each / 1e6,
        Target::AtMost(0.5),
    );
    let daemon = pss_bytes(world.daemon()?.pid)?;
    report.value("memory", "the daemon with 200 tasks", Value::bytes(daemon));
    Ok(())
}

/// The memory of the daemon and of everything below it but the commands.
fn held_bytes(world: &World, commands: &BTreeSet<i32>) -> Outcome<u64> {
    let daemon = world.daemon()?.pid;
    let below = descendants(daemon);
    let ours = below.iter().map(|info| info.identity.pid).filter(|pid| !commands.contains(pid));
    Ok(ours.chain([daemon]).filter_map(|pid| pss_bytes(pid).ok()).sum())
}

/// What a process holds, with what it shares divided by those it shares it with.
pub(crate) fn pss_bytes(pid: i32) -> Outcome<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).ok_or("no PSS")?;
    Ok(line.trim_end_matches("kB").trim().parse::<u64>()? * 1024)
}
