//! The Linux host: `/proc`, the file system, the kernel's randomness.

use std::cell::{Cell, OnceCell};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use belay_os::process;
use belay_protocol::Bytes;
use belay_protocol::shim::ProcessId;
use belay_record::{LogReader, MemoryLog};

use super::settings_file;
use crate::host::{CrashPoint, Host};
use crate::settings::{Found, Stamp};

#[derive(Debug)]
pub(crate) struct LinuxHost {
    /// Where this daemon ends itself, for tests of recovery.
    pub(crate) crash_at: Option<CrashAt>,
    /// The first user that was asked for, which is the owner of this daemon.
    pub(crate) user: OnceCell<(u32, String)>,
}

/// A place where a daemon ends itself.
#[derive(Debug)]
pub(crate) struct CrashAt {
    point: String,
    /// How often it may be passed.
    passes: Cell<u32>,
    by_panic: bool,
}

impl CrashAt {
    /// Reads `POINT[:PASSES[:panic]]`.
    pub(crate) fn parse(text: &str) -> Self {
        let mut parts = text.split(':');
        let point = parts.next().unwrap_or_default().to_owned();
        let passes = parts.next().and_then(|text| text.parse().ok()).unwrap_or(0);
        Self { point, passes: Cell::new(passes), by_panic: parts.next() == Some("panic") }
    }
}

/// The name of a local user, or else the number, which is always right: a static program cannot ask the name services.
fn look_up_user(uid: u32) -> String {
    let file = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let mut entries = file.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let found = entries.find(|fields| fields.get(2).and_then(|text| text.parse().ok()) == Some(uid));
    found.and_then(|fields| fields.first().map(|&name| name.to_owned())).unwrap_or_else(|| uid.to_string())
}

/// Where the user of this process lives, by the same file.
pub(super) fn home_dir() -> Option<String> {
    let uid = rustix::process::getuid().as_raw();
    let file = std::fs::read_to_string("/etc/passwd").ok()?;
    let mut entries = file.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let found = entries.find(|fields| fields.get(2).and_then(|text| text.parse().ok()) == Some(uid))?;
    found.get(5).map(|&home| home.to_owned())
}

/// The first program of this name in the absolute directories of a PATH.
pub(super) fn find_program(name: &OsStr, path: &[u8]) -> Option<PathBuf> {
    let dirs = path.split(|byte| *byte == b':').map(|dir| Path::new(OsStr::from_bytes(dir)));
    let is_program = |file: &PathBuf| {
        file.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    dirs.filter(|dir| dir.is_absolute()).map(|dir| dir.join(name)).find(is_program)
}

impl Host for LinuxHost {
    fn random(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        getrandom::fill(bytes).map_err(io::Error::other)
    }

    fn log(&self, dir: &Path) -> io::Result<LogReader> {
        LogReader::open(dir)
    }

    fn log_sums(&self, dir: &Path) -> io::Result<LogReader> {
        LogReader::glance(dir)
    }

    fn memory_log(&self, shim: ProcessId, numbers: [i32; 2]) -> io::Result<MemoryLog> {
        MemoryLog::open(shim.pid, numbers)
    }

    fn boot_ticks(&self) -> u64 {
        process::boot_ticks()
    }

    fn environment_of(&self, pid: i32, started_by_ticks: u64) -> io::Result<Vec<Bytes>> {
        let gone = || io::Error::new(io::ErrorKind::NotFound, "the process that made the connection is gone");
        let text = std::fs::read(format!("/proc/{pid}/environ"))?;
        // Read after the text: if this process is older than the connection, so is what was read.
        let identity = process::identity(pid).filter(|found| found.start_ticks <= started_by_ticks);
        identity.ok_or_else(gone)?;
        let entries = text.split(|byte| *byte == 0).filter(|entry| entry.contains(&b'='));
        Ok(entries.map(|entry| Bytes(entry.to_vec())).collect())
    }

    fn is_alive(&self, process: ProcessId) -> bool {
        let identity = process::Identity { pid: process.pid, start_ticks: process.start_ticks };
        // With no descriptor left nothing can be read; what is there and cannot be read must not be taken for dead.
        let there = || Path::new("/proc").join(process.pid.to_string()).exists();
        process::is_alive(identity) || (process::identity(process.pid).is_none() && there())
    }

    fn shim_names(&self, runtime_dir: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(runtime_dir.join("s")).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names.filter_map(|name| name.strip_suffix(".sock").map(str::to_owned)).collect()
    }

    fn settings_stamp(&self, path: &Path) -> Option<Stamp> {
        settings_file::stamp(path)
    }

    fn settings_file(&self, path: &Path) -> io::Result<Found> {
        settings_file::read(path)
    }

    fn is_dir(&self, path: &Path) -> bool {
        path.is_dir()
    }

    fn find_program(&self, name: &OsStr, path: &[u8]) -> Option<PathBuf> {
        find_program(name, path)
    }

    fn user_name(&self, uid: u32) -> String {
        let (known, name) = self.user.get_or_init(|| (uid, look_up_user(uid)));
        if *known == uid { name.clone() } else { look_up_user(uid) }
    }

    fn boot(&self) -> String {
        process::boot_id()
    }

    fn crash_point(&self, point: CrashPoint) {
        let Some(crash) = self.crash_at.as_ref().filter(|crash| crash.point == point.name()) else { return };
        match crash.passes.get() {
            0 => {
                assert!(!crash.by_panic, "crash point {}", point.name());
                let own = process::own_identity();
                let _ = process::signal_identity(own, belay_os::signal::Signal::KILL);
            }
            n => crash.passes.set(n - 1),
        }
    }
}
