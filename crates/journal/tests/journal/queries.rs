//! Batches, lookups and lists: queries return what was put.

use belay_journal::{
    Batch, DocRow, Error, EventFilter, EventRow, EventRule, Field, Query, Rows, TaskFilter, TaskRow,
};

use crate::support::{Counts, Journal, doc, documents, ended, event, happened, open, put, task};

fn ids(rows: &[TaskRow]) -> Vec<u64> {
    rows.iter().map(|row| row.number).collect()
}

fn page(journal: &mut Journal, filter: &TaskFilter) -> Vec<u64> {
    ids(&journal.tasks(filter))
}

#[test]
fn rows_survive_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let full = TaskRow {
        token: Some("t-1".to_owned()),
        parent: Some("ag-9".to_owned()),
        name: Some("naïve 'name' \0 \u{1f600}".to_owned()),
        started_ms: -5,
        output_bytes: u64::try_from(i64::MAX).unwrap(),
        tags: "/ag-1/ag-9/".to_owned(),
        ..ended(2, i64::MIN, 0)
    };
    let rows = [task(1), full.clone()];
    let mut journal = open(dir.path());
    journal.commit(&put(rows.clone())).unwrap();
    journal.commit(&happened(1..=3)).unwrap();
    let secret = journal.loaded.secret;
    assert_ne!(secret, [0; 32]);
    for is_reopened in [false, true] {
        if is_reopened {
            drop(journal);
            journal = open(dir.path());
            journal.assert_loaded();
        }
        assert_eq!(journal.task("sh-000001").as_ref(), Some(&rows[0]));
        assert_eq!(journal.task("sh-000002").as_ref(), Some(&full));
        assert_eq!(journal.task("sh-00000"), None);
        assert_eq!(journal.task_by_token("t-1").as_ref(), Some(&full));
        assert_eq!(journal.task_by_token(""), None);
        assert_eq!(journal.events(0, 9).events, [event(1), event(2), event(3)]);
        assert_eq!((journal.buffer.last_event(), journal.buffer.next_number()), (3, 3));
        assert!(journal.buffer.file_bytes() > 0);
    }
    assert_eq!(journal.loaded.secret, secret);
    assert_eq!(journal.loaded.tokens, [("t-1".to_owned(), full.id)]);
}

#[test]
fn task_put_again_is_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path());
    journal.commit(&put([task(1)])).unwrap();
    let steps = [
        TaskRow { body: "{}".to_owned(), output_bytes: 7, ..task(1) },
        TaskRow {
            name: Some("n".to_owned()),
            session: "se-2".to_owned(),
            token: Some("t".to_owned()),
            ..task(1)
        },
        ended(1, 50, 9),
        ended(1, 50, 11),
        TaskRow { tags: "/ag-1/".to_owned(), ..ended(1, 50, 11) },
        task(1),
    ];
    for step in steps {
        journal.commit(&put([step.clone()])).unwrap();
        assert_eq!(journal.task(&step.id).as_ref(), Some(&step));
        let counts = journal.counts();
        let (live, done) = if step.ended_ms.is_some() { (0, 1) } else { (1, 0) };
        assert_eq!((counts.live, counts.ended), (live, done));
        assert_eq!(counts.output_bytes, if done == 1 { step.output_bytes } else { 0 });
    }
}

/// The daemon prevents this. A flush that meets it all the same loses nothing else.
#[test]
fn duplicate_token_is_reported_and_loses_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path());
    journal.commit(&put([TaskRow { token: Some("t".to_owned()), ..task(1) }])).unwrap();
    let clash = Batch {
        put: vec![task(2), TaskRow { token: Some("t".to_owned()), ..task(3) }],
        events: vec![event(1)],
        docs: vec![doc("lane", "a", Some("held"))],
        ..Batch::default()
    };
    journal.append(clash);
    journal.append(Batch { put: vec![task(4)], ..happened([2]) });
    let refused = journal.flush().unwrap_err();
    assert!(
        matches!(&refused, Error::Duplicate { field: Field::Token, value } if value == "t"),
        "{refused:?}"
    );
    assert!(journal.buffer.is_flushed(), "it is not tried again");
    journal.flush().unwrap();
    journal.append(Batch { put: vec![task(5)], ..happened([3]) });
    journal.flush().unwrap();
    drop(journal);
    let mut journal = open(dir.path());
    assert_eq!(ids(&journal.all_tasks()), [5, 4, 3, 2, 1]);
    assert_eq!(journal.task("sh-000003"), Some(task(3)), "written without the token");
    assert_eq!(journal.task_by_token("t").unwrap().number, 1);
    assert_eq!(journal.docs("lane"), documents([("a", "held")]));
    assert_eq!((journal.buffer.last_event(), journal.buffer.next_number()), (3, 6));
}

