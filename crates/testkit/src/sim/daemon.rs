//! A simulated daemon: the real core on a real journal, with workers that take their time. Every effect is carried out by
//! itself, and before each of them, before each input, before each job of a worker and at every point inside a step that
//! the core names, the daemon may die.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use belay_daemon::effect::{Effect, LostTask, Reaped, Sample, SampleItem, WithoutEndFile};
use belay_daemon::input::{ClientId, Input, ShimId};
use belay_daemon::runtime::Core;
use belay_journal::{Opened, Reader, Store};
use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::life::SurvivorInfo;
use belay_protocol::shim::{FromShim, ToShim};
use belay_record::convert::Wire as _;

use super::agenda::{Job, WorkerJob};
use super::host::{Died, SimHost};
use super::link::{Link, Packet};
use super::process::Process;
use super::{Checked, Sim};

#[derive(Debug)]
pub(crate) struct Daemon {
    pub(crate) core: Core<SimHost>,
    store: Store,
    reader: Reader,
    pub(crate) generation: u64,
    links: BTreeMap<ShimId, u64>,
    pub(crate) clients: BTreeMap<ClientId, usize>,
    leaves: bool,
}

impl Sim {
    pub(crate) fn start_daemon(&mut self) -> Checked {
        if self.daemon.is_some() {
            return Ok(());
        }
        let opened = belay_journal::open(self.dir.path()).map_err(|error| format!("the journal: {error}"))?;
        let Opened { buffer, store, reader, loaded, notices } = opened;
        if let Some(notice) = notices.first() {
            return Err(format!("a crash damaged the journal: {notice:?}"));
        }
        self.open_observer()?;
        self.generation += 1;
        let generation = self.generation;
        self.note("daemon", format_args!("starts, number {generation}"));
        let (host, now) = (SimHost(self.machine.clone()), self.daemon_moment());
        let core = Core::new(host, self.plan.config(), buffer, loaded, now);
        let (links, clients) = (BTreeMap::new(), BTreeMap::new());
        self.daemon = Some(Daemon { core, store, reader, generation, links, clients, leaves: false });
        self.run_core(false, |core| core.adopt(now))
    }

    pub(crate) fn tell_daemon(&mut self, input: Input) -> Checked {
        if self.daemon.is_none() {
            return Ok(());
        }
        let is_quiet = matches!(input, Input::ClientWritten { .. });
        if !is_quiet {
            self.note("daemon", format_args!("<- {}", shown(&input)));
        }
        if self.machine.strikes() {
            return self.crash("before an input");
        }
        let now = self.daemon_moment();
        self.run_core(is_quiet, |core| core.handle(now, input))
    }

    /// Lets the core take a step, looks at what is durable now, and then does what the core wants. A quiet step that
    /// wants nothing has made nothing durable.
    fn run_core(&mut self, is_quiet: bool, step: impl FnOnce(&mut Core<SimHost>) -> Vec<Effect>) -> Checked {
        let Some(daemon) = &mut self.daemon else { return Ok(()) };
        let core = &mut daemon.core;
        let done = match catch_unwind(AssertUnwindSafe(|| step(core))) {
            Ok(done) => done,
            Err(thrown) if thrown.is::<Died>() => {
                let point = self.machine.last_point.get();
                return self.crash(point);
            }
            Err(thrown) => std::panic::resume_unwind(thrown),
        };
        if !is_quiet || !done.is_empty() {
            self.observe()?;
        }
        for effect in done {
            if self.machine.strikes() {
                return self.crash("between two effects");
            }
            self.execute(effect)?;
        }
        let has_backlog = self.daemon.as_ref().is_some_and(|daemon| daemon.core.has_backlog());
        if has_backlog {
            self.owe(self.generation, 1, Input::Continue);
        }
        Ok(())
    }

