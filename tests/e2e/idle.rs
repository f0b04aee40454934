//! A daemon and shims that have nothing to do: they do nothing at all, and cost no battery.

use std::collections::BTreeMap;
use std::time::Duration;

use belay_testkit::{LONG, World, wait_until};

use crate::support::{FOREVER, builder, world};

/// How often each thread of the daemon and of the shims has been given a processor, or has left it.
fn switches(world: &World) -> BTreeMap<String, u64> {
    let ours = world.shims().into_iter().chain(world.daemon());
    let mut all = BTreeMap::new();
    for seen in ours {
        let threads = std::fs::read_dir(format!("/proc/{}/task", seen.identity.pid)).unwrap();
        for thread in threads.flatten() {
            let status = std::fs::read_to_string(thread.path().join("status")).unwrap_or_default();
            let counts = status.lines().filter(|line| line.contains("ctxt_switches:"));
            let sum = counts.filter_map(|line| line.rsplit('\t').next()?.parse::<u64>().ok()).sum();
            all.insert(thread.path().to_str().unwrap().to_owned(), sum);
        }
    }
    all
}

/// Those that were on a processor since the first look. A thread that has ended meanwhile was needed no longer.
fn woken(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>) -> Vec<String> {
    let is_woken = |(thread, count): &(&String, &u64)| before.get(*thread) != Some(*count);
    after.iter().filter(is_woken).map(|(thread, count)| format!("{thread}: {count}")).collect()
}

fn while_a_task_runs_nobody_wakes(world: &World) {
    let id = world.run_detached(["sh", "-c", "echo ready; exec sleep \"$0\"", FOREVER]);
    world.wait_for_output(&id, "ready", |said| said == b"ready\n");
    wait_until("rest after the start", LONG, || {
        let before = switches(world);
        // Sleeps because rest shows only over a time in which nothing happens.
        std::thread::sleep(Duration::from_millis(700));
        let woken = woken(&before, &switches(world));
        if woken.is_empty() { Ok(()) } else { Err(format!("{woken:?}")) }
    });
    let before = switches(world);
    assert!(before.len() >= 2, "a daemon and a shim: {before:?}");
    // Sleeps because whoever looks around now and then does so within this time.
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(woken(&before, &switches(world)), Vec::<String>::new(), "before: {before:?}");
}

// proves D9
#[test]
fn while_a_task_runs_and_nobody_asks_nobody_wakes() {
    while_a_task_runs_nobody_wakes(&world());
}

// proves D9
#[test]
fn without_a_cgroup_nobody_wakes_either() {
    while_a_task_runs_nobody_wakes(&builder().env("BELAY_CGROUP", "off").build());
}
