//! The daemon dies between two steps of its work, at every place where that could matter, and the next one knows the
//! truth: nothing is lost, nothing is there twice.

use belay_client::{Client, ClientError};
use belay_daemon::host::CrashPoint;
use belay_os::process::Identity;
use belay_protocol::ErrorKind;
use belay_protocol::event::EventKind;
use belay_protocol::methods::{Method, TaskGet, TaskRemove, TaskStart, TaskStop};
use belay_protocol::output::StreamName;
use belay_protocol::task::{
    OutcomeKind, StopVerdict, TaskGetParams, TaskInfo, TaskRemoveParams, TaskStartParams, TaskStatus,
};
use belay_testkit::{LONG, World, is_alive, look_at, wait_until};

use crate::patient::Patient;
use crate::support::{FOREVER, refused, stop_of, world};

/// A world whose daemon dies at this point. The next one does not.
fn doomed(point: &str) -> World {
    let world = world();
    world
        .belay_with(["up"], |command| {
            command.env("BELAY_CRASH_AT", point);
        })
        .ok();
    world
}

/// Asks the doomed daemon, which may answer before it dies; returns when it is dead.
fn last_call<M: Method>(world: &World, params: &M::Params) -> Option<M::Result> {
    let daemon = world.daemon().unwrap().identity;
    let answer = match Client::connect(&world.paths()).unwrap().call::<M>(params) {
        Ok(answer) => Some(answer),
        Err(ClientError::Rpc(error)) => panic!("refused: {error}"),
        Err(_) => None,
    };
    wait_for_death(daemon);
    answer
}

#[track_caller]
fn wait_for_death(daemon: Identity) {
    wait_until("the daemon's death", LONG, || {
        if is_alive(daemon) { Err(format!("{:?}", look_at(daemon.pid))) } else { Ok(()) }
    });
}

fn with_token(world: &World, script: &str) -> TaskStartParams {
    let mut params = world.start_params(&["sh", "-c", script]);
    params.token = Some("once".to_owned());
    params
}

/// The one task that there is.
#[track_caller]
fn only_task(world: &World) -> TaskInfo {
    let tasks: Vec<TaskInfo> = Patient::new(world).tasks().into_values().collect();
    assert_eq!(tasks.len(), 1, "{tasks:?}");
    tasks.into_iter().next().unwrap()
}

#[track_caller]
fn assert_one_life(world: &World, id: &str) {
    let mut events = world.events_of(id);
    events.retain(|kind| *kind != EventKind::TaskAdopted);
    assert_eq!(
        events,
        [EventKind::TaskCreated, EventKind::TaskStarted, EventKind::TaskLeaderExited, EventKind::TaskEnded]
    );
    let numbers: Vec<u64> = world.events().iter().map(|event| event.seq).collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
}

/// A short task whose daemon dies at this point of it.
fn a_short_task_ends_truly(point: &str) -> World {
    let world = doomed(point);
    let params = with_token(&world, "echo out; echo err >&2; exit 7");
    last_call::<TaskStart>(&world, &params);
    let id = only_task(&world).id;
    let task = world.wait_ended(&id);
    let outcome = task.outcome.as_ref().unwrap();
    assert_eq!(
        (task.status, outcome.kind(), outcome.exit_code()),
        (TaskStatus::Failed, OutcomeKind::Exited, Some(7))
    );
    assert_eq!((outcome.receipt(), outcome.capture()), (None, None));
    let mut patient = Patient::new(&world);
    assert_eq!(patient.output(&id, StreamName::Stdout), b"out\n");
    assert_eq!(patient.output(&id, StreamName::Stderr), b"err\n");
    assert_one_life(&world, &id);
    let again = world.start(&params);
    assert_eq!((again.id, again.status), (id, TaskStatus::Failed), "the token is known");
    only_task(&world);
    world
}

// proves D1, S1, S2
#[test]
fn before_create() {
    let world = doomed("before-create");
    let mark = world.dir().join("ran");
    let params = with_token(&world, &format!(": >{}; exit 0", mark.display()));
    assert_eq!(last_call::<TaskStart>(&world, &params), None);
    assert_eq!(Patient::new(&world).tasks().len(), 0);
    assert!(!mark.exists());
    // The retry is the first that counts.
    let id = world.start(&params).id;
    assert_eq!(world.wait_ended(&id).status, TaskStatus::Completed);
    assert!(mark.exists());
    assert_one_life(&world, &only_task(&world).id);
}

