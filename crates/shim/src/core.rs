//! The shim's mind: what to do about what happened, without doing it. The loop in `run` carries the actions out and
//! brings back the results; the simulator does the same with a virtual clock and no processes.

mod deadlines;
mod receipt;
#[cfg(test)]
mod tests;
mod watch;

use std::path::PathBuf;

use belay_model::{
    Budget, Clock, Delivered, Effect, Event, Exit, Level, Outcome, Policy, SpawnFailure, State, Step,
    StopOrder, Survivor, step,
};
use belay_protocol::life::{CaptureFault, ClockName, OutputInfo};
use belay_protocol::shim::{
    EndRecord, FromShim, Hello, LifeEvent, LifeItem, ProcessId, SHIM_PROTOCOL, Spec, Start, ToShim,
};
use belay_protocol::task::TerminalSize;
use belay_record::EndFile;
use belay_record::convert::{Wire as _, event_to_wire, policy_from_wire};

use self::deadlines::Deadlines;
use self::receipt::StopNotes;
pub use self::watch::Look;
use self::watch::Watch;

/// The two clocks of a moment: one for telling, one for measuring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    pub wall_ms: i64,
    pub mono_ms: u64,
}

/// What can reach a shim.
#[derive(Debug)]
pub enum Input {
    Daemon(ToShim),
    DaemonGone,
    Spawned(Result<ProcessId, SpawnFailure>),
    LeaderExited(Exit),
    /// No child is left, nobody is in the cgroup, and every byte has been read.
    TreeEmpty,
    Output,
    /// It has used more than it may.
    OverBudget {
        budget: Budget,
        limit: u64,
        used: u64,
    },
    Signalled(Strike),
    /// Asked for with [`Action::Look`].
    Looked(Look),
    Survivors(Vec<Survivor>),
    /// The sums that belong into the end record, asked for with [`Action::Finish`].
    Finished {
        output: OutputInfo,
        capture: Option<CaptureFault>,
    },
    EndFileWritten(bool),
    /// A clock may be due.
    Tick,
}

/// What one signal of a stop reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strike {
    pub level: Level,
    pub processes: u64,
    pub refused: u64,
    pub leader: bool,
    pub others: bool,
}

/// What a shim has to do, in order.
#[derive(Debug)]
pub enum Action {
    Send(FromShim),
    Spawn(Box<Start>),
    Signal(Level),
    /// See how much the task has written and worked so far, and who is there.
    Look,
    NameSurvivors,
    Finish,
    /// Put the end into this directory.
    WriteEndFile(PathBuf, EndFile),
    /// Make everything new for the next task, then say `Ready`.
    Recycle,
    Exit,
}

/// Who this shim is.
#[derive(Clone, Debug)]
pub struct Identity {
    pub name: String,
    pub version: String,
    pub process: ProcessId,
    pub cgroup: Option<belay_protocol::Bytes>,
}

#[derive(Debug)]
pub struct Core {
    identity: Identity,
    connected: bool,
    task: Option<Task>,
    /// Where the output lies while it is in memory.
    memory: Option<[i32; 2]>,
}

/// The task that is held, from its start until its end is safe with the daemon or on disk.
#[derive(Debug)]
struct Task {
    id: String,
    dir: PathBuf,
    /// Until it is spawned for the last time. It holds the environment: a task that waits for its turn, or for its next
    /// attempt, waits here, and not on a disk.
    start: Option<Box<Start>>,
    spec: Spec,
    policy: Policy,
    state: State,
    life: Vec<LifeItem>,
    deadlines: Deadlines,
    stop: Option<StopNotes>,
    watch: Watch,
    /// The event that ended the task, waiting for the sums of the output.
    last: Option<(LifeEvent, Moment)>,
}

impl Core {
    pub const fn new(identity: Identity) -> Self {
        Self { identity, connected: true, task: None, memory: None }
    }

    /// The id of the task that is held.
    pub fn task(&self) -> Option<&str> {
        self.task.as_ref().map(|task| task.id.as_str())
    }

    pub fn state(&self) -> Option<&State> {
        self.task.as_ref().map(|task| &task.state)
    }

    /// When the next clock rings, in monotonic milliseconds.
    pub fn next_deadline(&self) -> Option<u64> {
        self.task.as_ref().and_then(|task| task.deadlines.next())
    }

