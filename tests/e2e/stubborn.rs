//! Stops that are hard: whoever stands still, whoever comes too late, and whoever may not be killed.

use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use belay_client::Client;
use belay_protocol::ErrorKind;
use belay_protocol::daemon::{DaemonDoctorResult, FindingTopic, FindingVerdict};
use belay_protocol::event::EventKind;
use belay_protocol::life::StopLevel;
use belay_protocol::methods::{Method, TaskDetach, TaskResize, TaskSignal, TaskStart, TaskWrite};
use belay_protocol::task::{
    Outcome, OutcomeKind, StopVerdict, TaskDetachParams, TaskInfo, TaskResizeParams, TaskSignalParams,
    TaskStatus, TaskStopResult, TaskWriteParams, TerminalSize,
};
use belay_testkit::{LONG, World, end, example, freeze, look_at, wait_until};

use crate::support::{FOREVER, builder, refused, stop_of, with_shell, world};

// proves K2, K10
#[test]
fn a_tree_that_stands_still_is_stopped() {
    let world = world();
    let script = r#"sleep "$0" & kill -STOP $!; echo ready; kill -STOP $$; sleep "$0""#;
    let id = world.run_detached(["sh", "-c", script, FOREVER]);
    world.wait_for_output(&id, "ready", |said| said == b"ready\n");
    let pid = world.get(&id).pid.unwrap();
    wait_until("a leader that stands still", LONG, || match look_at(pid) {
        Some(seen) if seen.state == 'T' => Ok(()),
        other => Err(format!("{other:?}")),
    });
    let stopped: TaskStopResult = world.belay(["stop", "--json", "--grace", "200ms", &id]).ok().json();
    assert_eq!(stopped.status, Some(TaskStatus::Cancelled));
    assert_eq!(stopped.receipt.unwrap().survivors, []);
    world.wait_dead("the leader", pid);
}

// proves K10
#[test]
fn a_shim_that_stands_still_keeps_nobody_waiting() {
    let world = world();
    let id = world.run_detached(["sleep", FOREVER]);
    let other = world.run_detached(["sleep", FOREVER]);
    let shim = world.get(&id).held_by.unwrap().shim_pid;
    let frozen = freeze(shim);
    let before = Instant::now();
    let task = world.get(&id);
    assert_eq!((task.status, task.id.as_str()), (TaskStatus::Running, id.as_str()));
    assert!(before.elapsed() < Duration::from_secs(8), "it took {:?}", before.elapsed());
    let before = Instant::now();
    let listed: Vec<TaskInfo> = world.belay(["ps", "--json"]).ok().json_lines();
    assert_eq!(listed.len(), 2);
    assert_eq!(world.stop(&stop_of(&other)).status, Some(TaskStatus::Cancelled), "others are served");
    assert!(before.elapsed() < Duration::from_secs(8), "it took {:?}", before.elapsed());
    let mut order = stop_of(&id);
    (order.wait, order.reason) = (false, Some("first".to_owned()));
    assert_eq!(world.stop(&order).result, StopVerdict::Accepted);
    drop(frozen);
    let ended = world.wait_ended(&id);
    assert_eq!(ended.status, TaskStatus::Cancelled);
    assert_eq!(ended.outcome.unwrap().reason(), Some("first"));
}

/// Asks for what only the shim can do; the daemon must answer long before we give up.
#[track_caller]
fn assert_unanswered<M: Method>(client: &mut Client, params: &M::Params, perhaps: &str)
where
    M::Result: std::fmt::Debug,
{
    let error = refused(client.call_by::<M>(params, Some(Instant::now() + Duration::from_secs(8))));
    let told = (error.data.kind, error.message.as_str(), error.data.hint.as_deref());
    let hint = format!("look at it with inspect; {perhaps}");
    let expected = "the holder of the task did not answer in time";
    assert_eq!(told, (ErrorKind::Deadline, expected, Some(hint.as_str())), "{}", M::NAME);
}

