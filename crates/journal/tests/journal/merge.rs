//! Queries at any point between appends and flushes, against a model that has neither.

use std::collections::BTreeMap;

use belay_journal::{
    Batch, EventFilter, EventPage, EventRow, ExpiredTask, FlushDone, FlushJob, Found, Query, ReadTicket,
    RowPredicate, Rows, TaskFilter, TaskPage, TaskRow, TaskRule,
};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::support::{Journal, ended, event, open, put, task};

const NOW_MS: i64 = 100;

/// What a journal holds, without a database.
#[derive(Debug, Clone, Default)]
struct Model {
    tasks: BTreeMap<String, TaskRow>,
    events: Vec<EventRow>,
}

fn has_tags(wanted: &[String], tags: &str) -> bool {
    wanted.iter().all(|tag| tags.split('/').any(|found| found == tag))
}

fn is_within(scope: Option<&str>, ids: &[Option<&str>], tags: &str) -> bool {
    scope.is_none_or(|scope| ids.contains(&Some(scope)) || tags.contains(&format!("/{scope}/")))
}

impl Model {
    fn apply(&mut self, batch: &Batch) {
        for id in &batch.removed {
            self.tasks.remove(id);
        }
        for task in batch.put.iter().filter(|task| !batch.removed.contains(&task.id)) {
            self.tasks.insert(task.id.clone(), task.clone());
        }
        self.events.extend(batch.events.iter().cloned());
    }

    /// An ended task keeps its end and its size while it is kept.
    fn keep_ends(&self, batch: &mut Batch) {
        for index in 0..batch.put.len() {
            let (before, rest) = batch.put.split_at_mut(index);
            let task = &mut rest[0];
            let earlier = before.iter().rev().find(|earlier| earlier.id == task.id);
            let earlier = earlier.or_else(|| self.tasks.get(&task.id));
            if let Some(TaskRow { ended_ms: Some(ended_ms), output_bytes, .. }) = earlier {
                (task.ended_ms, task.output_bytes) = (Some(*ended_ms), *output_bytes);
            }
        }
    }

    fn ended(&self) -> Vec<ExpiredTask> {
        let ended = |task: &TaskRow| {
            Some(ExpiredTask {
                id: task.id.clone(),
                number: task.number,
                session: task.session.clone(),
                tags: task.tags.clone(),
                output_bytes: task.output_bytes,
                ended_ms: task.ended_ms?,
            })
        };
        let mut tasks: Vec<_> = self.tasks.values().filter_map(ended).collect();
        tasks.sort_by_key(|task| (task.ended_ms, task.number));
        tasks
    }

    fn answer(&self, query: &Query) -> Rows {
        match query {
            Query::Tasks(ids) => {
                Rows::Tasks(ids.iter().filter_map(|id| self.tasks.get(id).cloned()).collect())
            }
            Query::Prefix { prefix, scope, limit } => {
                let tasks = self.tasks.values().filter(|task| {
                    task.id.starts_with(prefix) && is_within(scope.as_deref(), &[Some(&task.id)], &task.tags)
                });
                Rows::Ids(tasks.map(|task| task.id.clone()).take(*limit).collect())
            }
            Query::List(filter) => Rows::List(self.list(filter)),
            Query::Events { after, max, filter } => Rows::Events(self.page(*after, *max, filter)),
            Query::Expired(rule) => Rows::Expired(self.expired(rule)),
        }
    }

    fn list(&self, filter: &TaskFilter) -> TaskPage {
        let is_same =
            |wanted: &Option<String>, found: Option<&String>| wanted.is_none() || wanted.as_ref() == found;
        let matches = |task: &&TaskRow| {
            filter.ended.is_none_or(|ended| ended == task.ended_ms.is_some())
                && filter.before.is_none_or(|before| task.number < before)
                && is_same(&filter.session, Some(&task.session))
                && is_same(&filter.parent, task.parent.as_ref())
                && is_same(&filter.name, task.name.as_ref())
                && filter.ended_before_ms.is_none_or(|at| task.ended_ms.is_some_and(|ended| ended < at))
                && (filter.predicate.is_none() || task.body.contains('x'))
                && is_within(filter.scope.as_deref(), &[Some(&task.id)], &task.tags)
                && has_tags(&filter.tags, &task.tags)
        };
        let mut tasks: Vec<_> = self.tasks.values().filter(matches).cloned().collect();
        tasks.sort_by_key(|task| std::cmp::Reverse(task.number));
        let is_cut = tasks.len() > filter.limit;
        tasks.truncate(filter.limit);
        let floor = tasks.last().map(|task| task.number).filter(|_| is_cut);
        TaskPage { tasks, floor }
    }

