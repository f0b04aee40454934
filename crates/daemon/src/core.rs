//! The daemon's mind: one event in, a list of actions out. It owns every table of the daemon and does no I/O but the
//! journal's. `handlers/` answers clients, `life` follows the shims, `pool` and `adopt` find tasks a holder.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use belay_journal::{Batch, Journal};
use belay_model::{Lane, Policy, State, StopOrder, step};
use belay_protocol::daemon::NoticeInfo;
use belay_protocol::life::Order;
use belay_protocol::shim::{ProcessId, Start};
use belay_record::MemoryLog;

use crate::answer::{Client, Pending};
use crate::config::Config;
use crate::doc::Entry;
use crate::event::{Action, ClientId, Event, Moment, ShimId};
use crate::follow::Follow;
use crate::foreground::KeptMemory;
use crate::hooks::Hook;
use crate::sessions::Session;
use crate::world::{CrashPoint, World};

/// The daemon's whole state. What is durable is in the journal; the rest can be lost at any instant.
pub struct Core<W> {
    pub(crate) world: W,
    pub(crate) config: Config,
    pub(crate) journal: Journal,
    /// For keyed hashes; made once per journal.
    pub(crate) key: [u8; 32],
    pub(crate) boot: String,
    pub(crate) now: Moment,
    pub(crate) started: Moment,
    pub(crate) phase: Phase,
    /// Tasks that have not ended.
    pub(crate) tasks: BTreeMap<String, Task>,
    pub(crate) shims: BTreeMap<ShimId, Shim>,
    /// Shims without a task; the one used last is taken first, because it is warm.
    pub(crate) ready: Vec<ShimId>,
    /// Tasks that wait for a shim, in order.
    pub(crate) waiting: VecDeque<String>,
    /// Tasks whose life went on in the event at hand, and that did not end in it.
    pub(crate) moved: Vec<String>,
    /// Tasks whose documents have to be in the next batch.
    pub(crate) changed: Vec<String>,
    /// Tasks that were detached in the event at hand.
    pub(crate) released: Vec<String>,
    pub(crate) kept_memory: KeptMemory,
    /// The standing session, open ones, and the last that have ended.
    pub(crate) sessions: BTreeMap<String, Session>,
    /// Lanes that are held, awaited or fenced.
    pub(crate) lanes: BTreeMap<String, Lane>,
    /// When tasks with budgets are looked at together with what is below them; only while there is something below one.
    pub(crate) counting: Option<TimerKey>,
    /// Ends that have just been told to their sessions, and when their notices go: not before the answers have left.
    pub(crate) told: (Vec<(String, u64)>, Option<TimerKey>),
    /// Tasks that are being stopped with everything below them: nothing new begins there.
    pub(crate) closing: Vec<String>,
    /// Shims in a row that could not be started or ended before they were ready.
    pub(crate) shim_failures: u32,
    pub(crate) adoption: Option<TimerKey>,
    /// Tasks of dead shims whose trees are being ended.
    pub(crate) burying: usize,
    pub(crate) clients: BTreeMap<ClientId, Client>,
    /// Clients that say no more, and are there until they have every answer.
    pub(crate) said_all: Vec<ClientId>,
    pub(crate) pending: BTreeMap<u64, Pending>,
    pub(crate) follows: BTreeMap<u64, Follow>,
    pub(crate) timers: BTreeMap<(u64, u64), Timer>,
    idle: Option<TimerKey>,
    pub(crate) retry: Option<TimerKey>,
    pub(crate) settling: Option<TimerKey>,
    /// When the first note was made that is not in the database yet, and the last.
    pub(crate) noted_ms: (u64, u64),
    pub(crate) batch: Batch,
    pub(crate) actions: Vec<Action>,
    /// What may only be done when the batch is durable.
    pub(crate) durable: Vec<Action>,
    /// Of that, what shims are told that may forget an end.
    pub(crate) acks: Vec<Action>,
    /// Done last of all: nobody is kept waiting by a shim that makes itself new.
    pub(crate) last: Vec<Action>,
    /// The same for shims whose task was stopped, in two steps: when the batch is durable, and a moment later. Such a shim has
    /// a cgroup to make anew, which would take the processor from whoever waits for the receipt.
    pub(crate) slow_acks: (Vec<Action>, Vec<Action>),
    pub(crate) notices: VecDeque<NoticeInfo>,
    /// What is to be run because a task has ended, and what of it runs; by the key of its document.
    pub(crate) hooks: BTreeMap<String, Hook>,
    pub(crate) ended_since_gc: u32,
    counter: u64,
}

