//! The next daemon: what ended meanwhile it learns, what runs it adopts, and there is never more than one of it.

use std::os::unix::net::UnixListener;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use belay_client::{Client, Message, decode};
use belay_protocol::Timestamp;
use belay_protocol::daemon::DaemonStatusResult;
use belay_protocol::event::EventKind;
use belay_protocol::life::ClockName;
use belay_protocol::methods::{TaskGet, TaskStart};
use belay_protocol::task::{Outcome, StopVerdict, TaskGetParams, TaskInfo, TaskStatus, TaskStopResult};
use belay_testkit::{LONG, Running, World, look_at, wait_until};

use serde_json::{Value, json};

use crate::patient::Patient;
use crate::support::{FOREVER, stop_of, world};

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Timestamp(i64::try_from(since.as_millis()).unwrap())
}

/// A task that ends this way as soon as it is told to, after the daemon has been killed. Says also when it ended, at the
/// earliest and at the latest.
fn end_without_daemon(end: &str, ttl_ms: Option<u64>) -> (World, TaskInfo, [Timestamp; 2]) {
    let world = world();
    let go = world.dir().join("go");
    let script = format!("echo a; until [ -e {} ]; do sleep 0.01; done; echo b >&2; {end}", go.display());
    let mut params = world.start_params(&["sh", "-c", &script]);
    params.ttl_ms = ttl_ms;
    let id = world.start(&params).id;
    world.kill_daemon();
    let before = now();
    std::fs::write(&go, "").unwrap();
    wait_until("a shim that has nothing more to hold", LONG, || match world.everybody().as_slice() {
        [] => Ok(()),
        left => Err(format!("{left:?}")),
    });
    let after = now();
    wait_until("a later moment", LONG, || if now() > after { Ok(()) } else { Err(after.to_string()) });
    let task = world.get(&id);
    (world, task, [before, after])
}

#[track_caller]
fn assert_told_once(world: &World, task: &TaskInfo, [before, after]: [Timestamp; 2]) {
    let ended = task.ended_at.unwrap();
    assert!(before <= ended && ended <= after, "it ended at {ended}, not between {before} and {after}");
    assert_eq!(world.logs(&task.id), b"a\nb\n");
    let ends = |world: &World| {
        world.events_of(&task.id).into_iter().filter(|kind| *kind == EventKind::TaskEnded).count()
    };
    assert_eq!(ends(world), 1);
    // And the daemon after that says the same, and nothing new.
    world.kill_daemon();
    assert_eq!(world.get(&task.id), *task);
    assert_eq!(ends(world), 1);
}

// proves D1, D2
#[test]
fn a_task_that_exits_while_no_daemon_runs_has_its_code_and_its_time() {
    let (world, task, when) = end_without_daemon("exit 5", None);
    let outcome = task.outcome.as_ref().unwrap();
    assert_eq!((task.status, outcome.exit_code(), outcome.signal()), (TaskStatus::Failed, Some(5), None));
    assert_told_once(&world, &task, when);
}

// proves D1, D2
#[test]
fn a_task_that_is_killed_while_no_daemon_runs_has_its_signal_and_its_time() {
    let (world, task, when) = end_without_daemon("ulimit -c 0; kill -SEGV $$", None);
    let outcome = task.outcome.as_ref().unwrap();
    let segv = Outcome::Signaled { signal: 11, core_dumped: false, capture: None };
    assert_eq!((task.status, outcome), (TaskStatus::Failed, &segv));
    assert_told_once(&world, &task, when);
}

// proves D1, D2, R4
#[test]
fn a_clock_that_runs_out_while_no_daemon_runs_is_told_as_such() {
    let (world, task, when) = end_without_daemon(&format!("sleep {FOREVER}"), Some(700));
    let outcome = task.outcome.as_ref().unwrap();
    let Outcome::TimedOut { clock, limit_ms, receipt, .. } = outcome else { panic!("{task:?}") };
    assert_eq!((task.status, *clock, *limit_ms), (TaskStatus::TimedOut, ClockName::Ttl, 700));
    assert_eq!(receipt.survivors, []);
    // Each moment is cut to a millisecond, and so is the clock.
    assert!(task.ended_at.unwrap().0 - task.started_at.unwrap().0 + 5 >= 700);
    assert_told_once(&world, &task, when);
}

