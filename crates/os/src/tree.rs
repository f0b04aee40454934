//! The tree below the calling process: signalling all of it, killing it, reaping it, and the proof that it is empty. The
//! caller must be a child subreaper with one thread, and must reap nowhere else. What to do when, others decide.

use std::collections::BTreeSet;
use std::io;
use std::mem::MaybeUninit;

use crate::cgroup::Cgroup;
use crate::limits::Usage;
pub use crate::lost::kill_lost;
use crate::process::{
    Identity, Pid, ProcessInfo, Stat, identity, info, monotonic_us, own_pid, signal_identity, stat,
    ticks_to_ms,
};
use crate::signal::{self, Delivery, Signal};
use crate::walk::{children, same_process, walk, walk_settled};

/// How many dead children one call reaps: a fork chain makes new ones as fast as they go.
const REAP_LIMIT: usize = 4096;

/// Between two rounds of killing, first and at most.
const PAUSE_US: (u64, u64) = (50, 5_000);

/// Makes every orphan below the calling process its child, and makes sure that the dead ones wait to be reaped.
pub fn become_subreaper() -> io::Result<()> {
    // An ignored SIGCHLD, which is inherited, would have the kernel reap behind our back.
    if signal::is_ignored(libc::SIGCHLD) {
        signal::set_default(libc::SIGCHLD)?;
    }
    // SAFETY: the call takes integers only.
    match unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// How a process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// By itself, with this code.
    Code(i32),
    /// Of a signal.
    Signal {
        /// Which.
        signal: i32,
        /// Whether it left a core dump.
        core_dumped: bool,
    },
}

impl Exit {
    fn from_status(status: i32) -> Self {
        if libc::WIFSIGNALED(status) {
            Self::Signal { signal: libc::WTERMSIG(status), core_dumped: libc::WCOREDUMP(status) }
        } else {
            Self::Code(libc::WEXITSTATUS(status))
        }
    }
}

/// A child that is gone for good: its number may be another's from now on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reaped {
    /// The number that it had.
    pub pid: Pid,
    /// How it ended.
    pub exit: Exit,
}

/// Whom a signal was sent to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SignalReport {
    /// Those that the kernel took it for.
    pub sent: Vec<Identity>,
    /// Those that we may not signal.
    pub refused: Vec<ProcessInfo>,
}

/// What became of an attempt to kill everything.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KillResult {
    /// Whether nobody is left alive.
    pub empty: bool,
    /// Who is, if not.
    pub survivors: Vec<ProcessInfo>,
    /// How the children that were reaped on the way ended.
    pub reaped: Vec<Reaped>,
    /// How many times all that could be found were killed.
    pub rounds: u32,
    /// How long it took.
    pub took_us: u64,
}

/// The tree below the calling process.
#[derive(Debug)]
pub struct Tree {
    cgroup: Option<Cgroup>,
    /// The cgroup has been killed once.
    killed: bool,
}

impl Tree {
    /// The tree, with the cgroup that it was born in, if any.
    pub fn new(cgroup: Option<Cgroup>) -> Self {
        Self { cgroup, killed: false }
    }

    /// The cgroup.
    pub fn cgroup(&self) -> Option<&Cgroup> {
        self.cgroup.as_ref()
    }

    /// Makes an empty tree fit for the next task. A cgroup that was killed is made anew, under the same name: newer
    /// kernels (6.18 does) kill whoever is born into it from outside afterwards, too. So is one that its last tree has changed.
    pub fn renew(&mut self) -> io::Result<()> {
        let killed = std::mem::take(&mut self.killed);
        let Some(cgroup) = self.cgroup.take() else { return Ok(()) };
        let as_made = !killed && cgroup.is_as_made();
        self.cgroup = Some(if as_made { cgroup } else { cgroup.renew()? });
        Ok(())
    }

    /// Gives the cgroup back, to be removed.
    pub fn into_cgroup(self) -> Option<Cgroup> {
        self.cgroup
    }

