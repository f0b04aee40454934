//! `event/read follow`: the numbered record of everything that happened, from any number on.

use belay_journal::EventRow;
use belay_protocol::Timestamp;
use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::event::{EventInfo, FollowParams, FollowResult, ReadParams, ReadResult};
use belay_protocol::methods::notify;

use crate::answer::{Caller, Pending, What};
use crate::config::bounds;
use crate::core::Core;
use crate::event::ClientId;
use crate::life::object;
use crate::record::journal_error;
use crate::world::World;

/// How many events one look at the journal takes for a follower.
const PAGE: usize = 200;

impl<W: World> Core<W> {
    pub(crate) fn event_read(&mut self, caller: &Caller, params: &ReadParams) {
        self.commit_or_retry();
        let max = params.max.map_or(bounds::LIST_ITEMS, |max| max as usize).clamp(1, bounds::LIST_ITEMS);
        if params.after < self.journal.last_event() || params.wait_ms == 0 {
            return self.answer_events(caller, params.after, max);
        }
        let within = params.wait_ms.min(bounds::EVENT_WAIT_MS);
        self.promise(caller.clone(), What::Events { after: params.after, max }, Some(within));
    }

    pub(crate) fn answer_events(&mut self, caller: &Caller, after: u64, max: usize) {
        match self.read_events(after, max) {
            Ok(result) => self.reply(caller, &result),
            Err(error) => self.fail(caller, error),
        }
    }

    fn read_events(&self, after: u64, max: usize) -> Result<ReadResult, RpcError> {
        let page = self.journal.events(after, max).map_err(|error| journal_error(&error))?;
        check_position(after, page.first, page.last)?;
        let next = page.events.last().map_or(after.min(page.last), |event| event.seq);
        let events = page.events.into_iter().map(event_info).collect();
        Ok(ReadResult { events, next, first: page.first, last: page.last })
    }

    pub(crate) fn event_follow(&mut self, caller: &Caller, params: &FollowParams) {
        self.commit_or_retry();
        let page = match self.journal.events(params.after, 1) {
            Ok(page) => page,
            Err(error) => return self.fail(caller, journal_error(&error)),
        };
        if let Err(error) = check_position(params.after, page.first, page.last) {
            return self.fail(caller, error);
        }
        if let Some(client) = self.clients.get_mut(&caller.client) {
            client.events_after = Some(params.after);
        }
        self.reply(caller, &FollowResult { after: params.after, first: page.first, last: page.last });
        self.serve_event_follower(caller.client);
    }

    /// There are new events: whoever waits for them gets them.
    pub(crate) fn serve_event_readers(&mut self) {
        let last = self.journal.last_event();
        let due = |pending: &Pending| matches!(pending.what, What::Events { after, .. } if after < last);
        let waiting: Vec<u64> =
            self.pending.iter().filter(|(_, pending)| due(pending)).map(|(id, _)| *id).collect();
        for id in waiting {
            self.answer_is_due(id);
        }
        let followers: Vec<ClientId> = self
            .clients
            .iter()
            .filter(|(_, client)| client.events_after.is_some())
            .map(|(id, _)| *id)
            .collect();
        for client in followers {
            self.serve_event_follower(client);
        }
    }

    /// Sends a follower the events that it has not had, as far as it keeps up.
    pub(crate) fn serve_event_follower(&mut self, id: ClientId) {
        loop {
            let Some(client) = self.clients.get(&id) else { return };
            let Some(after) = client.events_after else { return };
            if after >= self.journal.last_event() || client.queued_bytes >= bounds::CLIENT_QUEUE_BYTES {
                return;
            }
            let Ok(page) = self.journal.events(after, PAGE) else { return };
            let Some(last) = page.events.last().map(|event| event.seq) else { return };
            for event in page.events {
                self.notify(id, notify::EVENT_ITEM, &event_info(event));
            }
            if let Some(client) = self.clients.get_mut(&id) {
                client.events_after = Some(last);
            }
        }
    }
}

/// A reader who comes too late is told from where it can go on; one who comes too early, where the end is.
fn check_position(after: u64, first: u64, last: u64) -> Result<(), RpcError> {
    if after > last {
        let message = format!("event {after} has not happened yet: the last one is {last}");
        return Err(RpcError::invalid("after", message).from_position(last));
    }
    if after != 0 && after + 1 < first {
        let message = format!("events up to {} have been removed by the rules of retention", first - 1);
        return Err(RpcError::new(ErrorKind::Expired, message)
            .field("after")
            .hint(format!("go on with after = {}", first - 1))
            .from_position(first - 1));
    }
    Ok(())
}

pub(crate) fn event_info(row: EventRow) -> EventInfo {
    let EventRow { seq, at_ms, kind, task, session, body } = row;
    let more = object(serde_json::from_str(&body).unwrap_or_default());
    EventInfo { seq, at: Timestamp(at_ms), kind, task, session, more }
}
