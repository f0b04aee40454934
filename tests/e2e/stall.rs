//! Tasks that should get on: one that does not is stalled, with evidence, until it does; one that works or waits for another
//! task is not; and nobody looks who was not asked to.

use std::time::Duration;

use belay_protocol::error::ErrorKind;
use belay_protocol::event::{Event, EventKind};
use belay_protocol::life::ClockName;
use belay_protocol::methods::TaskStart;
use belay_protocol::task::{
    OnStall, Outcome, StallInfo, StallParams, TaskHealth, TaskInfo, TaskStartParams, TaskStatus,
};
use belay_testkit::{LONG, World, wait_until};

use crate::support::{FOREVER, refused, stop_of, world};

#[track_caller]
fn wait_for_health(world: &World, id: &str, health: TaskHealth) -> TaskInfo {
    wait_until("the health", LONG, || {
        let task = world.get(id);
        if task.health == health { Ok(task) } else { Err(format!("{task:?}")) }
    })
}

fn times(world: &World, id: &str, kind: EventKind) -> usize {
    world.events_of(id).iter().filter(|found| **found == kind).count()
}

/// Long enough for a few looks.
fn let_time_pass(world: &World) {
    world.belay(["run", "--", "sleep", "1"]).ok();
}

// proves R7
#[test]
fn a_silent_task_is_stalled_with_evidence_until_it_writes() {
    let world = world();
    let script = format!("echo begun; read word; echo got $word; sleep {FOREVER}");
    let id = world.run_detached(["--stdin", "--stall", "300ms", "--", "sh", "-c", &script]);
    world.wait_for_output(&id, "its beginning", |said| said == b"begun\n");
    let task = wait_until("its stall", LONG, || {
        let task = world.get(&id);
        let stalled = task.stall.as_ref().is_some_and(|stall| stall.evidence.output_bytes == 6);
        if stalled { Ok(task) } else { Err(format!("{task:?}")) }
    });
    assert_eq!(
        (task.status, task.health),
        (TaskStatus::Running, TaskHealth::Stalled),
        "it is told, and goes on"
    );
    let StallInfo { since, evidence } = *task.stall.unwrap();
    assert!(evidence.silent_ms >= 300 && evidence.cpu_ms < 300, "{evidence:?}");
    assert_eq!(evidence.more, 0);
    let [process] = evidence.processes.as_slice() else { panic!("{evidence:?}") };
    assert_eq!((Some(process.pid), process.state.as_str()), (task.pid, "S"));
    assert_eq!(process.command, format!("sh -c {script}"));
    let info =
        world.events().into_iter().rfind(|event| event.event.kind() == EventKind::TaskStalled).unwrap();
    let expected = Event::TaskStalled {
        task: id.clone(),
        session: task.session,
        since,
        evidence: evidence.clone(),
        policy: Some(OnStall::Tell),
    };
    assert_eq!(info.event, expected);
    let listed = world.belay(["ps"]).ok();
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(listed.lines().nth(1).unwrap().contains("  running (stalled)  "), "{listed}");

    let recovered = times(&world, &id, EventKind::TaskRecovered);
    world.belay(["send", &id, "it"]).ok();
    world.wait_for_output(&id, "the answer", |said| said == b"begun\ngot it\n");
    // Then it sleeps.
    let more = |kind: EventKind, before: usize| {
        wait_until(kind.name(), LONG, || match times(&world, &id, kind) {
            found if found == before + 1 => Ok(()),
            found => Err(format!("{found}")),
        });
    };
    more(EventKind::TaskRecovered, recovered);
    more(EventKind::TaskStalled, recovered + 1);
    assert_eq!(world.get(&id).health, TaskHealth::Stalled);
    let stopped = world.stop(&stop_of(&id));
    assert_eq!(stopped.status, Some(TaskStatus::Cancelled));
    let ended = world.get(&id);
    assert_eq!((ended.health, ended.stall), (TaskHealth::Ok, None), "what has ended does not stall");
}

// proves R7
#[test]
fn a_silent_task_that_works_is_not_stalled_by_itself_or_by_others() {
    let world = world();
    let alone = "while :; do :; done";
    // Nobody of these lives until the next look; what they have used is not lost.
    let by_others = "while :; do sh -c 'i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done'; done";
    let start = |script| world.run_detached(["--stall", "600ms:stop", "--", "sh", "-c", script]);
    let tasks = [alone, by_others].map(start);
    let_time_pass(&world);
    let_time_pass(&world);
    for id in tasks {
        let task = world.get(&id);
        assert_eq!((task.status, task.health), (TaskStatus::Running, TaskHealth::Ok));
        assert_eq!(times(&world, &id, EventKind::TaskStalled), 0);
        assert!(task.clocks.stall.unwrap().remaining_ms.is_some(), "it is looked at");
    }
}

