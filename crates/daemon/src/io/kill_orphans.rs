//! Cleanup after a dead shim: reads its end file, or else finds and kills its process tree.
//! Processes of the tree are found by their traces (session, cgroup, environment) and among the
//! orphans that were reparented to the daemon. Processes of other tasks and of the daemon itself
//! are left alone. Each kill runs on its own thread, so that nothing delays it.

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
use belay_record::EndFile;
use tokio::net::unix::pipe::Receiver;

use super::hub::Hub;
use super::workers::run_alone;
use crate::effect::{LostTask, LostTree, Reaped, WithoutEndFile};
use crate::input::Input;

/// How long the kill of a lost tree may take before its survivors are reported.
const KILL_MS: u64 = 10_000;

/// How long a killed shim may take to exit after its connection was closed.
const DYING: Duration = Duration::from_secs(10);

/// How often, and after which pauses, starting the thread for a kill is retried.
const KILL_TRIES: usize = 60;
const KILL_PAUSE: Duration = Duration::from_secs(1);

/// How often, and after which pauses, a process without a command line is examined again.
const NAMELESS_LOOKS: usize = 20;
const NAMELESS_PAUSE: Duration = Duration::from_micros(500);

/// Finds out how a task ended whose shim is gone. If there is no end file and the caller requests
/// it, kills its tree.
pub(crate) fn reap(hub: &Rc<Hub>, lost: LostTask) {
    let hub = Rc::clone(hub);
    tokio::task::spawn_local(async move {
        let (dir, task) = (lost.dir.clone(), lost.task.clone());
        let found = hub.with_files(move || EndFile::read(&dir)).await;
        let error = match found {
            Ok(Ok(Some(file))) if file.task == task => {
                let result = Reaped::EndFile(Box::new(file));
                return hub.dispatch(Input::LostReaped { lost: Box::new(lost), result });
            }
            Ok(Ok(_)) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some("it could not be read".to_owned()),
        };
        let result = match &lost.without_end_file {
            WithoutEndFile::Report => Reaped::Nothing { error },
            WithoutEndFile::Kill(tree) => {
                let (found, survivors) = kill(&hub, &task, tree).await;
                Reaped::Killed { found, survivors, error }
            }
        };
        hub.dispatch(Input::LostReaped { lost: Box::new(lost), result });
    });
}

async fn kill(hub: &Rc<Hub>, task: &str, tree: &LostTree) -> (u64, Vec<SurvivorInfo>) {
    let _turn = hub.kills().acquire().await;
    hub.killing.borrow_mut().push(tree.shim.pid);
    let mut killed = None;
    for _ in 0..KILL_TRIES {
        let others = Others::new(hub, task, tree);
        let (name, lost) = (task.to_owned(), tree.clone());
        killed = run_alone("kill", move || find_and_kill(&name, &lost, &others)).await.ok();
        if killed.is_some() {
            break;
        }
        tokio::time::sleep(KILL_PAUSE).await;
    }
    hub.killing.borrow_mut().retain(|shim| *shim != tree.shim.pid);
    killed.unwrap_or_default()
}

/// Removes the socket and cgroup of an idle shim once it is dead. A live shim removes them itself:
/// it may hold the end of a task for the next daemon.
pub(crate) fn clear(hub: &Rc<Hub>, name: &str, process: ProcessId, cgroup: Option<PathBuf>) {
    let socket = hub.recipe.socket(name);
    let cgroup = cgroup.or_else(|| hub.recipe.cgroup_base.as_ref().map(|base| base.join(name)));
    let hub = Rc::clone(hub);
    tokio::task::spawn_local(async move {
        if matches!(tokio::time::timeout(DYING, death_of(process)).await, Ok(Ok(()))) {
            let _ = hub
                .with_files(move || {
                    let _ = std::fs::remove_file(socket);
                    remove_empty(cgroup.as_deref());
                })
                .await;
        }
    });
}

/// Waits for the end of a process.
async fn death_of(process: ProcessId) -> io::Result<()> {
    let identity = Identity { pid: process.pid, start_ticks: process.start_ticks };
    if let Some(pidfd) = process::open_pidfd(identity)? {
        // Polled like the reading end of a pipe: it is readable when the process has ended.
        Receiver::from_owned_fd_unchecked(pidfd)?.readable().await?;
    }
    Ok(())
}

/// Removes a cgroup if it is empty: the kernel refuses to remove one that contains a process.
fn remove_empty(cgroup: Option<&Path>) {
    let _ = cgroup.map(|path| Cgroup::open(path).and_then(Cgroup::remove));
}

fn find_and_kill(task: &str, lost: &LostTree, others: &Others) -> (u64, Vec<SurvivorInfo>) {
    let identity = |process: ProcessId| Identity { pid: process.pid, start_ticks: process.start_ticks };
    let marker = format!("{}={task}", vars::TASK);
    let seen = RefCell::new(HashSet::new());
    let find = || {
        let leader = lost.leader.map(identity);
        let mut found = process::find_lost(identity(lost.shim), leader, lost.cgroup.as_deref(), &marker);
        // Most orphans of the daemon are found by a trace, too: each is counted once.
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

/// The command line of a process, read again if it is empty: during an exec it is empty for a
/// moment.
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

/// The processes that the search for one task's orphans must leave alone.
struct Others {
    /// The task whose orphans are searched for, and the name of its cgroup.
    task: String,
    cgroup: Option<String>,
    /// All other shims: live ones, those not yet known to be dead, and those whose trees are being killed at the same time.
    shims: Vec<i32>,
    /// The beginnings of the command lines of the daemon's own children, before and after their
    /// exec.
    own_words: Vec<String>,
    /// The part of a cgroup path before the name of a task's cgroup.
    base: Option<String>,
}

impl Others {
    fn new(hub: &Hub, task: &str, lost: &LostTree) -> Self {
        let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
        let base = hub.recipe.cgroup_base.as_deref();
        let own = process::info(hub.pid).map(|own| own.command);
        let mut shims = hub.known_shims();
        shims.extend(hub.killing.borrow().iter());
        shims.retain(|shim| *shim != lost.shim.pid);
        Self {
            task: task.to_owned(),
            cgroup: lost.cgroup.as_deref().and_then(name),
            shims,
            own_words: hub.recipe.own_words().chain(own).collect(),
            base: base.and_then(name).map(|base| format!("/{base}/")),
        }
    }

    /// The orphans of the daemon that may belong to the task, and everything below them.
    fn orphans(&self) -> Vec<ProcessInfo> {
        let own = process::own_identity().pid;
        let children = process::descendants(own);
        let strays: Vec<i32> = children
            .iter()
            .filter(|child| child.ppid == own && !self.is_ours(child) && !self.is_of_another(child))
            // A dying process shows no trace of its task: every search would count it.
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

    /// Whether a process is a shim or a parser, or is being started as one.
    fn is_ours(&self, child: &ProcessInfo) -> bool {
        let is_own = |command: &str| self.own_words.iter().any(|words| command.starts_with(words.as_str()));
        self.shims.contains(&child.identity.pid) || is_own(&child.command) || is_own(&settled_command(child))
    }

    /// Whether a process belongs to another task: decided by its cgroup, or else by its session or
    /// its environment.
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
