//! Starts that cannot be: each ends `failed` and names what was missing, and the daemon goes on.

use std::os::unix::fs::PermissionsExt as _;

use belay_protocol::daemon::DaemonStatusResult;
use belay_protocol::event::EventKind;
use belay_protocol::life::StartStage;
use belay_protocol::methods::TaskStart;
use belay_protocol::task::{Outcome, OutcomeKind, SpawnError, TaskInfo, TaskStatus};
use belay_testkit::{LONG, World, wait_until};

use crate::support::{FOREVER, builder, stop_of, world};

const ENOENT: i32 = 2;
const E2BIG: i32 = 7;
const EAGAIN: i32 = 11;
const EACCES: i32 = 13;
const ENOTDIR: i32 = 20;

#[track_caller]
fn assert_not_started(task: &TaskInfo, what: StartStage, errno: i32, message: &str) {
    let error = SpawnError { what, errno: Some(errno), message: message.to_owned() };
    assert_eq!(task.outcome, Some(Outcome::Spawn { error, capture: None }));
    assert_eq!((task.status, task.pid), (TaskStatus::Failed, None), "{task:?}");
}

/// Runs something that cannot be started in the foreground.
#[track_caller]
fn cannot_start(world: &World, args: &[&str], code: i32) -> TaskInfo {
    let said = world.belay([&["run", "--json"], args].concat());
    assert_eq!(said.code, Some(code), "{said}");
    said.json()
}

// proves S3
#[test]
fn what_is_missing_is_named() {
    let world = world();
    world.belay(["up"]).ok();
    let daemon = world.daemon_pid();
    let file = world.dir().join("file");
    std::fs::write(&file, "just text\n").unwrap();
    let file = file.to_str().unwrap();
    let task = cannot_start(&world, &["--", "/no/such/program", "x"], 127);
    assert_not_started(&task, StartStage::Program, ENOENT, "the program \"/no/such/program\" does not exist");
    let task = cannot_start(&world, &["--", "no-such-program-at-all"], 127);
    assert_not_started(
        &task,
        StartStage::Program,
        ENOENT,
        "the program \"no-such-program-at-all\" was not found in PATH",
    );
    let task = cannot_start(&world, &["-c", "true", "--shell", "/no/such/shell"], 127);
    assert_not_started(&task, StartStage::Shell, ENOENT, "the shell \"/no/such/shell\" does not exist");
    let task = cannot_start(&world, &["--cwd", "/no/such/dir", "--", "true"], 126);
    let system = "No such file or directory (os error 2)";
    assert_not_started(
        &task,
        StartStage::Cwd,
        ENOENT,
        &format!("the working directory \"/no/such/dir\" cannot be entered: {system}"),
    );
    let task = cannot_start(&world, &["--cwd", file, "--", "true"], 126);
    let system = "Not a directory (os error 20)";
    assert_not_started(
        &task,
        StartStage::Cwd,
        ENOTDIR,
        &format!("the working directory {file:?} cannot be entered: {system}"),
    );
    let task = cannot_start(&world, &["--", file], 126);
    let system = "Permission denied (os error 13)";
    assert_not_started(
        &task,
        StartStage::Program,
        EACCES,
        &format!("the program {file:?} cannot be executed: {system}"),
    );
    assert_eq!(world.belay(["run", "--", "echo", "well"]).ok().stdout, b"well\n");
    assert_eq!(world.daemon_pid(), daemon, "the daemon never left");
}

