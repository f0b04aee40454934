//! Waiting for a level to be reached, with a deadline and the last thing seen. It is not for measuring time.

use std::time::{Duration, Instant};

/// Long enough for anything that is going to happen at all, on a busy machine too.
pub const LONG: Duration = Duration::from_secs(30);

const PAUSE: Duration = Duration::from_millis(3);

/// Looks until it is so. What is not so yet is told as an error, and shown if the deadline passes.
#[track_caller]
pub fn wait_until<T>(what: &str, within: Duration, mut look: impl FnMut() -> Result<T, String>) -> T {
    let until = Instant::now() + within;
    loop {
        let seen = match look() {
            Ok(found) => return found,
            Err(seen) => seen,
        };
        assert!(Instant::now() < until, "{what}: not so within {within:?}; last seen: {seen}");
        std::thread::sleep(PAUSE);
    }
}
