//! Stopping: the levels in order, the answers, the receipts, and who may be stopped from where.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use belay_os::signal::Signal;
use belay_protocol::event::{Event, EventKind};
use belay_protocol::life::{StopCause, StopLevel, StopOrderInfo, StopReceipt};
use belay_protocol::methods::{TaskGet, TaskList, TaskStart, TaskStop};
use belay_protocol::task::{
    Outcome, OutcomeKind, StopVerdict, TaskGetParams, TaskInfo, TaskListParams, TaskStatus, TaskStopResult,
};
use belay_testkit::{LONG, World, is_alive, look_at, wait_until};
use serde_json::{Value, json};

use crate::support::{FOREVER, stop_of, world};

fn signals(receipt: &StopReceipt) -> Vec<&str> {
    receipt.signals.iter().map(|sent| sent.signal.as_str()).collect()
}

#[track_caller]
fn stop(world: &World, args: &[&str]) -> TaskStopResult {
    world.belay([&["stop", "--json"], args].concat()).ok().json()
}

/// A shell that says which signals it got and goes on.
const DEAF: &str = "trap 'echo int' INT; trap 'echo term' TERM; echo ready; while :; do sleep 0.02; done";

// proves K1
#[test]
fn the_levels_come_in_order_and_the_last_is_final() {
    let world = world();
    let id = world.run_detached(["sh", "-c", DEAF]);
    world.wait_for_output(&id, "ready", |said| said == b"ready\n");
    let stopped = stop(&world, &["--drain", "--grace", "150ms", &id]);
    assert_eq!((stopped.result, stopped.status), (StopVerdict::Accepted, Some(TaskStatus::Cancelled)));
    let receipt = stopped.receipt.unwrap();
    assert_eq!(signals(&receipt), ["SIGINT", "SIGTERM", "SIGKILL"]);
    assert_eq!((receipt.level, receipt.survivors.as_slice()), (StopLevel::Kill, &[][..]));
    // Drain, interrupt and terminate each had their grace.
    let [int, term, kill] = [0, 1, 2].map(|place| receipt.signals[place].at.0);
    assert!(int - receipt.requested_at.0 >= 145 && term - int >= 145 && kill - term >= 145, "{receipt:?}");
    assert!(receipt.took_ms >= 450, "{receipt:?}");
    assert_eq!(world.stdout_of(&id), b"ready\nint\nterm\n");
    let outcome = world.get(&id).outcome.unwrap();
    assert_eq!((outcome.signal(), outcome.exit_code()), (Some(9), None));
}

// proves K1
#[test]
fn each_level_can_be_the_first() {
    let world = world();
    for (flag, expected) in [("--interrupt", &["SIGINT", "SIGTERM", "SIGKILL"][..]), ("--kill", &["SIGKILL"])]
    {
        let id = world.run_detached(["sh", "-c", DEAF]);
        world.wait_for_output(&id, "ready", |said| said == b"ready\n");
        let receipt = stop(&world, &[flag, "--grace", "100ms", &id]).receipt.unwrap();
        assert_eq!(signals(&receipt), expected);
    }
    let id = world.run_detached(["sleep", FOREVER]);
    let receipt = stop(&world, &[&id]).receipt.unwrap();
    assert_eq!((signals(&receipt), receipt.level), (vec!["SIGTERM"], StopLevel::Terminate));
}

// proves K8, S5
#[test]
fn a_shim_that_had_to_kill_serves_the_next_task() {
    let world = world();
    // As many as there are shims that stand ready, and more, so that each is used again.
    for _ in 0..8 {
        let id = world.run_detached(["sleep", FOREVER]);
        assert_eq!(signals(&stop(&world, &["--kill", &id]).receipt.unwrap()), ["SIGKILL"]);
        assert_eq!(world.belay(["run", "--", "sh", "-c", "sleep 0.02; echo well"]).ok().stdout, b"well\n");
    }
}

