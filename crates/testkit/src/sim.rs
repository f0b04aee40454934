//! A seeded simulator: the real core of the shim and the real core of the daemon, on a real journal, with a virtual
//! clock and without a single process. One number decides everything that happens: which event comes next, what every
//! command does, and where the daemon is killed. It proves nothing about the operating system.
//!
//! A run ends in peace or with the first broken rule, the seed that leads to it, and the last steps before it.

mod agenda;
mod attempt;
mod check;
mod client;
mod daemon;
mod finale;
mod host;
mod link;
mod plan;
mod process;
mod rng;
mod shim;
mod talk;
mod trace;
mod truth;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use belay_daemon::input::{Input, Moment};
use belay_protocol::task::OutcomeKind;

use agenda::{Agenda, Job};
use check::Observer;
use client::{Client, Spec};
use daemon::Daemon;
use host::{Chaos, Machine};
use link::Link;
use plan::Plan;
pub use plan::Scenario;
use process::Pids;
use rng::Rng;
use shim::Shim;
use trace::Trace;
use truth::Truth;

/// What is broken, as a sentence.
type Checked = Result<(), String>;

/// How far the wall clock jumps at most, back or forward.
const JUMP_MS: i64 = 3_600_000;

/// No run takes more turns; one that does is going round in circles.
const MOST_TURNS: u64 = 200_000;

/// One run.
#[derive(Clone, Debug)]
pub struct Options {
    pub seed: u64,
    pub scenario: Scenario,
    /// The steps at which the daemon is killed, besides those that chance chooses.
    pub crash_at: Vec<u64>,
}

/// What happened in a run that broke no rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Places at which the daemon could have been killed.
    pub steps: u64,
    pub crashes: u64,
    /// How many tasks ended in which way.
    pub ends: BTreeMap<OutcomeKind, u64>,
    pub events: u64,
    /// The same for two runs exactly if they were the same, step by step.
    pub digest: u64,
}

/// A broken rule, and how to see it again.
#[derive(Clone, Debug)]
pub struct Failure {
    pub options: Options,
    pub message: String,
    pub trace: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Options { seed, scenario, crash_at } = &self.options;
        writeln!(f, "{}\n{}", self.trace, self.message)?;
        write!(f, "BELAY_SEED={seed} shows it again ({scenario:?}, killed at {crash_at:?})")
    }
}

/// Runs one simulation to its end.
pub fn run(options: &Options) -> Result<Report, Box<Failure>> {
    let failure =
        |message: String, trace: String| Box::new(Failure { options: options.clone(), message, trace });
    let mut sim = Sim::new(options).map_err(|error| failure(error, String::new()))?;
    let done = catch_unwind(AssertUnwindSafe(|| sim.live())).unwrap_or_else(|thrown| {
        let text = thrown.downcast_ref::<String>().cloned();
        let text = text.or_else(|| thrown.downcast_ref::<&str>().map(|&text| text.to_owned()));
        Err(format!("a core panicked: {}", text.unwrap_or_default()))
    });
    match done {
        Ok(()) => Ok(sim.report()),
        Err(message) => Err(failure(message, sim.trace.text())),
    }
}

/// The whole simulated world.
struct Sim {
    plan: Plan,
    rng: Rng,
    mono_ms: u64,
    wall_ms: i64,
    agenda: Agenda,
    trace: Trace,
    machine: Rc<Machine>,
    dir: tempfile::TempDir,
    observer: Option<Observer>,
    daemon: Option<Daemon>,
    generation: u64,
    crashes: u64,
    links: BTreeMap<u64, Link>,
    last_link: u64,
    pids: Pids,
    shims: Vec<Shim>,
    tasks: BTreeMap<String, Truth>,
    clients: Vec<Client>,
    specs: Vec<Spec>,
    last_client: u64,
    /// A client has told the daemon to stop everything, whatever that was when it arrived.
    down_asked: bool,
    /// No more faults: what is left is brought to its end.
    is_closing: bool,
    /// Everything has ended: nobody starts a daemon again.
    is_over: bool,
}

