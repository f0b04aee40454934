//! `event/read follow`: the numbered record of everything that happened, from any number on. The last events are in memory;
//! older ones are read by the journal's reader, a page at a time.

use std::collections::BTreeSet;

use belay_journal::{EventFilter, EventPage, EventRow, Query, Rows};
use belay_protocol::Timestamp;
use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::event::{
    Event, EventInfo, EventKind, Filter, FollowParams, FollowResult, ReadParams, ReadResult,
};
use belay_protocol::methods::notify;

use crate::config::bounds;
use crate::host::Host;
use crate::input::ClientId;
use crate::requests::check::at_most;
use crate::requests::{Answer, Caller, Reply, ReplyId, Waiter, internal};
use crate::runtime::{Core, Table, Work};

/// How many events one page of a follower has.
const PAGE: usize = 200;

/// How many events in memory one step of a read looks at.
const SCANNED_AT_ONCE: usize = 5_000;

/// Clients that follow events, and calls that wait for one.
#[derive(Debug, Default)]
pub(crate) struct EventFollowers {
    followers: Table<ClientId, Follower>,
    waiting: BTreeSet<ReplyId>,
}

#[derive(Clone, Debug)]
struct Follower {
    /// The number of the last event that was sent, or passed over.
    after: u64,
    filter: EventFilter,
    /// A page is being read for it.
    reading: bool,
    /// Its next page is sent in a later step.
    queued: bool,
}

impl EventFollowers {
    pub(crate) fn drop_client(&mut self, client: ClientId) {
        self.followers.remove(&client);
    }

    /// Whether a client follows events and has not been sent all of them.
    pub(crate) fn is_behind(&self, client: ClientId, last: u64) -> bool {
        self.followers.get(&client).is_some_and(|follower| follower.after < last)
    }
}

/// `event/read` that waits for an event, or continues in a later step.
#[derive(Debug)]
pub(crate) struct EventsReply {
    after: u64,
    max: usize,
    filter: EventFilter,
    /// How long it waits if it finds nothing.
    wait_ms: u64,
}

impl Reply for EventsReply {
    fn give_now<H: Host>(self, core: &mut Core<H>, waiter: Waiter) {
        let EventsReply { after, max, filter, wait_ms } = self;
        let answer = core.read_events(&waiter.caller, filter, after, max, wait_ms);
        core.finish_call(&waiter.caller, Ok(answer));
    }

    fn removed<H: Host>(&self, core: &mut Core<H>, id: ReplyId) {
        core.events.waiting.remove(&id);
    }
}

impl<H: Host> Core<H> {
    pub(crate) fn event_read(&mut self, caller: &Caller, params: ReadParams) -> Result<Answer, RpcError> {
        let max = at_most("max", params.max, bounds::LIST_ITEMS)?;
        let ReadParams { after, wait_ms, only, .. } = params;
        self.with_filter(caller, only, move |core, caller, filter| {
            core.check_position(after)?;
            Ok(core.read_events(caller, filter, after, max, wait_ms))
        })
    }

    pub(crate) fn event_follow(&mut self, caller: &Caller, params: FollowParams) -> Result<Answer, RpcError> {
        let FollowParams { after, only } = params;
        self.with_filter(caller, only, move |core, caller, filter| {
            core.check_position(after)?;
            let follower = Follower { after, filter, reading: false, queued: false };
            core.events.followers.insert(caller.client, follower);
            let (first, last) = (core.ctx.journal.first_event(), core.ctx.journal.last_event());
            core.reply(caller, &FollowResult { after, first, last });
            core.serve_event_follower(caller.client);
            Ok(Answer::Sent)
        })
    }

    /// Calls the handler with a filter in which the ids that were typed are complete.
    fn with_filter(
        &mut self,
        caller: &Caller,
        only: Filter,
        handler: impl FnOnce(&mut Self, &Caller, EventFilter) -> Result<Answer, RpcError> + 'static,
    ) -> Result<Answer, RpcError> {
        // What was recorded before this call is part of what it reads.
        self.commit_or_retry();
        let scope = self.scope(caller);
        let session = only.session.as_ref().map(|text| self.find_session(&scope, text)).transpose()?;
        let types = only.types.iter().map(|pattern| pattern.as_str().to_owned()).collect();
        let filter = EventFilter { task: None, session, types, scope: scope.id().map(str::to_owned) };
        let Some(task) = only.task else { return handler(self, caller, filter) };
        self.with_task_or_error(caller, &task, |core, caller, found| {
            let task = found.map_err(|error| error.field("task"))?;
            handler(core, caller, EventFilter { task: Some(task.id().to_owned()), ..filter })
        })
    }