    /// Reaps the children that have ended, without waiting. True if there is no child left, dead or alive. After
    /// very many it returns false to let the caller do something else; call again.
    pub fn reap(&mut self, reaped: &mut Vec<Reaped>) -> io::Result<bool> {
        for _ in 0..REAP_LIMIT {
            let mut status = 0;
            // SAFETY: `status` is an int of ours.
            match unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG | libc::__WALL) } {
                0 => return Ok(false),
                pid if pid > 0 => reaped.push(Reaped { pid, exit: Exit::from_status(status) }),
                _ => {
                    let error = io::Error::last_os_error();
                    match error.raw_os_error() {
                        Some(libc::ECHILD) => return Ok(true),
                        Some(libc::EINTR) => {}
                        _ => return Err(error),
                    }
                }
            }
        }
        Ok(false)
    }

    /// Whether there is nobody: no child, dead or alive, and nobody in the cgroup. This is the proof of death.
    pub fn is_empty(&self) -> io::Result<bool> {
        Ok(!has_children()? && self.is_deserted()?)
    }

    /// Whether nobody is in the cgroup. With [`Tree::reap`] having just said that there is no child, the proof of death.
    pub fn is_deserted(&self) -> io::Result<bool> {
        self.cgroup.as_ref().map_or(Ok(true), |cgroup| cgroup.populated().map(|populated| !populated))
    }

    /// Everybody alive: all below the calling process, and all in the cgroup.
    pub fn members(&self) -> Vec<ProcessInfo> {
        let (below, others) = self.look(walk_settled(own_pid()));
        below.iter().chain(&others).filter_map(same_process).collect()
    }

    /// The processor time that the tree has used so far. What has died is counted by whoever has waited for it, one of the tree or
    /// the calling process: the sum grows and does not shrink when somebody ends. (It may hold the time of earlier trees.)
    pub fn cpu_ms(&self) -> u64 {
        let (below, others) = self.look(walk_settled(own_pid()));
        let living = below.iter().chain(&others).map(|stat| stat.cpu_ticks.saturating_add(stat.waited_ticks));
        let waited = stat(own_pid()).map_or(0, |own| own.waited_ticks);
        ticks_to_ms(living.fold(waited, u64::saturating_add))
    }

    /// What everybody alive uses together, at one quick look.
    pub fn usage(&self) -> Usage {
        let (below, others) = self.look(walk(own_pid()));
        let page = rustix::param::page_size() as u64;
        below.iter().chain(&others).fold(Usage::default(), |sum, one| Usage {
            memory_bytes: sum.memory_bytes.saturating_add(one.rss_pages.saturating_mul(page)),
            processes: sum.processes.saturating_add(u64::from(one.threads.max(1))),
        })
    }

    /// Those below the calling process, and beside them those that are only in the cgroup.
    fn look(&self, below: Vec<Stat>) -> (Vec<Stat>, Vec<Stat>) {
        let own = own_pid();
        let Some(cgroup) = &self.cgroup else { return (below, Vec::new()) };
        let known: BTreeSet<Pid> = below.iter().map(|stat| stat.identity.pid).collect();
        let pids = cgroup.pids().unwrap_or_default();
        let others = pids.into_iter().filter(|pid| *pid != own && !known.contains(pid));
        let others = others.filter_map(stat).filter(|stat| !stat.is_dead()).collect();
        (below, others)
    }

    /// Signals everybody. What asks a process to end is followed by SIGCONT, for a stopped one would not notice.
    pub fn signal(&self, signal: Signal) -> SignalReport {
        let (below, others) = self.look(walk_settled(own_pid()));
        let mut round = Round::new();
        for member in below.iter().chain(&others) {
            round.strike(member, signal);
            if matches!(signal, Signal::TERM | Signal::INT | Signal::HUP) {
                round.follow_up(member, Signal::CONT);
            }
        }
        round.report()
    }

    /// Signals those of the tree that are in this process group, once each, and nobody else.
    pub fn signal_group(&self, group: Pid, signal: Signal) -> SignalReport {
        let (below, others) = self.look(walk_settled(own_pid()));
        let mut round = Round::new();
        for member in below.iter().chain(&others).filter(|member| member.pgid == group) {
            round.strike(member, signal);
        }
        round.report()
    }

    /// Kills the cgroup at one blow, and says who was in it. None if there is none, or if it cannot be killed so. It is
    /// the quickest beginning, and not the end: who is outside, or has lost its first thread, is left to the rounds.
    pub fn kill_cgroup(&mut self) -> Option<Vec<Pid>> {
        let cgroup = self.cgroup.as_ref()?;
        let pids = cgroup.pids().ok()?;
        self.killed = true;
        cgroup.kill().ok()?;
        Some(pids)
    }

    /// One round of killing: the cgroup, the direct children, the process groups, then everybody who is still there.
    /// The caller reaps and repeats it until [`Tree::is_empty`]; no number of rounds is too many, and a tree that
    /// forks meanwhile loses ground with each.
    pub fn kill_round(&mut self) -> SignalReport {
        let mut round = Round::new();
        if let Some(cgroup) = &self.cgroup {
            // Without it, or where it does not reach, the rest does the work.
            let _ = cgroup.kill();
            self.killed = true;
        }
        // A chain of forks comes back to us link by link: the newest must die before it is looked at any closer.
        round.kill_children();
        let (below, others) = self.look(walk(own_pid()));
        round.kill_groups(&below);
        for member in below.iter().chain(&others) {
            round.strike(member, Signal::KILL);
        }
        round.report()
    }

    /// Kills and reaps until nobody is left, at most for `within_ms`. Blocks.
    pub fn kill_until_empty(&mut self, within_ms: u64) -> io::Result<KillResult> {
        let began_us = monotonic_us();
        let until_us = began_us.saturating_add(within_ms.saturating_mul(1000));
        let mut result =
            KillResult { empty: false, survivors: Vec::new(), reaped: Vec::new(), rounds: 0, took_us: 0 };
        let mut pause_us = PAUSE_US.0;
        loop {
            self.kill_round();
            result.rounds = result.rounds.saturating_add(1);
            let before = result.reaped.len();
            self.reap(&mut result.reaped)?;
            if !self.is_empty()? {
                sleep_us(pause_us);
                self.reap(&mut result.reaped)?;
            }
            // Whoever dies makes room for the next: go on quickly. Otherwise there is time.
            pause_us = if result.reaped.len() > before { PAUSE_US.0 } else { (pause_us * 2).min(PAUSE_US.1) };
            result.empty = self.is_empty()?;
            if result.empty || monotonic_us() >= until_us {
                break;
            }
        }
        if !result.empty {
            result.survivors = self.members();
            // Dead children that a tracer from outside holds cannot be reaped, and live no more.
            result.empty = result.survivors.is_empty() && self.only_dead_children();
        }
        result.took_us = monotonic_us().saturating_sub(began_us);
        Ok(result)
    }

    fn only_dead_children(&self) -> bool {
        let populated = self.cgroup.as_ref().is_some_and(|cgroup| cgroup.populated().unwrap_or(true));
        let mut numbers = Vec::new();
        children(own_pid(), false, &mut numbers);
        !populated
            && !numbers.is_empty()
            && numbers.iter().all(|&pid| stat(pid).is_none_or(|stat| stat.is_dead()))
    }
}

