//! What the core asks of the world directly, because the answer is there at once: randomness, `/proc`, a task's
//! directory. The simulator has its own.

use std::io;
use std::path::{Path, PathBuf};

use belay_protocol::task::ProcessInfo;
use belay_record::{EndFile, LogReader};

use crate::settings::{Found, Stamp};

pub trait World {
    fn random(&mut self, bytes: &mut [u8]) -> io::Result<()>;
    /// Everybody below this process and in this cgroup.
    fn processes(&self, shim_pid: i32, cgroup: Option<&Path>) -> Vec<ProcessInfo>;
    /// What they use together.
    fn usage(&self, shim_pid: i32, cgroup: Option<&Path>) -> belay_os::limits::Usage;
    fn log(&self, dir: &Path) -> io::Result<LogReader>;
    /// The same for its sums, in a look that a list of a thousand tasks can afford at each.
    fn log_at_a_glance(&self, dir: &Path) -> io::Result<LogReader>;
    /// The log that this shim, which is alive, has open under these numbers.
    fn memory_log(
        &self,
        shim: belay_protocol::shim::ProcessId,
        numbers: [i32; 2],
    ) -> io::Result<belay_record::MemoryLog>;
    fn end_file(&self, dir: &Path) -> io::Result<Option<EndFile>>;
    fn remove_end_file(&self, dir: &Path);
    /// Whether this very process is there: a shim, or somebody of a task.
    fn is_alive(&self, process: belay_protocol::shim::ProcessId) -> bool;
    /// The names of all shims that have a socket, alive or not.
    fn shim_names(&self, runtime_dir: &Path) -> Vec<String>;
    /// What tells whether the file of settings is another than before; none where there is no such file.
    fn settings_stamp(&self, path: &Path) -> Option<Stamp>;
    fn settings_file(&self, path: &Path) -> io::Result<Found>;
    /// Puts the file there whole, or leaves what was there.
    fn write_settings(&self, path: &Path, text: &[u8]) -> io::Result<()>;
    fn is_dir(&self, path: &Path) -> bool;
    fn find_program(&self, name: &std::ffi::OsStr, path: &[u8]) -> Option<PathBuf>;
    fn user_name(&self, uid: u32) -> String;
    fn boot(&self) -> String;
    /// A place where a fault can be injected.
    fn reach(&self, point: CrashPoint);
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
    BeforeSettle,
    AfterSettle,
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
        Self::BeforeSettle,
        Self::AfterSettle,
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
            Self::BeforeSettle => "before-settle",
            Self::AfterSettle => "after-settle",
        }
    }
}
