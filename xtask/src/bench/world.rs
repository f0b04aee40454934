//! A world of its own for each work: a home under the temporary directory, a daemon, and no trace afterwards.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use belay_client::{Client, Places};
use belay_os::process::{identity, is_alive, signal_identity};
use belay_os::{Identity, Signal, Tree};
use belay_protocol::daemon;
use belay_protocol::methods::{DaemonStatus, DaemonStop, TaskStart, TaskStop};
use belay_protocol::task::{StartParams, StopParams, StopResult, TaskInfo};
use serde_json::json;

use crate::run::{Outcome, bin_dir, wait_until};

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) places: Places,
    pub(crate) exe: PathBuf,
}

/// The program that is measured.
pub(crate) fn exe() -> Outcome<PathBuf> {
    Ok(bin_dir()?.join("belay"))
}

/// A directory for one work that nobody else has.
pub(crate) fn scratch() -> Outcome<PathBuf> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let dir = std::env::temp_dir().join(format!("belay-bench-{}-{count}", std::process::id()));
    std::fs::create_dir(&dir)?;
    Ok(dir)
}

impl World {
    pub(crate) fn new() -> Outcome<Self> {
        let home = scratch()?;
        let world = Self { places: Places::new(home.clone(), home.join("run")), exe: exe()? };
        world.start_daemon()?;
        Ok(world)
    }

    pub(crate) fn start_daemon(&self) -> Outcome {
        let never = [(belay_protocol::vars::IDLE_EXIT, OsStr::new("never"))];
        Ok(belay_client::start_daemon(&self.places, &self.exe, &never)?)
    }

    pub(crate) fn connect(&self) -> Outcome<Client> {
        Ok(Client::connect(&self.places)?)
    }

    pub(crate) fn daemon(&self) -> Outcome<Identity> {
        let pid = self.connect()?.call::<DaemonStatus>(&daemon::StatusParams {})?.pid;
        Ok(identity(pid).ok_or("the daemon is gone")?)
    }

    /// Ends the daemon as a power cut would, and waits until it is gone.
    pub(crate) fn kill_daemon(&self) -> Outcome {
        let daemon = self.daemon()?;
        signal_identity(daemon, Signal::KILL)?;
        gone(daemon)
    }

    fn end(&self) -> Outcome {
        let daemon = self.daemon()?;
        let params = daemon::StopParams { stop_tasks: true, grace_ms: Some(100), reason: None };
        self.connect()?.call::<DaemonStop>(&params)?;
        gone(daemon)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("the daemon of {} did not end well: {error}", self.places.home.display());
        }
        reap();
        let _ = std::fs::remove_dir_all(&self.places.home);
    }
}

fn gone(daemon: Identity) -> Outcome {
    let gone = wait_until(Duration::from_secs(30), || Ok(!is_alive(daemon)))?;
    reap();
    if gone { Ok(()) } else { Err("the daemon does not end".into()) }
}

/// Takes in the dead that came back to us. No child of ours may be waited for elsewhere meanwhile.
pub(crate) fn reap() {
    let _ = Tree::new(None).reap(&mut Vec::new());
}

/// What to ask for to start this.
pub(crate) fn start_params(argv: &[&str], more: &serde_json::Value) -> Outcome<StartParams> {
    let path = format!("PATH={}", std::env::var("PATH").unwrap_or_default());
    let mut params = json!({"command": {"argv": argv}, "cwd": "/", "env": [path]});
    if let (Some(params), Some(more)) = (params.as_object_mut(), more.as_object()) {
        params.extend(more.clone());
    }
    Ok(serde_json::from_value(params)?)
}

/// A task that is stopped later.
pub(crate) fn start_detached(client: &mut Client, argv: &[&str]) -> Outcome<TaskInfo> {
    Ok(client.call::<TaskStart>(&start_params(argv, &json!({"detached": true}))?)?)
}

pub(crate) fn kill_params(id: &str) -> Outcome<StopParams> {
    Ok(serde_json::from_value(json!({"id": id, "level": "kill"}))?)
}

pub(crate) fn kill(client: &mut Client, id: &str) -> Outcome<StopResult> {
    Ok(client.call::<TaskStop>(&kill_params(id)?)?)
}
