//! Retention: ended tasks, their output and old events go by rule; live ones never do.

use belay_journal::{EventRule, TaskRule};
use belay_protocol::daemon::GcResult;
use belay_protocol::event::{Event, EventKind};

use crate::answer::{Caller, What};
use crate::commit::is_kind;
use crate::config::bounds;
use crate::core::{Core, Timer};
use crate::doc::Entry;
use crate::event::Action;
use crate::record::journal_error;
use crate::telling::About;
use crate::world::{CrashPoint, World};

/// How many ends there may be between two looks at the rules.
const LOOK_EVERY: u32 = 100;

/// Between two bites others are heard.
const BITE_PAUSE_MS: u64 = 1;

/// How far back the removals of an earlier daemon are looked for: more than one commit holds.
const LEFTOVER_EVENTS: u64 = 2 * bounds::GC_ITEMS as u64;

/// A collection, and what it has done so far.
#[derive(Debug, Default)]
pub(crate) struct Collection {
    all: bool,
    done: GcResult,
}

impl<W: World> Core<W> {
    /// Now and then, by itself: when the doors open, when other rules come to count, and after so many ends. It goes on a bite
    /// at a time, and between two of them others are heard, until nothing is left to do. An idle daemon does not look.
    pub(crate) fn collect_now_and_then(&mut self) {
        if self.ended_since_gc < LOOK_EVERY {
            return;
        }
        self.ended_since_gc = 0;
        match self.bite(&mut Collection::default()) {
            // It may be going on already, and need not twice.
            Ok(true) if !self.timers.values().any(|timer| *timer == Timer::Collect) => {
                self.arm(BITE_PAUSE_MS, Timer::Collect);
            }
            Ok(_) => {}
            Err(error) => {
                self.notice(format!("old tasks could not be removed: {error}"), "belay gc tries again");
            }
        }
    }

    /// The end of the event at hand brings a look at the rules.
    pub(crate) fn collect_soon(&mut self) {
        self.ended_since_gc = LOOK_EVERY;
    }

    /// Removes what the last removals of a daemon that died may have left: their records went, their directories did not.
    pub(crate) fn remove_leftovers(&mut self) {
        let after = self.journal.last_event().saturating_sub(LEFTOVER_EVENTS);
        let Ok(page) = self.journal.events(after, bounds::LIST_ITEMS) else { return };
        let removed = page.events.into_iter().filter(|event| is_kind(event, EventKind::TaskRemoved));
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

    /// What a collection would remove now.
    pub(crate) fn would_collect(&mut self, all: bool) -> Result<GcResult, belay_journal::Error> {
        self.commit_before_collecting()?;
        let found = self.journal.expired_tasks(&self.task_rule(all, usize::MAX))?;
        let mut result = GcResult { dry_run: true, ..GcResult::default() };
        for entry in found.into_iter().filter_map(|row| Entry::from_row(row).ok()) {
            result.freed_bytes += self.kept_bytes(&entry);
            result.removed.push(entry.id);
        }
        Ok(result)
    }

    /// Begins to remove everything that the rules no longer keep: a bite at a time, and between two of them others are heard.
    pub(crate) fn collect(&mut self, caller: Caller, all: bool) {
        match self.commit_before_collecting() {
            Ok(()) => self.go_on_collecting(caller, Collection { all, ..Collection::default() }),
            Err(error) => self.fail(&caller, journal_error(&error)),
        }
    }

    fn commit_before_collecting(&mut self) -> Result<(), belay_journal::Error> {
        match self.commit() {
            // A full disk is what a collection is for.
            Err(belay_journal::Error::Full { .. }) => Ok(()),
            other => other,
        }
    }

    /// The next bite: of tasks while there are any, then of events; then the answer.
    pub(crate) fn go_on_collecting(&mut self, caller: Caller, mut so_far: Collection) {
        match self.bite(&mut so_far) {
            Ok(true) => drop(self.promise(caller, What::Collect(Box::new(so_far)), Some(BITE_PAUSE_MS))),
            Ok(false) => self.reply(&caller, &so_far.done),
            Err(error) => self.fail(&caller, journal_error(&error)),
        }
    }

    /// Whether there may be more.
    fn bite(&mut self, so_far: &mut Collection) -> Result<bool, belay_journal::Error> {
        let (ids, bytes) = self.collect_some(so_far.all)?;
        let any = !ids.is_empty();
        so_far.done.removed.extend(ids);
        so_far.done.freed_bytes += bytes;
        if any {
            // If there was no room to record it, there will be.
            return Ok(self.batch.is_empty());
        }
        let events = self.expire_events()?;
        so_far.done.events_expired += events;
        Ok(events > 0)
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
        let About { task, session } = About::new(entry);
        self.emit(&Event::TaskRemoved { task, session });
        self.durable.push(Action::Reach(CrashPoint::AfterRemove));
        self.durable.push(Action::RemoveDir { path: self.config.task_dir(&entry.id) });
        freed_bytes
    }

    fn kept_bytes(&self, entry: &Entry) -> u64 {
        self.world.log(&self.config.task_dir(&entry.id)).map_or(0, |log| log.kept_bytes())
    }
}
