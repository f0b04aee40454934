//! The hub between the core and everything around it: `Hub::dispatch` is the only way into the core, and effects leave here.
//! The loop itself is a tokio runtime on one thread: each connection has a task that reads and one that writes.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use belay_journal::{Reader, Store};
use belay_os::process::{monotonic_ms, monotonic_us};
use belay_os::tree::Tree;
use belay_record::{EndFile, LogReader, frame};
use rustix::time::{ClockId, clock_gettime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, Semaphore, oneshot};

use super::connection::{Connection, Scratch};
use super::linux_host::LinuxHost;
use super::listener::Listener;
use super::shims::ShimRecipe;
use super::timer::LoopTimer;
use super::workers::{Pool, Worker};
use super::{clients, kill_orphans, sampler, search, settings_file, shell_parse_client, shims};
use crate::config::bounds;
use crate::effect::{Effect, OutputRead};
use crate::input::{ClientId, Input, JobId, Moment, ShimId};
use crate::runtime::Core;

/// How long a leaving daemon waits for a client that does not read its last replies, and for all of them together.
const FAREWELL_STALL: Duration = Duration::from_secs(5);
const FAREWELL: Duration = Duration::from_mins(1);

/// How many trees of lost shims are killed at once, each by a thread of its own.
const KILLS: usize = 8;

pub(crate) fn now() -> Moment {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Moment { wall_ms: i64::try_from(wall.as_millis()).unwrap_or(i64::MAX), mono_ms: monotonic_ms() }
}

/// The processor time of this thread.
fn thread_cpu_us() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec * 1_000_000 + time.tv_nsec / 1_000).unwrap_or(0)
}

/// The worker threads, each with what it owns.
#[derive(Debug)]
pub(crate) struct Workers {
    /// Writes the journal's database.
    store: RefCell<Worker<Store>>,
    /// Reads the journal's database.
    reader: RefCell<Worker<Reader>>,
    /// Starts processes: while one is started, its thread is suspended by the kernel.
    pub(crate) spawner: Worker<()>,
    /// Walks process trees.
    sampler: Worker<()>,
    /// Deletes directories, and reads and writes single files.
    files: Worker<()>,
    /// Reads output from disk. It shares no thread with searches, which may take long.
    output: Pool,
    pub(crate) searches: Pool,
}

/// How many threads read output, and how many search it.
const OUTPUT_THREADS: usize = 4;
const SEARCH_THREADS: usize = 4;

impl Workers {
    /// How many threads the runtime needs for its pools.
    pub(crate) const POOL_THREADS: usize = OUTPUT_THREADS + SEARCH_THREADS;

    pub(crate) fn start(store: Store, reader: Reader) -> std::io::Result<Self> {
        Ok(Self {
            store: RefCell::new(Worker::start("journal-write", store)?),
            reader: RefCell::new(Worker::start("journal-read", reader)?),
            spawner: Worker::start("spawn", ())?,
            sampler: Worker::start("sample", ())?,
            files: Worker::start("files", ())?,
            output: Pool::new(OUTPUT_THREADS),
            searches: Pool::new(SEARCH_THREADS),
        })
    }
}

/// The core and its connections. Everything here runs on one thread, and nothing waits while the core is borrowed.
pub(crate) struct Hub {
    core: RefCell<Core<LinuxHost>>,
    inbox: RefCell<VecDeque<Input>>,
    busy: Cell<bool>,
    /// Clients that may be sent more of what they follow.
    have_room: RefCell<BTreeSet<ClientId>>,
    room: Notify,
    backlog: Notify,
    pub(crate) clients: RefCell<HashMap<ClientId, Rc<Connection>>>,
    pub(crate) shims: RefCell<HashMap<ShimId, Rc<Connection>>>,
    pub(crate) recipe: ShimRecipe,
    pub(crate) workers: Workers,
    kills: Semaphore,
    /// The shims whose trees are being killed.
    pub(crate) killing: RefCell<Vec<i32>>,
    /// The pid of this daemon: a process below it and below no shim was left by one.
    pub(crate) pid: i32,
    pub(crate) scratch: Scratch,
    /// How much clients have sent of lines that have no end yet.
    pub(crate) unfinished_bytes: Cell<usize>,
    timer: LoopTimer,
    serving: Notify,
    exit: Notify,
    last_client: Cell<u64>,
}

