//! The few single values of the record: high-water marks and the secret. Not a place for settings.

use rusqlite::types::FromSql;
use rusqlite::{Connection, OptionalExtension, ToSql};

/// The newest event number, written whenever events are removed: it outlives the rows.
pub(crate) const EVENT_LAST: &str = "event_last";
/// Every event number ever given is at most this. Written ahead in steps, so that numbers stay unique after damage.
pub(crate) const EVENT_MARK: &str = "event_mark";
/// The highest task number, written whenever tasks are removed.
pub(crate) const NUMBER_LAST: &str = "number_last";
/// How often the log has begun anew. Nobody asks; it is there to be written.
pub(crate) const LOG_ROUND: &str = "log_round";
pub(crate) const SECRET: &str = "secret";
/// A random number that this record's notes carry, so that no others are taken for them.
pub(crate) const NOTES: &str = "notes";

/// By how much [`EVENT_MARK`] runs ahead: one more page written every so many events.
pub(crate) const EVENT_MARK_STEP: u64 = 256;

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
