//! Properties of the life over arbitrary sequences of events: what must hold whatever happens in whatever order.

use std::collections::BTreeMap;

use belay_model::{
    Budget, Clock, Delivered, Effect, Event, Evidence, Exit, Leader, Level, OnLimit, OnStall, Outcome,
    Policy, Running, SpawnFailure, SpawnStage, Stall, State, StopOrder, Survivor, Verdict, judge, step,
};
use proptest::prelude::*;

fn exits() -> impl Strategy<Value = Exit> {
    prop_oneof![
        (0..4i32).prop_map(Exit::Code),
        (1..16i32).prop_map(|signal| Exit::Signal { signal, core_dumped: false }),
    ]
}

fn levels() -> impl Strategy<Value = Level> {
    prop::sample::select(Level::ALL.to_vec())
}

fn orders() -> impl Strategy<Value = StopOrder> {
    (levels(), prop::option::of(1..9_000u64)).prop_map(|(level, grace_ms)| StopOrder {
        grace_ms,
        ..StopOrder::new(level, "tester", Some("because"))
    })
}

fn survivors() -> impl Strategy<Value = Vec<Survivor>> {
    let one = (2..9i32).prop_map(|pid| Survivor { pid, start_ticks: 7, uid: 0, command: "x".to_owned() });
    prop::collection::vec(one, 0..3)
}

fn events() -> impl Strategy<Value = Event> {
    prop_oneof![
        Just(Event::Admitted),
        Just(Event::Spawned),
        Just(Event::SpawnFailed(SpawnFailure {
            stage: SpawnStage::Cwd,
            errno: 2,
            message: "gone".to_owned()
        })),
        exits().prop_map(Event::LeaderExited),
        Just(Event::TreeEmpty),
        Just(Event::Output),
        Just(Event::Detach),
        orders().prop_map(Event::Stop),
        prop::sample::select(Clock::ALL.to_vec()).prop_map(Event::ClockRanOut),
        Just(Event::BudgetRanOut { budget: Budget::Output, limit: 1, used: 2 }),
        any::<(bool, bool, bool)>().prop_map(|(leader, others, gentle)| Event::Signalled(Delivered {
            leader,
            others,
            gentle
        })),
        Just(Event::Progressed),
        Just(Event::Stalled { reason: "nothing moved".to_owned() }),
        survivors().prop_map(Event::Survivors),
        survivors().prop_map(|survivors| Event::ShimLost { known: "nothing".to_owned(), survivors }),
    ]
}

fn policies() -> impl Strategy<Value = Policy> {
    let clock = || prop::option::of(1..9_000u64);
    let limits = (clock(), clock(), clock(), 1..9_000u64);
    let on_limit = prop::sample::select(vec![OnLimit::Stop, OnLimit::Detach]);
    let again = (prop_oneof![Just(0), 1..4u32], 0..9_000u64);
    let on_stall = prop::sample::select(vec![OnStall::Tell, OnStall::Stop]);
    let stall = prop::option::of((1..9_000u64, on_stall));
    (limits, on_limit, again, stall).prop_map(|(limits, on_foreground_limit, again, stall)| {
        let (retries, retry_delay_ms) = again;
        let (foreground_ms, ttl_ms, silence_ms, grace_ms) = limits;
        Policy {
            foreground_ms,
            on_foreground_limit,
            ttl_ms,
            silence_ms,
            grace_ms,
            retries,
            retry_delay_ms,
            stall: stall.map(|(after_ms, policy)| Stall { after_ms, policy }),
            ..Policy::default()
        }
    })
}

/// Sequences in which an attempt often begins and fails, and anything may come in between.
fn attempts() -> impl Strategy<Value = Vec<Event>> {
    let attempt = prop_oneof![
        4 => exits().prop_map(|exit| vec![Event::Spawned, Event::LeaderExited(exit), Event::TreeEmpty]),
        3 => Just(vec![Event::ClockRanOut(Clock::Retry)]),
        1 => events().prop_map(|event| vec![event]),
    ];
    let rest = prop::collection::vec(attempt, 0..30);
    rest.prop_map(|events| std::iter::once(Event::Admitted).chain(events.into_iter().flatten()).collect())
}

/// Keeps the clocks as a runner would.
#[derive(Default)]
struct Armed(BTreeMap<Clock, u64>);

