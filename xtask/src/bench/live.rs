//! `live`: whether a start becomes slower with the number of live tasks, and how long a daemon takes to adopt 9,000 of them.

use std::time::{Duration, Instant};

use belay_client::Client;

use super::measure::{compare, ratio, time};
use super::report::{Report, Target};
use super::subject::Subject;
use super::value::{Unit, Value};
use super::world::{World, kill, start_detached};
use crate::run::{Outcome, wait_until};

const FEW: usize = 100;
const COUNTS: [usize; 3] = [FEW, 3_000, 9_000];
/// How many tasks are started in a row: more than there are idle shims, so that starting shims is part of it.
const BATCH: usize = 20;
const BATCHES: usize = 15;
/// How many clients start tasks at once to reach a count.
const FILLERS: usize = 2;
const SETTLE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(50);

pub(crate) fn run(subject: &Subject, report: &mut Report) -> Outcome {
    // A second daemon stays at the smallest count, and both take turns: what the machine does at that moment, it does to both.
    let (world, base) = (World::new(subject)?, World::new(subject)?);
    let (mut client, mut base_client) = (world.connect()?, base.connect()?);
    fill(&base, FEW)?;
    let mut live = 0;
    for count in COUNTS {
        fill(&world, count - live)?;
        live = count;
        // The journal is flushed and the pool of shims is full again.
        std::thread::sleep(SETTLE);
        let [took, few] = compare(
            1,
            BATCHES,
            [Box::new(|| start_batch(&mut client)), Box::new(|| start_batch(&mut base_client))],
        )?;
        let what = format!("start to started by RPC, {BATCH} in a row, with {count} live tasks");
        report.value("live", &what, took.into());
        if count != FEW {
            let growth = ratio(took, few);
            let what = format!("growth of a start from {FEW} to {count} live tasks, in turns");
            report.alone("live", &what, Value::new(growth, Unit::Ratio), growth, Target::AtMost(1.3));
        }
    }
    drop(client);
    let adopted = adopt(&world, live as u64)?;
    report.value(
        "live",
        "from a killed daemon to the next one that serves with 9 000 live tasks",
        adopted.into(),
    );
    Ok(())
}

/// The time of one start of a batch. The tasks are killed afterwards, so that the number of live tasks stays the same.
fn start_batch(client: &mut Client) -> Outcome<Duration> {
    let began = Instant::now();
    let mut ids = Vec::with_capacity(BATCH);
    for _ in 0..BATCH {
        ids.push(start_detached(client, &["/bin/sleep", "10000"])?.id);
    }
    let took = began.elapsed() / u32::try_from(BATCH)?;
    for id in ids {
        kill(client, &id)?;
    }
    // The pool of shims is back at its usual size.
    std::thread::sleep(PAUSE);
    Ok(took)
}

fn start(client: &mut Client) -> Outcome {
    start_detached(client, &["/bin/sleep", "10000"]).map(drop)
}

pub(crate) fn fill(world: &World, count: usize) -> Outcome {
    std::thread::scope(|scope| {
        let part = count.div_ceil(FILLERS);
        let fill = move || {
            let mut client = world.connect()?;
            (0..part).try_for_each(|_| start(&mut client))
        };
        let threads: Vec<_> = (0..FILLERS).map(|_| scope.spawn(fill)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread has panicked")?)
    })
}

/// Kills the daemon and starts the next; it serves when its start returns, and then knows all tasks.
fn adopt(world: &World, live: u64) -> Outcome<Duration> {
    world.kill_daemon()?;
    let took = time(|| {
        world.start_daemon()?;
        world.status().map(drop)
    })?;
    let mut found = 0;
    let all = wait_until(Duration::from_secs(30), || {
        found = world.status()?.tasks_live;
        Ok(found >= live)
    })?;
    if all { Ok(took) } else { Err(format!("{found} of {live} tasks were adopted").into()) }
}
