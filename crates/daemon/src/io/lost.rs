//! What a dead shim left: found by every trace of it, and among those that came to the daemon, which is a subreaper too; and
//! killed. Whoever is another task's, or the daemon's own, is left alone. It may take its time, so it runs beside the core.

use std::cell::RefCell;
use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use belay_os::cgroup::Cgroup;
use belay_os::process::{self, Identity, ProcessInfo};
use belay_os::tree;
use belay_protocol::life::SurvivorInfo;
use belay_protocol::shim::ProcessId;
use belay_protocol::vars;
use tokio::net::unix::pipe::Receiver;

use super::run::Hub;
use crate::event::{Event, LostTask};

/// How long the kill of a lost tree may take before its survivors are named.
const KILL_MS: u64 = 10_000;

/// How long a shim that was killed may take to be dead once its connection is closed.
const DYING: Duration = Duration::from_secs(10);

/// How often, and after which pauses, a process without a command line is looked at again.
const NAMELESS_LOOKS: usize = 20;
const NAMELESS_PAUSE: Duration = Duration::from_micros(500);

/// Finds and kills what a dead shim left.
pub(crate) fn kill_lost(hub: &Rc<Hub>, lost: LostTask) {
    hub.lost.borrow_mut().push(lost.shim.pid);
    let others = Others::new(hub, &lost);
    let hub = Rc::clone(hub);
    tokio::task::spawn_local(async move {
        let about = Box::new(lost.clone());
        let killed = tokio::task::spawn_blocking(move || find_and_kill(&lost, &others)).await;
        let (found, survivors) = killed.unwrap_or_default();
        hub.lost.borrow_mut().retain(|shim| *shim != about.shim.pid);
        hub.dispatch(Event::LostKilled { lost: about, found, survivors });
    });
}

/// Removes what a shim without a task would have removed at its end, as soon as it is dead. One that lives does so itself: it may
/// hold the end of a task for the next daemon.
pub(crate) fn clear(hub: &Rc<Hub>, name: &str, process: ProcessId, cgroup: Option<PathBuf>) {
    let socket = hub.recipe.socket(name);
    let cgroup = cgroup.or_else(|| hub.recipe.cgroup_base.as_ref().map(|base| base.join(name)));
    tokio::task::spawn_local(async move {
        if matches!(tokio::time::timeout(DYING, death_of(process)).await, Ok(Ok(()))) {
            let _ = std::fs::remove_file(socket);
            remove_empty(cgroup.as_deref());
        }
    });
}

/// Waits for the end of a process.
async fn death_of(process: ProcessId) -> io::Result<()> {
    let identity = Identity { pid: process.pid, start_ticks: process.start_ticks };
    if let Some(pidfd) = process::open_pidfd(identity)? {
        // Watched as the reading end of a pipe is: it is readable when the process has ended.
        Receiver::from_owned_fd_unchecked(pidfd)?.readable().await?;
    }
    Ok(())
}

/// The kernel refuses to remove one that somebody is in.
fn remove_empty(cgroup: Option<&Path>) {
    let _ = cgroup.map(|path| Cgroup::open(path).and_then(Cgroup::remove));
}

fn find_and_kill(lost: &LostTask, others: &Others) -> (u64, Vec<SurvivorInfo>) {
    let identity = |process: ProcessId| Identity { pid: process.pid, start_ticks: process.start_ticks };
    let marker = format!("{}={}", vars::TASK, lost.task);
    let seen = RefCell::new(HashSet::new());
    let find = || {
        let leader = lost.leader.map(identity);
        let mut found = process::find_lost(identity(lost.shim), leader, lost.cgroup.as_deref(), &marker);
        // Most of those that came to us have left a trace too: each counts once.
        let known: HashSet<Identity> = found.iter().map(|process| process.identity).collect();
        found.extend(others.orphans().into_iter().filter(|orphan| !known.contains(&orphan.identity)));
        seen.borrow_mut().extend(found.iter().map(|process| process.identity));
        found
    };
    let survivors = tree::kill_lost(find, KILL_MS);
    remove_empty(lost.cgroup.as_deref());
    let named = survivors.into_iter().map(|process| SurvivorInfo {
        pid: process.identity.pid,
        start_ticks: process.identity.start_ticks,
        uid: process.uid,
        command: process.command,
    });
    let shim = identity(lost.shim);
    let found = seen.borrow().iter().filter(|seen| **seen != shim).count();
    (found as u64, named.collect())
}

