//! The write buffer: found by every query, recovered after a crash, never applied twice.

use std::fs;
use std::path::{Path, PathBuf};

use belay_journal::{Batch, FILE_NAME, LOST_KIND, TaskRow};
use proptest::prelude::*;

use crate::support::{Journal, doc, documents, ended, event, happened, open, open_any, put, task};

const FIRST_FILE: &str = "journal.buffer-0";

fn everything(journal: &mut Journal) -> (Vec<TaskRow>, Vec<u64>) {
    let events = journal.all_events().events;
    (journal.all_tasks(), events.into_iter().map(|event| event.seq).collect())
}

/// The buffer files with their contents.
fn buffer_files(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let paths = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let is_buffer =
        |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with("journal.buffer-");
    let mut files: Vec<_> =
        paths.filter(is_buffer).map(|path| (path.clone(), fs::read(&path).unwrap())).collect();
    files.sort();
    files
}

#[test]
fn every_query_finds_appended_batches() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path());
    journal.commit(&put([task(1)])).unwrap();
    journal.commit(&happened([1])).unwrap();
    let token = TaskRow { token: Some("t".to_owned()), ..task(2) };
    assert_eq!(journal.append(put([token.clone(), ended(1, 5, 7)])), 3);
    assert!(journal.buffer.holds_unflushed_tasks());
    assert_eq!(journal.append(happened([2, 3])), 4);
    assert!(!journal.buffer.is_flushed());
    assert_eq!(journal.task("sh-000001"), Some(ended(1, 5, 7)));
    assert_eq!(journal.task_by_token("t"), Some(token.clone()));
    assert_eq!(journal.resolve("sh-", 5), ["sh-000001", "sh-000002"]);
    assert_eq!(journal.resolve("sh-", 1), ["sh-000001"]);
    assert_eq!((journal.buffer.next_number(), journal.buffer.last_event()), (3, 3));
    assert_eq!(journal.events(0, 2).events, [event(1), event(2)]);
    let page = journal.events(2, 10);
    assert_eq!((page.events, page.first, page.last), (vec![event(3)], 1, 3));
    assert_eq!(journal.live(), [token]);
    assert_eq!((journal.counts().live, journal.counts().ended), (1, 1));
    assert!(!journal.buffer.is_flushed(), "no query has to wait for the database");
    let waiting = journal.buffer.unflushed_bytes();
    assert!(waiting > 0);
    let before = everything(&mut journal);
    journal.flush().unwrap();
    assert!(journal.buffer.is_flushed() && !journal.buffer.holds_unflushed_tasks());
    assert_eq!(journal.buffer.unflushed_bytes(), 0);
    assert_eq!(everything(&mut journal), before);
}

#[test]
fn event_out_of_order_is_not_appended() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path());
    journal.append(happened([1]));
    let mut batch = happened([3]);
    journal.buffer.append(&mut batch).unwrap_err();
    assert_eq!(batch, happened([3]), "a refused batch stays with its owner");
    journal.append(happened([2]));
}

// proves W4: appended batches survive their process.
#[test]
fn next_daemon_recovers_appended_batches() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path());
    journal.append(put([task(1)]));
    journal.append(Batch { put: vec![ended(1, 9, 3), task(2)], ..happened([1, 2]) });
    assert_eq!(belay_journal::unflushed(dir.path()).unwrap().len(), 2);
    drop(journal);
    let mut journal = open(dir.path());
    assert!(journal.buffer.is_flushed());
    assert_eq!(everything(&mut journal), (vec![task(2), ended(1, 9, 3)], vec![1, 2]));
    assert_eq!((journal.buffer.next_number(), journal.counts().ended), (3, 1));
    assert_eq!(belay_journal::unflushed(dir.path()).unwrap(), []);
    journal.assert_loaded();
    assert_eq!(journal.append(happened([3])), 3, "batch numbers continue");
}