#[test]
fn refused_append_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path());
    journal.commit(&put([TaskRow { token: Some("t".to_owned()), ..task(1) }])).unwrap();
    let before = journal.counts();
    let wrong = Batch {
        put: vec![task(2), task(3)],
        events: vec![event(2)],
        docs: vec![doc("lane", "a", Some("held"))],
        ..Batch::default()
    };
    let mut batch = wrong.clone();
    let refused = journal.buffer.append(&mut batch).unwrap_err();
    assert!(matches!(refused, Error::Sequence { expected: 1, found: 2 }), "{refused:?}");
    assert_eq!(batch, wrong, "a refused batch stays with its owner");
    assert!(journal.buffer.is_flushed());
    assert_eq!(journal.counts(), before);
    assert_eq!(journal.task("sh-000002"), None);
    assert_eq!((journal.buffer.last_event(), journal.buffer.next_number()), (0, 2));
    drop(journal);
    let mut journal = open(dir.path());
    assert_eq!(journal.counts(), before);
    assert_eq!(journal.docs("lane"), documents([]));
}

#[test]
fn token_is_unique_while_its_task_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path());
    let with = |number, token: &str| TaskRow { token: Some(token.to_owned()), ..task(number) };
    journal.commit(&put([with(1, "a"), task(2), task(3)])).unwrap();
    journal.commit(&put([with(2, "a")])).unwrap_err();
    assert_eq!(journal.task_by_token("a").unwrap().number, 1);
    // Removed and reused in the same batch.
    let hand_over = Batch { removed: vec!["sh-000001".to_owned()], ..put([with(2, "a")]) };
    journal.commit(&hand_over).unwrap();
    assert_eq!(journal.task_by_token("a").unwrap().number, 2);
    // Given up and taken.
    journal.commit(&put([task(2), with(3, "a")])).unwrap();
    assert_eq!(journal.task_by_token("a").unwrap().number, 3);
    // Removed in one batch and reused in a later one, which reach the database together.
    journal.append(Batch { removed: vec!["sh-000003".to_owned()], ..Batch::default() });
    journal.append(put([with(4, "a")]));
    assert_eq!(journal.task_by_token("a").unwrap().number, 4);
    journal.flush().unwrap();
    assert_eq!(journal.task_by_token("a").unwrap().number, 4);
}

#[test]
fn duplicate_id_or_number_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path());
    journal.commit(&put([task(1)])).unwrap();
    let refused = journal.commit(&put([TaskRow { number: 2, ..task(1) }])).unwrap_err();
    assert!(matches!(refused, Error::Duplicate { field: Field::Id, .. }), "{refused:?}");
    let refused = journal.commit(&put([TaskRow { id: "sh-x".to_owned(), ..task(1) }])).unwrap_err();
    assert!(matches!(refused, Error::Duplicate { field: Field::Number, .. }), "{refused:?}");
    assert_eq!(refused.to_string(), "another task has the number \"1\"");
    drop(journal);
    let mut journal = open(dir.path());
    assert_eq!(journal.all_tasks(), [task(1)], "the task that was first is unchanged");
    let too_big = journal.commit(&put([TaskRow { number: u64::MAX, id: "sh-y".to_owned(), ..task(1) }]));
    assert!(matches!(too_big.unwrap_err(), Error::TooLarge { field: Field::Number, .. }));
    let too_big = journal.commit(&put([TaskRow { output_bytes: u64::MAX, ..task(1) }]));
    assert!(matches!(too_big.unwrap_err(), Error::TooLarge { field: Field::OutputBytes, .. }));
    assert_eq!(journal.buffer.next_number(), 2);
}

