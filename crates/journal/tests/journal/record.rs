//! Batches, lookups, lists, counts: the record says what it was given.

use belay_journal::{Batch, Counts, DocRow, Error, Field, Journal, TaskFilter, TaskRow};

use crate::support::{doc, documents, ended, event, happened, open, put, task};

fn ids(rows: &[TaskRow]) -> Vec<u64> {
    rows.iter().map(|row| row.number).collect()
}

fn page(journal: &Journal, filter: &TaskFilter) -> Vec<u64> {
    ids(&journal.tasks(filter).unwrap())
}

#[test]
fn what_is_put_comes_back_also_after_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let full = TaskRow {
        token: Some("t-1".to_owned()),
        parent: Some("ag-9".to_owned()),
        name: Some("naïve 'name' \0 \u{1f600}".to_owned()),
        started_ms: -5,
        output_bytes: u64::try_from(i64::MAX).unwrap(),
        ..ended(2, i64::MIN, 0)
    };
    let rows = [task(1), full.clone()];
    let mut journal = open(dir.path());
    journal.commit(&put(rows.clone())).unwrap();
    journal.commit(&happened(1..=3)).unwrap();
    let secret = journal.secret().unwrap();
    assert_ne!(secret, [0; 32]);
    for journal in [journal, open(dir.path())] {
        assert_eq!(journal.task("sh-000001").unwrap().as_ref(), Some(&rows[0]));
        assert_eq!(journal.task("sh-000002").unwrap().as_ref(), Some(&full));
        assert_eq!(journal.task("sh-00000").unwrap(), None);
        assert_eq!(journal.task_by_token("t-1").unwrap().as_ref(), Some(&full));
        assert_eq!(journal.task_by_token("").unwrap(), None);
        assert_eq!(journal.events(0, 9).unwrap().events, [event(1), event(2), event(3)]);
        assert_eq!((journal.last_event(), journal.next_number()), (3, 3));
        assert!(journal.file_bytes() > 0);
        drop(journal);
    }
    assert_eq!(open(dir.path()).secret().unwrap(), secret);
}

#[test]
fn a_task_put_again_is_written_over() {
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
        task(1),
    ];
    for step in steps {
        journal.commit(&put([step.clone()])).unwrap();
        assert_eq!(journal.task(&step.id).unwrap().as_ref(), Some(&step));
        let counts = journal.counts();
        let (live, done) = if step.ended_ms.is_some() { (0, 1) } else { (1, 0) };
        assert_eq!((counts.live, counts.ended), (live, done));
        assert_eq!(counts.output_bytes, if done == 1 { step.output_bytes } else { 0 });
    }
}

#[test]
fn a_batch_is_whole_or_absent() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path());
    journal.commit(&put([TaskRow { token: Some("t".to_owned()), ..task(1) }])).unwrap();
    let before = journal.counts();
    let clash = Batch {
        put: vec![task(2), TaskRow { token: Some("t".to_owned()), ..task(3) }],
        events: vec![event(1)],
        docs: vec![doc("lane", "a", Some("held"))],
        ..Batch::default()
    };
    let refused = journal.commit(&clash).unwrap_err();
    assert!(
        matches!(&refused, Error::Duplicate { field: Field::Token, value } if value == "t"),
        "{refused:?}"
    );
    assert_eq!(journal.counts(), before);
    assert_eq!(journal.task("sh-000002").unwrap(), None);
    assert_eq!(journal.docs("lane").unwrap(), documents([]));
    assert_eq!((journal.last_event(), journal.next_number()), (0, 2));
    drop(journal);
    assert_eq!(open(dir.path()).counts(), before);
}

#[test]
fn a_token_is_unique_while_its_task_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path());
    let with = |number, token: &str| TaskRow { token: Some(token.to_owned()), ..task(number) };
    journal.commit(&put([with(1, "a"), task(2), task(3)])).unwrap();
    journal.commit(&put([with(2, "a")])).unwrap_err();
    // Removed and given on in the same batch.
    let hand_over = Batch { removed: vec!["sh-000001".to_owned()], ..put([with(2, "a")]) };
    journal.commit(&hand_over).unwrap();
    assert_eq!(journal.task_by_token("a").unwrap().unwrap().number, 2);
    // Given up and taken.
    journal.commit(&put([task(2), with(3, "a")])).unwrap();
    assert_eq!(journal.task_by_token("a").unwrap().unwrap().number, 3);
}

#[test]
fn ids_and_numbers_belong_to_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path());
    journal.commit(&put([task(1)])).unwrap();
    let refused = journal.commit(&put([TaskRow { number: 2, ..task(1) }])).unwrap_err();
    assert!(matches!(refused, Error::Duplicate { field: Field::Id, .. }), "{refused:?}");
    let refused = journal.commit(&put([TaskRow { id: "sh-x".to_owned(), ..task(1) }])).unwrap_err();
    assert!(matches!(refused, Error::Duplicate { field: Field::Number, .. }), "{refused:?}");
    assert_eq!(refused.to_string(), "another task has the number \"1\"");
    let too_big = journal.commit(&put([TaskRow { number: u64::MAX, id: "sh-y".to_owned(), ..task(1) }]));
    assert!(matches!(too_big.unwrap_err(), Error::Sql { .. }));
    assert_eq!(journal.next_number(), 2);
}

