//! Subscriptions to output and events: where each has come, and which request feeds it on this connection. A notification that
//! belongs to none of them ends its subscription at the daemon.

use std::collections::{BTreeMap, BTreeSet};

use belay_protocol::event::{
    EventEndNotification, EventFollowParams, EventFollowResult, EventItemNotification, EventUnfollowParams,
};
use belay_protocol::methods::{
    EventFollow, EventUnfollow, Method as _, Notification, OutputFollow, OutputUnfollow,
};
use belay_protocol::output::{
    OutputChunkNotification, OutputEndNotification, OutputFollowParams, OutputFollowResult, OutputFrom,
    OutputUnfollowParams,
};
use belay_protocol::{ErrorKind, RpcError};

use belay_protocol::rpc::RequestId;

use super::{Codec, OwnCall};
use crate::cursor::{OutputCursor, OutputPiece};
use crate::error::ClientError;
use crate::message::{self, Message, RawReply};
use crate::request::{Purpose, WantedOutput};

/// The subscriptions of a client by the id of the call that made them.
#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    by_id: BTreeMap<i64, Subscription>,
    /// Which subscription a request of this connection feeds.
    routes: BTreeMap<i64, i64>,
    /// Subscription numbers that this client has ended on this connection.
    ended: BTreeSet<u64>,
}

#[derive(Debug)]
struct Subscription {
    source: Source,
    /// The request of this connection that feeds it; none while it is paused or there is no connection.
    wire: Option<i64>,
    /// Its number on this connection, once the daemon has said it.
    follow: Option<u64>,
    paused: bool,
}

#[derive(Debug)]
enum Source {
    Output {
        task: Option<String>,
        wanted: WantedOutput,
        /// None until the daemon has said where the output begins.
        cursor: Option<OutputCursor>,
    },
    Events {
        params: Box<EventFollowParams>,
        /// The number of the last event that was passed on.
        after: u64,
    },
}

impl Subscriptions {
    pub(super) fn add(&mut self, id: i64, purpose: &Purpose) {
        let source = match purpose {
            Purpose::StartWithOutput { output } => {
                Source::Output { task: None, wanted: *output, cursor: Some(OutputCursor::default()) }
            }
            Purpose::FollowOutput { output } => Source::Output { task: None, wanted: *output, cursor: None },
            Purpose::FollowEvents(params) => Source::Events { params: params.clone(), after: params.after },
            Purpose::Plain | Purpose::HoldSession | Purpose::CloseSession => return,
        };
        self.by_id.insert(id, Subscription { source, wire: Some(id), follow: None, paused: false });
        self.routes.insert(id, id);
    }

    pub(super) fn remove(&mut self, id: i64) {
        if let Some(wire) = self.by_id.remove(&id).and_then(|subscription| subscription.wire) {
            self.routes.remove(&wire);
        }
    }

    pub(super) fn set_task(&mut self, id: i64, found: String) {
        if let Some(Source::Output { task, .. }) = self.by_id.get_mut(&id).map(|found| &mut found.source) {
            *task = Some(found);
        }
    }

    /// The position from which a repeated call goes on; none if it is not known, or the output is not wanted any more.
    pub(super) fn position(&self, id: i64) -> Option<u64> {
        let subscription = self.by_id.get(&id).filter(|found| !found.paused)?;
        match &subscription.source {
            Source::Output { cursor, .. } => cursor.map(OutputCursor::next),
            Source::Events { after, .. } => Some(*after),
        }
    }

    /// The connection is lost: nothing feeds them now.
    pub(super) fn disconnected(&mut self) {
        self.routes.clear();
        self.ended.clear();
        for subscription in self.by_id.values_mut() {
            (subscription.wire, subscription.follow) = (None, None);
        }
    }

    /// This request feeds the subscription from now on.
    pub(super) fn feed(&mut self, id: i64, wire: i64) {
        if let Some(subscription) = self.by_id.get_mut(&id).filter(|found| !found.paused) {
            subscription.wire = Some(wire);
            self.routes.insert(wire, id);
        }
    }

    /// Whether this request feeds the subscription.
    pub(super) fn is_fed_by(&self, id: i64, wire: i64) -> bool {
        self.routes.get(&wire) == Some(&id)
    }

