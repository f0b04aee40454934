//! Simulated processes: what they do by themselves, what they make of a signal, and when they are gone.

use belay_model::{Exit, Level, Survivor};
use belay_protocol::task::ProcessInfo;

use super::rng::Rng;

pub(crate) const SIGKILL: Exit = Exit::Signal { signal: 9, core_dumped: false };

/// What a process makes of a signal that asks it to end.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reaction {
    Ignores,
    Dies,
    /// It cleans up and exits with a code of its own.
    Exits {
        code: i32,
        after_ms: u64,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) start_ticks: u64,
    pub(crate) is_leader: bool,
    on_int: Reaction,
    on_term: Reaction,
    /// It runs as another user: no signal reaches it.
    pub(crate) is_untouchable: bool,
    pub(crate) exit: Option<Exit>,
    pub(crate) is_reaped: bool,
    /// A round of a kill has counted it.
    pub(crate) is_struck: bool,
}

impl Process {
    pub(crate) const fn is_alive(&self) -> bool {
        self.exit.is_none()
    }

    pub(crate) fn survivor(&self) -> Survivor {
        Survivor { pid: self.pid, start_ticks: self.start_ticks, uid: 0, command: "untouchable".to_owned() }
    }

    pub(crate) fn info(&self, ppid: i32) -> ProcessInfo {
        let (state, command) = ("S".to_owned(), "simulated".to_owned());
        ProcessInfo { pid: self.pid, ppid, state, command, rss_bytes: 0, cpu_ms: 0 }
    }

    /// How and after how long a signal of this level ends it, if it does.
    pub(crate) fn answer(&self, level: Level, rng: &mut Rng) -> Option<(u64, Exit)> {
        let (reaction, signal) = match level {
            Level::Drain => return None,
            Level::Interrupt => (self.on_int, 2),
            Level::Terminate => (self.on_term, 15),
            Level::Kill => (Reaction::Dies, 9),
        };
        match reaction {
            Reaction::Ignores => None,
            Reaction::Dies => {
                Some((rng.pick(&[0, 0, 0, 1, 4, 60]), Exit::Signal { signal, core_dumped: false }))
            }
            Reaction::Exits { code, after_ms } => Some((after_ms, Exit::Code(code))),
        }
    }
}

/// Something that happens in a tree.
#[derive(Clone, Debug)]
pub(crate) enum Happening {
    Exits { pid: i32, exit: Exit },
    Forks { child: Box<Process> },
    Writes { bytes: u64 },
}

/// How a command is going to behave: its processes at the start, and what they will do by themselves, when.
#[derive(Debug)]
pub(crate) struct Behaviour {
    pub(crate) processes: Vec<Process>,
    pub(crate) happenings: Vec<(u64, Happening)>,
}

impl Behaviour {
    pub(crate) fn ends_by_itself(after_ms: u64, exit: Exit, pids: &mut Pids) -> Self {
        let leader = pids.process(true, Reaction::Dies, Reaction::Dies);
        let happenings = vec![(after_ms, Happening::Exits { pid: leader.pid, exit })];
        Self { processes: vec![leader], happenings }
    }

    pub(crate) fn runs_for_ever(pids: &mut Pids) -> Self {
        let leader = pids.process(true, Reaction::Ignores, Reaction::Exits { code: 3, after_ms: 7 });
        Self { processes: vec![leader], happenings: Vec::new() }
    }

    pub(crate) fn random(rng: &mut Rng, pids: &mut Pids, untouchable_percent: u64) -> Self {
        let mut made = Self { processes: Vec::new(), happenings: Vec::new() };
        let leader = pids.random(rng, true);
        made.maybe_ends(rng, leader.pid, 60);
        made.processes.push(leader);
        let children = if rng.percent(40) { rng.between(1, 3) } else { 0 };
        for _ in 0..children {
            let mut child = pids.random(rng, false);
            child.is_untouchable = rng.percent(untouchable_percent);
            made.maybe_ends(rng, child.pid, 60);
            if rng.percent(30) {
                let at_ms = rng.between(0, 200);
                made.happenings.push((at_ms, Happening::Forks { child: Box::new(child) }));
            } else {
                made.processes.push(child);
            }
        }
        for _ in 0..rng.below(6) {
            let at_ms = rng.pick(&[0, 3, 90, 400, 1_500, 6_000]) + rng.below(50);
            made.happenings.push((at_ms, Happening::Writes { bytes: rng.between(1, 5_000) }));
        }
        made
    }

    fn maybe_ends(&mut self, rng: &mut Rng, pid: i32, percent: u64) {
        if !rng.percent(percent) {
            return;
        }
        let after_ms = rng.pick(&[0, 1, 5, 50, 500, 3_000, 20_000]) + rng.below(20);
        let exit = match rng.below(8) {
            0..4 => Exit::SUCCESS,
            4 => Exit::Signal { signal: 11, core_dumped: true },
            5 => SIGKILL,
            _ => Exit::Code(rng.pick(&[1, 2, 127])),
        };
        self.happenings.push((after_ms, Happening::Exits { pid, exit }));
    }
}

/// Hands out process ids; none is ever given twice.
#[derive(Debug, Default)]
pub(crate) struct Pids(i32);

impl Pids {
    pub(crate) const fn next(&mut self) -> (i32, u64) {
        self.0 += 1;
        (1000 + self.0, self.0.unsigned_abs() as u64 * 7)
    }

    const fn process(&mut self, is_leader: bool, on_int: Reaction, on_term: Reaction) -> Process {
        let (pid, start_ticks) = self.next();
        Process {
            pid,
            start_ticks,
            is_leader,
            on_int,
            on_term,
            is_untouchable: false,
            exit: None,
            is_reaped: false,
            is_struck: false,
        }
    }

    fn random(&mut self, rng: &mut Rng, is_leader: bool) -> Process {
        let mut reaction = || match rng.below(4) {
            0 => Reaction::Ignores,
            1 => {
                Reaction::Exits { code: rng.pick(&[0, 1, 130, 143]), after_ms: rng.pick(&[0, 2, 300, 9_000]) }
            }
            _ => Reaction::Dies,
        };
        let (on_int, on_term) = (reaction(), reaction());
        self.process(is_leader, on_int, on_term)
    }
}
