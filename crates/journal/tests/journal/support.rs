//! Rows and journals that the tests share. Proves nothing itself.

use std::collections::BTreeMap;
use std::path::Path;

use belay_journal::{Batch, DocRow, EventRow, Journal, TaskRow};

pub(crate) fn open(dir: &Path) -> Journal {
    let opened = Journal::open(dir).unwrap();
    assert_eq!(opened.notices, [], "a sound journal gives no notice");
    opened.journal
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
    }
}

pub(crate) fn put(tasks: impl IntoIterator<Item = TaskRow>) -> Batch {
    Batch { put: tasks.into_iter().collect(), ..Batch::default() }
}

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

/// A small deterministic generator; the seed is in the failure message of whoever uses it.
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
