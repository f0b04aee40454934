//! Comparing fairly: contenders take turns within each round, and medians of rounds are what counts.

use std::time::{Duration, Instant};

use crate::run::Outcome;

/// How many rounds a comparison has, besides one to warm up.
pub(crate) const ROUNDS: usize = 7;

/// One way of doing a piece of work; returns how long it took.
pub(crate) type Contender<'a> = Box<dyn FnMut() -> Outcome<Duration> + 'a>;

/// The median of each contender: of the rounds' medians, with `times` turns for each in every round.
pub(crate) fn compare<const N: usize>(
    rounds: usize,
    times: usize,
    mut contenders: [Contender<'_>; N],
) -> Outcome<[Duration; N]> {
    let mut medians = [const { Vec::<Duration>::new() }; N];
    for round in 0..=rounds {
        let mut taken = [const { Vec::<Duration>::new() }; N];
        for _ in 0..times {
            for (contender, taken) in contenders.iter_mut().zip(&mut taken) {
                taken.push(contender()?);
            }
        }
        if round > 0 {
            for (taken, medians) in taken.into_iter().zip(&mut medians) {
                medians.push(median(taken));
            }
        }
    }
    Ok(medians.map(median))
}

pub(crate) fn median(mut values: Vec<Duration>) -> Duration {
    values.sort();
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// How long it takes.
pub(crate) fn time(work: impl FnOnce() -> Outcome) -> Outcome<Duration> {
    let began = Instant::now();
    work()?;
    Ok(began.elapsed())
}

/// How many a second, when so many took so long.
pub(crate) fn per_second(count: usize, took: Duration) -> f64 {
    number(count as u64) / took.as_secs_f64()
}

/// A count as a number to divide.
#[expect(clippy::cast_precision_loss, reason = "counts and bytes here are far below 2^52")]
pub(crate) fn number(count: u64) -> f64 {
    count as f64
}

pub(crate) fn ratio(ours: Duration, theirs: Duration) -> f64 {
    ours.as_secs_f64() / theirs.as_secs_f64()
}
