//! Reading a damaged table through the database, around the pages that cannot be read.
//!
//! It does not repair pages and does not validate rows.

use std::collections::VecDeque;

use rusqlite::{Connection, Row};

/// How often reading is retried behind an unreadable place: about a second in the worst case.
const MAX_PROBES: u32 = 20_000;

/// A table of which some rows may be unreadable.
pub(crate) struct Table<'a> {
    pub(crate) name: &'static str,
    pub(crate) key: &'static str,
    pub(crate) columns: &'a str,
}

pub(crate) type Sink<'a> = &'a mut dyn FnMut(&Row<'_>) -> rusqlite::Result<()>;

impl Table<'_> {
    /// Passes every reachable row to `sink` and returns whether those were all. Only errors of the
    /// sink are returned.
    ///
    /// Each range is read upwards until an error, then downwards; what is left in between is halved
    /// and tried again, widest first, so that one bad page costs only the rows of that page.
    pub(crate) fn walk(&self, old: &Connection, sink: Sink<'_>) -> rusqlite::Result<bool> {
        // The table cannot be opened at all.
        if old.prepare(&self.sql(true)).is_err() {
            return Ok(false);
        }
        let mut ranges = VecDeque::from([(0i64, i64::MAX)]);
        let mut complete = true;
        for _ in 0..MAX_PROBES {
            let Some((low, high)) = ranges.pop_front() else { break };
            let Some(low) = self.scan(old, (low, high), true, sink)? else { continue };
            complete = false;
            let Some(high) = self.scan(old, (low, high), false, sink)? else { continue };
            if low < high {
                let middle = low + (high - low) / 2;
                ranges.extend([(low, middle), (middle + 1, high)]);
            }
        }
        Ok(complete)
    }

    fn sql(&self, up: bool) -> String {
        let Self { name, key, columns } = self;
        let order = if up { "ASC" } else { "DESC" };
        format!("SELECT {columns} FROM {name} WHERE {key} BETWEEN ?1 AND ?2 ORDER BY {key} {order}")
    }

    /// Reads a range in one direction. Returns None if all of it was read, else where reading
    /// stopped.
    fn scan(
        &self,
        old: &Connection,
        (low, high): (i64, i64),
        up: bool,
        sink: Sink<'_>,
    ) -> rusqlite::Result<Option<i64>> {
        let mut edge = if up { low } else { high };
        let Ok(mut statement) = old.prepare_cached(&self.sql(up)) else { return Ok(Some(edge)) };
        let Ok(mut rows) = statement.query([low, high]) else { return Ok(Some(edge)) };
        loop {
            let row = match rows.next() {
                Ok(Some(row)) => row,
                Ok(None) => return Ok(None),
                Err(_) => return Ok(Some(edge)),
            };
            // A damaged tree may return a row twice or out of order: reading stops there.
            let at = match row.get::<_, i64>(0) {
                Ok(at) if (low..=high).contains(&at) && (if up { at >= edge } else { at <= edge }) => at,
                _ => return Ok(Some(edge)),
            };
            sink(row)?;
            let next = if up { at.checked_add(1) } else { at.checked_sub(1) };
            match next {
                Some(next) if (low..=high).contains(&next) => edge = next,
                _ => return Ok(None),
            }
        }
    }
}
