//! Where the journal is: unusual paths, a full disk, no permission, other processes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use belay_journal::{Batch, Error, FILE_NAME, TaskRow};

use crate::support::{Journal, doc, documents, ended, happened, open, put, task};

#[test]
fn any_path_works_and_only_owner_reads() {
    let dir = tempfile::tempdir().unwrap();
    for name in
        ["with space", "ünïcode-日本", "100%", "what?mode=memory", "file:x?vfs=none", "#frag", "quo'te\"s"]
    {
        let home = dir.path().join(name);
        fs::create_dir(&home).unwrap();
        open(&home).commit(&put([task(1)])).unwrap();
        let mode = fs::metadata(home.join(FILE_NAME)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        for file in [FILE_NAME, "journal.buffer-0"] {
            fs::set_permissions(home.join(file), fs::Permissions::from_mode(0o644)).unwrap();
        }
        let mut journal = open(&home);
        assert_eq!(journal.live(), [task(1)], "{name}");
        for entry in fs::read_dir(&home).unwrap().map(Result::unwrap) {
            assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{entry:?}");
        }
        drop(journal);
        assert_eq!(
            fs::read_dir(&home).unwrap().count(),
            2,
            "a clean close leaves the database and one buffer file"
        );
    }
}

#[test]
fn missing_directory_is_named_in_error() {
    let error = belay_journal::open(Path::new("/nonexistent/belay")).unwrap_err();
    assert_eq!(error.to_string(), "cannot use the journal at /nonexistent/belay");
}

/// A small file system of its own.
struct Mount(PathBuf);

impl Mount {
    fn tmpfs(at: &Path) -> Result<Self, String> {
        run("mount", &["-t", "tmpfs", "-o", "size=1m", "belay-test", at.to_str().unwrap()])?;
        Ok(Self(at.to_owned()))
    }

    /// Fails the test where it may not mount: then a full disk was not tested.
    #[track_caller]
    fn needed(at: &Path) -> Self {
        match Self::tmpfs(at) {
            Ok(mount) => mount,
            Err(error) => panic!("this test needs a small disk, which only root can mount: {error}"),
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

/// Takes this much room of the disk, or what is left of it.
fn write_ballast(path: &Path, most: usize) {
    use std::io::Write as _;
    let mut file = fs::File::create(path).unwrap();
    for _ in 0..most / 4096 {
        if file.write_all(&[0; 4096]).is_err() {
            break;
        }
    }
}

#[test]
fn full_disk_refuses_until_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let _mount = Mount::needed(dir.path());
    let mut journal = open(dir.path());
    journal.commit(&happened(1..=1)).unwrap();
    let ballast = dir.path().join("ballast");
    let (mut refused_appends, mut failed_flushes) = (0, 0);
    for round in 0..3 {
        write_ballast(&ballast, 64 * 1024);
        // Until nothing can be appended any more. Flushes fail earlier, and lose nothing.
        let number = loop {
            let number = journal.buffer.next_number();
            let last = journal.buffer.last_event();
            let row = TaskRow { body: "x".repeat(20_000), ..task(number) };
            let batch = Batch { put: vec![row], ..happened([last + 1]) };
            match journal.buffer.append(&mut batch.clone()) {
                Ok(_) => {}
                Err(error) => {
                    assert!(matches!(error, Error::Full { .. }), "{error:?}");
                    refused_appends += 1;
                    break number;
                }
            }
            if let Err(error) = journal.flush() {
                assert!(matches!(error, Error::Full { .. }), "{error:?}");
                assert!(!journal.buffer.is_flushed());
                failed_flushes += 1;
            }
            assert_eq!(journal.buffer.next_number(), number + 1);
            assert_eq!(journal.task(&task(number).id).map(|task| task.number), Some(number));
        };
        assert_eq!(journal.task(&task(number).id), None, "round {round}");
        assert_eq!(journal.buffer.next_number(), number);
        let before = journal.counts();
        assert_eq!(before.live, number - 1);
        fs::remove_file(&ballast).unwrap();
        let last = journal.buffer.last_event();
        journal.append(happened([last + 1]));
        assert_eq!(journal.counts().live, before.live);
        assert_eq!(journal.counts().events, before.events + 1);
    }
    assert_eq!(refused_appends, 3);
    assert!(failed_flushes > 0);
    let counts = journal.counts();
    drop(journal);
    let mut journal = open(dir.path());
    assert_eq!(journal.counts(), counts);
    journal.assert_loaded();
}

// proves O8, D5: a frame of which the disk took a part is neither a batch nor damage
#[test]
fn partial_append_on_full_disk_leaves_no_trace() {
    let dir = tempfile::tempdir().unwrap();
    let _mount = Mount::needed(dir.path());
    let mut journal = open(dir.path());
    // In the database: two tasks that change in the buffer, and a document.
    let token = TaskRow { token: Some("t".to_owned()), ..ended(2, 5, 70) };
    let docs = vec![doc("lane", "a", Some("held"))];
    journal.commit(&Batch { docs, ..put([ended(1, 5, 30), token]) }).unwrap();
    fs::write(dir.path().join("ballast"), vec![0; 600 * 1024]).unwrap();
    let removed = vec![task(2).id];
    let docs = vec![doc("lane", "a", None), doc("lane", "b", Some("free"))];
    journal.append(Batch {
        removed,
        docs,
        ..put([TaskRow { token: Some("t".to_owned()), ..ended(1, 5, 40) }])
    });
    let mut number = 2;
    let refused = loop {
        let row = TaskRow { body: "x".repeat(7_001), ..task(number + 1) };
        let mut batch = Batch { put: vec![row], ..happened([number - 1]) };
        match journal.buffer.append(&mut batch) {
            Ok(_) => number += 1,
            Err(error) => {
                assert!(!batch.is_empty(), "a refused batch stays with its owner");
                break error;
            }
        }
    };
    assert!(matches!(refused, Error::Full { .. }), "{refused:?}");
    assert!(number > 12);
    drop(journal);
    // The disk is still full: a daemon that cannot flush finds every batch in the buffer.
    let mut journal = open(dir.path());
    assert!(!journal.buffer.is_flushed());
    assert_eq!((journal.buffer.last_event(), journal.buffer.next_number()), (number - 2, number + 1));
    assert_eq!(journal.all_tasks().len() as u64, number - 1);
    assert_eq!(journal.live().len() as u64, number - 2);
    assert_eq!((journal.loaded.ended, journal.loaded.output_bytes), (1, 40));
    assert_eq!(journal.loaded.tokens, [("t".to_owned(), task(1).id)]);
    assert_eq!(journal.docs("lane"), documents([("b", "free")]));
    journal.assert_loaded();
    drop(journal);
    fs::remove_file(dir.path().join("ballast")).unwrap();
    let mut journal = open(dir.path());
    assert!(journal.buffer.is_flushed());
    assert_eq!(journal.counts().live, number - 2);
    assert_eq!(journal.docs("lane"), documents([("b", "free")]));
    journal.assert_loaded();
}

/// A daemon that starts on a full disk works on, and flushes once there is room.
#[test]
fn batches_recovered_on_full_disk_are_flushed_later() {
    let dir = tempfile::tempdir().unwrap();
    let _mount = Mount::needed(dir.path());
    let mut journal = open(dir.path());
    for number in 1..=20 {
        let row = TaskRow { body: "x".repeat(9_000), ..task(number) };
        journal.append(Batch { put: vec![row], ..happened([number]) });
    }
    drop(journal);
    let ballast = dir.path().join("ballast");
    write_ballast(&ballast, usize::MAX);
    // Without a little room SQLite cannot even read: it needs the shared index of its log.
    let size = fs::metadata(&ballast).unwrap().len();
    fs::File::options().write(true).open(&ballast).unwrap().set_len(size - 96 * 1024).unwrap();
    let mut journal = open(dir.path());
    assert!(!journal.buffer.is_flushed());
    assert!(matches!(journal.flush(), Err(Error::Full { .. })));
    assert_eq!(journal.counts().live, 20);
    fs::remove_file(&ballast).unwrap();
    journal.append(Batch { put: vec![task(21)], ..happened([21]) });
    assert!(!journal.buffer.is_flushed());
    assert_eq!(journal.counts().live, 21);
    journal.flush().unwrap();
    assert!(journal.buffer.is_flushed());
    assert_eq!(journal.counts().live, 21);
    drop(journal);
    let mut journal = open(dir.path());
    assert_eq!((journal.counts().live, journal.buffer.last_event()), (21, 21));
}

#[test]
fn read_only_directory_is_reported_at_open() {
    let dir = tempfile::tempdir().unwrap();
    let mount = Mount::tmpfs(dir.path());
    drop(open(dir.path()));
    match &mount {
        Ok(mount) => mount.read_only(),
        // Permissions are enough to keep an ordinary user out.
        Err(_) => fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o500)).unwrap(),
    }
    let before = fs::read(dir.path().join(FILE_NAME)).unwrap();
    let refused = belay_journal::open(dir.path()).unwrap_err();
    assert!(matches!(refused, Error::ReadOnly { .. }), "{refused:?}");
    assert_eq!(fs::read(dir.path().join(FILE_NAME)).unwrap(), before);
}

/// Commits until the condition holds, with a deadline.
fn commit_until(journal: &mut Journal, what: &str, is_met: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_met() {
        assert!(Instant::now() < deadline, "not met: {what}");
        let next = journal.buffer.last_event() + 1;
        journal.commit(&happened(next..=next)).unwrap();
    }
}

/// How often the write-ahead log has started over: its header counts that.
fn log_restarts(dir: &Path) -> u32 {
    let log = fs::read(dir.join("journal.db-wal")).unwrap();
    u32::from_be_bytes(log[12..16].try_into().unwrap())
}

#[test]
fn foreign_reader_does_not_stop_flushes_and_log_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path());
    journal.commit(&happened(1..=1)).unwrap();
    let reader = rusqlite::Connection::open(dir.path().join(FILE_NAME)).unwrap();
    let seen = || reader.query_row("SELECT count(*) FROM event", [], |row| row.get::<_, i64>(0)).unwrap();
    reader.execute_batch("BEGIN").unwrap();
    assert_eq!(seen(), 1);
    let restarts = log_restarts(dir.path());
    for seq in 2..=1500 {
        journal.commit(&happened(seq..=seq)).unwrap();
    }
    assert_eq!(seen(), 1, "the reader sees its snapshot");
    assert_eq!(log_restarts(dir.path()), restarts, "the reader holds the log");
    reader.execute_batch("COMMIT").unwrap();
    assert_eq!(seen(), 1500);
    commit_until(&mut journal, "a log that starts over", || log_restarts(dir.path()) != restarts);
    let size = || fs::metadata(dir.path().join(FILE_NAME)).unwrap().len();
    assert!(size() > 100_000, "what was in the log is in the database");
}

