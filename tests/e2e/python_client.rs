//! A client in Python that was written from the protocol page alone: a task that falls silent is found and stopped, over the
//! death of a daemon.

use belay_testkit::{Running, World};

use crate::support::world;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/python/silent_task.py");

fn python(world: &World, script: &str) -> Running {
    let mut command = world.command("python3");
    // The interpreter keeps no compiled files beside the sources.
    command.args(["-B", script]).env("MARKER", world.marker()).env("BELAY", world.program());
    Running::start(command, false)
}

// proves E4, E5, R7, L1
#[test]
fn silent_task_is_found_and_stopped_alone_over_daemon_kill() {
    let world = world();
    let told = python(&world, SCRIPT).finish();
    assert_eq!((told.code, told.stdout.as_slice()), (Some(0), &b"ok\n"[..]), "{told}");
}
