//! `event/read follow`: the numbered record of everything that happened, from any number on. The last events are in memory;
//! older ones are read by the journal's reader, a page at a time.

mod item;

use std::collections::BTreeSet;

use belay_journal::{EventFilter as StoredFilter, EventPage, EventRow, Query, Rows};
use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::event::{
    EventEndNotification, EventFilter, EventFollowParams, EventFollowResult, EventReadParams,
    EventReadResult, EventUnfollowParams, EventUnfollowResult,
};
use belay_protocol::labels::check_labels;
use belay_protocol::methods::notifications::EventEnd;
use belay_protocol::rpc::RequestId;

use self::item::{EventBodies, event_body, event_info, item_prefix, push_item};
use crate::config::bounds;
use crate::host::Host;
use crate::input::ClientId;
use crate::requests::check::at_most;
use crate::requests::{Answer, Caller, Reply, ReplyId, Waiter, internal};
use crate::runtime::{Core, Index, Table, Work, label_tag};
use crate::tasks::no_such_follow;

/// How many events one page of a follower has.
const PAGE: usize = 200;

/// How many events in memory one step of a read looks at.
const SCANNED_AT_ONCE: usize = 5_000;

/// Subscriptions to events by number, and calls that wait for an event.
#[derive(Debug, Default)]
pub(crate) struct EventFollowers {
    followers: Table<u64, Follower>,
    by_client: Index<ClientId, u64>,
    waiting: BTreeSet<ReplyId>,
}

/// One subscription.
#[derive(Clone, Debug)]
struct Follower {
    client: ClientId,
    request: RequestId,
    /// The beginning of each of its notifications, up to the event.
    prefix: Vec<u8>,
    /// The number of the last event that was sent, or passed over.
    after: u64,
    filter: StoredFilter,
    /// A page is being read for it.
    reading: bool,
    /// Its next page is sent in a later step.
    queued: bool,
}

impl EventFollowers {
    fn add(&mut self, follow: u64, follower: Follower) {
        self.by_client.add(follower.client, follow);
        self.followers.insert(follow, follower);
    }

    /// Ends a subscription of a client. False: the client has none with this number.
    fn remove(&mut self, client: ClientId, follow: u64) -> bool {
        if self.followers.get(&follow).is_none_or(|follower| follower.client != client) {
            return false;
        }
        self.by_client.remove(&client, &follow);
        self.followers.remove(&follow).is_some()
    }

    fn of_client(&self, client: ClientId) -> Vec<u64> {
        self.by_client.of(&client).copied().collect()
    }

    pub(crate) fn drop_client(&mut self, client: ClientId) {
        for follow in self.of_client(client) {
            self.remove(client, follow);
        }
    }

    /// Whether a client follows events and has not been sent all of them.
    pub(crate) fn is_behind(&self, client: ClientId, last: u64) -> bool {
        let is_behind = |follow| self.followers.get(follow).is_some_and(|follower| follower.after < last);
        self.by_client.of(&client).any(is_behind)
    }
}

/// `event/read` that waits for an event, or continues in a later step.
#[derive(Debug)]
pub(crate) struct EventsReply {
    after: u64,
    max: usize,
    filter: StoredFilter,
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
    pub(crate) fn event_read(
        &mut self,
        caller: &Caller,
        params: EventReadParams,
    ) -> Result<Answer, RpcError> {
        let max = at_most("max", params.max, bounds::LIST_ITEMS)?;
        let EventReadParams { after, wait_ms, only, .. } = params;
        self.with_filter(caller, only, move |core, caller, filter| {
            core.check_position(after)?;
            Ok(core.read_events(caller, filter, after, max, wait_ms))
        })
    }

    pub(crate) fn event_follow(
        &mut self,
        caller: &Caller,
        params: EventFollowParams,
    ) -> Result<Answer, RpcError> {
        let EventFollowParams { after, only } = params;
        self.with_filter(caller, only, move |core, caller, filter| {
            core.check_position(after)?;
            // A call without an id gets no answer, and so no notifications that name it.
            let Some(request) = caller.request.clone() else { return Ok(Answer::Now(None)) };
            let client = caller.client;
            if core.events.by_client.count(&client) >= bounds::FOLLOWS_PER_CLIENT {
                let message =
                    format!("this connection has {} event subscriptions", bounds::FOLLOWS_PER_CLIENT);
                return Err(RpcError::new(ErrorKind::Busy, message).hint("open another connection"));
            }
            let follow = core.ctx.next_number();
            let prefix = item_prefix(&request, follow).ok_or_else(internal)?;
            core.events.add(
                follow,
                Follower { client, request, prefix, after, filter, reading: false, queued: false },
            );
            let (first, last) = (core.ctx.journal.first_event(), core.ctx.journal.last_event());
            core.reply(caller, &EventFollowResult { follow, after, first, last });
            core.serve_event_follow(follow);
            Ok(Answer::Sent)
        })
    }

    pub(crate) fn event_unfollow(
        &mut self,
        caller: &Caller,
        params: &EventUnfollowParams,
    ) -> Result<Answer, RpcError> {
        if !self.events.remove(caller.client, params.follow) {
            return Err(no_such_follow(params.follow));
        }
        Ok(caller.answer(&EventUnfollowResult { ended: 1 }))
    }

