//! Death and rebirth: finding the tasks of an earlier daemon again, and dealing with shims that are gone.

use std::path::PathBuf;

use belay_model::{Level, State};
use belay_protocol::event::Event;
use belay_protocol::life::{Order, OutputInfo};
use belay_protocol::shim::{SHIM_PROTOCOL, ToShim};
use belay_protocol::task::Status;
use belay_record::convert::{Wire as _, policy_from_wire};

use crate::config::bounds;
use crate::core::{Core, Phase, Shim, ShimStage, Task, Timer};
use crate::doc::Entry;
use crate::event::{Action, LostTask, Moment, ShimId};
use crate::foreground::output_info;
use crate::world::World;

/// How often, and after which pauses, a shim that is alive is reached for.
const REACH_TRIES: u32 = 10;
const REACH_PAUSE_MS: u64 = 50;

/// How long the door stays shut for shims that do not answer.
const ADOPTION_MS: u64 = 3_000;

impl<W: World> Core<W> {
    /// The first thing a daemon does: reach for every task that its predecessor left.
    pub fn adopt(&mut self, now: Moment) -> Result<Vec<Action>, belay_journal::Error> {
        self.now = now;
        self.load_sessions()?;
        self.load_lanes()?;
        let live = self.journal.live()?;
        let version = env!("CARGO_PKG_VERSION").to_owned();
        self.emit(&Event::DaemonStarted { version, adopting: live.len() as u64 });
        self.load_hooks()?;
        for row in live {
            let id = row.id.clone();
            match Entry::from_row(row) {
                Ok(entry) => self.reach_for(entry),
                Err(error) => self.notice(
                    format!("the record of task {id} cannot be read: {error}"),
                    "it is left as it is; remove it with belay rm",
                ),
            }
        }
        self.reach_for_strays();
        self.adoption = Some(self.arm(ADOPTION_MS, Timer::Adopted));
        self.open_doors_when_done();
        Ok(self.handle_nothing(now))
    }

    /// Lets what was prepared outside an event take effect.
    fn handle_nothing(&mut self, now: Moment) -> Vec<Action> {
        self.handle(now, crate::event::Event::Tick)
    }

    fn reach_for(&mut self, entry: Entry) {
        self.hook_is_known(&entry);
        let id = entry.id.clone();
        let policy = policy_from_wire(&entry.doc.clocks, entry.doc.detached);
        let state = State::new(entry.doc.detached);
        let queued = entry.doc.status == Status::Queued;
        let shim_doc = entry.doc.shim.clone();
        let same_boot = entry.doc.boot == self.boot;
        let mut task = Task::new(entry, state, policy);
        let Some(doc) = shim_doc else {
            self.tasks.insert(id.clone(), task);
            return self.await_start(&id);
        };
        task.begin_again(queued);
        if !same_boot {
            self.tasks.insert(id.clone(), task);
            if !self.end_from_file(&id) {
                let meanwhile = if queued { "waited for its turn" } else { "ran" };
                let known = format!("the machine was restarted while it {meanwhile}");
                self.lose_task(&id, known, Vec::new());
            }
            return;
        }
        let shim = ShimId(self.next_number());
        task.shim = Some(shim);
        self.tasks.insert(id.clone(), task);
        let state = Shim {
            process: Some(doc.process),
            cgroup: doc.cgroup,
            task: Some(id),
            adopted: true,
            ..Shim::coming(doc.name.clone())
        };
        self.shims.insert(shim, state);
        self.actions.push(Action::ConnectShim { shim, name: doc.name });
    }

    /// Asks for the whole life: what is in the journal already is not recorded twice, but the state is built from it.
    pub(crate) fn shim_connected(&mut self, shim: ShimId) {
        if let Some(task) = self.shims.get(&shim).and_then(|shim| shim.task.clone())
            && let Some(task) = self.tasks.get_mut(&task)
        {
            task.begin_again(task.entry.doc.status == Status::Queued);
        }
        let hello = ToShim::Hello { protocol: SHIM_PROTOCOL, seen: 0 };
        self.actions.push(Action::ToShim { shim, message: hello });
    }