// proves S3
#[test]
fn what_an_ordinary_user_may_not_use_is_named() {
    let world = builder().as_nobody().build();
    let closed = world.dir().join("closed");
    std::fs::create_dir(&closed).unwrap();
    let enter_only = world.dir().join("enter-only");
    std::fs::create_dir(&enter_only).unwrap();
    let shell = world.dir().join("shell");
    std::fs::write(&shell, "#!/bin/sh\n").unwrap();
    for (path, mode) in [(&closed, 0o700), (&enter_only, 0o711), (&shell, 0o644)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let system = "Permission denied (os error 13)";
    let task = cannot_start(&world, &["--cwd", closed.to_str().unwrap(), "--", "true"], 126);
    let message = format!("the working directory {closed:?} cannot be entered: {system}");
    assert_not_started(&task, StartStage::Cwd, EACCES, &message);
    let task = cannot_start(&world, &["-c", "true", "--shell", shell.to_str().unwrap()], 126);
    assert_not_started(
        &task,
        StartStage::Shell,
        EACCES,
        &format!("the shell {shell:?} cannot be executed: {system}"),
    );
    // One that cannot be read can be entered all the same.
    let said = world.belay(["run", "--cwd", enter_only.to_str().unwrap(), "--", "pwd"]).ok();
    assert_eq!(said.line(), enter_only.to_str().unwrap());
}

// proves S3
#[test]
fn a_detached_start_that_fails_says_so_and_gives_the_id() {
    let world = world();
    let said = world.belay(["run", "-d", "--", "/no/such/program"]);
    assert_eq!(said.code, Some(127), "{said}");
    let id = said.line();
    let text = "could not be started: program: the program \"/no/such/program\" does not exist";
    assert_eq!(String::from_utf8_lossy(&said.stderr), format!("error: {id} {text}\n"));
    assert_eq!(world.belay(["wait", &id]).code, Some(127));
    assert_eq!(world.events_of(&id), [EventKind::TaskCreated, EventKind::TaskEnded]);
}

// proves S3
#[test]
fn an_argument_list_that_is_too_long_is_named() {
    let world = world();
    let long = "x".repeat(300_000);
    let task = world.client().call::<TaskStart>(&world.start_params(&["true", &long])).unwrap();
    let message = "arguments and environment are too long for the system: argument list too long";
    assert_not_started(&task, StartStage::Arguments, E2BIG, message);
    assert_eq!(world.belay(["wait", &task.id]).code, Some(126));
    assert_eq!(world.belay(["run", "--", "echo", "well"]).ok().stdout, b"well\n");
}

// proves S3
#[test]
fn a_command_without_descriptors_fails_by_itself_and_truthfully() {
    const NOFILE: u64 = 7;
    let world = world();
    // Room for the three standard streams and nothing else: not even a library can be opened.
    let mut params = world.start_params(&["sh", "-c", "exec 3</dev/null"]);
    params.rlimits = vec![[NOFILE, 3, 3]];
    let id = world.start(&params).id;
    let ended = world.wait_ended(&id);
    let outcome = ended.outcome.unwrap();
    assert_eq!((ended.status, outcome.kind()), (TaskStatus::Failed, OutcomeKind::Exited));
    assert!(outcome.exit_code().is_some_and(|code| code != 0), "{:?}", outcome.exit_code());
    assert_ne!(world.logs(&id), b"", "the command says itself what it lacked");
}

// proves S3
#[test]
fn a_daemon_that_has_no_descriptors_left_refuses_and_recovers() {
    let world = world();
    world.shell("ulimit -n 48 && exec \"$BELAY\" up").ok();
    let daemon = world.daemon_pid();
    let mut client = world.client();
    let params = world.start_params(&["sleep", FOREVER]);
    let mut running = Vec::new();
    // More than the limit allows in any case: one descriptor a task, at least.
    let failed = (0..60).find_map(|_| {
        let task = client.call::<TaskStart>(&params).unwrap();
        if task.status == TaskStatus::Running {
            running.push(task.id);
            return None;
        }
        Some(task)
    });
    let failed = failed.expect("sixty tasks do not fit into 48 descriptors");
    let Some(Outcome::Spawn { error, .. }) = failed.outcome else { panic!("{failed:?}") };
    assert_eq!((failed.status, error.what), (TaskStatus::Failed, StartStage::Resources));
    assert!(running.len() > 5, "only {} tasks fitted", running.len());

    for id in running {
        let mut order = stop_of(&id);
        order.grace_ms = Some(200);
        let stopped = client.call::<belay_protocol::methods::TaskStop>(&order).unwrap();
        assert_eq!(stopped.status, Some(TaskStatus::Cancelled));
    }
    assert_eq!(client.call::<TaskStart>(&params).unwrap().status, TaskStatus::Running);
    assert_eq!(world.daemon_pid(), daemon);
}

// proves S3
#[test]
fn a_user_who_may_have_no_more_processes_is_told() {
    let world = builder().as_nobody().build();
    world.belay(["up"]).ok();
    let limit = |pid: i32| world.shell(&format!("prlimit --pid {pid} --nproc=1:1")).ok();
    let wait_for_ready_shims = || {
        wait_until("ready shims", LONG, || {
            match world.belay(["status", "--json"]).ok().json::<DaemonStatusResult>().shims_ready {
                2.. => Ok(()),
                ready => Err(format!("{ready} are ready")),
            }
        });
    };
    wait_for_ready_shims();
    // A shim that may not fork.
    for shim in world.shims() {
        limit(shim.identity.pid);
    }
    let task = cannot_start(&world, &["--", "true"], 126);
    let system = "Resource temporarily unavailable (os error 11)";
    assert_not_started(
        &task,
        StartStage::Resources,
        EAGAIN,
        &format!("no new process could be made: {system}"),
    );
    world.belay(["down"]).ok();

    // None of the limited shims is left for the next daemon.
    wait_until("no shim", LONG, || match world.shims().as_slice() {
        [] => Ok(()),
        left => Err(format!("{left:?}")),
    });
    // A daemon that may not start another shim: the ready ones still serve.
    world.belay(["up"]).ok();
    let daemon = world.daemon_pid();
    wait_for_ready_shims();
    limit(daemon);
    let ran: Vec<_> = (0..12).map(|_| world.belay(["run", "-d", "--json", "--", "sleep", FOREVER])).collect();
    let tasks: Vec<TaskInfo> = ran.iter().map(belay_testkit::Output::json).collect();
    let failed =
        tasks.iter().find(|task| task.status != TaskStatus::Running).expect("twelve tasks without a fork");
    let Some(Outcome::Spawn { error, .. }) = &failed.outcome else { panic!("{failed:?}") };
    assert_eq!((failed.status, error.what), (TaskStatus::Failed, StartStage::Resources));
    assert_eq!(tasks[0].status, TaskStatus::Running, "{:?}", tasks[0].outcome);
    assert_eq!(world.daemon_pid(), daemon);
}
