//! Shims: the pool of idle ones, the shims that hold tasks, adoption after a daemon restart, and shims that are gone. What a
//! shim reports about its task is handled in `tasks`.

mod adoption;
mod lost;
mod messages;
mod orphan_shims;
mod pool;
mod watchdog;

use std::collections::{BTreeSet, HashMap};

use belay_protocol::Bytes;
use belay_protocol::life::StopOrderInfo;
use belay_protocol::shim::{ProcessId, SHIM_PROTOCOL_OLDEST};

use crate::input::ShimId;
use crate::runtime::{Table, TimerKey};

/// Every shim that this daemon is connected to, or wants to be.
#[derive(Debug, Default)]
pub(crate) struct Shims {
    all: Table<ShimId, Shim>,
    by_pid: HashMap<i32, ShimId>,
    /// Idle shims; the one used last is taken first, because it is warm.
    ready: Vec<ShimId>,
    /// Being started for the pool.
    spawning: BTreeSet<ShimId>,
    /// Of an earlier daemon, or unreachable for the moment: they have not answered yet.
    reconnecting: BTreeSet<ShimId>,
    /// Shims in a row that could not be started or ended before they were ready.
    failures: u32,
    adoption_deadline: Option<TimerKey>,
    /// Tasks of lost shims whose end is being found out.
    cleanups_pending: usize,
}

#[derive(Debug)]
struct Shim {
    name: String,
    process: Option<ProcessId>,
    /// The version of the shim protocol that it speaks.
    protocol: u32,
    cgroup: Option<Bytes>,
    task: Option<String>,
    stage: ShimStage,
    /// It reports every new output.
    watched: bool,
    /// The last value sent to the shim. None if none was sent.
    waits_on_children: Option<bool>,
    /// How often it could not be reached although it is alive.
    tries: u32,
    /// Found by its socket alone: the journal does not know what it holds.
    is_orphan: bool,
    /// Started by an earlier daemon: what it leaves behind is not reparented to this one.
    adopted: bool,
    /// A stop that came while it could not be reached.
    stop: Option<StopOrderInfo>,
    /// How often it has reported something, and how often it had when it was last asked for something.
    received: u64,
    received_when_asked: u64,
    /// While a stop is under way: when it is checked that the shim works on it.
    watchdog: Option<TimerKey>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ShimStage {
    /// Being started, or being connected to; it has not said anything yet.
    AwaitingHello,
    Ready,
    Holding,
}

impl Shim {
    /// A shim that is being started and has not said anything yet.
    const fn new(name: String) -> Self {
        Self {
            name,
            process: None,
            protocol: SHIM_PROTOCOL_OLDEST,
            cgroup: None,
            task: None,
            stage: ShimStage::AwaitingHello,
            watched: false,
            waits_on_children: None,
            tries: 0,
            is_orphan: false,
            adopted: false,
            stop: None,
            received: 0,
            received_when_asked: 0,
            watchdog: None,
        }
    }

    fn cgroup_path(&self) -> Option<std::path::PathBuf> {
        self.cgroup.as_ref().map(|path| std::path::PathBuf::from(path.as_os_str()))
    }
}

impl Shims {
    /// The version of the shim protocol that a shim speaks.
    pub(crate) fn protocol(&self, id: ShimId) -> u32 {
        self.all.get(&id).map_or(SHIM_PROTOCOL_OLDEST, |shim| shim.protocol)
    }

    fn insert(&mut self, id: ShimId, shim: Shim) {
        self.all.insert(id, shim);
        self.reindex(id);
    }

    fn remove(&mut self, id: ShimId) -> Option<Shim> {
        let shim = self.all.remove(&id)?;
        if let Some(process) = shim.process
            && self.by_pid.get(&process.pid) == Some(&id)
        {
            self.by_pid.remove(&process.pid);
        }
        self.spawning.remove(&id);
        self.reconnecting.remove(&id);
        if shim.stage == ShimStage::Ready {
            self.ready.retain(|ready| *ready != id);
        }
        Some(shim)
    }

    /// Changes a shim and brings the indexes up to date.
    fn update<R>(&mut self, id: ShimId, change: impl FnOnce(&mut Shim) -> R) -> Option<R> {
        let result = change(self.all.get_mut(&id)?);
        self.reindex(id);
        Some(result)
    }

