//! `many`: a thousand running tasks: listing them, losing the daemon under them, stopping them all.

use std::time::Duration;

use belay_client::{Client, Message};
use belay_protocol::methods::{TaskList, TaskStop};
use belay_protocol::task::{ListParams, Status};

use super::measure::{median, per_second, time};
use super::report::{Report, Target, shown_time};
use super::world::{World, kill_params, start_detached};
use crate::run::{Outcome, wait_until};

const TASKS: usize = 1000;
const LISTS: usize = 9;
const CRASHES: usize = 3;

pub(crate) fn run(report: &mut Report) -> Outcome {
    let world = World::new()?;
    let mut client = world.connect()?;
    let started =
        time(|| (0..TASKS).try_for_each(|_| start_detached(&mut client, &["/bin/sleep", "1000"]).map(drop)))?;
    let rate = format!("{:.0}/s", per_second(TASKS, started));
    report.alone("many", "1 000 detached starts, one client", rate, 0.0, Target::None);

    running(&mut client)?;
    let lists = (0..LISTS).map(|_| time(|| running(&mut client).map(drop))).collect::<Outcome<Vec<_>>>()?;
    let list = median(lists);
    let ms = list.as_secs_f64() * 1e3;
    report.alone("many", "list of 1 000 running tasks (ms)", shown_time(list), ms, Target::AtMost(10.0));

    let crashes = (0..CRASHES).map(|_| crash(&world)).collect::<Outcome<Vec<_>>>()?;
    let adopted = median(crashes);
    report.alone(
        "many",
        "from a killed daemon to the next one with all 1 000 (s)",
        shown_time(adopted),
        adopted.as_secs_f64(),
        Target::AtMost(2.0),
    );

    let mut client = world.connect()?;
    let ids = running(&mut client)?;
    let stopped = time(|| stop_all(&mut client, &ids))?;
    report.alone("many", "stop of all 1 000, with receipts", shown_time(stopped), 0.0, Target::None);
    Ok(())
}

/// The ids of all of them, if all of them run.
fn running(client: &mut Client) -> Outcome<Vec<String>> {
    let listed = client.call::<TaskList>(&ListParams::default())?.tasks;
    let running = listed.into_iter().filter(|task| task.status == Status::Running).map(|task| task.id);
    let ids: Vec<String> = running.collect();
    if ids.len() == TASKS { Ok(ids) } else { Err(format!("{} of {TASKS} tasks run", ids.len()).into()) }
}

/// Kills the daemon and starts the next; done when that one answers for all tasks.
fn crash(world: &World) -> Outcome<Duration> {
    world.kill_daemon()?;
    time(|| {
        world.start_daemon()?;
        let mut client = world.connect()?;
        let mut found = 0;
        let all = wait_until(Duration::from_secs(30), || {
            let listed = client.call::<TaskList>(&ListParams::default())?.tasks;
            found = listed.iter().filter(|task| task.status == Status::Running).count();
            Ok(found == TASKS)
        })?;
        if all { Ok(()) } else { Err(format!("{found} of {TASKS} tasks were adopted").into()) }
    })
}

fn stop_all(client: &mut Client, ids: &[String]) -> Outcome {
    for id in ids {
        client.send::<TaskStop>(&kill_params(id)?)?;
    }
    let mut answered = 0;
    while answered < ids.len() {
        if let Message::Response(response) = client.receive()? {
            belay_client::decode::<TaskStop>(&response.result?)?;
            answered += 1;
        }
    }
    Ok(())
}
