//! The core and its journal: what is written when, what is told only then, and what happens when the disk is full.

use belay_journal::{Batch, EventRow, TaskRow};
use belay_protocol::Timestamp;
use belay_protocol::event::{Event, EventInfo, EventKind};

use crate::config::bounds;
use crate::core::{Core, Phase, Timer};
use crate::doc::Entry;
use crate::world::{CrashPoint, World};

impl<W: World> Core<W> {
    pub(crate) fn commit(&mut self) -> Result<(), belay_journal::Error> {
        for id in std::mem::take(&mut self.changed) {
            let row = self.tasks.get(&id).map(|task| task.entry.to_row());
            self.put_row(row);
        }
        if self.batch.removed.is_empty() {
            self.journal.note(&mut self.batch)?;
            self.noted_ms.1 = self.now.mono_ms;
        } else {
            self.journal.commit(&self.batch)?;
            self.batch = Batch::default();
        }
        if let Some(key) = self.retry.take() {
            self.disarm(key);
        }
        self.actions.append(&mut self.durable);
        self.last.append(&mut self.acks);
        if !self.slow_acks.0.is_empty() {
            if self.slow_acks.1.is_empty() {
                self.arm(bounds::SLOW_ACK_MS, Timer::Acks);
            }
            let (durable, waiting) = &mut self.slow_acks;
            waiting.append(durable);
        }
        self.serve_event_readers();
        Ok(())
    }

    /// Commits, or tells people why not and tries again later. Nothing is lost: shims keep what is not acknowledged.
    pub(crate) fn commit_or_retry(&mut self) {
        if let Err(error) = self.commit() {
            self.notice(
                format!("the journal cannot be written: {error}"),
                "free some disk space; it is tried again",
            );
            if self.phase == Phase::Leaving {
                // Nobody waits for a daemon that cannot write: the shims keep what is not acknowledged.
                self.batch = Batch::default();
                self.durable.clear();
                self.acks.clear();
                self.slow_acks.0.clear();
            } else if self.retry.is_none() {
                self.retry = Some(self.arm(bounds::COMMIT_RETRY_MS, Timer::Commit));
            }
        }
    }

    /// What is noted does not stay beside the database for long.
    pub(crate) fn watch_notes(&mut self) {
        match (self.journal.is_settled(), self.settling) {
            (false, None) => {
                self.noted_ms.0 = self.now.mono_ms;
                self.settling = Some(self.arm(bounds::SETTLE_MS, Timer::Settle));
            }
            // Somebody has asked for it meanwhile.
            (true, Some(key)) => {
                self.disarm(key);
                self.settling = None;
            }
            _ => {}
        }
    }

    /// The time has come to bring what is noted into the database; but not while notes come in, if it can be helped: then
    /// somebody works, and would have to wait for it.
    pub(crate) fn settle_soon(&mut self) {
        let quiet = self.now.mono_ms.saturating_sub(self.noted_ms.1) >= bounds::SETTLE_MS;
        let late = self.now.mono_ms.saturating_sub(self.noted_ms.0) >= bounds::SETTLE_LATEST_MS;
        if quiet || late {
            self.settle_journal();
        } else {
            self.settling = Some(self.arm(bounds::SETTLE_MS, Timer::Settle));
        }
    }

    pub(crate) fn settle_journal(&mut self) {
        self.settling = None;
        // With nothing but the daemon's own events there is nothing that a crash could take.
        let matters = self.journal.holds_noted_tasks();
        if matters {
            self.reach(CrashPoint::BeforeSettle);
        }
        let settled = self.journal.settle();
        if matters {
            self.reach(CrashPoint::AfterSettle);
        }
        if let Err(error) = settled {
            self.notice(
                format!("the journal cannot be brought up to date: {error}"),
                "free some disk space; nothing is lost, and it is tried again",
            );
            self.settling = Some(self.arm(bounds::COMMIT_RETRY_MS, Timer::Settle));
        }
    }

    /// How much is in the batch, to take back what comes after if that cannot be written.
    pub(crate) fn mark(&self) -> (usize, usize) {
        (self.batch.events.len(), self.batch.docs.len())
    }

    /// What was put since the mark will not be. (Nothing that was there before it is replaced in between.)
    pub(crate) fn take_back(&mut self, (events, docs): (usize, usize)) {
        self.batch.events.truncate(events);
        self.batch.docs.truncate(docs);
    }

    pub(crate) fn put(&mut self, entry: &Entry) {
        self.put_row(Some(entry.to_row()));
    }

    fn put_row(&mut self, row: Option<serde_json::Result<TaskRow>>) {
        // A document of ours always serialises; if one did not, keeping the old row is the lesser harm.
        let Some(Ok(row)) = row else { return };
        match self.batch.put.iter_mut().find(|old| old.id == row.id) {
            Some(old) => *old = row,
            None => self.batch.put.push(row),
        }
    }

    /// The number that the next event will have.
    pub(crate) fn next_event(&self) -> u64 {
        self.journal.last_event() + self.batch.events.len() as u64 + 1
    }

    /// Records an event in the batch.
    pub(crate) fn emit(&mut self, event: &Event) {
        let seq = self.next_event();
        self.batch.events.push(EventRow {
            seq,
            at_ms: self.now.wall_ms,
            kind: event.kind().name().to_owned(),
            task: event.task().map(str::to_owned),
            session: event.session().map(str::to_owned),
            // An event always serialises. If one did not, its row would be read as lost, and the numbers would have no hole.
            body: serde_json::to_string(event).unwrap_or_default(),
        });
    }
}

/// The event of a row; [`Event::Lost`] if damage has made it unreadable.
pub(crate) fn event_info(row: &EventRow) -> EventInfo {
    let event = match EventKind::from_name(&row.kind) {
        None | Some(EventKind::Lost) => Event::Lost,
        Some(_) => serde_json::from_str(&row.body).unwrap_or(Event::Lost),
    };
    EventInfo { seq: row.seq, at: Timestamp(row.at_ms), event }
}

/// Whether the row is an event of this type.
pub(crate) fn is_kind(row: &EventRow, kind: EventKind) -> bool {
    EventKind::from_name(&row.kind) == Some(kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_row_becomes_lost() {
        let event = Event::TaskRemoved { task: "sh-1".to_owned(), session: "se-1".to_owned() };
        let whole = EventRow {
            seq: 7,
            at_ms: 1_000,
            kind: event.kind().name().to_owned(),
            body: serde_json::to_string(&event).unwrap(),
            ..EventRow::default()
        };
        let read = |row: &EventRow| {
            let EventInfo { seq, at, event } = event_info(row);
            assert_eq!((seq, at), (7, Timestamp(1_000)));
            event
        };
        assert_eq!(read(&whole), event);
        for body in ["", "{}", "{\"type\":\"task.removed\"", r#"{"type":"task.removed","task":"sh-1"}"#] {
            assert_eq!(read(&EventRow { body: body.to_owned(), ..whole.clone() }), Event::Lost, "{body}");
        }
        for kind in [belay_journal::LOST_KIND, "task.invented", ""] {
            assert_eq!(read(&EventRow { kind: kind.to_owned(), ..whole.clone() }), Event::Lost, "{kind}");
        }
        assert_eq!(belay_journal::LOST_KIND, EventKind::Lost.name());
    }
}
