//! The tokio driver: concurrent calls on one connection from clones of one handle, subscriptions as streams, requests of the
//! daemon answered by a handler. A task of its own owns the socket and the codec; handles and streams send it commands.

mod actor;
mod options;
mod stream;
#[cfg(test)]
mod tests;

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use belay_protocol::daemon::DaemonHelloResult;
use belay_protocol::event::EventFollowParams;
use belay_protocol::methods::{EventFollow, Method, Notification, OutputFollow, TaskStart};
use belay_protocol::output::OutputFollowParams;
use belay_protocol::task::{AnswerWhen, TaskStartParams};
use tokio::sync::{mpsc, oneshot, watch};

use self::actor::{Call, Command, Commands};
pub use self::options::AsyncOptions;
pub use self::stream::{EventPiece, EventStream, ForegroundPiece, ForegroundTask, OutputStream};
use self::stream::{Feed, Intake};
use crate::error::ClientError;
use crate::message::{RawReply, decode};
use crate::paths::Paths;
use crate::request::{Ids, Request};

/// A connection to the daemon, for programs that run on tokio. Clones share the connection.
///
/// Calls are concurrent: each is answered when the daemon answers it. To drop the future of a call cancels the call
/// (`call/cancel`): a wait ends, and what the call has begun goes on.
///
/// The client resumes: if the connection is lost while a call, a subscription or a session needs it, it connects again,
/// starts the daemon if there is none, repeats the calls that are safe to repeat, and goes on with its subscriptions where
/// they were. If that fails, everything that is pending fails, and the next call tries again.
///
/// The connection is closed by [`AsyncClient::close`], or when the last clone and the last stream are dropped.
///
/// ```
/// use belay_client::protocol::event::EventFollowParams;
/// use belay_client::protocol::methods::{TaskGet, TaskStart};
/// use belay_client::protocol::task::{ShellCommand, TaskGetParams, TaskStartParams};
/// use belay_client::{AsyncClient, ClientError, EventPiece, ForegroundPiece, OutputPiece};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), ClientError> {
/// # let world = belay_testkit::doc_world();
/// # let (paths, belay) = (world.paths(), world.program());
/// let client = AsyncClient::connect_or_start(&paths, belay).await?;
/// let mut events = client.follow_events(&EventFollowParams::default()).await?;
///
/// // Two calls at once, from clones of the handle.
/// let start = |word: &'static str| {
///     let client = client.clone();
///     async move {
///         let command = ShellCommand::argv(["/bin/echo", word]);
///         client.call::<TaskStart>(&TaskStartParams { detached: true, ..TaskStartParams::new(command, "/") }).await
///     }
/// };
/// let (one, two) = tokio::try_join!(start("one"), start("two"))?;
/// assert_ne!(one.id, two.id);
///
/// // A task in the foreground, with its output.
/// let command = TaskStartParams::new(ShellCommand::argv(["/bin/echo", "hello"]), "/");
/// let mut task = client.start_in_foreground(&command)?;
/// let mut output = Vec::new();
/// while let Some(piece) = task.next().await {
///     if let ForegroundPiece::Output(OutputPiece::Chunk(chunk)) = piece? {
///         output.extend(chunk.data.0);
///     }
/// }
/// assert_eq!(output, b"hello\n");
/// let ended = task.end().await?;
///
/// // Every event about it has a number, and comes once.
/// loop {
///     let Some(EventPiece::Event(event)) = events.next().await.transpose()? else { break };
///     if event.seq == ended.last_event {
///         assert_eq!(event.event.task(), Some(ended.id.as_str()));
///         break;
///     }
/// }
/// client.close().await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct AsyncClient {
    commands: Commands,
    ids: Ids,
    hello: watch::Receiver<Arc<DaemonHelloResult>>,
}

impl AsyncClient {
    /// Connects, and starts the daemon first if there is none. `exe` is the `belay` program.
    pub async fn connect_or_start(paths: &Paths, exe: &Path) -> Result<Self, ClientError> {
        AsyncOptions::new().connect_or_start(paths, exe).await
    }

    /// What the daemon said about itself when the present connection was made.
    pub fn hello(&self) -> Arc<DaemonHelloResult> {
        Arc::clone(&self.hello.borrow())
    }

    /// Calls a method and waits for its result, without a deadline.
    pub async fn call<M: Method>(&self, params: &M::Params) -> Result<M::Result, ClientError> {
        self.call_with_fds::<M>(params, Vec::new()).await
    }

