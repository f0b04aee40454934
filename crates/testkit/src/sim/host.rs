//! What the daemon's core asks of its host directly, answered by the simulated machine; and the chance that the daemon
//! dies at any step. There are no processes and no clocks in here.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use belay_daemon::host::{CrashPoint, Host};
use belay_daemon::settings::{Found, Stamp};
use belay_protocol::Bytes;
use belay_protocol::shim::ProcessId;
use belay_protocol::task::ProcessInfo;
use belay_record::{LogReader, MemoryLog};

use super::rng::Rng;

/// What unwinds out of a core whose daemon dies in the middle of a step.
#[derive(Debug)]
pub(crate) struct Died;

/// When the daemon dies: at one step that was named, or by chance.
#[derive(Debug)]
pub(crate) struct Chaos {
    rng: Rng,
    /// Once in so many steps; never for 0.
    pub(crate) once_in: u64,
    pub(crate) at_steps: Vec<u64>,
    pub(crate) steps: u64,
    /// A world in which daemons die faster than they can be born never gets anywhere.
    chances_left: u32,
}

impl Chaos {
    pub(crate) const fn new(rng: Rng, once_in: u64, at_steps: Vec<u64>) -> Self {
        Self { rng, once_in, at_steps, steps: 0, chances_left: 25 }
    }

    /// One more step at which a daemon can die: does it?
    fn strikes(&mut self) -> bool {
        self.steps += 1;
        let named = self.at_steps.contains(&self.steps);
        let by_chance = self.chances_left > 0 && self.rng.once_in(self.once_in);
        self.chances_left -= u32::from(by_chance);
        by_chance || named
    }
}

/// The part of the machine that the daemon's core can see.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) chaos: RefCell<Chaos>,
    pub(crate) rng: RefCell<Rng>,
    /// Shims in the process table, and who is below each.
    pub(crate) shims: RefCell<BTreeSet<(i32, u64)>>,
    pub(crate) below: RefCell<BTreeMap<i32, Vec<ProcessInfo>>>,
    /// The sockets of shims, by name: taken away by a shim that leaves, left behind by one that is killed.
    pub(crate) sockets: RefCell<BTreeSet<String>>,
    /// The disk: end files as they were written, by the directory they are in.
    pub(crate) end_files: RefCell<BTreeMap<PathBuf, Vec<u8>>>,
    /// A real directory with nothing in it: no task here keeps output on disk.
    pub(crate) empty_dir: PathBuf,
    pub(crate) last_point: Cell<&'static str>,
}

impl Machine {
    pub(crate) fn strikes(&self) -> bool {
        self.chaos.borrow_mut().strikes()
    }
}

#[derive(Clone, Debug)]
pub(crate) struct SimHost(pub(crate) Rc<Machine>);

impl Host for SimHost {
    fn random(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.0.rng.borrow_mut().fill(bytes);
        Ok(())
    }

    fn log(&self, _: &Path) -> io::Result<LogReader> {
        LogReader::open(&self.0.empty_dir)
    }

    fn log_sums(&self, dir: &Path) -> io::Result<LogReader> {
        self.log(dir)
    }

    fn memory_log(&self, _: ProcessId, _: [i32; 2]) -> io::Result<MemoryLog> {
        // What the shims of this machine write is a number, not bytes.
        Err(io::ErrorKind::Unsupported.into())
    }

    fn boot_ticks(&self) -> u64 {
        0
    }

    fn environment_of(&self, _: i32, _: u64) -> io::Result<Vec<Bytes>> {
        Ok(Vec::new())
    }

    fn is_alive(&self, process: ProcessId) -> bool {
        self.0.shims.borrow().contains(&(process.pid, process.start_ticks))
    }

    fn shim_names(&self, _: &Path) -> Vec<String> {
        self.0.sockets.borrow().iter().cloned().collect()
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

    fn find_program(&self, name: &std::ffi::OsStr, _: &[u8]) -> Option<PathBuf> {
        Some(Path::new("/bin").join(name))
    }

    fn user_name(&self, uid: u32) -> String {
        format!("sim{uid}")
    }

    fn boot(&self) -> String {
        "the only boot".to_owned()
    }

    fn crash_point(&self, point: CrashPoint) {
        self.0.last_point.set(point.name());
        if self.0.strikes() {
            std::panic::resume_unwind(Box::new(Died));
        }
    }
}