// proves D4
#[test]
fn twenty_commands_at_once_start_one_daemon() {
    let world = world();
    let commands: Vec<Running> = (0..20).map(|_| world.spawn(["run", "--", "echo", "well"])).collect();
    for command in commands {
        assert_eq!(command.finish().ok().stdout, b"well\n");
    }
    assert_eq!(world.daemons().len(), 1);
    let starts = world.events().iter().filter(|event| event.event.kind() == EventKind::DaemonStarted).count();
    assert_eq!(starts, 1);
    assert_eq!(Patient::new(&world).tasks().len(), 20);
}

// proves D4
#[test]
fn a_second_daemon_leaves_the_home_to_the_first() {
    let world = world();
    let home = world.home().to_str().unwrap();
    let runtime = format!("{home}/run");
    let args = ["daemon", "--home", home, "--runtime-dir", &runtime];
    let both = [world.spawn(args), world.spawn(args)];
    for command in both {
        assert_eq!(command.finish().ok().stderr, b"");
    }
    let first = world.daemons();
    assert_eq!(first.len(), 1, "{first:?}");
    world.belay(args).ok();
    assert_eq!(world.daemons().iter().map(|seen| seen.identity).collect::<Vec<_>>(), [first[0].identity]);
    // Another home that is given the same runtime directory is told so.
    let other = world.dir().join("other");
    let refused = world.belay(["daemon", "--home", other.to_str().unwrap(), "--runtime-dir", &runtime]);
    let text = format!(
        "the runtime directory {runtime} is used by the daemon of another home; set BELAY_RUNTIME_DIR to another directory\n"
    );
    assert_eq!((refused.code, String::from_utf8(refused.stderr).unwrap()), (Some(4), text));
}

// proves D4
#[test]
fn what_a_dead_daemon_left_blocks_nobody() {
    let world = world();
    let run = world.home().join("run");
    world.belay(["up"]).ok();
    world.kill_daemon();
    assert!(run.join("daemon.sock").exists(), "a killed daemon leaves its socket");
    assert_eq!(world.belay(["run", "--", "echo", "well"]).ok().stdout, b"well\n");

    world.kill_daemon();
    std::fs::remove_file(run.join("daemon.sock")).unwrap();
    std::fs::write(run.join("daemon.sock"), "not a socket").unwrap();
    for dir in [world.home(), &run] {
        std::fs::write(dir.join("daemon.lock"), "1\n").unwrap();
    }
    assert_eq!(world.belay(["run", "--", "echo", "well"]).ok().stdout, b"well\n");
    // A socket to which nobody listens any more.
    world.kill_daemon();
    std::fs::remove_file(run.join("daemon.sock")).unwrap();
    drop(UnixListener::bind(run.join("daemon.sock")).unwrap());
    assert_eq!(world.belay(["run", "--", "echo", "well"]).ok().stdout, b"well\n");
}

fn start_many(world: &World, count: usize) -> Vec<TaskInfo> {
    let mut client = world.client();
    let params = world.start_params(&["sleep", FOREVER]);
    for _ in 0..count {
        client.send::<TaskStart>(&params).unwrap();
    }
    let answer = |client: &mut Client| match client.receive().unwrap() {
        Message::Response(response) => decode::<TaskStart>(&response.result.unwrap()).unwrap(),
        other => panic!("{other:?}"),
    };
    (0..count).map(|_| answer(&mut client)).collect()
}

// proves D1, D6, K5
#[test]
fn a_hundred_running_tasks_are_adopted() {
    const TASKS: usize = 100;
    let world = world();
    let started = start_many(&world, TASKS);
    world.kill_daemon();
    let tasks = Patient::new(&world).tasks();
    assert_eq!(tasks.len(), TASKS);
    for task in &started {
        let adopted = &tasks[&task.id];
        assert_eq!((adopted.status, adopted.pid), (TaskStatus::Running, task.pid));
        assert_eq!(look_at(task.pid.unwrap()).unwrap().cmdline, format!("sleep {FOREVER}"));
    }
    let adopted = world.events().iter().filter(|event| event.event.kind() == EventKind::TaskAdopted).count();
    assert_eq!(adopted, TASKS);

    let down = world.belay(["down", "--stop-tasks", "--json"]).ok().json::<Value>();
    let receipts: Vec<TaskStopResult> = serde_json::from_value(down["receipts"].clone()).unwrap();
    assert_eq!((receipts.len(), &down["left_running"]), (TASKS, &json!(0)));
    for result in &receipts {
        let receipt = result.receipt.as_ref().unwrap();
        assert_eq!((result.result, result.status), (StopVerdict::Accepted, Some(TaskStatus::Cancelled)));
        assert_eq!((receipt.survivors.as_slice(), receipt.empty_at.is_some()), (&[][..], true));
    }
    for task in &started {
        assert_eq!(look_at(task.pid.unwrap()), None);
    }
}