/// Whether the calling process has a child, dead or alive.
fn has_children() -> io::Result<bool> {
    let mut found = MaybeUninit::<libc::siginfo_t>::zeroed();
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
    loop {
        // SAFETY: `found` is a siginfo of ours, which is not read.
        if unsafe { libc::waitid(libc::P_ALL, 0, found.as_mut_ptr(), options) } == 0 {
            return Ok(true);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::ECHILD) => return Ok(false),
            Some(libc::EINTR) => {}
            _ => return Err(error),
        }
    }
}

pub(crate) fn sleep_us(length_us: u64) {
    let _ = rustix::event::poll(&mut [], Some(&crate::daemonize::timespec_us(length_us)));
}

/// One pass of one signal over the tree.
struct Round {
    own: Stat,
    sent: BTreeSet<Identity>,
    refused: Vec<Identity>,
}

impl Round {
    fn new() -> Self {
        let pid = own_pid();
        let nobody = Stat {
            identity: Identity { pid, start_ticks: 0 },
            state: 'R',
            ppid: 0,
            pgid: 0,
            sid: 0,
            exiting: false,
            waited_ticks: 0,
            cpu_ticks: 0,
            threads: 1,
            rss_pages: 0,
        };
        Self { own: stat(pid).unwrap_or(nobody), sent: BTreeSet::new(), refused: Vec::new() }
    }