// proves K1, K3, A3
#[test]
fn a_tree_whose_leader_has_gone_is_stopped_whole() {
    let world = world();
    let script = r#"sh -c "$0" & sleep "$1" & exit 7"#;
    let id = world.run_detached(["sh", "-c", script, DEAF, FOREVER]);
    world.wait_for_output(&id, "ready", |said| said == b"ready\n");
    let task = wait_until("a task whose leader has gone", LONG, || {
        let task = world.get(&id);
        let gone = task.leader.as_ref().is_some_and(|leader| leader.exit_code == Some(7));
        if gone { Ok(task) } else { Err(format!("{task:?}")) }
    });
    assert_eq!(task.status, TaskStatus::Running, "its tree lives on");
    let alive = task.processes.unwrap();
    assert!(alive.len() >= 2, "{alive:?}");
    let stopped = stop(&world, &["--grace", "100ms", &id]);
    assert_eq!(stopped.status, Some(TaskStatus::Cancelled));
    assert_eq!(signals(&stopped.receipt.unwrap()), ["SIGTERM", "SIGKILL"]);
    for process in alive {
        world.wait_dead("everybody of the tree", process.pid);
    }
    assert_eq!(world.stdout_of(&id), b"ready\nterm\n");
    assert_eq!(world.get(&id).outcome.unwrap().exit_code(), Some(7), "how the leader ended is still known");
}

// proves K4
#[test]
fn the_answer_is_one_of_accepted_already_ended_not_found() {
    let world = world();
    let id = world.run_detached(["sleep", FOREVER]);
    let first = stop(&world, &["--reason", "enough", &id]);
    assert_eq!((first.result, first.status), (StopVerdict::Accepted, Some(TaskStatus::Cancelled)));
    let again = stop(&world, &["--kill", "--reason", "more", &id]);
    assert_eq!(again.result, StopVerdict::AlreadyEnded);
    assert_eq!((again.status, again.receipt), (first.status, first.receipt), "a second stop changes nothing");

    let done = world.run_detached(["true"]);
    world.wait_ended(&done);
    let late = stop(&world, &[&done]);
    let nothing = (StopVerdict::AlreadyEnded, Some(TaskStatus::Completed), None);
    assert_eq!((late.result, late.status, late.receipt), nothing);

    let said = world.belay(["stop", "--json", "sh-nosuchtask000000"]);
    assert_eq!(said.code, Some(1), "{said}");
    let expected =
        json!({ "id": "sh-nosuchtask000000", "result": "not_found", "status": null, "receipt": null });
    assert_eq!(said.json::<Value>(), expected);
    // Several at once: each its own answer, and the worst one counts.
    let said = world.belay(["stop", "--json", &id, "sh-nosuchtask000000", &done]);
    assert_eq!(said.code, Some(1), "{said}");
    let verdicts: BTreeMap<String, StopVerdict> =
        said.json_lines::<TaskStopResult>().into_iter().map(|answer| (answer.id, answer.result)).collect();
    let expected = [
        (id, StopVerdict::AlreadyEnded),
        ("sh-nosuchtask000000".to_owned(), StopVerdict::NotFound),
        (done, StopVerdict::AlreadyEnded),
    ];
    assert_eq!(verdicts, BTreeMap::from(expected));
}

// proves K4
#[test]
fn stops_at_the_same_time_agree() {
    let world = world();
    let id = world.run_detached(["sh", "-c", DEAF]);
    world.wait_for_output(&id, "ready", |said| said == b"ready\n");
    let answers: Vec<TaskStopResult> = std::thread::scope(|scope| {
        let stops: Vec<_> = (0..10)
            .map(|number| {
                let mut order = stop_of(&id);
                (order.grace_ms, order.reason) = (Some(600), Some(format!("caller {number}")));
                let mut client = world.client();
                scope.spawn(move || client.call::<TaskStop>(&order).unwrap())
            })
            .collect();
        stops.into_iter().map(|stop| stop.join().unwrap()).collect()
    });
    assert_eq!(answers[0].status, Some(TaskStatus::Cancelled));
    assert_eq!(signals(answers[0].receipt.as_ref().unwrap()), ["SIGTERM", "SIGKILL"]);
    for answer in &answers {
        assert_eq!(answer, &answers[0]);
    }
    assert_eq!(world.get(&id).outcome.unwrap().receipt(), answers[0].receipt.as_ref());
    let kinds = world.events_of(&id);
    assert_eq!(kinds.iter().filter(|kind| **kind == EventKind::TaskEnded).count(), 1, "{kinds:?}");
}