#[test]
fn removed_wins_over_put_and_numbers_are_not_used_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path());
    journal.commit(&put([task(1)])).unwrap();
    let gone = ["sh-000001", "sh-000001", "sh-000005", "sh-unknown"].map(str::to_owned).to_vec();
    journal.commit(&Batch { removed: gone, ..put([task(1), task(5)]) }).unwrap();
    assert_eq!(journal.counts(), Counts { first_event: 1, ..Counts::default() });
    assert_eq!(journal.next_number(), 6);
    drop(journal);
    assert_eq!(open(dir.path()).next_number(), 6);
}

// proves W4: events are numbered without a hole and replayable from any number.
#[test]
fn an_event_out_of_sequence_is_refused_with_its_batch() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path());
    journal.commit(&happened(1..=2)).unwrap();
    for wrong in [vec![2], vec![4], vec![3, 3], vec![3, 5], vec![4, 3], vec![0], vec![u64::MAX]] {
        let batch = Batch { put: vec![task(1)], ..happened(wrong.clone()) };
        let refused = journal.commit(&batch).unwrap_err();
        assert!(matches!(refused, Error::Sequence { .. }), "{wrong:?}: {refused:?}");
        assert_eq!(journal.task("sh-000001").unwrap(), None);
    }
    journal.commit(&happened(3..=5)).unwrap();
    for after in 0..=6 {
        let page = journal.events(after, 2).unwrap();
        let expected: Vec<_> = (after + 1..=5).take(2).map(event).collect();
        assert_eq!((page.events, page.first, page.last), (expected, 1, 5));
    }
    assert_eq!(journal.events(u64::MAX, usize::MAX).unwrap().events, []);
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
    assert_eq!(ids(&journal.live().unwrap()), (1..=30).step_by(2).collect::<Vec<_>>());
    let all = TaskFilter { limit: usize::MAX, ..TaskFilter::default() };
    assert_eq!(page(&journal, &all), (1..=30).rev().collect::<Vec<_>>());
    let ended = TaskFilter { ended: Some(true), limit: 3, before: Some(20), ..TaskFilter::default() };
    assert_eq!(page(&journal, &ended), [18, 16, 14]);
    let live = TaskFilter { ended: Some(false), before: Some(u64::MAX), limit: 2, ..TaskFilter::default() };
    assert_eq!(page(&journal, &live), [29, 27]);
    assert_eq!(
        page(&journal, &TaskFilter { session: Some("se-2".to_owned()), limit: 3, ..all.clone() }),
        [29, 26, 23]
    );
    assert_eq!(
        page(&journal, &TaskFilter { parent: Some("ag-1".to_owned()), ..all.clone() }),
        [30, 25, 20, 15, 10, 5]
    );
    let narrow =
        TaskFilter { parent: Some("ag-1".to_owned()), name: Some("build".to_owned()), ..all.clone() };
    assert_eq!(page(&journal, &narrow), [20]);
    assert_eq!(page(&journal, &TaskFilter { session: Some("' OR 1".to_owned()), ..all.clone() }), []);
    assert_eq!(page(&journal, &TaskFilter { limit: 0, ..all }), []);
}

#[test]
fn a_prefix_means_only_itself() {
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
        assert_eq!(journal.resolve(prefix, 100).unwrap(), expected, "{prefix:?}");
        expected.truncate(2);
        assert_eq!(journal.resolve(prefix, 2).unwrap(), expected, "{prefix:?}");
    }
}

#[test]
fn a_document_is_the_last_word_on_its_key_noted_or_settled() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path());
    let write = |docs: &[DocRow]| Batch { docs: docs.to_vec(), ..Batch::default() };
    journal.commit(&write(&[doc("lane", "a", Some("1")), doc("session", "a", Some("other kind"))])).unwrap();
    let mut noted =
        write(&[doc("lane", "a", Some("2")), doc("lane", "b", Some("3")), doc("lane", "b", Some("4"))]);
    journal.note(&mut noted).unwrap();
    let both = documents([("a", "2"), ("b", "4")]);
    assert_eq!(journal.docs("lane").unwrap(), both);
    journal.settle().unwrap();
    assert_eq!(journal.docs("lane").unwrap(), both);
    journal.note(&mut write(&[doc("lane", "a", None), doc("lane", "never there", None)])).unwrap();
    assert_eq!(journal.docs("lane").unwrap(), documents([("b", "4")]));
    drop(journal);
    // Also for the next program, which finds the note.
    let journal = open(dir.path());
    assert_eq!(journal.docs("lane").unwrap(), documents([("b", "4")]));
    assert_eq!(journal.docs("session").unwrap(), documents([("a", "other kind")]));
}