impl<W> std::fmt::Debug for Core<W> {
    /// Counts, not contents: a start that waits holds an environment.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core")
            .field("phase", &self.phase)
            .field("tasks", &self.tasks.len())
            .finish_non_exhaustive()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Shims of an earlier daemon are being asked how their tasks are; clients wait at the door.
    Adopting,
    Serving,
    /// No new task; gone when the last promised answer is given.
    Leaving,
}

/// A task that has not ended.
pub(crate) struct Task {
    pub(crate) entry: Entry,
    pub(crate) state: State,
    pub(crate) policy: Policy,
    pub(crate) shim: Option<ShimId>,
    /// Until it is handed to a shim. It holds the environment, so it lives in memory only.
    pub(crate) start: Option<Box<Start>>,
    /// The number of the last life event that `state` reflects.
    pub(crate) applied: u64,
    /// The hardest stop that was asked for, and when the first was.
    pub(crate) stop: Option<(StopOrder, Moment)>,
    /// A daemon died before any shim had its start: until when that may be said again.
    pub(crate) unsaid: Option<TimerKey>,
    /// On which connection somebody waits for it.
    pub(crate) caller: Option<ClientId>,
    /// Until when somebody may come back to it.
    pub(crate) caller_due: Option<TimerKey>,
    /// Its output, while it lies in the memory of its shim.
    pub(crate) memory: Option<Arc<MemoryLog>>,
    /// Nothing of its output is on disk: its shim would have said so.
    pub(crate) silent: bool,
    pub(crate) pending: Vec<u64>,
    pub(crate) follows: Vec<u64>,
}

impl Task {
    /// One of which nothing has been heard yet.
    pub(crate) const fn new(entry: Entry, state: State, policy: Policy) -> Self {
        Self {
            entry,
            state,
            policy,
            shim: None,
            start: None,
            applied: 0,
            stop: None,
            unsaid: None,
            caller: None,
            caller_due: None,
            memory: None,
            silent: false,
            pending: Vec::new(),
            follows: Vec::new(),
        }
    }

    /// Its life is going to be told from the first event on, to one that waits for its turn or is being started.
    pub(crate) fn begin_again(&mut self, queued: bool) {
        self.applied = 0;
        self.state = State::new(self.entry.doc.detached);
        if !queued {
            self.state = step(&self.policy, self.state.clone(), belay_model::Event::Admitted).state;
        }
    }
}

/// A shim that this daemon is connected to, or wants to be.
#[derive(Debug)]
pub(crate) struct Shim {
    pub(crate) name: String,
    pub(crate) process: Option<ProcessId>,
    pub(crate) cgroup: Option<belay_protocol::Bytes>,
    pub(crate) task: Option<String>,
    pub(crate) stage: ShimStage,
    pub(crate) watched: bool,
    /// What it was told last of whether its task waits for others.
    pub(crate) excused: Option<bool>,
    /// How often it could not be reached although it is alive.
    pub(crate) tries: u32,
    /// Found by its socket alone: the journal does not know what it holds.
    pub(crate) stray: bool,
    /// Started by an earlier daemon: what it leaves does not come to this one.
    pub(crate) adopted: bool,
    /// A stop that came while it could not be reached.
    pub(crate) stop: Option<Order>,
    /// How often it has been heard, and how often it had been when it was last asked for something.
    pub(crate) heard: u64,
    pub(crate) heard_when_asked: u64,
    /// While a stop is under way: when it is made sure that the shim is at it.
    pub(crate) doubt: Option<TimerKey>,
}

