//! The journal events of a task's life, built from what its shim reported. When they are recorded is decided in `lifecycle`.

use belay_model::{Cause, Level, Policy, Resting, State};
use belay_protocol::event::Event;
use belay_protocol::life::ClockName;
use belay_protocol::shim::LifeEvent;
use belay_protocol::task::DetachedBy;
use belay_record::convert::{Wire as _, outcome_from_record};

use super::StoredTask;

/// Who moved a task to the background.
pub(super) fn detached_by(event: &LifeEvent) -> DetachedBy {
    match event {
        LifeEvent::Detach { by } => DetachedBy::from(by.clone()),
        LifeEvent::ClockRanOut { clock: ClockName::Leave } => DetachedBy::Leader,
        _ => DetachedBy::Timeout,
    }
}

pub(super) fn stopping(stored: &StoredTask, level: Level, cause: &Cause) -> Event {
    Event::TaskStopping {
        task: stored.id.clone(),
        session: stored.session.clone(),
        level: level.to_wire(),
        cause: cause.to_wire(),
    }
}

pub(super) fn ended(stored: &StoredTask) -> Event {
    Event::TaskEnded {
        task: stored.id.clone(),
        session: stored.session.clone(),
        status: stored.doc.status,
        outcome: stored.doc.end.as_ref().map(outcome_from_record),
    }
}

/// The event for something that happened in a life that goes on. Signals are in the receipt.
pub(super) fn of_life(
    stored: &StoredTask,
    event: &LifeEvent,
    state: &State,
    policy: &Policy,
) -> Option<Event> {
    let (task, session) = (stored.id.clone(), stored.session.clone());
    match event {
        LifeEvent::ClockRanOut { .. } if matches!(state, State::Running(_) | State::Resting(_)) => {
            Some(Event::TaskDetached { task, session, by: detached_by(event) })
        }
        LifeEvent::Spawned { process, .. } => {
            let attempt = (policy.retries > 0).then(|| state.attempt());
            Some(Event::TaskStarted { task, session, pid: process.pid, attempt })
        }
        LifeEvent::TreeEmpty => {
            let State::Resting(Resting { attempt, last, .. }) = state else { return None };
            let (exit, next_ms) = (last.to_wire(), policy.retry_delay_ms);
            Some(Event::TaskAttemptEnded { task, session, exit, attempt: *attempt, next_ms })
        }
        LifeEvent::LeaderExited { exit } => Some(Event::TaskLeaderExited { task, session, exit: *exit }),
        LifeEvent::Recovered => Some(Event::TaskRecovered { task, session }),
        LifeEvent::Stop { .. }
        | LifeEvent::ClockRanOut { .. }
        | LifeEvent::BudgetRanOut { .. }
        | LifeEvent::Stalled { .. } => {
            let State::Stopping(now) = state else { return None };
            Some(stopping(stored, now.level, &now.cause))
        }
        // A task that is being stopped is not detached any more.
        LifeEvent::Detach { .. } if !matches!(state, State::Stopping(_)) => {
            Some(Event::TaskDetached { task, session, by: detached_by(event) })
        }
        LifeEvent::StallSet { stall } => Some(Event::TaskStallSet { task, session, stall: *stall }),
        LifeEvent::SpawnFailed { .. }
        | LifeEvent::Detach { .. }
        | LifeEvent::Signalled { .. }
        | LifeEvent::Survivors { .. }
        | LifeEvent::ShimLost { .. } => None,
    }
}