    /// The same with descriptors for the daemon.
    pub async fn call_with_fds<M: Method>(
        &self,
        params: &M::Params,
        fds: Vec<OwnedFd>,
    ) -> Result<M::Result, ClientError> {
        let reply = self.submit::<M>(self.ids.take(), params, fds, Receivers::default())?;
        decode::<M>(&reply.wait().await?)
    }

    /// Calls a method and waits for its result. `part` gets the notifications that belong to the call and come before the
    /// result, such as the receipts of several stops.
    pub async fn call_with_parts<M: Method>(
        &self,
        params: &M::Params,
        mut part: impl FnMut(Notification),
    ) -> Result<M::Result, ClientError> {
        let (parts, mut received) = mpsc::unbounded_channel();
        let receivers = Receivers { parts: Some(parts), ..Receivers::default() };
        let reply = self.submit::<M>(self.ids.take(), params, Vec::new(), receivers)?;
        // The sender is dropped with the reply.
        while let Some(said) = received.recv().await {
            part(said);
        }
        decode::<M>(&reply.wait().await?)
    }

    /// Subscribes to the output of a task. The stream ends behind the last byte of the task.
    pub async fn follow_output(&self, params: &OutputFollowParams) -> Result<OutputStream, ClientError> {
        let (reply, intake) = self.subscribe::<OutputFollow>(params)?;
        reply.wait().await?;
        Ok(OutputStream::new(intake))
    }

    /// Subscribes to events.
    pub async fn follow_events(&self, params: &EventFollowParams) -> Result<EventStream, ClientError> {
        let (reply, intake) = self.subscribe::<EventFollow>(params)?;
        reply.wait().await?;
        Ok(EventStream::new(intake))
    }

    /// Starts a task in the foreground: its announcement and its output come as a stream, its end as a result. The call sets
    /// `answer` of the parameters, and `follow` if it is not set.
    pub fn start_in_foreground(&self, params: &TaskStartParams) -> Result<ForegroundTask, ClientError> {
        let follow = Some(params.follow.unwrap_or_default());
        let params = TaskStartParams { answer: AnswerWhen::Ended, follow, ..params.clone() };
        let (reply, intake) = self.subscribe::<TaskStart>(&params)?;
        Ok(ForegroundTask::new(reply, intake))
    }

    /// Closes the connection of all clones, after everything that was sent has been written. Pending calls and streams fail
    /// with [`ClientError::Closed`].
    pub async fn close(self) {
        let (done, closed) = oneshot::channel();
        if self.commands.send(Command::Close(done)).is_ok() {
            // The task that owns the connection is gone, one way or the other.
            let _ = closed.await;
        }
    }

    fn subscribe<M: Method>(&self, params: &M::Params) -> Result<(Reply, Intake), ClientError> {
        let id = self.ids.take();
        let (feed, intake) = stream::channel(id, self.commands.clone());
        let receivers = Receivers { feed: Some(feed), ..Receivers::default() };
        Ok((self.submit::<M>(id, params, Vec::new(), receivers)?, intake))
    }

    fn submit<M: Method>(
        &self,
        id: i64,
        params: &M::Params,
        fds: Vec<OwnedFd>,
        receivers: Receivers,
    ) -> Result<Reply, ClientError> {
        let request = Request::new::<M>(id, params, fds, true)?;
        let (reply, replied) = oneshot::channel();
        let Receivers { feed, parts } = receivers;
        let call = Command::Call(Box::new(Call { request, reply, feed, parts }));
        self.commands.send(call).map_err(|_| ClientError::Closed)?;
        Ok(Reply { id, replied, commands: self.commands.clone(), is_over: false })
    }
}

/// Who gets the notifications of a call.
#[derive(Default)]
struct Receivers {
    feed: Option<Feed>,
    parts: Option<mpsc::UnboundedSender<Notification>>,
}

/// The reply to a call that was sent. Dropped before it has come, it cancels the call.
#[derive(Debug)]
struct Reply {
    id: i64,
    replied: oneshot::Receiver<Result<RawReply, ClientError>>,
    commands: Commands,
    is_over: bool,
}

impl Reply {
    async fn wait(mut self) -> Result<RawReply, ClientError> {
        self.next().await
    }

    /// The reply, once. It can be waited for again if the future is dropped.
    async fn next(&mut self) -> Result<RawReply, ClientError> {
        if self.is_over {
            return Err(ClientError::Closed);
        }
        let result = (&mut self.replied).await.unwrap_or(Err(ClientError::Closed));
        self.is_over = true;
        result
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.is_over {
            // A client that is closed has no pending calls.
            let _ = self.commands.send(Command::Cancel(self.id));
        }
    }
}