/// Another process reads, and a third holds the write lock: the flush waits for its timeout,
/// appends wait for nothing.
#[test]
fn foreign_transactions_never_delay_appends() {
    const BODY_BYTES: usize = 1024 * 1024;
    const MAX_UNFLUSHED: u64 = 64 * 1024 * 1024;
    let dir = tempfile::tempdir().unwrap();
    let Journal { mut buffer, mut store, mut reader, .. } = open(dir.path());
    buffer.append(&mut happened([1])).unwrap();
    let foreign = || rusqlite::Connection::open(dir.path().join(FILE_NAME)).unwrap();
    let (foreign_reader, foreign_writer) = (foreign(), foreign());
    foreign_reader.execute_batch("BEGIN; SELECT count(*) FROM event").unwrap();
    foreign_writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    let (jobs, taken) = channel();
    let (results, done) = channel();
    let worker = std::thread::spawn(move || {
        while let Ok(job) = taken.recv() {
            results.send(store.flush(job)).unwrap();
        }
    });
    jobs.send(buffer.begin_flush().unwrap()).unwrap();
    // The lock is held until the buffer is full: an append that waited for it could never succeed.
    let mut busy_flushes = 0;
    let mut longest = Duration::ZERO;
    let refused = loop {
        let number = buffer.next_number();
        let row = TaskRow { body: "x".repeat(BODY_BYTES), ..task(number) };
        let mut batch = Batch { put: vec![row], ..happened([buffer.last_event() + 1]) };
        let unchanged = batch.clone();
        let begin = Instant::now();
        let appended = buffer.append(&mut batch);
        longest = longest.max(begin.elapsed());
        if let Err(error) = appended {
            assert!(batch == unchanged, "a refused batch stays with its owner");
            break error;
        }
        if let Ok(result) = done.try_recv() {
            let error = buffer.end_flush(result).unwrap_err();
            assert!(matches!(error, Error::Busy { .. }), "{error:?}");
            busy_flushes += 1;
            jobs.send(buffer.begin_flush().unwrap()).unwrap();
        }
    };
    assert!(matches!(refused, Error::Backlog { .. }), "{refused:?}");
    let bound = MAX_UNFLUSHED..MAX_UNFLUSHED + 2 * BODY_BYTES as u64;
    assert!(bound.contains(&buffer.unflushed_bytes()), "{} bytes", buffer.unflushed_bytes());
    assert!(longest < Duration::from_secs(2), "the longest append took {longest:?}");
    // Reads go on too, and find what waits.
    let ticket = buffer.begin_read();
    let found = reader.run(&belay_journal::Query::Tasks(vec![task(1).id])).unwrap();
    assert_eq!(found.snapshot(), 0);
    let belay_journal::Rows::Tasks(tasks) = buffer.end_read(ticket, found) else { panic!() };
    assert_eq!(tasks.len(), 1);
    // One flush is still under way or just failed; then everything goes into the database.
    foreign_writer.execute_batch("ROLLBACK").unwrap();
    while !buffer.is_flushed() {
        match buffer.end_flush(done.recv().unwrap()) {
            Ok(()) => {}
            Err(error) => assert!(matches!(error, Error::Busy { .. }), "{error:?}, after {busy_flushes}"),
        }
        if let Some(job) = buffer.begin_flush() {
            jobs.send(job).unwrap();
        }
    }
    assert_eq!(buffer.unflushed_bytes(), 0);
    buffer.append(&mut happened([buffer.last_event() + 1])).unwrap();
    drop(jobs);
    worker.join().unwrap();
}
