//! `event/read follow`: the numbered record of everything that happened, from any number on.

use belay_journal::EventRow;
use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::event::{
    EventInfo, EventKind, Filter, FollowParams, FollowResult, ReadParams, ReadResult,
};
use belay_protocol::methods::notify;
use belay_protocol::rpc::{Notification, Version};

use super::check::at_most;
use crate::answer::{Caller, Pending, What, line};
use crate::commit::event_info;
use crate::config::bounds;
use crate::core::Core;
use crate::event::ClientId;
use crate::record::journal_error;
use crate::rights::Scope;
use crate::world::World;

/// How many events one look at the journal takes for a follower.
const PAGE: usize = 200;

/// How many events one call looks at that are not wanted, or not to be seen.
const LOOK_AT: usize = 10_000;

/// Events on their way to followers: read and put into words once, however many are told of them.
#[derive(Debug)]
struct Page {
    after: u64,
    last: u64,
    events: Vec<(EventRow, Vec<u8>)>,
}

impl<W: World> Core<W> {
    pub(crate) fn event_read(&mut self, caller: &Caller, params: &ReadParams) {
        self.commit_or_retry();
        let asked = at_most("max", params.max, bounds::LIST_ITEMS)
            .and_then(|max| Ok((self.check_filter(caller, &params.only)?, max)));
        let (only, max) = match asked {
            Ok(asked) => asked,
            Err(error) => return self.fail(caller, error),
        };
        match self.read_events(&self.scope(caller), &only, params.after, max) {
            Ok(found) if found.events.is_empty() && params.wait_ms > 0 => {
                let within = params.wait_ms.min(bounds::EVENT_WAIT_MS);
                let what = What::Events { after: found.next, max, only: Box::new(only) };
                self.promise(caller.clone(), what, Some(within));
            }
            Ok(found) => self.reply(caller, &found),
            Err(error) => self.fail(caller, error),
        }
    }

    pub(crate) fn answer_events(&mut self, caller: &Caller, only: &Filter, after: u64, max: usize) {
        match self.read_events(&self.scope(caller), only, after, max) {
            Ok(result) => self.reply(caller, &result),
            Err(error) => self.fail(caller, error),
        }
    }

    /// Up to so many events that are wanted and may be seen. What is not, is passed over, up to a bound: then the answer says how
    /// far it has come.
    fn read_events(
        &self,
        scope: &Scope,
        only: &Filter,
        after: u64,
        max: usize,
    ) -> Result<ReadResult, RpcError> {
        let page = self.journal.events(after, max).map_err(|error| journal_error(&error))?;
        check_position(after, page.first, page.last)?;
        let (first, last) = (page.first, page.last);
        let mut next = page.events.last().map_or(after.min(last), |event| event.seq);
        let mut events = self.seen_events(scope, only, &page.events);
        let mut looked = max;
        while events.is_empty() && next < last && looked < LOOK_AT {
            let page = self.journal.events(next, PAGE).map_err(|error| journal_error(&error))?;
            let Some(end) = page.events.last().map(|event| event.seq) else { break };
            (next, looked) = (end, looked + PAGE);
            events = self.seen_events(scope, only, &page.events);
            if events.len() > max {
                events.truncate(max);
                next = events.last().map_or(next, |event| event.seq);
            }
        }
        Ok(ReadResult { events, next, first, last })
    }

    fn seen_events(&self, scope: &Scope, only: &Filter, rows: &[EventRow]) -> Vec<EventInfo> {
        rows.iter().filter(|row| is_wanted(only, row) && self.sees(scope, row)).map(event_info).collect()
    }

    /// Whether an event is about something that is the reader's.
    fn sees(&self, scope: &Scope, row: &EventRow) -> bool {
        if *scope == Scope::Person {
            return true;
        }
        let is_own = |id: &str| Some(id) == scope.id();
        if row.task.as_deref().is_some_and(is_own) || row.session.as_deref().is_some_and(is_own) {
            return true;
        }
        match (&row.task, &row.session) {
            (Some(task), _) => self.entry(task).is_ok_and(|entry| scope.covers_task(&entry)),
            (None, Some(id)) => {
                self.sessions.get(id).is_some_and(|session| scope.covers(id, &session.doc.lineage))
            }
            (None, None) => false,
        }
    }