    /// What is left on each running clock.
    pub fn remaining(&self, now: Moment) -> Vec<(ClockName, u64)> {
        let Some(task) = &self.task else { return Vec::new() };
        let left = |clock: Clock| {
            let at = task.deadlines.get(clock)?;
            Some((clock.to_wire(), at.saturating_sub(now.mono_ms)))
        };
        Clock::ALL.into_iter().filter_map(left).collect()
    }

    /// Whether somebody waits for the task: only then its output may stay in memory.
    pub fn in_foreground(&self) -> bool {
        self.state().is_some_and(|state| !state.detached())
    }

    pub const fn memory(&self) -> Option<[i32; 2]> {
        self.memory
    }

    /// Where the output lies now.
    pub const fn set_memory(&mut self, numbers: Option<[i32; 2]>) {
        self.memory = numbers;
    }

    /// The size of the task's terminal, if it has one.
    pub fn pty(&self) -> Option<TerminalSize> {
        self.task.as_ref().and_then(|task| task.spec.pty)
    }

    /// The terminal has another size now, or will have it from its start on: every later daemon is told this one.
    pub fn set_pty(&mut self, size: TerminalSize) {
        if let Some(task) = &mut self.task {
            task.spec.pty = Some(size);
            if let Some(start) = &mut task.start {
                start.pty = Some(size);
            }
        }
    }

    /// Whether the task that is held waits for its turn.
    pub fn is_queued(&self) -> bool {
        matches!(self.state(), Some(State::Queued { .. }))
    }

    /// Whether the task is between two attempts.
    pub fn is_resting(&self) -> bool {
        matches!(self.state(), Some(State::Resting(_)))
    }

    /// Whether there is a tree of the task's that has to become empty.
    pub fn has_tree(&self) -> bool {
        self.state().is_some_and(|state| state.leader().is_some())
    }

    /// Whether output has to be reported, because a silence clock runs or the task is said not to get on.
    pub fn minds_output(&self) -> bool {
        self.task.as_ref().is_some_and(|task| {
            (task.policy.silence_ms.is_some() && !task.state.is_ended()) || task.state.is_stalled()
        })
    }

    /// One thing happened: what has to be done about it.
    pub fn handle(&mut self, now: Moment, input: Input) -> Vec<Action> {
        let mut actions = Vec::new();
        match input {
            Input::Daemon(message) => self.daemon_says(now, message, &mut actions),
            Input::DaemonGone => self.daemon_gone(&mut actions),
            Input::Spawned(Ok(process)) => {
                let wire = LifeEvent::Spawned { process, mono_ms: now.mono_ms };
                self.apply(now, Event::Spawned, Some(wire), &mut actions);
                self.watch_anew(&mut actions);
            }
            Input::Spawned(Err(failure)) => self.event(now, Event::SpawnFailed(failure), &mut actions),
            Input::LeaderExited(exit) => self.event(now, Event::LeaderExited(exit), &mut actions),
            Input::TreeEmpty => self.event(now, Event::TreeEmpty, &mut actions),
            Input::Output => {
                self.event(now, Event::Output, &mut actions);
                self.gets_on_again(now, &mut actions);
            }
            Input::Looked(look) => self.looked(now, look, &mut actions),
            Input::OverBudget { budget, limit, used } => {
                self.event(now, Event::BudgetRanOut { budget, limit, used }, &mut actions);
            }
            Input::Signalled(strike) => self.signalled(now, strike, &mut actions),
            Input::Survivors(survivors) => self.event(now, Event::Survivors(survivors), &mut actions),
            Input::Finished { output, capture } => self.finished(output, capture, &mut actions),
            Input::EndFileWritten(true) => actions.push(Action::Exit),
            // It stays, keeps the end in memory, and waits to be adopted.
            Input::EndFileWritten(false) => {}
            Input::Tick => self.tick(now, &mut actions),
        }
        actions
    }

