//! The life of a task as one pure function. It knows no clock, no process and no file: whoever runs it carries out
//! the effects and brings back what happened as the next event.
//!
//! There is no wildcard arm: a new event or state does not compile until every pair has been thought about.

use crate::outcome::{Cause, Clock, Exit, Outcome, SpawnFailure, SpawnStage, StopOrder, Survivor};
use crate::policy::{Level, OnLimit, Policy};

/// Where a task stands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Recorded, and waiting for a seat: in the daemon, or in the memory of its shim.
    Queued {
        detached: bool,
    },
    /// Handed over to be spawned; a stop that comes now is kept until the pid is known.
    Starting {
        detached: bool,
        stop: Option<StopOrder>,
    },
    Running(Running),
    Stopping(Stopping),
    Ended(Outcome),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Running {
    pub leader: Leader,
    pub detached: bool,
}

/// The first process of the tree. The task goes on when it has exited and others have not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Leader {
    Alive,
    Exited(Exit),
}

impl Leader {
    pub const fn exit(self) -> Option<Exit> {
        match self {
            Self::Alive => None,
            Self::Exited(exit) => Some(exit),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stopping {
    pub leader: Leader,
    pub detached: bool,
    pub cause: Cause,
    pub level: Level,
    pub grace_ms: u64,
    pub delivered: Delivered,
}

/// Whom the signals of a stop have reached so far. It decides whether the stop or the command itself was the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Delivered {
    pub leader: bool,
    pub others: bool,
    /// A signal other than SIGKILL was among them, which a process may answer with any exit code.
    pub gentle: bool,
}

impl Delivered {
    const fn merge(self, more: Self) -> Self {
        Self {
            leader: self.leader || more.leader,
            others: self.others || more.others,
            gentle: self.gentle || more.gentle,
        }
    }

    /// Whether the command ended by itself although a stop was under way: nothing reached it, or only a SIGKILL
    /// that came too late, which shows in its exit status.
    const fn came_too_late(self, leader: Leader) -> bool {
        if !self.leader && !self.others {
            return true;
        }
        match leader {
            Leader::Alive => false,
            Leader::Exited(exit) => !self.gentle && !self.others && !exit.is_sigkill(),
        }
    }
}

/// What can happen to a task.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A seat is free and the record is durable.
    Admitted,
    Spawned,
    SpawnFailed(SpawnFailure),
    LeaderExited(Exit),
    /// The proof of death: no child is left and the cgroup is empty.
    TreeEmpty,
    /// The task wrote something.
    Output,
    Detach,
    Stop(StopOrder),
    ClockRanOut(Clock),
    BudgetRanOut {
        budget: String,
        limit: u64,
        used: u64,
    },
    /// What the last signal reached.
    Signalled(Delivered),
    /// Who is alive after SIGKILL and its deadline; nobody means that only true zombies are left.
    Survivors(Vec<Survivor>),
    /// The shim is gone and left no end record.
    ShimLost {
        known: String,
        survivors: Vec<Survivor>,
    },
}

/// What the runner of a life has to do next, in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    Spawn,
    /// Send this level's signal to the whole tree, and report back with [`Event::Signalled`].
    Signal(Level),
    Arm(Clock, u64),
    Clear(Clock),
    /// Look who is still there, and report back with [`Event::Survivors`].
    NameSurvivors,
    /// The end: drop every clock, write the end record, tell everybody. Nothing follows it.
    Finish,
}

/// One step: where the task stands now, and what has to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub state: State,
    pub effects: Vec<Effect>,
}

impl Step {
    const fn stay(state: State) -> Self {
        Self { state, effects: Vec::new() }
    }

    fn end(outcome: Outcome) -> Self {
        Self { state: State::Ended(outcome), effects: vec![Effect::Finish] }
    }
}

impl State {
    pub const fn new(detached: bool) -> Self {
        Self::Queued { detached }
    }

    pub const fn is_ended(&self) -> bool {
        matches!(self, Self::Ended(_))
    }

    pub const fn outcome(&self) -> Option<&Outcome> {
        match self {
            Self::Ended(outcome) => Some(outcome),
            Self::Queued { .. } | Self::Starting { .. } | Self::Running(_) | Self::Stopping(_) => None,
        }
    }

