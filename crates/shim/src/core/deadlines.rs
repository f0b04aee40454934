//! When the clocks of a task ring. It measures nothing: whoever asks says what time it is.

use belay_model::Clock;

/// When each clock rings, in monotonic milliseconds.
#[derive(Debug, Default)]
pub(super) struct Deadlines([Option<u64>; Clock::ALL.len()]);

impl Deadlines {
    const fn slot(clock: Clock) -> usize {
        match clock {
            Clock::Foreground => 0,
            Clock::Ttl => 1,
            Clock::Silence => 2,
            Clock::Leave => 3,
            Clock::Grace => 4,
            Clock::Kill => 5,
        }
    }

    pub(super) const fn get(&self, clock: Clock) -> Option<u64> {
        self.0[Self::slot(clock)]
    }

    pub(super) const fn set(&mut self, clock: Clock, at: Option<u64>) {
        self.0[Self::slot(clock)] = at;
    }

    pub(super) fn next(&self) -> Option<u64> {
        self.0.iter().flatten().min().copied()
    }

    /// Takes the earliest clock that is due.
    pub(super) fn take_due(&mut self, mono_ms: u64) -> Option<Clock> {
        let due = Clock::ALL.into_iter().filter(|clock| self.get(*clock).is_some_and(|at| at <= mono_ms));
        let clock = due.min_by_key(|clock| self.get(*clock))?;
        self.set(clock, None);
        Some(clock)
    }
}
