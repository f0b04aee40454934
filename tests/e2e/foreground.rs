//! `belay run` in the foreground: as if the command had been typed without it.

use std::io::Read as _;
use std::process::Stdio;

use belay_os::signal::Signal;
use belay_protocol::Bytes;
use belay_protocol::methods::TaskWrite;
use belay_protocol::task::{OutcomeKind, TaskInfo, TaskStatus, TaskWriteParams};
use belay_testkit::{LONG, World, wait_until};

use crate::support::{BELAY, FOREVER, world};

fn only_task(world: &World) -> TaskInfo {
    let tasks: Vec<TaskInfo> = world.belay(["ps", "-a", "--json"]).ok().json_lines();
    assert_eq!(tasks.len(), 1, "{tasks:?}");
    tasks[0].clone()
}

// proves F3, O2
#[test]
fn both_streams_come_apart_and_whole() {
    let world = world();
    let script = "i=0; while [ $i -lt 500 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done; printf end; printf stop >&2";
    let said = world.belay(["run", "--", "sh", "-c", script]).ok();
    let expected =
        |word: &str, last: &str| (0..500).map(|i| format!("{word} {i}\n")).collect::<String>() + last;
    assert_eq!(String::from_utf8(said.stdout).unwrap(), expected("out", "end"));
    assert_eq!(String::from_utf8(said.stderr).unwrap(), expected("err", "stop"));
}

// proves S3, R1
#[test]
fn the_exit_code_is_the_commands_own() {
    let world = world();
    let code = |args: &[&str]| world.belay([&["run"], args].concat()).code;
    assert_eq!(code(&["--", "true"]), Some(0));
    assert_eq!(code(&["--", "sh", "-c", "exit 7"]), Some(7));
    assert_eq!(code(&["--", "sh", "-c", "exit 255"]), Some(255));
    assert_eq!(code(&["--", "sh", "-c", "kill -9 $$"]), Some(128 + 9));
    assert_eq!(code(&["--", "sh", "-c", "kill -SEGV $$"]), Some(128 + 11));
    assert_eq!(code(&["--timeout", "100ms", "--", "sleep", FOREVER]), Some(124));
    assert_eq!(code(&["--", "/no/such/program"]), Some(127));
    assert_eq!(code(&["--", "/etc"]), Some(126));
    assert_eq!(code(&["-c", "exit 12"]), Some(12));
    assert_eq!(code(&["--no-such-option"]), Some(2));
    let said = world.belay(["run", "--", "/no/such/program"]);
    assert_eq!(said.stdout, b"");
    assert!(!said.stderr.is_empty(), "why is told: {said}");
}

// proves S6
#[test]
fn directory_environment_and_mask_are_the_callers() {
    let world = world();
    let dir = world.dir().canonicalize().unwrap();
    let said = world.belay_with(["run", "--env", "B=two", "-c", "pwd; echo $A $B; umask"], |command| {
        command.current_dir(&dir).env("A", "one").env("B", "not this");
    });
    assert_eq!(said.code, Some(0), "{said}");
    assert_eq!(
        String::from_utf8(said.stdout).unwrap().lines().take(2).collect::<Vec<_>>(),
        [dir.to_str().unwrap(), "one two"]
    );
    let said = world.shell("umask 0027; \"$BELAY\" run -c umask").ok();
    assert_eq!(said.stdout, b"0027\n");
}

// proves K1, K6
#[test]
fn ctrl_c_is_passed_on() {
    let world = world();
    let script = "trap 'echo got; exit 9' INT; echo ready; while :; do sleep 0.02; done";
    let running = world.spawn(["run", "--", "sh", "-c", script]);
    running.wait_for_stdout("ready", |said| said == b"ready\n");
    running.signal(Signal::INT);
    let said = running.finish();
    assert_eq!((said.code, said.stdout.as_slice()), (Some(9), &b"ready\ngot\n"[..]), "{said}");
    let outcome = only_task(&world).outcome.unwrap();
    assert_eq!((outcome.kind(), outcome.exit_code()), (OutcomeKind::Cancelled, Some(9)));
    assert_eq!(outcome.reason(), Some("interrupted at the terminal"));
}

// proves K1
#[test]
fn ctrl_c_three_times_kills() {
    let world = world();
    let script = "trap 'echo int' INT; trap 'echo term' TERM; echo ready; while :; do sleep 0.02; done";
    let running = world.spawn(["run", "--", "sh", "-c", script]);
    for (said, signal) in
        [(&b"ready\n"[..], Signal::INT), (b"ready\nint\n", Signal::INT), (b"ready\nint\nterm\n", Signal::INT)]
    {
        running.wait_for_stdout("the answer to the last signal", |heard| heard == said);
        running.signal(signal);
    }
    let said = running.finish();
    assert_eq!((said.code, said.stdout.as_slice()), (Some(137), &b"ready\nint\nterm\n"[..]), "{said}");
    assert_eq!(only_task(&world).status, TaskStatus::Cancelled);
}

