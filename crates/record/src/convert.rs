//! The one file where core types and wire types meet. It converts; it decides nothing.

use belay_model::{
    Budget, Cause, Clock, Delivered, Event, Exit, Kind, Level, OnLimit, Outcome, Policy, SpawnFailure,
    SpawnStage, Stall, State, StopOrder, Survivor,
};
use belay_protocol::Timestamp;
use belay_protocol::life::{
    ClockName, ExitStatus, StartError, StartStage, StopCause, StopLevel, StopOrderInfo, StopReceipt,
    SurvivorInfo, TaskEnd,
};
use belay_protocol::output::StreamName;
use belay_protocol::shim::{Clocks, EndRecord, LifeEvent};
use belay_protocol::task::{
    BudgetInfo, BudgetName, OnStall, OnTimeout, Outcome as ClientOutcome, SpawnError, StallEvidence,
    StallParams, TaskKind, TaskStatus,
};

use crate::layout::Stream;

/// A core type that has a counterpart on the wire, without loss in either direction.
pub trait Wire: Sized {
    type Form;
    fn to_wire(&self) -> Self::Form;
    fn from_wire(form: Self::Form) -> Self;
}

/// Enums that have the same members on both sides.
macro_rules! same {
    ($core:ty, $form:ty, $($member:ident => $other:ident),* $(,)?) => {
        impl Wire for $core {
            type Form = $form;
            fn to_wire(&self) -> $form {
                match self { $( Self::$member => <$form>::$other, )* }
            }
            fn from_wire(form: $form) -> Self {
                match form { $( <$form>::$other => Self::$member, )* }
            }
        }
    };
}

same!(Level, StopLevel, Drain => Drain, Interrupt => Interrupt, Terminate => Terminate, Kill => Kill);
same!(OnLimit, OnTimeout, Stop => Stop, Detach => Detach);
same!(belay_model::OnStall, OnStall, Tell => Tell, Stop => Stop);
same!(Clock, ClockName, Foreground => Timeout, Ttl => Ttl, Silence => Silence, Stall => Stall, Leave => Leave, Retry => Retry, Grace => Grace, Kill => Kill);
same!(SpawnStage, StartStage, Resources => Resources, Cwd => Cwd, Program => Program, Shell => Shell,
    Arguments => Arguments, Limits => Limits, Holder => Holder);
same!(Budget, BudgetName, Output => Output, Memory => Memory, Processes => Processes);
same!(Kind, TaskKind, Shell => Shell, Agent => Agent);
same!(Stream, StreamName, Stdout => Stdout, Stderr => Stderr);

impl Wire for Exit {
    type Form = ExitStatus;
    fn to_wire(&self) -> ExitStatus {
        match *self {
            Self::Code(code) => ExitStatus::Code(code),
            Self::Signal { signal, core_dumped } => ExitStatus::Signal { number: signal, core_dumped },
        }
    }
    fn from_wire(form: ExitStatus) -> Self {
        match form {
            ExitStatus::Code(code) => Self::Code(code),
            ExitStatus::Signal { number, core_dumped } => Self::Signal { signal: number, core_dumped },
        }
    }
}

impl Wire for StopOrder {
    type Form = StopOrderInfo;
    fn to_wire(&self) -> StopOrderInfo {
        let Self { level, grace_ms, actor, reason } = self;
        StopOrderInfo {
            level: level.to_wire(),
            grace_ms: *grace_ms,
            actor: actor.clone(),
            reason: reason.clone(),
        }
    }
    fn from_wire(form: StopOrderInfo) -> Self {
        let StopOrderInfo { level, grace_ms, actor, reason } = form;
        Self { grace_ms, ..Self::new(Level::from_wire(level), actor, reason.as_deref()) }
    }
}

impl Wire for Survivor {
    type Form = SurvivorInfo;
    fn to_wire(&self) -> SurvivorInfo {
        let Self { pid, start_ticks, uid, command } = self.clone();
        SurvivorInfo { pid, start_ticks, uid, command }
    }
    fn from_wire(form: SurvivorInfo) -> Self {
        let SurvivorInfo { pid, start_ticks, uid, command } = form;
        Self { pid, start_ticks, uid, command }
    }
}

impl<T: Wire> Wire for Vec<T> {
    type Form = Vec<T::Form>;
    fn to_wire(&self) -> Self::Form {
        self.iter().map(Wire::to_wire).collect()
    }
    fn from_wire(form: Self::Form) -> Self {
        form.into_iter().map(T::from_wire).collect()
    }
}