    fn page(&self, after: u64, max: usize, filter: &EventFilter) -> EventPage {
        let is_type = |event: &EventRow| {
            let matches = |pattern: &String| match pattern.strip_suffix('*') {
                Some(prefix) => event.kind.starts_with(prefix),
                None => event.kind == *pattern,
            };
            filter.types.is_empty() || filter.types.iter().any(matches)
        };
        let matches = |event: &&EventRow| {
            event.seq > after
                && (filter.task.is_none() || filter.task == event.task)
                && (filter.session.is_none() || filter.session == event.session)
                && is_type(event)
                && is_within(
                    filter.scope.as_deref(),
                    &[event.task.as_deref(), event.session.as_deref()],
                    &event.tags,
                )
                && has_tags(&filter.tags, &event.tags)
        };
        let events: Vec<_> = self.events.iter().filter(matches).take(max).cloned().collect();
        let last = u64::try_from(self.events.len()).unwrap();
        let next =
            if events.len() < max { last.max(after) } else { events.last().map_or(after, |event| event.seq) };
        EventPage { events, next, first: 1, last }
    }

    /// By the totals of now, whatever those of the rule were.
    fn expired(&self, rule: &TaskRule) -> Vec<ExpiredTask> {
        let mut kept = self.ended();
        let mut expired = Vec::new();
        while let Some(oldest) = kept.first() {
            let bytes: u64 = kept.iter().map(|task| task.output_bytes).sum();
            let is_expired = rule.max_count.is_some_and(|max| u64::try_from(kept.len()).unwrap() > max)
                || rule.max_output_bytes.is_some_and(|max| bytes > max)
                || rule.max_age_ms.is_some_and(|max| NOW_MS - oldest.ended_ms > i64::try_from(max).unwrap());
            if !is_expired || expired.len() == rule.limit {
                break;
            }
            expired.push(kept.remove(0));
        }
        expired
    }
}

#[derive(Debug, Clone)]
enum Step {
    /// Events are numbered when the batch is appended.
    Append(Batch),
    BeginFlush,
    WriteFlush,
    EndFlush,
    BeginRead(Query),
    RunRead(Index),
    EndRead(Index),
    CancelRead(Index),
}

fn some_scope() -> impl Strategy<Value = Option<String>> {
    option::weighted(0.3, select(vec!["sh-000001", "ag-1", "se-1", "none"]).prop_map(str::to_owned))
}

fn some_tags() -> impl Strategy<Value = String> {
    let all = vec!["", "/ag-1/", "/ag-1/sh-000001/", "/ag-12/", "/se-1/ag-1/@team=web/", "/@team=web/@a=1/"];
    select(all).prop_map(str::to_owned)
}

fn some_wanted_tags() -> impl Strategy<Value = Vec<String>> {
    let tag = select(vec!["@team=web", "@a=1", "@a="]).prop_map(str::to_owned);
    prop_oneof![3 => Just(Vec::new()), 1 => prop::collection::vec(tag, 1..3)]
}

fn some_session() -> impl Strategy<Value = String> {
    select(vec!["se-1", "se-2"]).prop_map(str::to_owned)
}

fn some_id() -> impl Strategy<Value = String> {
    (1..14_u64).prop_map(|number| task(number).id)
}

fn some_task() -> impl Strategy<Value = TaskRow> {
    let labels = (some_session(), option::of(some_id()), option::of(Just("build".to_owned())));
    let end = (option::of(0..NOW_MS), 0..50_u64);
    // Large bodies make the buffer drop flushed batches.
    let body = prop_oneof![8 => 0..3_usize, 1 => Just(600 * 1024)];
    (1..14_u64, labels, end, some_tags(), body).prop_map(|(number, labels, end, tags, body)| {
        let ((session, parent, name), (ended_ms, output_bytes)) = (labels, end);
        let body = "x".repeat(body);
        TaskRow { session, parent, name, ended_ms, output_bytes, tags, body, ..task(number) }
    })
}

