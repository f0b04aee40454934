//! Random histories of a buffer with crashes and damaged files, and its bounds.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;
use proptest::sample::Index;
use tempfile::TempDir;

use super::*;
use crate::row::{EventFilter, TaskFilter, TaskPage, TaskRow};
use crate::{FILE_NAME, LOST_KIND, Opened, Query, Reader, Store, meta};

const fn is_send<T: Send + 'static>() {}

const _: () = {
    is_send::<WriteBuffer>();
    is_send::<Store>();
    is_send::<Reader>();
    is_send::<FlushJob>();
    is_send::<FlushDone>();
    is_send::<ReadTicket>();
    is_send::<Query>();
    is_send::<Found>();
    is_send::<Rows>();
};

fn task(number: u64, body: &str) -> TaskRow {
    TaskRow { id: format!("sh-{number}"), number, body: body.to_owned(), ..TaskRow::default() }
}

fn failed(job: FlushJob) -> FlushDone {
    let error = Error::io(std::path::Path::new(FILE_NAME), io::Error::other("for the test"));
    FlushDone { result: Err(error), job: Some(job), cleared: Vec::new() }
}

#[derive(Debug, Clone)]
enum Step {
    Append { put: Vec<u64>, removed: Vec<u64>, events: u64 },
    BeginFlush,
    EndFlush { succeeds: bool },
    Crash(Crash),
}

/// How a daemon dies, and what happens to its files before the next one starts.
#[derive(Debug, Clone)]
struct Crash {
    /// Everything is written to the database, but no file is cleared.
    before_clearing: bool,
    /// A file is cut off at a byte.
    cut: Option<(Index, Index)>,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let numbers = || prop::collection::vec(1..8_u64, 0..3);
    let append = (numbers(), numbers(), 0..4_u64);
    let crash = (any::<bool>(), prop::option::of(any::<(Index, Index)>()));
    let step = prop_oneof![
        8 => append.prop_map(|(put, removed, events)| Step::Append { put, removed, events }),
        3 => Just(Step::BeginFlush),
        3 => any::<bool>().prop_map(|succeeds| Step::EndFlush { succeeds }),
        2 => crash.prop_map(|(before_clearing, cut)| Step::Crash(Crash { before_clearing, cut })),
    ];
    prop::collection::vec(step, 1..50)
}

/// A journal, and the batches that it must hold.
struct History {
    dir: TempDir,
    opened: Opened,
    job: Option<FlushJob>,
    kept: BTreeMap<u64, Batch>,
    /// The highest event number ever assigned, lost or not.
    highest_event: u64,
    appended: u64,
}

