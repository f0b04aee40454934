//! Formats older and newer than this program's.

use std::fs;
use std::path::Path;

use belay_journal::{Error, FILE_NAME, Journal, VERSION};

use crate::support::{ended, event, happened, open, task};

fn fixture() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/journal-v1.db")
}

#[test]
fn a_journal_of_format_1_always_opens() {
    let dir = tempfile::tempdir().unwrap();
    fs::copy(fixture(), dir.path().join(FILE_NAME)).unwrap();
    let mut journal = open(dir.path());
    assert_eq!(journal.live().unwrap(), [task(1)]);
    assert_eq!(journal.task("sh-000002").unwrap(), Some(ended(2, 20, 200)));
    assert_eq!(journal.counts().output_bytes, 500);
    assert_eq!(journal.events(3, 9).unwrap().events, [event(4), event(5)]);
    journal.commit(&happened(6..=6)).unwrap();
    drop(journal);
    assert_eq!(open(dir.path()).last_event(), 6);
}

#[test]
fn a_newer_format_is_refused_and_not_touched() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE_NAME);
    drop(open(dir.path()));
    let mut bytes = fs::read(&path).unwrap();
    bytes[60..64].copy_from_slice(&99i32.to_be_bytes());
    fs::write(&path, &bytes).unwrap();
    let refused = Journal::open(dir.path()).unwrap_err();
    assert!(matches!(refused, Error::Newer { found: 99, known: VERSION }), "{refused:?}");
    assert_eq!(fs::read(&path).unwrap(), bytes);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "the database and its notes, and nothing new");
}
