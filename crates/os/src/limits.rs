//! What a cgroup (v2) may use of memory and processes: making the kernel enforce it, being told when it did, and taking
//! it back. Where the controllers are not to be had, `Tree::usage` says what is used, and others compare.

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

/// What the tree uses together, at one look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Resident memory, that of each process added up: what several share counts for each of them.
    pub memory_bytes: u64,
    /// Processes with their threads, as the kernel counts them.
    pub processes: u64,
}

/// Which limits cgroups below a directory can have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Available {
    /// Of memory.
    pub memory: bool,
    /// Of processes.
    pub processes: bool,
    /// Why one cannot be had, in words for people.
    pub why: Option<String>,
}

/// Lets the cgroups below `base` have limits, where that can be: a controller has to be passed on by each directory from
/// `own` to there.
pub fn enable(own: &Path, base: &Path) -> Available {
    let mut why = None;
    let mut pass_on = |name: &str| {
        let tried = pass_on_in(own, name).and_then(|()| pass_on_in(base, name));
        tried.map_err(|reason| why.get_or_insert(reason).clone()).is_ok()
    };
    let (memory, processes) = (pass_on("memory"), pass_on("pids"));
    Available { memory, processes, why }
}

fn pass_on_in(dir: &Path, name: &str) -> Result<(), String> {
    let lists = |file: &str| {
        let text = fs::read_to_string(dir.join(file)).unwrap_or_default();
        text.split_ascii_whitespace().any(|word| word == name)
    };
    if lists("cgroup.subtree_control") {
        return Ok(());
    }
    if !lists("cgroup.controllers") {
        return Err(format!("the {name} controller is not to be had in {}", dir.display()));
    }
    write(dir, "cgroup.subtree_control", &format!("+{name}")).map_err(|error| match error.raw_os_error() {
        Some(libc::EBUSY) => {
            format!("{} has processes of its own, so it cannot pass on the {name} controller", dir.display())
        }
        _ => format!("{} cannot pass on the {name} controller: {error}", dir.display()),
    })
}

/// One limit that the kernel enforces.
#[derive(Debug)]
struct Watched {
    limit: u64,
    /// Polls when something has happened.
    events: OwnedFd,
    /// What had happened when the limit was set: a cgroup may have had one before.
    before: u64,
}

/// The limits of one cgroup that the kernel enforces.
#[derive(Debug, Default)]
pub struct Controls {
    dir: PathBuf,
    memory: Option<Watched>,
    /// Open only where it tells of the time since then, and not of an earlier task in this cgroup.
    peak: Option<OwnedFd>,
    processes: Option<Watched>,
}

/// A limit that was reached, as the kernel tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reached {
    /// More memory was wanted than there may be, and the kernel has killed for it.
    Memory {
        /// What may be used.
        limit: u64,
        /// The most that was.
        used: u64,
        /// How many processes were killed.
        killed: u64,
    },
    /// A process more was wanted than there may be, and refused.
    Processes {
        /// How many may be there.
        limit: u64,
    },
}

impl Controls {
    /// Sets what can be set. What the kernel does not take is not held: see [`Controls::holds_memory`].
    pub fn set(dir: &Path, memory_bytes: Option<u64>, processes: Option<u64>) -> Self {
        let mut controls = Self { dir: dir.to_owned(), ..Self::default() };
        controls.memory = memory_bytes.and_then(|limit| hold_memory(dir, limit).ok());
        if controls.memory.is_some() {
            controls.peak = fresh_peak(dir).ok();
        }
        controls.processes = processes.and_then(|limit| hold_processes(dir, limit).ok());
        controls
    }

    /// Whether the kernel enforces the limit of memory.
    pub fn holds_memory(&self) -> bool {
        self.memory.is_some()
    }

    /// Whether the kernel enforces the limit of processes.
    pub fn holds_processes(&self) -> bool {
        self.processes.is_some()
    }

    /// They poll with `POLLPRI` when [`Controls::reached`] may have something to tell.
    pub fn events(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.memory.iter().chain(&self.processes).map(|watched| watched.events.as_fd())
    }

