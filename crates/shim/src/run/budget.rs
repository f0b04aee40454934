//! The budgets of the task, in the loop: when they are looked at, and what the core hears of them.

use std::io;
use std::os::fd::BorrowedFd;

use belay_model::{Level, State};
use belay_os::process::monotonic_ms;

use super::Shim;
use crate::budget::{Budgets, Overrun};
use crate::core::{Input, Strike};

impl Shim {
    /// What the kernel tells of the task's limits, while there is something to be done about it.
    pub(super) fn budget_events(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let budgets = self.budgets.as_ref().filter(|_| self.is_running());
        budgets.into_iter().flat_map(Budgets::events)
    }

    /// When the tree is looked at next; never for a task whose budgets need no looking.
    pub(super) fn next_sample_ms(&self) -> Option<u64> {
        self.budgets.as_ref().filter(|_| self.is_running())?.next_sample_ms()
    }

    /// The process is made. If that could not be done in the cgroup, the limits of the cgroup are not its own.
    pub(super) fn see_where_it_lives(&mut self) {
        let Some(budgets) = &mut self.budgets else { return };
        let in_cgroup = self.tree.cgroup().is_some_and(|cgroup| cgroup.populated().unwrap_or(true));
        if !in_cgroup {
            budgets.live_outside(monotonic_ms());
        }
    }

    pub(super) fn count_output(&mut self) -> io::Result<()> {
        let written = self.task.as_ref().map_or(0, |task| task.output.bytes());
        self.tell(self.budgets.as_ref().and_then(|budgets| budgets.written(written)))
    }

    pub(super) fn hear_of_budgets(&mut self) -> io::Result<()> {
        self.tell(self.budgets.as_ref().and_then(Budgets::reached))
    }

    pub(super) fn sample_budgets(&mut self) -> io::Result<()> {
        if !self.is_running() {
            return Ok(());
        }
        let tree = &self.tree;
        let over = self.budgets.as_mut().and_then(|budgets| budgets.sample(monotonic_ms(), || tree.usage()));
        self.tell(over)
    }

    fn is_running(&self) -> bool {
        matches!(self.core.state(), Some(State::Running(_)))
    }

    fn tell(&mut self, over: Option<Overrun>) -> io::Result<()> {
        let Some(Overrun { budget, limit, used, killed }) = over.filter(|_| self.is_running()) else {
            return Ok(());
        };
        self.feed(Input::OverBudget { budget, limit, used })?;
        if killed == 0 {
            return Ok(());
        }
        // The kernel has done what a stop would do: it belongs into the receipt.
        let leader = self.live_leader().is_some();
        let others = killed > u64::from(leader);
        self.feed(Input::Signalled(Strike {
            level: Level::Kill,
            processes: killed,
            refused: 0,
            leader,
            others,
        }))
    }
}
