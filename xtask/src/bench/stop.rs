//! `stop`: from asking to the receipt that says that nobody is left, against the raw mechanism in a bare holder.

use std::time::Duration;

use belay_client::Client;
use belay_protocol::methods::TaskStop;

use super::measure::{ROUNDS, compare, time};
use super::parts::{at_rest, shell_line};
use super::report::{Report, Target, shown_time};
use super::world::{World, kill_params, start_detached};
use crate::run::{Outcome, command, output};

pub(crate) fn run(report: &mut Report) -> Outcome {
    let world = World::new()?;
    let mut client = world.connect()?;
    for (what, children, times) in [("a shell and two children", 2, 30), ("200 processes", 200, 1)] {
        let ours = || stop(&mut client, children);
        let [ours, raw, looped] = compare(
            ROUNDS,
            times,
            [Box::new(ours), Box::new(|| held("raw", children)), Box::new(|| held("loop", children))],
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

fn stop(client: &mut Client, children: usize) -> Outcome<Duration> {
    let task = start_detached(client, &["/bin/sh", "-c", &shell_line(children)])?;
    at_rest(task.pid.ok_or("the task has no process")?, children)?;
    let params = kill_params(&task.id)?;
    time(|| {
        let done = client.call::<TaskStop>(&params)?;
        let empty = done.receipt.is_some_and(|receipt| receipt.survivors.is_empty());
        if empty { Ok(()) } else { Err("the receipt names survivors".into()) }
    })
}

fn held(way: &str, children: usize) -> Outcome<Duration> {
    let said = output(&mut command(std::env::current_exe()?, &["part", "hold", way, &children.to_string()]))?;
    Ok(Duration::from_micros(said.trim().parse()?))
}
