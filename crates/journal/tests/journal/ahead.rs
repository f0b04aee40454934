//! What is noted ahead of the database: found by every question, kept by whoever dies, never taken over twice.

use std::path::Path;

use belay_journal::{Batch, FILE_NAME, Journal, LOST_KIND, Opened, TaskFilter, TaskRow};
use proptest::prelude::*;

use crate::support::{ended, event, happened, open, put, task};

const NOTES: &str = "journal.ahead";

fn note(journal: &mut Journal, mut batch: Batch) {
    journal.note(&mut batch).unwrap();
    assert!(batch.is_empty(), "a noted batch is taken");
}

fn everything(journal: &Journal) -> (Vec<TaskRow>, Vec<u64>) {
    let tasks = journal.tasks(&TaskFilter { limit: usize::MAX, ..TaskFilter::default() }).unwrap();
    let events = journal.events(0, usize::MAX).unwrap().events;
    (tasks, events.into_iter().map(|event| event.seq).collect())
}

#[test]
fn every_question_finds_what_is_noted() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path());
    journal.commit(&put([task(1)])).unwrap();
    journal.commit(&happened([1])).unwrap();
    let token = TaskRow { token: Some("t".to_owned()), ..task(2) };
    note(&mut journal, put([token.clone(), ended(1, 5, 7)]));
    note(&mut journal, happened([2, 3]));
    assert!(!journal.is_settled());
    assert_eq!(journal.task("sh-000001").unwrap(), Some(ended(1, 5, 7)));
    assert_eq!(journal.task_by_token("t").unwrap(), Some(token.clone()));
    assert_eq!(journal.resolve("sh-", 5).unwrap(), ["sh-000001", "sh-000002"]);
    assert_eq!(journal.resolve("sh-", 1).unwrap(), ["sh-000001"]);
    assert_eq!((journal.next_number(), journal.last_event()), (3, 3));
    assert_eq!(journal.events(0, 2).unwrap().events, [event(1), event(2)]);
    let page = journal.events(2, 10).unwrap();
    assert_eq!((page.events, page.first, page.last), (vec![event(3)], 1, 3));
    assert!(!journal.is_settled(), "none of these has to wait for the database");
    assert_eq!(journal.live().unwrap(), [token]);
    assert!(journal.is_settled());
    assert_eq!((journal.counts().live, journal.counts().ended), (1, 1));
}

#[test]
fn an_event_out_of_order_is_not_noted() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path());
    note(&mut journal, happened([1]));
    let mut batch = happened([3]);
    journal.note(&mut batch).unwrap_err();
    assert_eq!(batch, happened([3]), "what was refused stays with its owner");
    note(&mut journal, happened([2]));
}

// proves W4: what was noted survives its writer.
#[test]
fn the_next_program_takes_over_what_was_noted() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path());
    note(&mut journal, put([task(1)]));
    note(&mut journal, Batch { put: vec![ended(1, 9, 3), task(2)], ..happened([1, 2]) });
    drop(journal);
    let journal = open(dir.path());
    assert!(journal.is_settled());
    assert_eq!(everything(&journal), (vec![task(2), ended(1, 9, 3)], vec![1, 2]));
    assert_eq!((journal.next_number(), journal.counts().ended), (3, 1));
    assert_eq!(belay_journal::noted(dir.path()).unwrap(), []);
}

/// A program that dies after the database has it and before the notes are forgotten.
#[test]
fn notes_that_the_database_has_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path());
    note(&mut journal, Batch { put: vec![task(1)], ..happened([1, 2]) });
    note(&mut journal, Batch { put: vec![ended(1, 9, 3)], ..happened([3]) });
    let notes = std::fs::read(dir.path().join(NOTES)).unwrap();
    journal.settle().unwrap();
    let before = everything(&journal);
    drop(journal);
    std::fs::write(dir.path().join(NOTES), notes).unwrap();
    assert_eq!(everything(&open(dir.path())), before);
}

/// A power cut may keep the notes and lose what the database had before them.
#[test]
fn notes_that_do_not_fit_are_set_aside_and_told() {
    let dir = tempfile::tempdir().unwrap();
    let other = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path());
    journal.commit(&happened([1, 2, 3])).unwrap();
    note(&mut journal, happened([4]));
    drop(journal);
    let notes = std::fs::read(dir.path().join(NOTES)).unwrap();
    drop(open(other.path()));
    std::fs::write(other.path().join(NOTES), &notes).unwrap();
    let opened = Journal::open(other.path()).unwrap();
    let [notice] = opened.notices.as_slice() else { panic!("{:?}", opened.notices) };
    assert_eq!(std::fs::read(notice.path.as_ref().unwrap()).unwrap(), notes);
    assert_eq!(everything(&opened.journal), (vec![], vec![]));
    drop(opened);
    drop(open(other.path()));
}

/// What happens to a journal, in any order.
#[derive(Debug, Clone)]
enum Deed {
    Note(Vec<u64>),
    Commit(Vec<u64>),
    Remove(u64),
    Settle,
    Die,
}

fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let some = || prop::collection::vec(1..6_u64, 0..3);
    let deed = prop_oneof![
        4 => some().prop_map(Deed::Note),
        2 => some().prop_map(Deed::Commit),
        1 => (1..6_u64).prop_map(Deed::Remove),
        1 => Just(Deed::Settle),
        2 => Just(Deed::Die),
    ];
    prop::collection::vec(deed, 1..30)
}

