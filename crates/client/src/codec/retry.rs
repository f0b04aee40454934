//! When to connect again and when to give up: a retry delay that grows, and a limit of fruitless attempts.

use std::time::Duration;

use crate::error::ClientError;

/// How many connections in a row may be lost without any progress.
const MAX_FRUITLESS: u32 = 5;

/// What each fruitless attempt adds to the delay before the next one.
const DELAY: Duration = Duration::from_millis(20);

#[derive(Debug, Default)]
pub(super) struct Retry {
    /// Connections that were lost since the last progress.
    fruitless: u32,
}

impl Retry {
    /// A reply, output or an event has arrived.
    pub(super) const fn made_progress(&mut self) {
        self.fruitless = 0;
    }

    /// How long to wait before the next attempt, or the error if there is none.
    pub(super) fn after(&mut self, error: ClientError) -> Result<Duration, ClientError> {
        // A start can fail because the last daemon, or another that is being started, still has the locks.
        let may_pass = error.is_disconnect() || matches!(error, ClientError::StartFailed { .. });
        if !may_pass || self.fruitless >= MAX_FRUITLESS {
            // The next call begins with all of its attempts.
            self.fruitless = 0;
            return Err(error);
        }
        self.fruitless += 1;
        Ok(DELAY * (self.fruitless - 1))
    }
}
