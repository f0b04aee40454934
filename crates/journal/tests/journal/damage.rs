//! Damaged databases: the file is quarantined unchanged and named, and what can be read is kept.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use belay_journal::{Batch, FILE_NAME, LOST_KIND, Notice, TaskFilter};

use crate::support::{Dice, Journal, doc, documents, fill, happened, open, open_any, put, task};

const ROWS: u64 = 2000;

fn db(dir: &Path) -> PathBuf {
    dir.join(FILE_NAME)
}

/// Every quarantined file, by what it adds to the name in the notice: "" or "-wal".
fn quarantined(dir: &Path, notice: &Notice) -> BTreeMap<String, Vec<u8>> {
    let base = notice.path.as_ref().unwrap().to_str().unwrap();
    let mut parts = BTreeMap::new();
    for path in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
        if let Some(part) = path.to_str().unwrap().strip_prefix(base)
            && part != "-shm"
        {
            parts.insert(part.to_owned(), fs::read(&path).unwrap());
        }
    }
    parts
}

/// Opens a damaged journal: one notice, the damaged bytes kept, the new one sound, writable and its
/// numbers continued.
fn recovered(dir: &Path, damaged: &[(&str, Vec<u8>)]) -> Journal {
    let (mut journal, notices) = open_any(dir);
    let [notice] = notices.as_slice() else { panic!("one notice: {notices:?}") };
    let name = notice.path.as_ref().unwrap().file_name().unwrap().to_str().unwrap();
    assert!(name.starts_with("journal.damaged-2"), "{name}");
    let expected = damaged.iter().map(|(part, bytes)| ((*part).to_owned(), bytes.clone())).collect();
    assert!(
        quarantined(dir, notice) == expected,
        "the quarantined bytes are those that were found: {}",
        notice.what
    );
    journal.assert_loaded();
    let page = journal.all_events();
    assert!(page.events.iter().map(|event| event.seq).eq(page.first..=page.last), "no gap: {}", notice.what);
    let next = journal.buffer.last_event() + 1;
    journal.commit(&happened(next..=next)).unwrap();
    journal.commit(&put([task(journal.buffer.next_number())])).unwrap();
    drop(journal);
    let leftovers = ["journal.salvage", "journal.new.db", "journal.copy.db"];
    assert!(leftovers.iter().all(|name| !dir.join(name).exists()));
    open(dir)
}

fn kept_tasks(journal: &mut Journal) -> usize {
    journal.tasks(&TaskFilter { ended: Some(true), limit: usize::MAX, ..TaskFilter::default() }).len()
}

// proves D5: a damaged database is quarantined and named, never overwritten, and what is readable
// is kept.
#[test]
fn overwritten_bytes_cost_only_their_pages() {
    let source = tempfile::tempdir().unwrap();
    fill(source.path(), ROWS);
    let secret = open(source.path()).loaded.secret;
    let sound = fs::read(db(source.path())).unwrap();
    let pages = u64::try_from(sound.len() / 4096).unwrap();
    let seed = u64::from(std::process::id());
    for round in 0..12 {
        let dir = tempfile::tempdir().unwrap();
        let mut bytes = sound.clone();
        let mut dice = Dice(seed + round);
        // Any page but the first two: roots, inner pages, rows, indexes.
        for _ in 0..3 {
            let page = usize::try_from(2 + dice.below(pages - 2)).unwrap() * 4096;
            bytes[page..page + 200].fill(0xa5);
        }
        fs::write(db(dir.path()), &bytes).unwrap();
        let mut journal = recovered(dir.path(), &[("", bytes)]);
        let kept = kept_tasks(&mut journal);
        assert!(kept > 1980, "seed {seed}, round {round}: {kept} kept");
        assert!(journal.buffer.last_event() > ROWS, "numbers continue");
        assert_eq!(journal.loaded.secret, secret);
    }
}