/// A removal, the reuse of the removed task's token, and a removed document, all before a crash.
#[test]
fn removals_survive_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path());
    let with = |number, token: &str| TaskRow { token: Some(token.to_owned()), ..task(number) };
    let docs = vec![doc("lane", "a", Some("held")), doc("lane", "b", Some("held"))];
    journal.commit(&Batch { docs, ..put([with(1, "t"), task(2), ended(9, 5, 50)]) }).unwrap();
    journal.append(Batch { removed: vec![task(1).id, task(9).id], ..happened([1]) });
    journal.append(Batch { docs: vec![doc("lane", "a", None)], ..put([with(3, "t")]) });
    assert!(journal.buffer.holds_unflushed_tasks());
    assert_eq!(journal.task("sh-000001"), None);
    let files = buffer_files(dir.path());
    drop(journal);
    let expect = |mut journal: Journal| {
        assert_eq!(journal.all_tasks(), [with(3, "t"), task(2)]);
        assert_eq!(journal.loaded.tokens, [("t".to_owned(), task(3).id)]);
        assert_eq!((journal.loaded.ended, journal.loaded.output_bytes), (0, 0));
        assert_eq!(journal.docs("lane"), documents([("b", "held")]));
        assert_eq!(journal.buffer.next_number(), 10, "the number of a removed task stays used");
        journal.assert_loaded();
    };
    expect(open(dir.path()));
    // Once more with the files as they were: a removal that was applied is not applied to what came
    // after it.
    for (path, bytes) in files {
        fs::write(path, bytes).unwrap();
    }
    expect(open(dir.path()));
}

/// A daemon that dies after the database has the batches and before the files are cleared.
#[test]
fn batches_in_database_are_not_applied_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path());
    journal.append(Batch { put: vec![task(1), task(5)], ..happened([1, 2]) });
    journal.append(Batch { put: vec![ended(1, 9, 3)], ..happened([3]) });
    let old = buffer_files(dir.path());
    journal.flush().unwrap();
    // A later state, which the old batches would undo.
    journal.append(Batch {
        removed: vec![task(5).id],
        ..put([TaskRow { body: "new".to_owned(), ..ended(1, 9, 3) }])
    });
    journal.flush().unwrap();
    let before = everything(&mut journal);
    drop(journal);
    for (path, bytes) in old {
        fs::write(path, bytes).unwrap();
    }
    assert_eq!(everything(&mut open(dir.path())), before);
}

#[test]
fn foreign_buffer_is_quarantined() {
    let dir = tempfile::tempdir().unwrap();
    let other = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path());
    journal.commit(&happened([1, 2, 3])).unwrap();
    journal.append(happened([4]));
    drop(journal);
    let bytes = fs::read(dir.path().join(FIRST_FILE)).unwrap();
    drop(open(other.path()));
    fs::write(other.path().join(FIRST_FILE), &bytes).unwrap();
    let (mut journal, notices) = open_any(other.path());
    let [notice] = notices.as_slice() else { panic!("{notices:?}") };
    assert!(notice.what.contains("another journal"), "{}", notice.what);
    assert_eq!(fs::read(notice.path.as_ref().unwrap()).unwrap(), bytes);
    assert_eq!(everything(&mut journal), (vec![], vec![]));
    drop(journal);
    drop(open(other.path()));
}

/// A power cut may keep the buffer and lose what the database had before it.
#[test]
fn batches_missing_before_the_buffer_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path());
    journal.commit(&Batch { put: vec![task(1)], ..happened([1, 2]) }).unwrap();
    drop(journal);
    let old = fs::read(dir.path().join(FILE_NAME)).unwrap();
    let mut journal = open(dir.path());
    journal.commit(&Batch { put: vec![task(2)], ..happened([3, 4, 5]) }).unwrap();
    journal.append(Batch { put: vec![task(3)], ..happened([6]) });
    drop(journal);
    fs::remove_file(dir.path().join("journal.db-wal")).ok();
    fs::write(dir.path().join(FILE_NAME), old).unwrap();
    let (mut journal, notices) = open_any(dir.path());
    let [notice] = notices.as_slice() else { panic!("{notices:?}") };
    assert!(notice.what.contains("missing") && notice.path.is_none(), "{notice:?}");
    assert_eq!(journal.all_tasks(), [task(3), task(1)], "later batches are kept");
    let events = journal.all_events().events;
    assert_eq!(events.iter().map(|event| event.seq).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
    let lost: Vec<u64> =
        events.iter().filter(|event| event.kind == LOST_KIND).map(|event| event.seq).collect();
    assert_eq!(lost, [3, 4, 5]);
    drop(journal);
    drop(open(dir.path()));
}

/// A step of a random history.
#[derive(Debug, Clone)]
enum Step {
    Append(Vec<u64>),
    Commit(Vec<u64>),
    Remove(u64),
    Flush,
    Crash,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let some = || prop::collection::vec(1..6_u64, 0..3);
    let step = prop_oneof![
        4 => some().prop_map(Step::Append),
        2 => some().prop_map(Step::Commit),
        1 => (1..6_u64).prop_map(Step::Remove),
        1 => Just(Step::Flush),
        2 => Just(Step::Crash),
    ];
    prop::collection::vec(step, 1..30)
}

