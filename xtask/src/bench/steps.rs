//! `steps`: the longest step of the daemon's deciding thread under a mixed load. The daemon measures its steps by itself; only
//! a binary that reports them has this work.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use belay_client::Client;
use belay_protocol::daemon::{DaemonGcParams, DaemonStatusParams, StepCostInfo};
use belay_protocol::methods::{OutputFollow, TaskStop};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::json;

use super::bystander::longest_wait;
use super::filled::{EVENTS, TASKS, fill_world};
use super::follow::idle_follower;
use super::report::{Report, Target};
use super::start::TRUE;
use super::subject::Subject;
use super::wire::{DaemonStatus, Gc, Start};
use super::world::{World, kill_params, start_params};
use crate::run::{Outcome, wait_until};

/// How long the load lasts.
const LOAD: Duration = Duration::from_secs(20);
/// When the ended tasks are collected, after the follower of events has begun.
const GC_AFTER: Duration = Duration::from_secs(3);
const GC_LIMIT: Duration = Duration::from_mins(2);
/// Tasks below the one with a budget; with the shell of each they hold 5,000 processes.
const CHILD_TASKS: usize = 80;
const CHILD_PROCESSES: usize = 62;
const SHOWN_KINDS: usize = 12;
/// Much output, but not all of it: the disk is not what is measured.
const FLOOD: &str = "while :; do head -c 2000000 /dev/zero | tr '\\0' x; sleep 0.01; done";
const FLOOD_BYTES: u64 = 64 << 20;

pub(crate) fn run(subject: &Subject, report: &mut Report) -> Outcome {
    let world = fill_world(World::new(subject)?, TASKS, EVENTS)?;
    fill_budget(&world)?;
    let ((), wait) = longest_wait(&world, || load(&world))?;
    let params = DaemonStatusParams { step_kinds: true };
    let steps = world.connect()?.call::<DaemonStatus>(&params)?.steps;
    let steps = steps.ok_or("the daemon does not report its steps")?;
    let [cpu, wall] = [steps.longest_cpu_us, steps.longest_wall_us].map(Duration::from_micros);
    let cpu_ms = cpu.as_secs_f64() * 1e3;
    let what = "longest step under a mixed load, processor time (ms)";
    report.alone("steps", what, cpu.into(), cpu_ms, Target::AtMost(5.0));
    report.value("steps", "longest step under a mixed load, elapsed time", wall.into());
    report.value("steps", "longest `daemon/status` of another client meanwhile", wait.into());
    report.note(longest_kinds(&steps));
    Ok(())
}

/// A task with a budget for everything below it, and tasks below it that hold many processes.
fn fill_budget(world: &World) -> Outcome {
    let file = world.paths.home.join("token");
    let line = format!("echo $BELAY_TOKEN > {}; exec sleep 10000", file.display());
    let budgets = json!({"memory_bytes": 1_u64 << 40, "processes": 1_u64 << 30});
    let params = start_params(&["/bin/sh", "-c", &line], &json!({"detached": true, "budgets": budgets}))?;
    world.connect()?.call::<Start>(&params)?;
    let token = || std::fs::read_to_string(&file).unwrap_or_default();
    if !wait_until(Duration::from_secs(10), || Ok(token().ends_with('\n')))? {
        return Err("the task has not written its token".into());
    }
    let mut client = world.connect_as_task(token().trim())?;
    let count = CHILD_PROCESSES - 1;
    let line = format!("i=0; while [ $i -lt {count} ]; do sleep 10000 & i=$((i+1)); done; wait");
    let params = start_params(&["/bin/sh", "-c", &line], &json!({"detached": true}))?;
    for _ in 0..CHILD_TASKS {
        client.call::<Start>(&params)?;
    }
    Ok(())
}

/// Everything at once: short tasks by two clients, a flood of output with a follower, a filtered follower of a long journal,
/// and the removal of many ended tasks.
fn load(world: &World) -> Outcome {
    let is_over = AtomicBool::new(false);
    let mut client = world.connect()?;
    let flood = json!({"detached": true, "output_limit_bytes": FLOOD_BYTES});
    let flood = client.call::<Start>(&start_params(&["/bin/sh", "-c", FLOOD], &flood)?)?.id;
    let result = std::thread::scope(|scope| {
        let threads = [
            scope.spawn(|| start_until(world, &is_over)),
            scope.spawn(|| start_until(world, &is_over)),
            scope.spawn(|| read_output_until(world, &flood, &is_over)),
            scope.spawn(|| {
                let follower = idle_follower(world)?;
                discard_until(&follower, &is_over)
            }),
            scope.spawn(|| {
                std::thread::sleep(GC_AFTER);
                let params = DaemonGcParams { all: true, dry_run: false };
                world.connect()?.call_by::<Gc>(&params, Some(Instant::now() + GC_LIMIT))?;
                Ok(())
            }),
        ];
        std::thread::sleep(LOAD);
        is_over.store(true, Ordering::Relaxed);
        let joined =
            threads.map(|thread| thread.join().unwrap_or_else(|_| Err("a thread has panicked".into())));
        joined.into_iter().collect::<Outcome<Vec<()>>>()
    });
    client.call::<TaskStop>(&kill_params(&flood)?)?;
    result.map(drop)
}

fn start_until(world: &World, is_over: &AtomicBool) -> Outcome {
    let mut client = world.connect()?;
    let params = start_params(&[TRUE], &json!({"answer": "ended"}))?;
    while !is_over.load(Ordering::Relaxed) {
        client.call::<Start>(&params)?.completed()?;
    }
    Ok(())
}

fn read_output_until(world: &World, task: &str, is_over: &AtomicBool) -> Outcome {
    let mut follower = world.connect()?;
    follower.send::<OutputFollow>(&serde_json::from_value(json!({"id": task}))?)?;
    discard_until(&follower, is_over)
}

/// Reads and discards: a client that parsed everything would take a processor from the daemon.
fn discard_until(client: &Client, is_over: &AtomicBool) -> Outcome {
    let mut buffer = vec![0; 256 << 10];
    let pause = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
    while !is_over.load(Ordering::Relaxed) {
        let ready = poll(&mut [PollFd::new(client, PollFlags::IN)], Some(&pause))?;
        if ready > 0 && rustix::io::read(client, &mut buffer)? == 0 {
            return Err("the daemon has closed the connection".into());
        }
    }
    Ok(())
}

/// The kinds of input with the longest steps, for the search for the cause.
fn longest_kinds(steps: &StepCostInfo) -> String {
    let mut kinds = steps.kinds.clone();
    kinds.sort_by_key(|kind| std::cmp::Reverse(kind.longest_cpu_us));
    let shown = kinds.iter().take(SHOWN_KINDS).map(|kind| {
        let (cpu_us, wall_us) = (kind.longest_cpu_us, kind.longest_wall_us);
        format!("{} {cpu_us}/{wall_us} ({})", kind.kind, kind.count)
    });
    let shown: Vec<String> = shown.collect();
    format!(
        "longest of {} steps by kind, processor time/elapsed time in µs (count): {}",
        steps.count,
        shown.join(", ")
    )
}
