//! The life of a task as one pure function. It knows no clock, no process and no file: whoever runs it carries out
//! the effects and brings back what happened as the next event.
//!
//! There is no wildcard arm: a new event or state does not compile until every pair has been thought about.

use crate::outcome::{Budget, Cause, Clock, Exit, Outcome, SpawnFailure, SpawnStage, StopOrder, Survivor};
use crate::policy::{Level, OnLimit, OnStall, Policy, Stall};
use crate::state::{Delivered, Leader, Resting, Running, State, Stopping};

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
        budget: Budget,
        limit: u64,
        used: u64,
    },
    /// It was looked at and gets on, or is excused.
    Progressed,
    /// It was looked at, and nothing has moved; the reason is what was seen.
    Stalled {
        reason: String,
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
    /// Look whether it gets on, and report back with [`Event::Progressed`] or [`Event::Stalled`].
    Look,
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

/// The whole life. See the module's words; `docs/life-of-a-task.md` shows it rendered.
pub fn step(policy: &Policy, state: State, event: Event) -> Step {
    match state {
        State::Queued { detached } => queued(detached, event),
        State::Starting { detached, stop, attempt } => starting(policy, detached, stop, attempt, event),
        State::Running(now) => running(policy, now, event),
        State::Resting(now) => resting(policy, now, event),
        State::Stopping(now) => stopping(policy, now, event),
        State::Ended(outcome) => ended(outcome, &event),
    }
}

fn queued(detached: bool, event: Event) -> Step {
    match event {
        Event::Admitted => {
            Step { state: State::Starting { detached, stop: None, attempt: 1 }, effects: vec![Effect::Spawn] }
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
        | Event::Progressed
        | Event::Stalled { .. }
        | Event::Signalled(_)
        | Event::Survivors(_) => Step::stay(State::Queued { detached }),
    }
}

fn starting(policy: &Policy, detached: bool, stop: Option<StopOrder>, attempt: u32, event: Event) -> Step {
    match event {
        Event::Spawned => {
            let begun = Running { leader: Leader::Alive, detached, attempt, stalled: false };
            match stop {
                Some(order) => {
                    let level = order.level;
                    let grace_ms = order.grace_ms.unwrap_or(policy.grace_ms);
                    begin_stop(policy, begun, Cause::Asked(order), level, grace_ms)
                }
                None => Step { state: State::Running(begun), effects: first_clocks(policy, begun) },
            }
        }
        Event::SpawnFailed(failure) => Step::end(Outcome::NotStarted(failure)),
        Event::Stop(order) => {
            Step::stay(State::Starting { detached, stop: Some(harder(stop, order)), attempt })
        }
        Event::Detach => {
            // Only a later attempt has clocks that run already.
            let effects = if attempt > 1 && !detached { detaching(policy) } else { Vec::new() };
            Step { state: State::Starting { detached: true, stop, attempt }, effects }
        }
        Event::ClockRanOut(clock) if attempt > 1 && runs_between(policy, clock, detached) => {
            // Nobody can be stopped before the pid is known: it rings again.
            let effects = vec![Effect::Arm(clock, 1)];
            Step { state: State::Starting { detached, stop, attempt }, effects }
        }
        Event::ShimLost { known, survivors } => Step::end(Outcome::Lost { known, survivors }),
        Event::Admitted
        | Event::LeaderExited(_)
        | Event::TreeEmpty
        | Event::Output
        | Event::ClockRanOut(_)
        | Event::BudgetRanOut { .. }
        | Event::Progressed
        | Event::Stalled { .. }
        | Event::Signalled(_)
        | Event::Survivors(_) => Step::stay(State::Starting { detached, stop, attempt }),
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
        Event::TreeEmpty => match now.leader {
            Leader::Exited(exit) if exit != Exit::SUCCESS && now.attempt <= policy.retries => {
                rest(policy, now, exit)
            }
            Leader::Exited(_) | Leader::Alive => Step::end(natural_end(now.leader)),
        },
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
        Event::ClockRanOut(Clock::Stall) => {
            let look = policy.stall.map(|_| Effect::Look);
            Step { state: State::Running(now), effects: look.into_iter().collect() }
        }
        Event::Progressed => {
            Step { state: State::Running(Running { stalled: false, ..now }), effects: look_again(policy) }
        }
        Event::Stalled { reason } => stalled(policy, now, reason),
        Event::ClockRanOut(clock) => match limit_of(policy, clock) {
            Some(limit_ms) => {
                let cause = Cause::Clock { clock, limit_ms, reason: None };
                begin_stop(policy, now, cause, Level::Terminate, policy.grace_ms)
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

/// Nothing has moved between two looks: it is told, or that was the last of it.
fn stalled(policy: &Policy, now: Running, reason: String) -> Step {
    match policy.stall {
        None => Step::stay(State::Running(now)),
        Some(Stall { policy: OnStall::Tell, .. }) => {
            Step { state: State::Running(Running { stalled: true, ..now }), effects: look_again(policy) }
        }
        Some(Stall { policy: OnStall::Stop, after_ms }) => {
            let cause = Cause::Clock { clock: Clock::Stall, limit_ms: after_ms, reason: Some(reason) };
            begin_stop(policy, now, cause, Level::Terminate, policy.grace_ms)
        }
    }
}

fn look_again(policy: &Policy) -> Vec<Effect> {
    policy.stall.map(|stall| Effect::Arm(Clock::Stall, stall.after_ms)).into_iter().collect()
}

/// An attempt has failed and another one is left: it begins in a while.
fn rest(policy: &Policy, now: Running, last: Exit) -> Step {
    let silence = policy.silence_ms.map(|_| Effect::Clear(Clock::Silence));
    let stall = policy.stall.map(|_| Effect::Clear(Clock::Stall));
    let leave = (!now.detached).then_some(Effect::Clear(Clock::Leave));
    let again = Effect::Arm(Clock::Retry, policy.retry_delay_ms);
    let Running { detached, attempt, leader: _, stalled: _ } = now;
    Step {
        state: State::Resting(Resting { detached, attempt, last }),
        effects: silence.into_iter().chain(stall).chain(leave).chain([again]).collect(),
    }
}

/// There is nobody to be signalled: whatever ends a task now ends it at once, and for good.
fn resting(policy: &Policy, now: Resting, event: Event) -> Step {
    let exit = Some(now.last);
    match event {
        Event::ClockRanOut(Clock::Retry) => {
            let (detached, attempt) = (now.detached, now.attempt + 1);
            Step { state: State::Starting { detached, stop: None, attempt }, effects: vec![Effect::Spawn] }
        }
        Event::Stop(order) => Step::end(Outcome::Cancelled { order, exit }),
        Event::Detach if !now.detached => leave_resting(policy, now),
        Event::ClockRanOut(Clock::Foreground)
            if policy.on_foreground_limit == OnLimit::Detach && !now.detached =>
        {
            leave_resting(policy, now)
        }
        Event::ClockRanOut(clock) => match limit_of(policy, clock) {
            Some(limit_ms) if runs_between(policy, clock, now.detached) => {
                Step::end(Outcome::TimedOut { clock, limit_ms, reason: None, exit })
            }
            Some(_) | None => Step::stay(State::Resting(now)),
        },
        Event::BudgetRanOut { budget, limit, used } => {
            Step::end(Outcome::OverBudget { budget, limit, used, exit })
        }
        Event::ShimLost { known, survivors } => Step::end(Outcome::Lost { known, survivors }),
        Event::Admitted
        | Event::Spawned
        | Event::SpawnFailed(_)
        | Event::LeaderExited(_)
        | Event::TreeEmpty
        | Event::Output
        | Event::Detach
        | Event::Progressed
        | Event::Stalled { .. }
        | Event::Signalled(_)
        | Event::Survivors(_) => Step::stay(State::Resting(now)),
    }
}

fn leave_resting(policy: &Policy, now: Resting) -> Step {
    Step { state: State::Resting(Resting { detached: true, ..now }), effects: detaching(policy) }
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
        | Event::ClockRanOut(
            Clock::Foreground
            | Clock::Ttl
            | Clock::Silence
            | Clock::Stall
            | Clock::Leave
            | Clock::Retry
            | Clock::Kill,
        )
        | Event::BudgetRanOut { .. }
        | Event::Progressed
        | Event::Stalled { .. }
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
        | Event::Progressed
        | Event::Stalled { .. }
        | Event::Signalled(_)
        | Event::Survivors(_)
        | Event::ShimLost { .. } => Step::stay(State::Ended(outcome)),
    }
}

fn detach(policy: &Policy, now: Running) -> Step {
    if now.detached {
        return Step::stay(State::Running(now));
    }
    let leave = now.leader.exit().map(|_| Effect::Clear(Clock::Leave));
    let effects = leave.into_iter().chain(detaching(policy)).collect();
    Step { state: State::Running(Running { detached: true, ..now }), effects }
}

/// The limit of whoever waited counts no more, and the time to live begins.
fn detaching(policy: &Policy) -> Vec<Effect> {
    let limit = policy.foreground_ms.map(|_| Effect::Clear(Clock::Foreground));
    let ttl = policy.ttl_ms.map(|ms| Effect::Arm(Clock::Ttl, ms));
    limit.into_iter().chain(ttl).collect()
}

/// What begins to count with an attempt. The limits of the whole task count from the first one on.
fn first_clocks(policy: &Policy, now: Running) -> Vec<Effect> {
    let mut effects = Vec::new();
    let is_first = now.attempt == 1;
    // Detached while it was being started: the limit was for whoever waited.
    let limit = policy.foreground_ms.filter(|_| is_first && (policy.born_detached || !now.detached));
    effects.extend(limit.map(|ms| Effect::Arm(Clock::Foreground, ms)));
    let ttl = policy.ttl_ms.filter(|_| is_first && now.detached);
    effects.extend(ttl.map(|ms| Effect::Arm(Clock::Ttl, ms)));
    effects.extend(policy.silence_ms.map(|ms| Effect::Arm(Clock::Silence, ms)));
    effects.extend(look_again(policy));
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
        Clock::Stall | Clock::Leave | Clock::Retry | Clock::Grace | Clock::Kill => None,
    }
}

/// The limits of the whole task that run in between two attempts: one of whoever waits, one of when nobody does.
const fn runs_between(policy: &Policy, clock: Clock, detached: bool) -> bool {
    match clock {
        Clock::Foreground => policy.foreground_ms.is_some() && (policy.born_detached || !detached),
        Clock::Ttl => policy.ttl_ms.is_some() && detached,
        Clock::Silence | Clock::Stall | Clock::Leave | Clock::Retry | Clock::Grace | Clock::Kill => false,
    }
}

fn begin_stop(policy: &Policy, now: Running, cause: Cause, level: Level, grace_ms: u64) -> Step {
    let stopping = Stopping {
        leader: now.leader,
        detached: now.detached,
        attempt: now.attempt,
        cause,
        level,
        grace_ms,
        delivered: Delivered::default(),
    };
    let mut step = go_to(policy, stopping, level);
    let running_clocks = [Clock::Foreground, Clock::Ttl, Clock::Silence];
    let clear =
        running_clocks.into_iter().filter(|clock| limit_of(policy, *clock).is_some()).map(Effect::Clear);
    let stall = policy.stall.map(|_| Effect::Clear(Clock::Stall));
    let leave = (!now.detached && now.leader.exit().is_some()).then_some(Effect::Clear(Clock::Leave));
    step.effects.splice(0..0, clear.chain(stall).chain(leave));
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
        Cause::Clock { clock, limit_ms, reason } => Outcome::TimedOut { clock, limit_ms, reason, exit },
        Cause::Budget { budget, limit, used } => Outcome::OverBudget { budget, limit, used, exit },
    }
}
