//! Every escape artist through the front door: started by `belay run`, ended by `belay stop`, and looked for by somebody
//! else afterwards.

use belay_protocol::daemon::{ContainmentKind, DaemonStatusResult};
use belay_protocol::life::SignalSent;
use belay_protocol::task::{StopVerdict, TaskStatus, TaskStopResult};
use belay_testkit::{Seen, World, carrying, example, is_alive};

use crate::support::{builder, world};

/// Name and whether it needs root.
fn artists() -> Vec<(String, bool)> {
    let zoo = example("zoo");
    let world = world();
    let listed = world.shell(&format!("{} --list", zoo.display())).ok().stdout;
    let listed = String::from_utf8(listed).unwrap();
    let artists: Vec<(String, bool)> = listed
        .lines()
        .map(|line| match line.split_once(' ') {
            Some((name, flags)) => (name.to_owned(), flags == "root"),
            None => (line.to_owned(), false),
        })
        .collect();
    assert!(artists.len() >= 20, "{artists:?}");
    artists
}

fn rounds() -> usize {
    if std::env::var_os("BELAY_TEST_LONG").is_some_and(|long| long == "1") { 20 } else { 1 }
}

/// Whether it is somebody else all the time, so that no two looks see the same.
fn is_chain(name: &str) -> bool {
    name.ends_with("-chain")
}

/// Everybody of the tree, as we see it by the command lines; `inspect` must see the same.
fn look(world: &World, id: &str, marker: &str, name: &str) -> Vec<Seen> {
    let listed = world.inspect(id).processes.unwrap();
    let mut listed: Vec<i32> = listed.iter().map(|process| process.pid).collect();
    let seen = carrying(marker);
    if !is_chain(name) {
        let mut pids: Vec<i32> = seen.iter().map(|seen| seen.identity.pid).collect();
        listed.sort_unstable();
        pids.sort_unstable();
        assert_eq!(pids, listed, "{name}: we see {seen:?}");
        assert!(!seen.is_empty(), "{name}");
    }
    seen
}

/// Long for those that go when they are asked, however slow the machine; short for those that have to be killed.
fn grace(name: &str) -> &'static str {
    let is_deaf = is_chain(name) || ["ignore-term", "pid-namespace"].contains(&name);
    if is_deaf { "200ms" } else { "30s" }
}

/// Everybody was asked, and killed who did not go.
fn check_signals(name: &str, signals: &[SignalSent], tree: usize) {
    let sent: Vec<(&str, u64)> = signals.iter().map(|sent| (sent.signal.as_str(), sent.processes)).collect();
    let tree = tree as u64;
    match name {
        name if is_chain(name) => assert!(!sent.is_empty(), "{name}"),
        "ignore-term" => assert_eq!(sent, [("SIGTERM", tree), ("SIGKILL", tree)], "{name}"),
        // The first one of a namespace is deaf to what it has no handler for.
        "pid-namespace" => assert_eq!(sent, [("SIGTERM", tree), ("SIGKILL", 1)], "{name}"),
        _ => assert_eq!(sent, [("SIGTERM", tree)], "{name}"),
    }
    assert!(signals.iter().all(|sent| sent.refused == 0), "{name}: {signals:?}");
}

/// Each artist once: it comes up, it is stopped, nobody is left.
fn perform(world: &World, as_root: bool) {
    let zoo = world.reachable(&example("zoo"));
    let zoo = zoo.to_str().unwrap();
    let artists = artists();
    for round in 0..rounds() {
        for (name, needs_root) in &artists {
            if *needs_root && !as_root {
                continue;
            }
            let marker = format!("{}-{name}-{round}-end", world.marker());
            let id = world.run_detached([zoo, name, "--marker", &marker]);
            world.wait_for_output(&id, name, |said| said == b"ready\n");
            let before = look(world, &id, &marker, name);
            let stopped: TaskStopResult =
                world.belay(["stop", "--json", "--grace", grace(name), &id]).ok().json();
            let answer = (stopped.result, stopped.status);
            assert_eq!(answer, (StopVerdict::Accepted, Some(TaskStatus::Cancelled)), "{name}: {stopped:?}");
            let receipt = stopped.receipt.unwrap();
            assert_eq!(receipt.survivors, [], "{name}");
            assert!(receipt.empty_at.is_some(), "{name}: {receipt:?}");
            check_signals(name, &receipt.signals, before.len());
            for seen in &before {
                assert!(!is_alive(seen.identity), "{name}: {seen:?} lives");
            }
            // By the command line and by the name of the task, for whoever has changed one of them; and more than
            // once, for a chain of forks can be missed by one look.
            for _ in 0..3 {
                assert_eq!(carrying(&marker), [], "{name} has survivors");
                assert_eq!(carrying(&format!("BELAY_TASK={id}")), [], "{name} has survivors");
            }
        }
    }
}

// proves K2, K3
#[test]
fn nobody_escapes_with_a_cgroup() {
    let world = world();
    assert_eq!(world.status().containment.kind, ContainmentKind::Cgroup);
    perform(&world, true);
}

// proves K2, K3
#[test]
fn nobody_escapes_without_a_cgroup() {
    let world = builder().env("BELAY_CGROUP", "off").build();
    assert_eq!(world.status().containment.kind, ContainmentKind::Subreaper);
    perform(&world, true);
}

// proves K2, K3
#[test]
fn nobody_escapes_an_ordinary_user() {
    let world = builder().as_nobody().build();
    let status: DaemonStatusResult = world.belay(["up", "--json"]).ok().json();
    assert_eq!(status.containment.kind, ContainmentKind::Subreaper);
    perform(&world, false);
}

/// A tree moves to its new parent while it is being killed; the blow that ends it reaches more than the look before it saw.
// proves K3
#[test]
fn everybody_whom_a_kill_reached_is_in_the_receipt() {
    let world = builder().env("BELAY_CGROUP", "off").build();
    let zoo = example("zoo");
    let zoo = zoo.to_str().unwrap();
    for turn in 0..40 {
        let marker = format!("{}-counted-{turn}-end", world.marker());
        let id = world.run_detached([zoo, "ignore-term", "12", "--marker", &marker]);
        world.wait_for_output(&id, "ready", |said| said == b"ready\n");
        let stopped: TaskStopResult = world.belay(["stop", "--json", "--kill", &id]).ok().json();
        let receipt = stopped.receipt.unwrap();
        let sent: Vec<(&str, u64)> =
            receipt.signals.iter().map(|sent| (sent.signal.as_str(), sent.processes)).collect();
        assert_eq!(sent, [("SIGKILL", 13)], "at turn {turn}");
    }
}
