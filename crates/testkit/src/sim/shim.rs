//! A simulated shim: the real core, in a loop like the real one, around simulated processes. It decides nothing about
//! the life of a task.

use std::collections::VecDeque;

use belay_model::{Evidence, Level, Outcome, SpawnFailure, SpawnStage, State};
use belay_protocol::life::OutputInfo;
use belay_protocol::shim::{FromShim, Now, ProcessId, Start, ToShim, WriteResult};
use belay_shim::core::{Action, Core, Identity, Input, Look, Strike};

use super::agenda::Job;
use super::link::Packet;
use super::process::{Behaviour, Happening, Process, SIGKILL};
use super::{Checked, Sim};

#[derive(Debug)]
pub(crate) struct Shim {
    pub(crate) name: String,
    pub(crate) process: ProcessId,
    pub(crate) core: Core,
    pub(crate) link: Option<u64>,
    /// The task whose tree is below it, until that is gone.
    pub(crate) holds: Option<String>,
    killing_ms: Option<u64>,
    watched: bool,
    told_bytes: u64,
    pub(crate) lingers: bool,
    leaves: bool,
    pub(crate) is_gone: bool,
    pub(crate) was_killed: bool,
}

impl Shim {
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        if self.is_gone { None } else { self.core.next_deadline().into_iter().chain(self.killing_ms).min() }
    }
}

impl Sim {
    pub(crate) fn make_shim(&mut self, name: &str) -> usize {
        let (pid, start_ticks) = self.pids.next();
        let process = ProcessId { pid, start_ticks };
        let identity = Identity { name: name.to_owned(), version: "sim".to_owned(), process, cgroup: None };
        self.machine.shims.borrow_mut().insert((pid, start_ticks));
        self.machine.sockets.borrow_mut().insert(name.to_owned());
        self.shims.push(Shim {
            name: name.to_owned(),
            process,
            core: Core::new(identity),
            link: None,
            holds: None,
            killing_ms: None,
            watched: false,
            told_bytes: 0,
            lingers: false,
            leaves: false,
            is_gone: false,
            was_killed: false,
        });
        self.shims.len() - 1
    }

    /// One turn of a shim's loop, after whatever woke it.
    pub(crate) fn shim_turn(&mut self, shim: usize) -> Checked {
        if self.shims[shim].is_gone {
            return Ok(());
        }
        self.look_after_tree(shim)?;
        self.feed(shim, Input::Tick)?;
        self.tell_output(shim);
        if self.shims[shim].leaves {
            self.shim_leaves(shim);
        }
        Ok(())
    }

