//! What is left of a task whose shim was killed: finding it by every trace that it left, and killing it. These are no
//! children of the caller, so there is no proof by `waitpid` here: gone means not to be found any more.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};

use crate::cgroup::Cgroup;
use crate::process::{
    Identity, Pid, ProcessInfo, Stat, info, is_thread, monotonic_us, own_pid, signal_identity, stat,
};
use crate::signal::Signal;
use crate::tree::{kill_group_of, sleep_us};
use crate::walk::{all, same_process};

/// How much of an environment is searched. A larger one than this can hardly be passed to a program.
const ENVIRON_LIMIT: usize = 8 * 1024 * 1024;

/// How often a search goes on through newcomers before it is left to the next one.
const CHASES: usize = 64;

/// More newcomers than this, and all are looked at again.
const NEWCOMERS: Pid = 4096;

/// Between two rounds of killing, first and at most.
const PAUSE_US: (u64, u64) = (200, 20_000);

/// Everybody alive who belonged to the task of this shim: found in its cgroup, as its leader, in its session, by the
/// marker (`NAME=value`) in the environment, or below one of these. Never the caller.
///
/// Nobody found means nobody there, even if the task is a chain of forks: the search goes on through those that were
/// born during it until none of them died unseen. Without a cgroup, an orphan that has left the session and
/// cleared its environment has left no trace to find it by.
pub fn find_lost(
    shim: Identity,
    leader: Option<Identity>,
    cgroup: Option<&Path>,
    env_marker: &str,
) -> Vec<ProcessInfo> {
    let mut search =
        Search { shim, leader, cgroup, env_marker, newest: newest_pid(), found: BTreeMap::new() };
    search.add(&all());
    for _ in 0..CHASES {
        let (newcomers, missed) = search.newcomers();
        search.add(&newcomers);
        let alive: Vec<ProcessInfo> = search.found.values().filter_map(same_process).collect();
        // Whoever died before it was known for a stranger, or since it was known for one of them, may have left a child.
        let settled = missed == 0 && alive.len() == search.found.len();
        if settled || !alive.is_empty() {
            // The last one born is the one to be quick about: callers get it first.
            return alive.into_iter().rev().collect();
        }
        search.found.clear();
    }
    Vec::new()
}

struct Search<'a> {
    shim: Identity,
    leader: Option<Identity>,
    cgroup: Option<&'a Path>,
    env_marker: &'a str,
    /// All up to this number have been looked at.
    newest: Option<Pid>,
    /// Alive when looked at, by start time and number.
    found: BTreeMap<(u64, Pid), Stat>,
}

impl Search<'_> {
    /// Takes in those of the task among these, and whoever is below one of the task.
    fn add(&mut self, candidates: &[Stat]) {
        let own = own_pid();
        let alive: Vec<Stat> =
            candidates.iter().filter(|stat| !stat.is_dead() && stat.identity.pid != own).copied().collect();
        let in_cgroup = self.cgroup.and_then(|path| Cgroup::open(path).ok()?.pids().ok()).unwrap_or_default();
        let in_cgroup: BTreeSet<Pid> = in_cgroup.into_iter().collect();
        // The kernel gives the number of a session to nobody else while one is in it; so this session is over.
        let session_over =
            alive.iter().any(|stat| stat.identity.pid == self.shim.pid && stat.identity != self.shim);
        for stat in &alive {
            if self.belongs(stat, &in_cgroup, session_over) {
                self.insert(*stat);
            }
        }
        let mut by_parent: BTreeMap<Pid, Vec<Stat>> = BTreeMap::new();
        for stat in alive {
            by_parent.entry(stat.ppid).or_default().push(stat);
        }
        let mut parents: Vec<Pid> = self.found.values().map(|stat| stat.identity.pid).collect();
        while let Some(parent) = parents.pop() {
            for stat in by_parent.remove(&parent).unwrap_or_default() {
                parents.push(stat.identity.pid);
                self.insert(stat);
            }
        }
    }

    fn insert(&mut self, stat: Stat) {
        self.found.insert((stat.identity.start_ticks, stat.identity.pid), stat);
    }

    fn belongs(&self, stat: &Stat, in_cgroup: &BTreeSet<Pid>, session_over: bool) -> bool {
        let later = stat.identity.start_ticks >= self.shim.start_ticks;
        stat.identity == self.shim
            || Some(stat.identity) == self.leader
            || in_cgroup.contains(&stat.identity.pid)
            || (later && !session_over && stat.sid == self.shim.pid)
            || (later && has_entry(stat.identity.pid, self.env_marker.as_bytes()))
    }

    /// Those born since the last look, and how many there were besides of whom it was too late to know anything. Numbers
    /// are given out in order, so not all have to be looked at again, unless they have started over.
    fn newcomers(&mut self) -> (Vec<Stat>, usize) {
        let before = std::mem::replace(&mut self.newest, newest_pid());
        let (Some(before), Some(newest)) = (before, self.newest) else { return (all(), 0) };
        if newest < before || newest - before > NEWCOMERS {
            return (all(), 1);
        }
        let born = (before + 1..=newest).filter(|&pid| !is_thread(pid));
        let (alive, missed): (Vec<_>, Vec<_>) =
            born.map(stat).partition(|stat| stat.is_some_and(|stat| !stat.is_dead()));
        (alive.into_iter().flatten().collect(), missed.len())
    }
}

