//! `idle`: how often a daemon and a shim wake up while nothing happens.

use std::time::Duration;

use super::measure::number;
use super::report::{Report, Target};
use super::subject::Subject;
use super::value::Value;
use super::world::{World, start_detached};
use crate::run::Outcome;

const SETTLE: Duration = Duration::from_secs(3);
const WATCH: Duration = Duration::from_secs(10);

pub(crate) fn run(subject: &Subject, report: &mut Report) -> Outcome {
    let world = World::new(subject)?;
    let task = start_detached(&mut world.connect()?, &["/bin/sleep", "1000"])?;
    let shim = task.held_by.ok_or("the task does not say who holds it")?.shim_pid;
    let daemon = world.daemon()?.pid;
    for (who, wakes) in ["daemon", "shim"].into_iter().zip(wakes([daemon, shim])?) {
        let what = format!("wake-ups of an idle {who} in 10 s, one task running");
        report.alone("idle", &what, Value::count(wakes), number(wakes), Target::AtMost(0.0));
    }
    Ok(())
}

/// How often each of these processes wakes up within ten seconds, when everything has come to rest.
pub(crate) fn wakes<const N: usize>(pids: [i32; N]) -> Outcome<[u64; N]> {
    std::thread::sleep(SETTLE);
    let mut wakes = [0; N];
    for (pid, wakes) in pids.iter().zip(&mut wakes) {
        *wakes = switches(*pid)?;
    }
    std::thread::sleep(WATCH);
    for (pid, wakes) in pids.iter().zip(&mut wakes) {
        *wakes = switches(*pid)? - *wakes;
    }
    Ok(wakes)
}

/// How often the threads of a process gave up a processor or lost it.
fn switches(pid: i32) -> Outcome<u64> {
    let mut sum = 0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let status = std::fs::read_to_string(thread?.path().join("status"))?;
        let counts = status.lines().filter(|line| line.contains("voluntary_ctxt_switches:"));
        sum += counts.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum::<u64>();
    }
    Ok(sum)
}