// proves K5
#[test]
fn a_foreground_task_is_stopped_by_another_client() {
    let world = world();
    let running = world.spawn(["run", "--", "sh", "-c", "echo here; exec sleep 1000"]);
    running.wait_for_stdout("the task's output", |said| said == b"here\n");
    let tasks: Vec<TaskInfo> = world.belay(["ps", "--json"]).ok().json_lines();
    assert_eq!(tasks.len(), 1);
    assert!(!tasks[0].detached);
    let stopped = stop(&world, &["--reason", "make room", &tasks[0].id]);
    assert_eq!(stopped.status, Some(TaskStatus::Cancelled));
    let said = running.finish();
    assert_eq!((said.code, said.stdout.as_slice()), (Some(143), &b"here\n"[..]), "{said}");
}

// proves K5, D1, D2
#[test]
fn an_adopted_task_is_stopped_like_any_other() {
    let world = world();
    let id = world.run_detached(["sleep", FOREVER]);
    let before = world.get(&id);
    world.kill_daemon();
    let stopped = stop(&world, &[&id]);
    assert_eq!((stopped.result, stopped.status), (StopVerdict::Accepted, Some(TaskStatus::Cancelled)));
    assert_eq!(signals(stopped.receipt.as_ref().unwrap()), ["SIGTERM"]);
    world.wait_dead("the leader", before.pid.unwrap());
    assert_eq!(
        world.events_of(&id),
        [
            EventKind::TaskCreated,
            EventKind::TaskStarted,
            EventKind::TaskAdopted,
            EventKind::TaskStopping,
            EventKind::TaskLeaderExited,
            EventKind::TaskEnded
        ]
    );
}

// proves K6
#[test]
fn who_why_how_and_when_are_in_the_outcome_and_in_the_events() {
    let world = world();
    let id = world.run_detached(["sleep", FOREVER]);
    let mut order = stop_of(&id);
    (order.reason, order.actor) = (Some("runs away".to_owned()), Some("the test".to_owned()));
    (order.level, order.grace_ms) = (Some(StopLevel::Interrupt), Some(2_000));
    let before = world.get(&id).started_at.unwrap();
    let receipt = world.stop(&order).receipt.unwrap();
    let user = world.shell("id -un").ok().line();
    let actor = format!("user:{user} via api (the test)");
    assert_eq!((receipt.actor.as_str(), receipt.reason.as_deref()), (actor.as_str(), Some("runs away")));
    assert_eq!(receipt.level, StopLevel::Interrupt);
    let [sent] = receipt.signals.as_slice() else { panic!("{receipt:?}") };
    assert_eq!((sent.signal.as_str(), sent.processes, sent.refused), ("SIGINT", 1, 0));
    assert!(before <= receipt.requested_at && receipt.requested_at <= sent.at, "{receipt:?}");
    assert!(sent.at <= receipt.empty_at.unwrap(), "{receipt:?}");

    let outcome = world.get(&id).outcome.unwrap();
    let expected = Outcome::Cancelled {
        actor: receipt.actor.clone(),
        reason: receipt.reason.clone(),
        level: StopLevel::Interrupt,
        receipt,
        exit_code: None,
        signal: Some(2),
        capture: None,
    };
    assert_eq!(outcome, expected);

    let events = world.events();
    let of_type = |kind: EventKind| {
        let is_it = |event: &&Event| event.task() == Some(id.as_str()) && event.kind() == kind;
        events.iter().map(|info| &info.event).find(is_it).cloned().unwrap()
    };
    let (level, reason) = (StopLevel::Interrupt, Some("runs away".to_owned()));
    let cause = StopCause::Asked { order: StopOrderInfo { level, grace_ms: Some(2_000), actor, reason } };
    let session = world.get(&id).session;
    let stopping = Event::TaskStopping { task: id.clone(), session: session.clone(), level, cause };
    assert_eq!(of_type(EventKind::TaskStopping), stopping);
    let (status, outcome) = (TaskStatus::Cancelled, Some(outcome));
    let ended = Event::TaskEnded { task: id.clone(), session, status, outcome };
    assert_eq!(of_type(EventKind::TaskEnded), ended);
}

