//! Old and new: clients and shims that speak another version are told so, and nothing that runs is given up for it.

use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use belay_protocol::daemon::DaemonStatusResult;
use belay_protocol::event::EventKind;
use belay_protocol::shim::{FromShim, Hello, ProcessId, SHIM_PROTOCOL};
use belay_protocol::task::{TaskInfo, TaskStatus};
use belay_testkit::{LONG, Seen, World, copy_program, end, finish, look_at, wait_until};
use serde_json::json;

use crate::raw::Raw;
use crate::support::{FOREVER, stop_of, world};

// proves D6
#[test]
fn a_client_of_another_version_is_told_which_side_is_old() {
    let world = world();
    world.belay(["up"]).ok();
    let version = env!("CARGO_PKG_VERSION");
    for (protocol, hint) in [
        (0, "the client is older than the daemon: install the newer belay"),
        (
            999,
            "the daemon is older than the client: run belay down, and the next command starts the new daemon; tasks run on",
        ),
    ] {
        let mut raw = Raw::silent(&world);
        let hello = json!({ "client": { "name": "harness", "version": "3\u{1b}[2J" }, "protocol": protocol, "new_field": true });
        let answer = raw.call("daemon/hello", &hello);
        let message =
            format!("harness 3[2J speaks protocol {protocol}, and this daemon ({version}) speaks 1 to 1");
        let expected = json!({
            "code": -32011, "message": message,
            "data": { "kind": "version", "field": "protocol", "hint": hint },
        });
        assert_eq!(answer["error"], expected);
        // It is told so again whatever it asks, and can still say a hello that fits.
        let answer = raw.call("task/list", &json!({}));
        assert_eq!(answer["error"]["data"]["kind"], "version");
        let answer = raw
            .call("daemon/hello", &json!({ "client": { "name": "harness", "version": "3" }, "protocol": 1 }));
        assert_eq!(answer["result"]["version"], version);
        assert_eq!(raw.call("task/list", &json!({}))["result"]["tasks"], json!([]));
    }
}

/// Stands where a shim was and speaks another version. Returns when a daemon has heard it.
struct FakeShim {
    real: PathBuf,
    aside: PathBuf,
    listener: UnixListener,
}

impl FakeShim {
    /// Takes the place of the one shim that has a socket; its process and its task go on.
    fn replace(world: &World) -> Self {
        let dir = world.home().join("run/s");
        let mut sockets: Vec<PathBuf> =
            std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(sockets.len(), 1, "{sockets:?}");
        let real = sockets.remove(0);
        let aside = world.dir().join("aside.sock");
        std::fs::rename(&real, &aside).unwrap();
        let listener = UnixListener::bind(&real).unwrap();
        Self { real, aside, listener }
    }

    fn greet(&self, protocol: u32, task: &TaskInfo) -> UnixStream {
        let held = task.held_by.as_ref().unwrap();
        let shim = look_at(held.shim_pid).unwrap().identity;
        let (mut stream, _) = self.listener.accept().unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        let mut length = [0; 4];
        stream.read_exact(&mut length).unwrap();
        let mut words = vec![0; u32::from_le_bytes(length) as usize];
        stream.read_exact(&mut words).unwrap();
        let hello = FromShim::Hello(Hello {
            protocol,
            version: "9.9.9".to_owned(),
            shim: "from another time".to_owned(),
            process: ProcessId { pid: shim.pid, start_ticks: shim.start_ticks },
            cgroup: held.cgroup.clone(),
            task: Some(task.id.clone()),
            queued: false,
            spec: None,
            memory: None,
        });
        let text = serde_json::to_vec(&hello).unwrap();
        stream.write_all(&u32::try_from(text.len()).unwrap().to_le_bytes()).unwrap();
        stream.write_all(&text).unwrap();
        stream
    }

    fn give_back(self) {
        std::fs::rename(&self.aside, &self.real).unwrap();
    }
}

/// A running task whose shim speaks this version to the next daemon.
fn with_a_shim_of(protocol: u32) -> (World, TaskInfo, FakeShim, UnixStream) {
    let world = world();
    let task = world.inspect(&world.run_detached(["sleep", FOREVER]));
    world.kill_daemon();
    wait_until("nobody but the shim and its task", LONG, || match world.everybody().len() {
        2 => Ok(()),
        _ => Err(format!("{:?}", world.everybody())),
    });
    let fake = FakeShim::replace(&world);
    let starting = world.spawn(["up", "--json"]);
    let connection = fake.greet(protocol, &task);
    let status: DaemonStatusResult = starting.finish().ok().json();
    let told = format!("the shim of {} speaks protocol {protocol}, which this daemon does not", task.id);
    assert_eq!(status.notices.iter().map(|notice| notice.message.as_str()).collect::<Vec<_>>(), [told]);
    assert_eq!(
        status.notices[0].hint.as_deref(),
        Some("run belay down, then any command of the newer belay")
    );
    let doctor = world.belay(["doctor"]);
    assert_eq!(doctor.code, Some(1), "{doctor}");
    // It is not given up: nobody touched it, and it is not said to have ended.
    assert!(look_at(task.pid.unwrap()).is_some());
    assert!(!world.get(&task.id).status.is_ended());
    assert_eq!(world.events_of(&task.id).iter().filter(|kind| **kind == EventKind::TaskEnded).count(), 0);
    (world, task, fake, connection)
}