/// What a process that shows no command line calls itself a moment later: in the middle of becoming a program it has none.
fn settled_command(child: &ProcessInfo) -> String {
    let mut command = child.command.clone();
    for _ in 0..NAMELESS_LOOKS {
        if !command.starts_with('[') {
            break;
        }
        std::thread::sleep(NAMELESS_PAUSE);
        let now = process::info(child.identity.pid).filter(|now| now.identity == child.identity);
        command = now.map_or_else(String::new, |now| now.command);
    }
    command
}

/// Whom the search for one task's orphans passes over.
struct Others {
    /// The task that is searched for, and the name of its cgroup.
    task: String,
    cgroup: Option<String>,
    /// All other shims: those that live, those of whom it is not known yet that they are dead, and those whose tasks are being
    /// searched for at the same time.
    shims: Vec<i32>,
    /// How the command lines of the daemon's own children begin, also of one that has not become what it will be.
    own_words: Vec<String>,
    /// What stands before the name of a task's cgroup.
    base: Option<String>,
}

impl Others {
    fn new(hub: &Hub, lost: &LostTask) -> Self {
        let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
        let base = hub.recipe.cgroup_base.as_deref();
        let own = process::info(hub.pid).map(|own| own.command);
        let mut shims = hub.known_shims();
        shims.extend(hub.lost.borrow().iter());
        shims.retain(|shim| *shim != lost.shim.pid);
        Self {
            task: lost.task.clone(),
            cgroup: lost.cgroup.as_deref().and_then(name),
            shims,
            own_words: hub.recipe.own_words().chain(own).collect(),
            base: base.and_then(name).map(|base| format!("/{base}/")),
        }
    }

    /// Everybody who came to the daemon and may be of the task, and whoever is below.
    fn orphans(&self) -> Vec<ProcessInfo> {
        let own = process::own_identity().pid;
        let children = process::descendants(own);
        let strays: Vec<i32> = children
            .iter()
            .filter(|child| child.ppid == own && !self.is_ours(child) && !self.is_of_another(child))
            // Whoever is dying shows nothing of whose it is: it would be counted by every search.
            .filter(|child| !process::is_leaving(child.identity))
            .map(|child| child.identity.pid)
            .collect();
        let mut found: Vec<ProcessInfo> = Vec::new();
        for child in children {
            let below = strays.contains(&child.identity.pid)
                || found.iter().any(|parent| parent.identity.pid == child.ppid);
            if below {
                found.push(child);
            }
        }
        found
    }

    /// A shim or a reader, or one that is being made.
    fn is_ours(&self, child: &ProcessInfo) -> bool {
        let is_own = |command: &str| self.own_words.iter().any(|words| command.starts_with(words.as_str()));
        self.shims.contains(&child.identity.pid) || is_own(&child.command) || is_own(&settled_command(child))
    }

    /// The kernel's word on where it lives counts most; else the session that it is in, or what it was started with.
    fn is_of_another(&self, child: &ProcessInfo) -> bool {
        let pid = child.identity.pid;
        let place = self.base.as_ref().zip(process::cgroup_of(pid));
        if let Some((_, below)) = place.as_ref().and_then(|(base, place)| place.split_once(base.as_str())) {
            return below.split('/').next() != self.cgroup.as_deref();
        }
        let task = process::variable(pid, vars::TASK);
        self.shims.contains(&child.sid) || task.is_some_and(|task| task != self.task.as_bytes())
    }
}
