//! Where the record lies: strange names, no room, no permission.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use belay_journal::{Batch, Error, FILE_NAME, Journal, TaskFilter, TaskRow};

use crate::support::{happened, open, put, task};

#[test]
fn any_path_will_do_and_only_the_owner_reads() {
    let dir = tempfile::tempdir().unwrap();
    for name in
        ["with space", "ünïcode-日本", "100%", "what?mode=memory", "file:x?vfs=none", "#frag", "quo'te\"s"]
    {
        let home = dir.path().join(name);
        fs::create_dir(&home).unwrap();
        open(&home).commit(&put([task(1)])).unwrap();
        let mode = fs::metadata(home.join(FILE_NAME)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        for file in [FILE_NAME, "journal.ahead"] {
            fs::set_permissions(home.join(file), fs::Permissions::from_mode(0o644)).unwrap();
        }
        let journal = open(&home);
        assert_eq!(journal.live().unwrap(), [task(1)], "{name}");
        for entry in fs::read_dir(&home).unwrap().map(Result::unwrap) {
            assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{entry:?}");
        }
        drop(journal);
        assert_eq!(
            fs::read_dir(&home).unwrap().count(),
            2,
            "a clean close leaves the database and its notes"
        );
    }
}

#[test]
fn a_directory_that_is_not_there_is_named() {
    let error = Journal::open(Path::new("/nonexistent/belay")).unwrap_err();
    assert_eq!(error.to_string(), "cannot use the journal at /nonexistent/belay");
}

/// A small file system of its own.
struct Mount(PathBuf);

impl Mount {
    fn tmpfs(at: &Path) -> Result<Self, String> {
        run("mount", &["-t", "tmpfs", "-o", "size=1m", "belay-test", at.to_str().unwrap()])?;
        Ok(Self(at.to_owned()))
    }

    /// Fails the test where it may not mount: that a full disk is survived has not been seen then.
    #[track_caller]
    fn needed(at: &Path) -> Self {
        match Self::tmpfs(at) {
            Ok(mount) => mount,
            Err(error) => panic!("this test needs a small disk, and only root can mount one: {error}"),
        }
    }

    fn read_only(&self) {
        run("mount", &["-o", "remount,ro", self.0.to_str().unwrap()]).unwrap();
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = run("umount", &["-l", self.0.to_str().unwrap()]);
    }
}

#[expect(clippy::disallowed_methods, reason = "mounting is a program's work, and only this test's")]
fn run(program: &str, args: &[&str]) -> Result<(), String> {
    let done = Command::new(program).args(args).output().map_err(|error| format!("{program}: {error}"))?;
    if done.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&done.stderr).into_owned()) }
}

#[test]
fn a_full_disk_refuses_and_the_journal_goes_on_when_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let _mount = Mount::needed(dir.path());
    let mut journal = open(dir.path());
    journal.commit(&happened(1..=1)).unwrap();
    let ballast = dir.path().join("ballast");
    let mut refusals = 0;
    for round in 0..3 {
        let mut number = journal.next_number();
        fs::write(&ballast, vec![0; 64 * 1024]).unwrap();
        let refused = loop {
            let last = journal.last_event();
            let row = TaskRow { body: "x".repeat(20_000), ..task(number) };
            let mut batch = happened(last + 1..=last + 1);
            batch.put.push(row);
            match journal.commit(&batch) {
                Ok(()) => number += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, Error::Full { .. }), "{refused:?}");
        assert_eq!(journal.task(&task(number).id).unwrap(), None, "round {round}");
        assert_eq!(journal.next_number(), number);
        refusals += 1;
        fs::remove_file(&ballast).unwrap();
        let last = journal.last_event();
        journal.commit(&happened(last + 1..=last + 1)).unwrap();
    }
    assert_eq!(refusals, 3);
    let counts = journal.counts();
    drop(journal);
    assert_eq!(open(dir.path()).counts(), counts);
}

// proves O8, D5: a note that the disk took half of is no note, and no damage
#[test]
fn notes_on_a_full_disk_end_where_they_did() {
    let dir = tempfile::tempdir().unwrap();
    let _mount = Mount::needed(dir.path());
    let mut journal = open(dir.path());
    fs::write(dir.path().join("ballast"), vec![0; 600 * 1024]).unwrap();
    let mut number = 0;
    let refused = loop {
        let row = TaskRow { body: "x".repeat(7_001), ..task(number + 1) };
        let mut batch = Batch { put: vec![row], ..happened(number + 1..=number + 1) };
        match journal.note(&mut batch) {
            Ok(()) => number += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, Error::Full { .. }), "{refused:?}");
    assert!(number > 10);
    drop(journal);
    // The disk is still full: what was noted is found all the same, by a program that cannot write it down elsewhere.
    let journal = open(dir.path());
    assert_eq!((journal.last_event(), journal.next_number()), (number, number + 1));
    let tasks = journal.tasks(&TaskFilter { limit: usize::MAX, ..TaskFilter::default() }).unwrap();
    assert_eq!(tasks.len() as u64, number);
    assert_eq!(journal.live().unwrap().len() as u64, number);
    drop(journal);
    fs::remove_file(dir.path().join("ballast")).unwrap();
    let journal = open(dir.path());
    assert!(journal.is_settled());
    assert_eq!(journal.counts().live, number);
}

#[test]
fn a_read_only_place_is_told_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let mount = Mount::tmpfs(dir.path());
    drop(open(dir.path()));
    match &mount {
        Ok(mount) => mount.read_only(),
        // An ordinary user is kept out by the rights alone.
        Err(_) => fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o500)).unwrap(),
    }
    let before = fs::read(dir.path().join(FILE_NAME)).unwrap();
    let refused = Journal::open(dir.path()).unwrap_err();
    assert!(matches!(refused, Error::ReadOnly { .. }), "{refused:?}");
    assert_eq!(fs::read(dir.path().join(FILE_NAME)).unwrap(), before);
}

/// Commits until `met` says so, with a deadline.
fn commit_until(journal: &mut Journal, what: &str, met: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !met() {
        assert!(Instant::now() < deadline, "not met: {what}");
        let next = journal.last_event() + 1;
        journal.commit(&happened(next..=next)).unwrap();
    }
}

#[test]
fn a_reader_beside_does_not_stop_the_writer_and_the_log_begins_anew() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path());
    journal.commit(&happened(1..=1)).unwrap();
    let reader = rusqlite::Connection::open(dir.path().join(FILE_NAME)).unwrap();
    let seen = || reader.query_row("SELECT count(*) FROM event", [], |row| row.get::<_, i64>(0)).unwrap();
    let rounds = || {
        let sql = "SELECT coalesce(max(value), 0) FROM meta WHERE key = 'log_round'";
        reader.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap()
    };
    reader.execute_batch("BEGIN").unwrap();
    assert_eq!(seen(), 1);
    for seq in 2..=1500 {
        journal.commit(&happened(seq..=seq)).unwrap();
    }
    assert_eq!(seen(), 1, "the reader sees what it began with");
    reader.execute_batch("COMMIT").unwrap();
    assert_eq!(seen(), 1500);
    commit_until(&mut journal, "a log that begins anew", || rounds() > 0);
    let size = || fs::metadata(dir.path().join(FILE_NAME)).unwrap().len();
    assert!(size() > 100_000, "what was in the log is in the database");
}