#[test]
fn removal_wins_and_numbers_stay_used() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path());
    journal.commit(&put([task(1)])).unwrap();
    let gone = ["sh-000001", "sh-000001", "sh-000005", "sh-unknown"].map(str::to_owned).to_vec();
    journal.commit(&Batch { removed: gone, ..put([task(1), task(5)]) }).unwrap();
    assert_eq!(journal.counts(), Counts { first_event: 1, ..Counts::default() });
    assert_eq!(journal.buffer.next_number(), 6);
    drop(journal);
    assert_eq!(open(dir.path()).buffer.next_number(), 6);
}

// proves W4: events are numbered without a gap and replayable from any number.
#[test]
fn event_out_of_sequence_refuses_its_batch() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path());
    journal.commit(&happened(1..=2)).unwrap();
    for wrong in [vec![2], vec![4], vec![3, 3], vec![3, 5], vec![4, 3], vec![0], vec![u64::MAX]] {
        let batch = Batch { put: vec![task(1)], ..happened(wrong.clone()) };
        let refused = journal.commit(&batch).unwrap_err();
        assert!(matches!(refused, Error::Sequence { .. }), "{wrong:?}: {refused:?}");
        assert_eq!(journal.task("sh-000001"), None);
    }
    journal.commit(&happened(3..=5)).unwrap();
    for after in 0..=6 {
        let page = journal.events(after, 2);
        let expected: Vec<_> = (after + 1..=5).take(2).map(event).collect();
        assert_eq!((page.events, page.first, page.last), (expected, 1, 5));
        assert_eq!(page.next, (after + 2).min(5).max(after));
    }
    let page = journal.events(u64::MAX, usize::MAX);
    assert_eq!((page.events, page.next), (vec![], u64::MAX));
    journal.commit(&Batch::default()).unwrap();
}

#[test]
fn lists_are_filtered_and_paged() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path());
    let rows = (1..=30).map(|number| TaskRow {
        session: format!("se-{}", number % 3),
        parent: (number % 5 == 0).then(|| "ag-1".to_owned()),
        name: (number % 4 == 0).then(|| "build".to_owned()),
        ..if number % 2 == 0 { ended(number, 1, 1) } else { task(number) }
    });
    journal.commit(&put(rows)).unwrap();
    assert_eq!(ids(&journal.live()), (1..=30).step_by(2).collect::<Vec<_>>());
    let all = TaskFilter { limit: usize::MAX, ..TaskFilter::default() };
    assert_eq!(page(&mut journal, &all), (1..=30).rev().collect::<Vec<_>>());
    let ended = TaskFilter { ended: Some(true), limit: 3, before: Some(20), ..TaskFilter::default() };
    assert_eq!(page(&mut journal, &ended), [18, 16, 14]);
    let live = TaskFilter { ended: Some(false), before: Some(u64::MAX), limit: 2, ..TaskFilter::default() };
    assert_eq!(page(&mut journal, &live), [29, 27]);
    assert_eq!(
        page(&mut journal, &TaskFilter { session: Some("se-2".to_owned()), limit: 3, ..all.clone() }),
        [29, 26, 23]
    );
    assert_eq!(
        page(&mut journal, &TaskFilter { parent: Some("ag-1".to_owned()), ..all.clone() }),
        [30, 25, 20, 15, 10, 5]
    );
    let narrow =
        TaskFilter { parent: Some("ag-1".to_owned()), name: Some("build".to_owned()), ..all.clone() };
    assert_eq!(page(&mut journal, &narrow), [20]);
    assert_eq!(page(&mut journal, &TaskFilter { session: Some("' OR 1".to_owned()), ..all.clone() }), []);
    assert_eq!(page(&mut journal, &TaskFilter { limit: 0, ..all }), []);
}

