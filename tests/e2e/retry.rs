//! Commands that are run again when they fail: one task, one log, one end; and an end is for good.

use std::path::PathBuf;

use belay_protocol::error::ErrorKind;
use belay_protocol::event::{Event, EventKind};
use belay_protocol::life::{ClockName, ExitStatus};
use belay_protocol::methods::{TaskStart, TaskWrite};
use belay_protocol::task::{
    AttemptInfo, OutcomeKind, TaskInfo, TaskStartParams, TaskStatus, TaskWriteParams,
};
use belay_testkit::{LONG, World, wait_until};

use crate::support::{FOREVER, refused, stop_of, with_shell, world};

/// A script that counts its runs in a file before it does anything else.
fn counting(world: &World, then: &str) -> (PathBuf, String) {
    let count = world.dir().join("count");
    (count.clone(), format!("echo x >> {0}; n=$(grep -c x {0}); {then}", count.display()))
}

fn runs(count: &PathBuf) -> usize {
    std::fs::read_to_string(count).unwrap_or_default().lines().count()
}

#[track_caller]
fn wait_for_runs(count: &PathBuf, expected: usize) {
    wait_until("the right number of runs", LONG, || match runs(count) {
        found if found == expected => Ok(()),
        found => Err(format!("{found}")),
    });
}

#[track_caller]
fn wait_for_status(world: &World, id: &str, status: TaskStatus) -> TaskInfo {
    wait_until("the status", LONG, || {
        let task = world.get(id);
        if task.status == status { Ok(task) } else { Err(format!("{task:?}")) }
    })
}

fn run_detached(world: &World, options: &[&str], script: &str) -> String {
    world.run_detached(options.iter().chain(&["--", "sh", "-c", script]).copied())
}

/// So many attempts after the first, and what the last failure was.
const fn attempt(number: u32, of: u32, code: i32) -> AttemptInfo {
    AttemptInfo { number, of, last: Some(ExitStatus::Code(code)) }
}

/// Long enough for anything that was going to begin meanwhile.
fn let_time_pass(world: &World, seconds: &str) {
    world.belay(["run", "--", "sleep", seconds]).ok();
}

// proves K9
#[test]
fn what_fails_twice_and_then_succeeds_has_completed() {
    let world = world();
    let (count, script) = counting(&world, "echo out $n; echo err $n >&2; test $n = 3");
    let options = ["run", "--merge", "--retry", "5", "--retry-delay", "20ms", "--", "sh", "-c"];
    let run = world.belay(options.iter().copied().chain([script.as_str()])).ok();
    let written = "out 1\nerr 1\nout 2\nerr 2\nout 3\nerr 3\n";
    assert_eq!(run.stdout, written.as_bytes());
    assert_eq!(runs(&count), 3);
    let [task] = world.belay(["ps", "-a", "--json"]).ok().json_lines::<TaskInfo>().try_into().unwrap();
    assert_eq!((task.status, task.attempt), (TaskStatus::Completed, Some(attempt(3, 6, 1))));
    // It has run since its first attempt: twice 20 ms lie in between.
    assert!(task.ended_at.unwrap().0 - task.started_at.unwrap().0 + 5 >= 40, "{task:?}");
    assert_eq!(world.logs(&task.id), written.as_bytes());
    let one = [EventKind::TaskStarted, EventKind::TaskLeaderExited, EventKind::TaskAttemptEnded];
    let last = [EventKind::TaskStarted, EventKind::TaskLeaderExited, EventKind::TaskEnded];
    let all: Vec<EventKind> =
        [EventKind::TaskCreated].into_iter().chain(one).chain(one).chain(last).collect();
    assert_eq!(world.events_of(&task.id), all);
    let told = world.events().into_iter().map(|info| info.event);
    let told: Vec<Event> = told.filter(|event| event.kind() == EventKind::TaskAttemptEnded).collect();
    let expected = |attempt| Event::TaskAttemptEnded {
        task: task.id.clone(),
        session: task.session.clone(),
        exit: ExitStatus::Code(1),
        attempt,
        next_ms: 20,
    };
    assert_eq!(told, [expected(1), expected(2)]);
}

// proves K9
#[test]
fn when_no_attempt_is_left_the_last_one_is_the_end() {
    let world = world();
    let (count, script) = counting(&world, "exit $((n + 6))");
    let id = run_detached(&world, &["--retry", "2", "--retry-delay", "10ms"], &script);
    let task = world.wait_ended(&id);
    let outcome = task.outcome.unwrap();
    assert_eq!(
        (task.status, outcome.kind(), outcome.exit_code()),
        (TaskStatus::Failed, OutcomeKind::Exited, Some(9))
    );
    assert_eq!((task.attempt, outcome.receipt()), (Some(attempt(3, 3, 8)), None));
    let_time_pass(&world, "0.3");
    assert_eq!(runs(&count), 3);
}