    /// A shim that was reached for has answered: it holds the task, or never got it. Whether the task waits for its turn only
    /// the shim knows: it may not have heard that it was admitted.
    pub(crate) fn shim_found(&mut self, shim_id: ShimId, holds: Option<String>, queued: bool) {
        let Some(shim) = self.shims.get_mut(&shim_id) else { return };
        let Some(task) = shim.task.clone() else { return };
        if holds.as_deref() == Some(task.as_str()) {
            shim.stage = ShimStage::Holding;
            shim.tries = 0;
            if let Some(order) = shim.stop.take() {
                self.actions.push(Action::ToShim { shim: shim_id, message: ToShim::Stop { order } });
            }
            if queued && let Some(held) = self.tasks.get_mut(&task) {
                held.begin_again(true);
                held.entry.doc.status = Status::Queued;
                self.changed.push(task.clone());
                self.begin_if_seated(&task);
            }
            let session = self.tasks.get(&task).map(|task| task.entry.session.clone()).unwrap_or_default();
            self.emit(&Event::TaskAdopted { task: task.clone(), session });
            self.await_caller(&task);
            self.excuse(Some(&task));
            if self.tasks.get(&task).is_some_and(|task| self.is_watched(task)) {
                self.watch_output(&task);
            }
        } else {
            shim.task = None;
            if let Some(task) = self.tasks.get_mut(&task) {
                task.shim = None;
            }
            self.await_start(&task);
        }
        self.open_doors_when_done();
    }

    pub(crate) fn shim_unreachable(&mut self, shim: ShimId, error: &str, left: bool) {
        self.lose_shim(shim, error, left);
        self.open_doors_when_done();
    }

    /// A connection to a shim is over.
    pub(crate) fn shim_gone(&mut self, shim: ShimId) {
        self.ready.retain(|ready| *ready != shim);
        if self.is_dead_and_unheard(shim) {
            return self.reach_again(shim);
        }
        self.lose_shim(shim, "its connection was closed", false);
        self.open_doors_when_done();
    }

    /// One that was just leaving when it was reached lets itself be connected to, and says nothing. Whether it left or was
    /// killed its socket tells whoever reaches for it once more.
    fn is_dead_and_unheard(&self, id: ShimId) -> bool {
        let unheard = |shim: &&Shim| shim.stage == ShimStage::Coming && shim.task.is_some();
        let process = self.shims.get(&id).filter(unheard).and_then(|shim| shim.process);
        process.is_some_and(|process| !self.world.is_alive(process))
    }

    fn lose_shim(&mut self, id: ShimId, error: &str, left: bool) {
        let Some(shim) = self.shims.get_mut(&id) else { return };
        if shim.stray {
            return self.forget_stray(id);
        }
        if shim.task.is_none() {
            self.clear_shim(id);
            let Some(shim) = self.shims.get(&id) else { return };
            if shim.stage == ShimStage::Coming {
                return self.shim_not_spawned(id, "it ended before it was ready");
            }
            self.shims.remove(&id);
            return;
        }
        let Some(process) = shim.process else { return };
        if !self.world.is_alive(process) {
            return self.bury_shim(id, left);
        }
        // Only the way to it is broken; its task goes on and must not be touched.
        shim.stage = ShimStage::Coming;
        (shim.watched, shim.excused) = (false, None);
        shim.tries += 1;
        let tries = shim.tries;
        if tries <= REACH_TRIES {
            self.arm(u64::from(tries) * REACH_PAUSE_MS, Timer::Reach(id));
        } else if self.shims.get(&id).is_some_and(|shim| shim.stop.is_some()) {
            self.bury_shim(id, false);
        } else {
            let task = self.shims.get(&id).and_then(|shim| shim.task.clone()).unwrap_or_default();
            let message = format!(
                "the shim of task {task} is alive (pid {}) and cannot be reached: {error}",
                process.pid
            );
            self.notice(message, "belay stop ends it, shim and all");
        }
    }

    /// A shim without a task is gone. If it was killed it has left what it would have removed itself.
    fn clear_shim(&mut self, id: ShimId) {
        let Some(shim) = self.shims.get(&id) else { return };
        if let Some(process) = shim.process {
            let (name, cgroup) = (shim.name.clone(), cgroup_of(shim));
            self.actions.push(Action::ClearShim { name, process, cgroup });
        }
    }

    pub(crate) fn reach_again(&mut self, id: ShimId) {
        if let Some(shim) = self.shims.get(&id).filter(|shim| shim.stage == ShimStage::Coming) {
            let name = shim.name.clone();
            self.actions.push(Action::ConnectShim { shim: id, name });
        }
    }

    /// There is no talking to this shim. A stop of its task is carried out without it.
    pub(crate) fn give_up_talking(&mut self, id: ShimId) {
        if let Some(shim) = self.shims.get_mut(&id) {
            shim.tries = REACH_TRIES + 1;
        }
        self.open_doors_when_done();
    }

    /// A stop for a task whose shim cannot be reached: kept for when it can, or carried out without it.
    pub(crate) fn stop_unreachable(&mut self, id: ShimId, order: Order, patience_ms: u64) {
        let Some(shim) = self.shims.get_mut(&id) else { return };
        // A second stop can only make the first one harder.
        let is_harder = |kept: &Order| Level::from_wire(order.level) > Level::from_wire(kept.level);
        if shim.stop.as_ref().is_none_or(is_harder) {
            shim.stop = Some(order);
        }
        if shim.tries > REACH_TRIES {
            return self.bury_shim(id, false);
        }
        // It may be that it never answers, though it lets itself be connected to.
        self.doubt_in(id, patience_ms + bounds::SHIM_ANSWER_MS);
    }

