//! What is kept: ended tasks and their output go by rule, oldest first, with everything of theirs on disk; live ones
//! never do.

use std::collections::BTreeSet;

use belay_client::{Client, Message, decode};
use belay_os::signal::Signal;
use belay_protocol::config::ConfigSetParams;
use belay_protocol::daemon::{DaemonGcParams, DaemonStatusParams};
use belay_protocol::event::EventKind;
use belay_protocol::methods::{ConfigSet, DaemonGc, DaemonStatus, Method, TaskStart};
use belay_protocol::task::{AnswerWhen, TaskInfo, TaskStartParams, TaskStatus};
use belay_testkit::{LONG, World, look_at, send_signal, wait_until};

use serde_json::Value;

use crate::patient::Patient;
use crate::support::{FOREVER, builder, stop_of, world};

/// The ids that are listed, and the ids that have a directory.
fn known(world: &World) -> (BTreeSet<String>, BTreeSet<String>) {
    let listed = Patient::new(world).tasks().into_keys().collect();
    let entries = std::fs::read_dir(world.home().join("tasks")).unwrap();
    let on_disk = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    (listed, on_disk)
}

fn run_to_end(world: &World, argv: &[&str]) -> String {
    let id = world.start(&world.start_params(argv)).id;
    assert_eq!(world.wait_ended(&id).status, TaskStatus::Completed);
    id
}

/// What `belay gc --json` prints.
struct Collected {
    removed: Vec<String>,
    freed_bytes: u64,
    dry_run: bool,
}

fn gc(world: &World, args: &[&str]) -> Collected {
    let shown: Value = world.belay([&["gc", "--json"], args].concat()).ok().json();
    Collected {
        removed: serde_json::from_value(shown["removed"].clone()).unwrap(),
        freed_bytes: shown["freed_bytes"].as_u64().unwrap(),
        dry_run: shown["dry_run"].as_bool().unwrap(),
    }
}

// proves D8
#[test]
fn more_ended_tasks_than_the_rule_allows_go_oldest_first() {
    let world = builder().env("BELAY_RETENTION", "tasks=5,output=1MiB").build();
    let live: Vec<TaskInfo> = (0..7)
        .map(|_| world.start(&world.start_params(&["sh", "-c", "echo alive; exec sleep 1000"])))
        .collect();
    let ended: Vec<String> =
        (0..12).map(|number| run_to_end(&world, &["echo", &format!("task {number:02}")])).collect();
    let all: BTreeSet<String> =
        live.iter().map(|task| task.id.clone()).chain(ended.iter().cloned()).collect();
    wait_until("a directory for everybody", LONG, || match known(&world) {
        (listed, on_disk) if listed == all && on_disk == all => Ok(()),
        other => Err(format!("{other:?}")),
    });

    let would = gc(&world, &["--dry-run"]);
    assert_eq!((would.dry_run, would.removed.as_slice(), would.freed_bytes), (true, &ended[..7], 7 * 8));
    assert_eq!(known(&world), (all.clone(), all.clone()), "a dry run removes nothing");
    let removed = gc(&world, &[]);
    assert_eq!(
        (removed.dry_run, removed.removed.as_slice(), removed.freed_bytes),
        (false, &ended[..7], 7 * 8)
    );
    let kept: BTreeSet<String> = all.iter().filter(|id| !ended[..7].contains(id)).cloned().collect();
    assert_eq!(known(&world), (kept.clone(), kept));
    assert_eq!(gc(&world, &[]).removed, [""; 0], "nothing more to do");
    assert_eq!(world.logs(&ended[11]), b"task 11\n");
    assert_eq!(world.belay(["logs", &ended[0]]).code, Some(1));
    assert_eq!(world.events_of(&ended[0]).last(), Some(&EventKind::TaskRemoved));

    // Whatever the rules say, and whoever asks: never a live one.
    assert_eq!(gc(&world, &["--all"]).removed, ended[7..]);
    let live_ids: BTreeSet<String> = live.iter().map(|task| task.id.clone()).collect();
    assert_eq!(known(&world), (live_ids.clone(), live_ids));
    for task in &live {
        assert_eq!(world.get(&task.id).status, TaskStatus::Running);
        assert!(look_at(task.pid.unwrap()).is_some());
        assert_eq!(world.logs(&task.id), b"alive\n");
    }
}

