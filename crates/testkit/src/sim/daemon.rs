//! A simulated daemon: the real core on a real journal. Every action is carried out by itself, and before each of them,
//! before each event and at every point inside a step that the core names, the daemon may die.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use belay_daemon::core::Core;
use belay_daemon::event::{Action, ClientId, Event, LostTask, ShimId};
use belay_journal::{Journal, Opened};
use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::life::SurvivorInfo;
use belay_protocol::shim::{FromShim, ToShim};
use belay_record::convert::Wire as _;

use super::agenda::Job;
use super::link::{Link, Packet};
use super::process::Process;
use super::world::{Died, SimWorld};
use super::{Checked, Sim};

#[derive(Debug)]
pub(crate) struct Daemon {
    pub(crate) core: Core<SimWorld>,
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
        let opened = Journal::open(self.dir.path()).map_err(|error| format!("the journal: {error}"))?;
        let Opened { journal, notices } = opened;
        if let Some(notice) = notices.first() {
            return Err(format!("a crash damaged the journal: {notice:?}"));
        }
        self.open_observer()?;
        self.generation += 1;
        let generation = self.generation;
        self.note("daemon", format_args!("starts, number {generation}"));
        let (world, now) = (SimWorld(self.machine.clone()), self.daemon_moment());
        let core = Core::new(world, self.plan.config(), journal, now);
        let core = core.map_err(|error| format!("the core: {error}"))?;
        let (links, clients) = (BTreeMap::new(), BTreeMap::new());
        self.daemon = Some(Daemon { core, generation, links, clients, leaves: false });
        self.run_core(false, |core| core.adopt(now).map_err(|error| format!("adopting: {error}")))
    }

    pub(crate) fn tell_daemon(&mut self, event: Event) -> Checked {
        if self.daemon.is_none() {
            return Ok(());
        }
        let is_quiet = matches!(event, Event::ClientWrote { .. });
        if !is_quiet {
            self.note("daemon", format_args!("<- {}", shown(&event)));
        }
        if self.machine.strikes() {
            return self.crash("before an event");
        }
        let now = self.daemon_moment();
        self.run_core(is_quiet, |core| Ok(core.handle(now, event)))
    }

    /// Lets the core take a step, looks at what is durable now, and then does what the core wants. A quiet step that
    /// wants nothing has made nothing durable.
    fn run_core(
        &mut self,
        is_quiet: bool,
        step: impl FnOnce(&mut Core<SimWorld>) -> Result<Vec<Action>, String>,
    ) -> Checked {
        let Some(daemon) = &mut self.daemon else { return Ok(()) };
        let core = &mut daemon.core;
        let done = match catch_unwind(AssertUnwindSafe(|| step(core))) {
            Ok(done) => done?,
            Err(thrown) if thrown.is::<Died>() => {
                let point = self.machine.last_point.get();
                return self.crash(point);
            }
            Err(thrown) => std::panic::resume_unwind(thrown),
        };
        if !is_quiet || !done.is_empty() {
            self.observe()?;
        }
        for action in done {
            if self.machine.strikes() {
                return self.crash("between two actions");
            }
            self.daemon_does(action)?;
        }
        Ok(())
    }

    fn daemon_does(&mut self, action: Action) -> Checked {
        let Some(daemon) = &mut self.daemon else { return Ok(()) };
        let (generation, now) = (daemon.generation, self.mono_ms);
        match action {
            Action::Send { client, lines } => {
                let mut lines = lines.split_inclusive(|byte| *byte == b'\n');
                return lines.try_for_each(|line| self.answer_client(client, line));
            }
            // Clients in here say what they have to say, and leave altogether.
            Action::CloseClient { .. } => {}
            Action::SpawnShim { shim, name } => self.spawn_shim(shim, &name),
            Action::ConnectShim { shim, name } => {
                let at = now + self.rng.pick(&[0, 1, 2, 30]);
                self.agenda.add(at, &mut self.rng, Job::Connect { daemon: generation, shim, name });
            }
            Action::ToShim { shim, message } => {
                let link = daemon.links.get(&shim).copied();
                self.note("daemon", format_args!("-> shim {}: {message:?}", shim.0));
                if let Some(link) = link {
                    self.send_down(link, Packet::Message(message));
                }
            }
            Action::ClearShim { name, process, .. } => {
                if !self.machine.shims.borrow().contains(&(process.pid, process.start_ticks)) {
                    self.machine.sockets.borrow_mut().remove(&name);
                }
            }
            Action::RemoveSocket { name } => drop(self.machine.sockets.borrow_mut().remove(&name)),
            Action::DropShim { shim } => {
                if let Some(link) = daemon.links.remove(&shim) {
                    self.hang_up(link);
                }
            }
            Action::KillLost(lost) => {
                let at = now + self.rng.pick(&[0, 5, 40]);
                self.agenda.add(at, &mut self.rng, Job::KillLost { daemon: generation, lost });
            }
            Action::Search { search, .. } => {
                let result = Box::new(Err(RpcError::new(ErrorKind::Internal, "nothing is searched here")));
                self.owe(generation, 1, Event::Searched { search, result });
            }
            Action::ReadLine { reading, .. } => {
                self.owe(generation, 1, Event::LineRead { reading, result: None });
            }
            Action::RemoveDir { path } => drop(self.machine.end_files.borrow_mut().remove(&path)),
            Action::Reach(point) => self.note("daemon", point.name()),
            Action::Exit => {
                if !std::mem::replace(&mut daemon.leaves, true) {
                    let at = now + self.rng.below(3);
                    self.agenda.add(at, &mut self.rng, Job::EndDaemon { daemon: generation });
                }
            }
        }
        Ok(())
    }

    /// What the machine tells a daemon in a while, if it is still that daemon.
    pub(crate) fn owe(&mut self, daemon: u64, within_ms: u64, event: Event) {
        let at = self.mono_ms + self.rng.below(within_ms + 1);
        self.agenda.add(at, &mut self.rng, Job::Tell { daemon, event: Box::new(event) });
    }

    fn is_current(&self, generation: u64) -> bool {
        self.daemon.as_ref().is_some_and(|daemon| daemon.generation == generation)
    }

    pub(crate) fn told(&mut self, generation: u64, event: Event) -> Checked {
        if self.is_current(generation) { self.tell_daemon(event) } else { Ok(()) }
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

    fn spawn_shim(&mut self, id: ShimId, name: &str) {
        let generation = self.generation;
        if self.rng.percent(self.plan.no_shim_percent) {
            return self.owe(
                generation,
                0,
                Event::ShimNotSpawned { shim: id, error: "no process".to_owned() },
            );
        }
        let shim = self.make_shim(name);
        self.note("daemon", format_args!("starts shim {shim}, which it calls {}", id.0));
        let process = self.shims[shim].process;
        self.link_up(shim, id);
        self.owe(generation, 0, Event::ShimSpawned { shim: id, process });
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
            return self.tell_daemon(Event::ShimUnreachable { shim: id, error, left });
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
            return self.tell_daemon(Event::ShimUnreachable { shim: id, error, left: true });
        }
        self.link_up(shim, id);
        self.tell_daemon(Event::ShimConnected { shim: id })
    }

    pub(crate) fn kill_lost(&mut self, generation: u64, lost: &LostTask) {
        if !self.is_current(generation) {
            return;
        }
        let alive = self.shims.iter().position(|shim| shim.process == lost.shim && !shim.is_gone);
        if let Some(shim) = alive {
            self.kill_shim(shim);
        }
        let (found, left) = self.kill_tree(&lost.task);
        self.note("machine", format_args!("what was left of {} is killed: {found}", lost.task));
        let survivors: Vec<SurvivorInfo> =
            left.iter().map(Process::survivor).map(|left| left.to_wire()).collect();
        self.owe(generation, 30, Event::LostKilled { lost: Box::new(lost.clone()), found, survivors });
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
            self.told(generation, Event::ShimSaid { shim, messages })?;
        }
        let known = self.daemon.as_mut().filter(|daemon| daemon.generation == generation);
        if closed && known.is_some_and(|daemon| daemon.links.remove(&shim) == Some(link)) {
            self.links.remove(&link);
            self.told(generation, Event::ShimGone { shim })?;
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

fn shown(event: &Event) -> String {
    match event {
        Event::ClientSaid { client, line } => {
            format!("client {}: {}", client.0, String::from_utf8_lossy(line))
        }
        other => format!("{other:?}"),
    }
}
