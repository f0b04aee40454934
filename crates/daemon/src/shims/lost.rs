//! Shims that are gone or unreachable: reconnects to a live shim, and has the process tree of a
//! dead shim cleaned up.

use belay_protocol::shim::ProcessId;

use super::{Shim, ShimStage};
use crate::effect::{Effect, LostTask, LostTree, WithoutEndFile};
use crate::host::Host;
use crate::input::ShimId;
use crate::runtime::{Core, Stage, Timer};

/// How often, and after which pauses, reconnecting to a live shim is tried.
pub(super) const RECONNECT_TRIES: u32 = 10;
const RECONNECT_PAUSE_MS: u64 = 50;

impl<H: Host> Core<H> {
    pub(crate) fn shim_unreachable(&mut self, shim: ShimId, error: &str, left: bool) {
        self.lose_shim(shim, error, left);
        self.start_serving_when_adopted();
    }

    /// A connection to a shim was closed.
    pub(crate) fn shim_gone(&mut self, shim: ShimId) {
        self.shims.ready.retain(|ready| *ready != shim);
        if self.is_dead_without_hello(shim) {
            return self.reconnect_shim(shim);
        }
        self.lose_shim(shim, "its connection was closed", false);
        self.start_serving_when_adopted();
    }

    /// Whether a shim died before its hello. A shim that is just exiting accepts the connection and
    /// sends nothing; a second attempt to connect shows whether it exited by itself or was killed.
    fn is_dead_without_hello(&self, id: ShimId) -> bool {
        let is_unheard = |shim: &&Shim| shim.stage == ShimStage::AwaitingHello && shim.task.is_some();
        let process = self.shims.all.get(&id).filter(is_unheard).and_then(|shim| shim.process);
        process.is_some_and(|process| !self.ctx.host.is_alive(process))
    }

    fn lose_shim(&mut self, id: ShimId, error: &str, left: bool) {
        let Some(shim) = self.shims.all.get(&id) else { return };
        if shim.is_orphan {
            return self.forget_orphan_shim(id);
        }
        if shim.task.is_none() {
            return self.lose_idle_shim(id);
        }
        let Some(process) = shim.process else { return };
        if self.ctx.host.is_alive(process) {
            self.reconnect_later(id, process, error);
        } else {
            self.reap_lost_shim(id, left);
        }
    }

    fn lose_idle_shim(&mut self, id: ShimId) {
        let Some(shim) = self.shims.all.get(&id) else { return };
        if let Some(process) = shim.process {
            // A killed shim could not remove its socket and its cgroup.
            let (name, cgroup) = (shim.name.clone(), shim.cgroup_path());
            self.ctx.effects.push(Stage::Unconditional, Effect::ClearShim { name, process, cgroup });
        }
        if self.shims.spawning.contains(&id) {
            return self.shim_not_spawned(id, "it ended before it was ready");
        }
        self.shims.remove(id);
    }

    /// Only the connection is lost: the task is still running and must not be stopped.
    fn reconnect_later(&mut self, id: ShimId, process: ProcessId, error: &str) {
        let tried = self.shims.update(id, |shim| {
            shim.stage = ShimStage::AwaitingHello;
            (shim.watched, shim.waits_on_children) = (false, None);
            shim.tries += 1;
            (shim.tries, shim.stop.is_some(), shim.task.clone().unwrap_or_default())
        });
        let Some((tries, has_stop, task)) = tried else { return };
        let pid = process.pid;
        if tries == 1 {
            tracing::warn!(task, shim = pid, cause = error, "connection to a live shim lost: reconnecting");
        } else {
            tracing::debug!(task, shim = pid, cause = error, tries, "shim not reached");
        }
        if tries <= RECONNECT_TRIES {
            self.ctx.schedule(u64::from(tries) * RECONNECT_PAUSE_MS, Timer::ReconnectShim(id));
        } else if has_stop {
            self.reap_lost_shim(id, false);
        } else {
            let message = format!(
                "the shim of task {task} is alive (pid {}) but cannot be reached: {error}",
                process.pid
            );
            self.ctx.notice(message, "belay stop ends the task together with its shim");
        }
    }

    pub(crate) fn reconnect_shim(&mut self, id: ShimId) {
        let unanswered = self.shims.all.get(&id).filter(|shim| shim.stage == ShimStage::AwaitingHello);
        if let Some(name) = unanswered.map(|shim| shim.name.clone()) {
            self.ctx.effects.push(Stage::Unconditional, Effect::ConnectShim { shim: id, name });
        }
    }

    /// This daemon does not support the shim's protocol. A stop of its task is carried out without
    /// the shim.
    pub(super) fn give_up_on_shim(&mut self, id: ShimId) {
        self.shims.update(id, |shim| shim.tries = RECONNECT_TRIES + 1);
        self.start_serving_when_adopted();
    }

    /// Has a worker find out how a task ended whose shim is gone.
    pub(super) fn reap_lost(&mut self, task: String, without_end_file: WithoutEndFile) {
        self.shims.cleanups_pending += 1;
        let dir = self.ctx.config.task_dir(&task);
        let lost = LostTask { task, dir, without_end_file };
        self.ctx.effects.push(Stage::Unconditional, Effect::ReapLost(Box::new(lost)));
    }

    /// Cleans up after a shim that is gone, or is given up: its end file says how its task ended;
    /// without one its process tree is found and killed. A shim that exited by itself held no task:
    /// if it never reported an event of the task, it never received it.
    pub(super) fn reap_lost_shim(&mut self, id: ShimId, left: bool) {
        self.disarm_watchdog(id);
        let Some(shim) = self.shims.all.get(&id) else { return };
        let (Some(task), Some(process)) = (shim.task.clone(), shim.process) else { return };
        let (cgroup, adopted) = (shim.cgroup_path(), shim.adopted);
        let cause = if left { "it exited by itself" } else { "it was killed, or is given up" };
        tracing::warn!(task, shim = process.pid, cause, "shim lost");
        self.shims.remove(id);
        let Some(live) = self.tasks.get(&task) else { return };
        let doc = &live.stored().doc;
        let leader = doc.leader;
        let never_received = left && doc.seen == 0 && leader.is_none();
        self.tasks.set_shim(&task, None);
        let without_end_file = if never_received {
            WithoutEndFile::Report
        } else {
            WithoutEndFile::Kill(LostTree { shim: process, leader, cgroup, adopted })
        };
        self.reap_lost(task, without_end_file);
    }
}
