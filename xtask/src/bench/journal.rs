//! `journal`: whether a start becomes slower with the number of tasks that are remembered.

use std::time::Duration;

use belay_client::Client;
use serde_json::json;

use super::measure::{median, ratio, time};
use super::report::{Report, Target};
use super::start::{TRUE, bare};
use super::subject::Subject;
use super::value::{Unit, Value};
use super::wire::Start;
use super::world::{World, start_params};
use crate::run::Outcome;

const SIZES: [usize; 3] = [10, 1_000, 10_000];
const SAMPLES: usize = 300;

/// How many of the tasks that fill the journal are on their way at once.
const AT_ONCE: usize = 4;

pub(crate) fn run(subject: &Subject, report: &mut Report) -> Outcome {
    let world = World::new(subject)?;
    let mut client = world.connect()?;
    let mut ended = 0;
    let mut figures: Vec<f64> = Vec::new();
    for size in SIZES {
        fill(&world, size.saturating_sub(ended))?;
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..SAMPLES {
            ours.push(one(&mut client)?);
            theirs.push(bare()?);
        }
        ended = size + SAMPLES;
        let (ours, theirs) = (median(ours), median(theirs));
        figures.push(ratio(ours, theirs));
        let what = format!("start to end of `true` by RPC with {size} ended tasks");
        report.times("journal", &what, ours, ("bare", theirs), Target::None);
    }
    if let [base, .., last] = figures.as_slice() {
        report.alone(
            "journal",
            "growth of the ratio from 10 to 10 000",
            Value::new(last / base, Unit::Ratio),
            last / base,
            Target::AtMost(1.25),
        );
    }
    Ok(())
}

fn one(client: &mut Client) -> Outcome<Duration> {
    let params = start_params(&[TRUE], &json!({"answer": "ended"}))?;
    time(|| client.call::<Start>(&params)?.completed())
}

fn fill(world: &World, count: usize) -> Outcome {
    std::thread::scope(|scope| {
        let part = count.div_ceil(AT_ONCE);
        let threads: Vec<_> = (0..AT_ONCE)
            .map(|_| {
                scope.spawn(move || {
                    let mut client = world.connect()?;
                    (0..part).try_for_each(|_| one(&mut client).map(drop))
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread has panicked")?)
    })
}