fn some_event() -> impl Strategy<Value = EventRow> {
    let kind = select(vec!["task.started", "task.ended", "session.opened"]);
    (kind, option::of(some_id()), option::of(some_session()), some_tags()).prop_map(
        |(kind, task, session, tags)| EventRow { kind: kind.to_owned(), task, session, tags, ..event(0) },
    )
}

fn some_batch() -> impl Strategy<Value = Batch> {
    let rows = |most| prop::collection::vec(some_task(), 0..most);
    let removed = prop::collection::vec(some_id(), 0..3);
    (rows(4), prop::collection::vec(some_event(), 0..4), removed).prop_map(|(tasks, events, removed)| Batch {
        events,
        removed,
        ..put(tasks)
    })
}

fn some_list() -> impl Strategy<Value = TaskFilter> {
    let labels = (
        option::weighted(0.3, some_session()),
        option::weighted(0.2, some_id()),
        option::weighted(0.2, Just("build".to_owned())),
    );
    let predicate = option::weighted(0.2, Just(RowPredicate::new(|task| task.body.contains('x'))));
    let page = (option::of(any::<bool>()), option::weighted(0.3, 1..14_u64), 0..9_usize);
    let end = option::weighted(0.2, 0..NOW_MS);
    (page, labels, end, predicate, some_scope(), some_wanted_tags()).prop_map(
        |(page, labels, ended_before_ms, predicate, scope, tags)| {
            let ((ended, before, limit), (session, parent, name)) = (page, labels);
            TaskFilter {
                ended,
                ended_before_ms,
                before,
                limit,
                session,
                parent,
                name,
                scope,
                tags,
                predicate,
                max_examined: None,
            }
        },
    )
}

fn some_events_query() -> impl Strategy<Value = Query> {
    let types = prop::collection::vec(select(vec!["task.*", "task.ended", "session.opened"]), 0..3);
    let about = (option::weighted(0.2, some_id()), option::weighted(0.2, some_session()));
    let filter = (about, types, some_scope(), some_wanted_tags());
    (0..30_u64, 0..9_usize, filter).prop_map(|(after, max, ((task, session), types, scope, tags))| {
        let types = types.into_iter().map(str::to_owned).collect();
        Query::Events { after, max, filter: EventFilter { task, session, types, scope, tags } }
    })
}

fn some_rule() -> impl Strategy<Value = TaskRule> {
    (option::of(0..120_u64), option::of(0..9_u64), option::of(0..200_u64), 0..9_usize).prop_map(
        |(max_age_ms, max_count, max_output_bytes, limit)| TaskRule {
            now_ms: NOW_MS,
            max_age_ms,
            max_count,
            max_output_bytes,
            limit,
            count: 0,
            bytes: 0,
            after: None,
        },
    )
}

fn some_query() -> impl Strategy<Value = Query> {
    let prefix = select(vec!["", "sh-", "sh-00000", "sh-00001", "x"]).prop_map(str::to_owned);
    prop_oneof![
        prop::collection::vec(some_id(), 0..4).prop_map(Query::Tasks),
        (prefix, some_scope(), 0..9_usize).prop_map(|(prefix, scope, limit)| Query::Prefix {
            prefix,
            scope,
            limit
        }),
        some_list().prop_map(Query::List),
        some_events_query(),
        some_rule().prop_map(Query::Expired),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => some_batch().prop_map(Step::Append),
        2 => Just(Step::BeginFlush),
        2 => Just(Step::WriteFlush),
        2 => Just(Step::EndFlush),
        4 => some_query().prop_map(Step::BeginRead),
        3 => any::<Index>().prop_map(Step::RunRead),
        3 => any::<Index>().prop_map(Step::EndRead),
        1 => any::<Index>().prop_map(Step::CancelRead),
    ];
    prop::collection::vec(step, 1..60)
}

/// A query that has begun.
struct Read {
    ticket: ReadTicket,
    /// The last batch before it.
    begun: u64,
    query: Query,
    found: Option<Found>,
}

#[derive(Default)]
enum Flush {
    #[default]
    None,
    Begun(FlushJob),
    Written(FlushDone),
}

struct History {
    journal: Journal,
    model: Model,
    reads: Vec<Read>,
    flush: Flush,
    last_batch: u64,
}

impl History {
    fn take(&mut self, index: Index) -> Option<Read> {
        (!self.reads.is_empty()).then(|| self.reads.swap_remove(index.index(self.reads.len())))
    }

