//! Budgets of tasks that start tasks: what they use together. Each shim enforces its own tree's budget; the sum over the tasks
//! below is only known here, and is sampled by a worker while a task with a budget has live tasks below it.

use std::collections::HashSet;

use belay_model::{Level, StopOrder};
use belay_os::limits::Usage;
use belay_protocol::shim::ToShim;
use belay_protocol::task::{BudgetName, Budgets};

use super::TaskEnded;
use crate::config::bounds;
use crate::effect::{Sample, SampleItem};
use crate::host::Host;
use crate::runtime::{Core, Timer};

/// A budget that a task and the tasks below it have exceeded.
struct Overrun {
    budget: BudgetName,
    limit: u64,
    used: u64,
}

impl<H: Host> Core<H> {
    /// A task starts below these: those with budgets are sampled from now on.
    pub(super) fn watch_budgets_above(&mut self, lineage: &[String]) {
        if lineage.iter().any(|above| self.tasks.with_budget.contains(above)) {
            self.schedule_budget_sample();
        }
    }

    /// The tasks of an earlier daemon are adopted.
    pub(crate) fn resume_budget_sampling(&mut self) {
        let roots = self.tasks.with_budget.iter();
        if roots.into_iter().any(|root| !self.tasks.below(root).is_empty()) {
            self.schedule_budget_sample();
        }
    }

    /// Counted from the end of the last sample: one that takes long is taken less often.
    fn schedule_budget_sample(&mut self) {
        if self.tasks.budget_timer.is_none() && !self.tasks.budget_sample_running {
            self.tasks.budget_timer = Some(self.ctx.schedule(bounds::BUDGET_SAMPLE_MS, Timer::SampleBudgets));
        }
    }

    /// An ended task's output still counts for the budgets above it.
    pub(super) fn count_output_above(&mut self, ended: &TaskEnded) {
        let doc = &ended.stored().doc;
        let written = doc.end.as_ref().map_or(0, |end| end.output.bytes);
        for above in doc
            .lineage
            .iter()
            .filter(|above| self.tasks.with_budget.contains(*above))
            .cloned()
            .collect::<Vec<_>>()
        {
            let counted = self.tasks.update(&above, |task| {
                let counts = task.stored.doc.budgets.output_bytes.is_some() && written > 0;
                if counts {
                    let below = &mut task.stored.doc.written_below;
                    *below = Some(below.unwrap_or(0).saturating_add(written));
                }
                counts
            });
            if counted == Some(true) {
                self.tasks.mark_changed(&above);
            }
        }
        self.watch_budgets_above(&doc.lineage);
    }

    pub(crate) fn sample_budgets(&mut self) {
        self.tasks.budget_timer = None;
        let (mut items, mut seen) = (Vec::new(), HashSet::new());
        for root in &self.tasks.with_budget {
            let below = self.tasks.below(root);
            if below.is_empty() && !self.has_output_below(root) {
                continue;
            }
            for id in below.iter().chain([root]) {
                let Some(task) = self.tasks.get(id).filter(|_| seen.insert(id.clone())) else { continue };
                let log_dir = task.has_log_on_disk().then(|| self.ctx.config.task_dir(id));
                items.push(SampleItem { task: id.clone(), tree: task.tree(), log_dir });
            }
        }
        if items.is_empty() {
            return;
        }
        self.tasks.budget_sample_running = true;
        self.sample(items, |core, sample| {
            core.tasks.budget_sample_running = false;
            core.check_budgets(&sample);
        });
    }

    /// Ended tasks below it may have used up its output budget.
    fn has_output_below(&self, root: &str) -> bool {
        self.tasks.get(root).is_some_and(|task| task.stored.doc.written_below.is_some())
    }

    fn check_budgets(&mut self, sample: &Sample) {
        let roots: Vec<String> = self.tasks.with_budget.iter().cloned().collect();
        for root in roots {
            let below = self.tasks.below(&root);
            if let Some(over) = self.overrun(&root, &below, sample) {
                self.stop_over_budget(&root, &below, &over);
            } else if !below.is_empty() {
                self.schedule_budget_sample();
            }
        }
    }

    fn overrun(&self, root: &str, below: &[String], sample: &Sample) -> Option<Overrun> {
        let doc = &self.tasks.get(root)?.stored.doc;
        let Budgets { output_bytes, memory_bytes, processes } = doc.budgets;
        let all = || below.iter().map(String::as_str).chain([root]);
        let over = |budget, limit: Option<u64>, used: u64| {
            limit.filter(|limit| used > *limit).map(|limit| Overrun { budget, limit, used })
        };
        let written = output_bytes.map_or(0, |_| {
            let live = all().map(|id| self.written(id, sample));
            live.fold(doc.written_below.unwrap_or(0), u64::saturating_add)
        });
        let used = all().filter_map(|id| sample.usage.get(id)).fold(Usage::default(), |sum, one| Usage {
            memory_bytes: sum.memory_bytes.saturating_add(one.memory_bytes),
            processes: sum.processes.saturating_add(one.processes),
        });
        over(BudgetName::Output, output_bytes, written)
            .or_else(|| over(BudgetName::Memory, memory_bytes, used.memory_bytes))
            .or_else(|| over(BudgetName::Processes, processes, used.processes))
    }

    fn written(&self, id: &str, sample: &Sample) -> u64 {
        if let Some(output) = sample.output.get(id) {
            return output.bytes;
        }
        self.tasks
            .get(id)
            .filter(|task| !task.has_log_on_disk())
            .map_or(0, |task| self.output_sums(task).bytes)
    }

    /// The whole subtree is over its budget, so all of it is stopped; the task that has the budget reports it in its outcome.
    fn stop_over_budget(&mut self, root: &str, below: &[String], over: &Overrun) {
        let Overrun { budget, limit, used } = over;
        let name = budget.name();
        tracing::info!(task = root, budget = name, limit, used, "subtree over budget");
        let reason = format!("{root} and what is below it have used {used} of {limit} ({name})");
        for id in below {
            let order = StopOrder::new(Level::Terminate, format!("budget:{name}"), Some(&reason));
            self.order_stop(id, order);
        }
        if let Some(shim) = self.tasks.get(root).and_then(super::Task::shim) {
            let message = ToShim::OverBudget { budget: *budget, limit: *limit, used: *used };
            self.ctx.tell_shim(shim, message);
        }
    }
}