// proves K10
#[test]
fn whatever_is_asked_of_a_shim_that_stands_still_is_answered() {
    let world = world();
    let script = format!("stty -echo; echo ready; read -r word; echo $word; stty size; sleep {FOREVER}");
    let size = TerminalSize { rows: 7, cols: 33 };
    let mut params = with_shell(world.start_params(&["sh", "-c", &script]), |shell| shell.pty = Some(size));
    params.detached = false;
    let mut client = world.client();
    let task = client.call::<TaskStart>(&params).unwrap();
    let id = task.id.clone();
    world.wait_for_output(&id, "ready", |said| said == b"ready\r\n");
    let frozen = freeze(world.get(&id).held_by.unwrap().shim_pid);
    let resize = TaskResizeParams { id: id.clone(), rows: 50, cols: 200 };
    assert_unanswered::<TaskResize>(&mut client, &resize, "the size may have been changed");
    let write =
        TaskWriteParams { id: id.clone(), data: "word\n".into(), close: false, key: None, room_ms: None };
    assert_unanswered::<TaskWrite>(&mut client, &write, "the write may have been accepted");
    let signal = TaskSignalParams { id: id.clone(), signal: "CONT".to_owned() };
    assert_unanswered::<TaskSignal>(&mut client, &signal, "the signal may have been sent");
    let detach = TaskDetachParams { id: id.clone(), actor: None };
    assert_unanswered::<TaskDetach>(&mut client, &detach, "it may still be detached");
    let said = world.belay(["send", &id, "more"]);
    let text = "error: the holder of the task did not answer in time\n \
                hint: look at it with inspect; the write may have been accepted\n";
    assert_eq!((said.code, String::from_utf8_lossy(&said.stderr).as_ref()), (Some(1), text));
    assert_eq!(world.logs(&id), b"ready\r\n");

    // Late, but all of it.
    drop(frozen);
    world.wait_for_output(&id, "what was asked for", |said| said == b"ready\r\nword\r\n50 200\r\n");
    wait_until("a detached task", LONG, || {
        let task = world.get(&id);
        if task.detached { Ok(()) } else { Err(format!("{task:?}")) }
    });
}

/// A task of three whose shim stands still: the task, everybody, and what thaws the shim at the end.
fn task_with_a_frozen_shim(world: &World) -> (TaskInfo, Vec<i32>, impl Sized) {
    let id =
        world.run_detached(["sh", "-c", &format!("sleep {FOREVER} & sleep {FOREVER} & echo ready; wait")]);
    world.wait_for_output(&id, "ready", |said| said == b"ready\n");
    let task = world.get(&id);
    let shim = task.held_by.as_ref().unwrap().shim_pid;
    let processes = task.processes.iter().flatten().map(|process| process.pid);
    let everybody: Vec<i32> = processes.chain([shim]).collect();
    assert_eq!(everybody.len(), 4, "{task:?}");
    (task, everybody, freeze(shim))
}

/// Stops the task and says what is proved; everybody must be dead.
fn stop_though_frozen(world: &World, how: &[&str]) -> (TaskStopResult, Outcome) {
    let (TaskInfo { id, .. }, everybody, _frozen) = task_with_a_frozen_shim(world);
    let words = [&["stop", "--reason", "stuck", "--json", &id], how].concat();
    let stopped: TaskStopResult = world.belay(words).ok().json();
    assert_eq!(stopped.result, StopVerdict::Accepted);
    for pid in everybody {
        world.wait_dead("somebody of the task", pid);
    }
    (stopped, world.get(&id).outcome.unwrap())
}

