//! Renders the life as a table for people: every state against every event, straight from [`step`]. It decides nothing.

use crate::life::{Effect, Event, step};
use crate::outcome::{Budget, Cause, Clock, Exit, Outcome, SpawnFailure, SpawnStage, StopOrder, Survivor};
use crate::policy::{Level, OnStall, Policy, Stall};
use crate::state::{Delivered, Leader, Resting, Running, State, Stopping};

/// One row a pair that changes something; pairs that change nothing are listed once per state.
pub fn render() -> String {
    let mut rows = vec!["| state | event | next | effects |".to_owned(), "|---|---|---|---|".to_owned()];
    for (name, state) in states() {
        let mut ignored = Vec::new();
        for (event_name, event) in events() {
            let done = step(&policy(), state.clone(), event);
            if done.state == state && done.effects.is_empty() {
                ignored.push(event_name);
            } else {
                let effects = done.effects.iter().map(effect).collect::<Vec<_>>().join(", ");
                rows.push(format!("| {name} | {event_name} | {} | {effects} |", describe(&done.state)));
            }
        }
        rows.push(format!("| {name} | *nothing changes on* | | {} |", ignored.join(", ")));
    }
    rows.join("\n") + "\n"
}

fn policy() -> Policy {
    Policy {
        foreground_ms: Some(100),
        ttl_ms: Some(200),
        silence_ms: Some(300),
        retries: 1,
        stall: Some(Stall { after_ms: 400, policy: OnStall::Tell }),
        ..Policy::default()
    }
}

fn order(level: Level) -> StopOrder {
    StopOrder::new(level, "somebody", None)
}

fn states() -> Vec<(String, State)> {
    let alive = Running { leader: Leader::Alive, detached: false, attempt: 1, stalled: false };
    let failed = Exit::Code(1);
    let exited = |exit| State::Running(Running { leader: Leader::Exited(exit), ..alive });
    let starting = |stop| State::Starting { detached: false, stop, attempt: 1 };
    let mut states = vec![
        ("queued", State::Queued { detached: false }),
        ("starting", starting(None)),
        ("starting, stop kept", starting(Some(order(Level::Terminate)))),
        ("starting again", State::Starting { detached: false, stop: None, attempt: 2 }),
        ("running", State::Running(alive)),
        ("running, leader exited", exited(Exit::SUCCESS)),
        ("running, leader failed", exited(failed)),
        ("resting", State::Resting(Resting { detached: false, attempt: 1, last: failed })),
    ]
    .into_iter()
    .map(|(name, state)| (name.to_owned(), state))
    .collect::<Vec<_>>();
    for level in Level::ALL {
        let cause = Cause::Asked(order(level));
        let delivered =
            Delivered { leader: level > Level::Drain, others: false, gentle: level < Level::Kill };
        let grace_ms = Policy::DEFAULT_GRACE_MS;
        let leader = Leader::Alive;
        let stopping = Stopping { leader, detached: false, attempt: 1, cause, level, grace_ms, delivered };
        states.push((format!("stopping: {}", level.name()), State::Stopping(stopping)));
    }
    states.push(("ended".to_owned(), State::Ended(Outcome::Exited(Exit::SUCCESS))));
    states
}

fn events() -> Vec<(String, Event)> {
    let failure = SpawnFailure { stage: SpawnStage::Program, errno: 2, message: "not found".to_owned() };
    let survivor = Survivor { pid: 1, start_ticks: 1, uid: 0, command: "x".to_owned() };
    let mut events = vec![
        ("admitted".to_owned(), Event::Admitted),
        ("spawned".to_owned(), Event::Spawned),
        ("spawn failed".to_owned(), Event::SpawnFailed(failure)),
        ("leader exited".to_owned(), Event::LeaderExited(Exit::SUCCESS)),
        ("tree empty".to_owned(), Event::TreeEmpty),
        ("output".to_owned(), Event::Output),
        ("detach".to_owned(), Event::Detach),
    ];
    events.extend(Level::ALL.map(|level| (format!("stop: {}", level.name()), Event::Stop(order(level)))));
    events.extend(Clock::ALL.map(|clock| (format!("clock: {}", clock.name()), Event::ClockRanOut(clock))));
    events.push((
        "budget ran out".to_owned(),
        Event::BudgetRanOut { budget: Budget::Output, limit: 1, used: 2 },
    ));
    events.push(("progressed".to_owned(), Event::Progressed));
    events.push(("stalled".to_owned(), Event::Stalled { reason: "nothing moved".to_owned() }));
    let reached = Delivered { leader: true, others: true, gentle: true };
    events.push(("signalled".to_owned(), Event::Signalled(reached)));
    events.push(("survivors: none".to_owned(), Event::Survivors(Vec::new())));
    events.push(("survivors: some".to_owned(), Event::Survivors(vec![survivor])));
    events.push(("shim lost".to_owned(), Event::ShimLost { known: String::new(), survivors: Vec::new() }));
    events
}

fn effect(effect: &Effect) -> String {
    match effect {
        Effect::Spawn => "spawn".to_owned(),
        Effect::Signal(level) => format!("signal {}", level.name()),
        Effect::Arm(clock, ms) => format!("arm {} {ms} ms", clock.name()),
        Effect::Clear(clock) => format!("clear {}", clock.name()),
        Effect::Look => "look".to_owned(),
        Effect::NameSurvivors => "name survivors".to_owned(),
        Effect::Finish => "finish".to_owned(),
    }
}

fn describe(state: &State) -> String {
    let mut text = match state {
        State::Ended(outcome) => format!("ended: {}", outcome.status()),
        State::Stopping(stopping) => format!("stopping: {}", stopping.level.name()),
        State::Starting { stop: Some(order), .. } => format!("starting, stop kept ({})", order.level.name()),
        State::Queued { .. } | State::Starting { stop: None, .. } | State::Running(_) | State::Resting(_) => {
            state.status().to_owned()
        }
    };
    if state.is_stalled() {
        text.push_str(", stalled");
    }
    if matches!(state.leader(), Some(Leader::Exited(_))) {
        text.push_str(", leader exited");
    }
    if state.detached() && !state.is_ended() {
        text.push_str(", detached");
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_table_reads_as_it_was_agreed() {
        insta::assert_snapshot!(super::render());
    }
}
