//! The live tasks, found by id and listed by number.

use std::collections::BTreeMap;

use super::Task;
use crate::runtime::Table;

/// Tasks are stored by number, because a list walks them in that order and would otherwise look each of them up; and in
/// boxes, because numbers only grow, which leaves the nodes of the table half empty.
#[derive(Debug, Default)]
pub(super) struct LiveTasks {
    by_number: Table<u64, Box<Task>>,
    numbers: BTreeMap<String, u64>,
}

impl LiveTasks {
    pub(super) fn len(&self) -> usize {
        self.by_number.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_number.is_empty()
    }

    pub(super) fn contains(&self, id: &str) -> bool {
        self.numbers.contains_key(id)
    }

    pub(super) fn get(&self, id: &str) -> Option<&Task> {
        self.by_number.get(self.numbers.get(id)?).map(Box::as_ref)
    }

    pub(super) fn get_mut(&mut self, id: &str) -> Option<&mut Task> {
        self.by_number.get_mut(self.numbers.get(id)?).map(Box::as_mut)
    }

    pub(super) fn insert(&mut self, task: Task) {
        let number = task.stored.number;
        self.numbers.insert(task.stored.id.clone(), number);
        self.by_number.insert(number, Box::new(task));
    }

    pub(super) fn remove(&mut self, id: &str) -> Option<Task> {
        let number = self.numbers.remove(id)?;
        self.by_number.remove(&number).map(|task| *task)
    }

    /// The ids of all, oldest first.
    pub(super) fn ids(&self) -> impl Iterator<Item = &String> {
        self.by_number.values().map(|task| &task.stored.id)
    }

    /// Tasks with a smaller number than this, newest first.
    pub(super) fn newest_first(&self, before: Option<u64>) -> impl Iterator<Item = &Task> {
        let upper = before.unwrap_or(u64::MAX);
        self.by_number.range(..upper).rev().map(|(_, task)| task.as_ref())
    }
}
