//! Daemons that were started in poor surroundings: few descriptors, low limits, a strange umask, a `/proc` that hides others, and
//! places that a task has changed behind its shim's back. What is told stays true, and nobody waits for ever.

use std::path::PathBuf;

use belay_protocol::task::TaskStatus;
use belay_testkit::{LONG, Output, World, wait_until};

use crate::support::{FOREVER, builder, put_before, world};

/// Runs `belay` with these words by way of a shell line, in which it is `"$@"`.
fn belay_by(world: &World, line: &str, words: &[&str]) -> Output {
    world.belay_with(words, |command| put_before(&["sh", "-c", line, "sh"], command))
}

// proves S3, K3
#[test]
fn what_is_told_as_not_started_does_not_run() {
    let (mut started, mut refused) = (0, 0);
    for limit in 12..=22 {
        let world = world();
        let few = format!("ulimit -Sn {limit}; exec \"$@\"");
        // Too few even for a daemon is no start either.
        if belay_by(&world, &few, &["up"]).code != Some(0) {
            continue;
        }
        let line = format!("setsid sleep {FOREVER} & sleep {FOREVER}");
        for _ in 0..3 {
            let run = world.belay(["run", "-d", "--", "sh", "-c", &line]);
            if run.code == Some(0) {
                started += 1;
                world.belay(["stop", "--kill", run.line().as_str()]).ok();
            } else {
                refused += 1;
            }
            let alive: Vec<_> =
                world.everybody().into_iter().filter(|seen| seen.cmdline.starts_with("sleep ")).collect();
            assert!(alive.is_empty(), "with {limit} descriptors: {alive:?} after {run:?}");
        }
    }
    assert!(started > 0 && refused > 0, "{started} were started and {refused} were not");
}

// proves S1
#[test]
fn what_a_task_did_to_its_cgroup_is_not_the_next_ones_business() {
    let world = world();
    for change in ["frozen", "divided"] {
        let id = world.run_detached(["sleep", FOREVER]);
        let cgroup = world.inspect(&id).held_by.unwrap().cgroup.expect("this test needs a cgroup");
        let cgroup = PathBuf::from(cgroup.as_os_str());
        match change {
            "frozen" => std::fs::write(cgroup.join("cgroup.freeze"), "1").unwrap(),
            _ => std::fs::create_dir(cgroup.join("below")).unwrap(),
        }
        world.belay(["stop", &id]).ok();
        let next = world.belay(["run", "--timeout", "20s", "--", "echo", "next"]).ok();
        assert_eq!(next.stdout, b"next\n", "after one that was {change}");
        wait_until("a cgroup as it was", LONG, || {
            let now = (std::fs::read_to_string(cgroup.join("cgroup.freeze")), cgroup.join("below").exists());
            if matches!(&now, (Ok(frozen), false) if frozen == "0\n") {
                Ok(())
            } else {
                Err(format!("{now:?}"))
            }
        });
    }
}

// proves X1, S1
#[test]
fn a_proc_that_hides_other_users_hides_nobody_that_matters() {
    for hidden in [1, 2] {
        let world = builder().as_nobody().build();
        let line = format!("mount -t proc -o hidepid={hidden} proc /proc && exec \"$@\"");
        let outer = ["unshare", "-m", "sh", "-c", &line, "sh"];
        let within = |words: &[&str]| world.belay_with(words, |command| put_before(&outer, command)).ok();
        assert_eq!(within(&["run", "--", "echo", "seen"]).stdout, b"seen\n");
        // A person would see this one, too.
        within(&["run", "-d", "--", "sleep", FOREVER]);
        let inside = format!("{} ps --json | wc -l", world.program().display());
        let said = within(&["run", "--", "sh", "-c", &inside]);
        assert_eq!(said.stdout, b"1\n", "what runs in a task sees itself alone");
        within(&["down", "--stop-tasks"]);
    }
}

// proves O1, K10
#[test]
fn output_that_cannot_be_read_any_more_keeps_nobody_waiting() {
    let world = world();
    let go = world.dir().join("go");
    let line = format!("echo one; while [ ! -e {} ]; do sleep 0.05; done; exit 7", go.display());
    let id = world.run_detached(["sh", "-c", &line]);
    world.wait_for_output(&id, "the first line", |said| said == b"one\n");
    for file in std::fs::read_dir(world.home().join("tasks").join(&id)).unwrap().flatten() {
        std::fs::remove_file(file.path()).unwrap();
        std::fs::create_dir(file.path()).unwrap();
    }
    let follower = world.spawn(["logs", "-f", &id]);
    std::fs::write(&go, "").unwrap();
    assert_eq!(world.wait_ended(&id).status, TaskStatus::Failed);
    let said = follower.finish();
    assert_eq!(said.stdout, b"");
}

// proves S1
#[test]
fn a_daemon_with_lower_limits_gives_what_it_has() {
    let world = builder().as_nobody().build();
    belay_by(&world, "ulimit -Hc 0; exec \"$@\"", &["up"]).ok();
    let said = world.belay(["run", "--", "sh", "-c", "ulimit -Hc"]).ok();
    assert_eq!(said.stdout, b"0\n");
}

// proves D4
#[test]
fn a_daemon_started_under_a_strange_umask_is_a_good_one() {
    for umask in ["0177", "0777"] {
        let world = builder().as_nobody().build();
        belay_by(&world, &format!("umask {umask}; exec \"$@\""), &["up"]).ok();
        assert_eq!(world.belay(["run", "--", "echo", "here"]).ok().stdout, b"here\n");
        world.belay(["down"]).ok();
        assert_eq!(world.belay(["run", "--", "echo", "again"]).ok().stdout, b"again\n");
    }
}

// proves D1
#[test]
fn a_daemon_that_may_write_no_large_files_lives_and_tells() {
    let world = world();
    belay_by(&world, "ulimit -f 200; exec \"$@\"", &["up"]).ok();
    let daemon = world.daemon_pid();
    let id = world.run_detached(["sleep", FOREVER]);
    for _ in 0..120 {
        // Some of them cannot be recorded.
        let _ = world.belay(["run", "-d", "--", "true"]);
    }
    assert_eq!(world.daemon_pid(), daemon);
    assert_eq!(world.get(&id).status, TaskStatus::Running);
    let notices = world.status().notices;
    let told = |start: &str| notices.iter().any(|notice| notice.message.starts_with(start));
    assert!(told("the journal cannot be "), "{notices:?}");
}
