//! Subscriptions as streams. Each has a bounded buffer; when it is full, the daemon is told to end the subscription, and when the
//! consumer has emptied it, the subscription goes on from its position. So a slow consumer costs neither memory nor the other
//! users of the connection.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use belay_protocol::event::EventInfo;
use belay_protocol::methods::{Notification, TaskStart};
use belay_protocol::task::TaskInfo;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use super::Reply;
use super::actor::{Command, Commands};
use crate::cursor::{OutputCursor, OutputPiece};
use crate::error::ClientError;
use crate::message::decode;

/// How many notifications of one subscription are buffered.
const BUFFERED: usize = 32;

/// One entry of the buffer.
#[derive(Debug)]
pub(super) enum Item {
    Notification(Notification),
    Expired { first: u64, last: u64 },
}

#[derive(Debug, Default)]
struct Shared {
    /// The buffer was filled, and the consumer has to say when it is empty.
    is_paused: AtomicBool,
    /// Why the stream has ended before its time.
    failure: Mutex<Option<ClientError>>,
}

/// The producing end, in the task that owns the connection.
#[derive(Debug)]
pub(super) struct Feed {
    items: mpsc::Sender<Item>,
    shared: Arc<Shared>,
}

/// The consuming end. Dropped, it ends the subscription.
#[derive(Debug)]
pub(super) struct Intake {
    id: i64,
    items: mpsc::Receiver<Item>,
    shared: Arc<Shared>,
    commands: Commands,
}

/// What became of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fed {
    Buffered,
    /// It was the last one that fits.
    Full,
    /// The consumer is gone.
    Unwanted,
}

pub(super) fn channel(id: i64, commands: Commands) -> (Feed, Intake) {
    let (sender, receiver) = mpsc::channel(BUFFERED);
    let shared = Arc::new(Shared::default());
    let feed = Feed { items: sender, shared: Arc::clone(&shared) };
    (feed, Intake { id, items: receiver, shared, commands })
}

impl Feed {
    pub(super) fn put(&self, item: Item) -> Fed {
        let is_last = self.items.capacity() <= 1;
        if is_last {
            // Before the item: a consumer that gets the last one has to see it.
            self.shared.is_paused.store(true, Ordering::Release);
        }
        match self.items.try_send(item) {
            Ok(()) if is_last => Fed::Full,
            // Only an announcement finds no room: it comes also while the output is paused, when the task is known already.
            Ok(()) | Err(TrySendError::Full(_)) => Fed::Buffered,
            Err(TrySendError::Closed(_)) => Fed::Unwanted,
        }
    }

    pub(super) fn fail(self, error: ClientError) {
        *self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }
}

impl Intake {
    async fn next(&mut self) -> Option<Result<Item, ClientError>> {
        let item = self.items.recv().await;
        if self.items.is_empty() && self.shared.is_paused.swap(false, Ordering::AcqRel) {
            let _ = self.commands.send(Command::Unpause(self.id));
        }
        match item {
            Some(item) => Some(Ok(item)),
            None => self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).take().map(Err),
        }
    }
}

impl Drop for Intake {
    fn drop(&mut self) {
        let _ = self.commands.send(Command::Unsubscribe(self.id));
    }
}

/// The output of a task, in order and without repetition, over all connections.
///
/// The stream buffers a bounded number of notifications. If its consumer is slower than the task, the subscription is paused and
/// goes on later from the same offset; other streams and calls of the client are not held up.
#[derive(Debug)]
pub struct OutputStream {
    intake: Intake,
    cursor: OutputCursor,
    pieces: VecDeque<OutputPiece>,
}

impl OutputStream {
    pub(super) fn new(intake: Intake) -> Self {
        Self { intake, cursor: OutputCursor::default(), pieces: VecDeque::new() }
    }

    /// The next piece of output. None: the task has ended and this was all of it. After an error the stream has ended.
    ///
    /// The future can be dropped without losing a piece.
    pub async fn next(&mut self) -> Option<Result<OutputPiece, ClientError>> {
        loop {
            if let Some(piece) = self.pieces.pop_front() {
                return Some(Ok(piece));
            }
            match self.intake.next().await? {
                Ok(Item::Notification(Notification::OutputChunk(chunk))) => {
                    let chunk = *chunk;
                    self.pieces.extend(self.cursor.take(chunk.chunks, &chunk.gaps, chunk.next));
                }
                Ok(_) => {}
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// An event, or events that are missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventPiece {
    /// One event.
    Event(Box<EventInfo>),
    /// Events that retention removed before they could be sent.
    Gap {
        /// The first number that is missing.
        first: u64,
        /// The last number that is missing.
        last: u64,
    },
}

/// Events, in order and without repetition, over all connections. It buffers and pauses as [`OutputStream`] does.
#[derive(Debug)]
pub struct EventStream {
    intake: Intake,
}

impl EventStream {
    pub(super) const fn new(intake: Intake) -> Self {
        Self { intake }
    }

    /// The next event. None: the client was closed. After an error the stream has ended.
    ///
    /// The future can be dropped without losing an event.
    pub async fn next(&mut self) -> Option<Result<EventPiece, ClientError>> {
        loop {
            match self.intake.next().await? {
                Ok(Item::Notification(Notification::EventItem(item))) => {
                    return Some(Ok(EventPiece::Event(Box::new(item.event))));
                }
                Ok(Item::Expired { first, last }) => return Some(Ok(EventPiece::Gap { first, last })),
                Ok(Item::Notification(_)) => {}
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// What a foreground start reports before its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForegroundPiece {
    /// The task waits for its lane.
    Queued(Box<TaskInfo>),
    /// The task has started, or could not be started.
    Started(Box<TaskInfo>),
    /// Output.
    Output(OutputPiece),
}

/// A task that was started in the foreground. Dropped before its end, it is treated as the task of a caller whose connection
/// ended: `on_disconnect` of its start says what happens to it.
#[derive(Debug)]
pub struct ForegroundTask {
    reply: Reply,
    intake: Intake,
    cursor: OutputCursor,
    pieces: VecDeque<OutputPiece>,
}

impl ForegroundTask {
    pub(super) fn new(reply: Reply, intake: Intake) -> Self {
        Self { reply, intake, cursor: OutputCursor::default(), pieces: VecDeque::new() }
    }

    /// The next announcement or piece of output. None: there is no more output, and [`ForegroundTask::end`] returns soon.
    ///
    /// The future can be dropped without losing a piece.
    pub async fn next(&mut self) -> Option<Result<ForegroundPiece, ClientError>> {
        loop {
            if let Some(piece) = self.pieces.pop_front() {
                return Some(Ok(ForegroundPiece::Output(piece)));
            }
            match self.intake.next().await? {
                Ok(Item::Notification(Notification::TaskQueued(start))) => {
                    return Some(Ok(ForegroundPiece::Queued(Box::new(start.task))));
                }
                Ok(Item::Notification(Notification::TaskStarted(start))) => {
                    return Some(Ok(ForegroundPiece::Started(Box::new(start.task))));
                }
                Ok(Item::Notification(Notification::OutputChunk(chunk))) => {
                    let chunk = *chunk;
                    self.pieces.extend(self.cursor.take(chunk.chunks, &chunk.gaps, chunk.next));
                }
                Ok(_) => {}
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// Waits until the task has ended, or was detached. Output that was not read before can be read afterwards.
    ///
    /// The future can be dropped; the result is returned once.
    pub async fn end(&mut self) -> Result<TaskInfo, ClientError> {
        decode::<TaskStart>(&self.reply.next().await?)
    }
}
