//! `foreground`: what it costs somebody who waits for a command. As a shell's place, as its reader, and until one is let go.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use belay_client::{Client, Message};
use belay_protocol::daemon::DaemonStatusParams;
use belay_protocol::methods::Notification;
use belay_protocol::task::TaskDetachParams;
use belay_protocol::vars;
use serde_json::json;

use super::cli::belay;
use super::measure::{ROUNDS, compare, number, time};
use super::report::{Report, Target};
use super::subject::Subject;
use super::value::{Unit, Value};
use super::wire::{DaemonStatus, Detach, Start};
use super::world::{World, kill, start_params};
use crate::run::{self, Outcome, succeed};

const SHELL: &str = "/bin/sh";
const BYTES: u64 = 256 << 20;

pub(crate) fn run(subject: &Subject, report: &mut Report) -> Outcome {
    let world = World::new(subject)?;
    shell(subject, report, &world)?;
    detach(subject, report, &world)?;
    stream(subject, report, &world)
}

fn shell(subject: &Subject, report: &mut Report, world: &World) -> Outcome {
    let ours = || time(|| succeed(belay(world, &["shell", "-c", "true"]).env(vars::SHELL, SHELL)));
    let real = || time(|| succeed(Command::new(SHELL).args(["-c", "true"]).stdin(Stdio::null())));
    let [ours, real] = compare(subject.rounds(ROUNDS), 20, [Box::new(ours), Box::new(real)])?;
    report.times("foreground", "`belay shell -c true`", ours, ("`sh -c true`", real), Target::None);
    Ok(())
}

/// From asking for a detach to the reply of the waiting caller.
fn detach(subject: &Subject, report: &mut Report, world: &World) -> Outcome {
    let (mut waiting, mut asking, mut other) = (world.connect()?, world.connect()?, world.connect()?);
    let ours = || released(&mut waiting, &mut asking);
    let ask = || {
        time(|| {
            other.call::<DaemonStatus>(&DaemonStatusParams::default())?;
            Ok(())
        })
    };
    let [ours, ask] = compare(subject.rounds(ROUNDS), 20, [Box::new(ours), Box::new(ask)])?;
    let what = "from `task/detach` to the reply of the waiting caller";
    report.times("foreground", what, ours, ("`daemon/status`", ask), Target::None);
    Ok(())
}

fn released(waiting: &mut Client, asking: &mut Client) -> Outcome<Duration> {
    let params = start_params(&["/bin/sleep", "100"], &json!({"answer": "ended"}))?;
    let start = waiting.send::<Start>(&params)?;
    let said = waiting.next_notification(None)?;
    let Notification::TaskStarted(started) = said else {
        return Err(format!("{said:?} instead of the start").into());
    };
    let id = started.task.id;
    let began = Instant::now();
    asking.send::<Detach>(&TaskDetachParams { id: id.clone(), actor: None })?;
    let answer = loop {
        if let Message::Response(answer) = waiting.receive()?
            && answer.id == start
        {
            break answer;
        }
    };
    let took = began.elapsed();
    let task = belay_client::decode::<Start>(&answer.result?)?;
    if !task.detached || !task.is_running() {
        return Err("the caller was not released".into());
    }
    asking.receive()?;
    kill(asking, &id)?;
    Ok(took)
}

fn stream(subject: &Subject, report: &mut Report, world: &World) -> Outcome {
    // As programs write it: lines of text.
    let line = format!("yes 'a line of text as programs write them, 0123456789' | head -c {BYTES}");
    let argv = [SHELL, "-c", &line];
    let ours = || read_whole(belay(world, &["run", "--"]).args(argv));
    let bare = || read_whole(Command::new(argv[0]).args(&argv[1..]).stdin(Stdio::null()));
    let [ours, bare] = compare(subject.rounds(ROUNDS), 1, [Box::new(ours), Box::new(bare)])?;
    let speed = |took: Duration| Value::new(number(BYTES) / took.as_secs_f64(), Unit::BytesPerSecond);
    report.share(
        "foreground",
        "256 MiB of text through `belay run` to its reader",
        speed(ours),
        ("a plain pipe", speed(bare)),
        Target::None,
    );
    Ok(())
}

/// How long it takes to read everything that a command writes through a pipe.
fn read_whole(command: &mut Command) -> Outcome<Duration> {
    time(|| {
        let mut child = run::start(command.stdout(Stdio::piped()))?;
        let mut read = 0;
        if let Some(mut stdout) = child.stdout.take() {
            let mut buffer = vec![0; 64 << 10];
            while let filled @ 1.. = std::io::Read::read(&mut stdout, &mut buffer)? {
                read += filled as u64;
            }
        }
        let ended = child.wait()?;
        if ended.success() && read == BYTES { Ok(()) } else { Err(format!("{read} bytes, {ended}").into()) }
    })
}
