//! What a shim waits for: its descriptors and its next deadline. It sleeps, and says who has something to say.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};

use belay_os::process::monotonic_ms;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Shim;
use crate::kill::Killing;

/// What a descriptor in the poll set belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Children,
    Listener,
    Link,
    Stream(usize),
    Stdin,
    Cgroup,
    Budget,
}

impl Shim {
    /// Sleeps until something happens or a clock is due, and says what has something to say.
    pub(super) fn wait(&self) -> io::Result<Vec<Source>> {
        let sources = self.sources();
        let mut set: Vec<PollFd<'_>> =
            sources.iter().map(|(_, fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)).collect();
        let timeout = self.sleep_ms().map(timespec);
        match poll(&mut set, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let ready = set.iter().zip(&sources).filter(|(fd, _)| !fd.revents().is_empty());
        Ok(ready.map(|(_, (source, ..))| *source).collect())
    }

    fn sources(&self) -> Vec<(Source, BorrowedFd<'_>, PollFlags)> {
        let mut sources = vec![
            (Source::Children, self.children.as_fd(), PollFlags::IN),
            (Source::Listener, self.listener.as_fd(), PollFlags::IN),
        ];
        if let Some(link) = &self.link {
            let idle = link.is_flushed() || self.hold_until_ms.is_some();
            let out = if idle { PollFlags::empty() } else { PollFlags::OUT };
            sources.push((Source::Link, link.as_fd(), PollFlags::IN | out));
        }
        if let Some(task) = &self.task {
            let quiet = self.quiet_until_ms.is_some();
            let streams = task.output.streams().filter(|_| !quiet);
            sources.extend(streams.map(|(place, fd)| (Source::Stream(place), fd.as_fd(), PollFlags::IN)));
            sources.extend(task.stdin.wants().map(|fd| (Source::Stdin, fd, PollFlags::OUT)));
            sources.extend(self.budget_events().map(|fd| (Source::Budget, fd, PollFlags::PRI)));
        }
        // While there are children, their deaths are the news. What the cgroup has to say is not asked for then, and it would go
        // on saying it: a poll that returns at once, for ever.
        let cgroup = self.tree.cgroup().filter(|_| self.childless && (self.task.is_some() || self.lingering));
        sources.extend(cgroup.map(|cgroup| (Source::Cgroup, cgroup.events(), PollFlags::PRI)));
        sources
    }

    fn sleep_ms(&self) -> Option<u64> {
        let round = self.killing.as_ref().map(Killing::next_round_ms);
        let others =
            [round, self.hold_until_ms, self.quiet_until_ms, self.next_sample_ms()].into_iter().flatten();
        let next = self.core.next_deadline().into_iter().chain(others).min()?;
        Some(next.saturating_sub(monotonic_ms()))
    }
}

fn timespec(ms: u64) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(ms / 1000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(ms % 1000 * 1_000_000).unwrap_or(0),
    }
}
