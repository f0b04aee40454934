//! A world of its own for each work: a home under the temporary directory, a daemon, and no trace afterwards.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use belay_client::{Client, Paths};
use belay_os::process::{identity, is_alive, signal_identity};
use belay_os::{Identity, Signal, Tree};
use belay_protocol::daemon;
use belay_protocol::task::{TaskStartParams, TaskStopParams};
use serde_json::json;

use super::subject::Subject;
use super::wire::{DaemonStatus, DaemonStop, Start, Status, Stop, Task};
use crate::run::{Outcome, bin_dir, wait_until};

/// How long a daemon may take to stop thousands of tasks.
const STOP_LIMIT: Duration = Duration::from_mins(3);
/// How long killing everything that a daemon left may take.
const KILL_LIMIT_MS: u64 = 60_000;

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) paths: Paths,
    pub(crate) exe: PathBuf,
    /// The cgroup of all of its tasks, if the machine has cgroups.
    cgroup: Option<PathBuf>,
}

/// The program that is measured.
pub(crate) fn exe() -> Outcome<PathBuf> {
    Ok(bin_dir()?.join("belay"))
}

/// Where files are kept in memory.
const MEMORY: &str = "/dev/shm";

/// A new directory for one work.
pub(crate) fn scratch() -> Outcome<PathBuf> {
    scratch_in(&std::env::temp_dir())
}

fn scratch_in(parent: &Path) -> Outcome<PathBuf> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let dir = parent.join(format!("belay-bench-{}-{count}", std::process::id()));
    std::fs::create_dir(&dir)?;
    Ok(dir)
}

impl World {
    pub(crate) fn new(subject: &Subject) -> Outcome<Self> {
        Self::with_home(subject, scratch()?)
    }

    /// With a home in memory where the machine has such a place: for work that would measure the disk otherwise.
    pub(crate) fn in_memory(subject: &Subject) -> Outcome<Self> {
        let memory = Path::new(MEMORY);
        Self::with_home(subject, if memory.is_dir() { scratch_in(memory)? } else { scratch()? })
    }

    fn with_home(subject: &Subject, home: PathBuf) -> Outcome<Self> {
        let exe = subject.exe.clone();
        let mut world = Self { paths: Paths::new(home.clone(), home.join("run")), exe, cgroup: None };
        world.start_daemon()?;
        world.cgroup = world.status()?.containment.cgroup.map(PathBuf::from);
        Ok(world)
    }

    pub(crate) fn start_daemon(&self) -> Outcome {
        let never = [(belay_protocol::vars::IDLE_EXIT, OsStr::new("never"))];
        Ok(belay_client::start_daemon(&self.paths, &self.exe, &never)?)
    }

    pub(crate) fn connect(&self) -> Outcome<Client> {
        Ok(Client::connect(&self.paths)?)
    }

    /// A connection in the name of the task that was given this token.
    pub(crate) fn connect_as_task(&self, token: &str) -> Outcome<Client> {
        let paths = Paths { token: Some(token.to_owned()), ..self.paths.clone() };
        Ok(Client::connect(&paths)?)
    }

    pub(crate) fn status(&self) -> Outcome<Status> {
        Ok(self.connect()?.call::<DaemonStatus>(&daemon::DaemonStatusParams::default())?)
    }

    pub(crate) fn daemon(&self) -> Outcome<Identity> {
        Ok(identity(self.status()?.pid).ok_or("the daemon is gone")?)
    }

    /// Ends the daemon as a power cut would, and waits until it is gone.
    pub(crate) fn kill_daemon(&self) -> Outcome {
        let daemon = self.daemon()?;
        signal_identity(daemon, Signal::KILL)?;
        gone(daemon)
    }

    /// Stops the daemon and all of its tasks; they get no time to end by themselves.
    pub(crate) fn stop_daemon(&self) -> Outcome {
        let daemon = self.daemon()?;
        let params = daemon::DaemonStopParams { stop_tasks: true, grace_ms: Some(100), reason: None };
        let answer = self.connect()?.call_by::<DaemonStop>(&params, Some(Instant::now() + STOP_LIMIT));
        let gone = gone(daemon);
        if let Err(error) = answer {
            // Some binaries exit before a long answer has been read; their last tasks may be ending still.
            eprintln!("{} did not answer `daemon/stop`: {error}", self.exe.display());
            kill_descendants();
        }
        gone
    }
}

impl World {
    /// What the daemon has logged last, for the search for the cause when it is gone.
    fn end_of_log(&self) -> String {
        const LINES: usize = 20;
        let log = std::fs::read_to_string(self.paths.home.join(belay_protocol::vars::LOG_FILE));
        let log = log.unwrap_or_else(|error| error.to_string());
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LINES)..].join("\n")
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Err(error) = self.stop_daemon() {
            eprintln!("the daemon of {} did not stop: {error}", self.paths.home.display());
            eprintln!("the end of its log:\n{}", self.end_of_log());
            kill_descendants();
        }
        reap();
        if let Some(cgroup) = &self.cgroup {
            remove_cgroup(cgroup);
        }
        let _ = std::fs::remove_dir_all(&self.paths.home);
    }
}

/// Removes the empty cgroups that a killed daemon left; one with processes stays.
fn remove_cgroup(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_cgroup(&entry.path());
        }
    }
    let _ = std::fs::remove_dir(dir);
}

fn gone(daemon: Identity) -> Outcome {
    let gone = wait_until(Duration::from_mins(1), || Ok(!is_alive(daemon)))?;
    reap();
    if gone { Ok(()) } else { Err("the daemon does not end".into()) }
}

/// Kills every process below this one: after a failure, nothing that a work started may live on.
pub(crate) fn kill_descendants() {
    match Tree::new(None).kill_until_empty(KILL_LIMIT_MS) {
        Ok(_) => {}
        Err(error) => eprintln!("cannot kill what is left: {error}"),
    }
}

/// Takes in the dead that came back to us. No child of ours may be waited for elsewhere meanwhile.
pub(crate) fn reap() {
    let _ = Tree::new(None).reap(&mut Vec::new());
}

/// What to ask for to start this.
pub(crate) fn start_params(argv: &[&str], more: &serde_json::Value) -> Outcome<TaskStartParams> {
    let path = format!("PATH={}", std::env::var("PATH").unwrap_or_default());
    let mut params = json!({"spec": {"kind": "shell", "command": {"kind": "argv", "argv": argv}}, "cwd": "/", "env": [path]});
    if let (Some(params), Some(more)) = (params.as_object_mut(), more.as_object()) {
        params.extend(more.clone());
    }
    Ok(serde_json::from_value(params)?)
}

/// A task that is stopped later.
pub(crate) fn start_detached(client: &mut Client, argv: &[&str]) -> Outcome<Task> {
    Ok(client.call::<Start>(&start_params(argv, &json!({"detached": true}))?)?)
}

pub(crate) fn kill_params(id: &str) -> Outcome<TaskStopParams> {
    Ok(serde_json::from_value(json!({"id": id, "level": "kill"}))?)
}

pub(crate) fn kill(client: &mut Client, id: &str) -> Outcome {
    client.call::<Stop>(&kill_params(id)?)?;
    Ok(())
}
