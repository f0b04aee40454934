//! The parser on a leash: a thread of its own with a large stack, a limit of time, and a limit on how many run at once.
//!
//! A thread cannot be ended from outside. One that is late is left alone until it ends by itself, and counts among
//! those that run until then; so at most [`MAX_AT_ONCE`] can ever be under way, and when they are, nothing is parsed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use crate::reading::Why;

/// How many parsers may run at once, late ones included.
const MAX_AT_ONCE: usize = 4;

/// Far more than the caps on nesting need; only what is touched takes memory.
const STACK_BYTES: usize = 64 << 20;

/// The leash that all readings of one reader share.
#[derive(Clone, Debug, Default)]
pub(crate) struct Leash {
    running: Arc<AtomicUsize>,
}

impl Leash {
    /// Runs `work` elsewhere and waits for it no longer than `limit`.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        limit: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Why> {
        let place = self.place().ok_or(Why::Busy)?;
        let (sender, receiver) = sync_channel(1);
        let body = move || {
            let result = work();
            drop(place);
            // Nobody may be waiting any more, which is no fault.
            let _ = sender.send(result);
        };
        let thread = thread::Builder::new().name("shell-reader".to_owned()).stack_size(STACK_BYTES);
        let thread = thread.spawn(body).map_err(|_| Why::Busy)?;
        let result = match receiver.recv_timeout(limit) {
            Err(RecvTimeoutError::Timeout) => return Err(Why::TookTooLong),
            // The thread goes without a result: the parser panicked, which ends its thread and nothing else.
            Err(RecvTimeoutError::Disconnected) => Err(Why::ReaderFailed),
            Ok(result) => Ok(result),
        };
        // It has nothing left to do; after this nothing of it is left. A panic has been told already.
        let _ = thread.join();
        result
    }

    fn place(&self) -> Option<Place> {
        let more = |running| (running < MAX_AT_ONCE).then_some(running + 1);
        self.running.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(Place(Arc::clone(&self.running)))
    }
}

/// A place among those that run, given back however its thread ends.
#[derive(Debug)]
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    const LONG: Duration = Duration::from_secs(10);

    #[test]
    fn what_is_late_is_left_alone_and_counted_until_it_ends() {
        let leash = Leash::default();
        let (mut releases, mut ends) = (Vec::new(), Vec::new());
        for _ in 0..MAX_AT_ONCE {
            let (release, wait) = channel::<()>();
            let (end, ended) = channel::<()>();
            releases.push(release);
            ends.push(ended);
            let late = leash.run(Duration::ZERO, move || {
                let _end = end;
                wait.recv().ok()
            });
            assert_eq!(late, Err(Why::TookTooLong));
        }
        assert_eq!(leash.run(LONG, || 1), Err(Why::Busy));
        drop(releases);
        for ended in ends {
            assert!(ended.recv_timeout(LONG).is_err());
        }
        let deadline = std::time::Instant::now() + LONG;
        while leash.run(LONG, || 1) != Ok(1) {
            assert!(std::time::Instant::now() < deadline, "the places were not given back");
        }
    }

    #[test]
    fn a_panic_stays_where_it_was() {
        let leash = Leash::default();
        for _ in 0..2 * MAX_AT_ONCE {
            assert_eq!(
                leash.run(LONG, || std::panic::resume_unwind(Box::new(0))),
                Err::<(), _>(Why::ReaderFailed)
            );
        }
        assert_eq!(leash.run(LONG, || 2), Ok(2));
    }
}