// proves D8
#[test]
fn more_output_than_the_rule_allows_goes_oldest_first() {
    let world = builder().env("BELAY_RETENTION", "tasks=100,output=1MiB").build();
    let large = ["sh", "-c", "head -c 600000 /dev/zero"];
    let live = world.start(&world.start_params(&["sh", "-c", "head -c 3000000 /dev/zero; exec sleep 1000"]));
    let ended: Vec<String> = (0..3).map(|_| run_to_end(&world, &large)).collect();
    let small = run_to_end(&world, &["echo", "small"]);
    let removed = gc(&world, &[]);
    assert_eq!(removed.removed, ended[..2]);
    assert_eq!(removed.freed_bytes, 1_200_000);
    let kept = BTreeSet::from([live.id.clone(), ended[2].clone(), small]);
    assert_eq!(known(&world), (kept.clone(), kept));
    wait_until("all of the live one's output", LONG, || {
        let bytes = world.get(&live.id).output.bytes;
        if bytes == 3_000_000 { Ok(()) } else { Err(bytes.to_string()) }
    });
}

// proves D8
#[test]
fn what_is_older_than_the_rule_allows_goes() {
    let world = builder().env("BELAY_RETENTION", "age=300ms").build();
    let live = world.start(&world.start_params(&["sleep", FOREVER]));
    let ended = run_to_end(&world, &["echo", "old"]);
    let removed = wait_until("an old task", LONG, || {
        let removed = gc(&world, &[]).removed;
        if removed.is_empty() { Err("nothing is old enough".to_owned()) } else { Ok(removed) }
    });
    assert_eq!(removed, [ended]);
    assert_eq!(world.get(&live.id).status, TaskStatus::Running);
}

/// The answer that comes next.
fn answer<M: Method>(client: &mut Client) -> M::Result {
    loop {
        if let Message::Response(answer) = client.receive().unwrap() {
            return decode::<M>(&answer.result.unwrap()).unwrap();
        }
    }
}

fn run_many(world: &World, count: usize) {
    let mut client = world.client();
    let params = world.start_params(&["echo", "x"]);
    for _ in 0..count {
        client.send::<TaskStart>(&params).unwrap();
    }
    let ids: Vec<String> = (0..count).map(|_| answer::<TaskStart>(&mut client).id).collect();
    for id in ids {
        // One that is gone already has ended before.
        let _ = world.belay(["wait", &id]);
    }
}

// proves D8
#[test]
fn the_rules_are_kept_without_anybody_asking() {
    let world = builder().env("BELAY_RETENTION", "tasks=5,events=50").build();
    let live = world.start(&world.start_params(&["sleep", FOREVER]));
    let few = |limit: usize| {
        wait_until("few tasks", LONG, || {
            let (listed, on_disk) = known(&world);
            let status = world.status();
            let events = status.events_last + 1 - status.events_first;
            let right = listed.len() <= limit && on_disk.len() <= limit && events <= 50 + 8 * limit as u64;
            let shown = format!("{} listed, {} on disk, {events} events", listed.len(), on_disk.len());
            if right { Ok(()) } else { Err(shown) }
        });
    };
    // A busy daemon looks after every hundredth end.
    run_many(&world, 99);
    assert_eq!(known(&world).0.len(), 100, "it does not look all the time");
    run_many(&world, 1);
    few(6);
    // A new one looks when it has come up.
    run_many(&world, 20);
    world.kill_daemon();
    few(6);
    assert_eq!(world.get(&live.id).status, TaskStatus::Running);
}

