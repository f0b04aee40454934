//! A journal's writer to be killed: commits batch after batch into the directory named by its argument, and prints each
//! number once it is committed. For the test of durability.

use std::io::Write as _;
use std::path::Path;

use belay_journal::{Batch, EventRow, Journal, TaskRow};

const EVENTS_A_BATCH: u64 = 3;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::args_os().nth(1).ok_or("usage: writer DIRECTORY")?;
    let mut journal = Journal::open(Path::new(&dir))?.journal;
    loop {
        let number = journal.next_number();
        let last = journal.last_event();
        let pad = "p".repeat(usize::try_from(number % 7)? * 900);
        let body = format!("{{\"pad\":\"{pad}\"}}");
        let row = TaskRow { id: format!("sh-{number:06}"), number, body, ..TaskRow::default() };
        let event = |seq| EventRow {
            seq,
            kind: "task.started".to_owned(),
            body: "{}".to_owned(),
            ..EventRow::default()
        };
        let events = (last + 1..=last + EVENTS_A_BATCH).map(event).collect();
        journal.commit(&Batch { put: vec![row], events, removed: Vec::new() })?;
        writeln!(std::io::stdout(), "{number}")?;
    }
}
