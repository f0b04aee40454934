//! Whether a task gets on, look by look. It judges nothing by itself: that is the model's; it keeps what the next judgement
//! is made from.

use belay_model::{Event, Evidence, State, Verdict, judge};
use belay_protocol::shim::LifeEvent;
use belay_protocol::task::{ProcessInfo, StallEvidence, StallParams};
use belay_record::convert::{stall_from_wire, stall_words};

use super::{Action, Core, Moment, Task};

/// What one look at a task has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    pub evidence: Evidence,
    /// At most 20 of them, and how many more there are.
    pub processes: Vec<ProcessInfo>,
    pub more: u64,
}

#[derive(Debug, Default)]
pub(super) struct Watch {
    /// It waits for others, whom the daemon knows.
    excused: bool,
    /// The last look.
    last: Option<(Moment, Evidence)>,
    /// The last look at which it got on.
    since: Option<(Moment, Evidence)>,
}

/// What a look says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// The first one: there is nothing yet to hold it against.
    Begun,
    GetsOn,
    Stalled(StallEvidence),
}

impl Watch {
    /// The next look is the first one.
    pub(super) const fn begin(&mut self) {
        (self.last, self.since) = (None, None);
    }

    /// Whether that is news.
    pub(super) const fn excuse(&mut self, on: bool) -> bool {
        let before = std::mem::replace(&mut self.excused, on);
        before != on
    }

    pub(super) fn look(&mut self, now: Moment, look: Look) -> Seen {
        let Look { evidence, processes, more } = look;
        let last = self.last.replace((now, evidence));
        let (Some((then, before)), Some((since, at_since))) = (last, self.since) else {
            self.since = Some((now, evidence));
            return Seen::Begun;
        };
        let elapsed_ms = now.mono_ms.saturating_sub(then.mono_ms);
        match judge(before, evidence, elapsed_ms, self.excused) {
            Verdict::Progress | Verdict::Excused => {
                self.since = Some((now, evidence));
                Seen::GetsOn
            }
            Verdict::Stalled => Seen::Stalled(StallEvidence {
                silent_ms: now.mono_ms.saturating_sub(since.mono_ms),
                cpu_ms: evidence.cpu_ms.saturating_sub(at_since.cpu_ms),
                output_bytes: evidence.output_bytes,
                processes,
                more,
            }),
        }
    }
}

impl Core {
    /// An attempt has begun, or an excuse has ended: from now on it has to get on.
    pub(super) fn watch_anew(&mut self, actions: &mut Vec<Action>) {
        let is_watched =
            |task: &&mut Task| task.policy.stall.is_some() && matches!(task.state, State::Running(_));
        if let Some(task) = self.task.as_mut().filter(is_watched) {
            task.watch.begin();
            actions.push(Action::Look);
        }
    }

    pub(super) fn excuse(&mut self, now: Moment, on: bool, actions: &mut Vec<Action>) {
        let is_news = self.task.as_mut().is_some_and(|task| task.watch.excuse(on));
        if is_news && on {
            self.gets_on_again(now, actions);
        } else if is_news {
            self.watch_anew(actions);
        }
    }

    /// A client has changed how the task is checked for progress: the check begins anew.
    pub(super) fn set_stall(&mut self, now: Moment, stall: Option<StallParams>, actions: &mut Vec<Action>) {
        let Some(task) = self.task.as_mut().filter(|task| !task.state.is_ended()) else { return };
        task.policy.stall = stall.map(stall_from_wire);
        self.apply(now, Event::Progressed, Some(LifeEvent::StallSet { stall }), actions);
        self.watch_anew(actions);
    }

    pub(super) fn gets_on_again(&mut self, now: Moment, actions: &mut Vec<Action>) {
        if self.state().is_some_and(State::is_stalled) {
            self.event(now, Event::Progressed, actions);
        }
    }

    pub(super) fn looked(&mut self, now: Moment, look: Look, actions: &mut Vec<Action>) {
        let Some(task) = &mut self.task else { return };
        match task.watch.look(now, look) {
            Seen::Begun | Seen::GetsOn => self.event(now, Event::Progressed, actions),
            Seen::Stalled(evidence) => {
                let event = Event::Stalled { reason: stall_words(&evidence) };
                let wire = LifeEvent::Stalled { evidence: Box::new(evidence) };
                self.apply(now, event, Some(wire), actions);
            }
        }
    }
}
