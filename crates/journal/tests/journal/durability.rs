//! `kill -9` at any instant: what was acknowledged is there, whole.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use belay_journal::{Batch, TaskFilter};

use crate::support::{Dice, event, open, task};

const CHILD_DIR: &str = "BELAY_JOURNAL_TEST_DIR";
const EVENTS_A_BATCH: u64 = 3;

/// Not a test of its own: the program that is killed. It writes batch after batch and prints each number once committed.
#[test]
#[ignore = "started by the test below"]
fn writes_until_killed() {
    let Some(dir) = std::env::var_os(CHILD_DIR) else { return };
    let mut journal = open(Path::new(&dir));
    loop {
        let number = journal.next_number();
        let last = journal.last_event();
        let mut row = task(number);
        row.body = format!("{{\"pad\":\"{}\"}}", "p".repeat(usize::try_from(number % 7).unwrap() * 900));
        let events = (last + 1..=last + EVENTS_A_BATCH).map(event).collect();
        journal.commit(&Batch { put: vec![row], events, removed: Vec::new() }).unwrap();
        // A line of its own, whatever the test harness has begun to print.
        writeln!(std::io::stdout(), "\nack {number}").unwrap();
    }
}

#[expect(clippy::disallowed_methods, reason = "the test kills a writer, which has to be a process")]
fn start(dir: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "durability::writes_until_killed", "--ignored", "--nocapture", "--test-threads=1"])
        .env(CHILD_DIR, dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Lets the writer commit some batches, kills it, and returns the last number it acknowledged.
fn acknowledged(dir: &Path, dice: &mut Dice) -> u64 {
    let mut child = start(dir);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let acks = |line: String| line.strip_prefix("ack ").and_then(|number| number.parse().ok());
    let wanted = usize::try_from(dice.below(400)).unwrap();
    let before = lines.by_ref().filter_map(acks).nth(wanted).unwrap();
    std::thread::sleep(Duration::from_micros(dice.below(3000)));
    child.kill().unwrap();
    child.wait().unwrap();
    lines.filter_map(acks).last().unwrap_or(before)
}

// proves W4: events are durable, and no acknowledged batch is lost or torn.
#[test]
fn every_acknowledged_batch_survives_kill_9() {
    let dir = tempfile::tempdir().unwrap();
    let seed = u64::from(std::process::id());
    let mut dice = Dice(seed);
    for round in 0..20 {
        let acknowledged = acknowledged(dir.path(), &mut dice);
        let journal = open(dir.path());
        let kept = journal.next_number() - 1;
        let context = format!("seed {seed}, round {round}");
        assert!(kept >= acknowledged, "{context}: {acknowledged} acknowledged, {kept} kept");
        assert!(kept <= acknowledged + 1, "{context}: at most the batch in hand was not told");
        let tasks = journal.tasks(&TaskFilter { limit: usize::MAX, ..TaskFilter::default() }).unwrap();
        assert!(tasks.iter().map(|task| task.number).eq((1..=kept).rev()), "{context}");
        let page = journal.events(0, usize::MAX).unwrap();
        assert!(page.events.iter().map(|event| event.seq).eq(1..=kept * EVENTS_A_BATCH), "{context}");
        assert_eq!((page.first, page.last), (1, kept * EVENTS_A_BATCH), "{context}");
    }
}
