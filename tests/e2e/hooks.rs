//! What is run when a task has ended: once, with the facts, whatever dies when.

use std::path::{Path, PathBuf};

use belay_client::{Client, ClientError};
use belay_protocol::error::ErrorKind;
use belay_protocol::methods::TaskStart;
use belay_protocol::task::{TaskInfo, TaskStartParams, TaskStatus};
use belay_testkit::{LONG, World, is_alive, look_at, wait_until};

use crate::support::{FOREVER, refused, world};

/// All tasks, newest first.
#[track_caller]
fn tasks(world: &World) -> Vec<TaskInfo> {
    world.belay(["ps", "-a", "--json"]).ok().json_lines()
}

/// Waits until every task has ended and there are so many.
#[track_caller]
fn wait_for_ends(world: &World, many: usize) -> Vec<TaskInfo> {
    wait_until("all to end", LONG, || {
        let all = tasks(world);
        let over = all.iter().all(|task| task.status.is_ended());
        if over && all.len() == many { Ok(all) } else { Err(format!("{all:#?}")) }
    })
}

#[track_caller]
fn wait_for_text(path: &Path) -> String {
    wait_until("the hook's file", LONG, || match std::fs::read_to_string(path) {
        Ok(text) if text.ends_with('\n') => Ok(text),
        other => Err(format!("{other:?}")),
    })
}

/// A hook that adds a line for each of its runs, and where that is.
fn adds_a_line(world: &World) -> (String, PathBuf) {
    let path = world.dir().join("runs");
    (format!("echo \"$BELAY_TASK_ID\" >> {}", path.display()), path)
}

// proves W3
#[test]
fn a_hook_is_told_how_the_task_ended() {
    let world = world();
    let path = world.dir().join("facts");
    let line = format!(
        "pwd > {0}.cwd; env | grep ^BELAY_TASK_ | grep -v ^BELAY_TASK_HOME= | sort > {0}",
        path.display()
    );
    let dir = world.dir().to_str().unwrap().to_owned();
    let id = world.run_detached([
        "--name",
        "build it",
        "--cwd",
        &dir,
        "--notify",
        &line,
        "--",
        "sh",
        "-c",
        "echo out; exit 7",
    ]);
    let task = world.wait_ended(&id);
    let facts = wait_for_text(&path);
    let expected = format!(
        "BELAY_TASK_COMMAND=sh -c 'echo out; exit 7'\nBELAY_TASK_ENDED_AT={}\nBELAY_TASK_EXIT_CODE=7\nBELAY_TASK_ID={id}\n\
         BELAY_TASK_NAME=build it\nBELAY_TASK_OUTPUT_BYTES=4\nBELAY_TASK_SESSION={}\nBELAY_TASK_STARTED_AT={}\nBELAY_TASK_STATUS=failed\n",
        task.ended_at.unwrap(),
        task.session,
        task.started_at.unwrap(),
    );
    assert_eq!(facts, expected);
    assert_eq!(std::fs::read_to_string(format!("{}.cwd", path.display())).unwrap(), format!("{dir}\n"));
    let hook = wait_for_ends(&world, 2).into_iter().find(|other| other.id != id).unwrap();
    assert_eq!(
        (hook.name, hook.parent, hook.status),
        (Some(format!("notify {id}")), Some(id), TaskStatus::Completed)
    );

    // By a stop, with who and why.
    let path = world.dir().join("stopped");
    let line = format!(
        "echo \"$BELAY_TASK_STATUS $BELAY_TASK_SIGNAL $BELAY_TASK_REASON $BELAY_TASK_ACTOR\" > {}",
        path.display()
    );
    let id = world.run_detached(["--notify", &line, "--", "sleep", FOREVER]);
    world.belay(["stop", &id, "--reason", "too slow"]).ok();
    let outcome = world.get(&id).outcome.unwrap();
    let actor = outcome.actor().unwrap();
    assert_eq!(wait_for_text(&path), format!("cancelled 15 too slow {actor}\n"));
}

// proves W3
#[test]
fn a_hook_for_every_task_runs_once_for_each_and_never_for_a_hook() {
    let world = world();
    let (line, path) = adds_a_line(&world);
    world.belay(["config", "set", "hooks.on_end", &line]).ok();
    let first = world.run_detached(["true"]);
    wait_for_ends(&world, 2);
    world.belay(["run", "--", "true"]).ok();
    let all = wait_for_ends(&world, 4);
    let second = all.iter().find(|task| task.command == "true" && task.id != first).unwrap();
    assert_eq!(wait_for_text(&path), format!("{first}\n{}\n", second.id));

    // Both its own and that for all, of a program with arguments.
    let script = world.dir().join("two words.sh");
    std::fs::write(&script, "echo \"$1\" >> \"$2\"\n").unwrap();
    let both = world.dir().join("both");
    let words = serde_json::json!(["sh", script, "for all", both]).to_string();
    world.belay(["config", "set", "hooks.on_end", &words]).ok();
    world.run_detached(["--notify", &format!("echo own >> {}", both.display()), "--", "true"]);
    wait_for_ends(&world, 7);
    let mut lines: Vec<String> = wait_for_text(&both).lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["for all", "own"]);
}

