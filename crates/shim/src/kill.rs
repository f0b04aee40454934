//! Signalling the tree: one gentle signal to everybody, or rounds of SIGKILL until nobody is left.

use std::collections::HashSet;

use belay_model::{Level, Survivor};
use belay_os::process::{Identity, ProcessInfo};
use belay_os::signal::Signal;
use belay_os::tree::{SignalReport, Tree};

use crate::core::Strike;

/// The pause before the next round; it doubles up to the second figure while nobody dies.
const PAUSE_MS: (u64, u64) = (1, 20);

/// A kill that is under way.
#[derive(Debug, Default)]
pub(crate) struct Killing {
    struck: HashSet<Identity>,
    pause_ms: u64,
    pub(crate) next_round_ms: u64,
}

impl Killing {
    /// One round. The strike counts each process once, however many rounds it takes.
    pub(crate) fn round(
        &mut self,
        tree: &mut Tree,
        leader: Option<Identity>,
        now_ms: u64,
        died: bool,
    ) -> Strike {
        let before = tree.members();
        let report = tree.kill_round();
        let all = before.iter().map(|process| process.identity).chain(report.sent.iter().copied());
        let refused: HashSet<Identity> = report.refused.iter().map(|process| process.identity).collect();
        let fresh: Vec<Identity> =
            all.filter(|id| !refused.contains(id) && self.struck.insert(*id)).collect();
        self.pause_ms = if died { PAUSE_MS.0 } else { (self.pause_ms * 2).clamp(PAUSE_MS.0, PAUSE_MS.1) };
        self.next_round_ms = now_ms + self.pause_ms;
        strike(Level::Kill, &fresh, report.refused.len(), leader)
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
    Some(strike(level, &sent, refused.len(), leader))
}

fn strike(level: Level, sent: &[Identity], refused: usize, leader: Option<Identity>) -> Strike {
    let hit_leader = leader.is_some_and(|leader| sent.contains(&leader));
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
