//! A start that a client repeats over a daemon restart: it goes on with its task, and never runs the command again.

use belay_os::signal::Signal;
use belay_protocol::ErrorKind;
use belay_protocol::methods::TaskStart;
use belay_protocol::task::{AnswerWhen, TaskInfo, TaskStartParams};

use crate::support::{refused, running, world};

/// The command line resumes its start with the next daemon, which knows nothing of the task any more.
// proves E4
#[test]
fn foreground_task_that_was_removed_does_not_run_again() {
    let world = world();
    let (file, gate) = (world.dir().join("ran"), world.dir().join("gate"));
    let line = format!(
        "echo ran >> {}; echo begun; while [ ! -e {} ]; do sleep 0.02; done",
        file.display(),
        gate.display()
    );
    let run = world.spawn(["run", "--", "sh", "-c", &line]);
    run.wait_for_stdout("its beginning", |said| said == b"begun\n");
    let id = running(&world).id;
    run.signal(Signal::STOP);
    world.kill_daemon();
    std::fs::write(&gate, "").unwrap();
    world.wait_ended(&id);
    world.belay(["rm", &id]).ok();
    run.signal(Signal::CONT);
    let told = run.finish();
    assert_eq!(told.code, Some(1), "{told}");
    assert_eq!(std::fs::read(&file).unwrap(), b"ran\n");
    let left: Vec<TaskInfo> = world.belay(["ps", "-a", "--json"]).ok().json_lines();
    assert_eq!(left, []);
}

// proves E4
#[test]
fn start_that_is_resumed_never_runs_again() {
    let world = world();
    let mut client = world.client();
    let file = world.dir().join("ran");
    let line = format!("echo ran >> {}", file.display());
    let params = TaskStartParams {
        answer: AnswerWhen::Ended,
        token: Some("once".to_owned()),
        ..world.start_params(&["sh", "-c", &line])
    };
    let task = client.call::<TaskStart>(&params).unwrap();
    let resumed = TaskStartParams { resume: true, ..params.clone() };
    assert_eq!(
        client.call::<TaskStart>(&resumed).unwrap().id,
        task.id,
        "it goes on with the task that there is"
    );
    world.belay(["rm", &task.id]).ok();
    let error = refused(client.call::<TaskStart>(&resumed));
    assert_eq!((error.data.kind, error.data.field.as_deref()), (ErrorKind::NotFound, Some("token")));
    assert_eq!(std::fs::read(&file).unwrap(), b"ran\n");
    // Without the wish to resume, the token is free.
    assert_ne!(client.call::<TaskStart>(&params).unwrap().id, task.id);
    assert_eq!(std::fs::read(&file).unwrap(), b"ran\nran\n");
}