    fn reindex(&mut self, id: ShimId) {
        let Some(shim) = self.all.get(&id) else { return };
        if let Some(process) = shim.process {
            self.by_pid.insert(process.pid, id);
        }
        let awaits_hello = shim.stage == ShimStage::AwaitingHello;
        let has_task = shim.task.is_some() || shim.is_orphan;
        set(&mut self.spawning, id, awaits_hello && !has_task);
        set(&mut self.reconnecting, id, awaits_hello && has_task);
    }

    // --- looking ---

    pub(crate) fn ready_count(&self) -> usize {
        self.ready.len()
    }

    pub(crate) fn task_of(&self, id: ShimId) -> Option<&str> {
        self.all.get(&id)?.task.as_deref()
    }

    /// The task of a shim that has said hello to this daemon.
    pub(crate) fn reporting_task(&self, id: ShimId) -> Option<&str> {
        self.all.get(&id).filter(|shim| shim.stage != ShimStage::AwaitingHello)?.task.as_deref()
    }

    pub(crate) fn task_and_process(&self, id: ShimId) -> Option<(String, ProcessId)> {
        let shim = self.all.get(&id)?;
        shim.task.clone().zip(shim.process)
    }

    /// The task whose shim is this process.
    pub(crate) fn task_of_pid(&self, pid: i32) -> Option<&str> {
        self.task_of(*self.by_pid.get(&pid)?)
    }

    pub(crate) fn is_reconnecting(&self, id: ShimId) -> bool {
        self.reconnecting.contains(&id)
    }

    pub(crate) fn is_adopted(&self, id: ShimId) -> bool {
        self.all.get(&id).is_some_and(|shim| shim.adopted)
    }

    /// Shims that hold a task and do not answer: their tasks and pids.
    pub(crate) fn unresponsive(&self) -> impl Iterator<Item = (&str, i32)> {
        let silent = self.reconnecting.iter().filter_map(|id| self.all.get(id));
        silent.filter_map(|shim| Some((shim.task.as_deref()?, shim.process.map_or(0, |process| process.pid))))
    }

    pub(crate) fn pids(&self) -> impl Iterator<Item = i32> {
        self.all.values().filter_map(|shim| shim.process).map(|process| process.pid)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.all.values().map(|shim| shim.name.as_str())
    }

    /// Whether every shim of an earlier daemon has answered or is gone.
    pub(crate) fn is_adoption_complete(&self) -> bool {
        self.cleanups_pending == 0 && self.reconnecting.is_empty()
    }

    // --- changing ---

    pub(crate) const fn take_adoption_deadline(&mut self) -> Option<TimerKey> {
        self.adoption_deadline.take()
    }

    /// The end of one lost task is known.
    pub(crate) const fn cleanup_done(&mut self) {
        self.cleanups_pending = self.cleanups_pending.saturating_sub(1);
    }

    /// A shim that was taken for a start that could not be recorded is idle again.
    pub(crate) fn put_back_ready(&mut self, shim: Option<ShimId>) {
        self.ready.extend(shim);
    }

    /// Returns whether the value changed and has to be sent to the shim.
    pub(crate) fn set_watched(&mut self, id: ShimId, on: bool) -> bool {
        self.all.get_mut(&id).is_some_and(|shim| std::mem::replace(&mut shim.watched, on) != on)
    }

    /// Returns whether the shim holds a task and the value changed, so that it has to be sent.
    pub(crate) fn set_waits_on_children(&mut self, id: ShimId, on: bool) -> bool {
        let holding = self.all.get_mut(&id).filter(|shim| shim.stage == ShimStage::Holding);
        holding.is_some_and(|shim| shim.waits_on_children.replace(on) != Some(on))
    }

    /// The task that it held has ended.
    pub(crate) fn task_over(&mut self, id: ShimId) {
        self.update(id, |shim| {
            (shim.task, shim.stop) = (None, None);
            (shim.watched, shim.waits_on_children) = (false, None);
        });
    }
}

fn set(index: &mut BTreeSet<ShimId>, id: ShimId, on: bool) {
    if on {
        index.insert(id);
    } else {
        index.remove(&id);
    }
}