// proves D1, D2, S1, S2
#[test]
fn after_create() {
    let world = doomed("after-create");
    let mark = world.dir().join("ran");
    let params = with_token(&world, &format!(": >{}; exit 0", mark.display()));
    assert_eq!(last_call::<TaskStart>(&world, &params), None);
    let id = only_task(&world).id;
    assert_eq!(world.get(&id).status, TaskStatus::Queued, "nobody has its environment");
    assert!(!mark.exists());
    // Said again, it goes on where it was.
    assert_eq!(world.start(&params).id, id);
    assert_eq!(world.wait_ended(&id).status, TaskStatus::Completed);
    assert!(mark.exists());
    assert_one_life(&world, &id);
    assert_eq!(
        world.events_of(&id),
        [EventKind::TaskCreated, EventKind::TaskStarted, EventKind::TaskLeaderExited, EventKind::TaskEnded]
    );
}

// proves D1, D2, S2
#[test]
fn after_start() {
    a_short_task_ends_truly("after-start");
}

// proves D1, D2, S2
#[test]
fn before_life() {
    a_short_task_ends_truly("before-life");
}

// proves D1, D2, S2
#[test]
fn after_life() {
    a_short_task_ends_truly("after-life");
}

// proves D1, D2, S2
#[test]
fn before_end() {
    a_short_task_ends_truly("before-end");
}

// proves D1, D2, S2
#[test]
fn after_end() {
    a_short_task_ends_truly("after-end");
}

// proves D1, D2, S2
#[test]
fn after_ack() {
    a_short_task_ends_truly("after-ack");
}

// proves D1, D2, S2
#[test]
fn before_flush() {
    a_short_task_ends_truly("before-flush");
}

// proves D1, D2, S2
#[test]
fn after_flush() {
    a_short_task_ends_truly("after-flush");
}

// proves D1, S2, E6
#[test]
fn panic_of_the_daemon_is_a_crash() {
    let world = a_short_task_ends_truly("before-end:0:panic");
    let log = std::fs::read_to_string(world.home().join("daemon.log")).unwrap();
    let panics: Vec<&str> = log.lines().filter(|line| line.contains(" ERROR ")).collect();
    assert_eq!(panics.len(), 1, "{log}");
    assert!(panics[0].contains(" ERROR panic: crash point before-end thread="), "{log}");
}

/// The second life event of this task is the end of its leader, which others outlive.
fn a_leader_that_left_is_known(point: &str) {
    let world = doomed(point);
    let params = with_token(&world, &format!("sleep {FOREVER} & exit 3"));
    last_call::<TaskStart>(&world, &params);
    let id = only_task(&world).id;
    let task = world.get(&id);
    let leader = task.leader.as_ref().unwrap();
    assert_eq!((task.status, leader.exit_code, leader.signal), (TaskStatus::Running, Some(3), None));
    let living: Vec<String> = task.processes.unwrap().into_iter().map(|process| process.command).collect();
    assert_eq!(living, [format!("sleep {FOREVER}")]);
    let events = world.events_of(&id);
    let count = |kind: EventKind| events.iter().filter(|event| **event == kind).count();
    assert_eq!((count(EventKind::TaskStarted), count(EventKind::TaskLeaderExited)), (1, 1), "{events:?}");
    let stopped = world.stop(&stop_of(&id));
    assert_eq!((stopped.result, stopped.status), (StopVerdict::Accepted, Some(TaskStatus::Cancelled)));
}

// proves D1, D2
#[test]
fn before_life_of_a_task_whose_leader_leaves() {
    a_leader_that_left_is_known("before-life:1");
}

// proves D1, D2
#[test]
fn after_life_of_a_task_whose_leader_leaves() {
    a_leader_that_left_is_known("after-life:1");
}

