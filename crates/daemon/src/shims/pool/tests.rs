//! Tests of tasks that a shim holds until they are admitted, across a crash of the daemon. The
//! tests act as the shim.

use belay_journal::Observer;
use belay_model::TaskId;
use belay_protocol::shim::{
    Clocks, FromShim, Hello, LifeEvent, LifeItem, ProcessId, SHIM_PROTOCOL, Spec, ToShim,
};
use belay_protocol::task::{Outcome, TaskStatus};

use crate::effect::{Effect, LostTask, Reaped, WithoutEndFile};
use crate::input::{Input, ShimId};
use crate::tasks::StoredTask;
use crate::tests::{NOW, TestDaemon, TestHost};

const SHIM: ProcessId = ProcessId { pid: 4, start_ticks: 40 };

struct Place {
    dir: tempfile::TempDir,
    host: TestHost,
    task: String,
}

impl Place {
    fn new() -> Self {
        let task = TaskId::from_random(belay_model::Kind::Shell, [9; 10]).to_string();
        Self { dir: tempfile::tempdir().unwrap(), host: TestHost::new(vec!["one".to_owned()]), task }
    }

    /// The next daemon, after the hello of a shim with a queued task.
    fn daemon(&self) -> (TestDaemon, ShimId, Vec<Effect>) {
        let (mut daemon, shim) = self.daemon_without_hello();
        let hello = FromShim::Hello(self.hello());
        let effects = daemon.handle(Input::ShimMessages { shim, messages: vec![hello] });
        (daemon, shim, effects)
    }

    fn daemon_without_hello(&self) -> (TestDaemon, ShimId) {
        let (mut daemon, effects) = TestDaemon::start(self.dir.path(), self.host.clone());
        let found = effects.iter().find_map(|effect| match effect {
            Effect::ConnectShim { shim, .. } => Some(*shim),
            _ => None,
        });
        let shim = found.expect("the daemon connects to the shim");
        daemon.handle(Input::ShimConnected { shim });
        (daemon, shim)
    }

    fn hello(&self) -> Hello {
        let spec = Spec {
            argv: vec!["true".into()],
            is_shell: false,
            cwd: "/".into(),
            detached: true,
            clocks: Clocks::default(),
            started_ms: NOW.wall_ms,
            budgets: belay_protocol::task::Budgets::default(),
            pty: None,
        };
        Hello {
            protocol: SHIM_PROTOCOL,
            version: "test".to_owned(),
            shim: "one".to_owned(),
            process: SHIM,
            cgroup: None,
            task: Some(self.task.clone()),
            queued: true,
            spec: Some(Box::new(spec)),
            memory: None,
        }
    }

    /// The task as it is durable now.
    fn stored(&self) -> StoredTask {
        let row = Observer::open(self.dir.path()).unwrap().task(&self.task).unwrap();
        StoredTask::from_row(row.expect("the task is recorded")).unwrap()
    }

    fn status(&self, daemon: &TestDaemon) -> TaskStatus {
        daemon.core.tasks.get(&self.task).expect("the task lives").status()
    }
}

fn admissions(effects: &[Effect]) -> Vec<&str> {
    let admitted = |effect| match effect {
        &Effect::ToShim { message: ToShim::Admit { ref task }, .. } => Some(task.as_str()),
        _ => None,
    };
    effects.iter().filter_map(admitted).collect()
}

fn lost(effects: Vec<Effect>) -> Option<Box<LostTask>> {
    effects.into_iter().find_map(|effect| match effect {
        Effect::ReapLost(lost) => Some(lost),
        _ => None,
    })
}

// proves K5
#[test]
fn held_task_stays_queued_when_daemon_dies() {
    let place = Place::new();
    // The journal has neither the task nor its lane: the task may start.
    let (daemon, _, effects) = place.daemon();
    assert_eq!(admissions(&effects), [place.task.as_str()]);
    drop(daemon);
    // The daemon died before the shim received the admission: the task is queued until it is admitted again.
    let (mut daemon, shim, effects) = place.daemon();
    assert!(admissions(&effects).is_empty());
    assert_eq!(place.status(&daemon), TaskStatus::Queued);
    assert_eq!(place.stored().doc.status, TaskStatus::Queued);
    daemon.core.admit(&place.task);
    daemon.core.admit(&place.task);
    let effects = daemon.handle(Input::Tick);
    assert_eq!(admissions(&effects), [place.task.as_str()]);
    assert_eq!(place.stored().doc.status, TaskStatus::Starting, "recorded before the admission is sent");
    let event = LifeEvent::Spawned { process: ProcessId { pid: 5, start_ticks: 50 }, mono_ms: 1 };
    let item = LifeItem { task: place.task.clone(), number: 1, at_ms: NOW.wall_ms, event, end: None };
    daemon.handle(Input::ShimMessages { shim, messages: vec![FromShim::Life(item)] });
    assert_eq!(place.status(&daemon), TaskStatus::Running);
}

// proves K5
#[test]
fn queued_task_of_killed_shim_was_not_started() {
    let place = Place::new();
    drop(place.daemon());
    let (mut daemon, shim, _) = place.daemon();
    place.host.alive.set(false);
    let effects = daemon.handle(Input::ShimGone { shim });
    let lost = lost(effects).expect("its tree is searched for");
    let result = Reaped::Killed { found: 0, survivors: Vec::new(), error: None };
    daemon.handle(Input::LostReaped { lost, result });
    let doc = place.stored().doc;
    assert_eq!(doc.status, TaskStatus::Failed);
    let end = belay_record::convert::outcome_from_record(&doc.end.unwrap());
    let message = "it was not started: its shim was killed; no process of its tree was found alive";
    let Outcome::Spawn { error, .. } = end else { panic!("not a failed start: {end:?}") };
    assert_eq!(error.message, message);
}

// proves S2, D2
#[test]
fn exiting_shim_is_not_taken_for_killed_one() {
    for left in [true, false] {
        let place = Place::new();
        drop(place.daemon());
        let (mut daemon, shim) = place.daemon_without_hello();
        place.host.alive.set(false);
        let effects = daemon.handle(Input::ShimGone { shim });
        let again =
            |effect: &Effect| matches!(effect, Effect::ConnectShim { shim: again, .. } if *again == shim);
        assert!(effects.iter().any(again), "the daemon connects again: {effects:?}");
        let error = "connection refused".to_owned();
        let effects = daemon.handle(Input::ShimUnreachable { shim, error, left });
        let lost = lost(effects).expect("its end file is looked for");
        assert_eq!(matches!(lost.without_end_file, WithoutEndFile::Report), left, "{lost:?}");
        if !left {
            continue;
        }
        daemon.handle(Input::LostReaped { lost, result: Reaped::Nothing { error: None } });
        let end = place.stored().doc.end.expect("it has ended");
        let Outcome::Spawn { error, .. } = belay_record::convert::outcome_from_record(&end) else {
            panic!("not a failed start: {end:?}");
        };
        let not_started = "the daemon died while handing the command over: it was not started";
        assert_eq!(error.message, not_started);
    }
}