    /// The word on the wire.
    pub const fn status(&self) -> &'static str {
        match self {
            Self::Queued { .. } => "queued",
            Self::Starting { .. } => "starting",
            Self::Running(_) => "running",
            Self::Stopping(_) => "stopping",
            Self::Ended(outcome) => outcome.status(),
        }
    }

    /// Whether nobody waits for the task. An ended task is waited for by nobody.
    pub const fn detached(&self) -> bool {
        match self {
            Self::Queued { detached } | Self::Starting { detached, .. } => *detached,
            Self::Running(running) => running.detached,
            Self::Stopping(stopping) => stopping.detached,
            Self::Ended(_) => true,
        }
    }

    pub const fn leader(&self) -> Option<Leader> {
        match self {
            Self::Running(running) => Some(running.leader),
            Self::Stopping(stopping) => Some(stopping.leader),
            Self::Queued { .. } | Self::Starting { .. } | Self::Ended(_) => None,
        }
    }
}

/// The whole life. See the module's words; `docs/life-of-a-task.md` shows it rendered.
pub fn step(policy: &Policy, state: State, event: Event) -> Step {
    match state {
        State::Queued { detached } => queued(detached, event),
        State::Starting { detached, stop } => starting(policy, detached, stop, event),
        State::Running(now) => running(policy, now, event),
        State::Stopping(now) => stopping(policy, now, event),
        State::Ended(outcome) => ended(outcome, &event),
    }
}

fn queued(detached: bool, event: Event) -> Step {
    match event {
        Event::Admitted => {
            Step { state: State::Starting { detached, stop: None }, effects: vec![Effect::Spawn] }
        }
        Event::Detach => Step::stay(State::Queued { detached: true }),
        Event::Stop(order) => Step::end(Outcome::Cancelled { order, exit: None }),
        Event::SpawnFailed(failure) => Step::end(Outcome::NotStarted(failure)),
        // Its holder is gone, and with it everything that was to be started: that is known for certain.
        Event::ShimLost { known, survivors: _ } => {
            let message = format!("it was not started: {known}");
            Step::end(Outcome::NotStarted(SpawnFailure { stage: SpawnStage::Holder, errno: 0, message }))
        }
        Event::Spawned
        | Event::LeaderExited(_)
        | Event::TreeEmpty
        | Event::Output
        | Event::ClockRanOut(_)
        | Event::BudgetRanOut { .. }
        | Event::Signalled(_)
        | Event::Survivors(_) => Step::stay(State::Queued { detached }),
    }
}

fn starting(policy: &Policy, detached: bool, stop: Option<StopOrder>, event: Event) -> Step {
    match event {
        Event::Spawned => match stop {
            Some(order) => {
                let level = order.level;
                let grace_ms = order.grace_ms.unwrap_or(policy.grace_ms);
                begin_stop(
                    policy,
                    Running { leader: Leader::Alive, detached },
                    Cause::Asked(order),
                    level,
                    grace_ms,
                )
            }
            None => Step {
                state: State::Running(Running { leader: Leader::Alive, detached }),
                effects: first_clocks(policy, detached),
            },
        },
        Event::SpawnFailed(failure) => Step::end(Outcome::NotStarted(failure)),
        Event::Stop(order) => Step::stay(State::Starting { detached, stop: Some(harder(stop, order)) }),
        Event::Detach => Step::stay(State::Starting { detached: true, stop }),
        Event::ShimLost { known, survivors } => Step::end(Outcome::Lost { known, survivors }),
        Event::Admitted
        | Event::LeaderExited(_)
        | Event::TreeEmpty
        | Event::Output
        | Event::ClockRanOut(_)
        | Event::BudgetRanOut { .. }
        | Event::Signalled(_)
        | Event::Survivors(_) => Step::stay(State::Starting { detached, stop }),
    }
}

