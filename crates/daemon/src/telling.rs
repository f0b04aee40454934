//! Builds the events of a task's life. When each is recorded is decided in `life`.

use belay_model::{Cause, Level, Policy, Resting, State};
use belay_protocol::event::Event;
use belay_protocol::shim::{EndRecord, LifeEvent};
use belay_protocol::task::Status;
use belay_record::convert::{Wire as _, outcome_from_record};

use crate::doc::Entry;
use crate::foreground::detached_by;

/// A task, as every event about it names it.
#[derive(Clone, Debug)]
pub(crate) struct About {
    pub(crate) task: String,
    pub(crate) session: String,
}

impl About {
    pub(crate) fn new(entry: &Entry) -> Self {
        Self { task: entry.id.clone(), session: entry.session.clone() }
    }
}

pub(crate) fn created(entry: &Entry, found: Option<&str>) -> Event {
    let About { task, session } = About::new(entry);
    let (command, name) = (entry.doc.command.clone(), entry.name.clone());
    let (parent, found) = (entry.parent.clone(), found.map(str::to_owned));
    Event::TaskCreated { task, session, command, name, parent, found }
}

pub(crate) fn stopping(about: About, level: Level, cause: &Cause) -> Event {
    let About { task, session } = about;
    Event::TaskStopping { task, session, level: level.to_wire(), cause: cause.to_wire() }
}

pub(crate) fn ended(about: About, status: Status, end: Option<&EndRecord>) -> Event {
    let About { task, session } = about;
    Event::TaskEnded { task, session, status, outcome: end.map(outcome_from_record) }
}

/// The event for a step of a life that goes on, if there is one. Signals are in the receipt.
pub(crate) fn life_step(about: About, event: &LifeEvent, state: &State, policy: &Policy) -> Option<Event> {
    let About { task, session } = about;
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
            Some(stopping(About { task, session }, now.level, &now.cause))
        }
        // A task can be detached while it waits for its lane.
        LifeEvent::Detach { .. } if !matches!(state, State::Stopping(_)) => {
            Some(Event::TaskDetached { task, session, by: detached_by(event) })
        }
        LifeEvent::SpawnFailed { .. }
        | LifeEvent::Detach { .. }
        | LifeEvent::Signalled { .. }
        | LifeEvent::Survivors { .. }
        | LifeEvent::ShimLost { .. } => None,
    }
}