    fn execute(&mut self, effect: Effect) -> Checked {
        let Some(daemon) = &mut self.daemon else { return Ok(()) };
        let (generation, now) = (daemon.generation, self.mono_ms);
        match effect {
            Effect::Send { client, lines, .. } => {
                let mut lines = lines.split_inclusive(|byte| *byte == b'\n');
                return lines.try_for_each(|line| self.answer_client(client, line));
            }
            // Clients in here say what they have to say, and leave altogether.
            Effect::CloseClient { .. } => {}
            Effect::SpawnShim { shim, name } => {
                let at = now + self.rng.pick(&[0, 0, 1, 20]);
                self.agenda.add(at, &mut self.rng, Job::SpawnShim { daemon: generation, shim, name });
            }
            Effect::ConnectShim { shim, name } => {
                let at = now + self.rng.pick(&[0, 1, 2, 30]);
                self.agenda.add(at, &mut self.rng, Job::Connect { daemon: generation, shim, name });
            }
            Effect::ToShim { shim, message } => {
                let link = daemon.links.get(&shim).copied();
                self.note("daemon", format_args!("-> shim {}: {message:?}", shim.0));
                if let Some(link) = link {
                    self.send_down(link, Packet::Message(message));
                }
            }
            Effect::ClearShim { name, process, .. } => {
                if !self.machine.shims.borrow().contains(&(process.pid, process.start_ticks)) {
                    self.machine.sockets.borrow_mut().remove(&name);
                }
            }
            Effect::RemoveSocket { name } => drop(self.machine.sockets.borrow_mut().remove(&name)),
            Effect::CloseShim { shim } => {
                if let Some(link) = daemon.links.remove(&shim) {
                    self.hang_up(link);
                }
            }
            Effect::ReapLost(lost) => {
                let at = now + self.rng.pick(&[0, 5, 40]);
                self.agenda.add(at, &mut self.rng, Job::ReapLost { daemon: generation, lost });
            }
            Effect::Search { job, .. } => {
                let result = Box::new(Err(RpcError::new(ErrorKind::Internal, "nothing is searched here")));
                self.owe(generation, 1, Input::Searched { job, result });
            }
            Effect::ParseLine { job, .. } => {
                self.owe(generation, 1, Input::LineParsed { job, result: None });
            }
            Effect::FlushJournal(job) => self.give_to_worker(WorkerJob::Flush(job)),
            Effect::ReadJournal { job, query } => self.give_to_worker(WorkerJob::Read { job, query }),
            Effect::ExpireEvents { job, rule } => self.give_to_worker(WorkerJob::ExpireEvents { job, rule }),
            Effect::RemoveDirs { job, dirs } => self.give_to_worker(WorkerJob::RemoveDirs { job, dirs }),
            Effect::Sample { job, items } => self.give_to_worker(WorkerJob::Sample { job, items }),
            Effect::ReadOutput { job, read } => self.give_to_worker(WorkerJob::ReadOutput { job, read }),
            Effect::RemoveEndFile { dir } => drop(self.machine.end_files.borrow_mut().remove(&dir)),
            Effect::WriteSettings { job, .. } => {
                let result = Err(std::io::ErrorKind::ReadOnlyFilesystem.into());
                self.owe(generation, 1, Input::SettingsWritten { job, result });
            }
            Effect::CrashPoint(point) => self.note("daemon", point.name()),
            Effect::Exit => {
                if !std::mem::replace(&mut daemon.leaves, true) {
                    let at = now + self.rng.below(3);
                    self.agenda.add(at, &mut self.rng, Job::EndDaemon { daemon: generation });
                }
            }
        }
        Ok(())
    }

    /// What the machine tells a daemon in a while, if it is still that daemon.
    pub(crate) fn owe(&mut self, daemon: u64, within_ms: u64, input: Input) {
        let at = self.mono_ms + self.rng.below(within_ms + 1);
        self.agenda.add(at, &mut self.rng, Job::Tell { daemon, input: Box::new(input) });
    }

    fn is_current(&self, generation: u64) -> bool {
        self.daemon.as_ref().is_some_and(|daemon| daemon.generation == generation)
    }