impl<T: Wire> Wire for Option<T> {
    type Form = Option<T::Form>;
    fn to_wire(&self) -> Self::Form {
        self.as_ref().map(Wire::to_wire)
    }
    fn from_wire(form: Self::Form) -> Self {
        form.map(T::from_wire)
    }
}

impl Wire for SpawnFailure {
    type Form = StartError;
    fn to_wire(&self) -> StartError {
        StartError { stage: self.stage.to_wire(), errno: self.errno, message: self.message.clone() }
    }
    fn from_wire(form: StartError) -> Self {
        Self { stage: SpawnStage::from_wire(form.stage), errno: form.errno, message: form.message }
    }
}

impl Wire for Cause {
    type Form = StopCause;
    fn to_wire(&self) -> StopCause {
        match self.clone() {
            Self::Asked(order) => StopCause::Asked { order: order.to_wire() },
            Self::Clock { clock, limit_ms, reason } => {
                StopCause::Clock { clock: clock.to_wire(), limit_ms, reason }
            }
            Self::Budget { budget, limit, used } => {
                StopCause::Budget { budget: budget.to_wire(), limit, used }
            }
        }
    }
    fn from_wire(form: StopCause) -> Self {
        match form {
            StopCause::Asked { order } => Self::Asked(StopOrder::from_wire(order)),
            StopCause::Clock { clock, limit_ms, reason } => {
                Self::Clock { clock: Clock::from_wire(clock), limit_ms, reason }
            }
            StopCause::Budget { budget, limit, used } => {
                Self::Budget { budget: Budget::from_wire(budget), limit, used }
            }
        }
    }
}

impl Wire for Outcome {
    type Form = TaskEnd;
    fn to_wire(&self) -> TaskEnd {
        match self.clone() {
            Self::Exited(exit) => TaskEnd::Exited { exit: exit.to_wire() },
            Self::Cancelled { order, exit } => {
                TaskEnd::Cancelled { order: order.to_wire(), exit: exit.to_wire() }
            }
            Self::TimedOut { clock, limit_ms, reason, exit } => {
                TaskEnd::TimedOut { clock: clock.to_wire(), limit_ms, reason, exit: exit.to_wire() }
            }
            Self::OverBudget { budget, limit, used, exit } => {
                TaskEnd::Budget { budget: budget.to_wire(), limit, used, exit: exit.to_wire() }
            }
            Self::NotStarted(failure) => TaskEnd::Spawn { error: failure.to_wire() },
            Self::Lost { known, survivors } => TaskEnd::Lost { known, survivors: survivors.to_wire() },
            Self::StopFailed { cause, survivors, exit } => TaskEnd::StopFailed {
                cause: cause.to_wire(),
                survivors: survivors.to_wire(),
                exit: exit.to_wire(),
            },
        }
    }
    fn from_wire(form: TaskEnd) -> Self {
        match form {
            TaskEnd::Exited { exit } => Self::Exited(Exit::from_wire(exit)),
            TaskEnd::Cancelled { order, exit } => {
                Self::Cancelled { order: StopOrder::from_wire(order), exit: Option::from_wire(exit) }
            }
            TaskEnd::TimedOut { clock, limit_ms, reason, exit } => {
                let (clock, exit) = (Clock::from_wire(clock), Option::from_wire(exit));
                Self::TimedOut { clock, limit_ms, reason, exit }
            }
            TaskEnd::Budget { budget, limit, used, exit } => {
                let (budget, exit) = (Budget::from_wire(budget), Option::from_wire(exit));
                Self::OverBudget { budget, limit, used, exit }
            }
            TaskEnd::Spawn { error } => Self::NotStarted(SpawnFailure::from_wire(error)),
            TaskEnd::Lost { known, survivors } => Self::Lost { known, survivors: Vec::from_wire(survivors) },
            TaskEnd::StopFailed { cause, survivors, exit } => Self::StopFailed {
                cause: Cause::from_wire(cause),
                survivors: Vec::from_wire(survivors),
                exit: Option::from_wire(exit),
            },
        }
    }
}

