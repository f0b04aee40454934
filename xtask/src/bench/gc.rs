//! `gc`: removing 20,000 ended tasks, and how long another client waits meanwhile. The home is in memory, because the time to
//! delete 60,000 files on a disk says more about the disk.

use std::time::{Duration, Instant};

use belay_protocol::daemon::DaemonGcParams;

use super::bystander::longest_wait;
use super::filled::{TASKS, fill_world};
use super::measure::{median, time};
use super::report::Report;
use super::subject::Subject;
use super::wire::Gc;
use super::world::World;
use crate::run::Outcome;

const ROUNDS: usize = 3;
const LIMIT: Duration = Duration::from_mins(5);

pub(crate) fn run(subject: &Subject, report: &mut Report) -> Outcome {
    let (mut durations, mut waits) = (Vec::new(), Vec::new());
    for _ in 0..subject.rounds(ROUNDS) {
        let world = fill_world(World::in_memory(subject)?, TASKS, 1)?;
        let mut client = world.connect()?;
        let params = DaemonGcParams { all: true, dry_run: false };
        let collect = || {
            time(|| {
                let removed = client.call_by::<Gc>(&params, Some(Instant::now() + LIMIT))?.removed;
                let all = removed >= u64::from(TASKS);
                if all { Ok(()) } else { Err(format!("{removed} of {TASKS} tasks were removed").into()) }
            })
        };
        let (duration, wait) = longest_wait(&world, collect)?;
        durations.push(duration);
        waits.push(wait);
    }
    report.value("gc", "`daemon/gc` of 20 000 ended tasks, home in memory", median(durations).into());
    report.value("gc", "longest `daemon/status` of another client meanwhile", median(waits).into());
    Ok(())
}