    fn begin(&mut self, query: Query) {
        let query = match query {
            Query::Expired(rule) => {
                let ended = self.model.ended();
                let count = u64::try_from(ended.len()).unwrap();
                let bytes = ended.iter().map(|task| task.output_bytes).sum();
                Query::Expired(TaskRule { count, bytes, ..rule })
            }
            other => other,
        };
        let ticket = self.journal.buffer.begin_read();
        self.reads.push(Read { ticket, begun: self.last_batch, query, found: None });
    }

    fn run(&mut self, read: &mut Read) {
        if read.found.is_none() {
            read.found = Some(self.journal.reader.run(&read.query).unwrap());
        }
    }

    fn end(&mut self, mut read: Read) -> Result<(), TestCaseError> {
        self.run(&mut read);
        let found = read.found.unwrap();
        let is_late = found.snapshot() > read.begun;
        let rows = self.journal.buffer.end_read(read.ticket, found);
        let expected = self.model.answer(&read.query);
        match (&rows, &expected) {
            // The totals are older than the snapshot: rather too few tasks expire.
            (Rows::Expired(rows), Rows::Expired(expected)) if is_late => {
                prop_assert!(expected.starts_with(rows), "{rows:?}, {expected:?}: {:?}", read.query);
            }
            _ => prop_assert_eq!(rows, expected, "{:?}", read.query),
        }
        Ok(())
    }

    fn perform(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Append(mut batch) => {
                for (seq, event) in (self.journal.buffer.last_event() + 1..).zip(&mut batch.events) {
                    event.seq = seq;
                }
                self.model.keep_ends(&mut batch);
                self.model.apply(&batch);
                self.last_batch = self.journal.append(batch);
            }
            Step::BeginFlush => {
                if let Some(job) = self.journal.buffer.begin_flush() {
                    self.flush = Flush::Begun(job);
                }
            }
            Step::WriteFlush => {
                self.flush = match std::mem::take(&mut self.flush) {
                    Flush::Begun(job) => Flush::Written(self.journal.store.flush(job)),
                    other => other,
                };
            }
            Step::EndFlush => match std::mem::take(&mut self.flush) {
                Flush::Written(done) => self.journal.buffer.end_flush(done).unwrap(),
                other => self.flush = other,
            },
            Step::BeginRead(query) => self.begin(query),
            Step::RunRead(index) => {
                if let Some(mut read) = self.take(index) {
                    self.run(&mut read);
                    self.reads.push(read);
                }
            }
            Step::EndRead(index) => {
                if let Some(read) = self.take(index) {
                    self.end(read)?;
                }
            }
            Step::CancelRead(index) => {
                if let Some(read) = self.take(index) {
                    self.journal.buffer.cancel_read(read.ticket);
                }
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whenever a read begins, takes its snapshot and ends, its result is that of the moment it
    /// ends.
    #[test]
    fn merged_result_equals_model(steps in steps()) {
        let dir = tempfile::tempdir().unwrap();
        let mut history = History {
            journal: open(dir.path()),
            model: Model::default(),
            reads: Vec::new(),
            flush: Flush::None,
            last_batch: 0,
        };
        for step in steps {
            history.perform(step)?;
        }
        for read in std::mem::take(&mut history.reads) {
            history.end(read)?;
        }
    }
}

/// The totals are of the moment a read begins. A removal that reaches the snapshot before it is
/// taken must not make further tasks expire.
#[test]
fn removal_before_snapshot_expires_no_further_task() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path());
    journal.commit(&put([ended(1, 1, 10), ended(2, 2, 10), ended(3, 3, 10)])).unwrap();
    let by_count = TaskRule {
        now_ms: NOW_MS,
        max_age_ms: None,
        max_count: Some(2),
        max_output_bytes: None,
        limit: 9,
        count: 3,
        bytes: 30,
        after: None,
    };
    let by_size = TaskRule { max_count: None, max_output_bytes: Some(20), ..by_count };
    let reads = [by_count, by_size].map(|rule| (journal.buffer.begin_read(), Query::Expired(rule)));
    journal.commit(&Batch { removed: vec![task(1).id], ..Batch::default() }).unwrap();
    for (ticket, query) in reads {
        let found = journal.reader.run(&query).unwrap();
        assert_eq!(found.snapshot(), 2);
        assert_eq!(journal.buffer.end_read(ticket, found), Rows::Expired(Vec::new()), "{query:?}");
    }
}
