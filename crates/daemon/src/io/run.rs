//! The daemon at work: one thread, one core, everything else around it. Events come in here, actions go out here.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ffi::{CStr, CString};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use belay_os::process::monotonic_ms;
use belay_os::spawn::{Rlimit, SpawnError, SpawnSpec, Spawned, Stage, spawn};
use belay_os::tree::Tree;
use belay_record::frame;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

use super::alarm::Alarm;
use super::door::Door;
use super::outbox::{Outbox, Scratch};
use super::real::RealWorld;
use super::{lost, reading, search, server, shims};
use crate::core::Core;
use crate::event::{Action, ClientId, Event, Moment, ShimId};

/// How long a leaving daemon waits for clients to read their last answers.
const FAREWELL: Duration = Duration::from_millis(500);

pub(crate) fn now() -> Moment {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Moment { wall_ms: i64::try_from(wall.as_millis()).unwrap_or(i64::MAX), mono_ms: monotonic_ms() }
}

/// The program that runs, whatever has become of its file.
const OWN_PROGRAM: &CStr = c"/proc/self/exe";

/// `ENOENT`.
const NO_SUCH_FILE: i32 = rustix::io::Errno::NOENT.raw_os_error();

/// What is needed to start a shim.
#[derive(Debug)]
pub(crate) struct ShimRecipe {
    pub(crate) program: CString,
    pub(crate) socket_dir: PathBuf,
    pub(crate) cgroup_base: Option<PathBuf>,
    /// The limits that the daemon itself was started with, before it raised its own.
    pub(crate) rlimits: Vec<Rlimit>,
}

impl ShimRecipe {
    /// Whether a process is in the cgroup of some task.
    pub(crate) fn holds_in_cgroup(&self, pid: i32) -> bool {
        let Some(base) = self.cgroup_base.as_ref().and_then(|base| base.file_name()) else { return false };
        let below = format!("/{}/", base.to_string_lossy());
        belay_os::process::cgroup_of(pid).is_some_and(|place| place.contains(&below))
    }

    /// Starts this very program once more. Its file may have gone since, with a newer one elsewhere: the kernel still has it.
    pub(crate) fn spawn(spec: &SpawnSpec<'_>) -> Result<Spawned, SpawnError> {
        match spawn(spec) {
            Err(error) if error.stage == Stage::Program && error.errno == NO_SUCH_FILE => {
                let mut argv = spec.argv.to_vec();
                if let Some(program) = argv.first_mut() {
                    *program = CString::from(OWN_PROGRAM);
                }
                spawn(&SpawnSpec { argv: &argv, ..*spec })
            }
            other => other,
        }
    }

    /// How the command lines of this program's own children may begin.
    pub(crate) fn own_words(&self) -> impl Iterator<Item = String> {
        let programs = [self.program.to_string_lossy(), OWN_PROGRAM.to_string_lossy()];
        programs.into_iter().flat_map(|program| [format!("{program} shim "), format!("{program} reader")])
    }

    /// Where a shim of this name can be reached.
    pub(crate) fn socket(&self, name: &str) -> PathBuf {
        self.socket_dir.join(format!("{name}.sock"))
    }
}

/// The core and its connections. Everything runs on one thread, and nothing waits while the core is borrowed.
pub(crate) struct Hub {
    core: RefCell<Core<RealWorld>>,
    inbox: RefCell<VecDeque<Event>>,
    busy: Cell<bool>,
    /// Clients that may be sent more of what they follow.
    have_room: RefCell<BTreeSet<ClientId>>,
    room: Notify,
    pub(crate) clients: RefCell<HashMap<ClientId, Rc<Outbox>>>,
    pub(crate) shims: RefCell<HashMap<ShimId, Rc<Outbox>>>,
    pub(crate) recipe: ShimRecipe,
    /// The shims whose tasks are being searched for.
    pub(crate) lost: RefCell<Vec<i32>>,
    /// Our own: whoever is below it and below no shim was left by one.
    pub(crate) pid: i32,
    pub(crate) scratch: Scratch,
    /// What clients have sent of lines that have no end yet.
    pub(crate) unfinished_bytes: Cell<usize>,
    alarm: Alarm,
    serving: Notify,
    exit: Notify,
    numbers: Cell<u64>,
}

impl Hub {
    pub(crate) fn new(core: Core<RealWorld>, recipe: ShimRecipe) -> std::io::Result<Rc<Self>> {
        Ok(Rc::new(Self {
            core: RefCell::new(core),
            inbox: RefCell::default(),
            busy: Cell::new(false),
            have_room: RefCell::default(),
            room: Notify::new(),
            clients: RefCell::default(),
            shims: RefCell::default(),
            recipe,
            lost: RefCell::default(),
            pid: belay_os::process::own_identity().pid,
            scratch: RefCell::new(vec![0; server::READ_BYTES].into_boxed_slice()),
            unfinished_bytes: Cell::new(0),
            alarm: Alarm::new()?,
            serving: Notify::new(),
            exit: Notify::new(),
            numbers: Cell::new(0),
        }))
    }

    pub(crate) fn next_client(&self) -> ClientId {
        self.numbers.set(self.numbers.get() + 1);
        ClientId(self.numbers.get())
    }

