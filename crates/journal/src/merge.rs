//! Merging batches that a snapshot lacks into what a query found in it.
//!
//! Pure: the batches come from the write buffer, the rows from the reader.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::buffer_file::Entry;
use crate::query::{FoundEvents, FoundRows, MAX_EXAMINED_EVENTS, Query};
use crate::row::{
    EventFilter, EventPage, ExpiredTask, TaskFilter, TaskPage, TaskRow, TaskRule, is_older, task_is_within,
};
use crate::{Found, Rows};

/// The batches after a snapshot, in order, and what the buffer knows at the time of the merge.
pub(crate) struct Later<'a> {
    pub(crate) entries: Vec<&'a Entry>,
    /// The last batch when the read began. The totals of a [`TaskRule`] are of that time.
    pub(crate) begun: u64,
    /// The batches that came after `begun`, but are in the snapshot.
    pub(crate) between: Vec<&'a Entry>,
    pub(crate) first_event: u64,
    pub(crate) last_event: u64,
}

pub(crate) fn merge(found: Found, later: &Later<'_>) -> Rows {
    match (found.rows, found.query) {
        (FoundRows::Tasks(tasks), Query::Tasks(ids)) => Rows::Tasks(later.tasks(tasks, &ids)),
        (FoundRows::Ids { ids, cut }, Query::Prefix { prefix, scope, limit }) => {
            Rows::Ids(later.ids(ids, cut, &prefix, scope.as_deref(), limit))
        }
        (FoundRows::List { tasks, floor }, Query::List(filter)) => {
            Rows::List(later.list(tasks, floor, &filter))
        }
        (FoundRows::Events(page), Query::Events { max, filter, .. }) => {
            Rows::Events(later.events(page, max, &filter))
        }
        (FoundRows::Expired { tasks, cut }, Query::Expired(rule)) => {
            Rows::Expired(later.expired(tasks, cut, &rule))
        }
        _ => unreachable!("the reader answers each query with its own kind of rows"),
    }
}

/// What batches leave of the tasks that they mention: the row, or None if it was removed.
pub(crate) fn task_changes<'a>(
    entries: impl IntoIterator<Item = &'a Entry>,
) -> HashMap<&'a str, Option<&'a TaskRow>> {
    let mut changes = HashMap::new();
    for Entry { batch, .. } in entries {
        changes.extend(batch.put.iter().map(|task| (task.id.as_str(), Some(task))));
        changes.extend(batch.removed.iter().map(|id| (id.as_str(), None)));
    }
    changes
}

impl<'a> Later<'a> {
    fn changes(&self) -> HashMap<&'a str, Option<&'a TaskRow>> {
        task_changes(self.entries.iter().copied())
    }

    fn tasks(&self, found: Vec<TaskRow>, ids: &[String]) -> Vec<TaskRow> {
        let changes = self.changes();
        if changes.is_empty() {
            return found;
        }
        let found: HashMap<&str, &TaskRow> = found.iter().map(|task| (task.id.as_str(), task)).collect();
        let current = |id: &String| match changes.get(id.as_str()) {
            Some(changed) => changed.cloned(),
            None => found.get(id.as_str()).map(|task| (*task).clone()),
        };
        ids.iter().filter_map(current).collect()
    }

    fn ids(
        &self,
        found: Vec<String>,
        cut: bool,
        prefix: &str,
        scope: Option<&str>,
        limit: usize,
    ) -> Vec<String> {
        let changes = self.changes();
        // Behind the last id of a cut result are ids that were not read.
        let horizon = if cut { found.last().cloned() } else { None };
        let mut ids: BTreeSet<String> =
            found.into_iter().filter(|id| !changes.contains_key(id.as_str())).collect();
        for task in changes.into_values().flatten() {
            let matches =
                task.id.starts_with(prefix) && scope.is_none_or(|scope| task_is_within(task, scope));
            if matches && horizon.as_ref().is_none_or(|horizon| task.id <= *horizon) {
                ids.insert(task.id.clone());
            }
        }
        ids.into_iter().take(limit).collect()
    }

    fn list(&self, found: Vec<TaskRow>, floor: Option<u64>, filter: &TaskFilter) -> TaskPage {
        let changes = self.changes();
        let mut tasks = found;
        tasks.retain(|task| !changes.contains_key(task.id.as_str()));
        let changed = changes.into_values().flatten();
        let is_examined = |task: &&TaskRow| floor.is_none_or(|floor| task.number >= floor);
        tasks.extend(changed.filter(is_examined).filter(|task| filter.matches(task)).cloned());
        tasks.sort_unstable_by_key(|task| std::cmp::Reverse(task.number));
        let is_cut = tasks.len() > filter.limit;
        tasks.truncate(filter.limit);
        let last = tasks.last().map(|task| task.number);
        TaskPage { tasks, floor: if is_cut { last } else { floor } }
    }