/// A life event as the core knows it. What the wire adds (the pid of a spawn) is read by whoever needs it.
pub fn event_from_wire(event: LifeEvent) -> Event {
    match event {
        LifeEvent::Spawned { .. } => Event::Spawned,
        LifeEvent::SpawnFailed { error } => Event::SpawnFailed(SpawnFailure::from_wire(error)),
        LifeEvent::LeaderExited { exit } => Event::LeaderExited(Exit::from_wire(exit)),
        LifeEvent::TreeEmpty => Event::TreeEmpty,
        LifeEvent::Detach { by: _ } => Event::Detach,
        LifeEvent::Stop { order } => Event::Stop(StopOrder::from_wire(order)),
        LifeEvent::ClockRanOut { clock } => Event::ClockRanOut(Clock::from_wire(clock)),
        LifeEvent::BudgetRanOut { budget, limit, used } => {
            Event::BudgetRanOut { budget: Budget::from_wire(budget), limit, used }
        }
        LifeEvent::Stalled { evidence } => Event::Stalled { reason: stall_words(&evidence) },
        // The policy has changed before this event: progress is checked anew.
        LifeEvent::Recovered | LifeEvent::StallSet { .. } => Event::Progressed,
        LifeEvent::Signalled { leader, others, gentle } => {
            Event::Signalled(Delivered { leader, others, gentle })
        }
        LifeEvent::Survivors { survivors } => Event::Survivors(Vec::from_wire(survivors)),
        LifeEvent::ShimLost { known, survivors } => {
            Event::ShimLost { known, survivors: Vec::from_wire(survivors) }
        }
    }
}

/// What was seen of a task that does not get on, in a sentence.
pub fn stall_words(evidence: &StallEvidence) -> String {
    const NAMED: usize = 3;
    let StallEvidence { silent_ms, cpu_ms, processes, more, output_bytes: _ } = evidence;
    let named = processes.iter().take(NAMED);
    let named: Vec<String> =
        named.map(|one| format!("{} ({}) {}", one.pid, one.state, one.command)).collect();
    let rest = processes.len().saturating_sub(NAMED) as u64 + more;
    let rest = if rest == 0 { String::new() } else { format!(" and {rest} more") };
    let who = if named.is_empty() { "nobody".to_owned() } else { named.join(", ") };
    format!("nothing written in {silent_ms} ms and {cpu_ms} ms of processor time used: {who}{rest}")
}

/// The wire form of an event that changes a state. A spawn, a detach and a stall are made by the shim itself, who knows the
/// pid, who asked, and what was seen; admission and output never travel.
pub fn event_to_wire(event: &Event) -> Option<LifeEvent> {
    match event.clone() {
        Event::Admitted | Event::Spawned | Event::Output | Event::Detach | Event::Stalled { .. } => None,
        Event::Progressed => Some(LifeEvent::Recovered),
        Event::SpawnFailed(failure) => Some(LifeEvent::SpawnFailed { error: failure.to_wire() }),
        Event::LeaderExited(exit) => Some(LifeEvent::LeaderExited { exit: exit.to_wire() }),
        Event::TreeEmpty => Some(LifeEvent::TreeEmpty),
        Event::Stop(order) => Some(LifeEvent::Stop { order: order.to_wire() }),
        Event::ClockRanOut(clock) => Some(LifeEvent::ClockRanOut { clock: clock.to_wire() }),
        Event::BudgetRanOut { budget, limit, used } => {
            Some(LifeEvent::BudgetRanOut { budget: budget.to_wire(), limit, used })
        }
        Event::Signalled(Delivered { leader, others, gentle }) => {
            Some(LifeEvent::Signalled { leader, others, gentle })
        }
        Event::Survivors(survivors) => Some(LifeEvent::Survivors { survivors: survivors.to_wire() }),
        Event::ShimLost { known, survivors } => {
            Some(LifeEvent::ShimLost { known, survivors: survivors.to_wire() })
        }
    }
}

/// The rules of a task that was started with or without somebody waiting for it.
pub fn policy_from_wire(clocks: &Clocks, detached: bool) -> Policy {
    let Clocks { timeout_ms, on_timeout, ttl_ms, silence_ms, grace_ms, kill_ms, .. } = *clocks;
    Policy {
        foreground_ms: timeout_ms,
        on_foreground_limit: OnLimit::from_wire(on_timeout),
        born_detached: detached,
        ttl_ms,
        silence_ms,
        grace_ms,
        kill_ms,
        retries: clocks.retries,
        retry_delay_ms: clocks.retry_delay_ms,
        stall: clocks.stall.map(stall_from_wire),
    }
}

/// How a task is checked for progress.
pub fn stall_from_wire(StallParams { after_ms, policy }: StallParams) -> Stall {
    Stall { after_ms, policy: belay_model::OnStall::from_wire(policy) }
}

