//! Days on which the disk is full or the journal is damaged: what cannot be recorded is refused, what runs goes on,
//! what can be read is kept, and people are told.

use std::path::PathBuf;

use belay_client::Client;
use belay_protocol::daemon::{
    DaemonDoctorResult, DaemonStatusResult, DoctorFinding, FindingTopic, FindingVerdict,
};
use belay_protocol::event::EventKind;
use belay_protocol::methods::TaskStart;
use belay_protocol::task::{StopVerdict, TaskInfo, TaskStatus};
use belay_protocol::{ErrorKind, RpcError};
use belay_testkit::{LONG, World, wait_until};

use crate::patient::Patient;
use crate::support::{FOREVER, builder, refused, stop_of, world};

/// Fills the disk to its last byte, then starts things until there is no room to record one.
fn fill(world: &World, client: &mut Client) -> RpcError {
    world.shell("cat /dev/zero >\"$BELAY_HOME/filler\"; true");
    let params = world.start_params(&["true"]);
    // The journal may have some room of its own left.
    for _ in 0..1_000 {
        match client.call::<TaskStart>(&params) {
            Ok(_) => {}
            error => return refused(error),
        }
    }
    panic!("a thousand starts fitted on a full disk");
}

// proves S1, O8, D5
#[test]
fn a_start_that_cannot_be_recorded_is_refused_and_what_runs_goes_on() {
    let world = builder().small_disk("4m").build();
    let running = world.start(&world.start_params(&["sleep", FOREVER]));
    let daemon = world.daemon_pid();
    let mut client = world.client();
    let error = fill(&world, &mut client);
    let journal = world.home().join("journal.db");
    assert_eq!(
        error.message,
        format!("the journal failed: no room left for the journal at {}", journal.display())
    );
    assert_eq!(error.data.kind, ErrorKind::DiskFull);
    assert_eq!(error.data.hint.as_deref(), Some("free some disk space, or run belay gc"));
    let said = world.belay(["run", "-d", "--", "true"]);
    assert_eq!(said.code, Some(1), "{said}");
    let expected = format!("error: {}\n hint: free some disk space, or run belay gc\n", error.message);
    assert_eq!(String::from_utf8_lossy(&said.stderr), expected);

    // Everything but starting works: looking, and stopping with its proof.
    let live: Vec<TaskInfo> = world.belay(["ps", "--json"]).ok().json_lines();
    assert_eq!(
        live.iter().map(|task| &task.id).collect::<Vec<_>>(),
        [&running.id],
        "no ghost of a refused start"
    );
    let stopped = world.stop(&stop_of(&running.id));
    assert_eq!((stopped.result, stopped.status), (StopVerdict::Accepted, Some(TaskStatus::Cancelled)));
    assert_eq!(stopped.receipt.unwrap().survivors, []);
    let notices = world.status().notices;
    assert!(
        notices.iter().any(|notice| notice.message.starts_with("the journal cannot be written: ")),
        "{notices:?}"
    );
    assert_eq!(world.get(&running.id).status, TaskStatus::Cancelled);
    let known: Vec<TaskInfo> = world.belay(["ps", "-a", "--json"]).ok().json_lines();
    let found = known.iter().find(|task| task.id == running.id).map(|task| task.status);
    assert_eq!(found, Some(TaskStatus::Cancelled), "its end waits for room, and is told");

    // Room again, and all is as if there had always been.
    std::fs::remove_file(world.home().join("filler")).unwrap();
    let started = world.start(&world.start_params(&["true"]));
    assert_eq!(world.wait_ended(&started.id).status, TaskStatus::Completed);
    assert_eq!(world.daemon_pid(), daemon);
    wait_until("the end in the record", LONG, || {
        let events = world.events_of(&running.id);
        let ends = events.iter().filter(|kind| **kind == EventKind::TaskEnded).count();
        if ends == 1 { Ok(()) } else { Err(format!("{events:?}")) }
    });
    world.kill_daemon();
    assert_eq!(world.get(&running.id).status, TaskStatus::Cancelled);
    let numbers: Vec<u64> = world.events().iter().map(|event| event.seq).collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
}

// proves D1, D2, O8
#[test]
fn a_daemon_that_dies_with_a_full_disk_is_followed_by_one_that_knows() {
    let world = builder().small_disk("4m").build();
    let running = world.start(&world.start_params(&["sleep", FOREVER]));
    let mut client = world.client();
    fill(&world, &mut client);
    let stopped = world.stop(&stop_of(&running.id));
    assert_eq!(stopped.status, Some(TaskStatus::Cancelled));
    // The end could not be recorded, so its shim has not been told to forget it.
    world.kill_daemon();
    std::fs::remove_file(world.home().join("filler")).unwrap();
    let after = world.wait_ended(&running.id);
    assert_eq!(after.status, TaskStatus::Cancelled);
    assert_eq!(after.outcome.unwrap().receipt(), stopped.receipt.as_ref(), "the same receipt, told again");
    assert_eq!(world.events_of(&running.id).iter().filter(|kind| **kind == EventKind::TaskEnded).count(), 1);
}