    // --- reading ---

    /// Replies with a page of events; if there is none and the caller waits, when there is one.
    fn read_events(
        &mut self,
        caller: &Caller,
        filter: EventFilter,
        after: u64,
        max: usize,
        wait_ms: u64,
    ) -> Answer {
        if let Some(page) = self.page_in_memory(&filter, after, max) {
            return self.answer_page(caller, filter, page, max, wait_ms);
        }
        let query = Query::Events { after, max, filter: filter.clone() };
        self.await_worker(caller, |core, finish| {
            core.read_journal(query, move |core, rows| {
                let make = move |core: &mut Self, caller: &Caller| match rows? {
                    Rows::Events(page) => {
                        // Retention may have been faster than the reader.
                        check_kept(after, page.first)?;
                        Ok(core.answer_page(caller, filter, page, max, wait_ms))
                    }
                    _ => Err(internal()),
                };
                finish(core, Box::new(make));
            });
        });
        Answer::Later
    }

    fn answer_page(
        &mut self,
        caller: &Caller,
        filter: EventFilter,
        page: EventPage,
        max: usize,
        wait_ms: u64,
    ) -> Answer {
        let EventPage { events, next, first, last } = page;
        if events.is_empty() && next < last {
            // Nothing matched in what was looked at: the next step goes on.
            let reply = EventsReply { after: next, max, filter, wait_ms };
            let reply = self.defer_reply(caller.clone(), reply, None);
            self.do_later(Work::ReadEvents(reply));
            return Answer::Later;
        }
        if events.is_empty() && wait_ms > 0 {
            let within = wait_ms.min(bounds::EVENT_WAIT_MS);
            let reply = EventsReply { after: next, max, filter, wait_ms: 0 };
            let reply = self.defer_reply(caller.clone(), reply, Some(within));
            self.events.waiting.insert(reply);
            return Answer::Later;
        }
        let events = events.iter().map(event_info).collect();
        caller.answer(&ReadResult { events, next, first, last })
    }

    /// A page of events, if all events after this number are in memory. It may end before a match is found.
    fn page_in_memory(&self, filter: &EventFilter, after: u64, max: usize) -> Option<EventPage> {
        let (first, last) = (self.ctx.journal.first_event(), self.ctx.journal.last_event());
        let rows = self.ctx.journal.events_in_memory(after, SCANNED_AT_ONCE)?;
        let mut events: Vec<EventRow> = Vec::new();
        let is_cut = rows.len() == SCANNED_AT_ONCE;
        let mut next = rows.last().filter(|_| is_cut).map_or(last, |row| row.seq);
        for row in rows.into_iter().filter(|row| filter.matches(row)) {
            if events.len() == max {
                next = events.last().map_or(next, |last| last.seq);
                break;
            }
            events.push(row.clone());
        }
        Some(EventPage { events, next, first, last })
    }

    /// The error for a position that was removed names where to continue; for one after the end, where the end is.
    fn check_position(&self, after: u64) -> Result<(), RpcError> {
        let (first, last) = (self.ctx.journal.first_event(), self.ctx.journal.last_event());
        if after > last {
            let message = format!("event {after} has not happened yet: the last one is {last}");
            let hint = format!("go on with after = {last}; belay events -f --after {last} shows what comes");
            return Err(RpcError::invalid("after", message).hint(hint).from_position(last));
        }
        check_kept(after, first)
    }

    // --- new events ---

    /// There are new events: calls that wait for one, and followers, get them.
    pub(crate) fn serve_event_readers(&mut self) {
        if !self.events.waiting.is_empty() {
            let waiting: Vec<ReplyId> = self.events.waiting.iter().copied().collect();
            for reply in waiting {
                self.serve_event_reader(reply);
            }
        }
        if self.events.followers.is_empty() {
            return;
        }
        let followers: Vec<ClientId> = self.events.followers.keys().copied().collect();
        // Followers that keep up are all at the same position.
        let mut lines = None;
        for client in followers {
            self.send_events(client, &mut lines);
        }
    }

    /// A waiting call is answered if there is an event for it; else it waits on behind those that are not.
    fn serve_event_reader(&mut self, reply: ReplyId) {
        let Some(EventsReply { after, filter, .. }) = self.requests.reply::<EventsReply>(reply) else {
            return;
        };
        let (after, filter) = (*after, filter.clone());
        match self.page_in_memory(&filter, after, 1) {
            Some(page) if page.events.is_empty() && page.next == page.last => {
                if let Some(waiting) = self.requests.reply_mut::<EventsReply>(reply) {
                    waiting.after = page.next;
                }
            }
            _ => self.reply_due(reply),
        }
    }

