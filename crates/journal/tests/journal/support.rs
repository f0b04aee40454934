//! Rows and a single-threaded journal that the tests share.

use std::collections::BTreeMap;
use std::path::Path;

use belay_journal::{
    Batch, DocRow, Error, EventFilter, EventPage, EventRow, Loaded, Notice, Opened, Query, Reader, Rows,
    Store, TaskFilter, TaskRow, WriteBuffer,
};

/// The three parts of a journal on one thread, and what was loaded when it was opened.
#[derive(Debug)]
pub(crate) struct Journal {
    pub(crate) buffer: WriteBuffer,
    pub(crate) reader: Reader,
    pub(crate) store: Store,
    pub(crate) loaded: Loaded,
}

/// How much a journal holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Counts {
    pub(crate) live: u64,
    pub(crate) ended: u64,
    pub(crate) output_bytes: u64,
    pub(crate) events: u64,
    pub(crate) first_event: u64,
    pub(crate) last_event: u64,
}

/// Opens an intact journal.
pub(crate) fn open(dir: &Path) -> Journal {
    let (journal, notices) = open_any(dir);
    assert_eq!(notices, [], "an intact journal gives no notice");
    journal
}

pub(crate) fn open_any(dir: &Path) -> (Journal, Vec<Notice>) {
    let Opened { buffer, reader, store, loaded, notices } = belay_journal::open(dir).unwrap();
    (Journal { buffer, reader, store, loaded }, notices)
}

impl Journal {
    /// Appends a batch, which must succeed.
    pub(crate) fn append(&mut self, mut batch: Batch) -> u64 {
        let number = self.buffer.append(&mut batch).unwrap();
        assert!(batch.is_empty(), "an appended batch is taken");
        number
    }

