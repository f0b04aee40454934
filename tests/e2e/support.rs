//! What the tests share: making worlds, and short words for common calls. It decides nothing.

use std::process::Command;

use belay_protocol::RpcError;
use belay_protocol::task::{ShellSpec, StopFence, TaskInfo, TaskStartParams, TaskStatus, TaskStopParams};
use belay_testkit::{Builder, LONG, World, wait_until};

pub(crate) const BELAY: &str = env!("CARGO_BIN_EXE_belay");

/// Longer than any test: what sleeps so long ends only because somebody ends it.
pub(crate) const FOREVER: &str = "1000";

pub(crate) fn world() -> World {
    World::new(BELAY)
}

pub(crate) fn builder() -> Builder {
    World::builder(BELAY)
}

/// Puts another program in front of a command, with all of its environment.
pub(crate) fn put_before(outer: &[&str], command: &mut Command) {
    let mut all = Command::new(outer[0]);
    all.args(&outer[1..]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => all.env(name, value),
            None => all.env_remove(name),
        };
    }
    *command = all;
}

/// The one task that runs.
#[track_caller]
pub(crate) fn running(world: &World) -> TaskInfo {
    wait_until("one running task", LONG, || {
        let listed: Vec<TaskInfo> = world.belay(["ps", "--json"]).ok().json_lines();
        match listed.as_slice() {
            [task] if task.status == TaskStatus::Running => Ok(task.clone()),
            other => Err(format!("{other:?}")),
        }
    })
}

/// An ordinary stop that waits for its receipt.
pub(crate) fn stop_of(id: &str) -> TaskStopParams {
    TaskStopParams {
        id: id.to_owned(),
        level: None,
        grace_ms: None,
        reason: None,
        actor: None,
        cascade: false,
        fence: StopFence::Auto,
        wait: true,
    }
}

/// The error that the daemon answered.
#[track_caller]
pub(crate) fn refused<T: std::fmt::Debug>(result: Result<T, belay_client::ClientError>) -> RpcError {
    match result {
        Err(belay_client::ClientError::Rpc(error)) => error,
        other => panic!("not refused: {other:?}"),
    }
}

/// A start with its command changed.
pub(crate) fn with_shell(
    mut params: TaskStartParams,
    change: impl FnOnce(&mut ShellSpec),
) -> TaskStartParams {
    change(params.spec.shell_mut().unwrap());
    params
}

/// A start whose command has a standard input that can be written to.
pub(crate) fn with_stdin(params: TaskStartParams) -> TaskStartParams {
    with_shell(params, |shell| shell.stdin = true)
}
