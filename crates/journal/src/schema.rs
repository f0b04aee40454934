//! The tables, every migration that led to them, and the check that a file is intact.
//!
//! A released migration is never edited: the fixture files in the tests must always open.

use rusqlite::{Connection, TransactionBehavior};

/// The format this program writes: the number of migrations.
#[expect(clippy::cast_possible_wrap, reason = "a table of a few migrations")]
pub const VERSION: i64 = MIGRATIONS.len() as i64;

/// Migration n leads from version n to version n + 1.
pub(crate) const MIGRATIONS: &[&str] = &[V1, V2, V3, V4, V5];

/// `task.number` and `event.seq` are the row ids: newest-first lists and replays walk the tables
/// themselves.
///
/// `task_ended` carries what retention and the totals need, so that neither reads a body; the live
/// tasks, whose end is null, come first in it. Every index costs each flush some microseconds a
/// page: there is none that no query needs.
const V1: &str = "
CREATE TABLE meta (key TEXT PRIMARY KEY NOT NULL, value ANY NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE task (
    number       INTEGER PRIMARY KEY NOT NULL,
    id           TEXT NOT NULL,
    token        TEXT,
    session      TEXT NOT NULL,
    parent       TEXT,
    name         TEXT,
    started_ms   INTEGER NOT NULL,
    ended_ms     INTEGER,
    output_bytes INTEGER NOT NULL,
    body         TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX task_id ON task (id);
CREATE UNIQUE INDEX task_token ON task (token) WHERE token IS NOT NULL;
CREATE INDEX task_session ON task (session);
CREATE INDEX task_parent ON task (parent) WHERE parent IS NOT NULL;
CREATE INDEX task_name ON task (name) WHERE name IS NOT NULL;
CREATE INDEX task_ended ON task (ended_ms, number, output_bytes);
CREATE TABLE event (
    seq     INTEGER PRIMARY KEY NOT NULL,
    at_ms   INTEGER NOT NULL,
    kind    TEXT NOT NULL,
    task    TEXT,
    session TEXT,
    body    TEXT NOT NULL
) STRICT;
";

/// Lists by session are too rare to pay for an index at every start of a task.
const V2: &str = "DROP INDEX task_session;";

/// Documents by kind and key. With a row id, so that rows of any length are found on the pages of a
/// damaged file.
const V3: &str = "
CREATE TABLE doc (
    number INTEGER PRIMARY KEY NOT NULL,
    kind   TEXT NOT NULL,
    key    TEXT NOT NULL,
    body   TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX doc_key ON doc (kind, key);
";

/// The ids above a task, and above an event's task: `/outermost/…/innermost/`.
const V4: &str = "
ALTER TABLE task ADD COLUMN lineage TEXT NOT NULL DEFAULT '';
ALTER TABLE event ADD COLUMN lineage TEXT NOT NULL DEFAULT '';
";

/// The column holds more than ids: everything that a row is found by.
const V5: &str = "
ALTER TABLE task RENAME COLUMN lineage TO tags;
ALTER TABLE event RENAME COLUMN lineage TO tags;
";

pub(crate) fn version(conn: &Connection) -> rusqlite::Result<i64> {
    conn.pragma_query_value(None, "user_version", |row| row.get(0))
}

/// Brings the file to the last of `migrations`, each in a transaction of its own.
pub(crate) fn migrate(conn: &mut Connection, migrations: &[&str]) -> rusqlite::Result<()> {
    let from = version(conn)?;
    for (next, migration) in (1i64..).zip(migrations).filter(|(next, _)| *next > from) {
        let step = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
        step.execute_batch(migration)?;
        step.pragma_update(None, "user_version", next)?;
        step.commit()?;
    }
    Ok(())
}

/// What is wrong with the file, or None. Reads only.
///
/// The whole file is read: the structure of every page, the type of every value, and that the event
/// numbers have no gap. It does not detect a changed character inside a body.
pub(crate) fn fault(conn: &Connection, version: i64) -> rusqlite::Result<Option<String>> {
    let known = MIGRATIONS.get(..usize::try_from(version).unwrap_or(0)).unwrap_or_default();
    let found = objects(conn)?;
    let mut fresh = Connection::open_in_memory()?;
    migrate(&mut fresh, known)?;
    let missing = objects(&fresh)?.into_iter().find(|object| !found.contains(object));
    if known.is_empty() || missing.is_some() {
        let name = missing.map_or_else(String::new, |(name, _)| format!(" ({name})"));
        return Ok(Some(format!("its tables are not those of a journal{name}")));
    }
    let verdict: String = conn.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if verdict != "ok" {
        return Ok(Some(verdict));
    }
    let (held, span): (i64, i64) =
        conn.query_row("SELECT count(*), coalesce(max(seq) - min(seq) + 1, 0) FROM event", [], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?;
    Ok((held != span).then(|| format!("{held} events are stored where {span} should be")))
}

fn objects(conn: &Connection) -> rusqlite::Result<Vec<(String, Option<String>)>> {
    let mut statement = conn.prepare("SELECT name, sql FROM sqlite_schema ORDER BY name")?;
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_migration_leaves_previous_version() {
        let mut conn = Connection::open_in_memory().unwrap();
        let broken = ["CREATE TABLE a (x)", "CREATE TABLE b (x); CREATE TABLE a (x)", "CREATE TABLE c (x)"];
        migrate(&mut conn, &broken).unwrap_err();
        assert_eq!(version(&conn).unwrap(), 1);
        assert_eq!(objects(&conn).unwrap().len(), 1);

        let mended = ["not run again", "CREATE TABLE b (x)", "CREATE TABLE c (x)"];
        migrate(&mut conn, &mended).unwrap();
        migrate(&mut conn, &mended).unwrap();
        assert_eq!(version(&conn).unwrap(), 3);
        assert_eq!(objects(&conn).unwrap().len(), 3);
    }

    #[test]
    fn foreign_database_and_event_gap_are_faults() {
        let mut conn = Connection::open_in_memory().unwrap();
        assert!(fault(&conn, 0).unwrap().is_some());
        migrate(&mut conn, MIGRATIONS).unwrap();
        assert_eq!(fault(&conn, VERSION).unwrap(), None);
        conn.execute_batch(
            "INSERT INTO event VALUES (4, 0, 'k', NULL, NULL, '', ''), (6, 0, 'k', NULL, NULL, '', '')",
        )
        .unwrap();
        assert!(fault(&conn, VERSION).unwrap().is_some());
        conn.execute_batch("DROP INDEX task_ended").unwrap();
        assert!(fault(&conn, VERSION).unwrap().unwrap().contains("task_ended"));
    }
}
