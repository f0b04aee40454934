//! The cost of the core's steps: a count and the longest step, in all and for each kind of input. It reads no clock: the loop
//! around the core measures each step and reports it here.

use std::collections::BTreeMap;

use belay_protocol::daemon::{StepCostInfo, StepKindInfo};

/// What a step was about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct StepKind {
    /// The kind of the input.
    input: &'static str,
    /// The method or the timer behind the input. For the result of a job: the one that began the job.
    cause: &'static str,
}

impl StepKind {
    fn name(self) -> String {
        if self.cause.is_empty() { self.input.to_owned() } else { format!("{}: {}", self.input, self.cause) }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    count: u64,
    longest_cpu_us: u64,
    longest_wall_us: u64,
}

impl Cost {
    fn add(&mut self, cpu_us: u64, wall_us: u64) {
        self.count += 1;
        self.longest_cpu_us = self.longest_cpu_us.max(cpu_us);
        self.longest_wall_us = self.longest_wall_us.max(wall_us);
    }
}

/// The cost of all steps so far. The number of kinds is bounded: every name is a constant of the program.
#[derive(Debug, Default)]
pub(crate) struct StepCost {
    current: StepKind,
    all: Cost,
    kinds: BTreeMap<StepKind, Cost>,
}

impl StepCost {
    pub(crate) fn begin(&mut self, input: &'static str) {
        self.current = StepKind { input, cause: "" };
    }

    pub(crate) const fn set_cause(&mut self, cause: &'static str) {
        self.current.cause = cause;
    }

    pub(crate) const fn cause(&self) -> &'static str {
        self.current.cause
    }

    pub(crate) fn add(&mut self, cpu_us: u64, wall_us: u64) {
        self.all.add(cpu_us, wall_us);
        self.kinds.entry(self.current).or_default().add(cpu_us, wall_us);
    }

    pub(crate) fn info(&self, with_kinds: bool) -> StepCostInfo {
        let info = |(kind, cost): (&StepKind, &Cost)| StepKindInfo {
            kind: kind.name(),
            count: cost.count,
            longest_cpu_us: cost.longest_cpu_us,
            longest_wall_us: cost.longest_wall_us,
        };
        StepCostInfo {
            count: self.all.count,
            longest_cpu_us: self.all.longest_cpu_us,
            longest_wall_us: self.all.longest_wall_us,
            kinds: self.kinds.iter().filter(|_| with_kinds).map(info).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_step_is_kept_per_kind() {
        let mut steps = StepCost::default();
        for (input, cause, cpu_us) in
            [("request", "task/start", 30), ("tick", "", 5), ("request", "task/start", 20)]
        {
            steps.begin(input);
            steps.set_cause(cause);
            steps.add(cpu_us, 2 * cpu_us);
        }
        let info = steps.info(true);
        assert_eq!((info.count, info.longest_cpu_us, info.longest_wall_us), (3, 30, 60));
        let kinds: Vec<_> = info.kinds.iter().map(|kind| (kind.kind.as_str(), kind.count)).collect();
        assert_eq!(kinds, [("request: task/start", 2), ("tick", 1)]);
        assert!(steps.info(false).kinds.is_empty());
    }
}
