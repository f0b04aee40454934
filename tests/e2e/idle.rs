//! A daemon and shims that have nothing to do: they do nothing at all, and cost no battery.

use std::collections::BTreeMap;
use std::time::Duration;

use belay_os::signal::Signal;
use belay_protocol::task::{TaskStatus, TaskStopParams};
use belay_testkit::{LONG, World, wait_until};
use serde_json::json;

use crate::half_closed::ask_and_finish;
use crate::support::{FOREVER, builder, running, stop_of, world};

/// How often each thread of these processes has been given a processor or has left it, and for how long it had one:
/// whoever turns in circles leaves it as rarely as whoever sleeps.
fn work(pids: &[i32]) -> BTreeMap<String, (u64, u64)> {
    let mut all = BTreeMap::new();
    for pid in pids {
        // One that has ended meanwhile was needed no longer.
        let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { continue };
        for thread in threads.flatten() {
            let status = std::fs::read_to_string(thread.path().join("status")).unwrap_or_default();
            let counts = status.lines().filter(|line| line.contains("ctxt_switches:"));
            let sum = counts.filter_map(|line| line.rsplit('\t').next()?.parse::<u64>().ok()).sum();
            let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
            let ticks = fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
            all.insert(thread.path().to_str().unwrap().to_owned(), (sum, ticks));
        }
    }
    all
}

/// Those that were on a processor since the first look. A thread that has ended meanwhile was needed no longer.
fn woken(before: &BTreeMap<String, (u64, u64)>, after: &BTreeMap<String, (u64, u64)>) -> Vec<String> {
    let is_woken = |(thread, did): &(&String, &(u64, u64))| before.get(*thread) != Some(*did);
    after.iter().filter(is_woken).map(|(thread, did)| format!("{thread}: {did:?}")).collect()
}

fn while_a_task_runs_nobody_wakes(world: &World, line: &str) {
    let id = world.run_detached(["sh", "-c", line, FOREVER]);
    world.wait_for_output(&id, "ready", |said| said == b"ready\n");
    nobody_wakes(&ours(world));
}

/// The daemon and the shims.
fn ours(world: &World) -> Vec<i32> {
    let ours: Vec<i32> =
        world.shims().into_iter().chain(world.daemon()).map(|seen| seen.identity.pid).collect();
    assert!(ours.len() >= 2, "a daemon and a shim: {ours:?}");
    ours
}

/// Not at once: what was asked for last has a deadline of its own, which is looked at once more when it is long met.
fn nobody_wakes(pids: &[i32]) {
    wait_until("rest", LONG, || {
        let before = work(pids);
        // Sleeps because rest shows only over a time in which nothing happens, and whoever looks around now and then does so
        // within this time.
        std::thread::sleep(Duration::from_millis(2_500));
        let woken = woken(&before, &work(pids));
        if woken.is_empty() { Ok(()) } else { Err(format!("{woken:?}, before: {before:?}")) }
    });
}

const ONE: &str = "echo ready; exec sleep \"$0\"";
/// The first process is gone, and its child is not.
const LEFT_BEHIND: &str = "sleep \"$0\" & echo ready";

// proves D9
#[test]
fn while_a_task_runs_and_nobody_asks_nobody_wakes() {
    while_a_task_runs_nobody_wakes(&world(), ONE);
}

// proves D9
#[test]
fn without_a_cgroup_nobody_wakes_either() {
    while_a_task_runs_nobody_wakes(&builder().env("BELAY_CGROUP", "off").build(), ONE);
}

// proves D9
#[test]
fn nobody_wakes_for_what_a_command_left_behind() {
    while_a_task_runs_nobody_wakes(&world(), LEFT_BEHIND);
}

// proves D9
#[test]
fn nobody_wakes_for_what_a_command_left_behind_without_a_cgroup() {
    while_a_task_runs_nobody_wakes(&builder().env("BELAY_CGROUP", "off").build(), LEFT_BEHIND);
}

// proves D9
#[test]
fn nobody_wakes_while_tasks_wait_for_something() {
    let world = world();
    let detached = |args: &[&str]| {
        let start = ["run", "-d"].iter().chain(args);
        world.belay(start).ok().line()
    };
    // One that does not heed its stop, of which the first process is dead already.
    let deaf = "(trap '' TERM; echo ready; while :; do sleep 1000; done) & wait";
    let stopping = detached(&["--grace", "500s", "-c", deaf]);
    world.wait_for_output(&stopping, "ready", |said| said == b"ready\n");
    world.stop(&TaskStopParams { wait: false, ..stop_of(&stopping) });
    // One between two attempts, one at a terminal, one that waits for its lane, and one with a reader that wants more.
    let resting = detached(&["--retry", "1", "--retry-delay", "500s", "false"]);
    detached(&["--pty", "sleep", FOREVER]);
    detached(&["--lane", "narrow", "sleep", FOREVER]);
    let queued = detached(&["--lane", "narrow:queue", "sleep", FOREVER]);
    let followed = detached(&["-c", "sleep 1000 & echo ready"]);
    let follower = world.spawn(["logs", "-f", &followed]);
    follower.wait_for_stdout("what there is", |said| said == b"ready\n");
    let is = |id: &str| world.get(id).status;
    wait_until("each in its state", LONG, || {
        let now = [is(&stopping), is(&resting), is(&queued), is(&followed)];
        let right = [TaskStatus::Stopping, TaskStatus::Retrying, TaskStatus::Queued, TaskStatus::Running];
        if now == right { Ok(()) } else { Err(format!("{now:?}")) }
    });
    nobody_wakes(&ours(&world));
    follower.signal(Signal::TERM);
    follower.finish();
}