impl Hub {
    pub(crate) fn new(
        core: Core<LinuxHost>,
        recipe: ShimRecipe,
        workers: Workers,
    ) -> std::io::Result<Rc<Self>> {
        Ok(Rc::new(Self {
            core: RefCell::new(core),
            inbox: RefCell::default(),
            busy: Cell::new(false),
            have_room: RefCell::default(),
            room: Notify::new(),
            backlog: Notify::new(),
            clients: RefCell::default(),
            shims: RefCell::default(),
            recipe,
            workers,
            kills: Semaphore::new(KILLS),
            killing: RefCell::default(),
            pid: belay_os::process::own_identity().pid,
            scratch: RefCell::new(vec![0; clients::READ_BYTES].into_boxed_slice()),
            unfinished_bytes: Cell::new(0),
            timer: LoopTimer::new()?,
            serving: Notify::new(),
            exit: Notify::new(),
            last_client: Cell::new(0),
        }))
    }

    pub(crate) fn next_client(&self) -> ClientId {
        self.last_client.set(self.last_client.get() + 1);
        ClientId(self.last_client.get())
    }

    /// The one place where the core takes a step. An input that an effect causes at once is handled after it, never inside.
    pub(crate) fn dispatch(self: &Rc<Self>, input: Input) {
        self.inbox.borrow_mut().push_back(input);
        if self.busy.replace(true) {
            return;
        }
        loop {
            let Some(input) = self.inbox.borrow_mut().pop_front() else { break };
            let kind = input.kind();
            tracing::trace!(input = kind, "step");
            let (cpu_us, wall_us) = (thread_cpu_us(), monotonic_us());
            let effects = self.core.borrow_mut().handle_event(now(), input);
            self.execute_all(effects);
            // No caller waits for the rest.
            let effects = self.core.borrow_mut().after_event();
            self.execute_all(effects);
            let (cpu_us, wall_us) = (thread_cpu_us() - cpu_us, monotonic_us() - wall_us);
            self.core.borrow_mut().step_took(cpu_us, wall_us);
            if cpu_us > bounds::SLOW_STEP_US {
                tracing::warn!(input = kind, cpu_us, wall_us, "slow step");
            }
        }
        self.busy.set(false);
        for client in self.core.borrow_mut().take_relieved() {
            if let Some(connection) = self.clients.borrow().get(&client) {
                connection.may_go_on();
            }
        }
        let core = self.core.borrow();
        if let Some(at_ms) = core.next_deadline() {
            self.timer.ring_by(at_ms);
        }
        if core.is_serving() {
            self.serving.notify_one();
        }
        if core.has_backlog() {
            self.backlog.notify_one();
        }
    }

    fn execute_all(self: &Rc<Self>, effects: Vec<Effect>) {
        for effect in effects {
            self.execute(effect);
        }
    }

