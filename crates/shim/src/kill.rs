//! Signalling the tree: one gentle signal to everybody, or rounds of SIGKILL until nobody is left.

use std::collections::BTreeSet;

use belay_model::{Level, Survivor};
use belay_os::process::{Identity, Pid, ProcessInfo};
use belay_os::signal::Signal;
use belay_os::tree::{Exit, Reaped, SignalReport, Tree};

use crate::core::Strike;

/// The pause before the next round; it doubles up to the second figure while nobody new is found.
const PAUSE_MS: (u64, u64) = (1, 20);

/// A kill that is under way.
#[derive(Debug)]
pub(crate) struct Killing {
    /// By number: nobody is counted twice, however many rounds it takes.
    struck: BTreeSet<Pid>,
    /// The last round found somebody new: a tree that forks is gone after at once.
    hot: bool,
    pause_ms: u64,
    next_round_ms: u64,
}

impl Killing {
    /// The first blow: the whole cgroup where there is one, else everybody that can be found.
    pub(crate) fn begin(tree: &mut Tree, leader: Option<Identity>, now_ms: u64) -> (Self, Strike) {
        let mut killing =
            Self { struck: BTreeSet::new(), hot: false, pause_ms: PAUSE_MS.0, next_round_ms: 0 };
        let strike = match tree.kill_cgroup() {
            Some(pids) => {
                killing.next_round_ms = now_ms + 2 * PAUSE_MS.0;
                killing.strike(&pids, 0, leader)
            }
            None => killing.round(tree, leader, now_ms),
        };
        (killing, strike)
    }

    /// When the next round is due, at the latest.
    pub(crate) const fn next_round_ms(&self) -> u64 {
        self.next_round_ms
    }

    /// Whether the next round is due: its time has come, or somebody died in a tree that forks.
    pub(crate) const fn is_due(&self, now_ms: u64, died: bool) -> bool {
        now_ms >= self.next_round_ms || (died && self.hot)
    }

    pub(crate) fn round(&mut self, tree: &mut Tree, leader: Option<Identity>, now_ms: u64) -> Strike {
        let SignalReport { sent, refused } = tree.kill_round();
        let pids: Vec<Pid> = sent.iter().map(|identity| identity.pid).collect();
        let strike = self.strike(&pids, refused.len(), leader);
        self.hot = strike.processes > 0;
        self.pause_ms = if self.hot { PAUSE_MS.0 } else { (self.pause_ms * 2).min(PAUSE_MS.1) };
        self.next_round_ms = now_ms + self.pause_ms;
        strike
    }

    /// Those among the dead that a blow reached and no look saw: a group or a cgroup is killed with everybody in it, also
    /// with those that moved to a new parent or were born while they were being listed.
    pub(crate) fn unseen(&mut self, dead: &[Reaped], leader: Option<Identity>) -> Option<Strike> {
        let killed = dead.iter().filter(
            |dead| matches!(dead.exit, Exit::Signal { signal, .. } if signal == Signal::KILL.as_raw()),
        );
        let killed: Vec<Pid> = killed.map(|dead| dead.pid).collect();
        Some(self.strike(&killed, 0, leader)).filter(|strike| strike.processes > 0)
    }

    fn strike(&mut self, pids: &[Pid], refused: usize, leader: Option<Identity>) -> Strike {
        let fresh: Vec<Pid> = pids.iter().copied().filter(|pid| self.struck.insert(*pid)).collect();
        strike(Level::Kill, &fresh, refused, leader)
    }
}

/// Asks everybody to end.
pub(crate) fn ask(tree: &Tree, level: Level, leader: Option<Identity>) -> Option<Strike> {
    let signal = match level {
        Level::Interrupt => Signal::INT,
        Level::Terminate => Signal::TERM,
        Level::Drain | Level::Kill => return None,
    };
    let SignalReport { sent, refused } = tree.signal(signal);
    let pids: Vec<Pid> = sent.iter().map(|identity| identity.pid).collect();
    Some(strike(level, &pids, refused.len(), leader))
}

fn strike(level: Level, sent: &[Pid], refused: usize, leader: Option<Identity>) -> Strike {
    let hit_leader = leader.is_some_and(|leader| sent.contains(&leader.pid));
    Strike {
        level,
        processes: sent.len() as u64,
        refused: refused as u64,
        leader: hit_leader,
        others: sent.len() > usize::from(hit_leader),
    }
}

pub(crate) fn survivor(process: ProcessInfo) -> Survivor {
    let ProcessInfo { identity, uid, command, .. } = process;
    Survivor { pid: identity.pid, start_ticks: identity.start_ticks, uid, command }
}