    /// Signals one process: a direct child by its number, which it keeps until we reap it; another by a pidfd.
    fn strike(&mut self, member: &Stat, signal: Signal) {
        let delivery = if member.ppid == self.own.identity.pid {
            signal_child(member.identity.pid, signal)
        } else {
            signal_identity(member.identity, signal)
        };
        self.note(member.identity, &delivery);
    }

    fn follow_up(&self, member: &Stat, signal: Signal) {
        // Whoever could not be reached has been noted by the signal before.
        if self.sent.contains(&member.identity) {
            let _ = signal_identity(member.identity, signal);
        }
    }

    fn note(&mut self, member: Identity, delivery: &io::Result<Delivery>) {
        match delivery {
            Ok(Delivery::Sent) => {
                self.sent.insert(member);
            }
            Ok(Delivery::Refused) => self.refused.push(member),
            // Gone is gone; without descriptors for a pidfd, the next round comes.
            Ok(Delivery::Gone) | Err(_) => {}
        }
    }

    fn kill_children(&mut self) {
        let mut numbers = Vec::new();
        children(self.own.identity.pid, false, &mut numbers);
        for pid in numbers {
            let delivery = signal_child(pid, Signal::KILL);
            // It is not reaped, so it can still be asked for its start time now.
            if let Some(member) = identity(pid) {
                self.note(member, &delivery);
            }
        }
    }

    /// Kills process groups at one blow each: a fork within a group cannot get away from that.
    fn kill_groups(&self, below: &[Stat]) {
        let leaders: BTreeSet<Identity> = below.iter().map(|stat| stat.identity).collect();
        let mut done = BTreeSet::from([0, 1, self.own.pgid]);
        for member in below.iter().filter(|member| done.insert(member.pgid)) {
            let leader = identity(member.pgid).filter(|leader| leaders.contains(leader));
            if let Some(leader) = leader
                && kill_group_of(leader)
            {
                continue;
            }
            // A session that began below us has only descendants of ours in it; in the session that we are in there
            // may be others, unless we began it.
            let ours = member.sid != self.own.sid || self.own.sid == self.own.identity.pid;
            let unchanged = |now: Stat| now.identity == member.identity && now.pgid == member.pgid;
            if (leader.is_some() || ours) && stat(member.identity.pid).is_some_and(unchanged) {
                // SAFETY: integers only. The group has a member that we know, so its number is its own, and it is
                // neither ours nor one of the special numbers.
                unsafe { libc::kill(-member.pgid, libc::SIGKILL) };
            }
        }
    }

    fn report(self) -> SignalReport {
        let refused = self.refused.iter().filter(|member| !self.sent.contains(member));
        let refused: BTreeSet<Identity> = refused.copied().collect();
        let refused = refused
            .into_iter()
            .filter_map(|member| info(member.pid).filter(|info| info.identity == member && !info.is_dead()));
        SignalReport { refused: refused.collect(), sent: self.sent.iter().copied().collect() }
    }
}

/// Whether the kernel could kill the group that this process leads, by its pidfd.
pub(crate) fn kill_group_of(leader: Identity) -> bool {
    let pidfd = crate::process::open_pidfd(leader).ok().flatten();
    pidfd.is_some_and(|pidfd| signal::send_to_group(std::os::fd::AsFd::as_fd(&pidfd), Signal::KILL).is_ok())
}

/// Signals a direct child that has not been reaped.
fn signal_child(pid: Pid, signal: Signal) -> io::Result<Delivery> {
    if pid <= 0 {
        return Ok(Delivery::Gone);
    }
    // SAFETY: integers only. The number belongs to a child of this process until this thread, the only one, reaps it.
    Delivery::from_result(unsafe { libc::kill(pid, signal.as_raw()) }.into())
}
