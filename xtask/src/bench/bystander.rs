//! A second client that asks `daemon/status` every millisecond while something else is measured, and its longest wait.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use belay_client::Client;
use belay_protocol::daemon::DaemonStatusParams;

use super::measure::time;
use super::wire::DaemonStatus;
use super::world::World;
use crate::run::Outcome;

const PAUSE: Duration = Duration::from_millis(1);
/// How long a wait can be and still be measured.
const LIMIT: Duration = Duration::from_mins(5);
/// How long the client asks before the work begins: its first calls are slower.
const LEAD: Duration = Duration::from_millis(50);

/// Runs the work, and returns its result with the longest that another client waited for an answer meanwhile.
pub(crate) fn longest_wait<T>(world: &World, work: impl FnOnce() -> Outcome<T>) -> Outcome<(T, Duration)> {
    let mut client = world.connect()?;
    for _ in 0..10 {
        status(&mut client)?;
    }
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| ask_until(&mut client, &is_over));
        std::thread::sleep(LEAD);
        let result = work();
        is_over.store(true, Ordering::Relaxed);
        let longest = asking.join().map_err(|_| "a thread has panicked")??;
        Ok((result?, longest))
    })
}

fn status(client: &mut Client) -> Outcome<Duration> {
    time(|| {
        client.call_by::<DaemonStatus>(&DaemonStatusParams::default(), Some(Instant::now() + LIMIT))?;
        Ok(())
    })
}

fn ask_until(client: &mut Client, is_over: &AtomicBool) -> Outcome<Duration> {
    let mut longest = Duration::ZERO;
    while !is_over.load(Ordering::Relaxed) {
        longest = longest.max(status(client)?);
        std::thread::sleep(PAUSE);
    }
    Ok(longest)
}