// proves W3
#[test]
fn what_a_hook_starts_has_no_hooks() {
    let world = world();
    let line = format!("{} run -- true", world.program().display());
    world.belay(["config", "set", "hooks.on_end", &line]).ok();
    world.belay(["run", "--", "true"]).ok();
    // The task, its hook, and what that started: a hook of that would be there as soon as it has ended.
    wait_for_ends(&world, 3);
}

// proves W3
#[test]
fn a_hook_that_fails_or_hangs_is_seen_and_hurts_nobody() {
    let world = world();
    let gone = world.dir().join("gone");
    std::fs::create_dir(&gone).unwrap();
    let words = ["--cwd", gone.to_str().unwrap(), "--notify", "echo no good >&2; pwd; exit 9", "--", "rmdir"];
    let id = world.run_detached(words.iter().copied().chain([gone.to_str().unwrap()]));
    assert_eq!(world.wait_ended(&id).status, TaskStatus::Completed);
    let hook = wait_for_ends(&world, 2).into_iter().find(|task| task.id != id).unwrap();
    let outcome = hook.outcome.unwrap();
    assert_eq!((hook.status, outcome.exit_code()), (TaskStatus::Failed, Some(9)));
    assert_eq!(world.stdout_of(&hook.id), b"/\n", "its directory is gone");

    let id = world.run_detached(["--notify", &format!("sleep {FOREVER}"), "--", "true"]);
    world.wait_ended(&id);
    let hook = wait_until("the hook to run", LONG, || {
        let running: Vec<TaskInfo> = world.belay(["ps", "--json"]).ok().json_lines();
        running.into_iter().find(|task| task.status == TaskStatus::Running).ok_or_else(String::new)
    });
    assert_eq!(world.inspect(&hook.id).clocks.ttl.unwrap().limit_ms, 60_000);
    assert_eq!(world.get(&id).status, TaskStatus::Completed);
}

// proves W3, D1, D2
#[test]
fn a_hook_runs_once_wherever_the_daemon_dies() {
    let points = [
        "before-create",
        "after-create",
        "after-start",
        "before-life",
        "after-life",
        "before-end",
        "after-end",
        "after-ack",
        // Of the hook's own task.
        "before-create:1",
        "after-create:1",
        "after-start:1",
        "before-end:1",
        "after-end:1",
        "after-ack:1",
        "before-flush",
        "after-flush",
    ];
    for point in points {
        let world = world();
        world
            .belay_with(["up"], |command| {
                command.env("BELAY_CRASH_AT", point);
            })
            .ok();
        let daemon = world.daemon().unwrap().identity;
        let (line, path) = adds_a_line(&world);
        let params = TaskStartParams {
            notify: Some(line),
            token: Some("once".to_owned()),
            ..world.start_params(&["sh", "-c", "exit 3"])
        };
        let answer = Client::connect(&world.paths()).unwrap().call::<TaskStart>(&params);
        assert!(!matches!(answer, Err(ClientError::Rpc(_))), "{point}: refused: {answer:?}");
        wait_until(&format!("the daemon's death at {point}"), LONG, || {
            if is_alive(daemon) { Err(format!("{:?}", look_at(daemon.pid))) } else { Ok(()) }
        });
        // Whoever was not answered asks again, and it is the same task.
        let id = world.start(&params).id;
        assert_eq!(wait_for_text(&path), format!("{id}\n"), "{point}");
        wait_until("all to end", LONG, || {
            let all = tasks(&world);
            if all.iter().all(|task| task.status.is_ended()) { Ok(()) } else { Err(format!("{all:?}")) }
        });
        // The next one finds nothing left to do.
        world.kill_daemon();
        world.belay(["up"]).ok();
        let before = tasks(&world).len();
        world.belay(["down"]).ok();
        world.belay(["up"]).ok();
        assert_eq!(tasks(&world).len(), before, "{point}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{id}\n"), "{point}");
    }
}

// proves W3, D2
#[test]
fn a_task_that_ends_without_a_daemon_has_its_hook_when_there_is_one() {
    let world = world();
    let (line, path) = adds_a_line(&world);
    let id = world.run_detached(["--ttl", "300ms", "--notify", &line, "--", "sleep", FOREVER]);
    let leader = world.get(&id).pid.unwrap();
    world.kill_daemon();
    world.wait_dead("the leader", leader);
    assert!(!path.exists());
    world.belay(["up"]).ok();
    assert_eq!(wait_for_text(&path), format!("{id}\n"));
    // Those of tasks that were stopped with the daemon wait for the next one.
    let second = world.run_detached(["--notify", &line, "--", "sleep", FOREVER]);
    world.belay(["down", "--stop-tasks"]).ok();
    world.belay(["up"]).ok();
    wait_until("the second line", LONG, || match std::fs::read_to_string(&path).unwrap() {
        text if text == format!("{id}\n{second}\n") => Ok(()),
        text => Err(text),
    });
}

// proves W3, X2
#[test]
fn a_line_that_cannot_be_run_is_refused() {
    let world = world();
    for line in ["", " ", "a\0b", &"x".repeat(20_000)] {
        let params = TaskStartParams { notify: Some(line.to_owned()), ..world.start_params(&["true"]) };
        let error = refused(world.client().call::<TaskStart>(&params));
        assert_eq!((error.data.kind, error.data.field.as_deref()), (ErrorKind::Invalid, Some("notify")));
    }
}
