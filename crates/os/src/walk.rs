//! Who descends from whom, from the children files of `/proc` or, where the kernel has none, from one scan of it. A walk
//! is a look and not a proof: a tree that forks during it may show only in part. Callers that need certainty repeat it.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::os::fd::AsFd;

use rustix::fs::{CWD, Mode, OFlags};

use crate::process::{Pid, ProcessInfo, Stat, info, own_pid, stat};

/// A bound on one walk: more than Linux allows processes (`PID_MAX_LIMIT`).
const WALK_LIMIT: usize = 4_194_304;

/// How often a walk looks again while it finds somebody new. A tree that forks all the time never settles.
const LOOKS: usize = 6;

/// Every live process below `root`, parents before children. Dead ones that nobody has reaped are left out.
pub fn descendants(root: Pid) -> Vec<ProcessInfo> {
    walk_settled(root).iter().filter_map(same_process).collect()
}

/// The long description of a process of which the short one is known; `None` if it has died meanwhile.
pub(crate) fn same_process(seen: &Stat) -> Option<ProcessInfo> {
    info(seen.identity.pid).filter(|info| info.identity == seen.identity && !info.is_dead())
}

/// One quick look, with the numbers only, for those who repeat it anyway.
pub(crate) fn walk(root: Pid) -> Vec<Stat> {
    if has_children_files() { walk_children_files(root, 1) } else { walk_scan(root) }
}

/// Looks until it finds nobody new: an orphan that moves to its new parent behind a walk's back is missed by one look.
pub(crate) fn walk_settled(root: Pid) -> Vec<Stat> {
    if has_children_files() { walk_children_files(root, LOOKS) } else { walk_scan(root) }
}

fn has_children_files() -> bool {
    let own = own_pid();
    rustix::fs::access(format!("/proc/{own}/task/{own}/children"), rustix::fs::Access::EXISTS).is_ok()
}

fn walk_children_files(root: Pid, looks: usize) -> Vec<Stat> {
    let mut found: Vec<Stat> = Vec::new();
    let mut known = BTreeSet::from([root]);
    let mut numbers = Vec::new();
    for _ in 0..looks {
        let before = known.len();
        // The caller may have threads of its own, and so may a root that is not the caller.
        children(root, true, &mut numbers);
        let mut next = 0;
        loop {
            for pid in numbers.drain(..) {
                if found.len() < WALK_LIMIT && known.insert(pid) {
                    found.extend(stat(pid).filter(|stat| !stat.is_dead()));
                }
            }
            let Some(parent) = found.get(next) else { break };
            children(parent.identity.pid, parent.threads > 1, &mut numbers);
            next += 1;
        }
        if known.len() == before {
            break;
        }
    }
    found
}

/// The numbers of the children of `pid`, of all its threads: a child belongs to the thread that made it.
pub(crate) fn children(pid: Pid, threaded: bool, numbers: &mut Vec<Pid>) {
    if !threaded {
        return thread_children(&format!("/proc/{pid}/task/{pid}/children"), numbers);
    }
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return };
    for thread in threads.flatten() {
        if let Some(thread) = thread.file_name().to_str() {
            thread_children(&format!("/proc/{pid}/task/{thread}/children"), numbers);
        }
    }
}

fn thread_children(path: &str, numbers: &mut Vec<Pid>) {
    let Ok(file) = rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else {
        return;
    };
    let mut buffer = [0_u8; 4096];
    let mut number: Option<Pid> = None;
    loop {
        let filled = match rustix::io::read(file.as_fd(), &mut buffer) {
            Ok(0) => break,
            Ok(filled) => filled,
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => break,
        };
        for &byte in buffer.get(..filled).unwrap_or_default() {
            if byte.is_ascii_digit() {
                let digit = Pid::from(byte - b'0');
                number = Some(number.unwrap_or(0).saturating_mul(10).saturating_add(digit));
            } else {
                numbers.extend(number.take());
            }
        }
    }
    numbers.extend(number);
}

/// Every process that `/proc` shows, dead ones too.
pub(crate) fn all() -> Vec<Stat> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter_map(stat).collect()
}

fn walk_scan(root: Pid) -> Vec<Stat> {
    let mut by_parent: HashMap<Pid, Vec<Stat>> = HashMap::new();
    for stat in all().into_iter().filter(|stat| !stat.is_dead()) {
        by_parent.entry(stat.ppid).or_default().push(stat);
    }
    let mut found = by_parent.remove(&root).unwrap_or_default();
    let mut next = 0;
    while let Some(parent) = found.get(next) {
        let below = by_parent.remove(&parent.identity.pid).unwrap_or_default();
        found.extend(below);
        next += 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn files_and_scan_agree_and_threads_count() {
        // The child is made by a thread that is not the first one of this process.
        let mut child = std::thread::spawn(|| {
            let mut child = Command::new("sh")
                .args(["-c", "sleep 30 & echo up; wait"])
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut line = String::new();
            std::io::BufRead::read_line(
                &mut std::io::BufReader::new(child.stdout.as_mut().unwrap()),
                &mut line,
            )
            .unwrap();
            child
        })
        .join()
        .unwrap();
        let shell = Pid::try_from(child.id()).unwrap();
        let below = walk_children_files(shell, 1);
        assert_eq!(below.len(), 1, "{below:?}");
        let same = |stats: &[Stat]| stats.iter().map(|stat| stat.identity).collect::<Vec<_>>();
        assert_eq!(same(&walk_scan(shell)), same(&below));
        assert!(walk_children_files(own_pid(), LOOKS).iter().any(|stat| stat.identity == below[0].identity));
        assert!(walk_scan(own_pid()).iter().any(|stat| stat.identity == below[0].identity));
        let described = descendants(shell);
        assert_eq!(described.len(), 1);
        // Before it executes, it is the shell with this in its command line.
        assert!(described[0].command.contains("sleep 30"), "{described:?}");
        crate::process::signal_identity(below[0].identity, crate::signal::Signal::KILL).unwrap();
        child.wait().unwrap();
        assert!(descendants(shell).is_empty());
    }
}