// proves R7
#[test]
fn a_stalled_task_is_stopped_if_it_shall_be() {
    let world = world();
    let id = world.run_detached(["--stall", "300ms:stop", "--", "sleep", FOREVER]);
    let task = world.wait_ended(&id);
    let Some(Outcome::TimedOut { clock, limit_ms, reason, receipt, .. }) = task.outcome else {
        panic!("{task:?}")
    };
    assert_eq!((task.status, clock, limit_ms), (TaskStatus::TimedOut, ClockName::Stall, 300));
    let reason = reason.unwrap();
    let seen = format!(" ms of processor time used: {} (S) sleep {FOREVER}", task.pid.unwrap());
    assert!(reason.starts_with("nothing written in ") && reason.ends_with(&seen), "{reason}");
    assert_eq!((receipt.actor.as_str(), receipt.reason), ("clock:stall", Some(reason)));
    assert_eq!(world.belay(["wait", &id]).code, Some(124));
    let told = [
        EventKind::TaskCreated,
        EventKind::TaskStarted,
        EventKind::TaskStalled,
        EventKind::TaskStopping,
        EventKind::TaskLeaderExited,
        EventKind::TaskEnded,
    ];
    assert_eq!(world.events_of(&id), told);
}

/// A task that waits for one that it has started, which sleeps; then it sleeps itself.
fn parent_and_child(world: &World) -> (String, TaskInfo) {
    let belay = world.program().display();
    let script = format!("{belay} run --stall 300ms -- sleep {FOREVER}; sleep {FOREVER}");
    let parent = world.run_detached(["--stall", "900ms", "--", "sh", "-c", &script]);
    let child = wait_until("the child", LONG, || {
        let tasks: Vec<TaskInfo> = world.belay(["ps", "--json"]).ok().json_lines();
        let found = tasks.into_iter().find(|task| task.parent.as_deref() == Some(parent.as_str()));
        found.ok_or_else(String::new)
    });
    (parent, child)
}

// proves R7
#[test]
fn a_task_that_waits_for_another_is_excused_and_that_one_is_not() {
    let world = world();
    let (parent, child) = parent_and_child(&world);
    wait_for_health(&world, &child.id, TaskHealth::Stalled);
    let_time_pass(&world);
    let_time_pass(&world);
    assert_eq!(world.get(&parent).health, TaskHealth::Ok);
    world.stop(&stop_of(&child.id));
    // Now it has nothing to wait for.
    wait_for_health(&world, &parent, TaskHealth::Stalled);
}

// proves R7, D1
#[test]
fn what_is_stalled_and_what_is_excused_survives_the_daemon() {
    let world = world();
    let (parent, child) = parent_and_child(&world);
    let before = wait_for_health(&world, &child.id, TaskHealth::Stalled);
    world.kill_daemon();
    let after = world.get(&child.id);
    assert_eq!((after.health, &after.stall), (TaskHealth::Stalled, &before.stall));
    assert_eq!(times(&world, &child.id, EventKind::TaskStalled), 1);
    let_time_pass(&world);
    let_time_pass(&world);
    assert_eq!(world.get(&parent).health, TaskHealth::Ok);
    world.stop(&stop_of(&child.id));
    wait_for_health(&world, &parent, TaskHealth::Stalled);
}

// proves R7
#[test]
fn a_task_is_found_stalled_without_a_daemon() {
    let world = world();
    let id = world.run_detached(["--stall", "300ms", "--", "sleep", FOREVER]);
    world.kill_daemon();
    // Sleeps because nobody can be asked: whoever asks starts a daemon.
    std::thread::sleep(Duration::from_millis(1_500));
    let task = wait_for_health(&world, &id, TaskHealth::Stalled);
    assert_eq!(task.status, TaskStatus::Running);
    assert_eq!(times(&world, &id, EventKind::TaskStalled), 1);
    let begun =
        world.events().into_iter().rfind(|event| event.event.kind() == EventKind::DaemonStarted).unwrap();
    assert!(task.stall.unwrap().since < begun.at, "its shim saw it, and told it afterwards");
}

// proves R7
#[test]
fn nobody_looks_who_was_not_asked_and_too_often_is_refused() {
    let world = world();
    let id = world.run_detached(["sleep", FOREVER]);
    let_time_pass(&world);
    let task = world.get(&id);
    assert_eq!((task.health, task.clocks.stall), (TaskHealth::Ok, None));
    let stall = Some(StallParams { after_ms: 99, policy: OnStall::Tell });
    let params = TaskStartParams { stall, ..world.start_params(&["true"]) };
    let error = refused(world.client().call::<TaskStart>(&params));
    assert_eq!((error.data.kind, error.data.field.as_deref()), (ErrorKind::Invalid, Some("stall")));
    assert_eq!(error.message, "the stall interval must be at least 100 ms");
}