impl History {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let opened = crate::open(dir.path()).unwrap();
        Self { dir, opened, job: None, kept: BTreeMap::new(), highest_event: 0, appended: 0 }
    }

    fn perform(self, step: &Step) -> Result<Self, TestCaseError> {
        let mut history = self;
        match step {
            Step::Append { put, removed, events } => history.append(put, removed, *events)?,
            Step::BeginFlush => {
                let job = history.opened.buffer.begin_flush();
                prop_assert!(job.is_none() || history.job.is_none(), "one flush at a time");
                history.job = history.job.or(job);
            }
            Step::EndFlush { succeeds } => {
                if let Some(job) = history.job.take() {
                    let done = if *succeeds { history.opened.store.flush(job) } else { failed(job) };
                    prop_assert_eq!(history.opened.buffer.end_flush(done).is_ok(), *succeeds);
                }
            }
            Step::Crash(crash) => return history.crash(crash),
        }
        Ok(history)
    }

    fn append(&mut self, put: &[u64], removed: &[u64], events: u64) -> Result<(), TestCaseError> {
        self.appended += 1;
        let body = self.appended.to_string();
        let last = self.opened.buffer.last_event();
        let event =
            |seq| EventRow { seq, kind: "event".to_owned(), body: body.clone(), ..EventRow::default() };
        let mut batch = Batch {
            put: put.iter().map(|number| task(*number, &body)).collect(),
            removed: removed.iter().map(|number| task(*number, "").id).collect(),
            events: (last + 1..=last + events).map(event).collect(),
            ..Batch::default()
        };
        let expected = batch.clone();
        let number = self.opened.buffer.append(&mut batch).unwrap();
        if !expected.is_empty() {
            let before = self.kept.insert(number, expected);
            prop_assert_eq!(before, None, "a number is given to one batch");
        }
        self.highest_event = self.highest_event.max(last + events);
        Ok(())
    }

    fn crash(self, crash: &Crash) -> Result<Self, TestCaseError> {
        let Self { dir, mut opened, job, mut kept, highest_event, appended } = self;
        if crash.before_clearing
            && let Some(job) = job.or_else(|| opened.buffer.begin_flush())
        {
            let files = read_files(&dir);
            opened.store.flush(job).result.unwrap();
            for (path, bytes) in files {
                fs::write(path, bytes).unwrap();
            }
        }
        let flushed = meta::number(opened.store.connection(), meta::BATCH_LAST).unwrap();
        drop(opened);
        let is_damaged = match &crash.cut {
            Some((file, at)) => {
                let before = numbers(&dir);
                let is_cut = cut(&dir, *file, *at);
                let after = numbers(&dir);
                kept.retain(|number, _| {
                    *number <= flushed || after.contains(number) || !before.contains(number)
                });
                is_cut
            }
            None => false,
        };
        let opened = crate::open(dir.path()).unwrap();
        prop_assert_eq!(!opened.notices.is_empty(), is_damaged, "{:?}", opened.notices);
        let mut history = Self { dir, opened, job: None, kept, highest_event, appended };
        prop_assert!(history.opened.buffer.is_flushed());
        prop_assert!(history.opened.buffer.last_event() >= highest_event, "no number is assigned twice");
        history.highest_event = history.opened.buffer.last_event();
        history.check()?;
        Ok(history)
    }

    /// The journal holds exactly the batches that it must hold, each once.
    fn check(&mut self) -> Result<(), TestCaseError> {
        let mut tasks = BTreeMap::new();
        let mut events = BTreeMap::new();
        for batch in self.kept.values() {
            tasks.retain(|id, _| !batch.removed.contains(id));
            tasks.extend(batch.kept_tasks().map(|task| (task.id.clone(), task.clone())));
            events.extend(batch.events.iter().map(|event| (event.seq, event.clone())));
        }
        let list = TaskFilter { limit: usize::MAX, ..TaskFilter::default() };
        let Rows::List(TaskPage { tasks: found, .. }) = self.query(Query::List(list)) else { panic!() };
        let found: BTreeMap<_, _> = found.into_iter().map(|task| (task.id.clone(), task)).collect();
        prop_assert_eq!(found, tasks);

        let query = Query::Events { after: 0, max: usize::MAX, filter: EventFilter::default() };
        let Rows::Events(page) = self.query(query) else { panic!() };
        let seqs = page.events.iter().map(|event| event.seq);
        prop_assert!(seqs.eq(page.first..=page.next), "no gap");
        for event in page.events {
            if let Some(expected) = events.remove(&event.seq) {
                prop_assert_eq!(event, expected);
            } else {
                prop_assert_eq!(event.kind, LOST_KIND);
            }
        }
        events.retain(|seq, _| *seq <= page.next);
        prop_assert_eq!(events, BTreeMap::new(), "every event that is kept is found");
        Ok(())
    }

    fn query(&mut self, query: Query) -> Rows {
        let ticket = self.opened.buffer.begin_read();
        let found = self.opened.reader.run(&query).unwrap();
        self.opened.buffer.end_read(ticket, found)
    }
}