impl Sim {
    fn new(options: &Options) -> Result<Self, String> {
        let mut rng = Rng::new(options.seed);
        let plan = Plan::new(options.scenario, &mut rng);
        let dir = temp_dir().map_err(|error| error.to_string())?;
        let empty_dir = dir.path().join("empty");
        std::fs::create_dir(&empty_dir).map_err(|error| error.to_string())?;
        let chaos = Chaos::new(rng.fork(), plan.crash_once_in, options.crash_at.clone());
        let machine = Machine {
            chaos: RefCell::new(chaos),
            rng: RefCell::new(rng.fork()),
            shims: RefCell::default(),
            below: RefCell::default(),
            sockets: RefCell::default(),
            end_files: RefCell::default(),
            empty_dir,
            last_point: Cell::new("nowhere"),
        };
        let mut sim = Self {
            plan,
            rng,
            mono_ms: 1_000,
            wall_ms: 1_800_000_000_000,
            agenda: Agenda::default(),
            trace: Trace::default(),
            machine: Rc::new(machine),
            dir,
            observer: None,
            daemon: None,
            generation: 0,
            crashes: 0,
            links: BTreeMap::new(),
            last_link: 0,
            pids: Pids::default(),
            shims: Vec::new(),
            tasks: BTreeMap::new(),
            clients: Vec::new(),
            specs: Vec::new(),
            last_client: 0,
            down_asked: false,
            is_closing: false,
            is_over: false,
        };
        sim.set_the_stage();
        Ok(sim)
    }

    fn set_the_stage(&mut self) {
        self.agenda.add(self.mono_ms, &mut self.rng, Job::StartDaemon);
        for client in 0..usize::try_from(self.plan.clients).unwrap_or(1) {
            let client_rng = self.rng.fork();
            self.clients.push(Client::new(self.plan.wants, client_rng));
            let at = self.mono_ms + self.rng.below(50);
            self.agenda.add(at, &mut self.rng, Job::ClientActs { client });
        }
        if self.plan.scenario == Scenario::Small {
            self.write_small_script();
        }
        for _ in 0..self.plan.shim_kills {
            let at = self.mono_ms + self.rng.pick(&[20, 300, 2_000, 9_000]) + self.rng.below(500);
            self.agenda.add(at, &mut self.rng, Job::KillShim);
        }
        for _ in 0..self.plan.clock_jumps {
            let at = self.mono_ms + self.rng.below(8_000);
            self.agenda.add(at, &mut self.rng, Job::SetWallClock);
        }
    }

    fn live(&mut self) -> Checked {
        for _ in 0..MOST_TURNS {
            if !self.turn()? {
                return self.check_the_end();
            }
            self.maybe_close();
        }
        Err(format!("{MOST_TURNS} turns have passed and it goes on: {:?}", self.clients))
    }

    /// One thing happens, the next that is due; time jumps to it. False if nothing will ever happen again.
    fn turn(&mut self) -> Result<bool, String> {
        let daemon_at = self.daemon.as_ref().and_then(|daemon| daemon.core.next_deadline());
        let shims = self.shims.iter().enumerate();
        let shims: Vec<(usize, u64)> =
            shims.filter_map(|(n, shim)| Some((n, shim.next_deadline()?))).collect();
        let agenda_at = self.agenda.next_at();
        let others_at = shims.iter().map(|(_, at)| *at).chain(agenda_at).min();
        let Some(next) = others_at.into_iter().chain(daemon_at).min() else { return Ok(false) };
        if self.is_over && others_at.is_none() {
            return Ok(false);
        }
        if next > self.mono_ms {
            self.pass_time(next)?;
        }
        let now = self.mono_ms;
        let mut due: Vec<usize> = shims.iter().filter(|(_, at)| *at <= now).map(|(n, _)| *n).collect();
        due.extend(agenda_at.filter(|at| *at <= now).map(|_| usize::MAX));
        let daemon_due = daemon_at.is_some_and(|at| at <= now);
        let choice = self.rng.index(due.len() + usize::from(daemon_due));
        match due.get(choice) {
            None => self.tell_daemon(Input::Tick)?,
            Some(&usize::MAX) => self.do_next_job()?,
            Some(&shim) => self.shim_turn(shim)?,
        }
        Ok(true)
    }