/// A world with one task that ended and one that runs; its daemon has left, and the journal is damaged by `damage`.
fn damaged(how_the_daemon_leaves: impl Fn(&World), damage: impl Fn(&PathBuf)) -> (World, TaskInfo, TaskInfo) {
    let world = world();
    for number in 0..40 {
        world.start(&world.start_params(&["echo", &format!("filling {number}")]));
    }
    let ended = world.start(&world.start_params(&["sh", "-c", "echo kept; exit 4"]));
    let ended = world.wait_ended(&ended.id);
    let running = world.inspect(&world.run_detached(["sh", "-c", "echo a; exec sleep 1000"]));
    how_the_daemon_leaves(&world);
    damage(&world.home().join("journal.db"));
    (world, ended, running)
}

fn leave(world: &World) {
    world.belay(["down"]).ok();
}

fn be_killed(world: &World) {
    world.kill_daemon();
}

/// The damaged file is set aside and named, and the task that runs is known.
#[track_caller]
fn assert_known_and_told(world: &World, running: &TaskInfo, before: &[u8]) -> DaemonStatusResult {
    let status: DaemonStatusResult = world.belay(["up", "--json"]).ok().json();
    let aside: Vec<PathBuf> = std::fs::read_dir(world.home())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.to_str().unwrap().contains("journal.damaged-") && path.extension().unwrap() == "db"
        })
        .collect();
    assert_eq!(aside.len(), 1, "{aside:?}");
    assert_eq!(std::fs::read(&aside[0]).unwrap(), before, "it is kept as it was");
    let hint = format!("the damaged file is {}", aside[0].display());
    let notice = status.notices.iter().find(|notice| notice.hint.as_ref() == Some(&hint));
    assert!(notice.unwrap().message.starts_with("the journal was damaged ("), "{status:?}");
    let doctor = world.belay(["doctor"]);
    assert!(String::from_utf8_lossy(&doctor.stdout).contains(&hint), "{doctor}");
    let adopted = world.inspect(&running.id);
    assert_eq!((adopted.status, adopted.pid), (TaskStatus::Running, running.pid));
    assert_eq!(adopted.spec, running.spec);
    assert_eq!(world.logs(&running.id), b"a\n");
    let stopped = world.stop(&stop_of(&running.id));
    assert_eq!((stopped.result, stopped.status), (StopVerdict::Accepted, Some(TaskStatus::Cancelled)));
    status
}

/// The page size of every journal.
const PAGE: usize = 4096;

fn has(bytes: &[u8], words: &str) -> bool {
    bytes.windows(words.len()).any(|window| window == words.as_bytes())
}

/// Whether rows of a table stand on this page, with what only the record of a task has.
fn holds_tasks(page: &[u8]) -> bool {
    page.first() == Some(&0x0d) && has(page, r#""proof":"#)
}

fn garbage(length: usize) -> Vec<u8> {
    (0..length).map(|place| u8::try_from(place * 7 % 251).unwrap() | 1).collect()
}

// proves D5
#[test]
fn a_journal_without_a_head_is_set_aside_and_what_it_held_is_kept() {
    let damage = |journal: &PathBuf| {
        let mut bytes = std::fs::read(journal).unwrap();
        bytes[..64].copy_from_slice(&garbage(64));
        std::fs::write(journal, bytes).unwrap();
    };
    for leaving in [leave as fn(&World), be_killed] {
        let (world, ended, running) = damaged(leaving, damage);
        let before = std::fs::read(world.home().join("journal.db")).unwrap();
        assert_known_and_told(&world, &running, &before);
        let tasks = Patient::new(&world).tasks();
        assert_eq!(tasks.len(), 42, "every record could be read");
        assert_eq!(tasks[&ended.id].outcome, ended.outcome);
        assert_eq!(world.logs(&ended.id), b"kept\n");
    }
}

// proves D5
#[test]
fn a_journal_with_garbage_in_its_middle_is_set_aside_and_the_rest_is_kept() {
    let ids = std::cell::RefCell::new(Vec::new());
    let ruined = std::cell::RefCell::new(Vec::new());
    let list_and_leave = |world: &World| {
        ids.replace(Patient::new(world).tasks().into_keys().collect());
        leave(world);
    };
    let damage = |journal: &PathBuf| {
        let mut bytes = std::fs::read(journal).unwrap();
        let middle = bytes.len() / 2 / PAGE;
        let mut pages = bytes.chunks_exact_mut(PAGE).skip(middle.max(1));
        let page = pages.find(|page| holds_tasks(page)).expect("no task stands in the second half");
        ruined.replace(page.to_vec());
        page.copy_from_slice(&garbage(PAGE));
        std::fs::write(journal, bytes).unwrap();
    };
    let (world, _, running) = damaged(list_and_leave, damage);
    let before = std::fs::read(world.home().join("journal.db")).unwrap();
    assert_known_and_told(&world, &running, &before);
    let (ids, ruined) = (ids.into_inner(), ruined.into_inner());
    assert_eq!(ids.len(), 42);
    // Nobody is gone but who stood on that page. (Some of those it names stand elsewhere now: what they left there is what
    // was written of them earlier. The one that runs is taken in again, wherever it stood.)
    let kept: Vec<String> = Patient::new(&world).tasks().into_keys().collect();
    let (gone, stayed): (Vec<String>, Vec<String>) = ids.into_iter().partition(|id| !kept.contains(id));
    assert_eq!(stayed, kept, "no task but these");
    let elsewhere: Vec<&String> = gone.iter().filter(|id| !has(&ruined, id)).collect();
    assert!(
        elsewhere.is_empty() && (1..10).contains(&gone.len()),
        "gone: {gone:?}; not there: {elsewhere:?}"
    );
}

// proves D5
#[test]
fn a_journal_that_was_emptied_is_set_aside_and_what_runs_is_taken_in() {
    let (world, ended, running) = damaged(leave, |journal| std::fs::write(journal, "").unwrap());
    assert_known_and_told(&world, &running, b"");
    let ended = world.belay(["inspect", &ended.id]);
    assert_eq!(ended.code, Some(1), "{ended}");
}

// proves D5, D1
#[test]
fn a_journal_that_was_removed_takes_nothing_with_it_that_runs() {
    let (world, _, running) = damaged(leave, |journal| std::fs::remove_file(journal).unwrap());
    let found = world.inspect(&running.id);
    assert_eq!((found.status, found.pid), (TaskStatus::Running, running.pid));
    assert_eq!(world.logs(&running.id), b"a\n");
    let told = format!("task {} was running and not in the journal: imported", running.id);
    let notices = world.status().notices;
    assert_eq!(notices.iter().map(|notice| notice.message.as_str()).collect::<Vec<_>>(), [told]);
    assert_eq!(world.stop(&stop_of(&running.id)).status, Some(TaskStatus::Cancelled));
}

/// What `doctor` says of the journal, if anything, and whether it finds a problem at all.
fn journal_finding(world: &World) -> (Option<i32>, Option<DoctorFinding>) {
    let said = world.belay(["doctor", "--json"]);
    let found: DaemonDoctorResult = said.json();
    (said.code, found.findings.into_iter().find(|finding| finding.topic == FindingTopic::Journal))
}

/// The files of the journal's write buffer, in order.
fn buffer_files(world: &World) -> Vec<String> {
    let entries = std::fs::read_dir(world.home()).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.starts_with("journal.buffer-")).collect();
    names.sort_unstable();
    names
}

