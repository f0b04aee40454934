//! Formats older and newer than this program's.

use std::fs;
use std::path::{Path, PathBuf};

use belay_journal::{Batch, Error, FILE_NAME, TaskFilter, TaskRow, VERSION};

use crate::support::{documents, ended, event, happened, open, open_any, put, task};

fn fixture(version: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/journal-v{version}.db"))
}

/// A task of the fixture of format 3 with everything that it can have.
fn full_task() -> TaskRow {
    TaskRow {
        token: Some("t-3".to_owned()),
        parent: Some("sh-000001".to_owned()),
        name: Some("build".to_owned()),
        ..ended(3, 30, 300)
    }
}

#[test]
fn format_1_always_opens() {
    let dir = tempfile::tempdir().unwrap();
    fs::copy(fixture(1), dir.path().join(FILE_NAME)).unwrap();
    let mut journal = open(dir.path());
    assert_eq!(journal.live(), [task(1)]);
    assert_eq!(journal.task("sh-000002"), Some(ended(2, 20, 200)));
    assert_eq!(journal.counts().output_bytes, 500);
    assert_eq!(journal.events(3, 9).events, [event(4), event(5)]);
    journal.assert_loaded();
    journal.commit(&happened(6..=6)).unwrap();
    drop(journal);
    assert_eq!(open(dir.path()).buffer.last_event(), 6);
}

#[test]
fn format_3_migrates_to_empty_tags() {
    let dir = tempfile::tempdir().unwrap();
    fs::copy(fixture(3), dir.path().join(FILE_NAME)).unwrap();
    let mut journal = open(dir.path());
    journal.assert_loaded();
    assert_eq!(journal.all_tasks(), [full_task(), ended(2, 20, 200), task(1)]);
    assert_eq!(journal.events(0, 9).events, (1..=5).map(event).collect::<Vec<_>>());
    assert_eq!(journal.docs("lane"), documents([("a", "held")]));
    assert_eq!((journal.buffer.next_number(), journal.buffer.last_event()), (4, 5));
    // Rows from before the migration and after it, side by side.
    let below = TaskRow { tags: "/sh-000001/".to_owned(), ..task(4) };
    let moved = TaskRow { tags: "/sh-000001/".to_owned(), ..full_task() };
    journal.commit(&put([below.clone(), moved.clone()])).unwrap();
    drop(journal);
    let mut journal = open(dir.path());
    let scope = Some("sh-000001".to_owned());
    let filter = TaskFilter { scope, limit: 9, ..TaskFilter::default() };
    assert_eq!(journal.tasks(&filter), [below, moved, task(1)]);
}

/// Its rows are found without a migration: on the bare pages, and through a database that cannot be
/// migrated.
// proves D5
#[test]
fn damaged_format_3_keeps_its_rows() {
    let sound = fs::read(fixture(3)).unwrap();
    let mut no_header = sound.clone();
    no_header[..100].fill(0xa5);
    // The root of an index: rows can be read, but a migration checks the table and fails.
    let mut bad_index = sound.clone();
    let last = sound.len() - 4096;
    bad_index[last..].fill(0xa5);
    for bytes in [no_header, bad_index] {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(FILE_NAME), &bytes).unwrap();
        let (mut journal, notices) = open_any(dir.path());
        assert_eq!(notices.len(), 1, "{notices:?}");
        assert_eq!(journal.all_tasks(), [full_task(), ended(2, 20, 200), task(1)]);
        assert_eq!(journal.events(0, 5).events, (1..=5).map(event).collect::<Vec<_>>());
        journal.commit(&Batch { put: vec![task(4)], ..Batch::default() }).unwrap();
        drop(journal);
        drop(open(dir.path()));
    }
}

/// A migrated file has rows with and without the new column on its pages.
// proves D5
#[test]
fn damaged_format_4_keeps_rows_of_both_formats() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE_NAME);
    fs::copy(fixture(3), &path).unwrap();
    let below = TaskRow { tags: "/sh-000001/".to_owned(), ..task(4) };
    let mut below_event = event(6);
    below_event.tags = "/sh-000001/".to_owned();
    let batch = Batch { put: vec![below.clone()], events: vec![below_event.clone()], ..Batch::default() };
    open(dir.path()).commit(&batch).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    bytes[..100].fill(0xa5);
    fs::write(&path, &bytes).unwrap();
    let (mut journal, notices) = open_any(dir.path());
    assert_eq!(notices.len(), 1, "{notices:?}");
    assert_eq!(journal.all_tasks(), [below, full_task(), ended(2, 20, 200), task(1)]);
    let mut expected: Vec<_> = (1..=5).map(event).collect();
    expected.push(below_event);
    assert_eq!(journal.events(0, 6).events, expected);
    assert_eq!(journal.docs("lane"), documents([("a", "held")]));
}

#[test]
fn newer_format_is_refused_and_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE_NAME);
    drop(open(dir.path()));
    let mut bytes = fs::read(&path).unwrap();
    bytes[60..64].copy_from_slice(&99i32.to_be_bytes());
    fs::write(&path, &bytes).unwrap();
    let refused = belay_journal::open(dir.path()).unwrap_err();
    assert!(matches!(refused, Error::Newer { found: 99, known: VERSION }), "{refused:?}");
    assert_eq!(fs::read(&path).unwrap(), bytes);
    assert_eq!(
        fs::read_dir(dir.path()).unwrap().count(),
        2,
        "the database and its buffer file, and nothing new"
    );
}
