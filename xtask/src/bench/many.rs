//! `many`: a thousand running tasks: listing them, losing the daemon under them, stopping them all.

use std::time::Duration;

use belay_client::{Client, Message};
use belay_protocol::task::TaskListParams;

use super::measure::{median, per_second, time};
use super::report::{Report, Target};
use super::subject::Subject;
use super::value::{Unit, Value};
use super::wire::{List, Stop, Task};
use super::world::{World, kill_params, start_detached};
use crate::run::{Outcome, wait_until};

const TASKS: usize = 1000;
const LISTS: usize = 9;
const CRASHES: usize = 3;

pub(crate) fn run(subject: &Subject, report: &mut Report) -> Outcome {
    let world = World::new(subject)?;
    let mut client = world.connect()?;
    let started =
        time(|| (0..TASKS).try_for_each(|_| start_detached(&mut client, &["/bin/sleep", "1000"]).map(drop)))?;
    let rate = Value::new(per_second(TASKS, started), Unit::PerSecond);
    report.value("many", "1 000 detached starts, one client", rate);

    running(&mut client)?;
    let lists = (0..LISTS).map(|_| time(|| running(&mut client).map(drop))).collect::<Outcome<Vec<_>>>()?;
    let list = median(lists);
    let ms = list.as_secs_f64() * 1e3;
    report.alone("many", "list of 1 000 running tasks (ms)", list.into(), ms, Target::AtMost(10.0));

    let crashes = (0..CRASHES).map(|_| crash(&world)).collect::<Outcome<Vec<_>>>()?;
    let adopted = median(crashes);
    report.alone(
        "many",
        "from a killed daemon to the next one with all 1 000 (s)",
        adopted.into(),
        adopted.as_secs_f64(),
        Target::AtMost(2.0),
    );

    let mut client = world.connect()?;
    let ids = running(&mut client)?;
    let stopped = time(|| stop_all(&mut client, &ids))?;
    report.value("many", "stop of all 1 000, with receipts", stopped.into());
    Ok(())
}

/// The ids of all of them, if all of them run.
fn running(client: &mut Client) -> Outcome<Vec<String>> {
    let listed = client.call::<List>(&TaskListParams::default())?.tasks;
    let running = listed.into_iter().filter(Task::is_running).map(|task| task.id);
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
            let listed = client.call::<List>(&TaskListParams::default())?.tasks;
            found = listed.iter().filter(|task| task.is_running()).count();
            Ok(found == TASKS)
        })?;
        if all { Ok(()) } else { Err(format!("{found} of {TASKS} tasks were adopted").into()) }
    })
}

fn stop_all(client: &mut Client, ids: &[String]) -> Outcome {
    for id in ids {
        client.send::<Stop>(&kill_params(id)?)?;
    }
    let mut answered = 0;
    while answered < ids.len() {
        if let Message::Response(response) = client.receive()? {
            response.result?;
            answered += 1;
        }
    }
    Ok(())
}