// proves X2
#[test]
fn a_journal_that_is_taken_away_under_a_running_daemon_is_told() {
    let world = world();
    let live = world.run_detached(["sleep", FOREVER]);
    let ended = world.run_detached(["true"]);
    world.wait_ended(&ended);
    assert_eq!(journal_finding(&world), (Some(0), None));

    let names = ["journal.db", "journal.db-wal"];
    let aside = world.dir().join("aside");
    std::fs::create_dir(&aside).unwrap();
    let take_away = || {
        for name in names {
            std::fs::rename(world.home().join(name), aside.join(name)).unwrap();
        }
        // What they hold is in the database already, or goes there.
        for name in buffer_files(&world) {
            std::fs::remove_file(world.home().join(name)).unwrap();
        }
    };
    take_away();
    let message = format!(
        "missing from {}: {}; the daemon still has the files open, and their contents are lost when it exits",
        world.marker(),
        names.join(", ")
    );
    let hint = "if the files were moved, move them back; else save what you need (belay ps -a --json, belay events --json), \
                then run belay down: the next daemon creates a new journal and imports the running tasks, but not ended \
                tasks, sessions and lanes";
    let (verdict, topic, hint) = (FindingVerdict::Problem, FindingTopic::Journal, Some(hint.to_owned()));
    let expected = DoctorFinding { verdict, topic, message, hint };
    wait_until("only the database to be missed", LONG, || {
        let found = journal_finding(&world);
        if found == (Some(1), Some(expected.clone())) { Ok(()) } else { Err(format!("{found:?}")) }
    });
    // What it has open it has: everything is still told, and more can be started.
    world.run_detached(["true"]);
    assert_eq!(world.get(&ended).status, TaskStatus::Completed);

    for name in names {
        std::fs::rename(aside.join(name), world.home().join(name)).unwrap();
    }
    assert_eq!(journal_finding(&world), (Some(0), None));
    // Another file in the place of one is none of its own.
    std::fs::copy(world.home().join("journal.db-wal"), aside.join("copy")).unwrap();
    std::fs::rename(world.home().join("journal.db-wal"), aside.join("own")).unwrap();
    std::fs::rename(aside.join("copy"), world.home().join("journal.db-wal")).unwrap();
    let found = journal_finding(&world).1.unwrap().message;
    let start = format!("missing from {}: journal.db-wal; ", world.marker());
    assert_eq!(found.get(..start.len()), Some(start.as_str()), "{found}");

    take_away();
    world.belay(["down"]).ok();
    world.belay(["up"]).ok();
    assert_eq!(journal_finding(&world), (Some(0), None));
    assert_eq!(world.get(&live).status, TaskStatus::Running);
    assert_eq!(
        world.belay(["inspect", &ended]).code,
        Some(1),
        "the next one knows nothing of what had ended"
    );
}
