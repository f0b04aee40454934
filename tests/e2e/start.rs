//! Starting: recorded first, one task for one token, never a process without a record, secrets nowhere.

use std::collections::BTreeSet;
use std::path::Path;

use belay_client::{Client, Message, decode};
use belay_protocol::daemon::DaemonStatusResult;
use belay_protocol::event::EventKind;
use belay_protocol::life::StartStage;
use belay_protocol::methods::{EventFollow, Notification, TaskList, TaskStart, TaskStop};
use belay_protocol::task::{Outcome, StopVerdict, TaskInfo, TaskListParams, TaskStatus};
use belay_protocol::{ErrorKind, event};
use belay_testkit::{Frozen, LONG, Seen, World, freeze, look_at, wait_until};

use crate::support::{FOREVER, refused, stop_of, world};

fn all_tasks(world: &World) -> Vec<TaskInfo> {
    let params = TaskListParams { all: true, ..TaskListParams::default() };
    world.client().call::<TaskList>(&params).unwrap().tasks
}

/// Everybody of this world who is neither its daemon nor a shim.
fn others(world: &World) -> Vec<Seen> {
    let own: Vec<_> = world.shims().into_iter().chain(world.daemon()).map(|seen| seen.identity).collect();
    world.everybody().into_iter().filter(|seen| !own.contains(&seen.identity)).collect()
}

/// Starts a daemon that dies at a point of its work, and asks it to start something.
fn start_and_crash(point: &str) -> World {
    let world = world();
    world
        .belay_with(["up"], |command| {
            command.env("BELAY_CRASH_AT", point);
        })
        .ok();
    let daemon = world.daemon().unwrap().identity;
    let mut client = Client::connect(&world.paths()).unwrap();
    let error = client.call::<TaskStart>(&world.start_params(&["sleep", FOREVER])).unwrap_err();
    assert!(error.is_disconnect(), "the daemon should have died at {point}: {error}");
    wait_until("a dead daemon", LONG, || match look_at(daemon.pid) {
        Some(seen) if seen.identity == daemon => Err(format!("{seen:?}")),
        _ => Ok(()),
    });
    world
}

// proves S1
#[test]
fn a_daemon_that_dies_before_the_record_has_started_nothing() {
    let world = start_and_crash("before-create");
    assert_eq!(all_tasks(&world), []);
    // Idle shims of the daemon that died leave by themselves.
    wait_until("no process of a task", LONG, || match others(&world).as_slice() {
        [] => Ok(()),
        left => Err(format!("{left:?}")),
    });
}

// proves S1
#[test]
fn a_daemon_that_dies_after_the_record_leaves_the_record_and_no_process() {
    let world = start_and_crash("after-create");
    let tasks = all_tasks(&world);
    assert_eq!(tasks.len(), 1, "{tasks:?}");
    let task = world.wait_ended(&tasks[0].id);
    let Some(Outcome::Spawn { error, .. }) = &task.outcome else { panic!("{task:?}") };
    // The shim that was to have it left with the daemon, by itself: so it never had it.
    assert_eq!((task.status, error.what), (TaskStatus::Failed, StartStage::Holder));
    assert_eq!(error.message, "the daemon died while handing the command over: it was not started");
    assert_eq!(world.events_of(&task.id), [EventKind::TaskCreated, EventKind::TaskEnded]);
    assert_eq!(others(&world), []);
}

// proves S1, D1
#[test]
fn a_daemon_that_dies_after_the_start_leaves_a_task_that_is_known() {
    let world = start_and_crash("after-start");
    let tasks = all_tasks(&world);
    assert_eq!(tasks.len(), 1, "{tasks:?}");
    let task = world.get(&tasks[0].id);
    assert_eq!(task.status, TaskStatus::Running);
    let running = look_at(task.pid.unwrap()).unwrap();
    assert_eq!(running.cmdline, format!("sleep {FOREVER}"));
    assert_eq!(others(&world), [running]);
    assert_eq!(
        world.events_of(&task.id),
        [EventKind::TaskCreated, EventKind::TaskAdopted, EventKind::TaskStarted]
    );
}

