//! Readers of output that leave, that are slow, or that are very quick: nobody else notices.

use belay_os::signal::Signal;
use belay_protocol::methods::OutputFollow;
use belay_protocol::output::{OutputFollowParams, OutputFrom as Begin};
use belay_protocol::task::TaskStatus;
use belay_testkit::{LONG, Running, wait_until};

use crate::support::{FOREVER, running, stop_of, world};

/// More than any socket holds, and never the same.
const NOISE: &str = "while :; do seq 1 20000; done";

// proves X3, K10, D7
#[test]
fn a_follower_that_leaves_amid_the_noise_keeps_nobody_waiting() {
    let world = world();
    let id = world.run_detached(["-c", NOISE]);
    for _ in 0..3 {
        let mut follower = world.client();
        follower
            .call::<OutputFollow>(&OutputFollowParams {
                id: id.clone(),
                from: Begin::Offset { offset: 0 },
                stream: None,
                text: false,
            })
            .unwrap();
        // It has read something, and is gone with the rest unread.
        follower.next_notification(None).unwrap();
        drop(follower);
    }
    let quick = world.shell(&format!("\"$BELAY\" logs {id} -f --raw | head -1")).ok();
    assert_eq!(quick.stdout, b"1\n");
    // A daemon that is busy with readers who are not there answers nobody.
    let stopped = world.stop(&stop_of(&id));
    assert_eq!(stopped.status, Some(TaskStatus::Cancelled));
    wait_until("no client but this one", LONG, || {
        let clients = world.status().clients;
        if clients <= 1 { Ok(()) } else { Err(format!("{clients} clients")) }
    });
}

/// What an agent does to a noisy command that it gives up, with nobody reading its output.
// proves F7, X3, K2
#[test]
fn the_killed_caller_of_a_noisy_command_takes_it_along() {
    let world = world();
    for words in [&["shell", "-c", NOISE][..], &["run", "--on-disconnect", "stop", "-c", NOISE]] {
        let mut command = world.command("sh");
        // Nobody reads from this pipe, and it stays open.
        command.args(["-c", "exec 9<>\"$1\"; shift; exec \"$BELAY\" \"$@\" >&9", "sh"]);
        let fifo = world.dir().join("fifo");
        let _ = std::fs::remove_file(&fifo);
        assert_eq!(
            belay_testkit::finish({
                let mut make = world.command("mkfifo");
                make.arg(&fifo);
                make
            })
            .code,
            Some(0)
        );
        command.arg(&fifo).args(words).env("BELAY", world.program());
        let caller = Running::start(command, false);
        let task = running(&world);
        world.wait_for_output(&task.id, "more than the pipe holds", |said| said.len() > 2 << 20);
        caller.signal(Signal::KILL);
        assert_eq!(world.wait_ended(&task.id).status, TaskStatus::Cancelled, "{words:?}");
        drop(caller);
    }
}

/// One that reads as fast as can be sent does not keep the daemon for itself.
// proves X3
#[test]
fn a_quick_follower_of_much_output_starves_nobody() {
    let world = world();
    let id = world.run_detached(["--", "sh", "-c", "seq 1 9000000"]);
    world.wait_ended(&id);
    let bytes = world.get(&id).output.bytes;
    let reader = world.spawn(["logs", &id, "-f", "--raw"]);
    let mut answers = 0;
    while reader.stdout_so_far().len() as u64 != bytes {
        world.status();
        answers += 1;
    }
    reader.finish().ok();
    // One that has to wait for the last byte is the only one.
    assert!(answers >= 10, "{answers} answers while {bytes} bytes were read");
}

// proves O2, X3
#[test]
fn nobody_reads_on_for_a_reader_that_has_left() {
    let world = world();
    // What it says to somebody who still reads is heard, whatever it has written to the other before.
    let line = format!("trap 'echo bye >&2; exit 3' TERM; {NOISE}");
    for verb in ["run", "shell"] {
        let said = world.shell(&format!("\"$BELAY\" {verb} -c \"{line}\" | head -1")).ok();
        assert_eq!(said.stdout, b"1\n");
        assert!(said.stderr.ends_with(b"bye\n"), "{verb}: {said}");
    }
    wait_until("the end of the task", LONG, || {
        let listed = world.belay(["ps", "--json"]).ok().stdout;
        if listed.is_empty() { Ok(()) } else { Err(String::from_utf8_lossy(&listed).into_owned()) }
    });
}

/// A server that has said what was looked for, and is quiet since.
// proves O2, X3
#[test]
fn whoever_follows_for_a_reader_that_has_left_ends_though_nothing_comes() {
    let world = world();
    let id =
        world.run_detached(["--", "sh", "-c", &format!("echo listening; echo more; exec sleep {FOREVER}")]);
    world.wait_for_output(&id, "all it says", |said| said == b"listening\nmore\n");
    for follow in [format!("logs -f {id}"), format!("events -f --task {id}")] {
        // The follower ends by itself, and says nothing; only then is its code there.
        let line = format!("{{ \"$BELAY\" {follow}; echo code $? >&2; }} | head -1");
        let said = world.shell(&line).ok();
        assert_eq!(said.stderr, b"code 0\n", "{follow}: {said}");
        assert_eq!(said.line().lines().count(), 1, "{follow}: {said}");
    }
    world.stop(&stop_of(&id));
}
