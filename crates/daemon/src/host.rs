//! What the core asks of its host directly, because the answer is there at once: randomness, single files, single
//! processes. Whatever may take longer is an effect. The simulator has a host of its own.

use std::io;
use std::path::{Path, PathBuf};

use belay_protocol::Bytes;
use belay_protocol::shim::ProcessId;
use belay_record::{LogReader, MemoryLog};

use crate::settings::{Found, Stamp};

pub trait Host: 'static {
    fn random(&mut self, bytes: &mut [u8]) -> io::Result<()>;
    fn log(&self, dir: &Path) -> io::Result<LogReader>;
    /// Only the sums of a log: cheaper than [`Host::log`].
    fn log_sums(&self, dir: &Path) -> io::Result<LogReader>;
    /// The log that this live shim has open under these descriptor numbers.
    fn memory_log(&self, shim: ProcessId, numbers: [i32; 2]) -> io::Result<MemoryLog>;
    /// The time since boot in the kernel's ticks, in which the start times of processes are counted.
    fn boot_ticks(&self) -> u64;
    /// The environment with which this process was started, if it was started by then and not later.
    fn environment_of(&self, pid: i32, started_by_ticks: u64) -> io::Result<Vec<Bytes>>;
    /// Whether this very process exists: pid and start time are compared.
    fn is_alive(&self, process: ProcessId) -> bool;
    /// The names of all shims that have a socket, alive or not.
    fn shim_names(&self, runtime_dir: &Path) -> Vec<String>;
    /// Changes whenever the settings file changes; none where there is no such file.
    fn settings_stamp(&self, path: &Path) -> Option<Stamp>;
    fn settings_file(&self, path: &Path) -> io::Result<Found>;
    fn is_dir(&self, path: &Path) -> bool;
    fn find_program(&self, name: &std::ffi::OsStr, path: &[u8]) -> Option<PathBuf>;
    fn user_name(&self, uid: u32) -> String;
    /// Identifies the current boot of the machine.
    fn boot(&self) -> String;
    /// A place where a test can inject a crash.
    fn crash_point(&self, point: CrashPoint);
}

/// The steps between which a daemon may die. Each has a test that kills it there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashPoint {
    BeforeCreate,
    AfterCreate,
    AfterStart,
    BeforeLife,
    AfterLife,
    BeforeEnd,
    AfterEnd,
    AfterAck,
    AfterStopSent,
    BeforeRemove,
    AfterRemove,
    BeforeFlush,
    AfterFlush,
}

impl CrashPoint {
    pub const ALL: [Self; 13] = [
        Self::BeforeCreate,
        Self::AfterCreate,
        Self::AfterStart,
        Self::BeforeLife,
        Self::AfterLife,
        Self::BeforeEnd,
        Self::AfterEnd,
        Self::AfterAck,
        Self::AfterStopSent,
        Self::BeforeRemove,
        Self::AfterRemove,
        Self::BeforeFlush,
        Self::AfterFlush,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::BeforeCreate => "before-create",
            Self::AfterCreate => "after-create",
            Self::AfterStart => "after-start",
            Self::BeforeLife => "before-life",
            Self::AfterLife => "after-life",
            Self::BeforeEnd => "before-end",
            Self::AfterEnd => "after-end",
            Self::AfterAck => "after-ack",
            Self::AfterStopSent => "after-stop-sent",
            Self::BeforeRemove => "before-remove",
            Self::AfterRemove => "after-remove",
            Self::BeforeFlush => "before-flush",
            Self::AfterFlush => "after-flush",
        }
    }
}
