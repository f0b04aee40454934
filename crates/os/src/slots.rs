//! Reserved descriptor slots: low descriptor numbers that hold a child's streams while it is
//! spawned, so that the child copies a few entries of the caller's descriptor table instead of all
//! of them (docs/decisions/0021). It does not start processes: `spawn` uses the slots if the
//! process has reserved them.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::{DupFlags, Errno, dup3, fcntl_dupfd_cloexec};

/// The lowest number of a slot: a child's streams go to 0, 1 and 2.
pub(crate) const FIRST_SLOT: RawFd = 3;

/// The slots of this process, if it has reserved any. The lock is held while the slots contain a
/// child's streams: from before the clone until the child has executed or exited.
static RESERVED: Mutex<Option<Slots>> = Mutex::new(None);

fn lock() -> MutexGuard<'static, Option<Slots>> {
    RESERVED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The reservation of this process. Dropping it closes the slots; later spawns copy the whole
/// descriptor table.
#[derive(Debug)]
#[must_use = "dropping the reservation closes the slots"]
pub struct Reservation(());

/// Reserves four low descriptor numbers for [`spawn`](crate::spawn::spawn), each open on
/// `/dev/null` and close-on-exec.
///
/// Call this before the process opens many descriptors: a spawn copies every descriptor below the
/// highest slot. While the reservation exists, spawns of this process run one at a time, and a
/// child gets its three streams and no other descriptor, not even one that is not close-on-exec.
///
/// A spawn opens and closes copies of the child's streams in the caller. If a stream is a file on
/// which the caller holds POSIX record locks (`fcntl`), that releases them, as closing any
/// descriptor of the file does.
///
/// Fails with [`io::ErrorKind::AlreadyExists`] if this process has a reservation.
pub fn reserve() -> io::Result<Reservation> {
    let mut reserved = lock();
    if reserved.is_some() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    *reserved = Some(Slots::open()?);
    Ok(Reservation(()))
}

impl Reservation {
    /// Whether spawns use the slots. False once the kernel or a seccomp filter has refused to
    /// unshare a descriptor table; the slots are closed then.
    pub fn is_active(&self) -> bool {
        lock().is_some()
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        *lock() = None;
    }
}

/// The result of an attempt to spawn through the slots.
pub(crate) enum Attempt<T> {
    Finished(T),
    /// The child could not get a table of its own this time.
    Failed,
    /// The child can never get a table of its own here.
    Unsupported,
}

/// Puts copies of a child's streams into the slots, calls `attempt` with the slot numbers, and
/// empties the slots again. Returns nothing if no slots are reserved or the attempt did not finish;
/// then the caller spawns without slots.
pub(crate) fn with_streams<T>(
    streams: [BorrowedFd<'_>; 3],
    attempt: impl FnOnce([RawFd; 3]) -> Attempt<T>,
) -> Option<T> {
    let mut reserved = lock();
    let slots = reserved.as_mut()?;
    let result = match slots.fill(streams) {
        Ok(()) => attempt(slots.numbers()),
        Err(_) => Attempt::Failed,
    };
    // A slot that cannot be emptied would keep a pipe of the child open: close it instead.
    if slots.empty().is_err() || matches!(result, Attempt::Unsupported) {
        *reserved = None;
    }
    match result {
        Attempt::Finished(value) => Some(value),
        Attempt::Failed | Attempt::Unsupported => None,
    }
}

/// One slot for each stream, and `/dev/null`, which keeps an unused slot's number occupied.
#[derive(Debug)]
struct Slots {
    streams: [OwnedFd; 3],
    null: OwnedFd,
}

impl Slots {
    fn open() -> io::Result<Self> {
        let mut null = crate::fds::null()?;
        if null.as_raw_fd() < FIRST_SLOT {
            null = fcntl_dupfd_cloexec(&null, FIRST_SLOT)?;
        }
        let slot = || fcntl_dupfd_cloexec(&null, FIRST_SLOT);
        Ok(Self { streams: [slot()?, slot()?, slot()?], null })
    }

    fn numbers(&self) -> [RawFd; 3] {
        self.streams.each_ref().map(AsRawFd::as_raw_fd)
    }

    /// Replaces the slots' descriptors by copies of these. The numbers are never free in between.
    fn fill(&mut self, streams: [BorrowedFd<'_>; 3]) -> Result<(), Errno> {
        for (slot, stream) in self.streams.iter_mut().zip(streams) {
            dup3(stream, slot, DupFlags::CLOEXEC)?;
        }
        Ok(())
    }

    fn empty(&mut self) -> Result<(), Errno> {
        for slot in &mut self.streams {
            dup3(&self.null, slot, DupFlags::CLOEXEC)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::io::{FdFlags, fcntl_getfd};

    use super::*;

    fn target(fd: RawFd) -> String {
        std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap().display().to_string()
    }

    #[test]
    fn slots_hold_streams_then_null() {
        let mut slots = Slots::open().unwrap();
        let (reader, writer) = crate::fds::pipe(0).unwrap();
        let pipe = target(reader.as_raw_fd());
        let numbers = slots.numbers();
        slots.fill([reader.as_fd(), writer.as_fd(), writer.as_fd()]).unwrap();
        assert_eq!(slots.numbers(), numbers);
        assert_eq!(numbers.map(target), [pipe.clone(), pipe.clone(), pipe]);
        drop(writer);
        slots.empty().unwrap();
        assert_eq!(numbers.map(target), ["/dev/null"; 3]);
        assert_eq!(rustix::io::read(&reader, &mut [0]), Ok(0), "no slot keeps the pipe open");
    }

    #[test]
    fn slots_are_close_on_exec_above_stdio() {
        let mut slots = Slots::open().unwrap();
        let null = crate::fds::null().unwrap();
        for filled in [false, true] {
            if filled {
                slots.fill([null.as_fd(); 3]).unwrap();
            }
            for fd in slots.streams.iter().chain([&slots.null]) {
                assert!(fd.as_raw_fd() >= FIRST_SLOT);
                assert!(fcntl_getfd(fd).unwrap().contains(FdFlags::CLOEXEC), "filled: {filled}");
            }
        }
    }

    /// The only unit test that uses the reservation of the process.
    #[test]
    fn second_reservation_is_refused_until_drop() {
        let first = reserve().unwrap();
        assert!(first.is_active());
        assert_eq!(reserve().unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        drop(first);
        let second = reserve().unwrap();
        let null = crate::fds::null().unwrap();
        let streams = [null.as_fd(); 3];
        assert_eq!(with_streams(streams, |_| Attempt::Finished(7)), Some(7));
        assert_eq!(with_streams(streams, |_| Attempt::<i32>::Failed), None);
        assert!(second.is_active(), "a passing failure keeps the slots");
        assert_eq!(with_streams(streams, |_| Attempt::<i32>::Unsupported), None);
        assert!(!second.is_active());
    }
}