/// A daemon that understands it adopts it.
fn is_adopted_by_the_right_daemon(protocol: u32) {
    let (world, task, fake, connection) = with_a_shim_of(protocol);
    world.belay(["down"]).ok();
    drop(connection);
    fake.give_back();
    let adopted = world.get(&task.id);
    assert_eq!((adopted.status, adopted.pid), (TaskStatus::Running, task.pid));
    let stopped = world.belay(["stop", &task.id]).ok().line();
    assert!(stopped.starts_with(&format!("{} stopped: SIGTERM to 1 process", task.id)), "{stopped}");
}

// proves D6
#[test]
fn a_shim_that_is_newer_than_the_daemon_is_left_alone() {
    is_adopted_by_the_right_daemon(SHIM_PROTOCOL + 1);
}

// proves D6
#[test]
fn a_shim_that_is_too_old_for_the_daemon_is_left_alone() {
    is_adopted_by_the_right_daemon(0);
}

// proves D6, K5
#[test]
fn a_task_whose_shim_is_not_understood_can_be_stopped() {
    let (world, task, _fake, _connection) = with_a_shim_of(SHIM_PROTOCOL + 1);
    let stopped = world.stop(&stop_of(&task.id));
    assert_eq!(stopped.status, Some(TaskStatus::Cancelled), "its cgroup proves it: {stopped:?}");
    assert_eq!(stopped.receipt.unwrap().survivors, []);
    assert_eq!(look_at(task.pid.unwrap()), None);
    let outcome = world.get(&task.id).outcome.unwrap();
    assert_eq!(outcome.survivors(), []);
}

// proves D6, D1
#[test]
fn a_shim_of_a_binary_that_is_no_more_is_adopted_by_the_new_one() {
    let world = world();
    let old = world.dir().join("older-belay");
    copy_program(world.program(), &old);
    let by_the_old = |args: &[&str]| {
        let mut command = world.command(&old);
        command.args(args);
        finish(command).ok()
    };
    let script = "echo one; read -r word; echo $word; exec sleep \"$0\"";
    let id = by_the_old(&["run", "-d", "--stdin", "--", "sh", "-c", script, FOREVER]).line();
    world.wait_for_output(&id, "the first word", |said| said == b"one\n");
    let task = world.inspect(&id);
    let shim = look_at(task.held_by.as_ref().unwrap().shim_pid).unwrap();
    let is_old = |seen: &Seen| seen.cmdline.starts_with(old.to_str().unwrap());
    assert!(is_old(&shim) && is_old(&world.daemon().unwrap()), "{shim:?}, {:?}", world.daemon());
    world.kill_daemon();
    std::fs::remove_file(&old).unwrap();
    let image = std::fs::read_link(format!("/proc/{}/exe", shim.identity.pid)).unwrap();
    assert_eq!(image.to_str().unwrap(), format!("{} (deleted)", old.display()));

    let adopted = world.inspect(&id);
    assert_eq!((adopted.status, adopted.pid), (TaskStatus::Running, task.pid));
    assert_eq!(adopted.held_by, task.held_by);
    let daemon = world.daemon().unwrap();
    assert!(daemon.cmdline.starts_with(world.program().to_str().unwrap()), "{daemon:?}");
    world.belay(["send", &id, "two"]).ok();
    world.wait_for_output(&id, "the second word", |said| said == b"one\ntwo\n");
    let stopped = world.stop(&stop_of(&id));
    assert_eq!(stopped.status, Some(TaskStatus::Cancelled));
    assert_eq!(stopped.receipt.unwrap().survivors, []);
    let mut events = world.events_of(&id);
    events.retain(|kind| *kind != EventKind::TaskLeaderExited);
    assert_eq!(
        events,
        [
            EventKind::TaskCreated,
            EventKind::TaskStarted,
            EventKind::TaskAdopted,
            EventKind::TaskStopping,
            EventKind::TaskEnded
        ]
    );
}

// proves D6, S1
#[test]
fn a_daemon_whose_program_is_no_more_goes_on_starting() {
    let world = world();
    let old = world.dir().join("older-belay");
    copy_program(world.program(), &old);
    let mut up = world.command(&old);
    up.arg("up");
    finish(up).ok();
    let daemon = world.daemon_pid();
    std::fs::remove_file(&old).unwrap();
    // More than stand ready, held at the same time.
    let held: Vec<String> = (0..12).map(|_| world.run_detached(["sleep", FOREVER])).collect();
    let said: TaskInfo = world.belay(["run", "--json", "-c", "true a b &"]).ok().json();
    assert_eq!((said.detached, said.command.as_str()), (true, "true a b"), "read by a process of its own");
    // Not taken for what a dead shim left.
    let first = world.inspect(&held[0]).held_by.unwrap().shim_pid;
    end(look_at(first).unwrap().identity);
    wait_until("one that is lost", LONG, || match world.get(&held[0]).status {
        TaskStatus::Lost => Ok(()),
        status => Err(format!("{status:?}")),
    });
    for id in &held[1..] {
        assert_eq!(world.get(id).status, TaskStatus::Running);
    }
    assert_eq!(world.daemon_pid(), daemon);
}