/// The batch of one step: tasks of these numbers as of now, and an event for each.
fn batch(journal: &Journal, numbers: &[u64], now: i64) -> Batch {
    let last = journal.buffer.last_event();
    let tasks = numbers.iter().map(|number| TaskRow { body: now.to_string(), ..task(*number) });
    let seqs = (last + 1..).take(numbers.len());
    Batch { put: tasks.collect(), ..happened(seqs) }
}

fn perform(dir: &Path, mut journal: Journal, step: &Step, now: i64, flushes_late: bool) -> Journal {
    let batch = match step {
        Step::Append(numbers) | Step::Commit(numbers) => batch(&journal, numbers, now),
        Step::Remove(number) => Batch { removed: vec![task(*number).id], ..Batch::default() },
        Step::Flush => {
            journal.flush().unwrap();
            return journal;
        }
        Step::Crash => {
            drop(journal);
            return open(dir);
        }
    };
    // Removals go through the buffer like everything else.
    if flushes_late && !matches!(step, Step::Commit(_)) {
        journal.buffer.append(&mut batch.clone()).unwrap();
    } else {
        journal.commit(&batch).unwrap();
    }
    journal
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// When batches are flushed makes no difference, whatever else happens and whenever the daemon
    /// crashes.
    #[test]
    fn late_flushes_equal_immediate_flushes(steps in steps()) {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let [mut late, mut immediate] = [open(dirs[0].path()), open(dirs[1].path())];
        for (now, step) in (0..).zip(&steps) {
            late = perform(dirs[0].path(), late, step, now, true);
            immediate = perform(dirs[1].path(), immediate, step, now, false);
            prop_assert_eq!(late.buffer.last_event(), immediate.buffer.last_event());
            prop_assert_eq!(late.buffer.next_number(), immediate.buffer.next_number());
        }
        prop_assert_eq!(everything(&mut late), everything(&mut immediate));
        prop_assert_eq!(late.counts(), immediate.counts());
    }
}

// proves D5, W4: damage is reported, quarantined, and assigns no number twice
#[test]
fn damaged_buffer_is_quarantined_and_its_numbers_stay_used() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join(FIRST_FILE);
    let mut journal = open(dir.path());
    journal.append(Batch { put: vec![task(1)], ..happened([1, 2]) });
    journal.append(Batch { put: vec![task(2)], ..happened([3, 4]) });
    drop(journal);
    let mut bytes = fs::read(&file).unwrap();
    let last = bytes.len() - 12;
    bytes[last] ^= 1;
    fs::write(&file, &bytes).unwrap();
    let (mut journal, notices) = open_any(dir.path());
    let [notice] = notices.as_slice() else { panic!("{notices:?}") };
    assert_eq!(fs::read(notice.path.as_ref().unwrap()).unwrap(), bytes);
    assert!(notice.what.contains("damaged"), "{}", notice.what);
    assert_eq!(journal.all_tasks(), [task(1)]);
    assert!(journal.buffer.last_event() > 4, "a number that may have been reported is not assigned again");
    let events = journal.all_events().events;
    assert_eq!(events[..2], [event(1), event(2)]);
    assert!(events.len() >= 4 && events[2..].iter().all(|event| event.kind == LOST_KIND));
    drop(journal);
    drop(open(dir.path()));
}

/// The next file's header bounds what a damaged one held: exactly its events are lost, and later
/// batches are kept.
// proves D5, W4
#[test]
fn damage_in_middle_file_costs_only_its_batches() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path());
    let lock = rusqlite::Connection::open(dir.path().join(FILE_NAME)).unwrap();
    lock.execute_batch("BEGIN IMMEDIATE").unwrap();
    // Each failed flush seals a file.
    for number in 1..=3 {
        let seqs = [2 * number - 1, 2 * number];
        journal.append(Batch { put: vec![task(number)], ..happened(seqs) });
        journal.append(Batch { put: vec![ended(number, 5, 1)], ..Batch::default() });
        if number < 3 {
            journal.flush().unwrap_err();
        }
    }
    drop((journal, lock));
    let files = buffer_files(dir.path());
    assert_eq!(files.len(), 3);
    for (damaged_header, expected) in [(false, [6, 5, 4, 3, 2, 1].as_slice()), (true, &[6, 5, 4, 3, 2, 1])] {
        let copy = tempfile::tempdir().unwrap();
        for name in [FILE_NAME, "journal.db-wal"] {
            if dir.path().join(name).exists() {
                fs::copy(dir.path().join(name), copy.path().join(name)).unwrap();
            }
        }
        for (path, bytes) in &files {
            fs::write(copy.path().join(path.file_name().unwrap()), bytes).unwrap();
        }
        let middle = copy.path().join("journal.buffer-1");
        let mut bytes = fs::read(&middle).unwrap();
        let place = if damaged_header { 20 } else { 80 };
        bytes[place] ^= 1;
        fs::write(&middle, &bytes).unwrap();
        let (mut journal, notices) = open_any(copy.path());
        let [notice] = notices.as_slice() else { panic!("{notices:?}") };
        assert_eq!(fs::read(notice.path.as_ref().unwrap()).unwrap(), bytes);
        assert_eq!(journal.all_tasks(), [ended(3, 5, 1), ended(1, 5, 1)]);
        let events = journal.all_events().events;
        assert_eq!(events.iter().rev().map(|event| event.seq).collect::<Vec<_>>(), expected);
        let lost: Vec<u64> =
            events.iter().filter(|event| event.kind == LOST_KIND).map(|event| event.seq).collect();
        assert_eq!(lost, [3, 4]);
        journal.append(happened([7]));
        drop(journal);
        drop(open(copy.path()));
    }
}