    /// Brings every batch into the database.
    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        match self.buffer.begin_flush() {
            Some(job) => {
                let done = self.store.flush(job);
                self.buffer.end_flush(done)
            }
            None => Ok(()),
        }
    }

    /// Appends a batch and flushes it.
    pub(crate) fn commit(&mut self, batch: &Batch) -> Result<(), Error> {
        self.buffer.append(&mut batch.clone())?;
        self.flush()
    }

    pub(crate) fn query(&mut self, query: &Query) -> Rows {
        self.try_query(query).unwrap()
    }

    pub(crate) fn try_query(&mut self, query: &Query) -> Result<Rows, Error> {
        let ticket = self.buffer.begin_read();
        match self.reader.run(query) {
            Ok(found) => Ok(self.buffer.end_read(ticket, found)),
            Err(error) => {
                self.buffer.cancel_read(ticket);
                Err(error)
            }
        }
    }

    pub(crate) fn task(&mut self, id: &str) -> Option<TaskRow> {
        match self.query(&Query::Tasks(vec![id.to_owned()])) {
            Rows::Tasks(mut tasks) => tasks.pop(),
            other => panic!("{other:?}"),
        }
    }

    /// The tasks that match, of as many pages as it takes.
    pub(crate) fn tasks(&mut self, filter: &TaskFilter) -> Vec<TaskRow> {
        let mut all = Vec::new();
        let mut filter = filter.clone();
        loop {
            let Rows::List(page) = self.query(&Query::List(filter.clone())) else { panic!() };
            filter.limit -= page.tasks.len();
            all.extend(page.tasks);
            filter.before = page.floor;
            if filter.before.is_none() || filter.limit == 0 {
                return all;
            }
        }
    }

    pub(crate) fn all_tasks(&mut self) -> Vec<TaskRow> {
        self.tasks(&TaskFilter { limit: usize::MAX, ..TaskFilter::default() })
    }

    /// The task with this token. The daemon finds it by the tokens that it loaded.
    pub(crate) fn task_by_token(&mut self, token: &str) -> Option<TaskRow> {
        let mut tasks = self.all_tasks().into_iter().filter(|task| task.token.as_deref() == Some(token));
        let found = tasks.next();
        assert_eq!(tasks.next(), None, "a token is unique");
        found
    }

    /// Live tasks, oldest first.
    pub(crate) fn live(&mut self) -> Vec<TaskRow> {
        let filter = TaskFilter { ended: Some(false), limit: usize::MAX, ..TaskFilter::default() };
        let mut tasks = self.tasks(&filter);
        tasks.reverse();
        tasks
    }

    pub(crate) fn resolve(&mut self, prefix: &str, limit: usize) -> Vec<String> {
        match self.query(&Query::Prefix { prefix: prefix.to_owned(), scope: None, limit }) {
            Rows::Ids(ids) => ids,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn events(&mut self, after: u64, max: usize) -> EventPage {
        self.filtered_events(after, max, EventFilter::default())
    }

    pub(crate) fn filtered_events(&mut self, after: u64, max: usize, filter: EventFilter) -> EventPage {
        match self.query(&Query::Events { after, max, filter }) {
            Rows::Events(page) => page,
            other => panic!("{other:?}"),
        }
    }

    /// Every event, page by page.
    pub(crate) fn all_events(&mut self) -> EventPage {
        let mut all = self.events(0, usize::MAX);
        while all.next < all.last {
            let page = self.events(all.next, usize::MAX);
            assert!(page.next > all.next, "a page makes progress");
            all.next = page.next;
            all.events.extend(page.events);
        }
        all
    }

    pub(crate) fn counts(&mut self) -> Counts {
        let tasks = self.all_tasks();
        let count = |count: usize| u64::try_from(count).unwrap();
        let ended: Vec<_> = tasks.iter().filter(|task| task.ended_ms.is_some()).collect();
        Counts {
            live: count(tasks.len() - ended.len()),
            ended: count(ended.len()),
            output_bytes: ended.iter().map(|task| task.output_bytes).sum(),
            events: count(self.all_events().events.len()),
            first_event: self.buffer.first_event(),
            last_event: self.buffer.last_event(),
        }
    }

    /// What was loaded must be what queries find.
    pub(crate) fn assert_loaded(&mut self) {
        let counts = self.counts();
        assert_eq!((self.loaded.ended, self.loaded.output_bytes), (counts.ended, counts.output_bytes));
        assert_eq!(self.live(), self.loaded.live);
        let mut tasks = self.all_tasks();
        tasks.reverse();
        let token = |task: TaskRow| Some((task.token?, task.id));
        assert_eq!(tasks.into_iter().filter_map(token).collect::<Vec<_>>(), self.loaded.tokens);
        let events = self.all_events().events;
        assert_eq!(events[events.len().saturating_sub(1000)..], self.loaded.recent_events);
    }

    /// The documents of a kind that were loaded.
    pub(crate) fn docs(&self, kind: &str) -> BTreeMap<String, String> {
        self.loaded.docs.get(kind).cloned().unwrap_or_default()
    }
}

pub(crate) fn task(number: u64) -> TaskRow {
    TaskRow {
        id: format!("sh-{number:06}"),
        number,
        session: "se-1".to_owned(),
        started_ms: millis(number),
        body: format!("{{\"number\":{number}}}"),
        ..TaskRow::default()
    }
}

pub(crate) fn ended(number: u64, ended_ms: i64, output_bytes: u64) -> TaskRow {
    TaskRow { ended_ms: Some(ended_ms), output_bytes, ..task(number) }
}

pub(crate) fn event(seq: u64) -> EventRow {
    EventRow {
        seq,
        at_ms: millis(seq),
        kind: "task/started".to_owned(),
        task: Some(format!("sh-{seq:06}")),
        session: None,
        body: format!("{{\"seq\":{seq}}}"),
        tags: String::new(),
    }
}

/// A batch that puts these tasks.
pub(crate) fn put(tasks: impl IntoIterator<Item = TaskRow>) -> Batch {
    Batch { put: tasks.into_iter().collect(), ..Batch::default() }
}

/// A batch of events with these numbers.
pub(crate) fn happened(seqs: impl IntoIterator<Item = u64>) -> Batch {
    Batch { events: seqs.into_iter().map(event).collect(), ..Batch::default() }
}

pub(crate) fn millis(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Tasks 1..=count, ended, each with an event and a body of about a kilobyte; closed cleanly.
pub(crate) fn fill(dir: &Path, count: u64) {
    let mut journal = open(dir);
    for number in 1..=count {
        let mut row = ended(number, millis(number), 10);
        row.body = format!("{{\"number\":{number},\"pad\":\"{}\"}}", "p".repeat(1000));
        journal.commit(&Batch { put: vec![row], events: vec![event(number)], ..Batch::default() }).unwrap();
    }
}

/// A small deterministic generator; tests print its seed when they fail.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

pub(crate) fn doc(kind: &str, key: &str, body: Option<&str>) -> DocRow {
    DocRow { kind: kind.to_owned(), key: key.to_owned(), body: body.map(str::to_owned) }
}

pub(crate) fn documents<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
    pairs.into_iter().map(|(key, body)| (key.to_owned(), body.to_owned())).collect()
}
