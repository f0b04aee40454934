//! The pool of shims: a few stand ready, used ones come back when they are clean, and a start takes the warmest.

#[cfg(test)]
mod tests;

use belay_model::{Event, State, step};
use belay_protocol::life::{End, OutputInfo, StartError, StartStage};
use belay_protocol::shim::{EndRecord, ProcessId, SHIM_PROTOCOL, ToShim};
use belay_protocol::task::Status;
use belay_record::convert::status;

use crate::config::bounds;
use crate::core::{Core, Phase, Shim, ShimStage};
use crate::doc::{Entry, ShimDoc};
use crate::event::{Action, ShimId};
use crate::fingerprint::hex;
use crate::world::{CrashPoint, World};

impl<W: World> Core<W> {
    /// Keeps enough shims on their way for who waits, and a few to spare.
    pub(crate) fn refill_pool(&mut self) {
        if self.phase != Phase::Serving {
            return;
        }
        // When none can be started, only somebody who waits for one is worth another try.
        let spare = if self.shim_failures == 0 { bounds::SHIMS_READY.0 } else { 0 };
        let wanted = self.waiting.len() + spare;
        if self.ready.len() >= wanted {
            return;
        }
        let coming =
            self.shims.values().filter(|shim| shim.stage == ShimStage::Coming && shim.task.is_none()).count();
        let missing = wanted.saturating_sub(self.ready.len() + coming);
        for _ in 0..missing.min(bounds::SHIMS_COMING.saturating_sub(coming)) {
            self.spawn_shim();
        }
    }

    pub(crate) fn shim_names(&self) -> Vec<String> {
        self.shims.values().map(|shim| shim.name.clone()).collect()
    }

    pub(crate) fn shim_pids(&self) -> Vec<i32> {
        self.shims.values().filter_map(|shim| shim.process).map(|process| process.pid).collect()
    }

    fn spawn_shim(&mut self) {
        let mut random = [0; 8];
        if self.world.random(&mut random).is_err() {
            return;
        }
        let shim = ShimId(self.next_number());
        let name = hex(&random);
        let state = Shim::coming(name.clone());
        self.shims.insert(shim, state);
        self.actions.push(Action::SpawnShim { shim, name });
    }

    pub(crate) fn shim_spawned(&mut self, id: ShimId, process: ProcessId) {
        if let Some(shim) = self.shims.get_mut(&id) {
            shim.process = Some(process);
            let hello = ToShim::Hello { protocol: SHIM_PROTOCOL, seen: 0 };
            self.actions.push(Action::ToShim { shim: id, message: hello });
        }
    }

    /// No process, no descriptor, no memory: whoever waits for a shim is told, and nobody is left waiting.
    pub(crate) fn shim_not_spawned(&mut self, id: ShimId, error: &str) {
        self.shims.remove(&id);
        self.shim_failures += 1;
        self.notice(format!("no shim could be started: {error}"), "see the limits of this user: ulimit -a");
        let others_come =
            self.shims.values().any(|shim| shim.stage == ShimStage::Coming && shim.task.is_none());
        if others_come || !self.ready.is_empty() {
            return;
        }
        for task in std::mem::take(&mut self.waiting) {
            let message = format!("no process could be started to hold the task: {error}");
            let error = StartError { stage: StartStage::Resources, errno: 0, message };
            self.end_unstarted(&task, End::Spawn { error });
        }
    }

    /// Ends a task that was never handed to a shim.
    pub(crate) fn end_unstarted(&mut self, task: &str, end: End) {
        let output = OutputInfo::default();
        let record = EndRecord { end, ended_at_ms: self.now.wall_ms, receipt: None, output, capture: None };
        self.end_here(task, record);
    }

    /// A shim is clean and free: the next in line gets it, or it joins the pool, or it is one too many.
    pub(crate) fn shim_ready(&mut self, id: ShimId) {
        let Some(shim) = self.shims.get_mut(&id) else { return };
        if shim.stage == ShimStage::Ready || shim.task.is_some() {
            return;
        }
        shim.stage = ShimStage::Ready;
        self.shim_failures = 0;
        if self.phase == Phase::Leaving || self.ready.len() >= bounds::SHIMS_READY.1 {
            self.shims.remove(&id);
            self.actions.push(Action::DropShim { shim: id });
            return;
        }
        self.ready.push(id);
        if let Some(task) = self.waiting.pop_front() {
            self.hand_over(&task);
        }
    }

    /// Takes a ready shim for a task that is about to be recorded, and names it in the record. What the shim shall hold until
    /// it is admitted stays queued: as long as the record says so, nothing can have been spawned.
    pub(crate) fn take_ready(&mut self, entry: &mut Entry, held: bool) -> Option<ShimId> {
        let id = self.ready.pop()?;
        let shim = self.shims.get(&id)?;
        let (name, cgroup) = (shim.name.clone(), shim.cgroup.clone());
        entry.doc.shim = Some(ShimDoc { name, process: shim.process?, cgroup });
        entry.doc.status = if held { Status::Queued } else { Status::Starting };
        Some(id)
    }

    /// A task that waited gets its shim: durable first, then the start.
    fn hand_over(&mut self, task_id: &str) {
        let Some(task) = self.tasks.get(task_id) else { return };
        let held = task.start.as_ref().is_some_and(|start| start.held);
        let mut entry = task.entry.clone();
        let Some(shim) = self.take_ready(&mut entry, held) else { return };
        self.put(&entry);
        if let Some(task) = self.tasks.get_mut(task_id) {
            task.entry = entry;
        }
        let mark = self.actions.len();
        self.begin(task_id, shim);
        // Behind the start: whoever is told that it waits for its turn has nothing to say again.
        self.answer_started(task_id);
        let later = self.actions.split_off(mark);
        self.durable.extend(later);
    }

    /// Gives a recorded task to its shim.
    pub(crate) fn begin(&mut self, task_id: &str, shim_id: ShimId) {
        let watched = self.tasks.get(task_id).is_some_and(|task| self.is_watched(task));
        let (Some(task), Some(shim)) = (self.tasks.get_mut(task_id), self.shims.get_mut(&shim_id)) else {
            return;
        };
        let Some(start) = task.start.take() else { return };
        shim.stage = ShimStage::Holding;
        shim.task = Some(task_id.to_owned());
        shim.watched = watched;
        task.shim = Some(shim_id);
        if !start.held {
            task.state = step(&task.policy, task.state.clone(), Event::Admitted).state;
        }
        if shim.watched {
            self.actions.push(Action::ToShim { shim: shim_id, message: ToShim::Watch { on: true } });
        }
        self.actions.push(Action::ToShim { shim: shim_id, message: ToShim::Start(start) });
        self.actions.push(Action::Reach(CrashPoint::AfterStart));
    }

    /// Lets a task begin that its shim holds: durable first, then it is said. One whose shim cannot be reached now stays
    /// queued; when the shim answers, that is seen again in [`Self::shim_found`].
    pub(crate) fn admit(&mut self, task_id: &str) {
        let Some(task) = self.tasks.get_mut(task_id) else { return };
        let (Some(id), State::Queued { .. }) = (task.shim, &task.state) else { return };
        if self.shims.get(&id).is_none_or(|shim| shim.stage != ShimStage::Holding) {
            return;
        }
        task.state = step(&task.policy, task.state.clone(), Event::Admitted).state;
        task.entry.doc.status = status(&task.state);
        self.changed.push(task_id.to_owned());
        let message = ToShim::Admit { task: task_id.to_owned() };
        self.durable.push(Action::ToShim { shim: id, message });
        self.durable.push(Action::Reach(CrashPoint::AfterStart));
    }
}