/// An emptied file is not taken for a cleared one.
// proves D5, W4
#[test]
fn emptied_buffer_file_costs_no_number_twice() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path());
    journal.append(happened(1..=9));
    drop(journal);
    fs::write(dir.path().join(FIRST_FILE), "").unwrap();
    let (journal, notices) = open_any(dir.path());
    assert_eq!(notices.len(), 1, "{notices:?}");
    assert!(journal.buffer.last_event() >= 9);
}

// proves X2: an object in the place of the buffer is neither followed nor written to
#[test]
fn object_in_place_of_buffer_is_quarantined() {
    let outside = tempfile::tempdir().unwrap();
    let target = outside.path().join("precious");
    fs::write(&target, "precious").unwrap();
    for object in ["a link", "a directory"] {
        let dir = tempfile::tempdir().unwrap();
        drop(open(dir.path()));
        let file = dir.path().join(FIRST_FILE);
        fs::remove_file(&file).unwrap();
        match object {
            "a link" => std::os::unix::fs::symlink(&target, &file).unwrap(),
            _ => fs::create_dir(&file).unwrap(),
        }
        let (mut journal, notices) = open_any(dir.path());
        assert_eq!(notices.len(), 1, "{object}: {notices:?}");
        journal.append(put([task(1)]));
        assert_eq!(fs::read(&target).unwrap(), b"precious");
    }
}

// proves D5: batches of the buffer are kept also when the database is damaged
#[test]
fn buffer_survives_a_damaged_database() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path());
    for number in 1..=40 {
        journal.append(Batch { put: vec![task(number)], ..happened([number]) });
    }
    drop(journal);
    let path = dir.path().join(FILE_NAME);
    let mut bytes = fs::read(&path).unwrap();
    bytes[..100].fill(0x55);
    fs::write(&path, bytes).unwrap();
    let (mut journal, notices) = open_any(dir.path());
    assert_eq!(notices.len(), 1, "{notices:?}");
    assert_eq!(journal.all_tasks().len(), 40);
    let events = journal.all_events().events;
    assert_eq!(events[..40], (1..=40).map(event).collect::<Vec<_>>());
    assert!(events[40..].iter().all(|event| event.kind == LOST_KIND));
    drop(journal);
    drop(open(dir.path()));
}

/// A file for reuse that was removed is not used: the next daemon would not find its batches.
#[test]
fn removed_spare_file_is_not_reused() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path());
    journal.commit(&happened([1])).unwrap();
    fs::remove_file(dir.path().join(FIRST_FILE)).unwrap();
    journal.append(happened([2]));
    assert_eq!(journal.buffer.missing_files(), Vec::<PathBuf>::new());
    drop(journal);
    assert_eq!(open(dir.path()).buffer.last_event(), 2);
}

#[test]
fn removed_files_are_reported_missing() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path());
    journal.append(happened([1]));
    assert_eq!(journal.buffer.missing_files(), Vec::<PathBuf>::new());
    let file = dir.path().join(FIRST_FILE);
    fs::rename(&file, dir.path().join("elsewhere")).unwrap();
    assert_eq!(journal.buffer.missing_files(), std::slice::from_ref(&file));
    fs::write(&file, "another file").unwrap();
    assert_eq!(journal.buffer.missing_files(), [file]);
    fs::remove_file(dir.path().join(FILE_NAME)).unwrap();
    assert_eq!(journal.buffer.missing_files().len(), 2);
}
