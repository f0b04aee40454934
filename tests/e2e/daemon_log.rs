//! The daemon's own log: what it did and why is in it, with ids; what belongs to tasks is not; and it stays small, whatever
//! happens.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::PathBuf;

use belay_protocol::daemon::{DaemonDoctorResult, DaemonStatusParams, FindingTopic};
use belay_protocol::methods::{DaemonStatus, TaskStart};
use belay_protocol::task::TaskStatus;
use belay_testkit::{LONG, World, end, look_at, wait_until};
use regex::Regex;
use serde_json::{Value, json};

use crate::raw::Raw;
use crate::support::{FOREVER, builder, refused, world};

/// The most that one file of the log holds.
const FILE_BYTES: u64 = 1024 * 1024;

fn files(world: &World) -> [PathBuf; 2] {
    ["daemon.log.1", "daemon.log"].map(|name| world.home().join(name))
}

/// Everything that is in the log, with each line checked for its form.
#[track_caller]
fn logged(world: &World) -> String {
    let text: String =
        files(world).iter().map(|path| std::fs::read_to_string(path).unwrap_or_default()).collect();
    let form = Regex::new(
        r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (ERROR|WARN |INFO |DEBUG|TRACE) \S[^\x00-\x1f]*$",
    );
    let form = form.unwrap();
    for line in text.lines() {
        assert!(form.is_match(line), "{line:?}");
    }
    text
}

/// Waits until a line with all of these is in the log.
#[track_caller]
fn wait_logged(world: &World, parts: &[&str]) {
    wait_until(&format!("a line with {parts:?}"), LONG, || {
        let text = logged(world);
        let found = text.lines().any(|line| parts.iter().all(|part| line.contains(part)));
        if found { Ok(()) } else { Err(text) }
    });
}