    fn daemon_says(&mut self, now: Moment, message: ToShim, actions: &mut Vec<Action>) {
        match message {
            ToShim::Hello { seen, .. } => self.greet(seen, actions),
            ToShim::Start(start) => self.start(now, start, actions),
            ToShim::Admit { task } => {
                // Any other was meant for a task that is no longer here.
                if self.task() == Some(task.as_str()) {
                    self.event(now, Event::Admitted, actions);
                }
            }
            ToShim::Stop { order } => self.event(now, Event::Stop(StopOrder::from_wire(order)), actions),
            ToShim::Detach { by } => self.apply(now, Event::Detach, Some(LifeEvent::Detach { by }), actions),
            ToShim::Ack { task } => {
                let ours = self.task.as_ref().is_some_and(|held| held.id == task && held.state.is_ended());
                if ours {
                    self.task = None;
                    actions.push(Action::Recycle);
                }
            }
            ToShim::Excuse { on } => self.excuse(now, on, actions),
            ToShim::SetStall { stall } => self.set_stall(now, stall, actions),
            ToShim::OverBudget { budget, limit, used } => {
                let budget = Budget::from_wire(budget);
                self.event(now, Event::BudgetRanOut { budget, limit, used }, actions);
            }
            // The loop answers these: they are about pipes and terminals, not about the life.
            ToShim::Write { .. }
            | ToShim::Signal { .. }
            | ToShim::Resize { .. }
            | ToShim::Watch { .. }
            | ToShim::Query { .. } => {}
        }
    }

    fn greet(&mut self, seen: u64, actions: &mut Vec<Action>) {
        self.connected = true;
        let Identity { name, version, process, cgroup } = self.identity.clone();
        let task = self.task.as_ref().map(|task| task.id.clone());
        let spec = self.task.as_ref().map(|task| Box::new(task.spec.clone()));
        let memory = self.memory.filter(|_| task.is_some());
        let (protocol, shim, queued) = (SHIM_PROTOCOL, name, self.is_queued());
        let hello = Hello { protocol, version, shim, process, cgroup, task, queued, spec, memory };
        actions.push(Action::Send(FromShim::Hello(hello)));
        match &self.task {
            None => actions.push(Action::Send(FromShim::Ready)),
            Some(task) => {
                let unseen = task.life.iter().filter(|item| item.number > seen);
                actions.extend(unseen.map(|item| Action::Send(FromShim::Life(item.clone()))));
            }
        }
    }

    fn start(&mut self, now: Moment, start: Box<Start>, actions: &mut Vec<Action>) {
        if self.task.is_some() {
            // Two tasks in one shim would be a fault of the daemon's; the one that is held must not suffer.
            return;
        }
        let held = start.held;
        self.task = Some(Task {
            id: start.task.clone(),
            dir: PathBuf::from(start.dir.as_os_str()),
            spec: Spec {
                argv: start.argv.clone(),
                is_shell: start.is_shell,
                cwd: start.cwd.clone(),
                detached: start.detached,
                clocks: start.clocks,
                started_ms: now.wall_ms,
                budgets: start.budgets,
                pty: start.pty,
            },
            policy: policy_from_wire(&start.clocks, start.detached),
            state: State::new(start.detached),
            start: Some(start),
            life: Vec::new(),
            deadlines: Deadlines::default(),
            stop: None,
            watch: Watch::default(),
            last: None,
        });
        if !held {
            self.event(now, Event::Admitted, actions);
        }
    }

    fn daemon_gone(&mut self, actions: &mut Vec<Action>) {
        self.connected = false;
        match &self.task {
            None => actions.push(Action::Exit),
            Some(task) if task.state.is_ended() && task.last.is_none() => actions.push(write_end(task)),
            Some(_) => {}
        }
    }

    fn tick(&mut self, now: Moment, actions: &mut Vec<Action>) {
        while let Some(clock) = self.task.as_mut().and_then(|task| task.deadlines.take_due(now.mono_ms)) {
            self.event(now, Event::ClockRanOut(clock), actions);
        }
    }

    fn signalled(&mut self, now: Moment, strike: Strike, actions: &mut Vec<Action>) {
        let Some(task) = &mut self.task else { return };
        if let Some(stop) = &mut task.stop {
            stop.add(strike, now);
        }
        let gentle = strike.level < Level::Kill && strike.processes > 0;
        let delivered = Delivered { leader: strike.leader, others: strike.others, gentle };
        self.event(now, Event::Signalled(delivered), actions);
    }

