//! The timer of the loop: one timerfd, set to the next deadline. What is due then is decided by the core.

use std::cell::Cell;
use std::io;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::net::unix::pipe::Receiver;

/// Setting it is one system call and wakes no thread. A timer of the async runtime that is due before all others wakes the very
/// loop that sets it.
#[derive(Debug)]
pub(crate) struct LoopTimer {
    /// Read like a pipe that has something to read when the timer expires.
    timer: Receiver,
    rings_at_ms: Cell<Option<u64>>,
}

impl LoopTimer {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(Self { timer: Receiver::from_owned_fd_unchecked(timer)?, rings_at_ms: Cell::new(None) })
    }

    /// Expires at this time of the monotonic clock or before it: a loop that is woken too early sets it again.
    pub(crate) fn ring_by(&self, at_ms: u64) {
        if self.rings_at_ms.get().is_some_and(|rings_at_ms| rings_at_ms <= at_ms) {
            return;
        }
        // 0 would disarm it.
        let at_ms = at_ms.max(1);
        let it_value = Timespec {
            tv_sec: i64::try_from(at_ms / 1000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(at_ms % 1000 * 1_000_000).unwrap_or(0),
        };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value };
        if timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &once).is_ok() {
            self.rings_at_ms.set(Some(at_ms));
        }
    }

    /// Waits until it has expired.
    pub(crate) async fn rung(&self) -> io::Result<()> {
        loop {
            self.timer.readable().await?;
            match self.timer.try_read(&mut [0; 8]) {
                Ok(_) => {
                    self.rings_at_ms.set(None);
                    return Ok(());
                }
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
        }
    }
}
