//! A daemon's core for unit tests: on a real journal, with a host on which nothing happens, and with the jobs of the journal's
//! workers done at once.

use std::cell::Cell;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use belay_journal::{EventRule, Opened, Reader, Store};
use belay_protocol::Bytes;
use belay_protocol::daemon::{BudgetEnforcement, CgroupLayout, ContainmentInfo, ContainmentKind};
use belay_protocol::shim::ProcessId;
use belay_record::{LogReader, MemoryLog};

use crate::config::Config;
use crate::effect::Effect;
use crate::host::{CrashPoint, Host};
use crate::input::{Input, Moment};
use crate::runtime::Core;
use crate::settings::{Found, Settings, Stamp};

pub(crate) const NOW: Moment = Moment { wall_ms: 1_800_000_000_000, mono_ms: 1_000 };

/// A host whose shims are all alive, or all dead.
#[derive(Clone, Debug)]
pub(crate) struct TestHost {
    pub(crate) alive: Rc<Cell<bool>>,
    /// The shims that have a socket.
    pub(crate) shims: Vec<String>,
    last_random: u64,
}

impl TestHost {
    pub(crate) fn new(shims: Vec<String>) -> Self {
        Self { alive: Rc::new(Cell::new(true)), shims, last_random: 0 }
    }
}

impl Host for TestHost {
    /// Never the same twice.
    fn random(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.last_random += 1;
        let number = self.last_random.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = number[at % number.len()];
        }
        Ok(())
    }
    fn log(&self, dir: &Path) -> io::Result<LogReader> {
        LogReader::open(dir)
    }
    fn log_sums(&self, dir: &Path) -> io::Result<LogReader> {
        LogReader::glance(dir)
    }
    /// A test that plays a shim has the log open itself.
    fn memory_log(&self, _: ProcessId, numbers: [i32; 2]) -> io::Result<MemoryLog> {
        MemoryLog::open(belay_os::process::own_identity().pid, numbers)
    }
    fn boot_ticks(&self) -> u64 {
        0
    }
    fn environment_of(&self, _: i32, _: u64) -> io::Result<Vec<Bytes>> {
        Ok(Vec::new())
    }
    fn is_alive(&self, _: ProcessId) -> bool {
        self.alive.get()
    }
    fn shim_names(&self, _: &Path) -> Vec<String> {
        self.shims.clone()
    }
    fn settings_stamp(&self, _: &Path) -> Option<Stamp> {
        None
    }
    fn settings_file(&self, _: &Path) -> io::Result<Found> {
        Ok(Found::default())
    }
    fn is_dir(&self, _: &Path) -> bool {
        true
    }
    fn find_program(&self, _: &std::ffi::OsStr, _: &[u8]) -> Option<PathBuf> {
        None
    }
    fn user_name(&self, _: u32) -> String {
        "tester".to_owned()
    }
    fn boot(&self) -> String {
        "this boot".to_owned()
    }
    fn crash_point(&self, _: CrashPoint) {}
}

/// A core with its journal's workers.
#[derive(Debug)]
pub(crate) struct TestDaemon {
    pub(crate) core: Core<TestHost>,
    store: Store,
    reader: Reader,
    pub(crate) now: Moment,
    /// The journal's workers do nothing: their jobs are returned like other effects.
    pub(crate) workers_hang: bool,
}

impl TestDaemon {
    /// The next daemon on this directory, and what it wants done first.
    pub(crate) fn start(dir: &Path, host: TestHost) -> (Self, Vec<Effect>) {
        let containment = ContainmentInfo {
            kind: ContainmentKind::Subreaper,
            layout: CgroupLayout::None,
            cgroup: None,
            why: "it is a test".to_owned(),
            budgets: BudgetEnforcement::default(),
        };
        let nowhere = PathBuf::from("/nowhere");
        let config = Config::new(dir.to_owned(), nowhere, containment, Settings::default());
        let Opened { buffer, store, reader, loaded, .. } = belay_journal::open(dir).unwrap();
        let core = Core::new(host, config, buffer, loaded, NOW);
        let mut daemon = Self { core, store, reader, now: NOW, workers_hang: false };
        let effects = daemon.core.adopt(NOW);
        let effects = daemon.work(effects);
        (daemon, effects)
    }

    /// Removes all events but the last so many, behind the core's back, and returns the number of the first that is left.
    pub(crate) fn expire_events(&mut self, kept: u64) -> u64 {
        let rule = EventRule { now_ms: 0, max_age_ms: None, max_count: Some(kept), limit: usize::MAX };
        self.store.expire_events(&rule).unwrap().first_event
    }

    /// Handles an input and does the journal's jobs that follow from it. What else is to be done is returned.
    pub(crate) fn handle(&mut self, input: Input) -> Vec<Effect> {
        let effects = self.core.handle(self.now, input);
        self.work(effects)
    }

    /// Does the journal's jobs among these effects, and those that follow from them.
    pub(crate) fn work(&mut self, mut open: Vec<Effect>) -> Vec<Effect> {
        let mut done = Vec::new();
        while !open.is_empty() {
            for effect in std::mem::take(&mut open) {
                let input = match effect {
                    other if self.workers_hang => {
                        done.push(other);
                        continue;
                    }
                    Effect::ReadJournal { job, query } => {
                        Input::JournalRead { job, result: Box::new(self.reader.run(&query)) }
                    }
                    Effect::ExpireEvents { job, rule } => {
                        Input::EventsExpired { job, result: self.store.expire_events(&rule) }
                    }
                    Effect::FlushJournal(job) => Input::JournalFlushed(Box::new(self.store.flush(*job))),
                    other => {
                        done.push(other);
                        continue;
                    }
                };
                open.extend(self.core.handle(self.now, input));
            }
        }
        done
    }
}
