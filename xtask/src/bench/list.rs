//! `list`: one page of `task/list` out of 100,000 ended tasks, against the query that the database needs for it.

use belay_client::Client;
use belay_protocol::task::{TaskListParams, TaskStatus};
use rusqlite::{Connection, OpenFlags};

use super::filled::fill_with_records;
use super::measure::{compare, time};
use super::report::{Report, Target};
use super::subject::Subject;
use super::wire::List;
use super::world::World;
use crate::run::Outcome;

const TASKS: u32 = 100_000;
const ROUNDS: usize = 25;
const PAGE: u32 = 100;

/// The rows of one page, read by a program of its own.
const BARE: &str = "SELECT number, id, session, name, body FROM task
    WHERE ended_ms IS NOT NULL AND number < ?1 ORDER BY number DESC LIMIT ?2";

pub(crate) fn run(subject: &Subject, report: &mut Report) -> Outcome {
    let world = fill_with_records(World::in_memory(subject)?, TASKS)?;
    let mut client = world.connect()?;
    let database =
        Connection::open_with_flags(world.paths.home.join("journal.db"), OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let newest = TaskListParams { all: true, limit: Some(PAGE), ..TaskListParams::default() };
    let middle = TaskListParams { cursor: Some((TASKS / 2).to_string()), ..newest.clone() };
    for (params, before, what) in [
        (&newest, i64::MAX, "`task/list`, the newest 100 of 100 000 ended tasks"),
        (&middle, i64::from(TASKS / 2), "`task/list`, 100 in the middle of 100 000 ended tasks"),
    ] {
        let [took, bare] = compare(
            3,
            ROUNDS,
            [Box::new(|| time(|| page(&mut client, params))), Box::new(|| time(|| rows(&database, before)))],
        )?;
        report.times("list", what, took, ("the same rows from the database", bare), Target::None);
    }
    let none = TaskListParams { status: vec![TaskStatus::Lost], ..newest };
    let [took] = compare(1, 5, [Box::new(|| time(|| all_pages(&mut client, &none)))])?;
    report.value(
        "list",
        "`task/list` with a filter that none of 100 000 ended tasks meets, all pages",
        took.into(),
    );
    Ok(())
}

fn page(client: &mut Client, params: &TaskListParams) -> Outcome {
    let found = client.call::<List>(params)?.tasks.len();
    if found == PAGE as usize { Ok(()) } else { Err(format!("{found} tasks in a page of {PAGE}").into()) }
}

fn rows(database: &Connection, before: i64) -> Outcome {
    let mut statement = database.prepare_cached(BARE)?;
    let rows = statement.query_map((before, PAGE), |row| row.get::<_, String>(4))?;
    let found = rows.collect::<Result<Vec<String>, _>>()?.len();
    if found == PAGE as usize { Ok(()) } else { Err(format!("{found} rows instead of {PAGE}").into()) }
}

/// Reads a filtered list to its end. A page can be empty before the last one.
fn all_pages(client: &mut Client, params: &TaskListParams) -> Outcome {
    let mut params = params.clone();
    loop {
        let page = client.call::<List>(&params)?;
        if !page.tasks.is_empty() {
            return Err("a task meets the filter".into());
        }
        params.cursor = page.next_cursor;
        if params.cursor.is_none() {
            return Ok(());
        }
    }
}