    /// The limit that was reached since they were set. Asking makes the files quiet until there is more.
    pub fn reached(&self) -> Option<Reached> {
        let memory = self.memory.as_ref().and_then(|watched| {
            let killed = count(&watched.events, OOM_KILLS).checked_sub(watched.before)?;
            let used = self.peak.as_ref().and_then(number).unwrap_or(watched.limit);
            (killed > 0).then_some(Reached::Memory { limit: watched.limit, used, killed })
        });
        let processes = || {
            let watched = self.processes.as_ref()?;
            let refused = count(&watched.events, FORKS_REFUSED) > watched.before;
            refused.then_some(Reached::Processes { limit: watched.limit })
        };
        memory.or_else(processes)
    }

    /// Takes every limit back, for whoever uses the cgroup next.
    pub fn lift(self) -> io::Result<()> {
        if self.memory.is_some() {
            lift_memory(&self.dir)?;
        }
        if self.processes.is_some() {
            write(&self.dir, "pids.max", "max")?;
        }
        Ok(())
    }
}

/// Each process of a group that is killed as a whole counts among these.
const OOM_KILLS: &str = "oom_kill";
const FORKS_REFUSED: &str = "max";

fn hold_memory(dir: &Path, limit: u64) -> io::Result<Watched> {
    let events = open(dir, "memory.events", OFlags::RDONLY)?;
    write(dir, "memory.max", &limit.to_string())?;
    // Where there is no such file nothing is swapped, or one is killed and we see to the others.
    let _ = write(dir, "memory.swap.max", "0");
    let _ = write(dir, "memory.oom.group", "1");
    let before = count(&events, OOM_KILLS);
    Ok(Watched { limit, events, before })
}

fn lift_memory(dir: &Path) -> io::Result<()> {
    let _ = write(dir, "memory.oom.group", "0");
    let _ = write(dir, "memory.swap.max", "max");
    write(dir, "memory.max", "max")
}

fn hold_processes(dir: &Path, limit: u64) -> io::Result<Watched> {
    let events = open(dir, "pids.events", OFlags::RDONLY)?;
    write(dir, "pids.max", &limit.to_string())?;
    let before = count(&events, FORKS_REFUSED);
    Ok(Watched { limit, events, before })
}

/// Since Linux 6.12 whoever writes to it is told of the time since then; older ones cannot forget.
fn fresh_peak(dir: &Path) -> io::Result<OwnedFd> {
    let peak = open(dir, "memory.peak", OFlags::RDWR)?;
    rustix::io::retry_on_intr(|| rustix::io::write(&peak, b"0"))?;
    Ok(peak)
}

fn open(dir: &Path, name: &str, flags: OFlags) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(dir.join(name), flags | OFlags::CLOEXEC, Mode::empty())?)
}

/// Writes to a file that is there.
fn write(dir: &Path, name: &str, text: &str) -> io::Result<()> {
    let file = open(dir, name, OFlags::WRONLY | OFlags::TRUNC)?;
    rustix::io::retry_on_intr(|| rustix::io::write(&file, text.as_bytes()))?;
    Ok(())
}

fn text(file: &OwnedFd) -> String {
    let mut buffer = [0_u8; 512];
    let filled = rustix::io::retry_on_intr(|| rustix::io::pread(file, &mut buffer, 0)).unwrap_or(0);
    String::from_utf8_lossy(buffer.get(..filled).unwrap_or_default()).into_owned()
}

fn number(file: &OwnedFd) -> Option<u64> {
    text(file).trim().parse().ok()
}