/// The batch of one deed: tasks of these numbers as of now, and an event for each.
fn batch(journal: &Journal, numbers: &[u64], now: i64) -> Batch {
    let last = journal.last_event();
    let tasks = numbers.iter().map(|number| TaskRow { body: now.to_string(), ..task(*number) });
    let seqs = (last + 1..).take(numbers.len());
    Batch { put: tasks.collect(), ..happened(seqs) }
}

fn perform(dir: &Path, journal: Journal, deed: &Deed, now: i64, noting: bool) -> Journal {
    let mut journal = journal;
    match deed {
        Deed::Note(numbers) if noting => {
            let batch = batch(&journal, numbers, now);
            note(&mut journal, batch);
        }
        Deed::Note(numbers) | Deed::Commit(numbers) => {
            journal.commit(&batch(&journal, numbers, now)).unwrap();
        }
        Deed::Remove(number) => {
            journal.commit(&Batch { removed: vec![task(*number).id], ..Batch::default() }).unwrap();
        }
        Deed::Settle => journal.settle().unwrap(),
        Deed::Die => {
            drop(journal);
            journal = open(dir);
        }
    }
    journal
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Noting is committing, only faster: whatever else is done, and whenever the writer dies.
    #[test]
    fn a_journal_that_notes_is_one_that_commits(deeds in deeds()) {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let [mut noting, mut committing] = [open(dirs[0].path()), open(dirs[1].path())];
        for (now, deed) in (0..).zip(&deeds) {
            noting = perform(dirs[0].path(), noting, deed, now, true);
            committing = perform(dirs[1].path(), committing, deed, now, false);
            prop_assert_eq!(noting.last_event(), committing.last_event());
            prop_assert_eq!(noting.next_number(), committing.next_number());
        }
        prop_assert_eq!(everything(&noting), everything(&committing));
        prop_assert_eq!(noting.counts(), committing.counts());
    }
}

// proves D5, W4: damage is told, set aside, and costs no number twice
#[test]
fn damaged_notes_are_set_aside_and_their_numbers_used_up() {
    let dir = tempfile::tempdir().unwrap();
    let notes = dir.path().join(NOTES);
    let mut journal = open(dir.path());
    note(&mut journal, Batch { put: vec![task(1)], ..happened([1, 2]) });
    note(&mut journal, Batch { put: vec![task(2)], ..happened([3, 4]) });
    drop(journal);
    let mut bytes = std::fs::read(&notes).unwrap();
    let last = bytes.len() - 12;
    bytes[last] ^= 1;
    std::fs::write(&notes, &bytes).unwrap();
    let Opened { journal, notices } = Journal::open(dir.path()).unwrap();
    let [notice] = notices.as_slice() else { panic!("{notices:?}") };
    assert_eq!(std::fs::read(notice.path.as_ref().unwrap()).unwrap(), bytes);
    assert!(notice.what.contains("damaged"), "{}", notice.what);
    assert_eq!(journal.tasks(&TaskFilter { limit: 9, ..TaskFilter::default() }).unwrap(), [task(1)]);
    assert!(journal.last_event() > 4, "a number that may have been told is not given again");
    let events = journal.events(0, usize::MAX).unwrap().events;
    assert_eq!(events[..2], [event(1), event(2)]);
    assert!(events[2..].iter().all(|event| event.kind == LOST_KIND));
    drop(journal);
    drop(open(dir.path()));
}

// proves X2: what is put in the place of the notes is neither followed nor written to
#[test]
fn what_is_no_file_in_the_place_of_the_notes_is_put_out_of_the_way() {
    let outside = tempfile::tempdir().unwrap();
    let target = outside.path().join("precious");
    std::fs::write(&target, "precious").unwrap();
    for put in ["a link", "a directory"] {
        let dir = tempfile::tempdir().unwrap();
        drop(open(dir.path()));
        let notes = dir.path().join(NOTES);
        std::fs::remove_file(&notes).unwrap();
        match put {
            "a link" => std::os::unix::fs::symlink(&target, &notes).unwrap(),
            _ => std::fs::create_dir(&notes).unwrap(),
        }
        let Opened { mut journal, notices } = Journal::open(dir.path()).unwrap();
        assert_eq!(notices.len(), 1, "{put}: {notices:?}");
        note(&mut journal, put_one());
        assert_eq!(std::fs::read(&target).unwrap(), b"precious");
    }
}

fn put_one() -> Batch {
    put([task(1)])
}

// proves D5: what was noted last is kept also when the database is damaged
#[test]
fn notes_outlive_a_database_whose_head_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path());
    for number in 1..=40 {
        note(&mut journal, Batch { put: vec![task(number)], ..happened([number]) });
    }
    drop(journal);
    let path = dir.path().join(FILE_NAME);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[..100].fill(0x55);
    std::fs::write(&path, bytes).unwrap();
    let Opened { journal, notices } = Journal::open(dir.path()).unwrap();
    assert_eq!(notices.len(), 1, "{notices:?}");
    let tasks = journal.tasks(&TaskFilter { limit: 99, ..TaskFilter::default() }).unwrap();
    assert_eq!(tasks.len(), 40);
}