    pub(crate) fn told(&mut self, generation: u64, input: Input) -> Checked {
        if self.is_current(generation) { self.tell_daemon(input) } else { Ok(()) }
    }

    pub(crate) fn end_daemon(&mut self, generation: u64) -> Checked {
        if !self.is_current(generation) {
            return Ok(());
        }
        self.note("daemon", "has left");
        self.daemon_is_gone()
    }

    pub(crate) fn crash(&mut self, place: &str) -> Checked {
        self.note("daemon", format_args!("is killed: {place}"));
        self.crashes += 1;
        self.daemon_is_gone()
    }

    /// What it had not handed over is lost; what it had still arrives, and then everybody sees that it is gone.
    fn daemon_is_gone(&mut self) -> Checked {
        let Some(daemon) = self.daemon.take() else { return Ok(()) };
        drop(daemon.core);
        for link in daemon.links.into_values() {
            self.hang_up(link);
        }
        self.clients_lose_daemon();
        let pause_ms = self.rng.pick(&[0, 1, 40, 700, 6_000]);
        let at = self.mono_ms + pause_ms;
        if !self.is_over {
            self.agenda.add(at, &mut self.rng, Job::StartDaemon);
        }
        self.observe()
    }

    // --- shims, as a daemon sees them ---

    pub(crate) fn spawn_shim(&mut self, generation: u64, id: ShimId, name: &str) -> Checked {
        if !self.is_current(generation) {
            return Ok(());
        }
        if self.rng.percent(self.plan.no_shim_percent) {
            let error = "no process".to_owned();
            return self.tell_daemon(Input::ShimNotSpawned { shim: id, error });
        }
        let shim = self.make_shim(name);
        self.note("daemon", format_args!("starts shim {shim}, which it calls {}", id.0));
        let process = self.shims[shim].process;
        self.link_up(shim, id);
        self.tell_daemon(Input::ShimSpawned { shim: id, process })
    }

    fn link_up(&mut self, shim: usize, id: ShimId) {
        let Some(daemon) = &mut self.daemon else { return };
        self.last_link += 1;
        daemon.links.insert(id, self.last_link);
        self.links.insert(self.last_link, Link::new(shim, daemon.generation, id));
        self.shims[shim].link = Some(self.last_link);
    }

    /// A daemon reaches for a shim: somebody is there, or nobody, or the way is blocked for the moment.
    pub(crate) fn connect(&mut self, generation: u64, id: ShimId, name: &str) -> Checked {
        if !self.is_current(generation) {
            return Ok(());
        }
        let found = self.shims.iter().position(|shim| shim.name == name && !shim.is_gone);
        // Only a shim that is known to hold a live task is reached for again and again.
        let held = found.and_then(|shim| self.shims[shim].holds.clone());
        let is_live = held.and_then(|id| self.tasks.get(&id)).is_some_and(|truth| truth.record.end.is_none());
        let blocked = is_live && self.rng.percent(self.plan.blocked_percent);
        let left = !self.machine.sockets.borrow().contains(name);
        let Some(shim) = found.filter(|_| !blocked && !left) else {
            let error = "nobody answers".to_owned();
            return self.tell_daemon(Input::ShimUnreachable { shim: id, error, left });
        };
        let heard_first = self.rng.percent(50);
        if let Some(old) = self.shims[shim].link.take().and_then(|old| self.links.remove(&old)) {
            let Link { mut down, .. } = old;
            if heard_first {
                self.note(format_args!("shim {shim}"), "hears the old daemon out");
                for packet in down.take_all() {
                    self.shim_hears(shim, packet)?;
                }
                self.shim_turn(shim)?;
            }
        }
        if self.shims[shim].is_gone {
            let error = "it just left".to_owned();
            return self.tell_daemon(Input::ShimUnreachable { shim: id, error, left: true });
        }
        self.link_up(shim, id);
        self.tell_daemon(Input::ShimConnected { shim: id })
    }

