//! A journal's writer to be killed: commits or notes batch after batch in the directory named by its argument, and prints
//! each number once that is done. For the test of durability.

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
        let mut batch = Batch { put: vec![row], events, ..Batch::default() };
        match number % 11 {
            0 => journal.commit(&batch)?,
            5 => {
                journal.note(&mut batch)?;
                journal.settle()?;
            }
            _ => journal.note(&mut batch)?,
        }
        writeln!(std::io::stdout(), "{number}")?;
    }
}