/// Documents, also one that is longer than a page, are read from the bare pages.
// proves D5
#[test]
fn garbage_header_keeps_documents() {
    let dir = tempfile::tempdir().unwrap();
    let long = "x".repeat(9_000);
    let docs = vec![doc("lane", "a", Some("held")), doc("session", "s", Some(&long))];
    open(dir.path()).commit(&Batch { docs, ..Batch::default() }).unwrap();
    let mut bytes = fs::read(db(dir.path())).unwrap();
    bytes[..100].fill(0xa5);
    fs::write(db(dir.path()), &bytes).unwrap();
    let journal = recovered(dir.path(), &[("", bytes)]);
    assert_eq!(journal.docs("lane"), documents([("a", "held")]));
    assert_eq!(journal.docs("session"), documents([("s", &long)]));
}

/// Without the root page of the tasks, no B-tree leads to them; each of them is still found.
// proves D5
#[test]
fn damaged_root_page_costs_no_row() {
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path(), ROWS);
    let mut bytes = fs::read(db(dir.path())).unwrap();
    let root = (2..9).find(|page| bytes[page * 4096] == 0x05).unwrap() * 4096;
    bytes[root..root + 4096].fill(0);
    fs::write(db(dir.path()), &bytes).unwrap();
    let mut journal = recovered(dir.path(), &[("", bytes)]);
    assert_eq!(kept_tasks(&mut journal), usize::try_from(ROWS).unwrap());
}

// proves D5
#[test]
fn truncated_file_keeps_its_front() {
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path(), ROWS);
    let mut bytes = fs::read(db(dir.path())).unwrap();
    bytes.truncate(bytes.len() / 2 + 17);
    fs::write(db(dir.path()), &bytes).unwrap();
    let mut journal = recovered(dir.path(), &[("", bytes)]);
    let kept = kept_tasks(&mut journal);
    assert!(kept > 900, "{kept} kept");
    let lost = journal.all_events().events.iter().filter(|event| event.kind == LOST_KIND).count();
    assert!(lost > 0, "what is missing is marked");
    assert!(journal.buffer.last_event() > ROWS, "numbers continue");
}

// proves D5
#[test]
fn file_that_is_no_database_is_quarantined() {
    let garbage: [(&str, Vec<u8>); 4] = [
        ("empty", Vec::new()),
        ("text", b"this is not a database\n".to_vec()),
        ("noise", (0..20_000u32).map(|n| u8::try_from(n * 7919 % 251).unwrap()).collect()),
        ("head only", b"SQLite format 3\0".to_vec()),
    ];
    for (what, bytes) in garbage {
        let dir = tempfile::tempdir().unwrap();
        fs::write(db(dir.path()), &bytes).unwrap();
        let mut journal = recovered(dir.path(), &[("", bytes)]);
        assert_eq!(kept_tasks(&mut journal), 0, "{what}");
        assert!(
            journal.buffer.last_event() > 1_000_000_000_000,
            "{what}: above any number of the lost journal"
        );
    }
}

// proves D5
#[test]
fn garbage_header_keeps_all_rows() {
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path(), 50);
    let secret = open(dir.path()).loaded.secret;
    let mut bytes = fs::read(db(dir.path())).unwrap();
    bytes[..100].fill(0xff);
    fs::write(db(dir.path()), &bytes).unwrap();
    let mut journal = recovered(dir.path(), &[("", bytes)]);
    assert_eq!(kept_tasks(&mut journal), 50, "the pages behind it are whole");
    assert_eq!(journal.loaded.secret, secret);
}

/// The database and the log of a journal that is open and has not checkpointed, as a killed daemon
/// leaves them.
fn killed(dir: &Path, count: u64) -> (tempfile::TempDir, Vec<u8>, Vec<u8>) {
    fill(dir, count);
    let mut journal = open(dir);
    let last = journal.buffer.last_event();
    for seq in last + 1..=last + 100 {
        let mut batch = happened(seq..=seq);
        batch.put.push(task(journal.buffer.next_number()));
        journal.commit(&batch).unwrap();
    }
    let killed = tempfile::tempdir().unwrap();
    let read = |name: &str| fs::read(dir.join(name)).unwrap();
    let (database, log) = (read(FILE_NAME), read("journal.db-wal"));
    fs::write(db(killed.path()), &database).unwrap();
    (killed, database, log)
}