// proves D1, D2, K4
#[test]
fn after_stop_sent() {
    let world = doomed("after-stop-sent");
    let id = world.start(&with_token(&world, &format!("sleep {FOREVER} & sleep {FOREVER}"))).id;
    let mut order = stop_of(&id);
    order.reason = Some("enough".to_owned());
    assert_eq!(last_call::<TaskStop>(&world, &order), None);
    let task = world.wait_ended(&id);
    let outcome = task.outcome.as_ref().unwrap();
    assert_eq!((task.status, outcome.reason()), (TaskStatus::Cancelled, Some("enough")));
    let receipt = outcome.receipt().unwrap();
    assert_eq!((receipt.survivors.as_slice(), receipt.empty_at.is_some()), (&[][..], true));
    assert_eq!(receipt.signals.iter().map(|sent| sent.processes).collect::<Vec<_>>(), [3]);
    let again = world.stop(&order);
    assert_eq!((again.result, again.receipt.as_ref()), (StopVerdict::AlreadyEnded, Some(receipt)));
    let mut events = world.events_of(&id);
    events.retain(|kind| *kind != EventKind::TaskAdopted && *kind != EventKind::TaskLeaderExited);
    assert_eq!(
        events,
        [EventKind::TaskCreated, EventKind::TaskStarted, EventKind::TaskStopping, EventKind::TaskEnded]
    );
}

fn ended_with_output(world: &World) -> String {
    let id = world.start(&with_token(world, "echo kept")).id;
    world.wait_ended(&id);
    id
}

// proves D1, D8
#[test]
fn before_remove() {
    let world = doomed("before-remove");
    let id = ended_with_output(&world);
    let dir = world.home().join("tasks").join(&id);
    assert_eq!(last_call::<TaskRemove>(&world, &TaskRemoveParams { id: id.clone() }), None);
    assert_eq!(world.logs(&id), b"kept\n", "it is there, whole");
    assert_eq!(world.client().call::<TaskRemove>(&TaskRemoveParams { id: id.clone() }).unwrap().id, id);
    assert_eq!(Patient::new(&world).tasks().len(), 0);
    assert!(!dir.exists());
    assert_eq!(world.events_of(&id).iter().filter(|kind| **kind == EventKind::TaskRemoved).count(), 1);
}

// proves D1, D8
#[test]
fn after_remove() {
    let world = doomed("after-remove");
    let id = ended_with_output(&world);
    let dir = world.home().join("tasks").join(&id);
    assert!(dir.exists());
    assert_eq!(last_call::<TaskRemove>(&world, &TaskRemoveParams { id: id.clone() }), None);
    let error = refused(world.client().call::<TaskGet>(&TaskGetParams { id: id.clone() }));
    assert_eq!(error.data.kind, ErrorKind::NotFound, "it is gone, whole");
    wait_until("no directory of a task that is not there", LONG, || {
        if dir.exists() { Err(format!("{:?}", std::fs::read_dir(&dir))) } else { Ok(()) }
    });
    assert_eq!(world.events_of(&id).iter().filter(|kind| **kind == EventKind::TaskRemoved).count(), 1);
}

// proves D1, F3
#[test]
fn a_caller_in_the_foreground_does_not_notice() {
    for point in CrashPoint::ALL.map(CrashPoint::name) {
        if matches!(point, "after-stop-sent" | "before-remove" | "after-remove") {
            // Nothing is stopped or removed here.
            continue;
        }
        let world = doomed(point);
        let daemon = world.daemon().unwrap().identity;
        let told = world.belay(["run", "--", "sh", "-c", "echo a; echo b >&2; sleep 0.1; echo c; exit 9"]);
        assert_eq!((told.code, told.line().as_str()), (Some(9), "a\nc"), "{point}: {told}");
        assert_eq!(told.stderr, b"b\n", "{point}");
        // Some points come after the answer: it dies all the same.
        wait_for_death(daemon);
    }
}

// proves D1
#[test]
fn every_point_has_a_test() {
    let tested = [
        "before-create",
        "after-create",
        "after-start",
        "before-life",
        "after-life",
        "before-end",
        "after-end",
        "after-ack",
        "after-stop-sent",
        "before-remove",
        "after-remove",
        "before-flush",
        "after-flush",
    ];
    assert_eq!(CrashPoint::ALL.map(CrashPoint::name), tested);
}
