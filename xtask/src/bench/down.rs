//! `down`: the end of a daemon that stops 9,000 tasks first, with a receipt for each of them.

use std::time::{Duration, Instant};

use belay_protocol::daemon::DaemonStopParams;
use belay_protocol::methods::{DaemonStop, Notification};

use super::live::fill;
use super::report::Report;
use super::subject::Subject;
use super::world::World;
use crate::run::Outcome;

const TASKS: usize = 9_000;
/// The journal is flushed and the pool of shims is full again.
const SETTLE: Duration = Duration::from_secs(2);

pub(crate) fn run(subject: &Subject, report: &mut Report) -> Outcome {
    let world = World::new(subject)?;
    fill(&world, TASKS)?;
    std::thread::sleep(SETTLE);
    let params = DaemonStopParams { stop_tasks: true, grace_ms: Some(5_000), reason: None };
    let mut client = world.connect()?;
    let (began, mut first, mut receipts) = (Instant::now(), None, 0);
    let result = client.call_with_parts::<DaemonStop>(&params, |part| {
        if let Notification::TaskStopped(part) = part {
            first.get_or_insert_with(|| began.elapsed());
            receipts += usize::from(part.result.receipt.is_some_and(|receipt| receipt.empty_at.is_some()));
        }
    })?;
    let took = began.elapsed();
    // The world expects a daemon that it can stop.
    drop(client);
    world.start_daemon()?;
    if receipts != TASKS || result.left_running != 0 {
        return Err(format!("{receipts} receipts for {TASKS} tasks, {} left", result.left_running).into());
    }
    report.value(
        "down",
        "`daemon/stop` with 9 000 live tasks, until the last receipt and the result",
        took.into(),
    );
    report.value("down", "until the first receipt", first.unwrap_or(took).into());
    Ok(())
}