/// The number that was given out last, from `/proc/loadavg`.
fn newest_pid() -> Option<Pid> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    text.split_ascii_whitespace().nth(4)?.parse().ok()
}

/// Whether the environment that a process was started with has this entry. Not for processes of others, whose
/// environment is not shown to us.
fn has_entry(pid: Pid, entry: &[u8]) -> bool {
    !entry.is_empty() && environment(pid).split(|&byte| byte == 0).any(|candidate| candidate == entry)
}

/// What the environment that a process was started with says of this variable.
pub fn variable(pid: Pid, name: &str) -> Option<Vec<u8>> {
    let environment = environment(pid);
    let mut entries = environment.split(|&byte| byte == 0);
    entries.find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=").map(<[u8]>::to_vec))
}

/// The environment that a process was started with; nothing if it cannot be had.
fn environment(pid: Pid) -> Vec<u8> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::openat(CWD, format!("/proc/{pid}/environ"), flags, Mode::empty()) else {
        return Vec::new();
    };
    let mut text = Vec::new();
    let mut buffer = vec![0_u8; 32 * 1024];
    while text.len() < ENVIRON_LIMIT {
        match rustix::io::read(&file, &mut buffer[..]) {
            Ok(0) => break,
            Ok(filled) => text.extend_from_slice(buffer.get(..filled).unwrap_or_default()),
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return Vec::new(),
        }
    }
    text
}

/// Kills what `found` finds, at most for `within_ms`, until it finds nobody. Returns the survivors. Blocks.
pub fn kill_lost(found: impl Fn() -> Vec<ProcessInfo>, within_ms: u64) -> Vec<ProcessInfo> {
    let until_us = monotonic_us().saturating_add(within_ms.saturating_mul(1000));
    let mut pause_us = PAUSE_US.0;
    loop {
        let left = found();
        if left.is_empty() {
            return left;
        }
        for process in &left {
            // Gone and refused alike show when it is looked for again.
            let _ = signal_identity(process.identity, Signal::KILL);
        }
        kill_whole_groups(&left);
        if monotonic_us() >= until_us {
            return still_there(left);
        }
        sleep_us(pause_us);
        pause_us = (pause_us * 2).min(PAUSE_US.1);
    }
}

/// Those that outlived the last blow, for which there was hardly time: one more pause and look.
fn still_there(left: Vec<ProcessInfo>) -> Vec<ProcessInfo> {
    sleep_us(PAUSE_US.1);
    left.into_iter().filter(|process| crate::process::is_alive(process.identity)).collect()
}

/// Kills, each at one blow, the process groups that consist of the lost only: a chain of forks is faster than a
/// search for its links, and cannot leave its group unnoticed.
fn kill_whole_groups(lost: &[ProcessInfo]) {
    let identities: BTreeSet<Identity> = lost.iter().map(|process| process.identity).collect();
    let groups: BTreeSet<Pid> = lost.iter().map(|process| process.pgid).filter(|&pgid| pgid > 1).collect();
    let own = info(own_pid()).map(|own| (own.pgid, own.sid));
    let everybody = all();
    for pgid in groups {
        let mut members = everybody.iter().filter(|stat| stat.pgid == pgid && !stat.is_dead());
        let foreign =
            |stat: &Stat| Some((stat.pgid, stat.sid)) != own && Some(stat.sid) != own.map(|(_, sid)| sid);
        if !members.all(|stat| identities.contains(&stat.identity) && foreign(stat)) {
            continue;
        }
        // Only by the pidfd of its leader: without a leader the number of a group proves nothing to a stranger.
        if let Some(leader) = identities.iter().find(|identity| identity.pid == pgid) {
            kill_group_of(*leader);
        }
    }
}
