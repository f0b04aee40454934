//! Clocks: each ends a task with its own name, none outlives its use, and all run on without a daemon.

use std::time::{Duration, Instant};

use belay_protocol::event::EventKind;
use belay_protocol::life::{ClockName, StopLevel};
use belay_protocol::task::{Outcome, OutcomeKind, TaskInfo, TaskStatus, TaskStopParams};
use belay_testkit::{LONG, World, freeze, look_at, wait_until};

use crate::support::{FOREVER, builder, stop_of, world};

#[track_caller]
fn assert_timed_out(task: &TaskInfo, clock: ClockName, limit_ms: u64) {
    let outcome = task.outcome.as_ref().unwrap();
    let Outcome::TimedOut { clock: which, limit_ms: limit, receipt, .. } = outcome else {
        panic!("{task:?}")
    };
    assert_eq!((task.status, *which, *limit), (TaskStatus::TimedOut, clock, limit_ms), "{task:?}");
    assert_eq!(receipt.actor, format!("clock:{}", clock.name()));
    assert_eq!((receipt.level, receipt.survivors.as_slice()), (StopLevel::Terminate, &[][..]));
    assert_eq!(receipt.signals.iter().map(|sent| sent.signal.as_str()).collect::<Vec<_>>(), ["SIGTERM"]);
    let ran = task.ended_at.unwrap().0 - task.started_at.unwrap().0;
    assert!(ran + 5 >= i64::try_from(limit_ms).unwrap(), "it ran only {ran} ms");
}

// proves R1
#[test]
fn the_grace_that_a_stop_came_with_is_the_one_that_is_told() {
    let world = world();
    let script = format!("trap '' TERM; echo ready; while :; do sleep {FOREVER}; done");
    let id = world.run_detached(["--grace", "5s", "--", "sh", "-c", &script]);
    world.wait_for_output(&id, "that it does not listen", |said| said == b"ready\n");
    assert_eq!(world.get(&id).clocks.grace, None, "nobody stops it");
    for (level, grace_ms) in [(StopLevel::Drain, 600_000), (StopLevel::Terminate, 500_000)] {
        let (level, grace) = (Some(level), Some(grace_ms));
        world.stop(&TaskStopParams { level, grace_ms: grace, wait: false, ..stop_of(&id) });
        let grace = wait_until("its grace", LONG, || {
            let clocks = world.get(&id).clocks;
            clocks.grace.filter(|grace| grace.limit_ms == grace_ms).ok_or_else(|| format!("{clocks:?}"))
        });
        assert!(grace.remaining_ms.is_some_and(|left| left <= grace_ms), "{grace:?}");
    }
    world.stop(&TaskStopParams { level: Some(StopLevel::Kill), ..stop_of(&id) });
}

// proves R1
#[test]
fn each_clock_ends_the_task_under_its_own_name() {
    let world = world();
    let said = world.belay(["run", "--timeout", "200ms", "--json", "--", "sleep", FOREVER]);
    assert_eq!(said.code, Some(124), "{said}");
    assert_timed_out(&said.json(), ClockName::Timeout, 200);

    let id = world.run_detached(["--ttl", "200ms", "--silence", "1h", "--", "sleep", FOREVER]);
    assert_timed_out(&world.wait_ended(&id), ClockName::Ttl, 200);
    assert_eq!(world.belay(["wait", &id]).code, Some(124));

    // Output puts the silence off; the end comes when it has been quiet for so long.
    let script = r#"for i in 1 2 3 4 5 6; do echo $i; sleep 0.1; done; exec sleep "$0""#;
    let id = world.run_detached(["--silence", "500ms", "--", "sh", "-c", script, FOREVER]);
    let ended = world.wait_ended(&id);
    assert_timed_out(&ended, ClockName::Silence, 500);
    assert_eq!(world.logs(&id), b"1\n2\n3\n4\n5\n6\n");
    let ran = ended.ended_at.unwrap().0 - ended.started_at.unwrap().0;
    assert!(ran >= 1_000, "the clock was not put off: {ran} ms");
}

// proves R1
#[test]
fn the_grace_of_a_task_is_its_own() {
    let world = world();
    let script = "trap '' TERM; echo ready; while :; do sleep 0.02; done";
    let id = world.run_detached(["--grace", "150ms", "--", "sh", "-c", script]);
    world.wait_for_output(&id, "ready", |said| said == b"ready\n");
    world.belay(["stop", &id]).ok();
    let outcome = world.get(&id).outcome.unwrap();
    let receipt = outcome.receipt().unwrap();
    let between = receipt.signals[1].at.0 - receipt.signals[0].at.0;
    assert!((145..2_000).contains(&between), "{receipt:?}");
}