    /// Calls the handler with a filter in which the ids that were typed are complete.
    fn with_filter(
        &mut self,
        caller: &Caller,
        only: EventFilter,
        handler: impl FnOnce(&mut Self, &Caller, StoredFilter) -> Result<Answer, RpcError> + 'static,
    ) -> Result<Answer, RpcError> {
        // What was recorded before this call is part of what it reads.
        self.commit_or_retry();
        let scope = self.scope(caller);
        let session = only.session.as_ref().map(|text| self.find_session(&scope, text)).transpose()?;
        let types = only.types.iter().map(|pattern| pattern.as_str().to_owned()).collect();
        check_labels("labels", &only.labels)?;
        let tags = only.labels.iter().map(|(key, value)| label_tag(key, value)).collect();
        let scope = scope.id().map(str::to_owned);
        let filter = StoredFilter { task: None, session, types, scope, tags };
        let Some(task) = only.task else { return handler(self, caller, filter) };
        self.with_task_or_error(caller, &task, |core, caller, found| {
            let task = found.map_err(|error| error.field("task"))?;
            handler(core, caller, StoredFilter { task: Some(task.id().to_owned()), ..filter })
        })
    }

    // --- reading ---

    /// Replies with a page of events; if there is none and the caller waits, when there is one.
    fn read_events(
        &mut self,
        caller: &Caller,
        filter: StoredFilter,
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
        filter: StoredFilter,
        page: EventPage,
        max: usize,
        wait_ms: u64,
    ) -> Answer {
        let EventPage { events, next, first, last } = within_bytes(page);
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
        caller.answer(&EventReadResult { events, next, first, last })
    }

    /// A page of events, if all events after this number are in memory. It may end before a match is found.
    fn page_in_memory(&self, filter: &StoredFilter, after: u64, max: usize) -> Option<EventPage> {
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
        let followers: Vec<u64> = self.events.followers.keys().copied().collect();
        // Followers that keep up are all at the same position.
        let mut bodies = None;
        for follow in followers {
            self.send_events(follow, &mut bodies);
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

    /// Sends every subscription of a client what there is for it.
    pub(crate) fn serve_event_follows(&mut self, client: ClientId) {
        for follow in self.events.of_client(client) {
            self.serve_event_follow(follow);
        }
    }

    /// Sends a subscription a page of the events that it has not been sent, as far as its client keeps up. The next page follows
    /// in a later step.
    fn serve_event_follow(&mut self, follow: u64) {
        self.send_events(follow, &mut None);
    }

    /// The turn of a subscription that had more than a page to be sent has come.
    pub(crate) fn send_queued_events(&mut self, follow: u64) {
        if let Some(follower) = self.events.followers.get_mut(&follow) {
            follower.queued = false;
            self.serve_event_follow(follow);
        }
    }

    fn send_events(&mut self, follow: u64, bodies: &mut Option<EventBodies>) {
        let Some(follower) = self.events.followers.get(&follow) else { return };
        let Some(state) = self.requests.client(follower.client) else { return };
        let (after, last) = (follower.after, self.ctx.journal.last_event());
        if follower.reading || follower.queued || state.is_congested() || after >= last {
            return;
        }
        if bodies.as_ref().is_none_or(|bodies| bodies.after != after) {
            let rows = self.ctx.journal.events_in_memory(after, PAGE);
            *bodies = rows.and_then(|rows| EventBodies::of(after, &rows));
        }
        let Some(page) = bodies else { return self.read_for_follower(follow) };
        let mut lines = Vec::new();
        for event in page.events.iter().filter(|event| follower.filter.matches(&event.row)) {
            push_item(&mut lines, &follower.prefix, &event.body);
        }
        let sent = page.last;
        self.advance_follower(follow, sent, lines);
        if sent < last
            && let Some(follower) = self.events.followers.get_mut(&follow)
        {
            follower.queued = true;
            self.do_later(Work::SendEvents(follow));
        }
    }

    fn advance_follower(&mut self, follow: u64, to: u64, lines: Vec<u8>) {
        let Some(follower) = self.events.followers.get_mut(&follow) else { return };
        follower.after = to;
        let client = follower.client;
        if !lines.is_empty() {
            self.send_lines(client, lines, false);
        }
    }

    /// The subscription is behind what is in memory: the reader is asked for its next page.
    fn read_for_follower(&mut self, follow: u64) {
        let Some(follower) = self.events.followers.get_mut(&follow) else { return };
        follower.reading = true;
        let (after, filter) = (follower.after, follower.filter.clone());
        let query = Query::Events { after, max: PAGE, filter };
        self.read_journal(query, move |core, rows| {
            let Some(follower) = core.events.followers.get_mut(&follow) else { return };
            follower.reading = false;
            let page = match rows {
                // Retention may have been faster than the follower.
                Ok(Rows::Events(page)) => check_kept(after, page.first).map(|()| page),
                Ok(_) => Err(internal()),
                Err(error) => Err(error),
            };
            let page = match page {
                Ok(page) => page,
                Err(error) => return core.end_event_follow(follow, error),
            };
            let mut lines = Vec::new();
            for body in page.events.iter().filter_map(event_body) {
                push_item(&mut lines, &follower.prefix, &body);
            }
            core.advance_follower(follow, page.next.max(after), lines);
            core.serve_event_follow(follow);
        });
    }

    /// Ends a subscription that cannot go on, and tells its client.
    fn end_event_follow(&mut self, follow: u64, error: RpcError) {
        let Some(follower) = self.events.followers.get(&follow) else { return };
        let (client, request, after) = (follower.client, follower.request.clone(), follower.after);
        self.events.remove(client, follow);
        self.notify::<EventEnd>(client, &EventEndNotification { request, follow, after, error });
    }
}

/// The beginning of a page that fits into one reply, at least one event: commands can be long.
fn within_bytes(mut page: EventPage) -> EventPage {
    let mut bytes = 0;
    let fits = |event: &&EventRow| {
        bytes += event.body.len();
        bytes <= bounds::LIST_BYTES
    };
    let fit = page.events.iter().take_while(fits).count().max(1);
    if fit < page.events.len() {
        page.events.truncate(fit);
        page.next = page.events.last().map_or(page.next, |last| last.seq);
    }
    page
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