// proves D1, D7
#[test]
fn down_leaves_the_tasks_and_the_next_command_adopts_them() {
    let world = world();
    let task = start_many(&world, 1).remove(0);
    let down = world.belay(["down"]).ok();
    assert_eq!(down.line(), "The daemon has ended.\n1 task runs on; the next daemon adopts them.");
    assert_eq!(world.daemons(), []);
    let status = world.belay(["status"]);
    assert_eq!((status.code, status.stderr.as_slice()), (Some(1), &b"No daemon is running.\n"[..]));
    assert!(look_at(task.pid.unwrap()).is_some());
    let again = world.inspect(&task.id);
    assert_eq!((again.status, again.pid), (TaskStatus::Running, task.pid));
    assert_eq!(world.belay(["stop", &task.id]).code, Some(0));
    assert_eq!(world.belay(["down", "--stop-tasks"]).ok().line(), "The daemon has ended.");
}

/// They would start another daemon, only to ask it for an end that this one knows best.
// proves D7, K3
#[test]
fn down_with_its_tasks_tells_whoever_waits_and_no_other_daemon_comes() {
    let world = world();
    for _ in 0..10 {
        let foreground = world.spawn(["run", "--", "sh", "-c", &format!("echo a; sleep {FOREVER}")]);
        foreground.wait_for_stdout("the first line", |heard| heard == b"a\n");
        let task = Patient::new(&world).tasks().into_values().find(|task| !task.status.is_ended()).unwrap();
        let waiting = world.spawn(["wait", &task.id]);
        wait_until("the calls of both", LONG, || match world.status().calls_waiting {
            2 => Ok(()),
            count => Err(format!("{count} calls wait")),
        });
        let down = world.belay(["down", "--stop-tasks"]).ok();
        assert!(down.line().ends_with("The daemon has ended."), "{down}");
        for waiter in [foreground, waiting] {
            let said = waiter.finish();
            assert_eq!(said.code, Some(143), "{said}");
        }
        assert_eq!(world.daemons(), []);
    }
}

/// Whoever is connected besides us.
fn wait_for_other_clients(world: &World, count: u64) {
    wait_until("the right number of clients", LONG, || {
        let status: DaemonStatusResult = world.status();
        if status.clients == count + 1 { Ok(()) } else { Err(format!("{} clients", status.clients)) }
    });
}

// proves D7, W2
#[test]
fn a_killed_terminal_ends_no_task() {
    let world = world();
    let script = format!("echo a; sleep {FOREVER}; echo never");
    let foreground = world.spawn(["run", "--", "sh", "-c", &script]);
    foreground.wait_for_stdout("the first line", |heard| heard == b"a\n");
    let task = Patient::new(&world).tasks().into_values().next().unwrap();
    let following = world.spawn(["logs", "-f", &task.id]);
    following.wait_for_stdout("the first line", |heard| heard == b"a\n");
    let waiting = world.spawn(["wait", &task.id]);
    wait_for_other_clients(&world, 3);
    // A killed one is killed with SIGKILL when it is dropped: nothing is said in farewell.
    drop((foreground, following, waiting));
    wait_for_other_clients(&world, 0);
    let after = world.get(&task.id);
    assert_eq!((after.status, after.pid), (TaskStatus::Running, task.pid));
    assert!(look_at(task.pid.unwrap()).is_some());
    let stopped = world.stop(&stop_of(&task.id));
    assert_eq!((stopped.result, stopped.status), (StopVerdict::Accepted, Some(TaskStatus::Cancelled)));
}

// proves D2
#[test]
fn locks_that_outlive_their_daemon_are_waited_for() {
    let world = world();
    let task = world.run_detached(["sleep", FOREVER]);
    world.kill_daemon();
    // As a child does that the daemon was just starting, and that still shares its descriptors.
    let file = std::fs::File::options().write(true).open(world.home().join("daemon.lock")).unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let (paths, program) = (world.paths(), world.program().to_owned());
    let next = std::thread::spawn(move || belay_client::start_daemon(&paths, &program, &[]));
    // Sleeps because nothing must happen meanwhile. Shorter than the locks of a dead daemon are waited for.
    std::thread::sleep(Duration::from_millis(300));
    assert!(!next.is_finished(), "no daemon can serve while another has its locks");
    drop(file);
    next.join().unwrap().unwrap();
    let running =
        Client::connect(&world.paths()).unwrap().call::<TaskGet>(&TaskGetParams { id: task }).unwrap();
    assert_eq!(running.status, TaskStatus::Running);
    assert_eq!(world.daemons().len(), 1);
}
