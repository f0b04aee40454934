//! Tasks that a shim holds until they are admitted, across the death of a daemon. The shim is played here; the core and
//! its journal are the real ones.

use std::cell::Cell;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use belay_journal::Journal;
use belay_model::{State, TaskId};
use belay_protocol::daemon::{BudgetsHeld, CgroupLayout, ContainmentInfo, ContainmentKind};
use belay_protocol::shim::{
    Clocks, FromShim, Hello, LifeEvent, LifeItem, ProcessId, SHIM_PROTOCOL, Spec, ToShim,
};
use belay_protocol::task::{Outcome, ProcessInfo, Status};
use belay_record::{EndFile, LogReader, MemoryLog};

use crate::config::Config;
use crate::core::Core;
use crate::doc::Entry;
use crate::event::{Action, Event, Moment, ShimId};
use crate::settings::{Found, Settings, Stamp};
use crate::world::{CrashPoint, World};

const SHIM: ProcessId = ProcessId { pid: 4, start_ticks: 40 };
const NOW: Moment = Moment { wall_ms: 1_800_000_000_000, mono_ms: 1_000 };

/// A machine with one shim on it, alive or dead.
struct OneShim(Rc<Cell<bool>>);

impl World for OneShim {
    fn random(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        bytes.fill(7);
        Ok(())
    }
    fn processes(&self, _: i32, _: Option<&Path>) -> Vec<ProcessInfo> {
        Vec::new()
    }
    fn usage(&self, _: i32, _: Option<&Path>) -> belay_os::limits::Usage {
        belay_os::limits::Usage::default()
    }
    fn log(&self, _: &Path) -> io::Result<LogReader> {
        Err(io::ErrorKind::NotFound.into())
    }
    fn log_at_a_glance(&self, _: &Path) -> io::Result<LogReader> {
        Err(io::ErrorKind::NotFound.into())
    }
    fn memory_log(&self, _: ProcessId, _: [i32; 2]) -> io::Result<MemoryLog> {
        Err(io::ErrorKind::NotFound.into())
    }
    fn end_file(&self, _: &Path) -> io::Result<Option<EndFile>> {
        Ok(None)
    }
    fn remove_end_file(&self, _: &Path) {}
    fn is_alive(&self, process: ProcessId) -> bool {
        self.0.get() && process == SHIM
    }
    fn shim_names(&self, _: &Path) -> Vec<String> {
        vec!["one".to_owned()]
    }
    fn settings_stamp(&self, _: &Path) -> Option<Stamp> {
        None
    }
    fn settings_file(&self, _: &Path) -> io::Result<Found> {
        Ok(Found::default())
    }
    fn write_settings(&self, _: &Path, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
    fn is_dir(&self, _: &Path) -> bool {
        true
    }
    fn find_program(&self, _: &std::ffi::OsStr, _: &[u8]) -> Option<PathBuf> {
        None
    }
    fn user_name(&self, _: u32) -> String {
        "somebody".to_owned()
    }
    fn boot(&self) -> String {
        "this boot".to_owned()
    }
    fn reach(&self, _: CrashPoint) {}
}

struct Place {
    dir: tempfile::TempDir,
    alive: Rc<Cell<bool>>,
    task: String,
}

impl Place {
    fn new() -> Self {
        let task = TaskId::from_random(belay_model::Kind::Shell, [9; 10]).to_string();
        Self { dir: tempfile::tempdir().unwrap(), alive: Rc::new(Cell::new(true)), task }
    }

    /// The next daemon, which has reached the shim and been told that its task waits for its turn.
    fn daemon(&self) -> (Core<OneShim>, ShimId, Vec<Action>) {
        let (mut core, shim) = self.daemon_that_hears_nothing();
        let hello = FromShim::Hello(self.hello());
        let actions = core.handle(NOW, Event::ShimSaid { shim, messages: vec![hello] });
        (core, shim, actions)
    }

