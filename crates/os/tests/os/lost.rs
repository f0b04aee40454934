//! What a killed shim leaves behind: found by each of its traces, and killed.

use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;

use belay_os::process::{find_lost, is_alive, signal_identity};
use belay_os::tree::{become_subreaper, kill_lost};
use belay_os::{Identity, ProcessInfo, Signal};

use crate::support::{Order, alive, eventually, example, finish, marker, start};

const NEW_SESSION: Order<'_> = Order {
    cwd: None,
    umask: None,
    rlimits: &[],
    stdin: None,
    stderr: None,
    cgroup: None,
    new_session: true,
    terminal: false,
};

/// A shim that has started an artist, and was killed. Its orphans come to this process, which reaps them at the end.
fn killed_shim(artist: &str, marker: &str, env: &str) -> Identity {
    become_subreaper().unwrap();
    let zoo = example("zoo");
    let line = format!("'{}' {artist} --marker {marker} & wait; read forever", zoo.display());
    let envp = ["PATH=/usr/bin:/bin", env];
    let (shim, output) = start(&["sh", "-c", &line], &envp, &NEW_SESSION).unwrap();
    let mut ready = String::new();
    BufReader::new(output).read_line(&mut ready).unwrap();
    assert_eq!(ready, "ready\n");
    signal_identity(shim.identity, Signal::KILL).unwrap();
    finish(shim.pidfd.as_fd());
    shim.identity
}

fn reap(processes: &[ProcessInfo]) {
    for process in processes {
        let pid = rustix::process::Pid::from_raw(process.identity.pid);
        let _ = rustix::process::waitpid(pid, rustix::process::WaitOptions::empty());
    }
}

fn found_and_killed(
    artist: &str,
    env: impl Fn(&str) -> String,
    search: impl Fn(&str) -> String,
    count: usize,
) {
    let marker = marker();
    let shim = killed_shim(artist, &marker, &env(&marker));
    let search = search(&marker);
    let find = || find_lost(shim, None, None, &search);
    let found = eventually("all are found", find, |found| found.len() == count);
    assert_eq!(found.len(), alive(&marker).len());
    assert_eq!(kill_lost(find, 10_000), []);
    assert_eq!(alive(&marker), []);
    reap(&found);
}

#[test]
fn found_by_the_environment_when_in_another_session() {
    let entry = |marker: &str| format!("BELAY_TASK={marker}");
    found_and_killed("double-fork", entry, entry, 1);
}

#[test]
fn found_by_the_session_and_by_descent() {
    // In the session: the first process and one group. Out of it: children of the first process.
    found_and_killed("own-session", |_| "A=b".to_owned(), |marker| format!("BELAY_TASK={marker}"), 5);
}

#[test]
fn chains_of_forks_are_caught() {
    for artist in ["fork-chain 4000", "setsid-chain 4000"] {
        let marker = marker();
        let entry = format!("BELAY_TASK={marker}");
        let shim = killed_shim(artist, &marker, &entry);
        assert_eq!(kill_lost(|| find_lost(shim, None, None, &entry), 20_000), []);
        assert_eq!(alive(&marker), []);
        // A link that nobody saw would go on; one that is caught leaves no newcomers behind.
        assert_eq!(find_lost(shim, None, None, &entry), []);
        println!("{artist}: {} links", reap_chain());
    }
}

/// The links of the chain are children of this process now, and nobody else's.
fn reap_chain() -> usize {
    let own = belay_os::process::own_identity().pid;
    let text = std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut count = 0;
    for pid in text.collect::<Vec<i32>>() {
        let zombie = belay_os::process::info(pid)
            .filter(|info| info.ppid == own && info.state == 'Z' && info.command == "[zoo]");
        reap(zombie.as_slice());
        count += zombie.into_iter().count();
    }
    count
}

#[test]
fn others_are_left_alone() {
    let marker = marker();
    let longer = format!("BELAY_TASK={marker}-longer");
    let (other, _output) = start(&["sleep", "60"], &["PATH=/usr/bin:/bin", &longer], &NEW_SESSION).unwrap();
    let shim = Identity { pid: i32::MAX, start_ticks: 0 };
    assert_eq!(find_lost(shim, None, None, &format!("BELAY_TASK={marker}")), []);
    assert_eq!(find_lost(shim, None, None, ""), []);
    // The number of the session is that of another process by now.
    let reused = Identity { pid: other.identity.pid, start_ticks: other.identity.start_ticks - 1 };
    assert_eq!(find_lost(reused, None, None, "BELAY_TASK=none"), []);
    // By its identity, and by its whole marker, it is found.
    let by_leader = find_lost(shim, Some(other.identity), None, "");
    assert_eq!(by_leader.iter().map(|info| info.identity).collect::<Vec<_>>(), [other.identity]);
    assert_eq!(find_lost(shim, None, None, &longer).len(), 1);
    signal_identity(other.identity, Signal::KILL).unwrap();
    finish(other.pidfd.as_fd());
    assert!(!is_alive(other.identity));
}

#[test]
fn the_caller_is_never_lost() {
    let own = belay_os::process::own_identity();
    let found = find_lost(own, Some(own), None, "");
    assert!(found.iter().all(|info| info.identity != own));
}