// proves K9
#[test]
fn what_ends_of_a_foreign_signal_is_run_again_and_each_tree_is_empty_before_the_next() {
    let world = world();
    // Whoever is left of the first attempt would be seen by the second.
    let left = world.dir().join("left");
    let script = format!(
        "if [ $n = 1 ]; then (sleep 0.3; echo gone > {0}) & kill -SEGV $$; else cat {0}; fi",
        left.display()
    );
    let (_, script) = counting(&world, &script);
    let id = run_detached(&world, &["--retry", "1", "--retry-delay", "0s"], &script);
    let task = world.wait_ended(&id);
    assert_eq!(task.status, TaskStatus::Completed);
    let Some(AttemptInfo { number: 2, of: 2, last: Some(ExitStatus::Signal { number: 11, .. }) }) =
        task.attempt
    else {
        panic!("{:?}", task.attempt)
    };
    assert_eq!(world.logs(&id), b"gone\n");
}

// proves K9, K5, K6
#[test]
fn a_stop_between_two_attempts_ends_it_for_good() {
    let world = world();
    let (count, script) = counting(&world, "exit 1");
    let id = run_detached(&world, &["--retry", "9", "--retry-delay", "1500ms"], &script);
    let task = wait_for_status(&world, &id, TaskStatus::Retrying);
    assert_eq!((task.pid, task.leader, task.processes), (None, None, Some(Vec::new())));
    assert!(task.clocks.retry.unwrap().remaining_ms.is_some());
    let begun = task.attempt.unwrap().number;
    let stopped = world.stop(&stop_of(&id));
    assert_eq!(stopped.status, Some(TaskStatus::Cancelled));
    let receipt = stopped.receipt.unwrap();
    assert_eq!((receipt.signals.len(), receipt.survivors.len()), (0, 0));
    assert!(receipt.empty_at.is_some());
    let_time_pass(&world, "2");
    assert_eq!(runs(&count), begun as usize);
    assert_eq!(world.get(&id).status, TaskStatus::Cancelled);
}

// proves K9
#[test]
fn a_stop_of_a_later_attempt_ends_it_for_good() {
    let world = world();
    let (count, script) = counting(&world, &format!("test $n = 2 && sleep {FOREVER}; exit 1"));
    let id = run_detached(&world, &["--retry", "9", "--retry-delay", "20ms"], &script);
    wait_for_runs(&count, 2);
    let task = wait_for_status(&world, &id, TaskStatus::Running);
    assert_eq!(task.attempt, Some(attempt(2, 10, 1)));
    let stopped = world.stop(&stop_of(&id));
    assert_eq!(stopped.status, Some(TaskStatus::Cancelled));
    assert_eq!(stopped.receipt.unwrap().survivors, []);
    world.wait_dead("the second attempt", task.pid.unwrap());
    let_time_pass(&world, "0.3");
    assert_eq!(runs(&count), 2);
}

// proves K9, D1: the shim needs nobody for the next attempt, and the next daemon counts as the last one did
#[test]
fn the_next_attempt_begins_without_a_daemon() {
    let world = world();
    let (count, script) = counting(&world, &format!("echo $n; test $n = 2 && sleep {FOREVER}; exit 5"));
    let id = run_detached(&world, &["--retry", "9", "--retry-delay", "300ms"], &script);
    wait_for_status(&world, &id, TaskStatus::Retrying);
    world.kill_daemon();
    wait_for_runs(&count, 2);
    assert_eq!(world.daemon(), None, "it was run again by nobody but its shim");
    let task = wait_for_status(&world, &id, TaskStatus::Running);
    assert_eq!(task.attempt, Some(attempt(2, 10, 5)));
    assert_eq!(world.logs(&id), b"1\n2\n");
    let mut events = world.events_of(&id);
    events.retain(|kind| *kind != EventKind::TaskAdopted);
    let told = [
        EventKind::TaskCreated,
        EventKind::TaskStarted,
        EventKind::TaskLeaderExited,
        EventKind::TaskAttemptEnded,
        EventKind::TaskStarted,
    ];
    assert_eq!(events, told);
    assert_eq!(world.stop(&stop_of(&id)).status, Some(TaskStatus::Cancelled));
    assert_eq!(runs(&count), 2);
}

// proves K9, D2
#[test]
fn an_end_after_many_attempts_without_a_daemon_is_told_to_the_next() {
    let world = world();
    let (count, script) = counting(&world, "exit 5");
    let id = run_detached(&world, &["--retry", "3", "--retry-delay", "150ms"], &script);
    world.kill_daemon();
    wait_for_runs(&count, 4);
    let task = world.wait_ended(&id);
    assert_eq!((task.status, task.attempt), (TaskStatus::Failed, Some(attempt(4, 4, 5))));
    assert_eq!(world.events_of(&id).iter().filter(|kind| **kind == EventKind::TaskEnded).count(), 1);
    assert_eq!(world.events_of(&id).iter().filter(|kind| **kind == EventKind::TaskStarted).count(), 4);
}

