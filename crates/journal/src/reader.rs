//! The reading side of the database: one transaction for each query, on a connection of its own.
//!
//! One worker thread owns it. It does not know what is only in the write buffer: each result
//! carries the number of the last batch in its snapshot, and the buffer merges the later ones.

use std::fmt;
use std::path::{Path, PathBuf};

use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, Params, Row, params_from_iter};

use crate::query::{FoundEvents, FoundRows, MARGIN, MAX_BYTES, MAX_EXAMINED_EVENTS};
use crate::row::{
    self, EVENT_COLUMNS, EventFilter, ExpiredTask, TASK_COLUMNS, TaskFilter, TaskPage, TaskRow, TaskRule,
    clamped, is_older, tag_part,
};
use crate::store::{EventBounds, event_bounds};
use crate::{Error, Found, Query, meta};

/// The connection that reads.
pub struct Reader {
    conn: Connection,
    path: PathBuf,
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Reader {
    pub(crate) fn new(conn: Connection, path: &Path) -> Self {
        Self { conn, path: path.to_owned() }
    }

    /// Runs one query on a snapshot of the database.
    pub fn run(&mut self, query: &Query) -> Result<Found, Error> {
        let found = self.in_snapshot(query);
        found.map_err(|error| Error::sql(&self.path, error))
    }

    fn in_snapshot(&mut self, query: &Query) -> rusqlite::Result<Found> {
        let step = self.conn.transaction()?;
        // The first statement takes the snapshot.
        let snapshot = meta::number(&step, meta::BATCH_LAST)?;
        let rows = match query {
            Query::Tasks(ids) => FoundRows::Tasks(tasks(&step, ids)?),
            Query::Prefix { prefix, scope, limit } => {
                let most = limit.saturating_add(MARGIN);
                let ids = ids(&step, prefix, scope.as_deref(), most)?;
                FoundRows::Ids { cut: ids.len() >= most, ids }
            }
            Query::List(filter) => {
                let most = filter.limit.saturating_add(MARGIN);
                let TaskPage { tasks, floor } = list(&step, filter, most)?;
                FoundRows::List { tasks, floor }
            }
            Query::Events { after, max, filter } => FoundRows::Events(events(&step, *after, *max, filter)?),
            Query::Expired(rule) => {
                let (tasks, cut) = expired(&step, rule)?;
                FoundRows::Expired { tasks, cut }
            }
        };
        step.commit()?;
        Ok(Found { query: query.clone(), snapshot, rows })
    }
}

/// SQL conditions and the values of their parameters.
#[derive(Default)]
struct Conditions {
    sql: String,
    values: Vec<Value>,
}

impl Conditions {
    fn add(&mut self, sql: &str, values: impl IntoIterator<Item = Value>) {
        self.sql.push_str(" AND ");
        self.sql.push_str(sql);
        self.values.extend(values);
    }