    /// Runs the core on one input, and on everything that follows from what it wants done.
    fn feed(&mut self, shim: usize, input: Input) -> Checked {
        let now = self.shim_moment();
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            if !matches!(input, Input::Tick) {
                self.note(format_args!("shim {shim}"), format_args!("<- {input:?}"));
            }
            for action in self.shims[shim].core.handle(now, input) {
                inputs.extend(self.shim_does(shim, action)?);
            }
            self.check_shim(shim)?;
        }
        Ok(())
    }

    /// Holds the core's state against the truth.
    fn check_shim(&mut self, shim: usize) -> Checked {
        let core = &self.shims[shim].core;
        let Some(id) = core.task() else { return Ok(()) };
        let Some(truth) = self.tasks.get_mut(id) else { return Ok(()) };
        match core.state() {
            Some(State::Stopping(stopping)) => {
                let cause = stopping.cause.clone();
                truth.stopping(self.mono_ms, &cause).map_err(|fault| format!("task {id}: {fault}"))
            }
            Some(State::Running(running)) if running.detached => {
                truth.detached(self.mono_ms);
                Ok(())
            }
            Some(State::Resting(resting)) => {
                truth.rests(self.mono_ms);
                if resting.detached {
                    truth.detached(self.mono_ms);
                }
                Ok(())
            }
            Some(State::Ended(Outcome::TimedOut { clock, .. }))
                if truth.rests_since_ms.is_some() && truth.ran_out_resting.is_none() =>
            {
                let clock = *clock;
                truth.ran_out_resting(self.mono_ms, clock).map_err(|fault| format!("task {id}: {fault}"))
            }
            _ => Ok(()),
        }
    }

    fn shim_does(&mut self, shim: usize, action: Action) -> Result<Option<Input>, String> {
        match action {
            Action::Send(message) => {
                self.say(shim, message);
                Ok(None)
            }
            Action::Spawn(start) => self.spawn(shim, &start).map(Some),
            Action::Signal(level) => Ok(self.signal(shim, level).map(Input::Signalled)),
            Action::Look => {
                let output_bytes = self.output(shim).bytes;
                let evidence = Evidence { output_bytes, cpu_ms: 0 };
                Ok(Some(Input::Looked(Look { evidence, processes: Vec::new(), more: 0 })))
            }
            Action::NameSurvivors => {
                let Some(truth) = self.held(shim) else { return Ok(Some(Input::Survivors(Vec::new()))) };
                truth.named = truth.alive().map(|process| process.pid).collect();
                Ok(Some(Input::Survivors(truth.alive().map(Process::survivor).collect())))
            }
            Action::Finish => {
                self.shims[shim].killing_ms = None;
                let output = self.output(shim);
                Ok(Some(Input::Finished { output, capture: None }))
            }
            Action::WriteEndFile(dir, end) => {
                let full = self.rng.percent(self.plan.disk_full_percent);
                self.note(
                    format_args!("shim {shim}"),
                    if full { "the disk is full" } else { "writes the end file" },
                );
                if !full {
                    let bytes = serde_json::to_vec(&end).map_err(|error| error.to_string())?;
                    self.machine.end_files.borrow_mut().insert(dir, bytes);
                }
                Ok(Some(Input::EndFileWritten(!full)))
            }
            Action::Recycle => {
                self.recycle(shim);
                Ok(None)
            }
            Action::Exit => {
                self.shims[shim].leaves = !self.shims[shim].lingers;
                Ok(None)
            }
        }
    }

    fn held(&mut self, shim: usize) -> Option<&mut super::truth::Truth> {
        let id = self.shims[shim].holds.clone()?;
        self.tasks.get_mut(&id)
    }

    pub(crate) fn say(&mut self, shim: usize, message: FromShim) {
        let Some(link) = self.shims[shim].link else { return };
        self.note(format_args!("shim {shim}"), format_args!("-> {message:?}"));
        self.send_up(link, Packet::Message(message));
    }

    /// The moment of truth for every record: nothing may be spawned that does not stand in the journal.
    fn spawn(&mut self, shim: usize, start: &Start) -> Result<Input, String> {
        self.check_recorded(&start.task)?;
        if let Some(other) = self.shims[shim].holds.as_ref().filter(|other| **other != start.task) {
            return Err(format!("shim {shim} was given {} while it holds {other}", start.task));
        }
        let (now, id) = (self.mono_ms, start.task.clone());
        self.shims[shim].holds = Some(id.clone());
        let failure = self.plan.spawn_fails(&mut self.rng);
        let behaviour = self.plan.behaviour(&mut self.rng, &mut self.pids, start);
        let Some(truth) = self.tasks.get_mut(&id) else { return Err(format!("nobody knows {id}")) };
        truth.may_begin(now).map_err(|fault| format!("task {id}: {fault}"))?;
        if let Some(errno) = failure {
            let message = "simulated".to_owned();
            let failure = SpawnFailure { stage: SpawnStage::Program, errno, message };
            truth.failure = Some(failure.clone());
            return Ok(Input::Spawned(Err(failure)));
        }
        let Behaviour { processes, happenings } = behaviour;
        let leader = ProcessId { pid: processes[0].pid, start_ticks: processes[0].start_ticks };
        truth.spawned(now, start, processes);
        for (after_ms, happening) in happenings {
            let task = id.clone();
            self.agenda.add(now + after_ms, &mut self.rng, Job::Tree { task, happening });
        }
        self.show_tree(&id);
        Ok(Input::Spawned(Ok(leader)))
    }

    /// Sends a signal to everybody who is alive, and counts whom it reached.
    fn signal(&mut self, shim: usize, level: Level) -> Option<Strike> {
        if level == Level::Drain {
            return None;
        }
        let now = self.mono_ms;
        if level == Level::Kill {
            self.shims[shim].killing_ms = Some(now + self.rng.pick(&[1, 20, 400, 900]));
        }
        let id = self.shims[shim].holds.clone()?;
        let truth = self.tasks.get_mut(&id)?;
        let mut strike = Strike { level, processes: 0, refused: 0, leader: false, others: false };
        for process in &mut truth.processes {
            // A kill may still find a process that has just died and nobody has reaped.
            let found = process.is_alive()
                || (level == Level::Kill && process.is_leader && !process.is_reaped && self.rng.percent(50));
            if !found || (level == Level::Kill && process.is_struck) {
                continue;
            }
            if process.is_untouchable {
                strike.refused += 1;
                continue;
            }
            process.is_struck |= level == Level::Kill;
            strike.processes += 1;
            strike.leader |= process.is_leader;
            strike.others |= !process.is_leader;
            if let Some((after_ms, exit)) = process.answer(level, &mut self.rng) {
                let happening = Happening::Exits { pid: process.pid, exit };
                self.agenda.add(now + after_ms, &mut self.rng, Job::Tree { task: id.clone(), happening });
            }
        }
        truth.struck(strike);
        Some(strike)
    }

    /// Reaps, goes on killing if a kill is under way, and notices when nobody is left.
    fn look_after_tree(&mut self, shim: usize) -> Checked {
        let Some(truth) = self.held(shim) else { return Ok(()) };
        let leader_exit = truth
            .processes
            .iter()
            .find(|process| process.is_leader && !process.is_reaped)
            .and_then(|leader| leader.exit);
        for process in &mut truth.processes {
            process.is_reaped |= process.exit.is_some();
        }
        let empty = truth.alive().next().is_none();
        if let Some(exit) = leader_exit {
            self.feed(shim, Input::LeaderExited(exit))?;
        }
        if !empty && self.shims[shim].killing_ms.is_some_and(|at| at <= self.mono_ms) {
            if let Some(strike) = self.signal(shim, Level::Kill) {
                self.feed(shim, Input::Signalled(strike))?;
            }
        } else if empty {
            self.shims[shim].killing_ms = None;
        }
        if empty && self.shims[shim].core.has_tree() {
            self.feed(shim, Input::TreeEmpty)?;
        }
        if self.shims[shim].lingers && empty {
            self.shims[shim].leaves = true;
        }
        Ok(())
    }

    fn recycle(&mut self, shim: usize) {
        let alive = self.held(shim).is_some_and(|truth| truth.alive().next().is_some());
        let clean = !self.rng.percent(5);
        let state = &mut self.shims[shim];
        state.killing_ms = None;
        if alive {
            state.lingers = true;
            return;
        }
        state.holds = None;
        state.watched = false;
        state.told_bytes = 0;
        if clean {
            self.say(shim, FromShim::Ready);
        } else {
            state.leaves = true;
        }
    }

    // --- its connection ---

    pub(crate) fn shim_hears(&mut self, shim: usize, packet: Packet<ToShim>) -> Checked {
        let Packet::Message(message) = packet else {
            self.shims[shim].link = None;
            self.shims[shim].watched = false;
            self.feed(shim, Input::DaemonGone)?;
            return Ok(());
        };
        match message {
            ToShim::Write { write, .. } => {
                self.say(shim, FromShim::Written { write, result: WriteResult::Closed });
            }
            ToShim::Signal { ask, .. } => self.say(shim, FromShim::Signalled { ask, processes: 0 }),
            ToShim::Resize { resize, .. } => self.say(shim, FromShim::Resized { resize, pty: None }),
            ToShim::Watch { on } => {
                self.shims[shim].watched = on;
                self.shims[shim].told_bytes = 0;
            }
            ToShim::Query { query } => {
                let clocks = self.shims[shim].core.remaining(self.shim_moment());
                let output = self.output(shim);
                let now = Now { query, output, capture: None, clocks, stdin_open: false, pty: None };
                self.say(shim, FromShim::Now(Box::new(now)));
            }
            message => {
                self.look_after_tree(shim)?;
                self.note_order(shim, &message)?;
                self.feed(shim, Input::Daemon(message))?;
            }
        }
        Ok(())
    }

    fn note_order(&mut self, shim: usize, message: &ToShim) -> Checked {
        match message {
            ToShim::Stop { order } => {
                let order = order.clone();
                if let Some(id) = self.shims[shim].core.task().map(str::to_owned)
                    && let Some(truth) = self.tasks.get_mut(&id)
                {
                    truth.orders.push(order);
                }
                Ok(())
            }
            ToShim::Start(start) => match self.shims[shim].core.task() {
                Some(held) => Err(format!("shim {shim} got {} while it holds {held}", start.task)),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    fn output(&mut self, shim: usize) -> OutputInfo {
        let bytes = self.held(shim).map_or(0, |truth| truth.bytes);
        OutputInfo { bytes, on_disk: bytes > 0, ..OutputInfo::default() }
    }

    fn tell_output(&mut self, shim: usize) {
        let bytes = self.output(shim).bytes;
        let state = &mut self.shims[shim];
        if state.watched && bytes > state.told_bytes {
            state.told_bytes = bytes;
            self.say(shim, FromShim::Output { bytes });
        }
    }

    // --- what happens to it ---

    /// Something happens in the tree of a task, whoever holds it by now.
    pub(crate) fn tree_happens(&mut self, task: &str, happening: Happening) -> Checked {
        let now = self.mono_ms;
        let holder = self.shims.iter().position(|shim| !shim.is_gone && shim.holds.as_deref() == Some(task));
        let Some(truth) = self.tasks.get_mut(task) else { return Ok(()) };
        match happening {
            Happening::Exits { pid, exit } => {
                let process = truth.processes.iter_mut().find(|process| process.pid == pid);
                let Some(process) = process.filter(|process| process.is_alive()) else { return Ok(()) };
                process.exit = Some(exit);
                process.is_reaped = holder.is_none();
            }
            Happening::Forks { child } => {
                let leader_lives = truth.alive().any(|process| process.is_leader);
                if !leader_lives {
                    return Ok(());
                }
                truth.processes.push(*child);
            }
            Happening::Writes { bytes } => {
                let Some(shim) = holder.filter(|_| truth.alive().next().is_some()) else { return Ok(()) };
                truth.bytes += bytes;
                truth.wrote(now);
                if self.shims[shim].core.minds_output() {
                    self.feed(shim, Input::Output)?;
                }
                return self.shim_turn(shim);
            }
        }
        self.show_tree(task);
        if let Some(shim) = holder {
            let at = now + self.rng.pick(&[0, 0, 1, 3]);
            self.agenda.add(at, &mut self.rng, Job::Wake { shim });
        }
        Ok(())
    }

    /// It ends by itself: the connection closes first, then it is out of the process table.
    fn shim_leaves(&mut self, shim: usize) {
        self.note(format_args!("shim {shim}"), "leaves");
        self.shims[shim].is_gone = true;
        self.machine.sockets.borrow_mut().remove(&self.shims[shim].name);
        self.close_from_shim(shim);
        let at = self.mono_ms + self.rng.below(3);
        self.agenda.add(at, &mut self.rng, Job::ShimEnds { shim });
    }

    pub(crate) fn shim_ends(&mut self, shim: usize) {
        let ProcessId { pid, start_ticks } = self.shims[shim].process;
        self.machine.shims.borrow_mut().remove(&(pid, start_ticks));
        self.machine.below.borrow_mut().remove(&pid);
    }

    /// `kill -9`, by somebody or by a daemon that buries it.
    pub(crate) fn kill_shim(&mut self, shim: usize) {
        if self.shims[shim].is_gone {
            return;
        }
        self.note(format_args!("shim {shim}"), "is killed");
        self.shims[shim].is_gone = true;
        self.shims[shim].was_killed = true;
        self.close_from_shim(shim);
        self.shim_ends(shim);
    }

    /// Ends what is left of a tree whose shim is gone.
    pub(crate) fn kill_tree(&mut self, task: &str) -> (u64, Vec<Process>) {
        let Some(truth) = self.tasks.get_mut(task) else { return (0, Vec::new()) };
        let found = truth.alive().count() as u64;
        for process in truth.processes.iter_mut().filter(|process| !process.is_untouchable) {
            process.exit = process.exit.or(Some(SIGKILL));
        }
        (found, truth.alive().cloned().collect())
    }
}
