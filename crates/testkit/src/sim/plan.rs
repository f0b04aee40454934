//! What a run is made of: how often which fault happens, how many clients do how much, and how commands behave.

use std::path::PathBuf;
use std::time::Duration;

use belay_daemon::config::Config;
use belay_daemon::settings::Settings;
use belay_model::Exit;
use belay_protocol::Bytes;
use belay_protocol::daemon::{BudgetEnforcement, CgroupLayout, ContainmentInfo, ContainmentKind};
use belay_protocol::shim::Start;

use super::agenda::WorkerKind;
use super::process::{Behaviour, Pids};
use super::rng::Rng;

/// What the clients of a run do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// Everything that the seed decides.
    Random,
    /// Two tasks by one client: one ends by itself, one is stopped. No fault but those that are named.
    Small,
}

#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) scenario: Scenario,
    pub(crate) clients: u64,
    pub(crate) wants: u64,
    /// The daemon dies once in so many steps.
    pub(crate) crash_once_in: u64,
    pub(crate) shim_kills: u64,
    pub(crate) clock_jumps: u64,
    pub(crate) disk_full_percent: u64,
    pub(crate) no_shim_percent: u64,
    pub(crate) blocked_percent: u64,
    /// A worker thread that takes ten seconds for every job.
    pub(crate) slow_worker: Option<WorkerKind>,
    spawn_fails_percent: u64,
    untouchable_percent: u64,
    pub(crate) idle_exit_ms: Option<u64>,
}

impl Plan {
    pub(crate) fn new(scenario: Scenario, rng: &mut Rng) -> Self {
        match scenario {
            Scenario::Small => Self {
                scenario,
                clients: 1,
                wants: 0,
                crash_once_in: 0,
                shim_kills: 0,
                clock_jumps: 0,
                disk_full_percent: 0,
                no_shim_percent: 0,
                blocked_percent: 0,
                slow_worker: None,
                spawn_fails_percent: 0,
                untouchable_percent: 0,
                idle_exit_ms: None,
            },
            Scenario::Random => Self {
                scenario,
                clients: rng.between(1, 3),
                wants: rng.between(4, 14),
                crash_once_in: rng.pick(&[0, 500, 100, 100, 40]),
                shim_kills: rng.pick(&[0, 0, 1, 2]),
                clock_jumps: rng.below(3),
                disk_full_percent: rng.pick(&[0, 0, 20, 60]),
                no_shim_percent: rng.pick(&[0, 0, 0, 20]),
                blocked_percent: rng.pick(&[0, 0, 20]),
                slow_worker: rng.pick(&[
                    None,
                    None,
                    None,
                    Some(WorkerKind::Store),
                    Some(WorkerKind::Reader),
                    Some(WorkerKind::Files),
                    Some(WorkerKind::Sampler),
                    Some(WorkerKind::Output),
                ]),
                spawn_fails_percent: rng.pick(&[0, 10]),
                untouchable_percent: rng.pick(&[0, 0, 25]),
                idle_exit_ms: rng.pick(&[None, None, Some(400), Some(900), Some(600_000)]),
            },
        }
    }

    /// The home has a fixed name, so that two runs of one seed say the same: only the journal is on a real disk.
    pub(crate) fn config(&self) -> Config {
        let containment = ContainmentInfo {
            kind: ContainmentKind::Subreaper,
            layout: CgroupLayout::None,
            cgroup: None,
            why: "it is simulated".to_owned(),
            budgets: BudgetEnforcement::default(),
        };
        let home = PathBuf::from("/simulated/home");
        let runtime_dir = PathBuf::from("/simulated/runtime");
        Config {
            idle_exit: self.idle_exit_ms.map(Duration::from_millis),
            ..Config::new(home, runtime_dir, containment, Settings::default())
        }
    }

    /// The most that one job of a worker takes, with its way there and back.
    pub(crate) const fn worker_ms(&self) -> u64 {
        if self.slow_worker.is_some() { 10_100 } else { 100 }
    }

    /// The error number, if the command cannot be started.
    pub(crate) const fn spawn_fails(&self, rng: &mut Rng) -> Option<i32> {
        if rng.percent(self.spawn_fails_percent) { Some(2) } else { None }
    }

    pub(crate) fn behaviour(&self, rng: &mut Rng, pids: &mut Pids, start: &Start) -> Behaviour {
        match (self.scenario, start.argv.first().map(Bytes::to_text_lossy).as_deref()) {
            (Scenario::Small, Some("ends")) => Behaviour::ends_by_itself(30, Exit::Code(4), pids),
            (Scenario::Small, _) => Behaviour::runs_for_ever(pids),
            (Scenario::Random, _) => Behaviour::random(rng, pids, self.untouchable_percent),
        }
    }
}