// proves D5
#[test]
fn garbage_log_is_not_taken_for_empty() {
    let source = tempfile::tempdir().unwrap();
    let (dir, database, mut log) = killed(source.path(), 100);
    log[..32].fill(0x11);
    fs::write(dir.path().join("journal.db-wal"), &log).unwrap();
    let mut journal = recovered(dir.path(), &[("", database), ("-wal", log)]);
    assert_eq!(kept_tasks(&mut journal), 100);
    assert!(
        journal.buffer.last_event() > 200,
        "above the numbers lost with the log: {}",
        journal.buffer.last_event()
    );
}

// proves D5
#[test]
fn damaged_log_keeps_batches_before_the_damage() {
    let source = tempfile::tempdir().unwrap();
    let (dir, database, mut log) = killed(source.path(), 100);
    let middle = log.len() / 2;
    log[middle] ^= 0x40;
    fs::write(dir.path().join("journal.db-wal"), &log).unwrap();
    let mut journal = recovered(dir.path(), &[("", database), ("-wal", log)]);
    assert_eq!(kept_tasks(&mut journal), 100);
    let live = journal.live().len();
    assert!((20..90).contains(&live), "{live}");
}

#[test]
fn log_cut_in_last_frame_is_intact() {
    let source = tempfile::tempdir().unwrap();
    let (dir, _, mut log) = killed(source.path(), 10);
    log.truncate(log.len() - 1000);
    fs::write(dir.path().join("journal.db-wal"), &log).unwrap();
    let mut journal = open(dir.path());
    assert_eq!(journal.live().len(), 99, "the torn batch is absent, whole");
    assert_eq!(journal.buffer.last_event(), 109);
}

#[test]
fn log_without_database_is_quarantined() {
    let source = tempfile::tempdir().unwrap();
    let (dir, _, log) = killed(source.path(), 10);
    fs::remove_file(db(dir.path())).unwrap();
    fs::write(dir.path().join("journal.db-wal"), &log).unwrap();
    recovered(dir.path(), &[("-wal", log)]);
}

#[test]
fn directory_in_place_of_database_is_quarantined() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(db(dir.path())).unwrap();
    fs::write(db(dir.path()).join("inside"), "kept").unwrap();
    let (journal, notices) = open_any(dir.path());
    let moved = notices[0].path.as_ref().unwrap();
    assert_eq!(fs::read_to_string(moved.join("inside")).unwrap(), "kept");
    drop(journal);
    open(dir.path());
}

#[test]
fn quarantine_names_in_one_second_differ() {
    let dir = tempfile::tempdir().unwrap();
    let mut names = Vec::new();
    for round in 0..4u8 {
        fs::write(db(dir.path()), [round; 10]).unwrap();
        names.push(open_any(dir.path()).1[0].path.clone().unwrap());
    }
    for (round, name) in (0..4u8).zip(&names) {
        assert_eq!(fs::read(name).unwrap(), [round; 10]);
    }
}

/// A start that died between the steps is finished by the next, whichever step it was.
#[test]
fn quarantine_resumes_after_a_crash() {
    let name = "journal.damaged-20260101T000000Z.db";
    let marker = format!("{name}\nit was torn\n");
    for moved in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        fill(dir.path(), 60);
        let mut bytes = fs::read(db(dir.path())).unwrap();
        let end = bytes.len() - 4096;
        bytes.truncate(end);
        fs::write(db(dir.path()), &bytes).unwrap();
        fs::write(dir.path().join("journal.salvage"), &marker).unwrap();
        fs::write(dir.path().join("journal.new.db"), "half made").unwrap();
        fs::write(dir.path().join("journal.copy.db"), "half copied").unwrap();
        if moved {
            fs::rename(db(dir.path()), dir.path().join(name)).unwrap();
        }
        let mut journal = recovered(dir.path(), &[("", bytes.clone())]);
        assert!(kept_tasks(&mut journal) > 30);
        if moved {
            drop(journal);
            // The new database was in place, but the marker was not yet removed.
            fs::write(dir.path().join("journal.salvage"), &marker).unwrap();
            let (mut journal, notices) = open_any(dir.path());
            assert_eq!(notices[0].path.as_deref(), Some(dir.path().join(name).as_path()));
            assert!(kept_tasks(&mut journal) > 30);
            assert_eq!(fs::read(dir.path().join(name)).unwrap(), bytes);
        }
    }
}
