//! The pool of idle shims: a few are kept ready, a used shim returns when it is clean, and a start
//! takes the most recently used shim.

#[cfg(test)]
mod tests;

use belay_protocol::life::{StartError, StartStage, TaskEnd};
use belay_protocol::shim::{ProcessId, SHIM_PROTOCOL, ToShim};
use belay_protocol::task::TaskStatus;

use super::{Shim, ShimStage};
use crate::config::bounds;
use crate::effect::Effect;
use crate::host::{CrashPoint, Host};
use crate::input::ShimId;
use crate::keyed_hash::hex;
use crate::runtime::{Core, Phase, Stage};
use crate::tasks::{ShimRecord, StoredTask};

impl<H: Host> Core<H> {
    /// Spawns enough shims for the tasks that wait for one, and a few spare shims.
    pub(crate) fn refill_pool(&mut self) {
        if self.ctx.phase != Phase::Serving {
            return;
        }
        // After a failed spawn, shims are spawned only for tasks that wait for one.
        let spare = if self.shims.failures == 0 { bounds::SHIMS_READY } else { 0 };
        let wanted = self.tasks.awaiting_shim_count() + spare;
        let spawning = self.shims.spawning.len();
        let missing = wanted.saturating_sub(self.shims.ready.len() + spawning);
        for _ in 0..missing.min(bounds::SHIMS_SPAWNING.saturating_sub(spawning)) {
            self.spawn_shim();
        }
    }

    fn spawn_shim(&mut self) {
        let mut random = [0; 8];
        if self.ctx.host.random(&mut random).is_err() {
            return;
        }
        let shim = ShimId(self.ctx.next_number());
        let name = hex(&random);
        self.shims.insert(shim, Shim::new(name.clone()));
        self.ctx.effects.push(Stage::Unconditional, Effect::SpawnShim { shim, name });
    }

    pub(crate) fn shim_spawned(&mut self, id: ShimId, process: ProcessId) {
        if self.shims.update(id, |shim| shim.process = Some(process)).is_some() {
            self.ctx.tell_shim(id, ToShim::Hello { protocol: SHIM_PROTOCOL, seen: 0 });
        }
    }

    /// A shim could not be spawned. If no other shim is ready or being spawned, the tasks that wait
    /// for one are ended.
    pub(crate) fn shim_not_spawned(&mut self, id: ShimId, error: &str) {
        self.shims.remove(id);
        self.shims.failures += 1;
        self.ctx
            .notice(format!("no shim could be started: {error}"), "check the limits of this user: ulimit -a");
        if !self.shims.spawning.is_empty() || !self.shims.ready.is_empty() {
            return;
        }
        for task in self.tasks.take_awaiting_shim() {
            let message = format!("no shim could be started for the task: {error}");
            let error = StartError { stage: StartStage::Resources, errno: 0, message };
            self.end_unstarted(&task, TaskEnd::Spawn { error });
        }
    }

    /// A shim is clean and idle: it gets the next waiting task, or joins the pool, or is closed if
    /// the pool is full.
    pub(super) fn shim_ready(&mut self, id: ShimId) {
        let becomes_ready =
            |shim: &Shim| shim.stage != ShimStage::Ready && shim.task.is_none() && !shim.is_orphan;
        if !self.shims.all.get(&id).is_some_and(becomes_ready) {
            return;
        }
        self.shims.update(id, |shim| shim.stage = ShimStage::Ready);
        self.shims.failures = 0;
        if self.ctx.phase == Phase::Leaving || self.shims.ready.len() >= bounds::SHIMS_READY_MOST {
            self.shims.remove(id);
            return self.ctx.effects.push(Stage::Unconditional, Effect::CloseShim { shim: id });
        }
        self.shims.ready.push(id);
        if let Some(task) = self.tasks.next_awaiting_shim() {
            self.send_start_of_waiting(&task);
        }
    }

    /// Takes an idle shim for a task that is about to be recorded, and stores its name with the
    /// task. A task that its shim holds until it is admitted stays queued: as long as it is
    /// recorded as queued, its command was not spawned.
    pub(crate) fn take_ready_shim(&mut self, stored: &mut StoredTask, held: bool) -> Option<ShimId> {
        let shim = self.shims.all.get(self.shims.ready.last()?)?;
        let (name, cgroup) = (shim.name.clone(), shim.cgroup.clone());
        stored.doc.shim = Some(ShimRecord { name, process: shim.process?, cgroup });
        stored.doc.status = if held { TaskStatus::Queued } else { TaskStatus::Starting };
        self.shims.ready.pop()
    }

    /// Gives a waiting task its shim. The task is made durable before the start is sent.
    fn send_start_of_waiting(&mut self, task_id: &str) {
        let Some((mut stored, held)) = self.tasks.start_awaiting_shim(task_id) else { return };
        let Some(shim) = self.take_ready_shim(&mut stored, held) else { return };
        self.ctx.journal.put_task(&stored);
        self.tasks.replace_stored(task_id, stored);
        let position = self.ctx.effects.position();
        self.send_start(task_id, shim);
        // After the start: a caller that receives the reply `queued` does not resubmit.
        self.announce_start(task_id);
        self.ctx.effects.delay_since(position);
    }

    /// Sends the start of a recorded task to its shim.
    pub(crate) fn send_start(&mut self, task_id: &str, id: ShimId) {
        let watched = self.is_task_watched(task_id);
        if !self.shims.all.contains_key(&id) {
            return;
        }
        let Some(start) = self.tasks.take_start(task_id, id) else { return };
        self.shims.update(id, |shim| {
            shim.stage = ShimStage::Holding;
            shim.task = Some(task_id.to_owned());
            shim.watched = watched;
        });
        if watched {
            self.ctx.tell_shim(id, ToShim::Watch { on: true });
        }
        self.ctx.tell_shim(id, ToShim::Start(start));
        self.ctx.effects.push(Stage::Unconditional, Effect::CrashPoint(CrashPoint::AfterStart));
    }

    /// Admits a queued task that its shim holds. The admission is made durable before it is sent.
    /// If the shim cannot be reached, the task stays queued, and is admitted when the shim has
    /// answered.
    pub(crate) fn admit(&mut self, task_id: &str) {
        let Some(shim) = self.tasks.queued_shim(task_id) else { return };
        if self.shims.all.get(&shim).is_none_or(|shim| shim.stage != ShimStage::Holding) {
            return;
        }
        self.tasks.admitted(task_id);
        let message = ToShim::Admit { task: task_id.to_owned() };
        self.ctx.effects.push(Stage::AfterCommit, Effect::ToShim { shim, message });
        self.ctx.effects.push(Stage::AfterCommit, Effect::CrashPoint(CrashPoint::AfterStart));
    }
}