fn running(policy: &Policy, now: Running, event: Event) -> Step {
    match event {
        Event::LeaderExited(exit) => {
            if matches!(now.leader, Leader::Exited(_)) {
                return Step::stay(State::Running(now));
            }
            // Whoever waits for it is kept no longer than it takes to see whether others stay.
            let wait = (!now.detached).then_some(Effect::Arm(Clock::Leave, Policy::LEAVE_MS));
            let leader = Leader::Exited(exit);
            Step { state: State::Running(Running { leader, ..now }), effects: wait.into_iter().collect() }
        }
        Event::TreeEmpty => Step::end(natural_end(now.leader)),
        Event::Output => Step { effects: rearm_silence(policy), state: State::Running(now) },
        Event::Detach => detach(policy, now),
        Event::Stop(order) => {
            let level = order.level;
            let grace_ms = order.grace_ms.unwrap_or(policy.grace_ms);
            begin_stop(policy, now, Cause::Asked(order), level, grace_ms)
        }
        Event::ClockRanOut(Clock::Leave) => match now.leader {
            Leader::Exited(_) => detach(policy, now),
            Leader::Alive => Step::stay(State::Running(now)),
        },
        Event::ClockRanOut(Clock::Foreground)
            if policy.on_foreground_limit == OnLimit::Detach && !now.detached =>
        {
            detach(policy, now)
        }
        Event::ClockRanOut(clock) => match limit_of(policy, clock) {
            Some(limit_ms) => {
                begin_stop(policy, now, Cause::Clock { clock, limit_ms }, Level::Terminate, policy.grace_ms)
            }
            // A stale ring of a stop's clock, or of a clock that this task does not have.
            None => Step::stay(State::Running(now)),
        },
        Event::BudgetRanOut { budget, limit, used } => {
            begin_stop(policy, now, Cause::Budget { budget, limit, used }, Level::Terminate, policy.grace_ms)
        }
        Event::ShimLost { known, survivors } => Step::end(Outcome::Lost { known, survivors }),
        Event::Admitted
        | Event::Spawned
        | Event::SpawnFailed(_)
        | Event::Signalled(_)
        | Event::Survivors(_) => Step::stay(State::Running(now)),
    }
}

fn stopping(policy: &Policy, now: Stopping, event: Event) -> Step {
    match event {
        Event::LeaderExited(exit) => {
            let leader = match now.leader {
                Leader::Alive => Leader::Exited(exit),
                known @ Leader::Exited(_) => known,
            };
            Step::stay(State::Stopping(Stopping { leader, ..now }))
        }
        Event::TreeEmpty => Step::end(stopped_end(now)),
        Event::Signalled(more) => {
            let delivered = now.delivered.merge(more);
            Step::stay(State::Stopping(Stopping { delivered, ..now }))
        }
        // A second stop can only make the first one harder; who asked first stays the cause.
        Event::Stop(order) if order.level > now.level => {
            let grace_ms = order.grace_ms.unwrap_or(now.grace_ms);
            go_to(policy, Stopping { grace_ms, ..now }, order.level)
        }
        Event::ClockRanOut(Clock::Grace) => match now.level.next() {
            Some(level) => go_to(policy, now, level),
            None => Step::stay(State::Stopping(now)),
        },
        Event::ClockRanOut(Clock::Kill) if now.level == Level::Kill => {
            Step { state: State::Stopping(now), effects: vec![Effect::NameSurvivors] }
        }
        Event::Survivors(survivors) if now.level == Level::Kill => {
            if survivors.is_empty() {
                return Step::end(stopped_end(now));
            }
            Step::end(Outcome::StopFailed { cause: now.cause, survivors, exit: now.leader.exit() })
        }
        Event::Detach => Step::stay(State::Stopping(Stopping { detached: true, ..now })),
        Event::ShimLost { known, survivors } => Step::end(Outcome::Lost { known, survivors }),
        Event::Admitted
        | Event::Spawned
        | Event::SpawnFailed(_)
        | Event::Output
        | Event::Stop(_)
        | Event::ClockRanOut(Clock::Foreground | Clock::Ttl | Clock::Silence | Clock::Leave | Clock::Kill)
        | Event::BudgetRanOut { .. }
        | Event::Survivors(_) => Step::stay(State::Stopping(now)),
    }
}

/// The end absorbs everything: exactly one outcome, whatever comes after it.
fn ended(outcome: Outcome, event: &Event) -> Step {
    match event {
        Event::Admitted
        | Event::Spawned
        | Event::SpawnFailed(_)
        | Event::LeaderExited(_)
        | Event::TreeEmpty
        | Event::Output
        | Event::Detach
        | Event::Stop(_)
        | Event::ClockRanOut(_)
        | Event::BudgetRanOut { .. }
        | Event::Signalled(_)
        | Event::Survivors(_)
        | Event::ShimLost { .. } => Step::stay(State::Ended(outcome)),
    }
}

fn detach(policy: &Policy, now: Running) -> Step {
    if now.detached {
        return Step::stay(State::Running(now));
    }
    let mut effects = Vec::new();
    if policy.foreground_ms.is_some() {
        effects.push(Effect::Clear(Clock::Foreground));
    }
    if now.leader.exit().is_some() {
        effects.push(Effect::Clear(Clock::Leave));
    }
    if let Some(ttl_ms) = policy.ttl_ms {
        effects.push(Effect::Arm(Clock::Ttl, ttl_ms));
    }
    Step { state: State::Running(Running { detached: true, ..now }), effects }
}

