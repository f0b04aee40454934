//! `stop`: from asking to the receipt that says that nobody is left, against the raw mechanism in a bare holder.

use std::time::Duration;

use belay_client::Client;
use belay_protocol::methods::OutputRead;
use belay_protocol::output::ReadParams;
use serde_json::json;

use super::measure::{ROUNDS, compare, time};
use super::report::{Report, Target, shown_time};
use super::world::{World, kill, start_detached};
use crate::run::{Outcome, command, output, wait_until};

/// Each says `ready` when all of it runs.
const SHELL: &str = "sleep 100 & sleep 100 & echo ready; wait";
const CROWD: &str = "i=0; while [ $i -lt 200 ]; do sleep 100 & i=$((i+1)); done; echo ready; wait";

pub(crate) fn run(report: &mut Report) -> Outcome {
    let world = World::new()?;
    let mut client = world.connect()?;
    for (what, line, times) in [("a shell and two children", SHELL, 10), ("200 processes", CROWD, 1)] {
        let ours = || stop(&mut client, line);
        let [ours, raw, looped] = compare(
            ROUNDS,
            times,
            [Box::new(ours), Box::new(|| held("raw", line)), Box::new(|| held("loop", line))],
        )?;
        let what = format!("stop of {what}, level kill, by RPC");
        report.times("stop", &what, ours, ("`cgroup.kill` and wait", raw), Target::AtMost(2.0));
        report.note(format!(
            "{what}: belay-os's loop of killing in a bare holder takes {}",
            shown_time(looped)
        ));
    }
    Ok(())
}

fn stop(client: &mut Client, line: &str) -> Outcome<Duration> {
    let task = start_detached(client, &["/bin/sh", "-c", line])?;
    let read: ReadParams = serde_json::from_value(json!({"id": task.id}))?;
    let ready = || Ok(client.call::<OutputRead>(&read)?.bytes == 6);
    if !wait_until(Duration::from_secs(10), ready)? {
        return Err("the command is not ready".into());
    }
    time(|| {
        let done = kill(client, &task.id)?;
        let empty = done.receipt.is_some_and(|receipt| receipt.survivors.is_empty());
        if empty { Ok(()) } else { Err("the receipt names survivors".into()) }
    })
}

fn held(way: &str, line: &str) -> Outcome<Duration> {
    let said = output(&mut command(std::env::current_exe()?, &["part", "hold", way, line]))?;
    Ok(Duration::from_micros(said.trim().parse()?))
}
