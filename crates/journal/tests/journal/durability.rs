//! `kill -9` at any instant: every acknowledged batch is there, whole.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Dice, open};

const EVENTS_PER_BATCH: u64 = 3;

/// The example `writer` is in the directory beside this test's program.
fn writer() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    own.parent().and_then(Path::parent).unwrap().join("examples/writer")
}

#[expect(clippy::disallowed_methods, reason = "the test kills a writer, which has to be a process")]
fn start(dir: &Path) -> Child {
    let program = writer();
    let child = Command::new(&program).arg(dir).stdout(Stdio::piped()).spawn();
    child.unwrap_or_else(|error| {
        panic!("{}: {error}; cargo build -p belay-journal --examples makes it", program.display())
    })
}

/// Lets the writer append up to so many batches, kills it, and returns the last number that it
/// acknowledged.
fn acknowledged(dir: &Path, dice: &mut Dice, most: u64) -> u64 {
    let mut child = start(dir);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    // The last line may be cut off by the kill.
    let acks = |line: String| line.parse().ok();
    let wanted = usize::try_from(dice.below(most)).unwrap();
    let before = lines.by_ref().filter_map(acks).nth(wanted).unwrap();
    // A random instant of its work, which is too short to wait for in any other way.
    let instant = Instant::now() + Duration::from_micros(dice.below(3000));
    while Instant::now() < instant {
        std::hint::spin_loop();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    lines.filter_map(acks).last().unwrap_or(before)
}

// proves W4: events are durable, and no acknowledged batch is lost or torn.
#[test]
fn acknowledged_batches_survive_kill_9() {
    let dir = tempfile::tempdir().unwrap();
    let seed = u64::from(std::process::id());
    let mut dice = Dice(seed);
    for round in 0..40 {
        // A short run ends during a flush, a long one rather during a checkpoint.
        let most = if round % 4 == 0 { 400 } else { 40 };
        let acknowledged = acknowledged(dir.path(), &mut dice, most);
        let mut journal = open(dir.path());
        let kept = journal.buffer.next_number() - 1;
        let context = format!("seed {seed}, round {round}");
        assert!(kept >= acknowledged, "{context}: {acknowledged} acknowledged, {kept} kept");
        assert!(kept <= acknowledged + 1, "{context}: at most the current batch was not acknowledged");
        // Each seventh batch removes the task three before its own.
        let is_removed = |number: u64| number % 7 == 4 && number + 3 <= kept;
        let numbers = (1..=kept).rev().filter(|number| !is_removed(*number));
        let tasks = journal.all_tasks();
        assert!(tasks.iter().map(|task| task.number).eq(numbers), "{context}");
        let page = journal.all_events();
        assert!(page.events.iter().map(|event| event.seq).eq(1..=kept * EVENTS_PER_BATCH), "{context}");
        assert_eq!((page.first, page.last), (1, kept * EVENTS_PER_BATCH), "{context}");
        journal.assert_loaded();
    }
}