    fn execute(self: &Rc<Self>, effect: Effect) {
        match effect {
            Effect::Send { client, lines, is_reply } => self.send(client, lines, is_reply),
            Effect::CloseClient { client } => {
                if let Some(connection) = self.clients.borrow().get(&client) {
                    connection.close();
                }
            }
            Effect::SpawnShim { shim, name } => shims::spawn(self, shim, name),
            Effect::ConnectShim { shim, name } => shims::connect(self, shim, &name),
            Effect::ToShim { shim, message } => {
                let mut bytes = Vec::new();
                if frame::put(&mut bytes, &message).is_ok()
                    && let Some(connection) = self.shims.borrow().get(&shim)
                {
                    connection.push(bytes, false);
                }
            }
            Effect::ClearShim { name, process, cgroup } => kill_orphans::clear(self, &name, process, cgroup),
            Effect::RemoveSocket { name } => {
                let socket = self.recipe.socket(&name);
                drop(self.workers.files.run(move |()| std::fs::remove_file(socket)));
            }
            Effect::CloseShim { shim } => {
                if let Some(connection) = self.shims.borrow_mut().remove(&shim) {
                    connection.close();
                }
            }
            Effect::ReapLost(lost) => kill_orphans::reap(self, *lost),
            Effect::Search { job, search } => search::run(self, job, *search),
            Effect::ParseLine { job, params } => shell_parse_client::run(self, job, *params),
            Effect::Sample { job, items } => {
                let result = self.workers.sampler.run(move |()| sampler::sample(items));
                self.when_done(result, move |sample| Input::Sampled { job, sample: Box::new(sample) });
            }
            Effect::ReadJournal { job, query } => {
                let result = self.workers.reader.borrow().run(move |reader| reader.run(&query));
                self.when_done(result, move |result| Input::JournalRead { job, result: Box::new(result) });
            }
            Effect::ReadOutput { job, read } => self.read_output(job, read),
            Effect::FlushJournal(flush) => {
                let result = self.workers.store.borrow().run(move |store| store.flush(*flush));
                self.when_done(result, |done| Input::JournalFlushed(Box::new(done)));
            }
            Effect::ExpireEvents { job, rule } => {
                let result = self.workers.store.borrow().run(move |store| store.expire_events(&rule));
                self.when_done(result, move |result| Input::EventsExpired { job, result });
            }
            Effect::RemoveDirs { job, dirs } => self.remove_dirs(job, dirs),
            Effect::RemoveEndFile { dir } => {
                // Left behind it would only be read once more, and say the same.
                drop(self.workers.files.run(move |()| EndFile::remove(&dir)));
            }
            Effect::WriteSettings { job, path, text } => {
                let result = self.workers.files.run(move |()| settings_file::write(&path, &text));
                self.when_done(result, move |result| Input::SettingsWritten { job, result });
            }
            Effect::CrashPoint(point) => self.core.borrow().crash_point(point),
            Effect::Exit => self.exit.notify_one(),
        }
    }

    fn send(self: &Rc<Self>, client: ClientId, lines: Vec<u8>, is_reply: bool) {
        let connection = self.clients.borrow().get(&client).cloned();
        let bytes = connection.map_or(0, |connection| connection.push(lines, is_reply));
        if bytes > 0 && self.core.borrow_mut().bytes_left(client, bytes) {
            self.have_room.borrow_mut().insert(client);
            self.room.notify_one();
        }
    }

    fn read_output(self: &Rc<Self>, job: JobId, read: Box<OutputRead>) {
        let hub = Rc::clone(self);
        tokio::task::spawn_local(async move {
            if let Some(result) = hub.workers.output.run(|| true, move || read.run()).await {
                hub.dispatch(Input::OutputRead { job, result: Box::new(result) });
            }
        });
    }

