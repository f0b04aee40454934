//! Reads a damaged table through the database, around the places that cannot be read.
//!
//! It does not repair pages and does not judge rows.

use std::collections::VecDeque;

use rusqlite::{Connection, Row};

/// How often reading is tried anew behind a place that cannot be read: about a second at the worst.
const MAX_PROBES: u32 = 20_000;

/// A table that is read although some of it cannot be.
pub(crate) struct Table {
    pub(crate) name: &'static str,
    pub(crate) key: &'static str,
    pub(crate) columns: &'static str,
}

pub(crate) type Sink<'a> = &'a mut dyn FnMut(&Row<'_>) -> rusqlite::Result<()>;

impl Table {
    /// Hands every row that can be reached to `sink`, and says whether those were all. Only an error of the sink is an error.
    ///
    /// Each range is read from below until something is in the way, then from above; what is left in between is halved
    /// and tried again, widest first, so that one bad page costs the rows of that page.
    pub(crate) fn walk(&self, old: &Connection, sink: Sink<'_>) -> rusqlite::Result<bool> {
        // No way in at all: nothing to probe for.
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

    /// Reads a range in one direction. None when all of it was read, else where it stopped.
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
            // A damaged tree may give a row twice or out of order: then this is where reading stops.
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
