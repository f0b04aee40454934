//! The journal's single values: high-water marks, the secret and the journal's number. Not a place
//! for settings.

use rusqlite::types::FromSql;
use rusqlite::{Connection, OptionalExtension, ToSql};

/// The newest event number, written when events are removed or lost: it outlives the rows.
pub(crate) const EVENT_LAST: &str = "event_last";
/// Raised by flushes in steps, ahead of the events in the database: the last resort to keep event
/// numbers unique after damage. Numbers of unflushed batches may be above it; the buffer files
/// bound those.
pub(crate) const EVENT_MARK: &str = "event_mark";
/// The highest task number, written when tasks are removed.
pub(crate) const NUMBER_LAST: &str = "number_last";
/// The number of the last batch that the database has.
pub(crate) const BATCH_LAST: &str = "batch_last";
pub(crate) const SECRET: &str = "secret";
/// A random number that the buffer files of this journal carry, so that files of another journal
/// are not taken for them.
pub(crate) const JOURNAL: &str = "journal";

/// How far [`EVENT_MARK`] is set ahead, whenever less than half of it is left.
pub(crate) const EVENT_MARK_STEP: u64 = 1024;

pub(crate) fn get<T: FromSql>(conn: &Connection, key: &str) -> rusqlite::Result<Option<T>> {
    conn.prepare_cached("SELECT value FROM meta WHERE key = ?1")?
        .query_row([key], |row| row.get(0))
        .optional()
}

/// An absent number is 0.
pub(crate) fn number(conn: &Connection, key: &str) -> rusqlite::Result<u64> {
    let value: i64 = get(conn, key)?.unwrap_or(0);
    u64::try_from(value).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(0, value))
}

pub(crate) fn set(conn: &Connection, key: &str, value: impl ToSql) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "INSERT INTO meta (key, value) VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = ?2",
    )?
    .execute((key, value))?;
    Ok(())
}