    fn events(&self, found: FoundEvents, max: usize, filter: &EventFilter) -> EventPage {
        let FoundEvents { mut events, next: from, first, is_end } = found;
        let mut next = from;
        let later = self.entries.iter().flat_map(|entry| &entry.batch.events);
        let most = if is_end { MAX_EXAMINED_EVENTS } else { 0 };
        for event in later.skip_while(|event| event.seq <= from).take(most) {
            if events.len() >= max {
                break;
            }
            next = event.seq;
            if filter.matches(event) {
                events.push(event.clone());
            }
        }
        EventPage { events, next, first: first.max(self.first_event), last: self.last_event }
    }

    fn expired(&self, found: Vec<ExpiredTask>, cut: bool, rule: &TaskRule) -> Vec<ExpiredTask> {
        let horizon = if cut { found.last().map(ExpiredTask::order) } else { None };
        let mut ended = Ended {
            tasks: found.into_iter().map(|task| (task.id.clone(), task)).collect(),
            // Tasks up to the cursor were not read either.
            cut: cut || rule.after.is_some(),
            count: rule.count,
            bytes: Some(rule.bytes),
        };
        // The snapshot no longer shows what these removed. If in doubt, the totals are too low.
        for _ in self.between.iter().flat_map(|entry| &entry.batch.removed) {
            ended.count = ended.count.saturating_sub(1);
            ended.bytes = None;
        }
        for entry in &self.entries {
            let is_counted = entry.number > self.begun;
            for id in &entry.batch.removed {
                ended.replace(id, None, is_counted);
            }
            for task in entry.batch.kept_tasks() {
                ended.replace(&task.id, ExpiredTask::of(task), is_counted);
            }
        }
        ended.select(rule, horizon)
    }
}

/// The ended tasks as far as they are known, and the totals over all of them.
struct Ended {
    tasks: BTreeMap<String, ExpiredTask>,
    /// There are ended tasks that were not read.
    cut: bool,
    count: u64,
    /// None if a task was removed whose size is unknown: then no task expires by size this time.
    bytes: Option<u64>,
}

impl Ended {
    /// Applies one change. `is_counted`: it came after the totals, which follow it.
    fn replace(&mut self, id: &str, task: Option<ExpiredTask>, is_counted: bool) {
        let before = self.tasks.remove(id);
        if is_counted {
            match (&before, &task) {
                // The task may have been among those that were not read. If in doubt, the totals
                // are too low: a task that is kept for now is found by the next query.
                (None, None) if self.cut => {
                    self.count = self.count.saturating_sub(1);
                    self.bytes = None;
                }
                (None, Some(_)) if self.cut => {}
                _ => {
                    let (old, new) = (before.as_ref(), task.as_ref());
                    let added = self.count.saturating_add(new.is_some().into());
                    self.count = added.saturating_sub(old.is_some().into());
                    let size = |task: Option<&ExpiredTask>| task.map_or(0, |task| task.output_bytes);
                    self.bytes =
                        self.bytes.map(|bytes| bytes.saturating_add(size(new)).saturating_sub(size(old)));
                }
            }
        }
        self.tasks.extend(task.map(|task| (id.to_owned(), task)));
    }

    fn select(self, rule: &TaskRule, horizon: Option<(i64, u64)>) -> Vec<ExpiredTask> {
        let Self { tasks, mut count, mut bytes, .. } = self;
        let is_after = |task: &ExpiredTask| rule.after.is_none_or(|after| task.order() > after);
        let mut tasks: Vec<ExpiredTask> = tasks.into_values().filter(is_after).collect();
        tasks.sort_unstable_by_key(ExpiredTask::order);
        let expires = |task: &ExpiredTask| -> bool {
            let is_expired = rule.max_count.is_some_and(|max| count > max)
                || rule.max_output_bytes.is_some_and(|max| bytes.is_some_and(|bytes| bytes > max))
                || is_older(task.ended_ms, rule.now_ms, rule.max_age_ms);
            count = count.saturating_sub(1);
            bytes = bytes.map(|bytes| bytes.saturating_sub(task.output_bytes));
            is_expired
        };
        let known =
            tasks.into_iter().take_while(|task| horizon.is_none_or(|horizon| task.order() <= horizon));
        known.take(rule.limit).take_while(expires).collect()
    }
}
