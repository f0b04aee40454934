//! `start`: from asking to knowing the end of `true`, on an open connection.

use std::ffi::CString;
use std::os::fd::AsFd as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use belay_client::{AsyncClient, Client};
use belay_os::spawn::{Session, SpawnSpec, spawn};
use rustix::process::{WaitId, WaitIdOptions};
use serde_json::json;

use super::measure::{ROUNDS, compare, time};
use super::report::{Report, Target, shown_time};
use super::subject::Subject;
use super::wire::Start;
use super::world::{World, start_params};
use crate::run::{self, Outcome};

pub(crate) const TRUE: &str = "/bin/true";
const TIMES: usize = 60;

pub(crate) fn run(subject: &Subject, report: &mut Report) -> Outcome {
    let world = World::new(subject)?;
    let mut client = world.connect()?;
    let params = start_params(&[TRUE], &json!({"answer": "ended"}))?;
    let ours = || time(|| client.call::<Start>(&params)?.completed());
    // Both resume, so that both send a token with every start.
    let mut resuming = Client::connect_or_start(&world.paths, &world.exe)?;
    let blocking = || time(|| resuming.call::<Start>(&params)?.completed());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let on_tokio = runtime.block_on(AsyncClient::connect_or_start(&world.paths, &world.exe))?;
    let asynchronous = || time(|| runtime.block_on(on_tokio.call::<Start>(&params))?.completed());
    let [rpc, bare, captured, own, blocking, asynchronous] = compare(
        subject.rounds(ROUNDS),
        TIMES,
        [
            Box::new(ours),
            Box::new(bare),
            Box::new(bare_captured),
            Box::new(own_spawn),
            Box::new(blocking),
            Box::new(asynchronous),
        ],
    )?;
    report.times(
        "start",
        "start to end of `true`, by RPC",
        rpc,
        ("bare spawn and wait", bare),
        Target::AtMost(1.5),
    );
    report.times_again("start", rpc, ("bare, output through pipes", captured));
    report.times(
        "start",
        "start to end of `true`, on the tokio client",
        asynchronous,
        ("the blocking client", blocking),
        Target::AtMost(1.25),
    );
    report.note(format!("belay-os's own spawn and wait, without a shim: {}", shown_time(own)));
    Ok(())
}

/// `posix_spawn` and `wait`, as the standard library does them.
pub(crate) fn bare() -> Outcome<Duration> {
    time(|| {
        let status = run::status(Command::new(TRUE).env_clear().stdin(Stdio::null()))?;
        if status.success() { Ok(()) } else { Err("true has failed".into()) }
    })
}

fn bare_captured() -> Outcome<Duration> {
    time(|| {
        let mut command = Command::new(TRUE);
        command.env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = run::start(&mut command)?;
        child.wait_with_output()?;
        Ok(())
    })
}

fn own_spawn() -> Outcome<Duration> {
    time(|| {
        let null = belay_os::fds::null()?;
        let argv = [CString::new(TRUE)?];
        let spec = SpawnSpec {
            argv: &argv,
            envp: &[],
            cwd: None,
            umask: None,
            rlimits: &[],
            stdin: null.as_fd(),
            stdout: null.as_fd(),
            stderr: null.as_fd(),
            cgroup: None,
            session: Session::NewGroup,
        };
        let spawned = spawn(&spec)?;
        rustix::process::waitid(WaitId::PidFd(spawned.pidfd.as_fd()), WaitIdOptions::EXITED)?;
        Ok(())
    })
}
