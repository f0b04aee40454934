//! Homes with many ended tasks and events, made by writing copies of one real task into the database while no daemon runs.

use std::path::Path;

use belay_protocol::task::TaskWaitParams;
use rusqlite::{Connection, params};

use super::wire::Wait;
use super::world::{World, start_detached};
use crate::run::Outcome;

/// As many ended tasks as retention keeps by default.
pub(crate) const TASKS: u32 = 20_000;
/// Just below the number of events that retention keeps by default, so that none expires while something is measured.
pub(crate) const EVENTS: u32 = 199_000;

/// The copies have ended one second after another.
const COPY_TASKS: &str = "
WITH RECURSIVE copy (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM copy WHERE i < ?1)
INSERT INTO task (number, id, session, started_ms, ended_ms, output_bytes, body)
SELECT number + i, printf('sh-%016d', i), session, started_ms - (?1 - i) * 1000, ended_ms - (?1 - i) * 1000, output_bytes,
       replace(body, id, printf('sh-%016d', i))
FROM task, copy WHERE number = (SELECT max(number) FROM task)";

const COPY_EVENTS: &str = "
WITH RECURSIVE copy (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM copy WHERE i < ?1)
INSERT INTO event (seq, at_ms, kind, task, session, body)
SELECT (SELECT max(seq) FROM event) + i, at_ms, kind, task, session, body
FROM (SELECT * FROM event WHERE kind = 'task.ended' LIMIT 1), copy";

/// Adds so many ended tasks, each with a directory of output, and so many events. The daemon is restarted.
pub(crate) fn fill_world(world: World, tasks: u32, events: u32) -> Outcome<World> {
    fill_with(world, tasks, events, true)
}

/// Adds so many ended tasks without directories, more than retention keeps by default. The daemon is restarted.
pub(crate) fn fill_with_records(world: World, tasks: u32) -> Outcome<World> {
    std::fs::write(world.paths.home.join("config.toml"), format!("[retention]\ntasks = {}\n", 2 * tasks))?;
    fill_with(world, tasks, 1, false)
}

fn fill_with(world: World, tasks: u32, events: u32, with_output: bool) -> Outcome<World> {
    let mut client = world.connect()?;
    let id = start_detached(&mut client, &["/bin/echo", "a line of output"])?.id;
    client.call::<Wait>(&TaskWaitParams::for_end(&id))?.task.completed()?;
    drop(client);
    world.stop_daemon()?;
    let result = fill(&world.paths.home, &id, tasks, events, with_output);
    world.start_daemon()?;
    result?;
    let status = world.status()?;
    if status.tasks_ended < tasks.into() || status.events_last < events.into() {
        return Err(format!("{} ended tasks, {} events", status.tasks_ended, status.events_last).into());
    }
    Ok(world)
}

fn fill(home: &Path, template: &str, tasks: u32, events: u32, with_output: bool) -> Outcome {
    let copies = tasks.saturating_sub(1);
    let mut database = Connection::open(home.join("journal.db"))?;
    let transaction = database.transaction()?;
    if copies > 0 {
        transaction.execute(COPY_TASKS, params![copies])?;
    }
    transaction.execute(COPY_EVENTS, params![events])?;
    transaction.commit()?;
    if !with_output {
        return Ok(());
    }
    let dirs = home.join("tasks");
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dirs.join(template))? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            files.push((entry.file_name(), std::fs::read(entry.path())?));
        }
    }
    for copy in 1..=copies {
        let dir = dirs.join(format!("sh-{copy:016}"));
        std::fs::create_dir(&dir)?;
        for (name, bytes) in &files {
            std::fs::write(dir.join(name), bytes)?;
        }
    }
    Ok(())
}
