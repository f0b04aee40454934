//! Whether sessions are drained or busy, as recorded events: each change of the level is recorded once, also across a crash.

use belay_journal::Loaded;
use belay_protocol::event::Event;
use serde::{Deserialize, Serialize};

use super::STANDING;
use crate::host::Host;
use crate::runtime::{Core, Phase};

/// The kind of a level's document in the journal.
const DOC_KIND: &str = "session_level";

/// The level of a session that was recorded last, as it is stored in the journal.
#[derive(Debug, Serialize, Deserialize)]
struct LevelDoc {
    busy: bool,
    /// The number of its event.
    event: u64,
}

impl<H: Host> Core<H> {
    pub(super) fn load_session_levels(&mut self, loaded: &mut Loaded) {
        for (id, body) in loaded.docs.remove(DOC_KIND).unwrap_or_default() {
            let Ok(level) = serde_json::from_str::<LevelDoc>(&body) else { continue };
            self.sessions.update(&id, |session| {
                session.busy = level.busy;
                session.doc.last_event = session.doc.last_event.max(level.event);
            });
        }
    }

    /// Whether the level of a session has changed. While tasks are adopted, their states are not final.
    pub(crate) fn has_unrecorded_levels(&self) -> bool {
        self.ctx.phase != Phase::Adopting && self.tasks.has_changed_levels()
    }

    /// Records the sessions whose level has changed. A part of every commit, so that the level is recorded with its cause or
    /// right after it.
    pub(crate) fn record_session_levels(&mut self) {
        if !self.has_unrecorded_levels() {
            return;
        }
        for id in self.tasks.take_changed_levels() {
            self.record_session_level(&id);
        }
    }

    /// Records the level of a session, if the recorded one is another.
    pub(super) fn record_session_level(&mut self, id: &str) {
        // Every command of a person would make two events of the standing session.
        if id == STANDING {
            return;
        }
        let tally = self.tasks.tally(id);
        let busy = !tally.is_drained();
        let Some(session) = self.sessions.get(id).filter(|session| session.busy != busy) else { return };
        let (session, tags, counts) = (id.to_owned(), session.doc.tags(), tally.counts);
        let event = if busy {
            Event::SessionBusy { session, counts }
        } else {
            Event::SessionDrained { session, counts }
        };
        let event = self.ctx.record(event, tags);
        self.sessions.set_level(id, busy, event);
        let body = serde_json::to_string(&LevelDoc { busy, event }).ok();
        self.ctx.journal.put_doc(DOC_KIND, id, body);
    }

    /// The session is removed.
    pub(super) fn forget_session_level(&mut self, id: &str) {
        self.ctx.journal.put_doc(DOC_KIND, id, None);
    }
}