    /// Those that are wanted and that no request feeds.
    pub(super) fn unfed(&self) -> Vec<i64> {
        let unfed = |found: &&Subscription| found.wire.is_none() && !found.paused;
        self.by_id.iter().filter(|(_, found)| unfed(found)).map(|(id, _)| *id).collect()
    }

    /// Stops feeding a subscription and keeps its position. Returns its number on this connection, if that is known.
    #[cfg(any(feature = "tokio", test))]
    pub(super) fn pause(&mut self, id: i64) -> Option<(Kind, u64)> {
        let subscription = self.by_id.get_mut(&id)?;
        subscription.paused = true;
        if let Some(wire) = subscription.wire.take() {
            self.routes.remove(&wire);
        }
        subscription.follow.take().map(|follow| (subscription.kind(), follow))
    }

    /// Returns whether the subscription was paused.
    #[cfg(any(feature = "tokio", test))]
    pub(super) fn unpause(&mut self, id: i64) -> bool {
        self.by_id.get_mut(&id).is_some_and(|found| std::mem::replace(&mut found.paused, false))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    fn fed_by(&mut self, wire: i64) -> Option<(i64, &mut Subscription)> {
        let id = *self.routes.get(&wire)?;
        self.by_id.get_mut(&id).map(|found| (id, found))
    }
}

/// Which method makes and ends a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Output,
    Events,
}

impl Codec {
    /// Ends a subscription: nothing of it is passed on any more.
    pub(crate) fn unsubscribe(&mut self, id: i64) {
        let Some(subscription) = self.subscriptions.by_id.get(&id) else { return };
        let (kind, follow) = (subscription.kind(), subscription.follow);
        self.subscriptions.remove(id);
        // One whose number is not known yet ends with its first notification or its reply.
        if let Some(follow) = follow {
            self.unfollow(kind, follow);
        }
    }

    pub(super) fn unfollow(&mut self, kind: Kind, follow: u64) {
        if !self.subscriptions.ended.insert(follow) {
            return;
        }
        match kind {
            Kind::Output => {
                let params = OutputUnfollowParams { follow: Some(follow), id: None };
                self.send_own::<OutputUnfollow>(OwnCall::Ignored, &params);
            }
            Kind::Events => {
                self.send_own::<EventUnfollow>(OwnCall::Ignored, &EventUnfollowParams { follow });
            }
        }
    }

    /// Asks for the rest of a subscription by a request of its own.
    pub(super) fn follow_again(&mut self, id: i64) {
        let Some(subscription) = self.subscriptions.by_id.get(&id) else { return };
        let wire = match &subscription.source {
            Source::Output { task: Some(task), wanted, cursor } => {
                let offset = cursor.map_or(0, OutputCursor::next);
                let from = OutputFrom::Offset { offset };
                let WantedOutput { stream, text } = *wanted;
                let params = OutputFollowParams { id: task.clone(), from, stream, text };
                Some(self.send_own::<OutputFollow>(OwnCall::Follow { id, kind: Kind::Output }, &params))
            }
            // A start without output so far, whose reply names the task.
            Source::Output { task: None, .. } => None,
            Source::Events { params, after } => {
                let params = EventFollowParams { after: *after, only: params.only.clone() };
                Some(self.send_own::<EventFollow>(OwnCall::Follow { id, kind: Kind::Events }, &params))
            }
        };
        if let Some(wire) = wire {
            self.subscriptions.feed(id, wire);
        }
    }

    /// The daemon has accepted a subscription, as this request.
    pub(super) fn begin_subscription(
        &mut self,
        id: i64,
        wire: i64,
        kind: Kind,
        raw: &RawReply,
    ) -> Result<(), ClientError> {
        let subscriptions = &mut self.subscriptions.by_id;
        let subscription = subscriptions.get_mut(&id).filter(|found| found.wire == Some(wire));
        // The number that the daemon gave it, and whether it is wanted.
        let (follow, is_wanted) = match kind {
            Kind::Output => {
                let begun: OutputFollowResult = message::read(raw, OutputFollow::NAME)?;
                let is_wanted = subscription.is_some();
                if let Some(Subscription { source: Source::Output { task, cursor, .. }, follow, .. }) =
                    subscription
                {
                    (*task, *follow) = (Some(begun.id), Some(begun.follow));
                    cursor.get_or_insert(OutputCursor::at(begun.from));
                }
                (begun.follow, is_wanted)
            }
            Kind::Events => {
                let begun: EventFollowResult = message::read(raw, EventFollow::NAME)?;
                let is_wanted = subscription.is_some();
                if let Some(Subscription { source: Source::Events { after, .. }, follow, .. }) = subscription
                {
                    (*after, *follow) = (begun.after.max(*after), Some(begun.follow));
                }
                (begun.follow, is_wanted)
            }
        };
        if !is_wanted {
            self.unfollow(kind, follow);
        }
        Ok(())
    }