// proves D9
#[test]
fn nobody_wakes_for_a_client_that_has_said_all_and_waits() {
    let world = world();
    let id = world.run_detached(["sh", "-c", ONE, FOREVER]);
    world.wait_for_output(&id, "ready", |said| said == b"ready\n");
    let mut waiting = ask_and_finish(&world, &[("task/wait", json!({ "id": id }))]);
    nobody_wakes(&ours(&world));
    world.stop(&stop_of(&id));
    assert_eq!(waiting.hear()["result"]["task"]["status"], "cancelled");
}

/// Input for a command that does not read waits, and nobody asks again and again whether it does by now. When it does, every byte
/// arrives, once.
// proves D9, W6
#[test]
fn nobody_wakes_for_a_command_that_does_not_read() {
    let world = world();
    // More than fits into everything in between.
    let input: Vec<u8> = (0..600_000_u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(world.dir().join("input"), &input).unwrap();
    let go = world.dir().join("go");
    world.shell(&format!("mkfifo {}", go.display())).ok();
    // Both by itself and while it waits for its turn.
    let line = |lane: &str, first: &str| {
        let (program, dir) = (world.program().display(), world.dir().display());
        format!("exec {program} run --stdin --lane {lane} -- sh -c '{first}exec cat' < {dir}/input")
    };
    let reading = world.shell_in_background(&line("seat", &format!("read -r go < {}; ", go.display())));
    let first = running(&world).id;
    let queued = world.shell_in_background(&line("seat:queue", ""));
    wait_until("one that waits", LONG, || {
        let waiting = world.status().tasks_live;
        if waiting == 2 { Ok(()) } else { Err(waiting.to_string()) }
    });
    let mut everybody = ours(&world);
    everybody.extend([reading.pid(), queued.pid()]);
    nobody_wakes(&everybody);
    std::fs::write(&go, "\n").unwrap();
    for run in [reading, queued] {
        let said = run.finish();
        assert_eq!((said.code, said.stdout == input), (Some(0), true), "{} bytes", said.stdout.len());
    }
    assert_eq!(world.get(&first).status, TaskStatus::Completed);
}

/// Neither a stop nor a detach nor the end of the daemon waits for a command that does not read.
// proves D9, W6, K1
#[test]
fn whoever_waits_to_write_hears_at_once_of_everything_else() {
    let world = world();
    std::fs::write(world.dir().join("input"), vec![b'x'; 3_000_000]).unwrap();
    let begin = || {
        let (program, dir) = (world.program().display(), world.dir().display());
        let line = format!("exec {program} run --stdin -- sleep {FOREVER} < {dir}/input");
        let run = world.shell_in_background(&line);
        let id = running(&world).id;
        wait_until("a write that waits", LONG, || {
            let waiting = world.status().calls_waiting;
            // One is the start itself, until it has ended.
            if waiting == 2 { Ok(()) } else { Err(waiting.to_string()) }
        });
        (run, id)
    };
    let (run, id) = begin();
    world.stop(&stop_of(&id));
    assert_eq!(run.finish().code, Some(143));
    let (run, id) = begin();
    world.belay(["detach", &id]).ok();
    assert_eq!(run.finish().code, Some(0));
    world.stop(&stop_of(&id));
    // The next daemon is given what the last one had no room for, and its caller waits on.
    let (run, id) = begin();
    world.belay(["down"]).ok();
    wait_until("a write that waits again", LONG, || match world.status().calls_waiting {
        2 => Ok(()),
        others => Err(others.to_string()),
    });
    world.stop(&stop_of(&id));
    assert_eq!(run.finish().code, Some(143));
}

// proves D9
#[test]
fn whoever_holds_a_session_wakes_only_to_renew_it() {
    let world = world();
    // It is renewed every 1000 seconds.
    let holder =
        world.spawn(["sessions", "run", "--lease", "3000s", "--", "sh", "-c", "echo ready; exec sleep 1000"]);
    holder.wait_for_stdout("the command", |said| said == b"ready\n");
    nobody_wakes(&[holder.pid()]);
    holder.signal(Signal::TERM);
    assert_eq!(holder.finish().code, Some(143));
}