    fn event(&mut self, now: Moment, event: Event, actions: &mut Vec<Action>) {
        let wire = event_to_wire(&event);
        self.apply(now, event, wire, actions);
    }

    /// Runs one step of the life: remembers what changed, tells the daemon, and turns effects into actions.
    fn apply(&mut self, now: Moment, event: Event, wire: Option<LifeEvent>, actions: &mut Vec<Action>) {
        let Some(task) = &mut self.task else { return };
        let before = task.state.clone();
        let Step { state, effects } = step(&task.policy, before.clone(), event);
        // A changed policy is part of the life, also where it leaves the state as it is.
        let changed = state != before || matches!(wire, Some(LifeEvent::StallSet { .. }));
        task.state = state;
        let is_stopped = match &task.state {
            State::Stopping(_) | State::Starting { stop: Some(_), .. } => true,
            // At once, when there was nobody to be stopped.
            State::Ended(outcome) => matches!(
                outcome,
                Outcome::Cancelled { .. } | Outcome::TimedOut { .. } | Outcome::OverBudget { .. }
            ),
            State::Queued { .. }
            | State::Starting { stop: None, .. }
            | State::Running(_)
            | State::Resting(_) => false,
        };
        if is_stopped && task.stop.is_none() {
            task.stop = Some(StopNotes::new(now));
        }
        match (&task.state, &mut task.start) {
            (State::Queued { detached: true }, Some(start)) => leave_alone(start),
            // Nothing follows any more.
            (State::Stopping(_) | State::Ended(_), start) => *start = None,
            _ => {}
        }
        let is_last = effects.contains(&Effect::Finish);
        for effect in effects {
            match effect {
                Effect::Signal(level) => actions.push(Action::Signal(level)),
                Effect::Arm(clock, ms) => {
                    task.deadlines.set(clock, Some(now.mono_ms.saturating_add(ms)));
                }
                Effect::Clear(clock) => task.deadlines.set(clock, None),
                Effect::Look => actions.push(Action::Look),
                Effect::NameSurvivors => actions.push(Action::NameSurvivors),
                Effect::Finish => {
                    task.deadlines = Deadlines::default();
                    actions.push(Action::Finish);
                }
                Effect::Spawn => {
                    let may_follow = task.state.attempt() <= task.policy.retries;
                    let start = if may_follow { task.start.clone() } else { task.start.take() };
                    actions.extend(start.map(Action::Spawn));
                }
            }
        }
        // Said after what it sets off: nobody is kept waiting for the words.
        match wire.filter(|_| changed) {
            Some(wire) if is_last => task.last = Some((wire, now)),
            Some(wire) => remember(task, wire, now, None, self.connected, actions),
            None => {}
        }
    }

    fn finished(&mut self, output: OutputInfo, capture: Option<CaptureFault>, actions: &mut Vec<Action>) {
        let Some(task) = &mut self.task else { return };
        let Some((wire, at)) = task.last.take() else { return };
        let Some(outcome) = task.state.outcome() else { return };
        let record = EndRecord {
            end: outcome.to_wire(),
            ended_at_ms: at.wall_ms,
            receipt: task.stop.as_ref().and_then(|notes| notes.receipt(outcome, at)),
            output,
            capture,
        };
        remember(task, wire, at, Some(Box::new(record)), self.connected, actions);
        if !self.connected {
            actions.push(write_end(task));
        }
    }
}

fn write_end(task: &Task) -> Action {
    Action::WriteEndFile(task.dir.clone(), EndFile { task: task.id.clone(), life: task.life.clone() })
}

/// Nobody waits for it any more, before it has begun: its limit was for whoever waited, and so was the room in memory.
const fn leave_alone(start: &mut Start) {
    start.detached = true;
    start.memory_bytes = 0;
    start.clocks.timeout_ms = None;
}

fn remember(
    task: &mut Task,
    event: LifeEvent,
    at: Moment,
    end: Option<Box<EndRecord>>,
    connected: bool,
    actions: &mut Vec<Action>,
) {
    let number = task.life.len() as u64 + 1;
    let item = LifeItem { task: task.id.clone(), number, at_ms: at.wall_ms, event, end };
    task.life.push(item.clone());
    if connected {
        actions.push(Action::Send(FromShim::Life(item)));
    }
}