    /// Finds out how a task ended whose shim is gone.
    pub(crate) fn reap_lost(&mut self, generation: u64, lost: &LostTask) {
        if !self.is_current(generation) {
            return;
        }
        let file = self.machine.end_files.borrow().get(&lost.dir).cloned();
        let file = file.map(|bytes| serde_json::from_slice(&bytes).expect("an end file can be read"));
        let result = match (file, &lost.without_end_file) {
            (Some(file), _) => Reaped::EndFile(Box::new(file)),
            (None, WithoutEndFile::Report) => Reaped::Nothing { error: None },
            (None, WithoutEndFile::Kill(tree)) => {
                let alive = self.shims.iter().position(|shim| shim.process == tree.shim && !shim.is_gone);
                if let Some(shim) = alive {
                    self.kill_shim(shim);
                }
                let (found, left) = self.kill_tree(&lost.task);
                self.note("machine", format_args!("what was left of {} is killed: {found}", lost.task));
                let survivors: Vec<SurvivorInfo> =
                    left.iter().map(Process::survivor).map(|left| left.to_wire()).collect();
                Reaped::Killed { found, survivors, error: None }
            }
        };
        self.owe(generation, 30, Input::LostReaped { lost: Box::new(lost.clone()), result });
    }

    // --- workers ---

    /// A job reaches its worker after a while; another worker may be faster with a later one.
    fn give_to_worker(&mut self, job: WorkerJob) {
        let at = self.mono_ms + self.worker_delay(&job);
        let (daemon, job) = (self.generation, Box::new(job));
        self.agenda.add(at, &mut self.rng, Job::Work { daemon, job });
    }

    fn worker_delay(&mut self, job: &WorkerJob) -> u64 {
        if self.plan.slow_worker == Some(job.worker()) { 10_000 } else { self.rng.pick(&[0, 0, 1, 4, 40]) }
    }

    /// A worker does a job. Its result comes later still; the daemon may die before and after.
    pub(crate) fn work(&mut self, generation: u64, job: WorkerJob) -> Checked {
        if !self.is_current(generation) {
            return Ok(());
        }
        if self.machine.strikes() {
            return self.crash("before a worker's job");
        }
        let Some(daemon) = &mut self.daemon else { return Ok(()) };
        let input = match job {
            WorkerJob::Flush(flush) => Input::JournalFlushed(Box::new(daemon.store.flush(*flush))),
            WorkerJob::Read { job, query } => {
                let result = Box::new(daemon.reader.run(&query));
                Input::JournalRead { job, result }
            }
            WorkerJob::ExpireEvents { job, rule } => {
                Input::EventsExpired { job, result: daemon.store.expire_events(&rule) }
            }
            WorkerJob::RemoveDirs { job, dirs } => {
                for dir in dirs {
                    self.machine.end_files.borrow_mut().remove(&dir);
                }
                Input::DirsRemoved { job, freed_bytes: 0 }
            }
            WorkerJob::Sample { job, items } => Input::Sampled { job, sample: Box::new(self.sample(items)) },
            WorkerJob::ReadOutput { job, read } => Input::OutputRead { job, result: Box::new(read.run()) },
        };
        if self.machine.strikes() {
            return self.crash("after a worker's job");
        }
        let within_ms = self.rng.pick(&[0, 0, 2, 30]);
        self.owe(generation, within_ms, input);
        Ok(())
    }

    fn sample(&self, items: Vec<SampleItem>) -> Sample {
        let below = self.machine.below.borrow();
        let trees = items.into_iter().filter_map(|item| Some((item.task, item.tree?)));
        let processes =
            trees.map(|(task, tree)| (task, below.get(&tree.shim.pid).cloned().unwrap_or_default()));
        Sample { processes: processes.collect(), ..Sample::default() }
    }

    // --- links ---