// proves K9, R1
#[test]
fn the_time_limit_counts_over_all_attempts() {
    let world = world();
    let (count, script) = counting(&world, "exit 1");
    let id = run_detached(&world, &["--retry", "9", "--retry-delay", "1h", "--timeout", "300ms"], &script);
    let task = world.wait_ended(&id);
    let outcome = task.outcome.unwrap();
    assert_eq!((task.status, outcome.clock()), (TaskStatus::TimedOut, Some(ClockName::Timeout)));
    assert_eq!(outcome.receipt().unwrap().signals, []);
    assert_eq!(runs(&count), 1);
}

// proves K9, F4
#[test]
fn a_task_between_two_attempts_can_be_detached() {
    let world = world();
    let (count, script) = counting(&world, "echo $n; test $n = 2");
    let run = world.spawn(["run", "--retry", "9", "--retry-delay", "400ms", "--", "sh", "-c", &script]);
    run.wait_for_stdout("the first attempt", |heard| heard == b"1\n");
    let id = wait_until("the task", LONG, || {
        let tasks: Vec<TaskInfo> = world.belay(["ps", "--json"]).ok().json_lines();
        let found = tasks.into_iter().find(|task| task.status == TaskStatus::Retrying);
        found.map(|task| task.id).ok_or_else(String::new)
    });
    world.belay(["detach", &id]).ok();
    assert_eq!(run.finish().code, Some(0));
    let task = world.wait_ended(&id);
    assert_eq!((task.status, task.detached, runs(&count)), (TaskStatus::Completed, true, 2));
    assert_eq!(world.logs(&id), b"1\n2\n", "nothing of it was lost");
}

// proves K9, T1
#[test]
fn every_attempt_has_a_terminal_of_its_own() {
    let world = world();
    let (_, script) = counting(&world, "tty > /dev/null && echo $n; test $n = 2");
    let id = run_detached(&world, &["--pty", "--retry", "1", "--retry-delay", "0s"], &script);
    assert_eq!(world.wait_ended(&id).status, TaskStatus::Completed);
    assert_eq!(world.logs(&id), b"1\r\n2\r\n");
}

// proves K9: each attempt has a standard input of its own; nobody hears what is sent in between, and a closed one stays closed
#[test]
fn every_attempt_has_a_standard_input_of_its_own() {
    let world = world();
    let (_, script) = counting(&world, "read word; echo $n:$word; exit 1");
    let id = run_detached(&world, &["--stdin", "--retry", "2", "--retry-delay", "2s"], &script);
    world.belay(["send", &id, "one"]).ok();
    wait_for_status(&world, &id, TaskStatus::Retrying);
    let params =
        TaskWriteParams { id: id.clone(), data: "nobody\n".into(), close: false, key: None, room_ms: None };
    let error = refused(world.client().call::<TaskWrite>(&params));
    assert_eq!(error.data.kind, ErrorKind::Busy);
    assert_eq!(error.message, "the task is between two attempts and does not read its standard input");
    // Which waits until somebody reads.
    world.belay(["send", &id, "two", "--eof"]).ok();
    let task = world.wait_ended(&id);
    assert_eq!(task.attempt.map(|attempt| attempt.number), Some(3));
    assert_eq!(world.logs(&id), b"1:one\n2:two\n3:\n");
    let ours = world.belay(["run", "--stdin", "--retry", "1", "--", "cat"]);
    assert_eq!(ours.code, Some(2), "{ours}");
}

// proves S2
#[test]
fn what_cannot_be_run_again_is_refused() {
    let world = world();
    let plain = world.start_params(&["true"]);
    let again = |retries| TaskStartParams { retries, ..plain.clone() };
    let refuse = |params: TaskStartParams| {
        let error = refused(world.client().call::<TaskStart>(&params));
        assert_eq!(error.data.kind, ErrorKind::Invalid);
        (error.data.field.unwrap(), error.message)
    };
    let told = |field: &str, message: &str| (field.to_owned(), message.to_owned());
    assert_eq!(refuse(again(1_001)), told("retries", "at most 1000 retries are allowed"));
    assert_eq!(
        refuse(with_shell(again(1), |shell| shell.stdin_from = Some("x".to_owned()))),
        told("retries", "retries cannot be combined with stdin_from, which can be read only once")
    );
    assert_eq!(
        refuse(TaskStartParams { retry_delay_ms: Some(5), ..again(0) }),
        told("retry_delay_ms", "retry_delay_ms has no effect without retries")
    );
    // A token compares it, too.
    let named = |retries| TaskStartParams { token: Some("one".to_owned()), ..again(retries) };
    world.start(&named(1));
    let error = refused(world.client().call::<TaskStart>(&named(2)));
    assert_eq!(error.data.kind, ErrorKind::Conflict);
}