impl Shim {
    /// One that is on its way and has not spoken yet.
    pub(crate) const fn coming(name: String) -> Self {
        Self {
            name,
            process: None,
            cgroup: None,
            task: None,
            stage: ShimStage::Coming,
            watched: false,
            excused: None,
            tries: 0,
            stray: false,
            adopted: false,
            stop: None,
            heard: 0,
            heard_when_asked: 0,
            doubt: None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShimStage {
    /// Being started, or being connected to; it has not spoken yet.
    Coming,
    Ready,
    Holding,
}

pub(crate) type TimerKey = (u64, u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    /// A promised answer is due.
    Answer(u64),
    /// Shims that did not answer in time are gone on without.
    Adopted,
    /// A shim that is alive and could not be reached is tried again.
    Reach(ShimId),
    /// Whoever waited for the task with this number has not come back.
    Caller(u64),
    /// Notices of ends that have been told may go.
    Told,
    /// Tasks with budgets are looked at together with what is below them.
    Count,
    /// The start of the task with this number has not been said again.
    Start(u64),
    /// The lease or the grace of the session with this number is over.
    Lease(u64),
    /// A task that is waited for may have been silent for long enough.
    Silence(u64),
    /// A shim that was told to stop its task may not be at it.
    Doubt(ShimId),
    Idle,
    /// Shims that were left alone for a moment may forget their ends.
    Acks,
    /// The journal could not be written and is tried again.
    Commit,
    /// What the journal has noted is brought into its database.
    Settle,
    /// The next bite of what the rules no longer keep.
    Collect,
}

impl<W: World> Core<W> {
    pub fn new(
        world: W,
        config: Config,
        mut journal: Journal,
        now: Moment,
    ) -> Result<Self, belay_journal::Error> {
        let key = journal.secret()?;
        let boot = world.boot();
        let kept_memory = KeptMemory::of(config.kept_outputs);
        Ok(Self {
            world,
            config,
            journal,
            key,
            boot,
            now,
            started: now,
            phase: Phase::Adopting,
            tasks: BTreeMap::new(),
            shims: BTreeMap::new(),
            ready: Vec::new(),
            waiting: VecDeque::new(),
            moved: Vec::new(),
            changed: Vec::new(),
            released: Vec::new(),
            kept_memory,
            sessions: BTreeMap::new(),
            lanes: BTreeMap::new(),
            counting: None,
            told: (Vec::new(), None),
            closing: Vec::new(),
            shim_failures: 0,
            adoption: None,
            burying: 0,
            clients: BTreeMap::new(),
            said_all: Vec::new(),
            pending: BTreeMap::new(),
            follows: BTreeMap::new(),
            timers: BTreeMap::new(),
            idle: None,
            retry: None,
            settling: None,
            noted_ms: (0, 0),
            batch: Batch::default(),
            actions: Vec::new(),
            durable: Vec::new(),
            acks: Vec::new(),
            last: Vec::new(),
            slow_acks: (Vec::new(), Vec::new()),
            notices: VecDeque::new(),
            hooks: BTreeMap::new(),
            ended_since_gc: 0,
            counter: 0,
        })
    }

    /// One thing happened: what has to be done about it, in order. What is said is durable by then.
    pub fn handle(&mut self, now: Moment, event: Event) -> Vec<Action> {
        let mut actions = self.heed(now, event);
        actions.append(&mut self.tidy());
        actions
    }

    /// The first part of it, up to what is durable and somebody may wait for. [`Core::tidy`] has to follow.
    pub(crate) fn heed(&mut self, now: Moment, event: Event) -> Vec<Action> {
        self.now = now;
        self.dispatch(event);
        let news = !(self.batch.is_empty() && self.changed.is_empty());
        if news && self.retry.is_none() {
            self.commit_or_retry();
        }
        std::mem::take(&mut self.actions)
    }

    fn dispatch(&mut self, event: Event) {
        match event {
            Event::ClientCame { client, uid, ancestors, of_a_task } => {
                self.client_came(client, uid, &ancestors, of_a_task);
            }
            Event::ClientSaid { client, line } => self.client_said(client, &line),
            Event::ClientWrote { client, bytes } => self.client_wrote(client, bytes),
            Event::ClientSaidAll { client } => self.said_all.push(client),
            Event::ClientGone { client } => self.client_gone(client),
            Event::ShimSpawned { shim, process } => self.shim_spawned(shim, process),
            Event::ShimNotSpawned { shim, error } => self.shim_not_spawned(shim, &error),
            Event::ShimConnected { shim } => self.shim_connected(shim),
            Event::ShimUnreachable { shim, error, left } => self.shim_unreachable(shim, &error, left),
            Event::ShimSaid { shim, messages } => {
                if let Some(shim) = self.shims.get_mut(&shim) {
                    shim.heard += 1;
                }
                for message in messages {
                    self.shim_said(shim, message);
                }
                // After all of it: who waits for the end of a short task need not hear first that it began.
                for task in std::mem::take(&mut self.moved) {
                    self.answer_started(&task);
                    self.may_have_stalled(&task);
                }
            }
            Event::ShimGone { shim } => self.shim_gone(shim),
            Event::LostKilled { lost, found, survivors } => self.lost_killed(&lost, found, survivors),
            Event::Searched { search, result } => self.searched(search, *result),
            Event::LineRead { reading, result } => self.line_read(reading, result),
            Event::Tick => self.tick(),
            Event::Terminate => self.leave(),
        }
    }

    /// After every event: what nobody waits for, and a look whether there is nothing left to do.
    pub(crate) fn tidy(&mut self) -> Vec<Action> {
        self.start_hooks();
        self.release();
        self.watch_notes();
        self.collect_now_and_then();
        self.refill_pool();
        self.watch_idleness();
        self.actions.append(&mut self.last);
        self.let_go();
        if self.phase == Phase::Leaving && self.pending.is_empty() && self.batch.is_empty() {
            self.drop_told();
            self.commit_or_retry();
            self.settle_journal();
            self.actions.append(&mut self.slow_acks.1);
            self.actions.push(Action::Exit);
        }
        std::mem::take(&mut self.actions)
    }

    /// Whether clients may come in.
    pub fn is_serving(&self) -> bool {
        self.phase != Phase::Adopting
    }

    /// Whether the journal's database has everything, and every shim may forget what is in there.
    pub fn is_settled(&self) -> bool {
        self.journal.is_settled() && self.slow_acks.1.is_empty()
    }

    pub(crate) fn reach(&self, point: CrashPoint) {
        self.world.reach(point);
    }

    // --- timers ---

    pub(crate) fn arm(&mut self, in_ms: u64, timer: Timer) -> TimerKey {
        let key = (self.now.mono_ms.saturating_add(in_ms), self.next_number());
        self.timers.insert(key, timer);
        key
    }

    pub(crate) fn disarm(&mut self, key: TimerKey) {
        self.timers.remove(&key);
    }

    /// When the next timer is due, in monotonic milliseconds. None: sleep until somebody says something.
    pub fn next_deadline(&self) -> Option<u64> {
        self.timers.keys().next().map(|(at, _)| *at)
    }

    fn tick(&mut self) {
        while let Some(entry) = self.timers.first_entry().filter(|entry| entry.key().0 <= self.now.mono_ms) {
            match entry.remove() {
                Timer::Answer(pending) => self.answer_is_due(pending),
                Timer::Adopted => self.open_doors(),
                Timer::Reach(shim) => self.reach_again(shim),
                Timer::Caller(number) => self.caller_is_due(number),
                Timer::Told => self.drop_told(),
                Timer::Count => self.count_subtrees(),
                Timer::Start(number) => self.start_is_due(number),
                Timer::Lease(number) => self.lease_is_due(number),
                Timer::Silence(pending) => self.silence_is_due(pending),
                Timer::Doubt(shim) => self.make_sure_of(shim),
                Timer::Acks => self.actions.append(&mut self.slow_acks.1),
                Timer::Idle => self.leave(),
                Timer::Commit => {
                    self.retry = None;
                    self.commit_or_retry();
                }
                Timer::Settle => self.settle_soon(),
                Timer::Collect => self.collect_soon(),
            }
        }
    }

    pub(crate) fn next_number(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    // --- the end ---

    /// Leaves when what was promised is answered. Tasks run on.
    pub(crate) fn leave(&mut self) {
        self.leave_after(&[]);
    }

    /// Leaves when these have been stopped, too. Whoever waits for one of them is told of its end, and need not ask a
    /// daemon for it that nobody wants any more.
    pub(crate) fn leave_after(&mut self, stopped: &[String]) {
        if self.phase == Phase::Leaving {
            return;
        }
        self.phase = Phase::Leaving;
        self.emit(&belay_protocol::event::Event::DaemonStopping);
        self.refuse_promises(stopped);
    }

    fn watch_idleness(&mut self) {
        let is_held = || self.sessions.values().any(|session| session.due.is_some());
        let is_empty = self.clients.is_empty() && self.tasks.is_empty() && !is_held();
        match (is_empty && self.phase == Phase::Serving, self.idle, self.config.idle_exit) {
            (true, None, Some(after)) => {
                let ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
                self.idle = Some(self.arm(ms, Timer::Idle));
            }
            (false, Some(key), _) => {
                self.disarm(key);
                self.idle = None;
            }
            _ => {}
        }
    }
}