    pub(super) fn output_chunk(&mut self, wire: i64, chunk: OutputChunkNotification) -> Option<Notification> {
        let Some((id, subscription)) = self.subscriptions.fed_by(wire) else {
            self.unfollow(Kind::Output, chunk.follow);
            return None;
        };
        subscription.follow = Some(chunk.follow);
        let Source::Output { task, cursor, .. } = &mut subscription.source else { return None };
        if task.is_none() {
            *task = Some(chunk.id.clone());
        }
        let OutputChunkNotification { chunks, gaps, next, .. } = chunk;
        let cursor = cursor.get_or_insert_default();
        let before = cursor.next();
        let (mut new, mut new_gaps) = (Vec::new(), Vec::new());
        for piece in cursor.take(chunks, &gaps, next) {
            match piece {
                OutputPiece::Chunk(chunk) => new.push(chunk),
                OutputPiece::Gap { from, to } => new_gaps.push([from, to]),
            }
        }
        let is_new = cursor.next() > before;
        let passed_on = OutputChunkNotification {
            request: RequestId::Number(id),
            chunks: new,
            gaps: new_gaps,
            next: cursor.next(),
            ..chunk
        };
        is_new.then(|| Notification::OutputChunk(Box::new(passed_on)))
    }

    pub(super) fn output_end(&mut self, wire: i64, end: OutputEndNotification) -> Option<Notification> {
        let (id, _) = self.subscriptions.fed_by(wire)?;
        self.subscriptions.remove(id);
        let request = RequestId::Number(id);
        Some(Notification::OutputEnd(Box::new(OutputEndNotification { request, ..end })))
    }

    pub(super) fn event_item(&mut self, wire: i64, item: EventItemNotification) -> Option<Notification> {
        let Some((id, subscription)) = self.subscriptions.fed_by(wire) else {
            self.unfollow(Kind::Events, item.follow);
            return None;
        };
        subscription.follow = Some(item.follow);
        let Source::Events { after, .. } = &mut subscription.source else { return None };
        if item.event.seq <= *after {
            return None;
        }
        *after = item.event.seq;
        let request = RequestId::Number(id);
        Some(Notification::EventItem(Box::new(EventItemNotification { request, ..item })))
    }

    pub(super) fn event_end(
        &mut self,
        wire: i64,
        end: EventEndNotification,
    ) -> Result<Option<Message>, ClientError> {
        let Some((id, _)) = self.subscriptions.fed_by(wire) else { return Ok(None) };
        self.subscription_failed(id, end.error);
        self.next()
    }

    /// The daemon has ended a subscription, or refuses to go on with it. One that only lost events to retention goes on.
    pub(super) fn subscription_failed(&mut self, id: i64, error: RpcError) {
        let Some(subscription) = self.subscriptions.by_id.get_mut(&id) else { return };
        let expired = (error.data.kind == ErrorKind::Expired).then_some(error.data.from).flatten();
        if let (Source::Events { after, .. }, Some(from)) = (&mut subscription.source, expired)
            && from > *after
        {
            let first = *after + 1;
            *after = from;
            if let Some(wire) = subscription.wire.take() {
                self.subscriptions.routes.remove(&wire);
            }
            self.ready.push_back(Message::EventsExpired { request: id, first, last: from });
            return self.follow_again(id);
        }
        self.subscriptions.remove(id);
        self.ready.push_back(Message::SubscriptionEnded { request: id, error });
    }
}

impl Subscription {
    const fn kind(&self) -> Kind {
        match self.source {
            Source::Output { .. } => Kind::Output,
            Source::Events { .. } => Kind::Events,
        }
    }
}