// proves E6
#[test]
fn decisions_are_logged_with_ids_and_causes() {
    let world = world();
    std::fs::write(world.home().join("config.toml"), "[daemon]\nmax_tasks = 2\n").unwrap();
    let stopped = world.run_detached(["sleep", FOREVER]);
    let lost = world.run_detached(["sleep", FOREVER]);
    assert_eq!(world.belay(["run", "-d", "--", "true"]).code, Some(1));
    let cause = "cause=\"the limit of live tasks is reached (daemon.max_tasks = 2)\"";
    wait_logged(&world, &[" INFO  start refused actor=\"user:", " via cli\" kind=Limit ", cause]);

    let first = world.kill_daemon().pid;
    world.belay(["ps"]).ok();
    for id in [&stopped, &lost] {
        wait_logged(&world, &[&format!(" INFO  adopted task={id} shim=")]);
    }
    for pid in [first, world.daemon_pid()] {
        wait_logged(&world, &[" INFO  started version=", &format!("pid={pid} ")]);
    }

    world.belay(["stop", &stopped, "--reason", "seen\nenough"]).ok();
    let stop = format!(" INFO  stop task={stopped} level=terminate actor=\"user:");
    wait_logged(&world, &[&stop, r#"reason="seen\nenough""#]);

    let shim = world.inspect(&lost).held_by.unwrap().shim_pid;
    end(look_at(shim).unwrap().identity);
    assert_eq!(world.wait_ended(&lost).status, TaskStatus::Lost);
    wait_logged(&world, &[&format!(" WARN  shim lost task={lost} shim={shim} ")]);

    // An ordinary task is no news.
    let ordinary = world.run_detached(["true"]);
    world.wait_ended(&ordinary);
    assert!(!logged(&world).contains(&ordinary));
    world.belay(["down"]).ok();
    wait_logged(&world, &[" INFO  leaving why=\"user:", "(belay down)\""]);
}

// proves E6, S7
#[test]
fn secrets_are_not_logged_at_any_level() {
    let world = builder().env("BELAY_LOG", "trace").env("UNRELATED", "secret-caller").build();
    let opened: Value = world.belay(["sessions", "open", "--json"]).ok().json();
    let token = opened["token"].as_str().unwrap().to_owned();
    let secret = token.split_once('.').unwrap().1;
    let script = "echo $A; read line; echo $line; sleep 1000 & sleep 1000";
    let args = [
        "run",
        "-d",
        "--stdin",
        "--token",
        "secret-idempotency",
        "--env",
        "A=secret-env",
        "--",
        "sh",
        "-c",
        script,
    ];
    let as_bearer = |args: &[&str], token: &str| {
        world.belay_with(args, |command| {
            command.env("BELAY_TOKEN", token);
        })
    };
    let id = as_bearer(&args, &token).ok().line();
    world.belay(["send", &id, "secret-input"]).ok();
    world.wait_for_output(&id, "both secrets", |said| said == b"secret-env\nsecret-input\n");
    world.belay(["logs", &id, "--grep", "secret"]).ok();
    world.belay(["wait", &id, "--match", "secret-input", "--timeout", "10s"]).ok();
    // What is refused is not quoted either.
    assert_eq!(as_bearer(&["ps"], "sh-1.secret-token").code, Some(1));
    let mut raw = Raw::greeted(&world);
    for params in [
        json!({ "spec": { "kind": "shell", "command": { "kind": "argv", "argv": ["true"] } }, "cwd": "/", "env": "secret-env" }),
        json!({ "spec": { "kind": "shell", "command": { "kind": "argv", "argv": ["true"] } }, "cwd": "/", "env": ["secret-env\0"] }),
        json!({ "secret-env": 1 }),
    ] {
        let answer = raw.call("task/start", &params);
        assert!(answer.get("error").is_some(), "{answer}");
    }
    assert!(raw.say(b"secret-line").get("error").is_some());
    world.kill_daemon();
    world.belay(["stop", &id]).ok();
    world.belay(["run", "--env", "A=secret-env", "--", "sh", "-c", "echo $A"]).ok();

    let text = logged(&world);
    assert!(text.contains(&format!(" DEBUG recorded task={id} ")), "{text}");
    assert!(text.contains(" TRACE step input=request"), "{text}");
    assert!(!text.contains("secret"), "{text}");
    assert!(!text.contains(secret), "{text}");
}

// proves E6
#[test]
fn flood_of_events_stays_within_bound() {
    let world = builder().env("BELAY_LOG", "trace").build();
    let mut client = world.client();
    let old = &files(&world)[0];
    let inode = || old.metadata().ok().map(|meta| meta.ino());
    for _ in 0..2 {
        let (before, mut calls) = (inode(), 0);
        while inode() == before {
            client.call::<DaemonStatus>(&DaemonStatusParams::default()).unwrap();
            calls += 1;
            assert!(calls < 100_000, "the log is not rotated");
        }
    }
    for path in files(&world) {
        let meta = path.metadata().unwrap();
        assert!(meta.len() <= FILE_BYTES, "{}: {}", path.display(), meta.len());
        assert_eq!(meta.permissions().mode() & 0o7777, 0o600);
    }
    let names = std::fs::read_dir(world.home()).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.filter(|name| name.to_string_lossy().starts_with("daemon.log")).count(), 2);
    logged(&world);
}

// proves E6, O8
#[test]
fn lines_lost_on_full_disk_are_counted() {
    let world = builder().small_disk("4m").build();
    let mut client = world.client();
    world.shell("cat /dev/zero >\"$BELAY_HOME/filler\"; true");
    let params = world.start_params(&["true"]);
    let mut refusals = 0;
    // Each leaves a line, and the last page of the file has room for some.
    for _ in 0..1_000 {
        refusals += i32::from(client.call::<TaskStart>(&params).is_err());
        if refusals == 100 {
            break;
        }
    }
    assert_eq!(refusals, 100);
    std::fs::remove_file(world.home().join("filler")).unwrap();
    let params = belay_protocol::task::TaskStartParams { session: Some("none".to_owned()), ..params };
    refused(client.call::<TaskStart>(&params));
    wait_logged(&world, &[" WARN  log lines lost lines=", "cause=\"No space left on device (os error 28)\""]);
    wait_logged(&world, &[" INFO  start refused ", "kind=NotFound"]);
}

// proves E6
#[test]
fn log_is_read_without_daemon_and_followed() {
    let world = world();
    let none = world.belay(["daemon-log"]);
    assert_eq!((none.code, none.stdout.as_slice()), (Some(1), b"".as_slice()));
    world.belay(["up"]).ok();
    world.belay(["down"]).ok();
    let shown = String::from_utf8(world.belay(["daemon-log"]).ok().stdout).unwrap();
    assert_eq!(shown, logged(&world));
    assert!(world.daemon().is_none(), "it is read without a daemon");
    let last = world.belay(["daemon-log", "-n", "1", "--json"]).ok().json::<Value>();
    assert_eq!(last["level"], "info");
    assert!(last["text"].as_str().unwrap().starts_with("leaving why="), "{last}");
    assert_eq!(world.belay(["daemon-log", "--level", "error"]).ok().stdout, b"");

    let follower = world.spawn(["daemon-log", "-f", "-n", "0"]);
    let id = world.run_detached(["sleep", FOREVER]);
    world.belay(["stop", &id]).ok();
    let line = format!(" INFO  stop task={id} ");
    follower.wait_for_stdout("the stop", |said| String::from_utf8_lossy(said).contains(&line));
    let said = String::from_utf8(follower.stdout_so_far()).unwrap();
    assert!(said.lines().next().unwrap().contains(" INFO  started "), "{said}");
    follower.signal(belay_os::signal::Signal::INT);
    follower.finish();

    let doctor: DaemonDoctorResult = world.belay(["doctor", "--json"]).ok().json();
    let finding = doctor.findings.iter().find(|finding| finding.topic == FindingTopic::Log).unwrap();
    assert!(finding.message.contains(files(&world)[1].to_str().unwrap()), "{finding:?}");
}

// proves E6
#[test]
fn wrong_log_level_is_refused_at_start() {
    let world = builder().env("BELAY_LOG", "loud").build();
    let said = world.belay(["up"]);
    assert_eq!(said.code, Some(4), "{said}");
    let expected =
        "BELAY_LOG is \"loud\", which is not understood: write it as error, warn, info, debug or trace";
    assert!(String::from_utf8_lossy(&said.stderr).contains(expected), "{said}");
}

// proves E6
#[test]
fn level_of_one_module_is_set() {
    let world = builder().env("BELAY_LOG", "error,belay_daemon::tasks=debug").build();
    let id = world.run_detached(["true"]);
    world.wait_ended(&id);
    let text = logged(&world);
    assert!(text.contains(&format!(" DEBUG ended task={id} status=completed exit_code=0\n")), "{text}");
    assert!(!text.contains(" INFO  started "), "{text}");
}
