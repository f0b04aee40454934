//! Ends that somebody should hear of: what did not come to a proper end in a session, and completions that its client has not
//! been told. Each is told once: not to whoever waited for it or stopped it, and again after a crash if it was not acknowledged.

use belay_protocol::event::EventKind;
use belay_protocol::session::{Leftover, LeftoverStatus, SessionState};
use belay_protocol::task::{Outcome, Status, TaskInfo};

use crate::commit::is_kind;
use crate::config::bounds;
use crate::core::{Core, Task, Timer};
use crate::doc::Entry;
use crate::sessions::STANDING;
use crate::world::World;

/// The kind of a notice's document in the journal.
const NOTICE: &str = "notice";

impl<W: World> Core<W> {
    pub(crate) fn load_notices(&mut self) -> Result<(), belay_journal::Error> {
        for (key, task) in self.journal.docs(NOTICE)? {
            let Some((id, seq)) = key.split_once('/') else { continue };
            if let (Some(session), Ok(seq)) = (self.sessions.get_mut(id), seq.parse()) {
                session.notices.insert(seq, task);
            }
        }
        Ok(())
    }

    /// The number of the event that tells the end of this task.
    pub(crate) fn end_number(&self, id: &str) -> u64 {
        let is_it = |event: &&belay_journal::EventRow| {
            event.task.as_deref() == Some(id) && is_kind(event, EventKind::TaskEnded)
        };
        self.batch
            .events
            .iter()
            .rev()
            .find(is_it)
            .map_or_else(|| self.journal.last_event(), |event| event.seq)
    }

    /// Whether the client of the task's session has ended it itself. (One that waits for it is told by the answer; but that is not
    /// given yet.)
    pub(crate) fn is_told(task: &Task, info: &TaskInfo) -> bool {
        let own = format!("session:{}", task.entry.session);
        let actor = info.outcome.as_ref().and_then(|outcome| outcome.actor());
        let is_own = |actor: &str| {
            actor.strip_prefix(&own).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
        };
        // A hook is itself a telling.
        task.entry.doc.hook.is_some() || actor.is_some_and(is_own)
    }

    /// A task of these sessions has ended, before that is durable: what did not end properly is remembered, and its session's
    /// client is to be told, unless it knows.
    pub(crate) fn note_end(&mut self, entry: &Entry, info: &TaskInfo, seq: u64, told: bool) {
        let left = match info.status {
            Status::StopFailed => {
                let survivors = info.outcome.as_ref().map_or(0, |outcome| outcome.survivors().len());
                let why = format!("{survivors} of its processes are alive after SIGKILL");
                Some((LeftoverStatus::StopFailed, why))
            }
            Status::Lost => {
                let known = info.outcome.as_ref().and_then(Outcome::reason);
                let why = known.unwrap_or("how it ended is not known").to_owned();
                Some((LeftoverStatus::Lost, why))
            }
            _ => None,
        };
        if let Some((status, why)) = left {
            let left = Leftover { id: entry.id.clone(), status, why };
            for id in self.sessions_of(entry) {
                if let Some(session) = self.sessions.get_mut(&id).filter(|_| id != STANDING) {
                    session.doc.left.push(left.clone());
                    let surplus = session.doc.left.len().saturating_sub(bounds::LEFTOVERS);
                    session.doc.left.drain(..surplus);
                    self.put_session(&id);
                }
            }
        }
        if !told && entry.session != STANDING {
            self.leave_notice(&entry.session, seq, &entry.id);
        }
    }

    fn leave_notice(&mut self, id: &str, seq: u64, task: &str) {
        let Some(session) =
            self.sessions.get_mut(id).filter(|session| session.doc.state != SessionState::Ended)
        else {
            return;
        };
        session.notices.insert(seq, task.to_owned());
        let surplus = session.notices.len() > bounds::NOTICES_PER_SESSION;
        let oldest = surplus.then(|| session.notices.pop_first()).flatten();
        self.put_doc(NOTICE, &notice_key(id, seq), Some(task.to_owned()));
        if let Some((seq, _)) = oldest {
            self.put_doc(NOTICE, &notice_key(id, seq), None);
        }
    }

    /// The end of this task is being told. Its notice is gone for everybody who asks, and from the record when the answer has left: a
    /// daemon that dies in between tells it again rather than never.
    pub(crate) fn told_of(&mut self, id: &str, task: &str) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        let seq = session.notices.iter().find(|(_, told)| *told == task).map(|(seq, _)| *seq);
        if let Some(seq) = seq {
            session.notices.remove(&seq);
            self.told.0.push((id.to_owned(), seq));
            if self.told.1.is_none() {
                self.told.1 = Some(self.arm(bounds::SETTLE_MS, Timer::Told));
            }
        }
    }

    pub(crate) fn drop_told(&mut self) {
        self.told.1 = None;
        for (id, seq) in std::mem::take(&mut self.told.0) {
            self.put_doc(NOTICE, &notice_key(&id, seq), None);
        }
    }

    /// These ends have been told.
    pub(crate) fn forget_notices(&mut self, id: &str, told: impl Fn(u64, &str) -> bool) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        let gone: Vec<u64> =
            session.notices.iter().filter(|(seq, task)| told(**seq, task)).map(|(seq, _)| *seq).collect();
        for seq in &gone {
            session.notices.remove(seq);
        }
        for seq in gone {
            self.put_doc(NOTICE, &notice_key(id, seq), None);
        }
    }

    /// The sessions that a task is in: its own, and those above.
    pub(crate) fn sessions_of(&self, entry: &Entry) -> Vec<String> {
        let above = entry.doc.lineage.iter().filter(|above| self.sessions.contains_key(*above));
        let own = Some(&entry.session).filter(|own| !entry.doc.lineage.contains(own));
        above.chain(own).cloned().collect()
    }

    /// A stalled task keeps no session from being drained.
    pub(crate) fn may_have_stalled(&mut self, id: &str) {
        let stalled = self.tasks.get(id).filter(|task| task.entry.doc.stalled.is_some());
        if let Some(entry) = stalled.map(|task| task.entry.clone()) {
            self.serve_sessions_of(&entry);
        }
    }

    /// The end of a task is durable: who waited for its sessions may be answered.
    pub(crate) fn serve_sessions_of(&mut self, entry: &Entry) {
        for id in self.sessions_of(entry) {
            self.session_may_be_over(&id);
            self.serve_session(&id);
        }
    }
}

fn notice_key(session: &str, seq: u64) -> String {
    format!("{session}/{seq}")
}