    /// Some shims are slow to read and slow to write: a busy machine.
    fn delay(&mut self, link: u64) -> u64 {
        let delays = if link.is_multiple_of(4) { [0, 3, 20, 90, 300] } else { [0, 0, 1, 2, 5] };
        self.rng.pick(&delays)
    }

    pub(crate) fn send_down(&mut self, link: u64, packet: Packet<ToShim>) {
        let arrives = self.mono_ms + self.delay(link);
        let at = self.links.get_mut(&link).and_then(|state| state.down.put(arrives, again(packet)));
        if let Some(at) = at {
            self.agenda.add(at, &mut self.rng, Job::Down { link });
        }
    }

    pub(crate) fn send_up(&mut self, link: u64, packet: Packet<FromShim>) {
        let arrives = self.mono_ms + self.delay(link);
        let at = self.links.get_mut(&link).and_then(|state| state.up.put(arrives, again(packet)));
        if let Some(at) = at {
            self.agenda.add(at, &mut self.rng, Job::Up { link });
        }
    }

    /// The daemon's end is closed.
    fn hang_up(&mut self, link: u64) {
        if let Some(state) = self.links.get_mut(&link) {
            state.up.forget();
        }
        self.send_down(link, Packet::Closed);
    }

    /// The shim's end is closed.
    pub(crate) fn close_from_shim(&mut self, shim: usize) {
        if let Some(link) = self.shims[shim].link.take() {
            if let Some(state) = self.links.get_mut(&link) {
                state.down.forget();
            }
            self.send_up(link, Packet::Closed);
        }
    }

    pub(crate) fn arrives_down(&mut self, link: u64) -> Checked {
        let now = self.mono_ms;
        let Some(state) = self.links.get_mut(&link) else { return Ok(()) };
        let shim = state.shim;
        let Some(packet) = state.down.take(now) else { return Ok(()) };
        self.shim_hears(shim, packet)?;
        self.shim_turn(shim)
    }

    /// Everything that one read brings is one event; how much that is, is chance.
    pub(crate) fn arrives_up(&mut self, link: u64) -> Checked {
        let (now, most) = (self.mono_ms, self.rng.between(1, 4));
        let Some(state) = self.links.get_mut(&link) else { return Ok(()) };
        let (generation, shim) = (state.daemon, state.id);
        let mut messages = Vec::new();
        let mut closed = false;
        while messages.len() as u64 != most && !closed {
            match state.up.take(now) {
                Some(Packet::Message(message)) => messages.push(message),
                Some(Packet::Closed) => closed = true,
                None => break,
            }
        }
        if !messages.is_empty() {
            self.told(generation, Input::ShimMessages { shim, messages })?;
        }
        let known = self.daemon.as_mut().filter(|daemon| daemon.generation == generation);
        if closed && known.is_some_and(|daemon| daemon.links.remove(&shim) == Some(link)) {
            self.links.remove(&link);
            self.told(generation, Input::ShimGone { shim })?;
        }
        Ok(())
    }
}

/// A message as it comes out at the other end of a wire.
fn again<T: serde::Serialize + serde::de::DeserializeOwned>(packet: Packet<T>) -> Packet<T> {
    match packet {
        Packet::Message(message) => {
            let bytes = serde_json::to_vec(&message).expect("a message can be written");
            Packet::Message(serde_json::from_slice(&bytes).expect("a message can be read"))
        }
        Packet::Closed => Packet::Closed,
    }
}

fn shown(input: &Input) -> String {
    match input {
        Input::ClientLine { client, line } => {
            format!("client {}: {}", client.0, String::from_utf8_lossy(line))
        }
        // Not the names of files and the order of a hash table, which differ from run to run.
        Input::Sampled { job, sample } => format!("Sampled({job:?}, {})", sample.processes.len()),
        Input::JournalFlushed(done) => format!("JournalFlushed({:?})", done.result().is_ok()),
        Input::JournalRead { job, result } => format!("JournalRead({job:?}, {})", result.is_ok()),
        other => format!("{other:?}"),
    }
}
