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
        for turn in 0..times {
            for at in order(N, turn) {
                taken[at].push(contenders[at]()?);
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

/// The order of the contenders in one turn: the next one begins in the next turn, so that none always follows the same.
pub(crate) fn order(contenders: usize, turn: usize) -> impl Iterator<Item = usize> {
    (0..contenders).map(move |at| (at + turn) % contenders)
}

/// The value below which this part of the values lies, between two values if need be.
pub(crate) fn quantile(values: &[f64], part: f64) -> Option<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let place = part * number(values.len().checked_sub(1)? as u64);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index of the slice")]
    let (below, above) = (place.floor() as usize, place.ceil() as usize);
    Some(values[below] + (values[above] - values[below]) * place.fract())
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

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn contenders_take_turns_in_rotating_order() {
        let calls = RefCell::new(Vec::new());
        let contender = |name: char| -> Contender<'_> {
            let calls = &calls;
            Box::new(move || {
                calls.borrow_mut().push(name);
                Ok(Duration::from_millis(1))
            })
        };
        compare(1, 2, [contender('a'), contender('b')]).unwrap();
        assert_eq!(calls.into_inner(), ['a', 'b', 'b', 'a', 'a', 'b', 'b', 'a']);
    }

    #[test]
    fn first_round_does_not_count() {
        let mut times = [900, 1, 2, 3].into_iter();
        let contender: Contender<'_> =
            Box::new(|| Ok(Duration::from_millis(times.next().unwrap_or_default())));
        assert_eq!(compare(3, 1, [contender]).unwrap(), [Duration::from_millis(2)]);
    }

    #[test]
    fn quantiles_lie_between_values() {
        let values = [4.0, 1.0, 2.0, 3.0, 5.0];
        let parts = [0.0, 0.25, 0.5, 0.75, 1.0].map(|part| quantile(&values, part));
        assert_eq!(parts, [1.0, 2.0, 3.0, 4.0, 5.0].map(Some));
        assert_eq!(quantile(&[1.0, 2.0], 0.5), Some(1.5));
        assert_eq!(quantile(&[], 0.5), None);
    }
}