/// The word that people and scripts see.
pub const fn status(state: &State) -> TaskStatus {
    match state {
        State::Queued { .. } => TaskStatus::Queued,
        State::Starting { .. } => TaskStatus::Starting,
        State::Running(_) => TaskStatus::Running,
        State::Resting(_) => TaskStatus::Retrying,
        State::Stopping(_) => TaskStatus::Stopping,
        State::Ended(outcome) => match outcome {
            Outcome::Exited(Exit::Code(0)) => TaskStatus::Completed,
            Outcome::Exited(_) | Outcome::OverBudget { .. } | Outcome::NotStarted(_) => TaskStatus::Failed,
            Outcome::Cancelled { .. } => TaskStatus::Cancelled,
            Outcome::TimedOut { .. } => TaskStatus::TimedOut,
            Outcome::Lost { .. } => TaskStatus::Lost,
            Outcome::StopFailed { .. } => TaskStatus::StopFailed,
        },
    }
}

/// The outcome that clients see, from the end that the shim or the daemon recorded.
pub fn outcome_from_record(record: &EndRecord) -> ClientOutcome {
    let capture = record.capture.clone();
    let receipt = |cause: &StopCause, survivors: &[SurvivorInfo]| {
        record.receipt.clone().unwrap_or_else(|| bare_receipt(record, cause, survivors))
    };
    match record.end.clone() {
        TaskEnd::Exited { exit: ExitStatus::Code(exit_code) } => ClientOutcome::Exited { exit_code, capture },
        TaskEnd::Exited { exit: ExitStatus::Signal { number, core_dumped } } => {
            ClientOutcome::Signaled { signal: number, core_dumped, capture }
        }
        TaskEnd::Spawn { error: StartError { stage, errno, message } } => {
            let errno = Some(errno).filter(|errno| *errno != 0);
            ClientOutcome::Spawn { error: SpawnError { what: stage, errno, message }, capture }
        }
        TaskEnd::Cancelled { order, exit } => {
            let receipt = receipt(&StopCause::Asked { order: order.clone() }, &[]);
            let (exit_code, signal) = code_and_signal(exit);
            let StopOrderInfo { level, actor, reason, grace_ms: _ } = order;
            ClientOutcome::Cancelled { actor, reason, level, receipt, exit_code, signal, capture }
        }
        TaskEnd::TimedOut { clock, limit_ms, reason, exit } => {
            let receipt = receipt(&StopCause::Clock { clock, limit_ms, reason: reason.clone() }, &[]);
            let (exit_code, signal) = code_and_signal(exit);
            ClientOutcome::TimedOut { clock, limit_ms, receipt, exit_code, signal, reason, capture }
        }
        TaskEnd::Budget { budget, limit, used, exit } => {
            let receipt = receipt(&StopCause::Budget { budget, limit, used }, &[]);
            let (exit_code, signal) = code_and_signal(exit);
            let budget = BudgetInfo { name: budget, limit, used };
            ClientOutcome::Budget { budget, receipt, exit_code, signal, capture }
        }
        TaskEnd::StopFailed { cause, survivors, exit } => {
            let receipt = receipt(&cause, &survivors);
            let (exit_code, signal) = code_and_signal(exit);
            ClientOutcome::StopFailed { survivors, receipt, cause, exit_code, signal, capture }
        }
        TaskEnd::Lost { known, survivors } => ClientOutcome::Lost { reason: known, survivors, capture },
    }
}

const fn code_and_signal(exit: Option<ExitStatus>) -> (Option<i32>, Option<i32>) {
    match exit {
        Some(ExitStatus::Code(code)) => (Some(code), None),
        Some(ExitStatus::Signal { number, .. }) => (None, Some(number)),
        None => (None, None),
    }
}

/// The receipt of a stopped task whose record has none: who stopped it and why, without signals. Every end but one with
/// survivors proves that the tree is empty.
fn bare_receipt(record: &EndRecord, cause: &StopCause, survivors: &[SurvivorInfo]) -> StopReceipt {
    let at = Timestamp(record.ended_at_ms);
    let (level, actor, reason) = match cause {
        StopCause::Asked { order } => (order.level, order.actor.clone(), order.reason.clone()),
        StopCause::Clock { clock, reason, .. } => {
            (StopLevel::Terminate, format!("clock:{}", clock.name()), reason.clone())
        }
        StopCause::Budget { budget, .. } => (StopLevel::Terminate, format!("budget:{}", budget.name()), None),
    };
    StopReceipt {
        level,
        actor,
        reason,
        signals: Vec::new(),
        requested_at: at,
        empty_at: survivors.is_empty().then_some(at),
        took_ms: 0,
        survivors: survivors.to_vec(),
    }
}

#[cfg(test)]
mod tests;