    fn pass_time(&mut self, to_ms: u64) -> Checked {
        self.wall_ms += i64::try_from(to_ms - self.mono_ms).unwrap_or(0);
        self.mono_ms = to_ms;
        self.check_clocks()
    }

    fn do_next_job(&mut self) -> Checked {
        let Some(job) = self.agenda.take_due(self.mono_ms) else { return Ok(()) };
        match job {
            Job::StartDaemon => self.start_daemon(),
            Job::EndDaemon { daemon } => self.end_daemon(daemon),
            Job::Tell { daemon, input } => self.told(daemon, *input),
            Job::Work { daemon, job } => self.work(daemon, *job),
            Job::SpawnShim { daemon, shim, name } => self.spawn_shim(daemon, shim, &name),
            Job::Connect { daemon, shim, name } => self.connect(daemon, shim, &name),
            Job::ReapLost { daemon, lost } => {
                self.reap_lost(daemon, &lost);
                Ok(())
            }
            Job::Down { link } => self.arrives_down(link),
            Job::Up { link } => self.arrives_up(link),
            Job::Tree { task, happening } => self.tree_happens(&task, happening),
            Job::Wake { shim } => self.shim_turn(shim),
            Job::ShimEnds { shim } => {
                self.shim_ends(shim);
                Ok(())
            }
            Job::ClientActs { client } => self.client_acts(client),
            Job::ClientLine { client, daemon } => self.client_line(client, daemon),
            Job::KillShim => {
                self.kill_some_shim();
                Ok(())
            }
            Job::SetWallClock => {
                let far = i64::try_from(self.rng.below(2 * JUMP_MS.unsigned_abs())).unwrap_or(0);
                self.wall_ms += far - JUMP_MS;
                self.note("machine", "the wall clock jumps");
                Ok(())
            }
        }
    }

    fn kill_some_shim(&mut self) {
        if self.is_closing {
            return;
        }
        let holds = |shim: &Shim| !shim.is_gone && shim.core.task().is_some();
        let busy: Vec<usize> = (0..self.shims.len()).filter(|n| holds(&self.shims[*n])).collect();
        let any: Vec<usize> = (0..self.shims.len()).filter(|n| !self.shims[*n].is_gone).collect();
        let chosen = if busy.is_empty() || self.rng.percent(10) { any } else { busy };
        if !chosen.is_empty() {
            let shim = self.rng.pick(&chosen);
            self.kill_shim(shim);
        }
    }

    fn note(&mut self, who: impl fmt::Display, what: impl fmt::Display) {
        self.trace.add(self.mono_ms, format!("{who:<8} {what}"));
    }

    const fn daemon_moment(&self) -> Moment {
        Moment { wall_ms: self.wall_ms, mono_ms: self.mono_ms }
    }

    const fn shim_moment(&self) -> belay_shim::core::Moment {
        belay_shim::core::Moment { wall_ms: self.wall_ms, mono_ms: self.mono_ms }
    }

    /// Lets the daemon's world see who is alive in a task's tree.
    fn show_tree(&self, task: &str) {
        let holder = self.shims.iter().find(|shim| !shim.is_gone && shim.holds.as_deref() == Some(task));
        if let (Some(shim), Some(truth)) = (holder, self.tasks.get(task)) {
            let pid = shim.process.pid;
            self.machine.below.borrow_mut().insert(pid, truth.infos(pid));
        }
    }

    fn report(&self) -> Report {
        Report {
            steps: self.machine.chaos.borrow().steps,
            crashes: self.crashes,
            ends: self.ends(),
            events: self.observer.as_ref().map_or(0, Observer::seen),
            digest: self.trace.digest(),
        }
    }
}

/// In memory where that is to be had: nothing here has to survive a power cut, and flushing to a disk takes its time.
fn temp_dir() -> std::io::Result<tempfile::TempDir> {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())
}