/// One counter of a file of `name value` lines.
fn count(events: &OwnedFd, name: &str) -> u64 {
    let text = text(events);
    let mut values = text.lines().filter_map(|line| line.split_once(' '));
    values.find(|(found, _)| *found == name).and_then(|(_, value)| value.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The files of a cgroup, as plain files.
    fn files(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in files {
            fs::write(dir.path().join(name), content).unwrap();
        }
        dir
    }

    fn read(dir: &tempfile::TempDir, name: &str) -> String {
        fs::read_to_string(dir.path().join(name)).unwrap()
    }

    const MEMORY: &[(&str, &str)] = &[
        ("memory.max", "max\n"),
        ("memory.swap.max", "max\n"),
        ("memory.oom.group", "0\n"),
        ("memory.peak", "999999\n"),
        ("memory.events", "low 0\nhigh 0\nmax 17\noom 4\noom_kill 3\noom_group_kill 1\n"),
    ];
    const PIDS: &[(&str, &str)] = &[("pids.max", "max\n"), ("pids.events", "max 5\n")];

    #[test]
    fn limits_are_set_reached_and_taken_back() {
        let dir = files(&[MEMORY, PIDS].concat());
        let controls = Controls::set(dir.path(), Some(50_000_000), Some(20));
        assert!(controls.holds_memory() && controls.holds_processes());
        assert_eq!(read(&dir, "memory.max"), "50000000");
        assert_eq!((read(&dir, "memory.swap.max"), read(&dir, "memory.oom.group")), ("0".into(), "1".into()));
        assert_eq!(read(&dir, "pids.max"), "20");
        assert_eq!(controls.events().count(), 2);
        assert_eq!(controls.reached(), None, "what an earlier task did does not count");

        fs::write(dir.path().join("pids.events"), "max 6\n").unwrap();
        assert_eq!(controls.reached(), Some(Reached::Processes { limit: 20 }));
        fs::write(dir.path().join("memory.peak"), "49999872\n").unwrap();
        fs::write(dir.path().join("memory.events"), "max 30\noom 5\noom_kill 6\noom_group_kill 2\n").unwrap();
        let reached = Reached::Memory { limit: 50_000_000, used: 49_999_872, killed: 3 };
        assert_eq!(controls.reached(), Some(reached));

        controls.lift().unwrap();
        for (name, value) in [
            ("memory.max", "max"),
            ("memory.swap.max", "max"),
            ("memory.oom.group", "0"),
            ("pids.max", "max"),
        ] {
            assert_eq!(read(&dir, name), value, "{name}");
        }
    }

    #[test]
    fn what_the_kernel_does_not_have_is_not_held() {
        let dir = files(PIDS);
        let controls = Controls::set(dir.path(), Some(50_000_000), None);
        assert!(!controls.holds_memory() && !controls.holds_processes());
        assert_eq!((controls.events().count(), controls.reached()), (0, None));
        controls.lift().unwrap();
        assert_eq!(read(&dir, "pids.max"), "max\n", "nobody asked for that one");

        // An older kernel cannot say what the most was since the task began.
        let dir =
            files(&MEMORY.iter().copied().filter(|(name, _)| *name != "memory.peak").collect::<Vec<_>>());
        let controls = Controls::set(dir.path(), Some(7), None);
        fs::write(dir.path().join("memory.events"), "oom_kill 4\n").unwrap();
        assert_eq!(controls.reached(), Some(Reached::Memory { limit: 7, used: 7, killed: 1 }));
    }

    #[test]
    fn controllers_are_passed_on_where_they_are_there() {
        let all = ("cgroup.controllers", "cpu memory pids\n");
        let own = files(&[all, ("cgroup.subtree_control", "memory pids\n")]);
        let base = files(&[all, ("cgroup.subtree_control", "memory\n")]);
        assert_eq!(enable(own.path(), base.path()), Available { memory: true, processes: true, why: None });
        assert_eq!(read(&own, "cgroup.subtree_control"), "memory pids\n", "there is nothing to do");
        assert_eq!(read(&base, "cgroup.subtree_control"), "+pids");

        let own = files(&[("cgroup.controllers", "cpu pids\n"), ("cgroup.subtree_control", "pids\n")]);
        let base = files(&[("cgroup.controllers", "pids\n"), ("cgroup.subtree_control", "\n")]);
        let why = Some(format!("the memory controller is not to be had in {}", own.path().display()));
        assert_eq!(enable(own.path(), base.path()), Available { memory: false, processes: true, why });
    }
}
