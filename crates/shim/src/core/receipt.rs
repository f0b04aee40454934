//! What a stop did, written down while it goes on, and made into a receipt at its end.

use belay_model::{Cause, Clock, Level, Outcome};
use belay_protocol::life::{SignalSent, StopReceipt};
use belay_protocol::time::Timestamp;
use belay_record::convert::Wire as _;

use super::{Moment, Strike};

/// What a receipt is made of.
#[derive(Debug)]
pub(super) struct StopNotes {
    requested: Moment,
    signals: Vec<SignalSent>,
}

impl StopNotes {
    pub(super) const fn new(requested: Moment) -> Self {
        Self { requested, signals: Vec::new() }
    }

    /// Adds a strike; the many rounds of a kill are one signal.
    pub(super) fn add(&mut self, strike: Strike, now: Moment) {
        let name = match strike.level {
            Level::Drain => return,
            Level::Interrupt => "SIGINT",
            Level::Terminate => "SIGTERM",
            Level::Kill => "SIGKILL",
        };
        if let Some(last) = self.signals.last_mut().filter(|last| last.signal == name) {
            last.processes += strike.processes;
            last.refused = last.refused.max(strike.refused);
            return;
        }
        let Strike { processes, refused, .. } = strike;
        let at = Timestamp(now.wall_ms);
        self.signals.push(SignalSent { signal: name.to_owned(), processes, refused, at });
    }

    /// The hardest level that was needed, by the last signal.
    fn hardest(&self) -> Level {
        match self.signals.last().map(|sent| sent.signal.as_str()) {
            Some("SIGKILL") => Level::Kill,
            Some("SIGINT") => Level::Interrupt,
            _ => Level::Terminate,
        }
    }

    /// What the stop did, if the task was being stopped when it ended.
    pub(super) fn receipt(&self, outcome: &Outcome, ended: Moment) -> Option<StopReceipt> {
        let clock_actor = |clock: Clock| format!("clock:{}", clock.name());
        let (level, actor, reason, survivors) = match outcome {
            Outcome::Cancelled { order, .. } => {
                (order.level, order.actor.clone(), order.reason.clone(), Vec::new())
            }
            Outcome::TimedOut { clock, reason, .. } => {
                (self.hardest(), clock_actor(*clock), reason.clone(), Vec::new())
            }
            Outcome::OverBudget { budget, .. } => {
                (self.hardest(), format!("budget:{}", budget.name()), None, Vec::new())
            }
            Outcome::StopFailed { cause, survivors, .. } => match cause {
                Cause::Asked(order) => {
                    (Level::Kill, order.actor.clone(), order.reason.clone(), survivors.clone())
                }
                Cause::Clock { clock, reason, .. } => {
                    (Level::Kill, clock_actor(*clock), reason.clone(), survivors.clone())
                }
                Cause::Budget { budget, .. } => {
                    (Level::Kill, format!("budget:{}", budget.name()), None, survivors.clone())
                }
            },
            // It ended by itself before the stop reached it: there is nothing to show a receipt for.
            Outcome::Exited(_) | Outcome::NotStarted(_) | Outcome::Lost { .. } => return None,
        };
        Some(StopReceipt {
            level: level.to_wire(),
            actor,
            reason,
            signals: self.signals.clone(),
            requested_at: Timestamp(self.requested.wall_ms),
            empty_at: survivors.is_empty().then_some(Timestamp(ended.wall_ms)),
            took_ms: ended.mono_ms.saturating_sub(self.requested.mono_ms),
            survivors: survivors.to_wire(),
        })
    }
}