// proves R2
#[test]
fn an_end_at_the_deadline_is_no_time_out() {
    let world = world();
    let gate = world.dir().join("gate").to_str().unwrap().to_owned();
    world.shell(&format!("mkfifo {gate}")).ok();
    let id = world.run_detached(["--ttl", "400ms", "--", "sh", "-c", r#"read -r _ < "$0"; exit 3"#, &gate]);
    let task = world.get(&id);
    let frozen = freeze(task.held_by.unwrap().shim_pid);
    std::fs::write(&gate, "go\n").unwrap();
    world.wait_dead("the leader", task.pid.unwrap());
    // The clock runs out while nobody can look; the command had ended before.
    let over = Instant::now() + Duration::from_millis(500);
    wait_until("the deadline to pass", LONG, || {
        if Instant::now() > over { Ok(()) } else { Err("not yet".to_owned()) }
    });
    drop(frozen);
    let ended = world.wait_ended(&id);
    let outcome = ended.outcome.unwrap();
    assert_eq!(
        (ended.status, outcome.kind(), outcome.exit_code()),
        (TaskStatus::Failed, OutcomeKind::Exited, Some(3))
    );
    assert_eq!((outcome.clock(), outcome.receipt()), (None, None));
}

// proves R3
#[test]
fn nobody_waits_for_a_clock_that_no_longer_matters() {
    let world = world();
    let quick = |args: &[&str], code: i32| {
        let before = Instant::now();
        let said = world.belay(args);
        assert_eq!(said.code, Some(code), "{said}");
        assert!(before.elapsed() < Duration::from_secs(10), "belay {args:?} took {:?}", before.elapsed());
        said.line()
    };
    quick(&["run", "--timeout", "1h", "--silence", "1h", "--grace", "1h", "--", "true"], 0);
    let id = quick(&["run", "-d", "--ttl", "1h", "--silence", "1h", "--", "sh", "-c", "exit 9"], 0);
    quick(&["wait", "--timeout", "1h", &id], 9);
    quick(&["logs", "-f", &id], 0);
    let id = quick(&["run", "-d", "--grace", "1h", "--", "sleep", FOREVER], 0);
    quick(&["stop", "--grace", "1h", &id], 0);
    quick(&["down"], 0);
    wait_until("an empty world", LONG, || match world.everybody() {
        left if left.is_empty() => Ok(()),
        left => Err(format!("{left:?}")),
    });
}

// proves R3
#[test]
fn a_daemon_with_nothing_to_hold_leaves() {
    let world = builder().env("BELAY_IDLE_EXIT", "300ms").build();
    let id = world.run_detached(["sh", "-c", "sleep 1; echo over"]);
    let daemon = world.daemon_pid();
    world.wait_ended(&id);
    assert_eq!(world.daemon_pid(), daemon, "it stayed as long as the task ran");
    wait_until("an empty world", LONG, || match world.everybody() {
        left if left.is_empty() => Ok(()),
        left => Err(format!("{left:?}")),
    });
    assert_eq!(world.logs(&id), b"over\n", "the next one knows");
}

fn kill_and_wait_for_death(world: &World, id: &str) {
    let leader = world.get(id).pid.unwrap();
    assert!(look_at(leader).is_some());
    world.kill_daemon();
    world.wait_dead("the leader, by its clock alone", leader);
    assert_eq!(world.daemon(), None, "nobody started a daemon meanwhile");
}

// proves R4, D2
#[test]
fn clocks_are_enforced_while_no_daemon_runs() {
    let world = world();
    let id = world.run_detached(["--ttl", "700ms", "--", "sleep", FOREVER]);
    kill_and_wait_for_death(&world, &id);
    assert_timed_out(&world.wait_ended(&id), ClockName::Ttl, 700);
    let kinds = world.events_of(&id);
    assert_eq!(kinds.iter().filter(|kind| **kind == EventKind::TaskEnded).count(), 1, "{kinds:?}");

    let id = world.run_detached(["--silence", "700ms", "--", "sh", "-c", "echo once; sleep 1000"]);
    kill_and_wait_for_death(&world, &id);
    assert_timed_out(&world.wait_ended(&id), ClockName::Silence, 700);
    assert_eq!(world.logs(&id), b"once\n");
}

// proves R4, R5
#[test]
fn a_clock_goes_on_where_it_was_after_a_restart() {
    let world = world();
    let id = world.run_detached(["--ttl", "1h", "--", "sleep", FOREVER]);
    let left = || world.get(&id).clocks.ttl.unwrap().remaining_ms.unwrap();
    let mut before = left();
    assert!(before <= 3_600_000 && before > 3_500_000, "{before}");
    for _ in 0..3 {
        world.kill_daemon();
        let after = left();
        assert!(after < before, "from {before} to {after}");
        before = after;
    }
    assert!(before > 3_500_000, "{before}");
}
