//! `stop`: from asking to the receipt that says that nobody is left, against the raw mechanism in a bare holder.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::time::Duration;

use belay_client::Client;

use super::measure::{ROUNDS, compare, time};
use super::parts::{at_rest, shell_line};
use super::report::{Report, Target, shown_time};
use super::subject::Subject;
use super::wire::Stop;
use super::world::{World, kill_params, start_detached};
use crate::run::{Outcome, command, output, start};

pub(crate) fn run(subject: &Subject, report: &mut Report) -> Outcome {
    let world = World::new(subject)?;
    let mut client = world.connect()?;
    for (what, children, times) in [("a shell and two children", 2, 30), ("200 processes", 200, 1)] {
        let ours = || stop(&mut client, children);
        let [ours, raw, asked, relayed, looped] = compare(
            subject.rounds(ROUNDS),
            times,
            [
                Box::new(ours),
                Box::new(|| held("raw", children)),
                Box::new(|| asked(holder("asked", children)?)),
                Box::new(|| asked(relay(children)?)),
                Box::new(|| held("loop", children)),
            ],
        )?;
        let what = format!("stop of {what}, level kill, by RPC");
        report.times("stop", &what, ours, ("`cgroup.kill` and wait", raw), Target::AtMost(2.0));
        report.note(format!(
            "{what}: a bare holder that sleeps and is asked over a pipe takes {}, and asked through a bare relay, as a shim \
             is through its daemon, {}; belay-os's loop of killing, in a bare holder, {}",
            shown_time(asked),
            shown_time(relayed),
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
        let done = client.call::<Stop>(&params)?;
        let survivors = done["receipt"]["survivors"].as_array();
        let empty = survivors.is_some_and(Vec::is_empty);
        if empty { Ok(()) } else { Err("the receipt names survivors".into()) }
    })
}

fn holder(way: &str, children: usize) -> Outcome<Command> {
    Ok(command(std::env::current_exe()?, &["part", "hold", way, &children.to_string()]))
}

fn held(way: &str, children: usize) -> Outcome<Duration> {
    Ok(Duration::from_micros(output(&mut holder(way, children)?)?.trim().parse()?))
}

fn relay(children: usize) -> Outcome<Command> {
    Ok(command(std::env::current_exe()?, &["part", "relay", &children.to_string()]))
}

/// From asking one who sleeps to its answer.
fn asked(mut holder: Command) -> Outcome<Duration> {
    let mut holder = start(holder.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
    let (Some(mut ask), Some(answers)) = (holder.stdin.take(), holder.stdout.take()) else {
        return Err("the holder has no pipes".into());
    };
    let mut answers = BufReader::new(answers);
    let mut line = String::new();
    answers.read_line(&mut line)?;
    let took = time(|| {
        ask.write_all(b"\n")?;
        answers.read_line(&mut line)?;
        Ok(())
    })?;
    if holder.wait()?.success() { Ok(took) } else { Err(format!("the holder said {line:?}").into()) }
}