    /// Ids that were typed become whole ones.
    fn check_filter(&self, caller: &Caller, only: &Filter) -> Result<Filter, RpcError> {
        let task = only.task.as_ref().map(|text| self.find(caller, text)).transpose();
        let task = task.map_err(|error| error.field("task"))?.map(|entry| entry.id);
        let session =
            only.session.as_ref().map(|text| self.find_session(&self.scope(caller), text)).transpose()?;
        Ok(Filter { task, session, types: only.types.clone() })
    }

    pub(crate) fn event_follow(&mut self, caller: &Caller, params: &FollowParams) {
        self.commit_or_retry();
        let found = self.check_filter(caller, &params.only).and_then(|only| {
            let page = self.journal.events(params.after, 1).map_err(|error| journal_error(&error))?;
            check_position(params.after, page.first, page.last)?;
            Ok((only, page))
        });
        let (only, page) = match found {
            Ok(found) => found,
            Err(error) => return self.fail(caller, error),
        };
        if let Some(client) = self.clients.get_mut(&caller.client) {
            client.events_after = Some(params.after);
            client.events_only = only;
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
            self.serve_event_reader(id);
        }
        let followers: Vec<ClientId> = self
            .clients
            .iter()
            .filter(|(_, client)| client.events_after.is_some())
            .map(|(id, _)| *id)
            .collect();
        // Those who keep up are all at the same place.
        let mut page = None;
        for client in followers {
            self.tell_follower(client, &mut page);
        }
    }

    /// One who waits is answered if there is something for it; else it waits on behind what is not.
    fn serve_event_reader(&mut self, id: u64) {
        let Some(Pending { caller, what: What::Events { after, max, only }, .. }) = self.pending.get(&id)
        else {
            return;
        };
        match self.read_events(&self.scope(caller), only, *after, *max) {
            Ok(found) if found.events.is_empty() => {
                if let Some(Pending { what: What::Events { after, .. }, .. }) = self.pending.get_mut(&id) {
                    *after = found.next;
                }
            }
            _ => self.answer_is_due(id),
        }
    }

    /// Sends a follower the events that it has not had, as far as it keeps up.
    pub(crate) fn serve_event_follower(&mut self, id: ClientId) {
        self.tell_follower(id, &mut None);
    }

    /// The page is the one that was read last, for this follower or the one before.
    fn tell_follower(&mut self, id: ClientId, page: &mut Option<Page>) {
        loop {
            let Some(client) = self.clients.get(&id) else { return };
            let Some(after) = client.events_after else { return };
            if after >= self.journal.last_event() || client.queued_bytes >= bounds::CLIENT_QUEUE_BYTES {
                return;
            }
            if page.as_ref().is_none_or(|page| page.after != after) {
                *page = self.event_page(after);
            }
            let Some(Page { last, events, .. }) = page else { return };
            let mut lines = Vec::new();
            for (row, line) in events {
                if is_wanted(&client.events_only, row) && self.sees(&client.scope, row) {
                    lines.extend_from_slice(line);
                }
            }
            if !lines.is_empty() {
                self.send_lines(id, lines);
            }
            if let Some(client) = self.clients.get_mut(&id) {
                client.events_after = Some(*last);
            }
        }
    }

    /// The next events that there are.
    fn event_page(&self, after: u64) -> Option<Page> {
        let rows = self.journal.events(after, PAGE).ok()?.events;
        let last = rows.last()?.seq;
        let worded = |row: EventRow| {
            let event = event_info(&row);
            let said = Notification { jsonrpc: Version::V2, method: notify::EVENT_ITEM, params: &event };
            Some((row, line(&said).ok()?))
        };
        Some(Page { after, last, events: rows.into_iter().filter_map(worded).collect() })
    }
}

/// By the columns of the row: a wanted event whose body cannot be read is delivered as lost.
fn is_wanted(only: &Filter, row: &EventRow) -> bool {
    let kind = EventKind::from_name(&row.kind).unwrap_or(EventKind::Lost);
    only.matches(kind, row.task.as_deref(), row.session.as_deref())
}

/// A reader who comes too late is told from where it can go on; one who comes too early, where the end is.
fn check_position(after: u64, first: u64, last: u64) -> Result<(), RpcError> {
    if after > last {
        let message = format!("event {after} has not happened yet: the last one is {last}");
        let hint = format!("go on with after = {last}; belay events -f --after {last} shows what comes");
        return Err(RpcError::invalid("after", message).hint(hint).from_position(last));
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
