//! Budgets of tasks that start tasks: what they use together. Each shim counts its own tree; the sum over what was started through
//! Belay is only known here. Nobody is looked at unless a task with budgets has live ones below it.

use belay_model::{Level, StopOrder};
use belay_os::limits::Usage;
use belay_protocol::shim::ToShim;
use belay_protocol::task::{BudgetName, Budgets};

use crate::config::bounds;
use crate::core::{Core, Timer};
use crate::doc::Entry;
use crate::event::Action;
use crate::world::World;

/// A budget that a task and what is below it have gone beyond.
struct Overrun {
    budget: BudgetName,
    limit: u64,
    used: u64,
}

impl<W: World> Core<W> {
    /// A task begins below these: from now on those with budgets are counted together with it.
    pub(crate) fn count_together(&mut self, lineage: &[String]) {
        let is_budgeted =
            |id: &String| self.tasks.get(id).is_some_and(|task| !task.entry.doc.budgets.is_empty());
        if self.counting.is_none() && lineage.iter().any(is_budgeted) {
            self.counting = Some(self.arm(bounds::COUNT_MS, Timer::Count));
        }
    }

    /// The tasks of the predecessor are known.
    pub(crate) fn resume_counting(&mut self) {
        let lineages: Vec<Vec<String>> = self
            .tasks
            .values()
            .map(|task| task.entry.doc.lineage.clone())
            .filter(|above| !above.is_empty())
            .collect();
        for lineage in lineages {
            self.count_together(&lineage);
        }
    }

    /// A task has ended: what it has written counts on for those above it.
    pub(crate) fn counted_below(&mut self, entry: &Entry) {
        let written = entry.doc.end.as_ref().map_or(0, |end| end.output.bytes);
        for above in &entry.doc.lineage {
            let Some(task) = self.tasks.get_mut(above) else { continue };
            if task.entry.doc.budgets.output_bytes.is_some() && written > 0 {
                let below = &mut task.entry.doc.written_below;
                *below = Some(below.unwrap_or(0).saturating_add(written));
                self.changed.push(above.clone());
            }
        }
        self.count_together(&entry.doc.lineage);
    }

    pub(crate) fn count_subtrees(&mut self) {
        self.counting = None;
        let budgeted: Vec<String> = self
            .tasks
            .values()
            .filter(|task| !task.entry.doc.budgets.is_empty())
            .map(|task| task.entry.id.clone())
            .collect();
        for root in budgeted {
            let below = self.below(&root);
            if let Some(over) = self.overrun(&root, &below) {
                self.stop_over_budget(&root, &below, &over);
            } else if !below.is_empty() && self.counting.is_none() {
                self.counting = Some(self.arm(bounds::COUNT_MS, Timer::Count));
            }
        }
    }

    fn overrun(&self, root: &str, below: &[String]) -> Option<Overrun> {
        let doc = &self.tasks.get(root)?.entry.doc;
        let Budgets { output_bytes, memory_bytes, processes } = doc.budgets;
        let all = || below.iter().map(String::as_str).chain([root]);
        let over = |budget, limit: Option<u64>, used: u64| {
            limit.filter(|limit| used > *limit).map(|limit| Overrun { budget, limit, used })
        };
        let written = output_bytes.map_or(0, |_| {
            let live = all().filter_map(|id| self.log_of(id).ok()).map(|log| log.end());
            live.fold(doc.written_below.unwrap_or(0), u64::saturating_add)
        });
        let used = if memory_bytes.is_some() || processes.is_some() {
            all().map(|id| self.usage_of(id)).fold(Usage::default(), |sum, one| Usage {
                memory_bytes: sum.memory_bytes.saturating_add(one.memory_bytes),
                processes: sum.processes.saturating_add(one.processes),
            })
        } else {
            Usage::default()
        };
        over(BudgetName::Output, output_bytes, written)
            .or_else(|| over(BudgetName::Memory, memory_bytes, used.memory_bytes))
            .or_else(|| over(BudgetName::Processes, processes, used.processes))
    }

    fn usage_of(&self, id: &str) -> Usage {
        let shim = self.tasks.get(id).and_then(|task| task.entry.doc.shim.as_ref());
        shim.map_or_else(Usage::default, |shim| {
            let cgroup = shim.cgroup.as_ref().map(|path| std::path::Path::new(path.as_os_str()));
            self.world.usage(shim.process.pid, cgroup)
        })
    }

    /// The whole subtree is over its budget, so the whole of it is stopped; the one whose budget it is says so in its outcome.
    fn stop_over_budget(&mut self, root: &str, below: &[String], over: &Overrun) {
        let Overrun { budget, limit, used } = over;
        let reason = format!("{root} and what is below it have used {used} of {limit} ({})", budget.name());
        for id in below {
            let order = StopOrder::new(Level::Terminate, format!("budget:{}", budget.name()), Some(&reason));
            self.order_stop(id, order);
        }
        if let Some(shim) = self.tasks.get(root).and_then(|task| task.shim) {
            let message = ToShim::OverBudget { budget: *budget, limit: *limit, used: *used };
            self.actions.push(Action::ToShim { shim, message });
        }
    }
}