// proves S2
#[test]
fn one_token_is_one_task_also_at_the_same_time() {
    let world = world();
    let mut params = world.start_params(&["sleep", FOREVER]);
    params.token = Some("deploy-7".to_owned());
    world.client();
    let ids: BTreeSet<String> = std::thread::scope(|scope| {
        let starts: Vec<_> = (0..8).map(|_| scope.spawn(|| world.start(&params).id)).collect();
        starts.into_iter().map(|start| start.join().unwrap()).collect()
    });
    assert_eq!(ids.len(), 1, "{ids:?}");
    let id = ids.first().unwrap();
    assert_eq!(world.events().iter().filter(|event| event.event.kind() == EventKind::TaskCreated).count(), 1);
    assert_eq!(others(&world).len(), 1);

    let by_hand = ["run", "-d", "--token", "deploy-7", "--cwd", "/", "--", "sleep", FOREVER];
    assert_eq!(world.belay(by_hand).ok().line(), *id, "the command line finds the same task");

    world.kill_daemon();
    assert_eq!(world.start(&params).id, *id, "after a restart of the daemon");

    world.stop(&stop_of(id));
    let again = world.start(&params);
    assert_eq!((again.id.as_str(), again.status), (id.as_str(), TaskStatus::Cancelled), "after its end");
    assert_eq!(others(&world), []);
}

// proves S2
#[test]
fn other_parameters_under_the_same_token_are_a_conflict() {
    let world = world();
    let mut params = world.start_params(&["sleep", FOREVER]);
    params.token = Some("t".to_owned());
    let id = world.start(&params).id;
    let mut other = params.clone();
    other.spec = belay_protocol::task::ShellCommand::argv(["sleep", "1001"]).into();
    let mut longer = params.clone();
    longer.ttl_ms = Some(90_000);
    let mut set = params.clone();
    set.set_env.insert("A".to_owned(), "b".into());
    for changed in [other, longer, set] {
        let error = refused(world.client().call::<TaskStart>(&changed));
        assert_eq!((error.data.kind, error.data.field.as_deref()), (ErrorKind::Conflict, Some("token")));
        assert_eq!(error.data.ids, [id.as_str()]);
    }
    assert_eq!(all_tasks(&world).len(), 1);
    assert_eq!(others(&world).len(), 1);
}

