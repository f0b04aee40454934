//! Runs of the simulator: many seeds, and the daemon killed at every single step of a small scenario. It is about the
//! cores and the journal; what only an operating system can do is tested end to end.
//!
//! `BELAY_SEED=…` runs one seed, `BELAY_TEST_LONG=1` runs 20 000.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use belay_protocol::task::OutcomeKind;
use belay_testkit::sim::{Options, Report, Scenario, run};

/// The ordinary run takes no longer, however slow the machine; it always runs the fewest.
const ORDINARY: Duration = Duration::from_secs(10);
const FEWEST: u64 = 30;

/// The small scenario has far fewer steps.
const MOST_STEPS: u64 = 5_000;

fn is_long() -> bool {
    std::env::var_os("BELAY_TEST_LONG").is_some()
}

fn random(seed: u64) -> Options {
    Options { seed, scenario: Scenario::Random, crash_at: Vec::new() }
}

fn small(seed: u64, crash_at: &[u64]) -> Options {
    Options { seed, scenario: Scenario::Small, crash_at: crash_at.to_vec() }
}

fn must_pass(options: &Options) -> Report {
    run(options).unwrap_or_else(|failure| panic!("{failure}"))
}

/// What some seeds came to.
#[derive(Debug, Default)]
struct Tally {
    runs: u64,
    crashes: u64,
    ends: BTreeMap<OutcomeKind, u64>,
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.runs += other.runs;
        self.crashes += other.crashes;
        for (kind, count) in other.ends {
            *self.ends.entry(kind).or_default() += count;
        }
    }
}

/// Runs one seed after the other, until there are none left or enough time has passed.
fn run_seeds(next: &AtomicU64, last: u64) -> Tally {
    let begun = Instant::now();
    let mut tally = Tally::default();
    loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed > last || (!is_long() && tally.runs >= FEWEST && begun.elapsed() > ORDINARY) {
            return tally;
        }
        let Report { crashes, ends, .. } = must_pass(&random(seed));
        tally.add(Tally { runs: 1, crashes, ends });
    }
}

// proves S1, S2, K3, K4, K9, K10, R1, R2, R3, R4, R5, R7, W2, W3, W4, D1, D2, D3, D7
#[test]
fn every_rule_holds_whatever_happens() {
    let seeds = match std::env::var("BELAY_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed..=seed,
        None if is_long() => 0..=19_999,
        None => 0..=299,
    };
    let (next, last) = (AtomicU64::new(*seeds.start()), *seeds.end());
    let threads = if is_long() { std::thread::available_parallelism().map_or(1, usize::from) } else { 1 };
    let mut all = Tally::default();
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(|| run_seeds(&next, last))).collect();
        for thread in running {
            all.add(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
    });
    let Tally { runs, crashes, ends } = all;
    println!("{runs} seeds, {crashes} crashes, ends: {ends:?}");
    // A simulator that no longer reaches an end says nothing about it.
    let never = |kind: &OutcomeKind| *kind == OutcomeKind::Budget || kind.is_of_agent();
    let kinds = OutcomeKind::ALL.iter().filter(|kind| !never(kind));
    let missing: Vec<_> = kinds.filter(|kind| !ends.contains_key(*kind)).collect();
    assert!(runs < FEWEST || missing.is_empty(), "no task ended as {missing:?}");
}

// proves S1, S2, W3, W4, D1, D2
#[test]
fn the_daemon_may_die_at_every_step() {
    for seed in if is_long() { 1..=20 } else { 4..=5 } {
        let passed = |step: &u64| must_pass(&small(seed, &[*step])).crashes == 0;
        let steps = (1..=MOST_STEPS).find(passed).unwrap_or(0);
        println!("seed {seed}: killed at each of {} steps", steps - 1);
        assert!(steps > 50, "the scenario has become too short to show anything: {steps} steps");
    }
}

// proves D1, D2: also a daemon that has just adopted may die at every step
#[test]
fn the_daemon_may_die_at_every_step_and_again_soon_after() {
    let (pauses, stride): (&[u64], _) =
        if is_long() { (&[1, 2, 3, 4, 5, 6, 8, 11, 15, 21, 30], 1) } else { (&[2], 3) };
    for pause in pauses {
        let both = |step: &u64| must_pass(&small(1, &[*step, step + pause])).crashes > 0;
        let steps = (1..=MOST_STEPS).step_by(stride).take_while(both).count();
        assert!(steps * stride > 50, "the scenario has become too short to show anything: {steps} steps");
    }
}

#[test]
fn a_seed_is_always_the_same_run() {
    for seed in [3, 6, 31] {
        assert_eq!(must_pass(&random(seed)), must_pass(&random(seed)), "seed {seed}");
    }
}
