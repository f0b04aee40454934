//! Attacks that once succeeded, kept so that they never do again.

use belay_testkit::{LONG, end, freeze, look_at, wait_until};

use crate::support::{FOREVER, world};

// proves O1, O2: one stream of two, each longer than a page of the protocol, is read whole
#[test]
fn one_stream_of_a_long_output_is_read_whole() {
    let world = world();
    let script =
        "i=0; while [ $i -lt 3000 ]; do printf '%01000d\\n' $i; printf '%0900d\\n' $i >&2; i=$((i+1)); done";
    let id = world.run_detached(["sh", "-c", script]);
    world.wait_ended(&id);
    let lines = |width: usize| (0..3000).map(|i| format!("{i:0width$}\n")).collect::<String>().into_bytes();
    for (stream, expected) in [("stdout", lines(1000)), ("stderr", lines(900))] {
        for raw in [&["logs", &id, "--stream", stream][..], &["logs", &id, "--stream", stream, "--raw"]] {
            let said = world.belay(raw).ok().stdout;
            assert!(said == expected, "{stream}: {} bytes instead of {}", said.len(), expected.len());
        }
    }
}

// proves O2: a match is found wherever it stands in a long line
#[test]
fn a_match_deep_in_a_long_line_is_found() {
    let world = world();
    for length in [65_533, 65_536, 262_143] {
        let id = world.run_detached(["-c", &format!("head -c {length} /dev/zero | tr '\\0' y; echo TAIL")]);
        world.wait_ended(&id);
        let said = world.belay(["logs", &id, "--grep", "^y+TAIL$"]).ok().stdout;
        assert!(said == ["y".repeat(length), "TAIL\n".to_owned()].concat().into_bytes(), "after {length}");
    }
}

// proves O4: what is just within the limit is all there, and one byte more is a gap that says so
#[test]
fn output_within_its_limit_is_kept_whole() {
    let world = world();
    let line = |bytes: u32| format!("head -c {bytes} /dev/zero | tr '\\0' q");
    let id = world.run_detached(["--output-limit", "256KiB", "-c", &line(262_144)]);
    assert_eq!(world.wait_ended(&id).output.gaps, Vec::<[u64; 2]>::new());
    assert_eq!(world.logs(&id), vec![b'q'; 262_144]);
    let id = world.run_detached(["--output-limit", "256KiB", "-c", &line(262_145)]);
    let output = world.wait_ended(&id).output;
    let lost: u64 = output.gaps.iter().map(|gap| gap[1] - gap[0]).sum();
    assert_eq!((output.bytes, output.bytes - lost), (262_145, world.logs(&id).len() as u64));
}

// proves S7: the daemon keeps nothing of the environment of whoever happened to start it
#[test]
fn the_daemon_does_not_keep_the_environment_it_was_started_from() {
    let world = world();
    world.shell("SECRETX=hunter2 \"$BELAY\" run -- true").ok();
    let environment = std::fs::read(format!("/proc/{}/environ", world.daemon_pid())).unwrap();
    let names: Vec<String> = environment
        .split(|byte| *byte == 0)
        .filter(|entry| !entry.is_empty())
        .map(|entry| String::from_utf8_lossy(entry).split('=').next().unwrap().to_owned())
        .collect();
    assert!(names.iter().all(|name| name.starts_with("BELAY_")), "{names:?}");
}

// proves K5, D1: tasks outlive their daemon, and a stop of everything finds them
#[test]
fn stopping_everything_finds_what_a_dead_daemon_left() {
    let world = world();
    let id = world.run_detached(["sleep", FOREVER]);
    let pid = world.get(&id).pid.unwrap();
    world.kill_daemon();
    world.belay(["down", "--stop-tasks"]).ok();
    world.wait_dead("the task", pid);
}

// proves K4: a daemon that cannot be reached is not taken for one that is not there
#[test]
fn a_daemon_without_its_socket_is_not_said_to_be_gone() {
    let world = world();
    let id = world.run_detached(["sleep", FOREVER]);
    let daemon = world.daemon().unwrap().identity;
    // It would make its socket again.
    let frozen = freeze(daemon.pid);
    std::fs::remove_file(world.paths().socket()).unwrap();
    for verb in [&["status"][..], &["down", "--stop-tasks"]] {
        let said = world.belay(verb);
        let text = String::from_utf8_lossy(&said.stderr).into_owned();
        assert_eq!(said.code, Some(4), "{verb:?}: {text}");
        assert!(
            text.starts_with(&format!("error: a daemon is running (pid {}), and its socket", daemon.pid)),
            "{text}"
        );
    }
    end(daemon);
    drop(frozen);
    wait_until("the daemon's end", LONG, || match look_at(daemon.pid) {
        Some(seen) if seen.state != 'Z' => Err(format!("{seen:?}")),
        _ => Ok(()),
    });
    world.belay(["stop", &id]).ok();
}