impl Armed {
    fn apply(&mut self, effects: &[Effect]) {
        for effect in effects {
            match effect {
                Effect::Arm(clock, ms) => {
                    self.0.insert(*clock, *ms);
                }
                Effect::Clear(clock) => {
                    self.0.remove(clock);
                }
                Effect::Finish => self.0.clear(),
                Effect::Spawn | Effect::Signal(_) | Effect::Look | Effect::NameSurvivors => {}
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    // proves F5: whatever races, exactly one end, and no effect after it
    #[test]
    fn there_is_one_end_and_nothing_after_it(policy in policies(), detached: bool, events in prop_oneof![prop::collection::vec(events(), 0..60), attempts()]) {
        let mut state = State::new(detached);
        let mut finishes = 0;
        for event in events {
            let before = state.clone();
            let done = step(&policy, state, event);
            finishes += done.effects.iter().filter(|effect| **effect == Effect::Finish).count();
            if before.is_ended() {
                prop_assert_eq!(&done.state, &before);
                prop_assert!(done.effects.is_empty());
            }
            prop_assert_eq!(done.state.is_ended(), finishes == 1);
            if let Some(place) = done.effects.iter().position(|effect| *effect == Effect::Finish) {
                prop_assert_eq!(place, done.effects.len() - 1);
            }
            state = done.state;
        }
    }

    // proves K1, K3: once a stop is under way, deadlines alone bring it to an end, through every level, in order
    #[test]
    fn a_stop_always_ends(policy in policies(), order in orders(), noise in prop::collection::vec(events(), 0..20), left in survivors()) {
        let mut state = step(&policy, State::new(true), Event::Admitted).state;
        let mut armed = Armed::default();
        let mut levels = Vec::new();
        let mut feed = |state: State, event: Event, armed: &mut Armed| {
            let done = step(&policy, state, event);
            armed.apply(&done.effects);
            levels.extend(done.effects.iter().filter_map(|effect| match effect {
                Effect::Signal(level) => Some(*level),
                _ => None,
            }));
            done.state
        };
        state = feed(state, Event::Spawned, &mut armed);
        state = feed(state, Event::Stop(order), &mut armed);
        for event in noise {
            state = feed(state, event, &mut armed);
        }
        for _ in 0..6 {
            if state.is_ended() {
                break;
            }
            prop_assert!(armed.0.contains_key(&Clock::Grace) || armed.0.contains_key(&Clock::Kill), "a stop without a deadline: {state:?}");
            let clock = if armed.0.contains_key(&Clock::Grace) { Clock::Grace } else { Clock::Kill };
            state = feed(state, Event::ClockRanOut(clock), &mut armed);
            if clock == Clock::Kill {
                state = feed(state, Event::Survivors(left.clone()), &mut armed);
            }
        }
        prop_assert!(state.is_ended(), "still {state:?}");
        prop_assert!(armed.0.is_empty());
        prop_assert!(levels.windows(2).all(|pair| pair[0] < pair[1]), "levels out of order: {levels:?}");
    }

    // proves K9: no attempt begins but by the rule, and none after a stop, a limit or an end
    #[test]
    fn attempts_are_counted_and_end_for_good(policy in policies(), events in attempts()) {
        let mut state = State::new(false);
        let (mut spawns, mut is_over) = (0, false);
        for event in events {
            let before = state.clone();
            let stops = matches!(event, Event::Stop(_));
            let done = step(&policy, state, event);
            let begins = done.effects.contains(&Effect::Spawn);
            spawns += u32::from(begins);
            prop_assert!(spawns <= 1 + policy.retries);
            prop_assert!(!(begins && is_over), "begun after a stop: {before:?}");
            let may_begin = matches!(before, State::Queued { .. } | State::Resting(_));
            prop_assert!(!begins || may_begin, "begun on top of another: {before:?}");
            if let State::Resting(now) = &done.state {
                prop_assert!(now.last != Exit::SUCCESS && now.attempt == spawns && now.attempt <= policy.retries);
            }
            if matches!(done.state, State::Starting { .. } | State::Running(_)) {
                prop_assert_eq!(done.state.attempt(), spawns);
            }
            is_over |= stops || matches!(done.state, State::Stopping(_) | State::Ended(_));
            state = done.state;
        }
    }

    // proves K9, K5: between two attempts there is nobody to be stopped, and it is over at once
    #[test]
    fn a_stop_while_resting_is_the_end(policy in policies(), order in orders(), exit in exits(), noise in events()) {
        prop_assume!(exit != Exit::SUCCESS);
        let policy = Policy { retries: policy.retries + 1, ..policy };
        let events = [Event::Admitted, Event::Spawned, Event::LeaderExited(exit), Event::TreeEmpty];
        let (resting, _) = live(&policy, events);
        prop_assert!(matches!(resting, State::Resting(_)), "{resting:?}");
        let done = step(&policy, resting, Event::Stop(order.clone()));
        prop_assert_eq!(&done.state, &State::Ended(Outcome::Cancelled { order, exit: Some(exit) }));
        prop_assert_eq!(&done.effects, &[Effect::Finish]);
        prop_assert!(step(&policy, done.state, noise).effects.is_empty());
    }

    // proves R1, R3: which clocks run follows from the state alone
    #[test]
    fn clocks_are_armed_by_rule(policy in policies(), detached: bool, events in prop_oneof![prop::collection::vec(events(), 0..40), attempts()]) {
        let policy = Policy { born_detached: detached, ..policy };
        let mut state = State::new(detached);
        let mut armed = Armed::default();
        for event in events {
            // Whatever follows when it rings, it does not run any more.
            if event == Event::ClockRanOut(Clock::Retry) {
                armed.0.remove(&Clock::Retry);
            }
            let done = step(&policy, state, event);
            armed.apply(&done.effects);
            state = done.state;
            let has = |clock| armed.0.contains_key(&clock);
            match &state {
                State::Queued { .. } | State::Starting { attempt: 1, .. } | State::Ended(_) => prop_assert!(armed.0.is_empty(), "{:?} in {state:?}", armed.0),
                State::Starting { .. } | State::Resting(_) => {
                    let minded = policy.foreground_ms.is_some() && (!state.detached() || detached);
                    prop_assert_eq!(has(Clock::Foreground), minded);
                    prop_assert_eq!(has(Clock::Ttl), state.detached() && policy.ttl_ms.is_some());
                    prop_assert_eq!(has(Clock::Retry), matches!(state, State::Resting(_)));
                    prop_assert!(!has(Clock::Silence) && !has(Clock::Stall) && !has(Clock::Leave) && !has(Clock::Grace) && !has(Clock::Kill));
                }
                State::Running(now) => {
                    prop_assert!(!has(Clock::Retry));
                    prop_assert_eq!(has(Clock::Stall), policy.stall.is_some());
                    prop_assert!(!now.stalled || policy.stall.is_some_and(|stall| stall.policy == OnStall::Tell));
                    prop_assert_eq!(has(Clock::Ttl), now.detached && policy.ttl_ms.is_some());
                    prop_assert_eq!(has(Clock::Silence), policy.silence_ms.is_some());
                    prop_assert!(!has(Clock::Grace) && !has(Clock::Kill));
                    prop_assert_eq!(has(Clock::Leave), !now.detached && now.leader.exit().is_some());
                    let minded = policy.foreground_ms.is_some() && (!now.detached || detached);
                    prop_assert_eq!(has(Clock::Foreground), minded);
                }
                State::Stopping(now) => {
                    prop_assert!(!has(Clock::Foreground) && !has(Clock::Ttl) && !has(Clock::Silence) && !has(Clock::Leave) && !has(Clock::Retry) && !has(Clock::Stall));
                    prop_assert_eq!(has(Clock::Kill), now.level == Level::Kill);
                    prop_assert_eq!(has(Clock::Grace), now.level < Level::Kill);
                }
            }
        }
    }

    // proves S5: a stop before the pid is known is never forgotten
    #[test]
    fn a_stop_while_starting_is_kept(policy in policies(), order in orders(), exit in exits()) {
        let starting = step(&policy, State::new(true), Event::Admitted).state;
        let kept = step(&policy, starting, Event::Stop(order.clone()));
        prop_assert!(kept.effects.is_empty());
        let spawned = step(&policy, kept.state, Event::Spawned);
        let is_stopping = matches!(spawned.state, State::Stopping(_));
        prop_assert!(is_stopping);
        prop_assert_eq!(spawned.effects.contains(&Effect::Signal(order.level)), order.level > Level::Drain);
        let reached = Event::Signalled(Delivered { leader: true, others: false, gentle: true });
        let reached = step(&policy, spawned.state, reached).state;
        let exited = step(&policy, reached, Event::LeaderExited(exit)).state;
        let ended = step(&policy, exited, Event::TreeEmpty).state;
        prop_assert_eq!(ended.status(), "cancelled");
    }
}

fn running() -> State {
    let policy = Policy::default();
    let starting = step(&policy, State::new(true), Event::Admitted).state;
    step(&policy, starting, Event::Spawned).state
}

fn run(policy: &Policy, state: State, events: Vec<Event>) -> State {
    events.into_iter().fold(state, |state, event| step(policy, state, event).state)
}

// proves R2: a natural end at the deadline is not a time-out
#[test]
fn an_end_that_no_signal_reached_is_the_commands_own() {
    let policy = Policy { ttl_ms: Some(5), ..Policy::default() };
    let ended = run(
        &policy,
        running(),
        vec![
            Event::ClockRanOut(Clock::Ttl),
            Event::Signalled(Delivered::default()),
            Event::LeaderExited(Exit::Code(0)),
            Event::TreeEmpty,
        ],
    );
    assert_eq!(ended, State::Ended(Outcome::Exited(Exit::Code(0))));
}

// proves R6: what was used up stays used up, whoever was quicker
#[test]
fn a_budget_that_ran_out_is_the_end_also_of_one_that_no_signal_reached() {
    let ended = run(
        &Policy::default(),
        running(),
        vec![
            Event::BudgetRanOut { budget: Budget::Output, limit: 10, used: 11 },
            Event::Signalled(Delivered::default()),
            Event::LeaderExited(Exit::Code(0)),
            Event::TreeEmpty,
        ],
    );
    let (budget, exit) = (Budget::Output, Some(Exit::Code(0)));
    assert_eq!(ended, State::Ended(Outcome::OverBudget { budget, limit: 10, used: 11, exit }));
}

#[test]
fn a_sigkill_that_came_too_late_shows_in_the_exit_status() {
    let kill = Event::Stop(StopOrder::new(Level::Kill, "tester", None));
    let only_leader = Event::Signalled(Delivered { leader: true, others: false, gentle: false });
    let own = run(
        &Policy::default(),
        running(),
        vec![kill.clone(), only_leader.clone(), Event::LeaderExited(Exit::Code(3)), Event::TreeEmpty],
    );
    assert_eq!(own, State::Ended(Outcome::Exited(Exit::Code(3))));
    let killed = Exit::Signal { signal: 9, core_dumped: false };
    let ours = run(
        &Policy::default(),
        running(),
        vec![kill, only_leader, Event::LeaderExited(killed), Event::TreeEmpty],
    );
    assert_eq!(ours.status(), "cancelled");
}

// proves K6: blank reasons are none
#[test]
fn a_blank_reason_is_none() {
    assert_eq!(StopOrder::new(Level::Kill, "tester", Some("  \t ")).reason, None);
    assert_eq!(StopOrder::new(Level::Kill, "tester", Some(" why ")).reason.as_deref(), Some("why"));
}

fn live(policy: &Policy, events: impl IntoIterator<Item = Event>) -> (State, Vec<Effect>) {
    let mut last = Vec::new();
    let state = events.into_iter().fold(State::new(false), |state, event| {
        let done = step(policy, state, event);
        last = done.effects;
        done.state
    });
    (state, last)
}

// proves F4, F6: the limit of whoever waited detaches or stops, by policy, and then applies no more
#[test]
fn the_foreground_limit_detaches_if_it_shall() {
    let stop = Policy { foreground_ms: Some(10), ttl_ms: Some(20), ..Policy::default() };
    let detach = Policy { on_foreground_limit: OnLimit::Detach, ..stop };
    let rings = || [Event::Admitted, Event::Spawned, Event::ClockRanOut(Clock::Foreground)];
    assert!(matches!(live(&stop, rings()).0, State::Stopping(_)));
    let (state, effects) = live(&detach, rings());
    assert_eq!(
        state,
        State::Running(Running { leader: Leader::Alive, detached: true, attempt: 1, stalled: false })
    );
    assert_eq!(effects, [Effect::Clear(Clock::Foreground), Effect::Arm(Clock::Ttl, 20)]);
}

// proves A3: who waits is released when the leader has left others behind, and not for those that are about to end
#[test]
fn a_leader_that_leaves_others_behind_detaches() {
    let policy = Policy::default();
    let exited = Event::LeaderExited(Exit::Code(3));
    let gone = [Event::Admitted, Event::Spawned, exited.clone()];
    let (state, effects) = live(&policy, gone.clone());
    assert!(!state.detached());
    assert_eq!(effects, [Effect::Arm(Clock::Leave, Policy::LEAVE_MS)]);
    let (state, effects) = live(&policy, gone.clone().into_iter().chain([Event::ClockRanOut(Clock::Leave)]));
    assert!(state.detached() && !state.is_ended());
    assert_eq!(effects, [Effect::Clear(Clock::Leave)]);
    let (state, _) = live(&policy, gone.into_iter().chain([Event::TreeEmpty]));
    assert_eq!(state.outcome(), Some(&Outcome::Exited(Exit::Code(3))));
}

// proves K9, R1: the limits of a task count over all attempts, and end it also between two of them
#[test]
fn a_limit_ends_a_task_that_rests() {
    let policy = Policy { foreground_ms: Some(10), ttl_ms: Some(20), retries: 3, ..Policy::default() };
    let exit = Exit::Code(7);
    let failed = [Event::Admitted, Event::Spawned, Event::LeaderExited(exit), Event::TreeEmpty];
    let (resting, effects) = live(&policy, failed);
    assert_eq!(effects, [Effect::Clear(Clock::Leave), Effect::Arm(Clock::Retry, 1_000)]);
    let timed_out = step(&policy, resting.clone(), Event::ClockRanOut(Clock::Foreground)).state;
    let exit = Some(exit);
    let outcome = Outcome::TimedOut { clock: Clock::Foreground, limit_ms: 10, reason: None, exit };
    assert_eq!(timed_out, State::Ended(outcome));
    let detached = step(&policy, resting, Event::Detach);
    assert!(detached.state.detached());
    assert_eq!(detached.effects, [Effect::Clear(Clock::Foreground), Effect::Arm(Clock::Ttl, 20)]);
    let again = step(&policy, detached.state, Event::ClockRanOut(Clock::Retry));
    let second = State::Starting { detached: true, stop: None, attempt: 2 };
    assert_eq!((again.state, again.effects), (second.clone(), vec![Effect::Spawn]));
    let second = step(&policy, second, Event::Spawned);
    assert!(second.effects.is_empty(), "its time to live runs already: {:?}", second.effects);
}

// proves R7: nothing is looked at unless it shall be, and what does not get on is told or stopped
#[test]
fn a_task_that_does_not_get_on_is_stalled_until_it_does() {
    let tell = Policy { stall: Some(Stall { after_ms: 30, policy: OnStall::Tell }), ..Policy::default() };
    let again = [Effect::Arm(Clock::Stall, 30)];
    let (begun, effects) = live(&tell, [Event::Admitted, Event::Spawned]);
    assert_eq!(effects, again);
    let looked = step(&tell, begun.clone(), Event::ClockRanOut(Clock::Stall));
    assert_eq!((&looked.state, looked.effects.as_slice()), (&begun, [Effect::Look].as_slice()));
    let event = || Event::Stalled { reason: "nothing moved".to_owned() };
    let stalled = step(&tell, begun.clone(), event());
    assert!(stalled.state.is_stalled());
    assert_eq!(stalled.effects, again);
    let recovered = step(&tell, stalled.state, Event::Progressed);
    assert_eq!((recovered.state, recovered.effects.as_slice()), (begun.clone(), again.as_slice()));

    let stop = Policy { stall: Some(Stall { after_ms: 30, policy: OnStall::Stop }), ..Policy::default() };
    let reached = Event::Signalled(Delivered { leader: true, others: false, gentle: true });
    let died = Exit::Signal { signal: 15, core_dumped: false };
    let ended =
        run(&stop, begun.clone(), vec![event(), reached, Event::LeaderExited(died), Event::TreeEmpty]);
    let reason = Some("nothing moved".to_owned());
    let outcome = Outcome::TimedOut { clock: Clock::Stall, limit_ms: 30, reason, exit: Some(died) };
    assert_eq!(ended, State::Ended(outcome));

    let none = Policy::default();
    assert!(live(&none, [Event::Admitted, Event::Spawned]).1.is_empty());
    assert_eq!(step(&none, begun.clone(), event()).state, begun);
}

proptest! {
    // proves R7: any byte is progress and so is work; a task that waits for others is excused, and one that does neither is not
    #[test]
    fn two_looks_are_judged(before_bytes in 0..9u64, more_bytes in 0..2u64, before_ms in 0..900u64, cpu_ms in 0..200u64, elapsed_ms in 1..20_000u64, excused: bool) {
        let before = Evidence { output_bytes: before_bytes, cpu_ms: before_ms };
        let now = Evidence { output_bytes: before_bytes + more_bytes, cpu_ms: before_ms + cpu_ms };
        let verdict = judge(before, now, elapsed_ms, excused);
        let moves = more_bytes > 0 || (cpu_ms >= 10 && cpu_ms * 100 > elapsed_ms);
        let expected = match (moves, excused) {
            (true, _) => Verdict::Progress,
            (false, true) => Verdict::Excused,
            (false, false) => Verdict::Stalled,
        };
        prop_assert_eq!(verdict, expected);
        // Sums that shrink (a process took its count along) are no progress, and no overflow.
        prop_assert!(judge(now, Evidence::default(), elapsed_ms, excused) != Verdict::Progress);
    }
}