// proves F3, W6
#[test]
fn standard_input_is_passed_on_whole() {
    let world = world();
    let bytes: Vec<u8> = (0..5_000_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut running = world.spawn_with_stdin(["run", "--stdin", "--", "cat"]);
    running.write(&bytes);
    running.close_stdin();
    let said = running.finish();
    assert_eq!(
        (said.code, said.stderr.as_slice()),
        (Some(0), &b""[..]),
        "{}",
        String::from_utf8_lossy(&said.stderr)
    );
    assert!(said.stdout == bytes, "{} bytes came back", said.stdout.len());
    // Without it the command reads an empty file and does not hang.
    assert_eq!(world.belay(["run", "--", "cat"]).ok().stdout, b"");
}

// proves F3, X2
#[test]
fn what_nobody_reads_any_more_is_not_said_to_be_taken() {
    let world = world();
    let id = world.run_detached(["--stdin", "--", "sh", "-c", "exec <&-; echo deaf; exec sleep 1000"]);
    world.wait_for_output(&id, "a closed input", |said| said == b"deaf\n");
    let refused = world.belay(["send", &id, "hello"]);
    let told = String::from_utf8_lossy(&refused.stderr);
    let expected = "error: the task has no open standard input\n hint: it was started without --stdin, or has closed its standard input\n";
    assert_eq!((refused.code, told.as_ref()), (Some(1), expected));
}

/// The end of the input may be on its way when the command ends: that is nothing to tell anybody.
// proves F3
#[test]
fn a_command_that_ends_before_its_input_does_is_no_fault() {
    let world = world();
    for turn in 0..60 {
        let mut running = world.spawn_with_stdin(["run", "--stdin", "--", "sh", "-c", "read -r x; exit $x"]);
        running.write(b"7\n");
        let said = running.finish();
        let told = String::from_utf8_lossy(&said.stderr);
        assert_eq!((said.code, told.as_ref()), (Some(7), ""), "at turn {turn}");
    }
}

// proves D1, D7, F3
#[test]
fn a_daemon_that_dies_in_the_middle_costs_no_byte() {
    let world = world();
    // Two gates: through one, the slow close of the first writer would let the second reader pass.
    let gates = ["first", "second"].map(|name| world.dir().join(name).to_str().unwrap().to_owned());
    world.shell(&format!("mkfifo {} {}", gates[0], gates[1])).ok();
    let script = r#"seq 1 20000; read -r _ < "$0"; seq 20001 40000; seq 1 9 >&2; read -r _ < "$1"; seq 40001 60000; exit 3"#;
    let running = world.spawn(["run", "--", "sh", "-c", script, &gates[0], &gates[1]]);
    let expected = |to: u32| (1..=to).map(|i| format!("{i}\n")).collect::<String>().into_bytes();
    let part = expected(20_000);
    running.wait_for_stdout("the first part", |said| said == part);
    world.kill_daemon();
    std::fs::write(&gates[0], "go\n").unwrap();
    let part = expected(40_000);
    running.wait_for_stdout("the second part", |said| said == part);
    // And once more, in the midst of it.
    std::fs::write(&gates[1], "go\n").unwrap();
    world.kill_daemon();
    let said = running.finish();
    assert_eq!(said.code, Some(3), "{said}");
    assert!(said.stdout == expected(60_000), "{} bytes", said.stdout.len());
    assert_eq!(said.stderr, expected(9));
    let task = only_task(&world);
    assert_eq!((task.status, task.outcome.unwrap().exit_code()), (TaskStatus::Failed, Some(3)));
}

// proves D7, W2
#[test]
fn a_terminal_that_goes_away_leaves_the_task_alone() {
    let world = world();
    let running = world.spawn(["run", "--", "sh", "-c", "echo here; exec sleep 1000"]);
    running.wait_for_stdout("the task", |said| said == b"here\n");
    running.signal(Signal::HUP);
    assert_eq!(running.finish().code, Some(129));
    assert_eq!(only_task(&world).status, TaskStatus::Running);
}

// proves F7
#[test]
fn who_is_left_alone_by_its_terminal_is_told_as_its_policy_has_it() {
    let world = world();
    let script = "echo here; exec sleep 1000";
    let left = |policy: &str| {
        let running = world.spawn(["run", "--on-disconnect", policy, "--", "sh", "-c", script]);
        running.wait_for_stdout("the task", |said| said == b"here\n");
        let id = crate::support::running(&world).id;
        running.signal(Signal::HUP);
        let said = running.finish();
        assert_eq!(said.code, Some(129), "{said}");
        (id, String::from_utf8(said.stderr).unwrap())
    };
    let (id, told) = left("stop");
    assert_eq!(told, format!("belay: the terminal is gone; {id} is being stopped\n"));
    let ended = world.wait_ended(&id);
    assert_eq!((ended.status, ended.outcome.unwrap().actor()), (TaskStatus::Cancelled, Some("disconnect")));
    let (id, told) = left("detach");
    assert_eq!(told, format!("belay: the terminal is gone; {id} runs on\n"));
    assert_eq!(world.get(&id).status, TaskStatus::Running);
}

// proves W6
#[test]
fn a_write_that_is_asked_for_twice_is_applied_once_also_by_another_daemon() {
    let world = world();
    let id = world.run_detached(["--stdin", "--", "cat"]);
    let write = |data: &str, close: bool, key: &str| {
        let key = Some(key.to_owned());
        let params = TaskWriteParams { id: id.clone(), data: Bytes::from(data), close, key, room_ms: None };
        world.client().call::<TaskWrite>(&params).unwrap();
    };
    write("one\n", false, "a");
    write("one\n", false, "a");
    world.kill_daemon();
    write("one\n", false, "a");
    write("two\n", false, "b");
    write("", true, "c");
    assert_eq!(world.wait_ended(&id).status, TaskStatus::Completed);
    assert_eq!(world.logs(&id), b"one\ntwo\n");
}

// proves W6, F3, D1
#[test]
fn standard_input_survives_the_daemon_whole() {
    let world = world();
    let mut caller = world.spawn_with_stdin(["run", "--stdin", "--", "cat"]);
    let mut expected = Vec::new();
    for round in 0..6 {
        let part = format!("round {round} {}\n", "x".repeat(3_000)).into_bytes();
        caller.write(&part);
        expected.extend_from_slice(&part);
        caller.wait_for_stdout("what was written", |said| said == expected);
        if round % 2 == 0 {
            world.kill_daemon();
        }
    }
    caller.close_stdin();
    let done = caller.finish();
    assert_eq!((done.code, done.stdout == expected), (Some(0), true), "{done}");
}

// proves X3
#[test]
fn output_that_is_kept_leaves_a_daemon_with_few_descriptors_enough_of_them() {
    let world = world();
    // Whoever asks has the same limit: a task gets that of its caller, which may not be above that of the daemon.
    let few = |line: &str| world.shell(&format!("exec prlimit --nofile=64:64 \"$BELAY\" {line}"));
    few("up").ok();
    let daemon = world.daemon_pid();
    for number in 0..60 {
        let said = few(&format!("run -- echo {number}"));
        assert_eq!((said.code, said.line()), (Some(0), number.to_string()), "{said}");
    }
    let all: Vec<TaskInfo> = world.belay(["ps", "--all", "--json"]).ok().json_lines();
    assert_eq!(all.len(), 60);
    // The last one can still be looked at.
    let last = all.iter().max_by_key(|task| task.started_at).unwrap();
    assert_eq!(world.logs(&last.id), b"59\n");
    assert_eq!(world.daemon_pid(), daemon);
}

// proves D1, F3
#[test]
#[expect(clippy::disallowed_methods, reason = "a caller whose output is not read")]
fn output_of_ended_task_reaches_slow_caller_after_daemon_dies() {
    const BYTES: usize = 900_000;
    let world = world();
    let script = format!("head -c {BYTES} /dev/zero; exit 3");
    let mut command = world.command(BELAY);
    command.args(["run", "--", "sh", "-c", &script]).stdout(Stdio::piped());
    let mut caller = command.spawn().unwrap();
    wait_until("the end", LONG, || {
        let tasks: Vec<TaskInfo> = world.belay(["ps", "-a", "--json"]).ok().json_lines();
        match tasks.as_slice() {
            [task] if task.status.is_ended() => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    // Most of the output is neither in the pipe of the caller nor in the socket.
    world.kill_daemon();
    let mut read = Vec::new();
    caller.stdout.take().unwrap().read_to_end(&mut read).unwrap();
    assert_eq!(caller.wait().unwrap().code(), Some(3));
    assert!(read == vec![0; BYTES], "{} bytes", read.len());
}