// proves S5, K5
#[test]
fn a_burst_of_starts_that_are_stopped_at_once_leaves_nobody() {
    const STARTS: usize = 50;
    let world = world();
    let (mut starter, mut stopper) = (world.client(), world.client());
    stopper.call::<EventFollow>(&event::EventFollowParams::default()).unwrap();
    let params = world.start_params(&["sleep", FOREVER]);
    for _ in 0..STARTS {
        starter.send::<TaskStart>(&params).unwrap();
    }
    // As soon as a task is recorded it is stopped: queued, starting or running.
    let mut answers = Vec::new();
    let deadline = Some(std::time::Instant::now() + LONG);
    while answers.len() < STARTS {
        match stopper.receive_by(deadline).unwrap() {
            Message::Notification(said) => {
                if let Notification::EventItem(item) = said
                    && let event::Event::TaskCreated { task, .. } = item.event.event
                {
                    stopper.send::<TaskStop>(&stop_of(&task)).unwrap();
                }
            }
            Message::Response(response) => {
                answers.push(decode::<TaskStop>(&response.result.unwrap()).unwrap());
            }
            other => panic!("{other:?}"),
        }
    }
    for answer in &answers {
        let receipt = answer.receipt.as_ref().unwrap();
        assert_eq!((answer.result, answer.status), (StopVerdict::Accepted, Some(TaskStatus::Cancelled)));
        assert_eq!(receipt.survivors, []);
        assert!(receipt.empty_at.is_some(), "{receipt:?}");
    }
    // Every start is answered too, with the id of a task that is being stopped or has been.
    let started: BTreeSet<String> = (0..STARTS)
        .map(|_| match starter.receive_by(deadline).unwrap() {
            Message::Response(response) => decode::<TaskStart>(&response.result.unwrap()).unwrap().id,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(started, answers.iter().map(|answer| answer.id.clone()).collect());
    assert_eq!(others(&world), []);
}

/// A task whose start no shim has read: those that are ready stand still.
fn start_unheard(world: &World, argv: &[&str]) -> (Client, Vec<Frozen>, TaskInfo) {
    let ready = wait_until("two shims that are ready", LONG, || {
        let (shims, status) = (world.shims(), { world.status() });
        if status.shims_ready == 2 && shims.len() == 2 { Ok(shims) } else { Err(format!("{status:?}")) }
    });
    let frozen = ready.iter().map(|shim| freeze(shim.identity.pid)).collect();
    let mut starter = world.client();
    starter.send::<TaskStart>(&world.start_params(argv)).unwrap();
    let task = wait_until("a task that is starting", LONG, || match all_tasks(world).as_slice() {
        [task] if task.status == TaskStatus::Starting => Ok(task.clone()),
        other => Err(format!("{other:?}")),
    });
    (starter, frozen, task)
}

/// What a daemon has said before it died is heard before the first word of the next.
// proves S1, D1, D2
#[test]
fn a_start_that_its_shim_had_not_read_when_the_daemon_died_is_begun_once() {
    let world = world();
    let (_starter, frozen, task) =
        start_unheard(&world, &["sh", "-c", &format!("echo begun; exec sleep {FOREVER}")]);
    let shims: Vec<i32> = world.shims().iter().map(|shim| shim.identity.pid).collect();
    world.kill_daemon();
    // It reaches for the shim before it answers anybody.
    assert_eq!(world.status().tasks_live, 1);
    drop(frozen);
    world.wait_for_output(&task.id, "its word", |said| said == b"begun\n");
    let task = world.inspect(&task.id);
    assert_eq!(task.status, TaskStatus::Running);
    assert!(shims.contains(&task.held_by.unwrap().shim_pid), "another shim began it");
    assert_eq!(
        world.events_of(&task.id),
        [EventKind::TaskCreated, EventKind::TaskAdopted, EventKind::TaskStarted]
    );
}

// proves S5
#[test]
fn a_start_that_is_stopped_before_its_pid_is_known_leaves_nobody() {
    let world = world();
    let (_starter, frozen, task) = start_unheard(&world, &["sleep", FOREVER]);
    let mut order = stop_of(&task.id);
    order.wait = false;
    assert_eq!(world.stop(&order).result, StopVerdict::Accepted);
    drop(frozen);
    assert_eq!(world.wait_ended(&task.id).status, TaskStatus::Cancelled);
    assert_eq!(others(&world), []);
}

// proves S6
#[test]
fn every_task_has_its_own_session_group_and_names() {
    let world = world();
    let own = look_at(i32::try_from(std::process::id()).unwrap()).unwrap();
    let seen: Vec<Seen> = (0..2)
        .map(|_| look_at(world.inspect(&world.run_detached(["sleep", FOREVER])).pid.unwrap()).unwrap())
        .collect();
    for task in &seen {
        assert_eq!(task.pgid, task.identity.pid, "it leads its own group");
        assert_ne!(task.sid, own.sid);
    }
    assert_ne!(seen[0].sid, seen[1].sid);

    let id = world.run_detached([
        "sh",
        "-c",
        r#"printf '%s %s %s' "$BELAY_TASK" "$BELAY_SESSION" "$BELAY_TOKEN""#,
    ]);
    world.wait_ended(&id);
    let said = String::from_utf8(world.logs(&id)).unwrap();
    let words: Vec<&str> = said.split(' ').collect();
    assert_eq!(words[..2], [id.as_str(), "user"]);
    let secret = words[2].strip_prefix(&format!("{id}.")).unwrap();
    assert_eq!(secret.len(), 32, "a token that cannot be guessed: {said}");
}

// proves S6, L2
#[test]
fn what_a_task_starts_is_its_child_and_a_wrong_token_is_refused() {
    let world = world();
    let belay = world.program().to_str().unwrap();
    let outer =
        world.run_detached(["sh", "-c", r#""$0" run -d --json -- sleep "$1"; sleep "$1""#, belay, FOREVER]);
    let said = world.wait_for_output(&outer, "the nested task", |said| said.ends_with(b"\n"));
    let inner: TaskInfo = serde_json::from_slice(&said).unwrap();
    assert_eq!(inner.parent.as_deref(), Some(outer.as_str()));
    assert_eq!(world.get(&inner.id).parent.as_deref(), Some(outer.as_str()));
    assert_eq!(world.get(&outer).parent, None);
    // Neither is in the other's tree: the child has a shim of its own.
    let holder = |id: &str| world.get(id).held_by.unwrap().shim_pid;
    assert_ne!(holder(&outer), holder(&inner.id));

    let forged = world.belay_with(["run", "-d", "--", "sleep", FOREVER], |command| {
        let token = format!("{outer}.0123456789abcdef0123456789abcdef");
        command.env("BELAY_TASK_HOME", world.home()).env("BELAY_TOKEN", token);
    });
    assert_eq!(forged.code, Some(1), "{forged}");
    assert_eq!(all_tasks(&world).len(), 2);
}

fn files_below(dir: &Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            files_below(&entry.path(), found);
        } else if kind.is_file() {
            found.push(entry.path());
        }
    }
}

#[track_caller]
fn assert_nowhere(world: &World, secrets: &[&str], id: &str) {
    let holds = |bytes: &[u8]| {
        secrets.iter().any(|secret| bytes.windows(secret.len()).any(|window| window == secret.as_bytes()))
    };
    let mut files = Vec::new();
    files_below(world.home(), &mut files);
    assert!(files.iter().any(|file| file.ends_with("journal.db")), "{files:?}");
    for file in files {
        assert!(!holds(&std::fs::read(&file).unwrap_or_default()), "a secret is in {}", file.display());
    }
    for args in [
        &["inspect", id][..],
        &["inspect", "--json", id],
        &["events", "--json"],
        &["events"],
        &["ps", "-a", "--json"],
        &["logs", "--raw", id],
        &["status", "--json"],
        &["doctor", "--json"],
    ] {
        let said = world.belay(args);
        assert!(!holds(&said.stdout) && !holds(&said.stderr), "belay {args:?} shows a secret: {said}");
    }
    let holders = world.shims().into_iter().chain(world.daemon());
    for pid in holders.map(|seen| seen.identity.pid) {
        for file in ["cmdline", "environ"] {
            let text = std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            assert!(!holds(&text), "a secret is in the {file} of {pid}");
        }
    }
}

// proves S7
#[test]
fn secrets_in_the_environment_are_nowhere() {
    let world = world();
    world.belay(["up"]).ok();
    let (set, inherited) = ("s3cr3t-Kq81-set", "s3cr3t-Zw42-inherited");
    // The task proves that it has them without showing them.
    let script = r#"[ "$A_KEY" = "$(printf 's3cr3t-Kq81-%s' set)" ] && [ "${#B_KEY}" = 21 ] && echo both; exec sleep "$0""#;
    let args =
        ["run", "-d", "--token", "x", "--env", &format!("A_KEY={set}"), "--", "sh", "-c", script, FOREVER];
    let start = |world: &World| {
        world.belay_with(args, |command| {
            command.env("B_KEY", inherited);
        })
    };
    let id = start(&world).ok().line();
    world.wait_for_output(&id, "both secrets in the task", |said| said == b"both\n");
    assert_nowhere(&world, &[set, inherited], &id);

    // A refused and a failed start keep them no better.
    let conflict = world.belay_with(["run", "-d", "--token", "x", "--", "true"], |command| {
        command.env("B_KEY", inherited);
    });
    assert_eq!(conflict.code, Some(1), "{conflict}");
    let failed =
        world.belay_with(["run", "--env", &format!("A_KEY={set}"), "--", "/no/such/program"], |command| {
            command.env("B_KEY", inherited);
        });
    assert_eq!(failed.code, Some(127), "{failed}");
    world.kill_daemon();
    world.belay(["stop", &id]).ok();
    assert_nowhere(&world, &[set, inherited], &id);
}

// proves S6
#[test]
fn a_daemon_of_another_home_inside_a_task_says_that_it_is_part_of_it() {
    let world = world();
    let script = r#"export BELAY_HOME="$1" BELAY_RUNTIME_DIR="$1/run"; "$0" up >&2; "$0" status --json; "$0" down >&2"#;
    let other = world.dir().join("other");
    let id =
        world.run_detached(["sh", "-c", script, world.program().to_str().unwrap(), other.to_str().unwrap()]);
    assert_eq!(world.wait_ended(&id).status, TaskStatus::Completed);
    let status: DaemonStatusResult = serde_json::from_slice(&world.stdout_of(&id)).unwrap();
    let notices: Vec<&str> = status.notices.iter().map(|notice| notice.message.as_str()).collect();
    let home = world.home().display();
    assert_eq!(notices, [format!("this daemon was started inside a task of another home, {home}")]);
}