#[test]
fn prefix_has_no_special_characters() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path());
    let names = [
        "sh-a",
        "sh-a%",
        "sh-ab",
        "sh-a_",
        "sh-b",
        "SH-a",
        "sh-é1",
        "sh-é2",
        "sh-\u{10ffff}x",
        "sh-\0z",
        "%",
        "_",
        "\\",
    ];
    journal
        .commit(&put((1..).zip(names).map(|(number, id)| TaskRow { id: id.to_owned(), ..task(number) })))
        .unwrap();
    let prefixes = [
        "",
        "sh-",
        "sh-a",
        "sh-a%",
        "sh-a_",
        "%",
        "_",
        "\\",
        "sh-é",
        "sh-\u{10ffff}",
        "sh-\0",
        "'",
        "zz",
        "SH",
    ];
    for prefix in prefixes {
        let mut expected: Vec<String> =
            names.iter().filter(|id| id.starts_with(prefix)).map(ToString::to_string).collect();
        expected.sort();
        assert_eq!(journal.resolve(prefix, 100), expected, "{prefix:?}");
        expected.truncate(2);
        assert_eq!(journal.resolve(prefix, 2), expected, "{prefix:?}");
    }
}

/// Documents are only loaded at the start: each step is seen by the next daemon.
#[test]
fn last_document_of_a_key_counts() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path());
    let write = |docs: &[DocRow]| Batch { docs: docs.to_vec(), ..Batch::default() };
    journal.commit(&write(&[doc("lane", "a", Some("1")), doc("session", "a", Some("other kind"))])).unwrap();
    let appended =
        write(&[doc("lane", "a", Some("2")), doc("lane", "b", Some("3")), doc("lane", "b", Some("4"))]);
    let both = documents([("a", "2"), ("b", "4")]);
    journal.append(appended);
    drop(journal);
    let mut journal = open(dir.path());
    assert_eq!(journal.docs("lane"), both);
    journal.append(write(&[doc("lane", "a", Some("5"))]));
    journal.flush().unwrap();
    drop(journal);
    let mut journal = open(dir.path());
    assert_eq!(journal.docs("lane"), documents([("a", "5"), ("b", "4")]));
    journal.append(write(&[doc("lane", "a", None), doc("lane", "never there", None)]));
    drop(journal);
    let journal = open(dir.path());
    assert_eq!(journal.docs("lane"), documents([("b", "4")]));
    assert_eq!(journal.docs("session"), documents([("a", "other kind")]));
}

#[test]
fn scope_limits_tasks_ids_and_events() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path());
    let below = |number, tags: &str| TaskRow { tags: tags.to_owned(), ..task(number) };
    let rows = [
        task(1),
        below(2, "/sh-000001/"),
        below(3, "/sh-000001/sh-000002/"),
        // Its parent's id only begins alike.
        below(4, "/sh-0000012/"),
        below(5, "/se-1/"),
    ];
    let events = (1..).zip(&rows).map(|(seq, task)| EventRow {
        task: Some(task.id.clone()),
        session: (seq == 4).then(|| "se-1".to_owned()),
        tags: task.tags.clone(),
        ..event(seq)
    });
    journal.append(Batch { events: events.collect(), ..put(rows.clone()) });
    for is_flushed in [false, true] {
        assert_eq!(journal.buffer.is_flushed(), is_flushed);
        let cases: [(&str, &[u64], &[u64]); 4] = [
            ("sh-000001", &[1, 2, 3], &[1, 2, 3]),
            ("sh-000002", &[2, 3], &[2, 3]),
            ("se-1", &[5], &[4, 5]),
            ("none", &[], &[]),
        ];
        for (scope, tasks, seqs) in cases {
            let scope = Some(scope.to_owned());
            let filter = TaskFilter { scope: scope.clone(), limit: 9, ..TaskFilter::default() };
            let mut found = page(&mut journal, &filter);
            found.reverse();
            assert_eq!(found, tasks, "{scope:?}");
            let query = Query::Prefix { prefix: "sh-".to_owned(), scope: scope.clone(), limit: 9 };
            let ids = tasks.iter().map(|number| task(*number).id).collect();
            assert_eq!(journal.query(&query), Rows::Ids(ids), "{scope:?}");
            let page = journal.filtered_events(0, 9, EventFilter { scope, ..EventFilter::default() });
            assert_eq!(page.events.iter().map(|event| event.seq).collect::<Vec<_>>(), seqs);
            assert_eq!(page.next, 5);
        }
        journal.flush().unwrap();
    }
}

