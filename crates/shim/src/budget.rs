//! What a task may use, and whether it has used more: by the kernel's word where the kernel enforces it, else by looking
//! now and then. What follows from it is the core's business.

use std::io;
use std::os::fd::BorrowedFd;

use belay_model::Budget;
use belay_os::cgroup::Cgroup;
use belay_os::limits::{Controls, Reached, Usage};
use belay_protocol::task::Budgets as Wanted;

/// Between two looks at a tree whose use the kernel does not limit.
const SAMPLE_MS: u64 = 250;

/// A budget that a task has gone beyond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overrun {
    pub(crate) budget: Budget,
    pub(crate) limit: u64,
    pub(crate) used: u64,
    /// How many processes the kernel has killed for it.
    pub(crate) killed: u64,
}

/// The budgets of the task that is held.
#[derive(Debug)]
pub(crate) struct Budgets {
    wanted: Wanted,
    controls: Controls,
    /// The task is not in the cgroup, whose limits are then nobody's.
    outside: bool,
    next_sample_ms: Option<u64>,
}

impl Budgets {
    /// Before the task is spawned, so that it is born with its limits. None if it has none.
    pub(crate) fn begin(wanted: Wanted, cgroup: Option<&Cgroup>, now_ms: u64) -> Option<Self> {
        if wanted.is_empty() {
            return None;
        }
        let set = |cgroup: &Cgroup| Controls::set(cgroup.path(), wanted.memory_bytes, wanted.processes);
        let controls = cgroup.map(set).unwrap_or_default();
        let mut budgets = Self { wanted, controls, outside: false, next_sample_ms: None };
        budgets.sample_from(now_ms);
        Some(budgets)
    }

    /// The task could not be put into the cgroup.
    pub(crate) fn live_outside(&mut self, now_ms: u64) {
        self.outside = true;
        self.sample_from(now_ms);
    }

    fn sample_from(&mut self, now_ms: u64) {
        let is_sampled = self.sampled_memory().is_some() || self.sampled_processes().is_some();
        self.next_sample_ms = is_sampled.then_some(now_ms + SAMPLE_MS);
    }

    fn sampled_memory(&self) -> Option<u64> {
        self.wanted.memory_bytes.filter(|_| self.outside || !self.controls.holds_memory())
    }

    fn sampled_processes(&self) -> Option<u64> {
        self.wanted.processes.filter(|_| self.outside || !self.controls.holds_processes())
    }

    pub(crate) fn events(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.controls.events()
    }

    /// When the tree is looked at next. None: never.
    pub(crate) const fn next_sample_ms(&self) -> Option<u64> {
        self.next_sample_ms
    }

    /// So much was written in all.
    pub(crate) fn written(&self, used: u64) -> Option<Overrun> {
        let limit = self.wanted.output_bytes.filter(|limit| used > *limit)?;
        Some(Overrun { budget: Budget::Output, limit, used, killed: 0 })
    }

    /// What the kernel has to say.
    pub(crate) fn reached(&self) -> Option<Overrun> {
        self.controls.reached().map(|reached| match reached {
            Reached::Memory { limit, used, killed } => {
                Overrun { budget: Budget::Memory, limit, used, killed }
            }
            // It wanted one more than it had, and did not get it.
            Reached::Processes { limit } => {
                Overrun { budget: Budget::Processes, limit, used: limit.saturating_add(1), killed: 0 }
            }
        })
    }

    /// Looks, if it is time to.
    pub(crate) fn sample(&mut self, now_ms: u64, look: impl FnOnce() -> Usage) -> Option<Overrun> {
        self.next_sample_ms.filter(|due| *due <= now_ms)?;
        self.next_sample_ms = Some(now_ms + SAMPLE_MS);
        let Usage { memory_bytes, processes } = look();
        let over = |budget, limit: Option<u64>, used: u64| {
            limit.filter(|limit| used > *limit).map(|limit| Overrun { budget, limit, used, killed: 0 })
        };
        over(Budget::Memory, self.sampled_memory(), memory_bytes)
            .or_else(|| over(Budget::Processes, self.sampled_processes(), processes))
    }

    /// The next task of this shim has nothing to do with them.
    pub(crate) fn lift(self) -> io::Result<()> {
        self.controls.lift()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(output: Option<u64>, memory: Option<u64>, processes: Option<u64>) -> Wanted {
        Wanted { output_bytes: output, memory_bytes: memory, processes }
    }

    fn overrun(budget: Budget, limit: u64, used: u64) -> Overrun {
        Overrun { budget, limit, used, killed: 0 }
    }

    #[test]
    fn a_task_without_budgets_is_not_looked_at() {
        assert!(Budgets::begin(Wanted::default(), None, 0).is_none());
        let budgets = Budgets::begin(wanted(Some(10), None, None), None, 0).unwrap();
        assert_eq!(budgets.next_sample_ms(), None, "output is counted as it comes");
        assert_eq!((budgets.written(10), budgets.reached()), (None, None));
        assert_eq!(budgets.written(11), Some(overrun(Budget::Output, 10, 11)));
    }

    #[test]
    fn what_the_kernel_does_not_limit_is_looked_at_four_times_a_second() {
        let mut budgets = Budgets::begin(wanted(None, Some(100), Some(2)), None, 1_000).unwrap();
        let usage = |memory_bytes, processes| move || Usage { memory_bytes, processes };
        assert_eq!(budgets.next_sample_ms(), Some(1_250));
        assert_eq!(budgets.sample(1_249, || panic!("too early")), None);
        assert_eq!(budgets.sample(1_250, usage(100, 2)), None);
        assert_eq!(budgets.next_sample_ms(), Some(1_500));
        assert_eq!(budgets.sample(1_600, usage(101, 3)), Some(overrun(Budget::Memory, 100, 101)));
        assert_eq!(budgets.sample(1_900, usage(5, 3)), Some(overrun(Budget::Processes, 2, 3)));
    }
}
