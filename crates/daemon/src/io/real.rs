//! The world as it is: `/proc`, the file system, the kernel's randomness.

use std::cell::OnceCell;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use belay_os::cgroup::Cgroup;
use belay_os::limits::Usage;
use belay_os::process;
use belay_protocol::shim::ProcessId;
use belay_protocol::task::ProcessInfo;
use belay_record::{EndFile, LogReader, MemoryLog};

use super::settings_file;
use crate::settings::{Found, Stamp};
use crate::world::{CrashPoint, World};

#[derive(Debug)]
pub(crate) struct RealWorld {
    /// Where this daemon ends itself as `kill -9` would, for tests of recovery: the point, and how often it may be passed.
    pub(crate) crash_at: Option<(String, std::cell::Cell<u32>)>,
    /// Whoever was asked for first, which is nobody but the owner of this daemon.
    pub(crate) user: OnceCell<(u32, String)>,
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

/// Who is below a process, and who is only in the cgroup.
fn everybody(shim_pid: i32, cgroup: Option<&Path>) -> Vec<process::ProcessInfo> {
    let mut found = process::descendants(shim_pid);
    let in_cgroup = cgroup.and_then(|path| Cgroup::open(path).ok()?.pids().ok()).unwrap_or_default();
    let others = in_cgroup.into_iter().filter(|pid| found.iter().all(|known| known.identity.pid != *pid));
    let others: Vec<_> = others.filter_map(process::info).filter(|info| !info.is_dead()).collect();
    found.extend(others);
    found
}

impl World for RealWorld {
    fn random(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        getrandom::fill(bytes).map_err(io::Error::other)
    }

    fn processes(&self, shim_pid: i32, cgroup: Option<&Path>) -> Vec<ProcessInfo> {
        everybody(shim_pid, cgroup).into_iter().map(process_info).collect()
    }

    fn usage(&self, shim_pid: i32, cgroup: Option<&Path>) -> Usage {
        everybody(shim_pid, cgroup).iter().fold(Usage::default(), |sum, one| Usage {
            memory_bytes: sum.memory_bytes.saturating_add(one.rss_bytes),
            processes: sum.processes.saturating_add(u64::from(one.threads.max(1))),
        })
    }

    fn log(&self, dir: &Path) -> io::Result<LogReader> {
        LogReader::open(dir)
    }

    fn log_at_a_glance(&self, dir: &Path) -> io::Result<LogReader> {
        LogReader::glance(dir)
    }

    fn memory_log(&self, shim: ProcessId, numbers: [i32; 2]) -> io::Result<MemoryLog> {
        MemoryLog::open(shim.pid, numbers)
    }

    fn end_file(&self, dir: &Path) -> io::Result<Option<EndFile>> {
        EndFile::read(dir)
    }

    fn remove_end_file(&self, dir: &Path) {
        // Left behind it would only be read once more, and say the same.
        let _ = EndFile::remove(dir);
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

    fn write_settings(&self, path: &Path, text: &[u8]) -> io::Result<()> {
        settings_file::write(path, text)
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

    fn reach(&self, point: CrashPoint) {
        let Some((name, left)) = &self.crash_at else { return };
        if name != point.name() {
            return;
        }
        match left.get() {
            0 => {
                let own = process::own_identity();
                let _ = process::signal_identity(own, belay_os::signal::Signal::KILL);
            }
            n => left.set(n - 1),
        }
    }
}

fn process_info(info: process::ProcessInfo) -> ProcessInfo {
    let process::ProcessInfo { identity, ppid, state, command, rss_bytes, cpu_ms, .. } = info;
    ProcessInfo { pid: identity.pid, ppid, state: state.to_string(), command, rss_bytes, cpu_ms }
}