// proves K10, K3, K1
#[test]
fn a_shim_that_stands_still_does_not_keep_its_task_from_being_stopped() {
    for (how, asked) in [(&["--kill"][..], StopLevel::Kill), (&["--grace", "100ms"], StopLevel::Terminate)] {
        let (stopped, outcome) = stop_though_frozen(&world(), how);
        assert_eq!((stopped.status, outcome.reason()), (Some(TaskStatus::Cancelled), Some("stuck")));
        let receipt = stopped.receipt.unwrap();
        assert_eq!((receipt.survivors.as_slice(), receipt.empty_at.is_some()), (&[][..], true));
        let sent: Vec<_> =
            receipt.signals.iter().map(|sent| (sent.signal.as_str(), sent.processes)).collect();
        assert_eq!(sent, [("SIGKILL", 3)]);
        let Outcome::Cancelled { level, .. } = &outcome else { panic!("{outcome:?}") };
        assert_eq!((receipt.level, *level), (StopLevel::Kill, asked), "needed, and asked for");
        assert!(outcome.capture().is_some(), "what the shim had not read is missing, and that is told");
    }
}

// proves K10, K3, K6
#[test]
fn without_a_cgroup_a_task_that_is_stopped_without_its_shim_is_lost() {
    let (stopped, outcome) = stop_though_frozen(&builder().env("BELAY_CGROUP", "off").build(), &["--kill"]);
    assert_eq!((stopped.status, stopped.receipt), (Some(TaskStatus::Lost), None));
    assert_eq!((outcome.kind(), outcome.survivors()), (OutcomeKind::Lost, &[][..]));
    let known = outcome.reason().unwrap();
    let counted = "its shim was killed; 3 processes of its tree were found and killed; user:";
    let asked = " had asked for its stop, for: stuck";
    assert!(known.starts_with(counted) && known.ends_with(asked), "{known}");
}

// proves K10, K5, D1
#[test]
fn a_shim_that_stands_still_is_no_shelter_from_the_next_daemon_either() {
    let world = world();
    let (TaskInfo { id, .. }, everybody, _frozen) = task_with_a_frozen_shim(&world);
    world.kill_daemon();
    let stopped: TaskStopResult = world.belay(["stop", "--kill", "--json", &id]).ok().json();
    assert_eq!((stopped.result, stopped.status), (StopVerdict::Accepted, Some(TaskStatus::Cancelled)));
    for pid in everybody {
        world.wait_dead("somebody of the task", pid);
    }
    let mut events = world.events_of(&id);
    events.retain(|kind| *kind != EventKind::TaskAdopted);
    assert_eq!(
        events,
        [EventKind::TaskCreated, EventKind::TaskStarted, EventKind::TaskStopping, EventKind::TaskEnded]
    );
}

// proves K10, K3
#[test]
fn leaving_with_the_tasks_stopped_leaves_none_though_a_shim_stands_still() {
    let world = world();
    let (_, everybody, _frozen) = task_with_a_frozen_shim(&world);
    let told = world.belay(["down", "--stop-tasks", "--grace", "100ms"]).ok();
    assert!(told.line().ends_with("The daemon has ended."), "{told}");
    for pid in everybody {
        world.wait_dead("somebody of the task", pid);
    }
}

