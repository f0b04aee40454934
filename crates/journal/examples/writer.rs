//! A process that appends batches until it is killed, for the durability test.
//!
//! It appends batch after batch to the journal in the directory named by its argument, flushes on a
//! worker thread at the same time, and prints each number after its append. Every seventh batch
//! removes an earlier task.

use std::io::Write as _;
use std::path::Path;
use std::sync::mpsc::channel;

use belay_journal::{Batch, EventRow, FlushDone, FlushJob, Opened, TaskRow};

const EVENTS_PER_BATCH: u64 = 3;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::args_os().nth(1).ok_or("usage: writer DIRECTORY")?;
    let Opened { mut buffer, mut store, .. } = belay_journal::open(Path::new(&dir))?;
    let (jobs, taken) = channel::<FlushJob>();
    let (results, done) = channel::<FlushDone>();
    let worker = std::thread::spawn(move || {
        while let Ok(job) = taken.recv() {
            if results.send(store.flush(job)).is_err() {
                break;
            }
        }
    });
    loop {
        let number = buffer.next_number();
        let last = buffer.last_event();
        let pad = "p".repeat(usize::try_from(number % 7)? * 900);
        let body = format!("{{\"pad\":\"{pad}\"}}");
        let row = TaskRow { id: id(number), number, body, ..TaskRow::default() };
        let event = |seq| EventRow {
            seq,
            kind: "task.started".to_owned(),
            body: "{}".to_owned(),
            ..EventRow::default()
        };
        let events = (last + 1..=last + EVENTS_PER_BATCH).map(event).collect();
        let removed = if number % 7 == 0 { vec![id(number - 3)] } else { Vec::new() };
        buffer.append(&mut Batch { put: vec![row], events, removed, ..Batch::default() })?;
        writeln!(std::io::stdout(), "{number}")?;
        while let Ok(done) = done.try_recv() {
            buffer.end_flush(done)?;
        }
        if number % 5 == 0
            && let Some(job) = buffer.begin_flush()
        {
            jobs.send(job)?;
        }
        if worker.is_finished() {
            return Err("the worker thread has ended".into());
        }
    }
}

fn id(number: u64) -> String {
    format!("sh-{number:06}")
}