/// The buffer files with their contents.
fn read_files(dir: &TempDir) -> BTreeMap<PathBuf, Vec<u8>> {
    let paths = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
    let is_buffer =
        |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(buffer_file::NAME_PREFIX);
    paths.filter(is_buffer).map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

/// The numbers of the readable batches.
fn numbers(dir: &TempDir) -> BTreeSet<u64> {
    let files = buffer_file::scan_dir(dir.path()).unwrap();
    files.iter().flat_map(|file| &file.entries).map(|entry| entry.number).collect()
}

/// Cuts a file off. Its readable batches must be a prefix of those before. Returns whether the file
/// became shorter.
fn cut(dir: &TempDir, file: Index, at: Index) -> bool {
    let before = buffer_file::scan_dir(dir.path()).unwrap();
    if before.is_empty() {
        return false;
    }
    let victim = &before[file.index(before.len())];
    let length = fs::metadata(&victim.path).unwrap().len();
    let at = u64::try_from(at.index(usize::try_from(length).unwrap() + 1)).unwrap();
    fs::OpenOptions::new().write(true).open(&victim.path).unwrap().set_len(at).unwrap();
    let after = buffer_file::scan_dir(dir.path()).unwrap();
    let after = after.into_iter().find(|file| file.path == victim.path).unwrap();
    assert!(victim.entries.starts_with(&after.entries), "a prefix");
    at < length
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    // proves W4, D5: after any crash and any cut, each kept batch is there once, and no number is
    // assigned again.
    #[test]
    fn recovery_keeps_every_readable_batch_once(steps in steps()) {
        let mut history = History::new();
        for step in &steps {
            history = history.perform(step)?;
        }
        history.crash(&Crash { before_clearing: false, cut: None })?;
    }
}

/// Flushes that fail for hours must not use up file descriptors.
#[test]
fn failed_flushes_keep_a_bounded_number_of_files() {
    let mut history = History::new();
    for number in 1..=50 {
        history.append(&[number], &[], 1).unwrap();
        let job = history.opened.buffer.begin_flush().unwrap();
        history.opened.buffer.end_flush(failed(job)).unwrap_err();
    }
    assert_eq!(read_files(&history.dir).len(), MAX_SEALED_FILES + 1);
    // The first flush takes the sealed files, the second the rest.
    for is_flushed in [false, true] {
        let job = history.opened.buffer.begin_flush().unwrap();
        assert!(history.opened.buffer.begin_flush().is_none(), "one flush at a time");
        let done = history.opened.store.flush(job);
        history.opened.buffer.end_flush(done).unwrap();
        assert_eq!(history.opened.buffer.is_flushed(), is_flushed);
        history.check().unwrap();
    }
    assert!(history.opened.buffer.begin_flush().is_none());
    assert!(read_files(&history.dir).len() <= MAX_SPARE_FILES + 1);
    history.crash(&Crash { before_clearing: false, cut: None }).unwrap();
}

/// A cleared file is used again, so that the deciding thread seldom creates one.
#[test]
fn flushed_files_are_reused() {
    let mut history = History::new();
    for number in 1..=20 {
        history.append(&[number], &[], 1).unwrap();
        let job = history.opened.buffer.begin_flush().unwrap();
        // An append during the flush goes to another file.
        history.append(&[number], &[], 1).unwrap();
        let done = history.opened.store.flush(job);
        history.opened.buffer.end_flush(done).unwrap();
    }
    assert_eq!(read_files(&history.dir).len(), 2);
}

/// Batches that an open read may lack stay, however much is flushed meanwhile; then they are
/// dropped.
#[test]
fn open_read_keeps_flushed_batches() {
    let mut history = History::new();
    let large = "x".repeat(usize::try_from(KEPT_FLUSHED_BYTES).unwrap() / 2);
    let commit = |history: &mut History, number| {
        let put = vec![task(number, &large)];
        history.opened.buffer.append(&mut Batch { put, ..Batch::default() }).unwrap();
        let job = history.opened.buffer.begin_flush().unwrap();
        let done = history.opened.store.flush(job);
        history.opened.buffer.end_flush(done).unwrap();
    };
    let query = Query::Tasks((1..=5).map(|number| task(number, "").id).collect());
    let ticket = history.opened.buffer.begin_read();
    let found = history.opened.reader.run(&query).unwrap();
    let later = history.opened.buffer.begin_read();
    for number in 1..=5 {
        commit(&mut history, number);
    }
    assert_eq!(history.opened.buffer.entries.len(), 5);
    history.opened.buffer.cancel_read(later);
    assert_eq!(history.opened.buffer.entries.len(), 5, "the older read is still open");
    let Rows::Tasks(tasks) = history.opened.buffer.end_read(ticket, found) else { panic!() };
    assert_eq!(tasks.len(), 5, "found in memory, behind a snapshot of an empty database");
    assert_eq!(history.opened.buffer.entries.len(), 1, "one batch of this size is kept");
}
