//! `rate`: tasks a second with two clients at once, against two threads that spawn by themselves.

use std::time::Duration;

use belay_client::Client;
use serde_json::json;

use super::measure::{ROUNDS, compare, per_second, time};
use super::report::{Report, Target};
use super::start::{TRUE, bare};
use super::subject::Subject;
use super::value::{Unit, Value};
use super::wire::Start;
use super::world::{World, start_params};
use crate::run::Outcome;

const CLIENTS: usize = 2;
const EACH: usize = 200;

pub(crate) fn run(subject: &Subject, report: &mut Report) -> Outcome {
    let world = World::new(subject)?;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(world.connect()?);
    }
    let ours = || both(&mut clients, client_tasks);
    let theirs = || both(&mut [(), ()], |()| (0..EACH).try_for_each(|_| bare().map(drop)));
    let [ours, theirs] = compare(subject.rounds(ROUNDS), 1, [Box::new(ours), Box::new(theirs)])?;
    let [ours, theirs] =
        [ours, theirs].map(|took| Value::new(per_second(CLIENTS * EACH, took), Unit::PerSecond));
    report.share(
        "rate",
        "`true` by RPC, two clients",
        ours,
        ("two threads, bare", theirs),
        Target::AtLeast(0.55),
    );
    Ok(())
}

/// Runs the work on every one at the same time, and takes the time until all are done.
pub(crate) fn both<T: Send>(each: &mut [T], work: fn(&mut T) -> Outcome) -> Outcome<Duration> {
    time(|| {
        std::thread::scope(|scope| {
            let threads: Vec<_> = each.iter_mut().map(|one| scope.spawn(move || work(one))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread has panicked")?)
        })
    })
}

fn client_tasks(client: &mut Client) -> Outcome {
    let params = start_params(&[TRUE], &json!({"answer": "ended"}))?;
    (0..EACH).try_for_each(|_| client.call::<Start>(&params)?.completed())
}