    fn daemon_that_hears_nothing(&self) -> (Core<OneShim>, ShimId) {
        let containment = ContainmentInfo {
            kind: ContainmentKind::Subreaper,
            layout: CgroupLayout::None,
            cgroup: None,
            why: "it is a test".to_owned(),
            budgets: BudgetsHeld::default(),
        };
        let nowhere = PathBuf::from("/nowhere");
        let config = Config::new(nowhere.clone(), nowhere, containment, Settings::default());
        let journal = Journal::open(self.dir.path()).unwrap().journal;
        let mut core = Core::new(OneShim(Rc::clone(&self.alive)), config, journal, NOW).unwrap();
        let reached = core.adopt(NOW).unwrap();
        let found = reached.iter().find_map(|action| match action {
            Action::ConnectShim { shim, .. } => Some(*shim),
            _ => None,
        });
        let shim = found.expect("the shim is reached for");
        core.handle(NOW, Event::ShimConnected { shim });
        (core, shim)
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

    fn recorded(&self, core: &Core<OneShim>) -> Entry {
        Entry::from_row(core.journal.task(&self.task).unwrap().unwrap()).unwrap()
    }
}

fn admissions(actions: &[Action]) -> Vec<&str> {
    let admitted = |action| match action {
        &Action::ToShim { message: ToShim::Admit { ref task }, .. } => Some(task.as_str()),
        _ => None,
    };
    actions.iter().filter_map(admitted).collect()
}

// proves K5
#[test]
fn a_task_that_its_shim_holds_waits_on_when_the_daemon_dies() {
    let place = Place::new();
    // The journal does not know it, nor what it waited for: it may begin.
    let (core, _, actions) = place.daemon();
    assert_eq!(admissions(&actions), [place.task.as_str()]);
    drop(core);
    // The daemon died before the shim heard of it: it waits, and nothing is said until somebody admits it.
    let (mut core, shim, actions) = place.daemon();
    assert!(admissions(&actions).is_empty());
    assert!(matches!(core.tasks[&place.task].state, State::Queued { .. }));
    core.settle_journal();
    assert_eq!(place.recorded(&core).doc.status, Status::Queued);
    core.admit(&place.task);
    core.admit(&place.task);
    let actions = core.handle(NOW, Event::Tick);
    assert_eq!(admissions(&actions), [place.task.as_str()]);
    core.settle_journal();
    assert_eq!(place.recorded(&core).doc.status, Status::Starting, "recorded before it is said");
    let event = LifeEvent::Spawned { process: ProcessId { pid: 5, start_ticks: 50 }, mono_ms: 1 };
    let item = LifeItem { task: place.task.clone(), number: 1, at_ms: NOW.wall_ms, event, end: None };
    core.handle(NOW, Event::ShimSaid { shim, messages: vec![FromShim::Life(item)] });
    assert!(matches!(core.tasks[&place.task].state, State::Running(_)));
}

// proves K5
#[test]
fn a_task_whose_shim_is_killed_before_its_turn_was_not_started() {
    let place = Place::new();
    drop(place.daemon());
    let (mut core, shim, _) = place.daemon();
    place.alive.set(false);
    let actions = core.handle(NOW, Event::ShimGone { shim });
    let asked = actions.into_iter().find_map(|action| match action {
        Action::KillLost(lost) => Some(lost),
        _ => None,
    });
    core.handle(NOW, Event::LostKilled { lost: asked.unwrap(), found: 0, survivors: Vec::new() });
    core.settle_journal();
    let doc = place.recorded(&core).doc;
    assert_eq!(doc.status, Status::Failed);
    let end = belay_record::convert::outcome_from_record(&doc.end.unwrap());
    let message = "it was not started: its shim was killed; nobody of its tree was found alive";
    let Outcome::Spawn { error, .. } = end else { panic!("not a failed start: {end:?}") };
    assert_eq!(error.message, message);
}

// proves S2, D2
#[test]
fn a_shim_that_was_just_leaving_is_not_taken_for_one_that_was_killed() {
    for left in [true, false] {
        let place = Place::new();
        drop(place.daemon());
        let (mut core, shim) = place.daemon_that_hears_nothing();
        place.alive.set(false);
        let actions = core.handle(NOW, Event::ShimGone { shim });
        let again = |action: &Action| matches!(action, Action::ConnectShim { shim: once_more, .. } if *once_more == shim);
        assert!(actions.iter().any(again), "its socket knows: {actions:?}");
        let actions =
            core.handle(NOW, Event::ShimUnreachable { shim, error: "nobody is there".to_owned(), left });
        let killed = actions.iter().any(|action| matches!(action, Action::KillLost(_)));
        assert_eq!(killed, !left, "{actions:?}");
        core.settle_journal();
        let end = place.recorded(&core).doc.end;
        let told = end.map(|end| match belay_record::convert::outcome_from_record(&end) {
            Outcome::Spawn { error, .. } => error.message,
            other => panic!("not a failed start: {other:?}"),
        });
        let not_started = "the daemon died while handing the command over: it was not started".to_owned();
        assert_eq!(told, left.then_some(not_started));
    }
}