    /// What cannot be removed now is removed when the next daemon starts.
    fn remove_dirs(self: &Rc<Self>, job: JobId, dirs: Vec<std::path::PathBuf>) {
        let result = self.workers.files.run(move |()| {
            let remove = |dir: std::path::PathBuf| {
                let kept = LogReader::open(&dir).map_or(0, |log| log.kept_bytes());
                match std::fs::remove_dir_all(&dir) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        tracing::warn!(dir = %dir.display(), %error, "directory of removed task not deleted");
                    }
                    _ => {}
                }
                kept
            };
            dirs.into_iter().map(remove).sum::<u64>()
        });
        self.when_done(result, move |freed_bytes| Input::DirsRemoved { job, freed_bytes });
    }

    /// Hands the result of a job to the core.
    fn when_done<T: 'static>(
        self: &Rc<Self>,
        result: oneshot::Receiver<T>,
        input: impl FnOnce(T) -> Input + 'static,
    ) {
        let hub = Rc::clone(self);
        tokio::task::spawn_local(async move {
            if let Ok(result) = result.await {
                hub.dispatch(input(result));
            }
        });
    }

    /// Reads or changes single files beside the loop.
    pub(crate) fn with_files<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> oneshot::Receiver<T> {
        self.workers.files.run(move |()| job())
    }

    pub(crate) const fn kills(&self) -> &Semaphore {
        &self.kills
    }

    /// Whether the reply that a job is done for is still owed.
    pub(crate) fn is_owed(&self, job: JobId) -> bool {
        self.core.borrow().is_owed(job)
    }

    /// Whether a client has so many calls waiting for workers that it is not read from for now.
    pub(crate) fn is_saturated(&self, client: ClientId) -> bool {
        self.core.borrow().is_saturated(client)
    }

    /// The process ids of every shim that this daemon knows.
    pub(crate) fn known_shims(&self) -> Vec<i32> {
        self.core.borrow().shim_pids()
    }

    /// The names of every shim that this daemon knows.
    pub(crate) fn known_shim_names(&self) -> Vec<String> {
        self.core.borrow().shim_names()
    }

    /// Adopts, opens the socket, serves until the daemon leaves.
    pub(crate) async fn run(self: &Rc<Self>, mut listener: Listener, ready: impl FnOnce()) {
        let effects = self.core.borrow_mut().adopt(now());
        self.busy.set(true);
        self.execute_all(effects);
        self.busy.set(false);
        self.dispatch(Input::Tick);
        tokio::task::spawn_local(keep_time(Rc::clone(self)));
        tokio::task::spawn_local(serve_followers(Rc::clone(self)));
        tokio::task::spawn_local(continue_backlog(Rc::clone(self)));
        tokio::task::spawn_local(handle_signals(Rc::clone(self)));
        self.serving.notified().await;
        ready();
        // Not before: orphan shims are connected to until now, and dead ones forgotten.
        shims::sweep(self);
        tokio::select! {
            () = clients::accept(self, &mut listener) => {}
            () = self.exit.notified() => {}
        }
        drop(listener);
        self.farewell().await;
        // The store closes last: it then moves the database's log into the database.
        self.workers.reader.borrow_mut().finish();
        self.workers.store.borrow_mut().finish();
    }

    /// Waits until every client has read the replies it is owed, as long as it reads.
    async fn farewell(self: &Rc<Self>) {
        let clients: Vec<Rc<Connection>> = self.clients.borrow().values().cloned().collect();
        let mut reading = tokio::task::JoinSet::new();
        for client in clients {
            reading.spawn_local(async move { client.replies_read(FAREWELL_STALL).await });
        }
        let all = async { while reading.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(FAREWELL, all).await;
    }
}

/// Runs the core's timers, one at a time: between two of them sockets and signals are served.
async fn keep_time(hub: Rc<Hub>) {
    while hub.timer.rung().await.is_ok() {
        hub.dispatch(Input::Tick);
        tokio::task::yield_now().await;
    }
}

/// Lets followers have more, in turn with everything else: a client that reads as fast as it is written to would keep the core
/// from all others.
async fn serve_followers(hub: Rc<Hub>) {
    loop {
        hub.room.notified().await;
        for client in hub.have_room.take() {
            hub.dispatch(Input::ClientWritten { client, bytes: 0 });
            tokio::task::yield_now().await;
        }
    }
}

/// Lets the core go on with work that is too long for one step, in turn with everything else.
async fn continue_backlog(hub: Rc<Hub>) {
    loop {
        hub.backlog.notified().await;
        tokio::task::yield_now().await;
        hub.dispatch(Input::Continue);
    }
}

async fn handle_signals(hub: Rc<Hub>) {
    let kinds = (SignalKind::terminate(), SignalKind::interrupt(), SignalKind::child());
    let (Ok(mut terminate), Ok(mut interrupt), Ok(mut child)) =
        (signal(kinds.0), signal(kinds.1), signal(kinds.2))
    else {
        tracing::error!("signals cannot be received: belay down is the only way to end this daemon");
        return;
    };
    loop {
        tokio::select! {
            _ = terminate.recv() => hub.dispatch(Input::Terminate),
            _ = interrupt.recv() => hub.dispatch(Input::Terminate),
            _ = child.recv() => {
                // Shims that exited, and orphans of shims that were killed: reaped, so that nothing stays a zombie.
                let _ = Tree::new(None).reap(&mut Vec::new());
            }
        }
    }
}
