//! `live`: whether a start becomes slower with the number of live tasks, and how long a daemon takes to adopt 9,000 of them.

use std::time::Duration;

use belay_client::Client;

use super::measure::{median, ratio, time};
use super::report::{Report, Target};
use super::subject::Subject;
use super::value::{Unit, Value};
use super::world::{World, start_detached};
use crate::run::{Outcome, wait_until};

const FEW: usize = 100;
const COUNTS: [usize; 3] = [FEW, 3_000, 9_000];
const SAMPLES: usize = 100;
/// How many clients start tasks at once to reach a count.
const FILLERS: usize = 2;
const SETTLE: Duration = Duration::from_secs(2);

pub(crate) fn run(subject: &Subject, report: &mut Report) -> Outcome {
    let world = World::new(subject)?;
    let mut client = world.connect()?;
    let (mut live, mut base) = (0, None);
    for count in COUNTS {
        fill(&world, count - live)?;
        // The journal is flushed and the pool of shims is full again.
        std::thread::sleep(SETTLE);
        let starts = (0..SAMPLES).map(|_| time(|| start(&mut client))).collect::<Outcome<Vec<_>>>()?;
        live = count + SAMPLES;
        let took = median(starts);
        report.value("live", &format!("start to started by RPC with {count} live tasks"), took.into());
        let base = *base.get_or_insert(took);
        if count != FEW {
            let growth = ratio(took, base);
            let what = format!("growth of a start from {FEW} to {count} live tasks");
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

fn start(client: &mut Client) -> Outcome {
    start_detached(client, &["/bin/sleep", "10000"]).map(drop)
}

fn fill(world: &World, count: usize) -> Outcome {
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