#[test]
fn event_types_match_exactly_or_by_group() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path());
    let kinds = ["task.started", "task.ended", "task", "tasks.x", "session.opened"];
    let events = (1..).zip(kinds).map(|(seq, kind)| EventRow { kind: kind.to_owned(), ..event(seq) });
    journal.append(Batch { events: events.collect(), ..Batch::default() });
    for is_flushed in [false, true] {
        assert_eq!(journal.buffer.is_flushed(), is_flushed);
        let cases: [(&[&str], &[u64]); 6] = [
            (&["task.ended"], &[2]),
            (&["task.*"], &[1, 2]),
            (&["task"], &[3]),
            (&["task.ended", "session.*"], &[2, 5]),
            (&["*"], &[1, 2, 3, 4, 5]),
            (&["nothing"], &[]),
        ];
        for (types, seqs) in cases {
            let types = types.iter().map(ToString::to_string).collect();
            let page = journal.filtered_events(0, 9, EventFilter { types, ..EventFilter::default() });
            assert_eq!(page.events.iter().map(|event| event.seq).collect::<Vec<_>>(), seqs);
        }
        journal.flush().unwrap();
    }
}

/// A filter that matches little must not make a query long: it returns how far it came.
#[test]
fn event_query_examines_a_bounded_number_of_rows() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path());
    journal.commit(&happened(1..=25_000)).unwrap();
    journal.append(happened(25_001..=25_002));
    let rare = || EventFilter { task: Some("sh-025001".to_owned()), ..EventFilter::default() };
    let mut after = 0;
    for next in [10_000, 20_000] {
        let page = journal.filtered_events(after, 5, rare());
        assert_eq!((page.events, page.next, page.last), (vec![], next, 25_002));
        after = next;
    }
    let page = journal.filtered_events(after, 5, rare());
    assert_eq!((page.events, page.next), (vec![event(25_001)], 25_002));
    // Expired events are not examined.
    let rule = EventRule { now_ms: 0, max_age_ms: None, max_count: Some(12_000), limit: usize::MAX };
    let expired = journal.store.expire_events(&rule).unwrap();
    assert_eq!((expired.removed, expired.first_event), (13_000, 13_001));
    let page = journal.filtered_events(0, 5, rare());
    assert_eq!((page.next, page.first), (23_000, 13_001), "the snapshot has it before the buffer does");
    journal.buffer.events_expired(expired.first_event);
    assert_eq!(journal.buffer.first_event(), 13_001);
}

#[test]
fn events_in_memory_end_where_batches_were_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path());
    let seqs = |journal: &Journal, after, max| {
        let events = journal.buffer.events_in_memory(after, max)?;
        Some(events.into_iter().map(|event| event.seq).collect::<Vec<_>>())
    };
    assert_eq!(seqs(&journal, 0, 9), Some(vec![]));
    journal.commit(&happened(1..=3)).unwrap();
    journal.append(happened(4..=4));
    assert_eq!(seqs(&journal, 0, 9), Some(vec![1, 2, 3, 4]), "flushed batches are kept for a while");
    assert_eq!(seqs(&journal, 2, 1), Some(vec![3]));
    assert_eq!(seqs(&journal, 9, 1), Some(vec![]));
    for number in 5..=8 {
        let row = TaskRow { body: "x".repeat(12 * 1024), ..task(number) };
        journal.commit(&Batch { put: vec![row], ..happened([number]) }).unwrap();
    }
    assert_eq!(seqs(&journal, 2, 9), None, "older than the batches that are kept");
    assert_eq!(seqs(&journal, 7, 9), Some(vec![8]));
    drop(journal);
    let journal = open(dir.path());
    assert_eq!(seqs(&journal, 7, 9), None, "a new daemon has no batches");
    assert_eq!(seqs(&journal, 8, 9), Some(vec![]));
}
