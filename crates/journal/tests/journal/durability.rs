//! `kill -9` at any instant: what was acknowledged is there, whole.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use belay_journal::TaskFilter;

use crate::support::{Dice, open};

const EVENTS_A_BATCH: u64 = 3;

/// The example `writer` lies beside the directory of this test's program.
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

/// Lets the writer commit some batches, kills it, and returns the last number it acknowledged.
fn acknowledged(dir: &Path, dice: &mut Dice) -> u64 {
    let mut child = start(dir);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    // The last line may be cut off by the kill.
    let acks = |line: String| line.parse().ok();
    let wanted = usize::try_from(dice.below(400)).unwrap();
    let before = lines.by_ref().filter_map(acks).nth(wanted).unwrap();
    // At a random instant of its work, which is too short to wait for in any other way.
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
