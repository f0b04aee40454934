//! Crash recovery: adopts the tasks of an earlier daemon and reconnects to the shims that hold them. A shim that is gone is
//! handled in `lost`.

use belay_journal::Loaded;
use belay_model::State;
use belay_protocol::event::Event;
use belay_protocol::shim::{SHIM_PROTOCOL, ToShim};
use belay_protocol::task::TaskStatus;
use belay_record::convert::policy_from_wire;

use super::{Shim, ShimStage};
use crate::effect::{Effect, WithoutEndFile};
use crate::host::Host;
use crate::input::ShimId;
use crate::runtime::{Core, Phase, Stage, Timer};
use crate::tasks::{StoredTask, Task};

/// How long clients wait for shims that do not answer.
const ADOPTION_MS: u64 = 3_000;

impl<H: Host> Core<H> {
    /// Loads the state that an earlier daemon recorded, and reconnects to its shims.
    pub(crate) fn adopt_tasks(&mut self, mut loaded: Loaded) {
        self.load_sessions(&mut loaded);
        self.load_lanes(&mut loaded);
        self.load_hooks(&mut loaded);
        self.tasks.load_tokens(std::mem::take(&mut loaded.tokens));
        self.retention.load(&loaded);
        let adopting = loaded.live.len() as u64;
        let (pid, containment) = (std::process::id(), self.ctx.config.containment.kind.name());
        tracing::info!(version = env!("CARGO_PKG_VERSION"), pid, containment, adopting, "started");
        let version = env!("CARGO_PKG_VERSION").to_owned();
        self.ctx.record(Event::DaemonStarted { version, adopting }, String::new());
        for row in loaded.live {
            let id = row.id.clone();
            match StoredTask::from_row(row) {
                Ok(stored) => self.adopt_task(stored),
                Err(error) => self.ctx.notice(
                    format!("the record of task {id} cannot be read: {error}"),
                    "it is left as it is; remove it with belay rm",
                ),
            }
        }
        self.connect_orphan_shims();
        self.shims.adoption_deadline = Some(self.ctx.schedule(ADOPTION_MS, Timer::AdoptionDeadline));
        self.start_serving_when_adopted();
    }

    fn adopt_task(&mut self, stored: StoredTask) {
        self.hook_run_adopted(&stored);
        let id = stored.id.clone();
        let policy = policy_from_wire(&stored.doc.clocks, stored.doc.detached);
        let state = State::new(stored.doc.detached);
        let queued = stored.doc.status == TaskStatus::Queued;
        let record = stored.doc.shim.clone();
        let same_boot = stored.doc.boot == self.ctx.boot;
        self.tasks.insert(Task::new(stored, state, policy));
        let Some(record) = record else { return self.await_resubmit(&id) };
        self.tasks.reset(&id, queued);
        if !same_boot {
            return self.reap_lost(id, WithoutEndFile::Report);
        }
        let shim = ShimId(self.ctx.next_number());
        self.tasks.set_shim(&id, Some(shim));
        let state = Shim {
            process: Some(record.process),
            cgroup: record.cgroup,
            task: Some(id),
            adopted: true,
            ..Shim::new(record.name.clone())
        };
        self.shims.insert(shim, state);
        self.ctx.effects.push(Stage::Unconditional, Effect::ConnectShim { shim, name: record.name });
    }

    /// Asks the shim for all events of its task, to rebuild the state. Events in the journal are
    /// not recorded twice.
    pub(crate) fn shim_connected(&mut self, shim: ShimId) {
        if let Some(task) = self.shims.task_of(shim).map(str::to_owned) {
            let queued = self.tasks.get(&task).is_some_and(|task| task.status() == TaskStatus::Queued);
            self.tasks.reset(&task, queued);
        }
        self.ctx.tell_shim(shim, ToShim::Hello { protocol: SHIM_PROTOCOL, seen: 0 });
    }

    /// A reconnected shim has answered: it holds the task, or never received it. Only the shim
    /// knows whether the task is still queued: it may not have received the admission.
    pub(super) fn shim_reconnected(&mut self, id: ShimId, holds: Option<String>, queued: bool) {
        let Some(task) = self.shims.task_of(id).map(str::to_owned) else { return };
        if holds.as_deref() == Some(task.as_str()) {
            let stop = self.shims.update(id, |shim| {
                shim.stage = ShimStage::Holding;
                shim.tries = 0;
                shim.stop.take()
            });
            if let Some(order) = stop.flatten() {
                self.ctx.tell_shim(id, ToShim::Stop { order });
            }
            self.task_adopted(&task, queued);
        } else {
            tracing::info!(task, "shim never received the task");
            self.disarm_watchdog(id);
            self.shims.task_over(id);
            self.tasks.set_shim(&task, None);
            self.await_resubmit(&task);
        }
        self.start_serving_when_adopted();
    }

    fn task_adopted(&mut self, id: &str, queued: bool) {
        if queued {
            self.tasks.adopted_queued(id);
            if self.ctx.phase != Phase::Adopting && self.tasks.get(id).is_some_and(Task::has_seat) {
                self.admit(id);
            }
        }
        let shim = self.tasks.get(id).and_then(Task::shim);
        let shim = shim.and_then(|shim| self.shims.task_and_process(shim)).map(|(_, process)| process.pid);
        tracing::info!(task = id, shim, queued, "adopted");
        if let Some(task) = self.tasks.get(id) {
            let (task_id, session) = (id.to_owned(), task.session().to_owned());
            let tags = task.stored().tags();
            self.ctx.record(Event::TaskAdopted { task: task_id, session }, tags);
        }
        self.await_caller(id);
        self.update_stall_exemption(Some(id));
        if self.is_task_watched(id) {
            self.watch_output(id);
        }
    }
}
