//! Keyed documents: put, taken away, and read by kind. What is noted and not yet in the database counts too.

use std::collections::BTreeMap;

use rusqlite::{Connection, Row};

use crate::row::DocRow;
use crate::{Error, Journal};

/// The columns of [`doc`], in its order.
pub(crate) const DOC_COLUMNS: &str = "kind, key, body";

impl Journal {
    /// Every document of a kind, by its key.
    pub fn docs(&self, kind: &str) -> Result<BTreeMap<String, String>, Error> {
        let sql = "SELECT kind, key, body FROM doc WHERE kind = ?1";
        let rows = self.all(sql, [kind], doc)?;
        let mut found: BTreeMap<String, String> =
            rows.into_iter().filter_map(|row| Some((row.key, row.body?))).collect();
        let waiting = self.waiting.borrow();
        for doc in waiting.iter().flat_map(|batch| &batch.docs).filter(|doc| doc.kind == kind) {
            match &doc.body {
                Some(body) => found.insert(doc.key.clone(), body.clone()),
                None => found.remove(&doc.key),
            };
        }
        Ok(found)
    }
}

pub(crate) fn doc(row: &Row<'_>) -> rusqlite::Result<DocRow> {
    Ok(DocRow { kind: row.get(0)?, key: row.get(1)?, body: row.get(2)? })
}

pub(crate) fn write(conn: &Connection, doc: &DocRow) -> rusqlite::Result<()> {
    match &doc.body {
        Some(body) => {
            let sql = "INSERT INTO doc (kind, key, body) VALUES (?1, ?2, ?3)
                ON CONFLICT (kind, key) DO UPDATE SET body = ?3";
            conn.prepare_cached(sql)?.execute((&doc.kind, &doc.key, body))?;
        }
        None => {
            conn.prepare_cached("DELETE FROM doc WHERE kind = ?1 AND key = ?2")?
                .execute((&doc.kind, &doc.key))?;
        }
    }
    Ok(())
}