    fn add_text(&mut self, sql: &str, text: Option<&String>) {
        if let Some(text) = text {
            self.add(sql, [Value::Text(text.clone())]);
        }
    }
}

pub(crate) fn all<T>(
    conn: &Connection,
    sql: &str,
    values: impl Params,
    decode: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Vec<T>> {
    conn.prepare_cached(sql)?.query_map(values, decode)?.collect()
}

fn tasks(conn: &Connection, ids: &[String]) -> rusqlite::Result<Vec<TaskRow>> {
    let mut statement = conn.prepare_cached(&format!("SELECT {TASK_COLUMNS} FROM task WHERE id = ?1"))?;
    let mut tasks = Vec::new();
    for id in ids {
        tasks.extend(statement.query_row([id], row::task).optional()?);
    }
    Ok(tasks)
}

fn ids(conn: &Connection, prefix: &str, scope: Option<&str>, most: usize) -> rusqlite::Result<Vec<String>> {
    let mut conditions = Conditions::default();
    conditions.add("id >= ?", [Value::Text(prefix.to_owned())]);
    conditions.add_text("id < ?", after_prefix(prefix).as_ref());
    add_task_scope(&mut conditions, scope);
    let Conditions { sql, mut values } = conditions;
    values.push(Value::Integer(clamped(most)));
    let sql = format!("SELECT id FROM task WHERE true{sql} ORDER BY id LIMIT ?");
    all(conn, &sql, params_from_iter(values), |row| row.get(0))
}

fn add_task_scope(conditions: &mut Conditions, scope: Option<&str>) {
    if let Some(scope) = scope {
        let values = [Value::Text(scope.to_owned()), Value::Text(tag_part(scope))];
        conditions.add("(id = ? OR instr(tags, ?) > 0)", values);
    }
}

fn list(conn: &Connection, filter: &TaskFilter, most: usize) -> rusqlite::Result<TaskPage> {
    let Conditions { sql, values } = list_conditions(filter);
    let sql = format!("SELECT {TASK_COLUMNS} FROM task WHERE true{sql} ORDER BY number DESC");
    let mut statement = conn.prepare_cached(&sql)?;
    let mut rows = statement.query(params_from_iter(values))?;
    let mut page = TaskPage::default();
    let (mut examined, mut bytes) = (0, 0);
    while let Some(row) = rows.next()? {
        let task = row::task(row)?;
        let number = task.number;
        examined += 1;
        if filter.satisfies_predicate(&task) {
            bytes += task.body.len();
            page.tasks.push(task);
        }
        let is_examined = filter.max_examined.is_some_and(|max| examined >= max);
        if page.tasks.len() >= most || bytes >= MAX_BYTES || is_examined {
            page.floor = Some(number);
            break;
        }
    }
    Ok(page)
}

fn list_conditions(filter: &TaskFilter) -> Conditions {
    let TaskFilter { ended, ended_before_ms, before, session, parent, name, scope, tags, .. } = filter;
    let mut conditions = Conditions::default();
    match ended {
        Some(true) => conditions.add("ended_ms IS NOT NULL", []),
        Some(false) => conditions.add("ended_ms IS NULL", []),
        None => {}
    }
    if let Some(before_ms) = ended_before_ms {
        conditions.add("+ended_ms < ?", [Value::Integer(*before_ms)]);
    }
    if let Some(before) = before {
        conditions.add("number < ?", [Value::Integer(clamped(*before))]);
    }
    conditions.add_text("session = ?", session.as_ref());
    conditions.add_text("parent = ?", parent.as_ref());
    conditions.add_text("name = ?", name.as_ref());
    add_task_scope(&mut conditions, scope.as_deref());
    add_tags(&mut conditions, tags);
    conditions
}

fn add_tags(conditions: &mut Conditions, tags: &[String]) {
    for tag in tags {
        conditions.add("instr(tags, ?) > 0", [Value::Text(tag_part(tag))]);
    }
}

fn events(conn: &Connection, after: u64, max: usize, filter: &EventFilter) -> rusqlite::Result<FoundEvents> {
    let EventBounds { first, last } = event_bounds(conn)?;
    let from = after.max(first - 1);
    // The numbers have no gap: so many numbers are so many rows.
    let to = last.min(from.saturating_add(MAX_EXAMINED_EVENTS as u64));
    let mut conditions = Conditions::default();
    conditions.add("seq > ?", [Value::Integer(clamped(from))]);
    conditions.add("seq <= ?", [Value::Integer(clamped(to))]);
    add_event_filter(&mut conditions, filter);
    let Conditions { sql, mut values } = conditions;
    values.push(Value::Integer(clamped(max)));
    let sql = format!("SELECT {EVENT_COLUMNS} FROM event WHERE true{sql} ORDER BY seq LIMIT ?");
    let mut statement = conn.prepare_cached(&sql)?;
    let mut rows = statement.query(params_from_iter(values))?;
    let (mut events, mut bytes) = (Vec::new(), 0);
    while bytes < MAX_BYTES
        && let Some(row) = rows.next()?
    {
        let event = row::event(row)?;
        bytes += event.body.len();
        events.push(event);
    }
    let is_cut = events.len() >= max || bytes >= MAX_BYTES;
    let next = if is_cut { events.last().map_or(after, |event| event.seq) } else { to.max(after) };
    Ok(FoundEvents { events, next, first, is_end: next >= last })
}

fn add_event_filter(conditions: &mut Conditions, filter: &EventFilter) {
    let EventFilter { task, session, types, scope, tags } = filter;
    add_tags(conditions, tags);
    conditions.add_text("task = ?", task.as_ref());
    conditions.add_text("session = ?", session.as_ref());
    if !types.is_empty() {
        let one = |pattern: &String| if pattern.ends_with('*') { "instr(kind, ?) = 1" } else { "kind = ?" };
        let any: Vec<&str> = types.iter().map(one).collect();
        let values =
            types.iter().map(|pattern| Value::Text(pattern.strip_suffix('*').unwrap_or(pattern).to_owned()));
        conditions.add(&format!("({})", any.join(" OR ")), values);
    }
    if let Some(scope) = scope {
        let values = [scope.clone(), scope.clone(), tag_part(scope)].map(Value::Text);
        conditions.add("(task = ? OR session = ? OR instr(tags, ?) > 0)", values);
    }
}

/// The longest ended tasks: those that the rule does not keep, by the caller's totals, and a margin
/// behind them, because the totals may change until the result is merged. Also returns whether
/// there may be more.
fn expired(conn: &Connection, rule: &TaskRule) -> rusqlite::Result<(Vec<ExpiredTask>, bool)> {
    let sql = "SELECT id, number, session, tags, output_bytes, ended_ms FROM task INDEXED BY task_ended
        WHERE ended_ms IS NOT NULL AND (ended_ms, number) > (?1, ?2) ORDER BY ended_ms, number";
    let mut statement = conn.prepare_cached(sql)?;
    let (after_ms, after_number) = rule.after.unwrap_or((i64::MIN, 0));
    let mut rows = statement.query((after_ms, clamped(after_number)))?;
    let mut tasks = Vec::new();
    let (mut count, mut bytes, mut kept) = (rule.count, rule.bytes, 0);
    while let Some(row) = rows.next()? {
        if kept >= MARGIN || tasks.len() >= rule.limit.saturating_add(MARGIN) {
            return Ok((tasks, true));
        }
        let task = ExpiredTask {
            id: row.get(0)?,
            number: row::unsigned(row, 1)?,
            session: row.get(2)?,
            tags: row.get(3)?,
            output_bytes: row::unsigned(row, 4)?,
            ended_ms: row.get(5)?,
        };
        let is_kept = rule.max_count.is_none_or(|max| count <= max)
            && rule.max_output_bytes.is_none_or(|max| bytes <= max)
            && !is_older(task.ended_ms, rule.now_ms, rule.max_age_ms);
        kept += usize::from(is_kept);
        count = count.saturating_sub(1);
        bytes = bytes.saturating_sub(task.output_bytes);
        tasks.push(task);
    }
    Ok((tasks, false))
}

/// The smallest text above every text that begins with `prefix`, if there is one. (Text is compared
/// byte by byte, which in UTF-8 is the order of the characters.)
fn after_prefix(prefix: &str) -> Option<String> {
    let mut end = prefix.to_owned();
    while let Some(last) = end.pop() {
        let next = (u32::from(last) + 1..=u32::from(char::MAX)).find_map(char::from_u32);
        if let Some(next) = next {
            end.push(next);
            return Some(end);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::after_prefix;

    #[test]
    fn prefix_end_skips_surrogates_and_last_character() {
        assert_eq!(after_prefix("sh-a").as_deref(), Some("sh-b"));
        assert_eq!(after_prefix("a\u{d7ff}").as_deref(), Some("a\u{e000}"));
        assert_eq!(after_prefix("a\u{10ffff}").as_deref(), Some("b"));
        assert_eq!(after_prefix("\u{10ffff}"), None);
        assert_eq!(after_prefix(""), None);
    }
}
