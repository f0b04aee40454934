//! Days on which the paths are wrong: a home that is none, directories of others, paths that are too long, and files
//! that somebody removed. Each has an outcome that is told, and a way out that works.

use std::ffi::OsStr;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::Path;
use std::time::Duration;

use belay_os::signal::Signal;
use belay_protocol::daemon::{DaemonStatusParams, DaemonStatusResult};
use belay_protocol::methods::DaemonStatus;
use belay_protocol::task::{Outcome, TaskInfo, TaskStatus};
use belay_testkit::{Frozen, LONG, NOBODY, Output, World, freeze, send_signal, wait_until};

use crate::support::{FOREVER, builder, running, world};

/// `belay` with another home than the world's own. Its daemon makes no cgroup, which the world would not remove.
fn in_home<A: AsRef<OsStr>>(world: &World, home: &Path, args: impl IntoIterator<Item = A>) -> Output {
    world.belay_with(args, |command| {
        command.env("BELAY_HOME", home).env("BELAY_CGROUP", "off");
    })
}

#[track_caller]
fn assert_said(output: &Output, code: i32, stderr: &str) {
    let said = (output.code, String::from_utf8_lossy(&output.stderr).into_owned());
    assert_eq!(said, (Some(code), stderr.to_owned()));
    assert_eq!(output.stdout, b"");
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[track_caller]
fn assert_well(output: Output) {
    assert_eq!((output.ok().stdout.as_slice()), b"well\n");
}

const ECHO: [&str; 4] = ["run", "--", "echo", "well"];

// proves X1, X2
#[test]
fn a_home_that_is_a_file() {
    let world = world();
    let home = world.dir().join("file");
    std::fs::write(&home, "mine").unwrap();
    let problem = format!("the home {} is not a directory", home.display());
    let hint = "remove it, or set BELAY_HOME to a directory of yours";
    assert_said(&in_home(&world, &home, ECHO), 4, &format!("error: {problem}\n hint: {hint}\n"));
    let doctor = in_home(&world, &home, ["doctor"]);
    assert_eq!(doctor.code, Some(1), "{doctor}");
    assert_eq!(std::fs::read(&home).unwrap(), b"mine", "it is left as it is");
    std::fs::remove_file(&home).unwrap();
    assert_well(in_home(&world, &home, ECHO));
    in_home(&world, &home, ["down"]).ok();
}

// proves X1
#[test]
fn a_home_of_somebody_else() {
    let world = world();
    chown(world.home(), Some(NOBODY), Some(NOBODY)).unwrap();
    let home = world.home().display();
    let problem = format!(
        "the home {home} belongs to user {NOBODY}, not to user 0; set BELAY_HOME to another directory"
    );
    let hint = "`belay doctor` looks at what a daemon needs";
    let expected = format!("error: the daemon could not be started: {problem}\n hint: {hint}\n");
    assert_said(&world.belay(ECHO), 4, &expected);
    chown(world.home(), Some(0), Some(0)).unwrap();
    assert_well(world.belay(ECHO));
}

// proves X1
#[test]
fn a_runtime_directory_that_others_could_use() {
    let world = world();
    let run = world.home().join("run");
    let shown = run.display();
    let refused = |problem: &str, hint: &str| {
        let expected = format!("error: the runtime directory {shown} {problem}\n hint: {hint}\n");
        assert_said(&world.belay(ECHO), 4, &expected);
        assert_said(&world.belay(["status"]), 4, &expected);
        assert_eq!(world.belay(["doctor"]).code, Some(1));
    };
    let elsewhere = "remove it, or set BELAY_RUNTIME_DIR to a directory of yours";

    std::fs::create_dir(&run).unwrap();
    set_mode(&run, 0o777);
    refused("is open to others (mode 0777)", &format!("chmod 700 {shown}"));
    set_mode(&run, 0o700);
    chown(&run, Some(NOBODY), Some(NOBODY)).unwrap();
    refused(&format!("belongs to another user (uid {NOBODY})"), elsewhere);
    std::fs::remove_dir(&run).unwrap();
    let target = world.dir().join("target");
    std::fs::create_dir(&target).unwrap();
    set_mode(&target, 0o700);
    symlink(&target, &run).unwrap();
    refused("is a symbolic link", elsewhere);
    assert_eq!(std::fs::read_dir(&target).unwrap().count(), 0, "nothing was put behind the link");
    std::fs::remove_file(&run).unwrap();
    std::fs::write(&run, "").unwrap();
    refused("is not a directory", elsewhere);
    std::fs::remove_file(&run).unwrap();
    assert_well(world.belay(ECHO));
}

// proves X1
#[test]
fn a_runtime_directory_below_a_directory_of_somebody_else() {
    let world = world();
    let above = world.dir().join("theirs");
    std::fs::create_dir(&above).unwrap();
    chown(&above, Some(NOBODY), Some(NOBODY)).unwrap();
    let said = world.belay_with(ECHO, |command| {
        command.env("BELAY_RUNTIME_DIR", above.join("run"));
    });
    let problem = format!(
        "the directory above the runtime directory, {} belongs to user {NOBODY}, not to user 0; \
         set BELAY_RUNTIME_DIR to another directory",
        above.display()
    );
    let hint = "`belay doctor` looks at what a daemon needs";
    assert_said(&said, 4, &format!("error: the daemon could not be started: {problem}\n hint: {hint}\n"));
}

// proves X2
#[test]
fn a_socket_path_that_is_too_long() {
    let world = world();
    let long = world.dir().join("d".repeat(100));
    let said = world.belay_with(ECHO, |command| {
        command.env("BELAY_RUNTIME_DIR", &long);
    });
    let (shown, length) = (long.display(), long.as_os_str().len());
    let problem =
        format!("BELAY_RUNTIME_DIR is too long for sockets: {shown} has {length} bytes, and at most 83 fit");
    let hint = "set BELAY_RUNTIME_DIR to a shorter path such as /tmp/belay-run, or unset it";
    assert_said(&said, 4, &format!("error: {problem}\n hint: {hint}\n"));

    // One that nobody asked for gives way to a short one, of this home alone.
    let home = world.home().join("d".repeat(100));
    assert_well(in_home(&world, &home, ECHO));
    let status: DaemonStatusResult = in_home(&world, &home, ["status", "--json"]).ok().json();
    let run = Path::new(status.runtime_dir.as_os_str());
    assert_eq!(run.parent(), Some(Path::new("/tmp/belay-0")));
    assert_eq!(run.metadata().unwrap().permissions().mode() & 0o7777, 0o700);
    let id = in_home(&world, &home, ["run", "-d", "--", "sleep", FOREVER]).ok().line();
    let down = in_home(&world, &home, ["down", "--stop-tasks"]).ok().line();
    assert!(down.starts_with(&format!("{id} stopped: ")), "{down}");
    std::fs::remove_dir_all(run).unwrap();
    // Other homes of this user may have theirs in it.
    let _ = std::fs::remove_dir("/tmp/belay-0");
}

// proves X2
#[test]
fn a_home_with_spaces_and_signs() {
    let world = world();
    let home = world.home().join("mein häuschen  \"'$(x)\n🏠");
    assert_well(in_home(&world, &home, ECHO));
    let id = in_home(&world, &home, ["run", "-d", "--", "sh", "-c", "echo kept; sleep 1000"]).ok().line();
    let task: TaskInfo = in_home(&world, &home, ["inspect", "--json", &id]).ok().json();
    assert_eq!(task.status, TaskStatus::Running);
    let status: DaemonStatusResult = in_home(&world, &home, ["status", "--json"]).ok().json();
    assert_eq!(status.home.as_os_str(), home.as_os_str());
    let shown = in_home(&world, &home, ["status"]).ok().line();
    assert_eq!(shown.lines().count(), 10, "a line end in a name makes no line: {shown}");
    in_home(&world, &home, ["down"]).ok();
    wait_until("its line", LONG, || {
        let said = in_home(&world, &home, ["logs", &id]).ok();
        if said.stdout == b"kept\n" { Ok(()) } else { Err(said.to_string()) }
    });
    in_home(&world, &home, ["down", "--stop-tasks"]).ok();
}

// proves X2, S3
#[test]
fn a_home_that_cannot_be_written() {
    let world = builder().as_nobody().build();
    set_mode(world.home(), 0o500);
    let lock = world.home().join("daemon.lock");
    let told = |why: &str| {
        format!(
            "error: the daemon could not be started: the home {} cannot be used: {why}\n \
             hint: `belay doctor` looks at what a daemon needs\n",
            lock.display()
        )
    };
    assert_said(&world.belay(ECHO), 4, &told("Permission denied (os error 13)"));
    assert_eq!(world.belay(["doctor"]).code, Some(1));
    set_mode(world.home(), 0o700);
    assert_well(world.belay(ECHO));
    world.belay(["down"]).ok();

    // A file system that became read-only, in a mount namespace of its own.
    let root = crate::support::world();
    let script = r#"mount --bind "$BELAY_HOME" "$BELAY_HOME" && mount -o remount,ro,bind "$BELAY_HOME" || exit 9
                    "$BELAY" run -- echo well"#;
    let said = root.shell(&format!("exec unshare -m sh -c '{script}'"));
    let lock = root.home().join("daemon.lock");
    let expected = format!(
        "error: the daemon could not be started: the home {} cannot be used: Read-only file system (os error 30)\n \
         hint: `belay doctor` looks at what a daemon needs\n",
        lock.display()
    );
    assert_said(&said, 4, &expected);
}

/// Long before anybody gives up waiting for a daemon that may be starting.
const SOON: Duration = Duration::from_secs(7);

// proves D4, X2
#[test]
fn a_socket_that_is_removed_is_made_again() {
    let world = world();
    let socket = world.paths().socket();
    let task = world.run_detached(["sleep", FOREVER]);
    let mut connected = world.client();
    let daemon = world.daemon_pid();
    let aside = world.dir().join("aside.sock");
    let take_away: [&dyn Fn(); 2] =
        [&|| std::fs::remove_file(&socket).unwrap(), &|| std::fs::rename(&socket, &aside).unwrap()];
    for take_away in take_away {
        take_away();
        assert_eq!(running(&world).id, task);
        assert_eq!(world.daemon_pid(), daemon, "it is the same one");
        assert_eq!(socket.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let status = connected.call::<DaemonStatus>(&DaemonStatusParams::default()).unwrap();
        assert_eq!(status.pid, daemon, "whoever was connected still is");
    }
    // What somebody has put in its place is left alone, until it goes.
    std::fs::write(aside.with_extension("txt"), "mine").unwrap();
    std::fs::rename(aside.with_extension("txt"), &socket).unwrap();
    assert_eq!(world.spawn(["ps"]).finish_within(SOON).code, Some(4));
    assert_eq!(std::fs::read(&socket).unwrap(), b"mine");
    std::fs::remove_file(&socket).unwrap();
    assert_eq!(running(&world).id, task);
}

/// One that stands still cannot make its socket again.
// proves D4, X2
#[test]
fn a_daemon_that_cannot_be_reached_is_told_soon() {
    let world = world();
    world.belay(["up"]).ok();
    let daemon = world.daemon().unwrap().identity;
    let socket = world.paths().socket();
    let frozen = freeze(daemon.pid);
    std::fs::remove_file(&socket).unwrap();
    let expected = format!(
        "error: a daemon is running (pid {pid}), and its socket {} is gone\n \
         hint: kill {pid}: tasks run on, and the next command starts a daemon that adopts them\n",
        socket.display(),
        pid = daemon.pid
    );
    for args in [&["ps"][..], &ECHO, &["status"], &["down"]] {
        assert_said(&world.spawn(args).finish_within(SOON), 4, &expected);
    }
    drop(frozen);
    assert_well(world.belay(ECHO));
}

/// A daemon that has its home and no socket yet, and stands still there.
fn freeze_while_starting(world: &World) -> Frozen {
    let lock = world.home().join("daemon.lock");
    for _ in 0..100 {
        let starting = world.spawn(["up"]);
        let pid = wait_until("a daemon with its home", LONG, || {
            let text = std::fs::read_to_string(&lock).unwrap_or_default();
            text.lines().next().and_then(|pid| pid.parse::<i32>().ok()).ok_or(text)
        });
        let frozen = freeze(pid);
        if !world.paths().socket().exists() {
            drop(starting);
            return frozen;
        }
        // It was quicker than we were.
        drop(frozen);
        starting.finish().ok();
        world.belay(["down"]).ok();
        std::fs::write(&lock, "").unwrap();
    }
    panic!("no daemon could be caught while it was starting");
}

// proves D4
#[test]
fn a_daemon_that_is_only_just_starting_is_waited_for() {
    let world = world();
    let frozen = freeze_while_starting(&world);
    let waiting = world.spawn(ECHO);
    // Sleeps because patience shows only over a time in which a daemon that serves would have been given up.
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(waiting.stderr_so_far(), b"");
    drop(frozen);
    assert_well(waiting.finish());
}

// proves D1, D4
#[test]
fn a_runtime_directory_that_is_removed_while_tasks_run() {
    let world = world();
    let task = world.inspect(&world.run_detached(["sh", "-c", "echo a; exec sleep 1000"]));
    std::fs::remove_dir_all(world.home().join("run")).unwrap();
    let daemon = world.daemon().unwrap().identity;
    let socket = world.paths().socket();
    let expected = format!(
        "error: a daemon is running (pid {pid}), and its socket {} is gone\n \
         hint: kill {pid}: tasks run on, and the next command starts a daemon that adopts them\n",
        socket.display(),
        pid = daemon.pid
    );
    assert_said(&world.spawn(["ps"]).finish_within(SOON), 4, &expected);
    send_signal(daemon, Signal::TERM);
    world.wait_dead("a daemon that was told to leave", daemon.pid);
    let adopted = world.inspect(&task.id);
    assert_eq!((adopted.status, adopted.pid), (TaskStatus::Running, task.pid));
    assert_eq!(world.logs(&task.id), b"a\n");
    let stopped = world.belay(["stop", &task.id]).ok().line();
    assert!(stopped.starts_with(&format!("{} stopped: SIGTERM to 1 process", task.id)), "{stopped}");
}

// proves O5, D1
#[test]
fn a_task_directory_that_is_removed_while_the_task_runs() {
    let world = world();
    world.belay(["up"]).ok();
    let daemon = world.daemon_pid();
    let go = world.dir().join("go");
    let script = format!("echo one; until [ -e {} ]; do sleep 0.01; done; echo two; exit 3", go.display());
    let id = world.run_detached(["sh", "-c", &script]);
    world.wait_for_output(&id, "its first line", |said| said == b"one\n");
    std::fs::remove_dir_all(world.home().join("tasks")).unwrap();
    std::fs::write(&go, "").unwrap();
    assert_eq!(world.belay(["wait", &id]).code, Some(3), "its end is its own");
    let task = world.get(&id);
    assert_eq!(task.output.gaps, [[0, 8]]);
    let fault = task.outcome.as_ref().and_then(Outcome::capture).unwrap();
    assert_eq!((fault.message.as_str(), fault.lost_bytes), ("its file was removed by somebody else", 8));
    let logs = world.belay(["logs", "--raw", &id]);
    assert_eq!((logs.code, logs.stdout.as_slice()), (Some(0), &b""[..]), "{logs}");
    assert_eq!(String::from_utf8(logs.stderr).unwrap(), "[… 8 bytes not kept: offsets 0–8 …]\n");
    let again = world.run_detached(["echo", "well"]);
    world.wait_ended(&again);
    assert_eq!(world.logs(&again), b"well\n");
    assert_eq!(world.daemon_pid(), daemon, "the daemon lives");
}