fn first_clocks(policy: &Policy, detached: bool) -> Vec<Effect> {
    let mut effects = Vec::new();
    // Detached while it was being started: the limit was for whoever waited.
    if let Some(ms) = policy.foreground_ms.filter(|_| policy.born_detached || !detached) {
        effects.push(Effect::Arm(Clock::Foreground, ms));
    }
    if let Some(ms) = policy.ttl_ms.filter(|_| detached) {
        effects.push(Effect::Arm(Clock::Ttl, ms));
    }
    if let Some(ms) = policy.silence_ms {
        effects.push(Effect::Arm(Clock::Silence, ms));
    }
    effects
}

fn rearm_silence(policy: &Policy) -> Vec<Effect> {
    policy.silence_ms.map(|ms| Effect::Arm(Clock::Silence, ms)).into_iter().collect()
}

/// The limit behind a clock that can end a running task.
const fn limit_of(policy: &Policy, clock: Clock) -> Option<u64> {
    match clock {
        Clock::Foreground => policy.foreground_ms,
        Clock::Ttl => policy.ttl_ms,
        Clock::Silence => policy.silence_ms,
        Clock::Leave | Clock::Grace | Clock::Kill => None,
    }
}

fn begin_stop(policy: &Policy, now: Running, cause: Cause, level: Level, grace_ms: u64) -> Step {
    let stopping = Stopping {
        leader: now.leader,
        detached: now.detached,
        cause,
        level,
        grace_ms,
        delivered: Delivered::default(),
    };
    let mut step = go_to(policy, stopping, level);
    let running_clocks = [Clock::Foreground, Clock::Ttl, Clock::Silence];
    let clear =
        running_clocks.into_iter().filter(|clock| limit_of(policy, *clock).is_some()).map(Effect::Clear);
    let leave = (!now.detached && now.leader.exit().is_some()).then_some(Effect::Clear(Clock::Leave));
    step.effects.splice(0..0, clear.chain(leave));
    step
}

/// Enters a stop level: its signal, then its deadline.
fn go_to(policy: &Policy, now: Stopping, level: Level) -> Step {
    let mut effects = Vec::new();
    match level {
        Level::Drain => effects.push(Effect::Arm(Clock::Grace, now.grace_ms)),
        Level::Interrupt | Level::Terminate => {
            effects.push(Effect::Signal(level));
            effects.push(Effect::Arm(Clock::Grace, now.grace_ms));
        }
        Level::Kill => {
            effects.push(Effect::Clear(Clock::Grace));
            effects.push(Effect::Signal(level));
            effects.push(Effect::Arm(Clock::Kill, policy.kill_ms));
        }
    }
    Step { state: State::Stopping(Stopping { level, ..now }), effects }
}

/// Of two stops that came before the pid was known, the first keeps its name and the harder level counts.
fn harder(first: Option<StopOrder>, second: StopOrder) -> StopOrder {
    match first {
        None => second,
        Some(first) if second.level > first.level => {
            StopOrder { level: second.level, grace_ms: second.grace_ms.or(first.grace_ms), ..first }
        }
        Some(first) => first,
    }
}

fn natural_end(leader: Leader) -> Outcome {
    match leader {
        Leader::Exited(exit) => Outcome::Exited(exit),
        // The kernel tells a parent about every child, so this is a fault of ours; it must not become a success.
        Leader::Alive => Outcome::Lost {
            known: "the tree became empty but nobody saw the leader's exit status".to_owned(),
            survivors: Vec::new(),
        },
    }
}

fn stopped_end(now: Stopping) -> Outcome {
    // What was used up stays used up, whoever was quicker: the stop, or the end of the command.
    let is_used_up = matches!(now.cause, Cause::Budget { .. });
    if !is_used_up && now.delivered.came_too_late(now.leader) {
        return natural_end(now.leader);
    }
    let exit = now.leader.exit();
    match now.cause {
        // The level in the outcome is the one that was needed, not only the one that was asked for.
        Cause::Asked(order) => Outcome::Cancelled { order: StopOrder { level: now.level, ..order }, exit },
        Cause::Clock { clock, limit_ms } => Outcome::TimedOut { clock, limit_ms, exit },
        Cause::Budget { budget, limit, used } => Outcome::OverBudget { budget, limit, used, exit },
    }
}
