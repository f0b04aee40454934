//! Retention rules against a simple model.

use belay_journal::{Batch, EventRow, EventRule, Query, Rows, TaskRow, TaskRule};
use proptest::prelude::*;

use crate::support::{Journal, ended, event, happened, open, put, task};

const NOW_MS: i64 = 1000;

fn is_older(at_ms: i64, max_age_ms: Option<u64>) -> bool {
    max_age_ms.is_some_and(|max| NOW_MS - at_ms > i64::try_from(max).unwrap())
}

/// Removes the longest ended until every bound holds.
fn model(tasks: &[TaskRow], rule: &TaskRule) -> Vec<u64> {
    let mut kept: Vec<_> = tasks.iter().filter(|task| task.ended_ms.is_some()).collect();
    kept.sort_by_key(|task| (task.ended_ms, task.number));
    let mut gone = Vec::new();
    while let Some(oldest) = kept.first().copied() {
        let bytes: u64 = kept.iter().map(|task| task.output_bytes).sum();
        let too_many = rule.max_count.is_some_and(|max| u64::try_from(kept.len()).unwrap() > max);
        let too_much = rule.max_output_bytes.is_some_and(|max| bytes > max);
        if !(too_many || too_much || is_older(oldest.ended_ms.unwrap(), rule.max_age_ms)) {
            break;
        }
        gone.push(kept.remove(0).number);
    }
    gone.truncate(rule.limit);
    gone
}

fn some_tasks() -> impl Strategy<Value = Vec<TaskRow>> {
    let one = (proptest::option::weighted(0.8, 0i64..NOW_MS), 0u64..100);
    proptest::collection::vec(one, 0..25).prop_map(|rows| {
        (1..)
            .zip(rows)
            .map(|(number, (ended_ms, output_bytes))| TaskRow { ended_ms, output_bytes, ..task(number) })
            .collect()
    })
}

fn task_rule() -> impl Strategy<Value = TaskRule> {
    let bound = |max: u64| proptest::option::of(0..max);
    (bound(1200), bound(20), bound(800), 0usize..30).prop_map(
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

/// The numbers of the tasks that expire, with the totals as a daemon counts them.
fn expired(journal: &mut Journal, rule: TaskRule) -> Vec<u64> {
    let counts = journal.counts();
    let rule = TaskRule { count: counts.ended, bytes: counts.output_bytes, ..rule };
    match journal.query(&Query::Expired(rule)) {
        Rows::Expired(tasks) => tasks.into_iter().map(|task| task.number).collect(),
        other => panic!("{other:?}"),
    }
}

fn with_events(journal: &mut Journal, ages: &[i64]) {
    let events = (1..).zip(ages).map(|(seq, at_ms)| EventRow { at_ms: *at_ms, ..event(seq) }).collect();
    journal.commit(&Batch { events, ..Batch::default() }).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    // proves D8: retention selects ended tasks by rule, and never a live one.
    #[test]
    fn only_ended_tasks_expire_by_rule(tasks in some_tasks(), rule in task_rule()) {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = open(dir.path());
        journal.commit(&put(tasks.clone())).unwrap();
        let expired = expired(&mut journal, rule);
        prop_assert!(expired.iter().all(|number| tasks[usize::try_from(number - 1).unwrap()].ended_ms.is_some()));
        prop_assert_eq!(&expired, &model(&tasks, &rule));

        let removed = expired.into_iter().map(|number| task(number).id).collect();
        journal.commit(&Batch { removed, ..Batch::default() }).unwrap();
        let live: Vec<_> = tasks.iter().filter(|task| task.ended_ms.is_none()).cloned().collect();
        prop_assert_eq!(journal.live(), live);
        // The totals that a daemon counts are those that the next one loads.
        let counts = journal.counts();
        drop(journal);
        let mut journal = open(dir.path());
        prop_assert_eq!(journal.counts(), counts);
        journal.assert_loaded();
    }

    // proves W4: events expire by rule, and `first` tells the client.
    #[test]
    fn oldest_events_expire_first(
        ages in proptest::collection::vec(0i64..NOW_MS, 0..40),
        max_age_ms in proptest::option::of(0u64..1200),
        max_count in proptest::option::of(0u64..50),
        limit in 0usize..50,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = open(dir.path());
        with_events(&mut journal, &ages);
        let rule = EventRule { now_ms: NOW_MS, max_age_ms, max_count, limit };
        let total = u64::try_from(ages.len()).unwrap();
        let gone = (0u64..).zip(&ages).take(limit)
            .take_while(|(index, at_ms)| max_count.is_some_and(|max| total - index > max) || is_older(**at_ms, max_age_ms))
            .count();
        let gone = u64::try_from(gone).unwrap();
        let expired = journal.store.expire_events(&rule).unwrap();
        prop_assert_eq!((expired.removed, expired.first_event), (gone, gone + 1));
        drop(journal);
        let page = open(dir.path()).events(0, usize::MAX);
        prop_assert_eq!((page.first, page.last), (gone + 1, total));
        prop_assert!(page.events.iter().map(|event| event.seq).eq(gone + 1..=total));
    }
}

// proves W4: a number is never assigned twice, even when no event is left.
#[test]
fn event_numbers_continue_after_all_expired() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path());
    journal.commit(&happened(1..=10)).unwrap();
    let rule = EventRule { now_ms: 0, max_age_ms: None, max_count: Some(0), limit: 7 };
    for (removed, first) in [(7, 8), (3, 11), (0, 11)] {
        let expired = journal.store.expire_events(&rule).unwrap();
        assert_eq!((expired.removed, expired.first_event), (removed, first));
        journal.buffer.events_expired(expired.first_event);
        assert_eq!(journal.buffer.first_event(), first);
    }
    drop(journal);
    let mut journal = open(dir.path());
    let counts = journal.counts();
    assert_eq!((counts.events, counts.first_event, counts.last_event), (0, 11, 10));
    journal.commit(&happened(1..=1)).unwrap_err();
    journal.commit(&happened(11..=11)).unwrap();
    let page = journal.events(2, 5);
    assert_eq!((page.events, page.first, page.last), (vec![event(11)], 11, 11));
}

#[test]
fn live_task_never_expires() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path());
    journal.commit(&put([task(1), ended(2, 5, 1), ended(3, 4, 1)])).unwrap();
    let rule = TaskRule {
        now_ms: i64::MAX,
        max_age_ms: Some(0),
        max_count: Some(0),
        max_output_bytes: Some(0),
        limit: 99,
        count: 0,
        bytes: 0,
        after: None,
    };
    assert_eq!(expired(&mut journal, rule), [3, 2], "the longest ended first");
}