// proves R2, K3, K4
#[test]
fn a_command_that_ended_by_itself_before_the_stop_reached_it_is_not_cancelled() {
    let world = world();
    let gate = world.dir().join("gate");
    assert_eq!(world.shell(&format!("mkfifo {}", gate.display())).code, Some(0));
    let id = world.run_detached(["sh", "-c", r#"read -r _ < "$0"; exit 7"#, gate.to_str().unwrap()]);
    let task = world.get(&id);
    let frozen = freeze(task.held_by.unwrap().shim_pid);
    std::fs::write(&gate, "go\n").unwrap();
    world.wait_dead("the leader", task.pid.unwrap());
    let mut order = stop_of(&id);
    order.wait = false;
    assert_eq!(world.stop(&order).result, StopVerdict::Accepted);
    drop(frozen);
    let ended = world.wait_ended(&id);
    let outcome = ended.outcome.unwrap();
    assert_eq!(
        (ended.status, outcome.kind(), outcome.exit_code()),
        (TaskStatus::Failed, OutcomeKind::Exited, Some(7))
    );
    assert_eq!((outcome.actor(), outcome.receipt()), (None, None));
    let late: TaskStopResult = world.belay(["stop", "--json", &id]).ok().json();
    assert_eq!((late.result, late.status), (StopVerdict::AlreadyEnded, Some(TaskStatus::Failed)));
}

// proves K3, K7
#[test]
fn a_cascade_tells_what_failed_apart_from_what_was_stopped() {
    let world = builder().as_nobody().build();
    let zoo = world.reachable(&example("zoo"));
    std::fs::set_permissions(&zoo, std::fs::Permissions::from_mode(0o4755)).unwrap();
    let line = format!(r#""$0" run -d -- "$@"; exec sleep {FOREVER}"#);
    let [belay, zoo] = [world.program(), &zoo].map(|path| path.to_str().unwrap());
    let words = ["sh", "-c", &line, belay, zoo, "other-user", "0", "--marker", world.marker()];
    let above = world.run_detached(words);
    let below = world.wait_for_output(&above, "what it has started", |said| said.ends_with(b"\n"));
    let below = String::from_utf8(below).unwrap().trim_end().to_owned();
    world.wait_for_output(&below, "ready", |said| said == b"ready\n");
    let said = world.belay(["stop", "--cascade", "--kill", &above]);
    assert_eq!(said.code, Some(3), "{said}");
    let [told, failed] = [&said.stdout, &said.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    assert!(told.starts_with(&format!("{above} stopped: ")) && told.lines().count() == 1, "{said}");
    assert!(failed.starts_with(&format!("{below} stop failed: ")) && failed.lines().count() == 1, "{said}");
    for survivor in world.inspect(&below).outcome.unwrap().survivors() {
        end(look_at(survivor.pid).expect("the survivor is alive").identity);
    }
}

// proves K3
#[test]
fn a_process_that_may_not_be_killed_is_named() {
    let world = builder().as_nobody().build();
    // A program that becomes root: what it leaves is beyond an ordinary user's reach.
    let zoo = world.reachable(&example("zoo"));
    std::fs::set_permissions(&zoo, std::fs::Permissions::from_mode(0o4755)).unwrap();
    let id = world.run_detached([zoo.to_str().unwrap(), "other-user", "0", "--marker", world.marker()]);
    world.wait_for_output(&id, "ready", |said| said == b"ready\n");
    let said = world.belay(["stop", "--json", "--kill", "--reason", "try", &id]);
    assert_eq!(said.code, Some(3), "{said}");
    let stopped: TaskStopResult = said.json();
    assert_eq!((stopped.result, stopped.status), (StopVerdict::Accepted, Some(TaskStatus::StopFailed)));
    let receipt = stopped.receipt.unwrap();
    let [survivor] = receipt.survivors.as_slice() else { panic!("one survivor: {receipt:?}") };
    let seen = look_at(survivor.pid).expect("the survivor is alive");
    let expected = (seen.identity.start_ticks, 0, seen.cmdline.as_str());
    assert_eq!((survivor.start_ticks, survivor.uid, survivor.command.as_str()), expected);
    assert_eq!(receipt.empty_at, None);
    let [sent] = receipt.signals.as_slice() else { panic!("{receipt:?}") };
    assert_eq!((sent.signal.as_str(), sent.refused), ("SIGKILL", 1));
    let outcome = world.inspect(&id).outcome.unwrap();
    assert_eq!((outcome.kind(), outcome.survivors()), (OutcomeKind::StopFailed, &receipt.survivors[..]));
    assert_eq!(world.belay(["wait", &id]).code, Some(3));
    let told = |world: &World| -> Vec<(FindingVerdict, String)> {
        let findings: DaemonDoctorResult = world.belay(["doctor", "--json"]).json();
        let ours = findings.findings.into_iter().filter(|finding| finding.topic == FindingTopic::Survivors);
        ours.map(|finding| (finding.verdict, finding.message)).collect()
    };
    let (pid, command) = (survivor.pid, &survivor.command);
    let expected = format!(
        "could not stop all processes of task {id}: 1 still alive, such as pid {pid} ({command}, user root)"
    );
    assert_eq!(told(&world), [(FindingVerdict::Problem, expected)]);
    end(seen.identity);
    assert_eq!(told(&world), [], "it is gone");
}
