//! `leaderless`: listing tasks whose leader has exited and left children behind, and how long another client waits meanwhile.

use std::time::Duration;

use belay_client::Client;
use belay_os::process::descendants;
use belay_protocol::task::TaskListParams;

use super::bystander::longest_wait;
use super::measure::{median, time};
use super::report::Report;
use super::subject::Subject;
use super::wire::List;
use super::world::{World, start_detached};
use crate::run::{Outcome, wait_until};

const TASKS: usize = 300;
const CHILDREN: usize = 10;
const LISTS: usize = 9;

pub(crate) fn run(subject: &Subject, report: &mut Report) -> Outcome {
    let world = World::new(subject)?;
    let mut client = world.connect()?;
    let line = format!("i=0; while [ $i -lt {CHILDREN} ]; do sleep 1000 & i=$((i+1)); done; exit 0");
    for _ in 0..TASKS {
        start_detached(&mut client, &["/bin/sh", "-c", &line])?;
    }
    let daemon = world.daemon()?.pid;
    let has_settled = || {
        let below = descendants(daemon);
        let count = |name: &str| below.iter().filter(|info| info.command.starts_with(name)).count();
        Ok(count("sleep ") == TASKS * CHILDREN && count("/bin/sh ") == 0)
    };
    if !wait_until(Duration::from_secs(30), has_settled)? {
        return Err("the leaders have not all exited".into());
    }
    list(&mut client)?;
    let lists = || (0..LISTS).map(|_| time(|| list(&mut client))).collect::<Outcome<Vec<_>>>();
    let (durations, wait) = longest_wait(&world, lists)?;
    let what = "`task/list` of 300 tasks whose leader has exited and left 10 children";
    report.value("leaderless", what, median(durations).into());
    report.value("leaderless", "longest `daemon/status` of another client meanwhile", wait.into());
    Ok(())
}

fn list(client: &mut Client) -> Outcome {
    let listed = client.call::<List>(&TaskListParams::default())?.tasks.len();
    if listed == TASKS { Ok(()) } else { Err(format!("{listed} of {TASKS} tasks are listed").into()) }
}
