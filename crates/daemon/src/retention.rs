//! Retention: ended tasks, their output and old events go by rule; live ones never do.

use belay_journal::{EventRule, TaskRule};
use serde_json::json;

use crate::config::bounds;
use crate::core::Core;
use crate::doc::Entry;
use crate::event::Action;
use crate::world::{CrashPoint, World};

/// How many ends there may be between two looks at the rules.
const LOOK_EVERY: u32 = 100;

/// How far back the removals of an earlier daemon are looked for: more than one commit holds.
const LEFTOVER_EVENTS: u64 = 2 * bounds::GC_ITEMS as u64;

impl<W: World> Core<W> {
    /// Now and then, by itself: when the doors open, and after so many ends. An idle daemon does not look.
    pub(crate) fn collect_now_and_then(&mut self) {
        if self.ended_since_gc < LOOK_EVERY {
            return;
        }
        self.ended_since_gc = 0;
        if let Err(error) = self.collect_some(false).and_then(|_| self.expire_events()) {
            self.notice(format!("old tasks could not be removed: {error}"), "belay gc tries again");
        }
    }

    /// The next event brings a look at the rules.
    pub(crate) fn collect_soon(&mut self) {
        self.ended_since_gc = LOOK_EVERY;
    }

    /// Removes what the last removals of a daemon that died may have left: their records went, their directories did not.
    pub(crate) fn remove_leftovers(&mut self) {
        let after = self.journal.last_event().saturating_sub(LEFTOVER_EVENTS);
        let Ok(page) = self.journal.events(after, bounds::LIST_ITEMS) else { return };
        let removed = page.events.into_iter().filter(|event| event.kind == "task.removed");
        for id in removed.filter_map(|event| event.task).filter(|id| !self.tasks.contains_key(id)) {
            self.actions.push(Action::RemoveDir { path: self.config.task_dir(&id) });
        }
    }

    /// One bite of the events that the rules no longer keep.
    fn expire_events(&mut self) -> Result<u64, belay_journal::Error> {
        let rule = EventRule {
            now_ms: self.now.wall_ms,
            max_age_ms: Some(self.config.retention.age_ms),
            max_count: Some(self.config.retention.events),
            limit: 10_000,
        };
        self.journal.expire_events(&rule)
    }

    /// Removes everything that the rules no longer keep: ids, bytes, events.
    pub(crate) fn collect(
        &mut self,
        all: bool,
        dry_run: bool,
    ) -> Result<(Vec<String>, u64, u64), belay_journal::Error> {
        match self.commit() {
            // A full disk is what a collection is for.
            Err(belay_journal::Error::Full { .. }) => {}
            other => other?,
        }
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
            if !self.batch.is_empty() {
                // There was no room to record it; there will be.
                return Ok((removed, freed_bytes, 0));
            }
        }
        let mut events = 0;
        loop {
            match self.expire_events()? {
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
        self.commit_removals()?;
        Ok((removed, freed_bytes))
    }

    /// Makes removals durable. Where the disk has no room even for that, the output goes first and its record follows as
    /// soon as it can: else nobody could ever free a disk that Belay has filled.
    pub(crate) fn commit_removals(&mut self) -> Result<(), belay_journal::Error> {
        match self.commit() {
            Err(belay_journal::Error::Full { .. }) => {
                let is_removal = |action: &mut Action| matches!(action, Action::RemoveDir { .. });
                self.actions.extend(self.durable.extract_if(.., is_removal));
                self.commit_or_retry();
                Ok(())
            }
            other => other,
        }
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
        self.kept_memory.forget(&entry.id);
        self.world.reach(CrashPoint::BeforeRemove);
        self.batch.removed.push(entry.id.clone());
        self.emit("task.removed", Some((&entry.id, &entry.session)), json!({}));
        self.durable.push(Action::Reach(CrashPoint::AfterRemove));
        self.durable.push(Action::RemoveDir { path: self.config.task_dir(&entry.id) });
        freed_bytes
    }

    fn kept_bytes(&self, entry: &Entry) -> u64 {
        self.world.log(&self.config.task_dir(&entry.id)).map_or(0, |log| log.kept_bytes())
    }
}