    /// The one dispatcher. What an action brings about at once is handled after it, never inside it.
    pub(crate) fn dispatch(self: &Rc<Self>, event: Event) {
        self.inbox.borrow_mut().push_back(event);
        if self.busy.replace(true) {
            return;
        }
        loop {
            let Some(event) = self.inbox.borrow_mut().pop_front() else { break };
            let actions = self.core.borrow_mut().heed(now(), event);
            for action in actions {
                self.carry_out(action);
            }
            // Whoever waits for an answer does not wait for this.
            let actions = self.core.borrow_mut().tidy();
            for action in actions {
                self.carry_out(action);
            }
        }
        self.busy.set(false);
        if let Some(at_ms) = self.core.borrow().next_deadline() {
            self.alarm.ring_by(at_ms);
        }
        if self.core.borrow().is_serving() {
            self.serving.notify_one();
        }
    }

    fn carry_out(self: &Rc<Self>, action: Action) {
        match action {
            Action::Send { client, lines } => {
                let outbox = self.clients.borrow().get(&client).cloned();
                let bytes = outbox.map_or(0, |outbox| outbox.push(lines));
                if bytes > 0 && self.core.borrow_mut().has_left(client, bytes) {
                    self.have_room.borrow_mut().insert(client);
                    self.room.notify_one();
                }
            }
            Action::CloseClient { client } => {
                if let Some(outbox) = self.clients.borrow().get(&client) {
                    outbox.close();
                }
            }
            Action::SpawnShim { shim, name } => shims::spawn(self, shim, &name),
            Action::ConnectShim { shim, name } => shims::connect(self, shim, &name),
            Action::ToShim { shim, message } => {
                let mut bytes = Vec::new();
                if frame::put(&mut bytes, &message).is_ok()
                    && let Some(outbox) = self.shims.borrow().get(&shim)
                {
                    outbox.push(bytes);
                }
            }
            Action::ClearShim { name, process, cgroup } => lost::clear(self, &name, process, cgroup),
            Action::RemoveSocket { name } => {
                let _ = std::fs::remove_file(self.recipe.socket(&name));
            }
            Action::DropShim { shim } => {
                if let Some(outbox) = self.shims.borrow_mut().remove(&shim) {
                    outbox.close();
                }
            }
            Action::KillLost(lost) => lost::kill_lost(self, *lost),
            Action::Search { search, what } => search::run(self, search, *what),
            Action::ReadLine { reading, params } => reading::run(self, reading, *params),
            Action::RemoveDir { path } => {
                // What cannot be removed now is removed by the next look at the directory.
                let _ = std::fs::remove_dir_all(path);
            }
            Action::Reach(point) => self.core.borrow().reach(point),
            Action::Exit => self.exit.notify_one(),
        }
    }

    /// The process ids of every shim that this daemon knows.
    pub(crate) fn known_shims(&self) -> Vec<i32> {
        self.core.borrow().shim_pids()
    }

    /// The names of every shim that this daemon knows.
    pub(crate) fn known_shim_names(&self) -> Vec<String> {
        self.core.borrow().shim_names()
    }

    pub(crate) fn push_event(self: &Rc<Self>, event: Event) {
        self.inbox.borrow_mut().push_back(event);
    }

    /// Adopts, opens the door, serves until told to leave.
    pub(crate) async fn run(
        self: &Rc<Self>,
        mut door: Door,
        ready: impl FnOnce(),
    ) -> Result<(), belay_journal::Error> {
        let actions = self.core.borrow_mut().adopt(now())?;
        self.busy.set(true);
        for action in actions {
            self.carry_out(action);
        }
        self.busy.set(false);
        self.dispatch(Event::Tick);
        tokio::task::spawn_local(keep_time(Rc::clone(self)));
        tokio::task::spawn_local(serve_followers(Rc::clone(self)));
        tokio::task::spawn_local(heed_signals(Rc::clone(self)));
        self.serving.notified().await;
        ready();
        // Not before: shims of which nobody knew are looked at until now, and the dead among them forgotten.
        shims::sweep(self);
        tokio::select! {
            () = server::accept(self, &mut door) => {}
            () = self.exit.notified() => {}
        }
        drop(door);
        self.farewell().await;
        Ok(())
    }

    async fn farewell(self: &Rc<Self>) {
        let clients: Vec<Rc<Outbox>> = self.clients.borrow().values().cloned().collect();
        let flush = async {
            for client in &clients {
                client.below(0).await;
            }
        };
        let _ = tokio::time::timeout(FAREWELL, flush).await;
    }
}

/// Lets the core look whenever the alarm rings.
async fn keep_time(hub: Rc<Hub>) {
    while hub.alarm.rung().await.is_ok() {
        hub.dispatch(Event::Tick);
    }
}

/// Lets followers have more, in turn with everything else that happens: one who reads as fast as can be written would keep
/// the core from all others.
async fn serve_followers(hub: Rc<Hub>) {
    loop {
        hub.room.notified().await;
        for client in hub.have_room.take() {
            hub.dispatch(Event::ClientWrote { client, bytes: 0 });
        }
    }
}

async fn heed_signals(hub: Rc<Hub>) {
    let kinds = (SignalKind::terminate(), SignalKind::interrupt(), SignalKind::child());
    let (Ok(mut terminate), Ok(mut interrupt), Ok(mut child)) =
        (signal(kinds.0), signal(kinds.1), signal(kinds.2))
    else {
        return;
    };
    loop {
        tokio::select! {
            _ = terminate.recv() => hub.dispatch(Event::Terminate),
            _ = interrupt.recv() => hub.dispatch(Event::Terminate),
            _ = child.recv() => {
                // Shims that left, and orphans of shims that were killed: reaped, so that nothing stays a zombie.
                let _ = Tree::new(None).reap(&mut Vec::new());
            }
        }
    }
}
