//! One cgroup (v2) per task: making it, asking whether anybody is in it, killing all of it, removing it. It moves
//! no process: processes are born in it. What it may use is `limits`' business, whether there is a place for it `probe`'s.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

pub use crate::probe::{Layout, Probe, mount_point, probe};
use crate::process::Pid;

/// How deep a task may nest cgroups before the rest is not looked at. The kernel's own limit is a setting.
const DEPTH_LIMIT: usize = 64;

/// A cgroup that exists.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
    dir: OwnedFd,
    events: OwnedFd,
    /// Open from the beginning: a kill begins with them, and finds them also when there is no descriptor left.
    procs: OwnedFd,
    kill: Option<OwnedFd>,
}

impl Cgroup {
    /// Makes `parent/name`, which must not exist.
    pub fn create(parent: &Path, name: &str) -> io::Result<Self> {
        if name.is_empty() || name.starts_with('.') || name.contains('/') {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let path = parent.join(name);
        rustix::fs::mkdir(&path, Mode::from_raw_mode(0o755))?;
        Self::open(&path).inspect_err(|_| {
            let _ = rustix::fs::rmdir(&path);
        })
    }

    /// Takes hold of a cgroup that exists.
    pub fn open(path: &Path) -> io::Result<Self> {
        let dir =
            rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let file = |name: &str, flags| rustix::fs::openat(&dir, name, flags | OFlags::CLOEXEC, Mode::empty());
        let events = file("cgroup.events", OFlags::RDONLY)?;
        let procs = file("cgroup.procs", OFlags::RDONLY)?;
        // Older kernels have none.
        let kill = file("cgroup.kill", OFlags::WRONLY).ok();
        Ok(Self { path: path.to_owned(), dir, events, procs, kill })
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its directory, open; what `spawn` takes.
    pub fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Whether a process lives in it or in one below it. Zombies do not count.
    pub fn populated(&self) -> io::Result<bool> {
        self.event(b"populated ")
    }

    fn event(&self, name: &[u8]) -> io::Result<bool> {
        let mut buffer = [0_u8; 256];
        let filled = rustix::io::retry_on_intr(|| rustix::io::pread(&self.events, &mut buffer, 0))?;
        let text = buffer.get(..filled).unwrap_or_default();
        match text.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(name)) {
            Some(value) => Ok(value != b"0"),
            None => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Polls with `POLLPRI` when [`Cgroup::populated`] may have changed since it was last asked.
    pub fn events(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// Kills everybody in it and below it, forks in progress included. A process whose first thread has exited
    /// survives this, and has to be killed by its pid.
    pub fn kill(&self) -> io::Result<()> {
        let kill = self.kill.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        rustix::io::retry_on_intr(|| rustix::io::write(kill, b"1"))?;
        Ok(())
    }

    /// The numbers of all processes in it and in cgroups below it, which the task may have made.
    pub fn pids(&self) -> io::Result<Vec<Pid>> {
        let mut found = read_pids(&self.procs)?;
        if !self.has_subgroups() {
            return Ok(found);
        }
        for below in subgroups(&self.path) {
            // One that goes away while we look has nobody in it.
            let file = fs::File::open(below.join("cgroup.procs")).ok();
            found.extend(file.and_then(|file| read_pids(&file.into()).ok()).unwrap_or_default());
        }
        Ok(found)
    }

    /// Listing a cgroup costs more than reading who is in it; the kernel counts a link for each one below.
    fn has_subgroups(&self) -> bool {
        rustix::fs::fstat(&self.dir).map_or(true, |stat| stat.st_nlink != 2)
    }

    /// Whether nobody has frozen or divided it, which whoever lives in it may do. (Its kind, and what it hands on, the kernel lets nobody
    /// change while somebody lives in it.)
    pub(crate) fn is_as_made(&self) -> bool {
        !self.has_subgroups() && !self.event(b"frozen ").unwrap_or(true)
    }

    /// Removes it and makes it again: empty, and as if it had never been killed.
    pub(crate) fn renew(self) -> io::Result<Self> {
        remove_tree(&self.path)?;
        rustix::fs::mkdir(&self.path, Mode::from_raw_mode(0o755))?;
        Self::open(&self.path)
    }

    /// Removes it and those below it, deepest first. `EBUSY` while somebody lives in one.
    pub fn remove(self) -> io::Result<()> {
        remove_tree(&self.path)
    }
}

fn read_pids(procs: &OwnedFd) -> io::Result<Vec<Pid>> {
    let mut text = Vec::new();
    let mut part = [0_u8; 4096];
    loop {
        match rustix::io::pread(procs, &mut part, text.len() as u64) {
            Ok(0) => break,
            Ok(length) => {
                text.extend_from_slice(part.get(..length).unwrap_or_default());
                // The kernel fills what it is given: less is all there is.
                if length < part.len() / 2 {
                    break;
                }
            }
            Err(rustix::io::Errno::INTR) => {}
            // A threaded cgroup lists its processes at the top of the threaded part.
            Err(rustix::io::Errno::OPNOTSUPP) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        }
    }
    let numbers =
        text.split(|&byte| byte == b'\n').filter_map(|line| std::str::from_utf8(line).ok()?.parse().ok());
    // A process of another PID namespace shows as 0.
    Ok(numbers.filter(|&pid| pid > 0).collect())
}

/// Every cgroup below this one, parents before children.
fn subgroups(top: &Path) -> Vec<PathBuf> {
    let mut found: Vec<(PathBuf, usize)> = vec![(top.to_owned(), 0)];
    let mut next = 0;
    while let Some((path, depth)) = found.get(next).cloned() {
        next += 1;
        if depth >= DEPTH_LIMIT {
            continue;
        }
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        found.extend(directories.map(|entry| (entry.path(), depth + 1)));
    }
    found.into_iter().skip(1).map(|(path, _)| path).collect()
}

pub(crate) fn remove_tree(top: &Path) -> io::Result<()> {
    for below in subgroups(top).iter().rev() {
        remove_one(below)?;
    }
    remove_one(top)
}

fn remove_one(path: &Path) -> io::Result<()> {
    match rustix::io::retry_on_intr(|| rustix::fs::rmdir(path)) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Removes the cgroups below `base` that nobody lives in and that `keep` does not claim by name. Returns how many.
pub fn remove_stale(base: &Path, keep: impl Fn(&str) -> bool) -> usize {
    let entries = fs::read_dir(base).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter(|entry| entry.file_name().to_str().is_some_and(|name| !keep(name)))
        // The kernel refuses to remove one with processes in it, so there is no race to lose here.
        .filter(|entry| remove_tree(&entry.path()).is_ok())
        .count()
}