    /// Sends a follower a page of the events that it has not been sent, as far as it keeps up. The next page follows in a later
    /// step.
    pub(crate) fn serve_event_follower(&mut self, client: ClientId) {
        self.send_events(client, &mut None);
    }

    /// The turn of a follower that had more than a page to be sent has come.
    pub(crate) fn send_queued_events(&mut self, client: ClientId) {
        if let Some(follower) = self.events.followers.get_mut(&client) {
            follower.queued = false;
            self.serve_event_follower(client);
        }
    }

    fn send_events(&mut self, client: ClientId, lines: &mut Option<EventLines>) {
        let Some(follower) = self.events.followers.get(&client) else { return };
        let Some(state) = self.requests.client(client) else { return };
        let (after, last) = (follower.after, self.ctx.journal.last_event());
        if follower.reading || follower.queued || state.is_congested() || after >= last {
            return;
        }
        if lines.as_ref().is_none_or(|lines| lines.after != after) {
            let rows = self.ctx.journal.events_in_memory(after, PAGE);
            *lines = rows.and_then(|rows| EventLines::of(after, &rows));
        }
        let Some(page) = lines else { return self.read_for_follower(client) };
        let mut wanted = Vec::new();
        for event in page.events.iter().filter(|event| follower.filter.matches(&event.row)) {
            wanted.extend_from_slice(&event.line);
        }
        let sent = page.last;
        self.advance_follower(client, sent, wanted);
        if sent < last
            && let Some(follower) = self.events.followers.get_mut(&client)
        {
            follower.queued = true;
            self.do_later(Work::SendEvents(client));
        }
    }

    fn advance_follower(&mut self, client: ClientId, to: u64, lines: Vec<u8>) {
        if let Some(follower) = self.events.followers.get_mut(&client) {
            follower.after = to;
        }
        if !lines.is_empty() {
            self.send_lines(client, lines, false);
        }
    }

    /// The follower is behind what is in memory: the reader is asked for its next page.
    fn read_for_follower(&mut self, client: ClientId) {
        let Some(follower) = self.events.followers.get_mut(&client) else { return };
        follower.reading = true;
        let (after, filter) = (follower.after, follower.filter.clone());
        let query = Query::Events { after, max: PAGE, filter: filter.clone() };
        self.read_journal(query, move |core, rows| {
            let Some(follower) = core.events.followers.get_mut(&client) else { return };
            // It may have begun again elsewhere meanwhile.
            if !follower.reading || follower.after != after || follower.filter != filter {
                return;
            }
            follower.reading = false;
            let Ok(Rows::Events(page)) = rows else { return };
            let lines = page.events.iter().filter_map(event_line).flatten().collect();
            // What retention has removed meanwhile is passed over.
            core.advance_follower(client, page.next.max(after), lines);
            core.serve_event_follower(client);
        });
    }
}

/// Refuses a position whose next event was removed.
fn check_kept(after: u64, first: u64) -> Result<(), RpcError> {
    if after == 0 || after + 1 >= first {
        return Ok(());
    }
    let message = format!("events up to {} have been removed by the rules of retention", first - 1);
    Err(RpcError::new(ErrorKind::Expired, message)
        .field("after")
        .hint(format!("go on with after = {}", first - 1))
        .from_position(first - 1))
}

/// Events on their way to followers: serialised once, however many followers there are.
struct EventLines {
    after: u64,
    last: u64,
    events: Vec<EventLine>,
}

struct EventLine {
    row: EventRow,
    line: Vec<u8>,
}

impl EventLines {
    fn of(after: u64, rows: &[&EventRow]) -> Option<Self> {
        let last = rows.last()?.seq;
        let events =
            rows.iter().filter_map(|row| Some(EventLine { row: (*row).clone(), line: event_line(row)? }));
        Some(Self { after, last, events: events.collect() })
    }
}

/// A notification of an event.
fn event_line(row: &EventRow) -> Option<Vec<u8>> {
    use belay_protocol::rpc::{Notification, Version};
    let event = event_info(row);
    let message = Notification { jsonrpc: Version::V2, method: notify::EVENT_ITEM, params: &event };
    crate::requests::line(&message).ok()
}

/// An event as it was recorded; one that cannot be read is lost.
fn event_info(row: &EventRow) -> EventInfo {
    let event = match EventKind::from_name(&row.kind) {
        None | Some(EventKind::Lost) => Event::Lost,
        Some(_) => serde_json::from_str(&row.body).unwrap_or(Event::Lost),
    };
    EventInfo { seq: row.seq, at: Timestamp(row.at_ms), event }
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
