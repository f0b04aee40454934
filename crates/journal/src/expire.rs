//! Retention: removes the oldest events by rule, and names the ended tasks that a rule lets go.
//!
//! It removes no task: their output lies elsewhere, and the daemon removes both.

use rusqlite::{Connection, TransactionBehavior};

use crate::journal::Totals;
use crate::row::{self, EventRule, TASK_COLUMNS, TaskRow, TaskRule, Unsigned, clamped};
use crate::{Error, Journal, meta};

impl Journal {
    /// Removes the events that the rule lets go, oldest first, and returns how many went. Fewer than `limit`: all are gone.
    pub fn expire_events(&mut self, rule: &EventRule) -> Result<u64, Error> {
        self.settle()?;
        let mut totals = self.totals.get();
        let kept = totals.last_event + 1 - totals.first_event;
        let surplus = rule.max_count.map_or(0, |max| kept.saturating_sub(max));
        let count = count_old(&self.conn, rule, surplus).map_err(|error| self.failed(error))?;
        if count == 0 {
            return Ok(0);
        }
        totals.first_event += count;
        remove_events(&mut self.conn, &totals).map_err(|error| self.failed(error))?;
        self.wrote(totals);
        Ok(count)
    }

    /// The ended tasks that the rule lets go, the longest ended first; never a live one.
    ///
    /// They stay in the record until a batch removes them, and until then every call names them again.
    pub fn expired_tasks(&self, rule: &TaskRule) -> Result<Vec<TaskRow>, Error> {
        // Where the disk is full there is nothing to wait for: this is what makes room.
        let _ = self.settle();
        let Totals { ended: mut count, output_bytes: mut bytes, .. } = self.totals.get();
        let sql = format!(
            "SELECT {TASK_COLUMNS} FROM task INDEXED BY task_ended WHERE ended_ms IS NOT NULL
             ORDER BY ended_ms, number LIMIT ?1"
        );
        let mut expired = Vec::new();
        let mut statement = self.conn.prepare_cached(&sql).map_err(|error| self.failed(error))?;
        let mut rows = statement.query([clamped(rule.limit)]).map_err(|error| self.failed(error))?;
        while let Some(row) = rows.next().map_err(|error| self.failed(error))? {
            let task = row::task(row).map_err(|error| self.failed(error))?;
            let ended_ms = task.ended_ms.unwrap_or(i64::MAX);
            let goes = rule.max_count.is_some_and(|max| count > max)
                || rule.max_output_bytes.is_some_and(|max| bytes > max)
                || is_older(ended_ms, rule.now_ms, rule.max_age_ms);
            if !goes {
                break;
            }
            count = count.saturating_sub(1);
            bytes = bytes.saturating_sub(task.output_bytes);
            expired.push(task);
        }
        Ok(expired)
    }
}

/// How many of the oldest events go: those beyond the count, then on to the first that is young enough.
fn count_old(conn: &Connection, rule: &EventRule, surplus: u64) -> rusqlite::Result<u64> {
    let mut statement = conn.prepare_cached("SELECT at_ms FROM event ORDER BY seq LIMIT ?1")?;
    let mut rows = statement.query([clamped(rule.limit)])?;
    let mut count = 0;
    while let Some(row) = rows.next()? {
        if count >= surplus && !is_older(row.get(0)?, rule.now_ms, rule.max_age_ms) {
            break;
        }
        count += 1;
    }
    Ok(count)
}

fn remove_events(conn: &mut Connection, totals: &Totals) -> rusqlite::Result<()> {
    let step = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    step.prepare_cached("DELETE FROM event WHERE seq < ?1")?.execute([Unsigned(totals.first_event)])?;
    meta::set(&step, meta::EVENT_LAST, Unsigned(totals.last_event))?;
    step.commit()
}

fn is_older(at_ms: i64, now_ms: i64, max_age_ms: Option<u64>) -> bool {
    max_age_ms.is_some_and(|max| now_ms.saturating_sub(at_ms) > clamped(max))
}