// proves D8
#[test]
fn rm_takes_ended_tasks_only() {
    let world = world();
    let live = world.start(&world.start_params(&["sh", "-c", "echo alive; exec sleep 1000"])).id;
    let ended = run_to_end(&world, &["echo", "ended"]);
    let said = world.belay(["rm", &live, &ended]);
    assert_eq!((said.code, said.line()), (Some(1), format!("{ended} removed, 6 B freed")), "{said}");
    let expected = format!("error: task {live} has not ended\n hint: stop it first: belay stop {live}\n");
    assert_eq!(String::from_utf8_lossy(&said.stderr), expected);
    let kept = BTreeSet::from([live.clone()]);
    wait_until("the live one alone", LONG, || match known(&world) {
        (listed, on_disk) if listed == kept && on_disk == kept => Ok(()),
        other => Err(format!("{other:?}")),
    });
    assert_eq!(world.belay(["rm", &ended]).code, Some(1), "it is not there twice");
    world.stop(&stop_of(&live));
    assert_eq!(world.belay(["rm", &live]).ok().line(), format!("{live} removed, 6 B freed"));
    assert_eq!(known(&world), (BTreeSet::new(), BTreeSet::new()));
}

// proves D8, X2
#[test]
fn a_rule_that_is_not_understood_is_told_before_anything_starts() {
    let world = world();
    for rule in ["tasks=many", "keep=5", "tasks", "output=1PiB", "age=-1s"] {
        let said = world.belay_with(["run", "--", "true"], |command| {
            command.env("BELAY_RETENTION", rule);
        });
        let problem = format!(
            "BELAY_RETENTION is {rule:?}, which is not understood: write it as age=7d,tasks=20000,output=4GiB,events=200000"
        );
        let hint = "`belay doctor` looks at what a daemon needs";
        let expected = format!("error: the daemon could not be started: {problem}\n hint: {hint}\n");
        assert_eq!((said.code, String::from_utf8_lossy(&said.stderr).into_owned()), (Some(4), expected));
    }
    assert_eq!(world.everybody(), []);
}

/// New rules count at once for all that is there, and others are answered while what they do not keep is removed.
// proves D8, X3
#[test]
fn rules_that_are_changed_are_applied_to_the_end_without_anybody_asking() {
    const MANY: u64 = 700;
    let world = world();
    let (mut setting, mut asking) = (world.client(), world.client());
    let params = TaskStartParams { answer: AnswerWhen::Ended, ..world.start_params(&["true"]) };
    for _ in 0..MANY {
        setting.call::<TaskStart>(&params).unwrap();
    }
    // Both are there when the daemon looks, and the change came first.
    let daemon = world.daemon().unwrap().identity;
    send_signal(daemon, Signal::STOP);
    let rule = ConfigSetParams { key: "retention.tasks".to_owned(), value: 5.into() };
    setting.send::<ConfigSet>(&rule).unwrap();
    asking.send::<DaemonStatus>(&DaemonStatusParams::default()).unwrap();
    send_signal(daemon, Signal::CONT);
    let left = answer::<DaemonStatus>(&mut asking).tasks_ended;
    assert!((6..=MANY).contains(&left), "{left} of {MANY} were left");
    assert_eq!(answer::<ConfigSet>(&mut setting).item.value, 5);
    wait_until("as many as are to be kept", LONG, || match world.status().tasks_ended {
        5 => Ok(()),
        others => Err(format!("{others}")),
    });
}

/// A collection of many keeps nobody waiting: others are answered while it goes on.
// proves D8, X3
#[test]
fn whoever_asks_during_a_long_collection_is_answered() {
    const MANY: u64 = 1_200;
    let world = world();
    let (mut collecting, mut asking) = (world.client(), world.client());
    let params = TaskStartParams { answer: AnswerWhen::Ended, ..world.start_params(&["true"]) };
    for _ in 0..MANY {
        collecting.call::<TaskStart>(&params).unwrap();
    }
    // Both are there when the daemon looks, and the collection came first: it is under way when the other is answered.
    let daemon = world.daemon().unwrap().identity;
    send_signal(daemon, Signal::STOP);
    collecting.send::<DaemonGc>(&DaemonGcParams { all: true, dry_run: false }).unwrap();
    asking.send::<DaemonStatus>(&DaemonStatusParams::default()).unwrap();
    send_signal(daemon, Signal::CONT);
    let left = answer::<DaemonStatus>(&mut asking).tasks_ended;
    assert!((1..=MANY).contains(&left), "{left} of {MANY} were left");
    let removed = answer::<DaemonGc>(&mut collecting).removed;
    assert_eq!(removed, MANY);
    assert_eq!(std::fs::read_dir(world.home().join("tasks")).unwrap().count(), 0);
}
