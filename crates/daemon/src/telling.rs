//! What an event of a life says besides its name, as it stands in the record. When it is said is `life`'s to decide.

use belay_model::{Cause, Level, Policy, Resting, State};
use belay_protocol::life::{ExitStatus, StopCause};
use belay_protocol::shim::{EndRecord, LifeEvent};
use belay_protocol::task::{OnStall, OutcomeInfo, StallEvidence, Status};
use belay_record::convert::{Wire as _, outcome_info};
use serde::Serialize;

use crate::foreground::detached_by;

/// What is special to an event of a life that goes on.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Special {
    Started {
        pid: i32,
        /// Of one that may be run again.
        #[serde(skip_serializing_if = "Option::is_none")]
        attempt: Option<u32>,
    },
    AttemptEnded {
        exit: ExitStatus,
        attempt: u32,
        next_ms: u64,
    },
    LeaderExited {
        exit: ExitStatus,
    },
    Stopping(Stopping),
    Detached {
        by: String,
    },
    Nothing {},
}

/// Why a task is being stopped, and how hard.
#[derive(Debug, Serialize)]
pub(crate) struct Stopping {
    level: &'static str,
    #[serde(flatten)]
    cause: StopCause,
}

impl Stopping {
    pub(crate) fn new(level: Level, cause: &Cause) -> Self {
        Self { level: level.name(), cause: cause.to_wire() }
    }
}

/// What was seen of a task that does not get on, and what is done about it.
#[derive(Debug, Serialize)]
pub(crate) struct Stalled<'a> {
    #[serde(flatten)]
    pub(crate) evidence: &'a StallEvidence,
    pub(crate) policy: Option<OnStall>,
}

/// How a task ended.
#[derive(Debug, Serialize)]
pub(crate) struct Ended {
    status: Status,
    outcome: Option<OutcomeInfo>,
}

impl Ended {
    pub(crate) fn new(status: Status, end: Option<&EndRecord>) -> Self {
        Self { status, outcome: end.map(outcome_info) }
    }
}

/// An event of a life that goes on: its name and what is special to it. Signals are in the receipt.
pub(crate) fn describe(event: &LifeEvent, state: &State, policy: &Policy) -> Option<(&'static str, Special)> {
    let detached = || Some(("task.detached", Special::Detached { by: detached_by(event) }));
    match event {
        LifeEvent::ClockRanOut { .. } if matches!(state, State::Running(_) | State::Resting(_)) => detached(),
        LifeEvent::Spawned { process, .. } => {
            let attempt = (policy.retries > 0).then(|| state.attempt());
            Some(("task.started", Special::Started { pid: process.pid, attempt }))
        }
        LifeEvent::TreeEmpty => {
            let State::Resting(Resting { attempt, last, .. }) = state else { return None };
            let (exit, next_ms) = (last.to_wire(), policy.retry_delay_ms);
            Some(("task.attempt_ended", Special::AttemptEnded { exit, attempt: *attempt, next_ms }))
        }
        LifeEvent::LeaderExited { exit } => {
            Some(("task.leader_exited", Special::LeaderExited { exit: *exit }))
        }
        LifeEvent::Recovered => Some(("task.recovered", Special::Nothing {})),
        LifeEvent::Stop { .. }
        | LifeEvent::ClockRanOut { .. }
        | LifeEvent::BudgetRanOut { .. }
        | LifeEvent::Stalled { .. } => {
            let State::Stopping(stopping) = state else { return None };
            let why = Stopping::new(stopping.level, &stopping.cause);
            Some(("task.stopping", Special::Stopping(why)))
        }
        // It may have been detached while it waited for its turn.
        LifeEvent::Detach { .. } if !matches!(state, State::Stopping(_)) => detached(),
        LifeEvent::SpawnFailed { .. }
        | LifeEvent::Detach { .. }
        | LifeEvent::Signalled { .. }
        | LifeEvent::Survivors { .. }
        | LifeEvent::ShimLost { .. } => None,
    }
}
