//! Retention: ended tasks, their output and old events go by rule; live ones never do.

use belay_journal::{EventRule, TaskRule};
use serde_json::Map;

use crate::config::bounds;
use crate::core::Core;
use crate::doc::Entry;
use crate::event::Action;
use crate::world::{CrashPoint, World};

/// How many ends there may be between two looks at the rules.
const LOOK_EVERY: u32 = 100;

impl<W: World> Core<W> {
    /// Now and then, by itself: after so many ends. An idle daemon does not look.
    pub(crate) fn collect_now_and_then(&mut self) {
        if self.ended_since_gc < LOOK_EVERY {
            return;
        }
        self.ended_since_gc = 0;
        if let Err(error) = self.collect_some(false) {
            self.notice(format!("old tasks could not be removed: {error}"), "belay gc tries again");
        }
    }

    /// Removes everything that the rules no longer keep: ids, bytes, events.
    pub(crate) fn collect(
        &mut self,
        all: bool,
        dry_run: bool,
    ) -> Result<(Vec<String>, u64, u64), belay_journal::Error> {
        self.commit()?;
        let mut removed = Vec::new();
        let mut freed_bytes = 0;
        if dry_run {
            let found = self.journal.expired_tasks(&self.task_rule(all, usize::MAX))?;
            let entries = found.into_iter().filter_map(|row| Entry::from_row(row).ok());
            for entry in entries {
                freed_bytes += self.kept_bytes(&entry);
                removed.push(entry.id);
            }
            return Ok((removed, freed_bytes, 0));
        }
        loop {
            let (ids, bytes) = self.collect_some(all)?;
            if ids.is_empty() {
                break;
            }
            removed.extend(ids);
            freed_bytes += bytes;
        }
        let mut events = 0;
        loop {
            let rule = EventRule {
                now_ms: self.now.wall_ms,
                max_age_ms: Some(self.config.retention.age_ms),
                max_count: Some(self.config.retention.events),
                limit: 10_000,
            };
            match self.journal.expire_events(&rule)? {
                0 => break,
                n => events += n,
            }
        }
        Ok((removed, freed_bytes, events))
    }

    fn collect_some(&mut self, all: bool) -> Result<(Vec<String>, u64), belay_journal::Error> {
        let found = self.journal.expired_tasks(&self.task_rule(all, bounds::GC_ITEMS))?;
        let mut removed = Vec::new();
        let mut freed_bytes = 0;
        for row in found {
            let id = row.id.clone();
            match Entry::from_row(row) {
                Ok(entry) => freed_bytes += self.forget(&entry),
                Err(_) => self.batch.removed.push(id.clone()),
            }
            removed.push(id);
        }
        self.commit()?;
        Ok((removed, freed_bytes))
    }

    fn task_rule(&self, all: bool, limit: usize) -> TaskRule {
        let retention = &self.config.retention;
        if all {
            return TaskRule {
                now_ms: self.now.wall_ms,
                max_age_ms: None,
                max_count: Some(0),
                max_output_bytes: None,
                limit,
            };
        }
        TaskRule {
            now_ms: self.now.wall_ms,
            max_age_ms: Some(retention.age_ms),
            max_count: Some(retention.tasks),
            max_output_bytes: Some(retention.output_bytes),
            limit,
        }
    }

    /// Takes an ended task out of the record, and its directory off the disk once that is durable.
    pub(crate) fn forget(&mut self, entry: &Entry) -> u64 {
        let freed_bytes = self.kept_bytes(entry);
        self.world.reach(CrashPoint::BeforeRemove);
        self.batch.removed.push(entry.id.clone());
        self.emit("task.removed", Some((&entry.id, &entry.session)), Map::new());
        self.durable.push(Action::Reach(CrashPoint::AfterRemove));
        self.durable.push(Action::RemoveDir { path: self.config.task_dir(&entry.id) });
        freed_bytes
    }

    fn kept_bytes(&self, entry: &Entry) -> u64 {
        self.world.log(&self.config.task_dir(&entry.id)).map_or(0, |log| log.kept_bytes())
    }
}