    /// A shim was asked for something; it is looked at again then.
    pub(crate) fn doubt_in(&mut self, id: ShimId, in_ms: u64) {
        let key = self.arm(in_ms, Timer::Doubt(id));
        let Some(shim) = self.shims.get_mut(&id) else { return };
        shim.heard_when_asked = shim.heard;
        if let Some(older) = shim.doubt.replace(key) {
            self.disarm(older);
        }
    }

    /// Nothing is asked of the shim any more.
    pub(crate) fn trust(&mut self, id: ShimId) {
        if let Some(key) = self.shims.get_mut(&id).and_then(|shim| shim.doubt.take()) {
            self.disarm(key);
        }
    }

    /// A stop takes longer than it should. A shim that speaks is at it and will end it, one way or the other. One that says
    /// nothing at all, though it is asked, is itself stopped or stuck: the stop is carried out without it.
    pub(crate) fn make_sure_of(&mut self, id: ShimId) {
        let Some(shim) = self.shims.get_mut(&id) else { return };
        shim.doubt = None;
        let Some(task) = shim.task.clone() else { return };
        if shim.heard > shim.heard_when_asked {
            let query = self.next_number();
            self.actions.push(Action::ToShim { shim: id, message: ToShim::Query { query } });
            return self.doubt_in(id, bounds::SHIM_ANSWER_MS);
        }
        let message = format!("the shim of task {task} did not carry out a stop; it was ended with its tree");
        self.notice(message, "was it stopped, or short of memory?");
        self.bury_shim(id, false);
    }

    /// A shim that is gone, or is to be: its end file tells how its task ended; else its tree is found and killed. One
    /// that left by itself held nothing: if nothing was ever heard of the task from it, it never got the task.
    fn bury_shim(&mut self, id: ShimId, left: bool) {
        let Some(shim) = self.shims.get(&id) else { return };
        let (Some(task), Some(process)) = (shim.task.clone(), shim.process) else { return };
        let cgroup = cgroup_of(shim);
        let adopted = shim.adopted;
        self.trust(id);
        self.shims.remove(&id);
        if self.end_from_file(&task) {
            return;
        }
        let Some(held) = self.tasks.get_mut(&task) else { return };
        held.shim = None;
        let leader = held.entry.doc.leader;
        if left && held.entry.doc.seen == 0 && leader.is_none() {
            return self.await_start(&task);
        }
        self.burying += 1;
        let lost = LostTask { task, shim: process, leader, cgroup, adopted };
        self.actions.push(Action::KillLost(Box::new(lost)));
    }

    /// Replays the end file that a shim left when nobody was there to hear it. False if there is none.
    fn end_from_file(&mut self, id: &str) -> bool {
        let dir = self.config.task_dir(id);
        let file = match self.world.end_file(&dir) {
            Ok(Some(file)) if file.task == id => file,
            Ok(_) => return false,
            Err(error) => {
                self.notice(
                    format!("the end file of task {id} cannot be read: {error}"),
                    "it is left as it is",
                );
                return false;
            }
        };
        if let Some(task) = self.tasks.get_mut(id) {
            task.shim = None;
            task.begin_again(false);
        }
        for item in file.life {
            self.apply_life(id, item);
        }
        let ended = !self.tasks.contains_key(id);
        if ended && self.batch.is_empty() {
            self.world.remove_end_file(&dir);
        }
        ended
    }

    pub(crate) fn open_doors_when_done(&mut self) {
        let is_open = |shim: &Shim| shim.stage == ShimStage::Coming && (shim.task.is_some() || shim.stray);
        let open = self.burying > 0 || self.shims.values().any(is_open);
        if !open && self.phase == Phase::Adopting {
            self.open_doors();
        }
    }

    /// Every task of the predecessor has been heard of, or has not answered in time: clients may come in.
    pub(crate) fn open_doors(&mut self) {
        if self.phase == Phase::Adopting {
            self.phase = Phase::Serving;
            self.resume_counting();
            self.resume_lanes();
            self.resume_sessions();
            self.remove_leftovers();
            self.collect_soon();
        }
        if let Some(key) = self.adoption.take() {
            self.disarm(key);
        }
    }

    /// The sums of a lost task's output, from what is on disk, or in what was its shim's memory and is ours now.
    pub(crate) fn output_of_lost(&self, id: &str) -> OutputInfo {
        let on_disk = self.memory_of(id).is_none();
        self.log_of(id).map_or_else(|_| OutputInfo::default(), |log| output_info(&log, on_disk))
    }
}

fn cgroup_of(shim: &Shim) -> Option<PathBuf> {
    shim.cgroup.as_ref().map(|path| PathBuf::from(path.as_os_str()))
}