// proves K6
#[test]
fn a_blank_reason_is_none() {
    let world = world();
    for blank in ["", "  \t "] {
        let id = world.run_detached(["sleep", FOREVER]);
        assert_eq!(stop(&world, &["--reason", blank, &id]).receipt.unwrap().reason, None);
        let id = world.run_detached(["sleep", FOREVER]);
        let mut order = stop_of(&id);
        order.reason = Some(blank.to_owned());
        assert_eq!(world.stop(&order).receipt.unwrap().reason, None);
        assert_eq!(world.get(&id).outcome.unwrap().reason(), None);
    }
}

// proves K8
#[test]
fn a_storm_of_questions_changes_nobody() {
    let world = world();
    let long = world.start(&world.start_params(&["sleep", FOREVER]));
    let before = look_at(long.pid.unwrap()).unwrap().identity;
    let over = AtomicBool::new(false);
    // Whatever is asked and whenever: an id has one pid, for ever.
    let ask = |mut client: belay_client::Client| {
        let mut pids: BTreeMap<String, i32> = BTreeMap::new();
        while !over.load(Ordering::Relaxed) {
            let params = TaskListParams { all: true, ..TaskListParams::default() };
            let tasks = client.call::<TaskList>(&params).unwrap().tasks;
            let one = tasks.first().map(|task| task.id.clone()).unwrap();
            let looked = client.call::<TaskGet>(&TaskGetParams { id: one }).unwrap();
            for task in tasks.into_iter().chain([looked]) {
                if let Some(pid) = task.pid {
                    assert_eq!(*pids.entry(task.id.clone()).or_insert(pid), pid, "{task:?}");
                }
            }
        }
        pids
    };
    std::thread::scope(|scope| {
        let askers: Vec<_> = (0..3).map(|_| scope.spawn(|| ask(world.client()))).collect();
        let mut client = world.client();
        for number in 0..80 {
            let short = client.call::<TaskStart>(&world.start_params(&["sleep", "0.01"])).unwrap();
            if number % 4 == 0 {
                client.call::<TaskStop>(&stop_of(&short.id)).unwrap();
            }
        }
        over.store(true, Ordering::Relaxed);
        for asker in askers {
            let pids = asker.join().unwrap();
            assert_eq!(pids.get(&long.id), Some(&before.pid));
        }
    });
    let after = world.get(&long.id);
    assert_eq!((after.status, after.pid), (TaskStatus::Running, Some(before.pid)));
    assert!(is_alive(before), "the long task is the same process as before");
}

// proves K1, K4
#[test]
fn a_command_that_obeys_is_cancelled_also_when_it_leaves_with_zero() {
    let world = world();
    let id = world.run_detached(["sh", "-c", "trap 'exit 0' TERM; echo ready; while :; do sleep 0.02; done"]);
    world.wait_for_output(&id, "ready", |said| said == b"ready\n");
    let stopped = stop(&world, &[&id]);
    assert_eq!(stopped.status, Some(TaskStatus::Cancelled), "a stop is never a success");
    assert_eq!(world.get(&id).outcome.unwrap().exit_code(), Some(0));
}

// proves K3
#[test]
fn a_signal_that_nobody_here_sent_is_a_failure_and_no_cancellation() {
    let world = world();
    let id = world.run_detached(["sleep", FOREVER]);
    let leader = look_at(world.get(&id).pid.unwrap()).unwrap().identity;
    belay_testkit::send_signal(leader, Signal::TERM);
    let ended = world.wait_ended(&id);
    let outcome = ended.outcome.unwrap();
    assert_eq!(
        (ended.status, outcome.kind(), outcome.signal()),
        (TaskStatus::Failed, OutcomeKind::Signaled, Some(15))
    );
    assert_eq!((outcome.actor(), outcome.receipt()), (None, None));
    assert_eq!(world.belay(["wait", &id]).code, Some(143));
}

// proves K4
#[test]
fn a_task_that_is_named_twice_is_stopped_once() {
    let world = world();
    let [first, second] = [0, 1].map(|_| world.run_detached(["sleep", FOREVER]));
    let told: Vec<TaskStopResult> =
        world.belay(["stop", "--json", &first, &second, &first]).ok().json_lines();
    let mut ids: Vec<String> = told.into_iter().map(|stopped| stopped.id).collect();
    ids.sort();
    let mut both = vec![first, second];
    both.sort();
    assert_eq!(ids, both);
}
