//! Who a child that was just made is, without asking `/proc` where the clock says it too. Asking costs more than it
//! seems: the kernel lets nobody look at a process that is about to execute.

use std::sync::atomic::{AtomicBool, Ordering};

use rustix::time::{ClockId, clock_gettime};

use crate::process::{Identity, Pid, identity};

/// `/proc` counts start times in these, on every machine that Linux runs on today.
const TICK_NS: u64 = 10_000_000;

/// Set once the clock and `/proc` were seen to agree in this process: a sandbox may show a `/proc` of its own making.
static AGREED: AtomicBool = AtomicBool::new(false);

/// Ticks since boot, now.
pub(crate) fn ticks() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let (seconds, nanoseconds) = (u64::try_from(now.tv_sec), u64::try_from(now.tv_nsec));
    seconds.unwrap_or(0).saturating_mul(1_000_000_000).saturating_add(nanoseconds.unwrap_or(0)) / TICK_NS
}

/// The identity of a child that was made between these two instants and has not been reaped.
pub(crate) fn child(pid: Pid, before: u64, after: u64) -> Option<Identity> {
    if before == after && AGREED.load(Ordering::Relaxed) {
        return Some(Identity { pid, start_ticks: before });
    }
    let told = identity(pid)?;
    AGREED.store((before..=after).contains(&told.start_ticks), Ordering::Relaxed);
    Some(told)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// proves K8: the identity that is signalled later is the one that `/proc` shows.
    #[test]
    fn the_clock_says_what_proc_says() {
        for _ in 0..200 {
            let before = ticks();
            let mut made = Command::new("true").stdin(Stdio::null()).spawn().unwrap();
            let after = ticks();
            let pid = Pid::try_from(made.id()).unwrap();
            assert_eq!(child(pid, before, after), identity(pid));
            made.wait().unwrap();
        }
        assert!(AGREED.load(Ordering::Relaxed));
    }
}
