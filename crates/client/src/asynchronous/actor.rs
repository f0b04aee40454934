//! The task that owns the connection of an asynchronous client: it moves bytes, passes messages on to callers and streams, and
//! connects again. What is sent and what is repeated is decided by the codec.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use belay_protocol::daemon::DaemonHelloResult;
use belay_protocol::methods::Notification;
use belay_protocol::methods::client_calls::PermissionAsk;
use belay_protocol::permission::{PermissionAskParams, PermissionAskResult};
use belay_protocol::{ErrorKind, RpcError};
use rustix::io::Errno;
use tokio::io::{Interest, Ready};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot, watch};

use super::AsyncClient;
use super::stream::{Fed, Feed, Item};
use crate::codec::Codec;
use crate::connect::{self, Connection};
use crate::error::ClientError;
use crate::message::{self, DaemonRequest, Message, RawReply};
use crate::paths::Paths;
use crate::request::{Ids, Request};
use crate::wire;

/// How long a client that is closed waits for a daemon that does not read.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

pub(super) type Commands = mpsc::UnboundedSender<Command>;
pub(super) type PermissionHandler = Arc<
    dyn Fn(PermissionAskParams) -> Pin<Box<dyn Future<Output = PermissionAskResult> + Send>> + Send + Sync,
>;

/// What handles, replies and streams ask of the task. There are as many as calls in progress.
#[derive(Debug)]
pub(super) enum Command {
    Call(Box<Call>),
    Cancel(i64),
    Unpause(i64),
    Unsubscribe(i64),
    Answer { request: DaemonRequest, result: PermissionAskResult },
    Close(oneshot::Sender<()>),
}

#[derive(Debug)]
pub(super) struct Call {
    pub(super) request: Request,
    pub(super) reply: oneshot::Sender<Result<RawReply, ClientError>>,
    pub(super) feed: Option<Feed>,
    /// Gets the notifications that come before the result.
    pub(super) parts: Option<mpsc::UnboundedSender<Notification>>,
}

struct Actor {
    codec: Codec,
    /// None: the connection is lost, and nothing needs one.
    stream: Option<UnixStream>,
    commands: mpsc::UnboundedReceiver<Command>,
    /// For handlers that answer later; it does not keep the client open.
    own_commands: mpsc::WeakUnboundedSender<Command>,
    replies: HashMap<i64, oneshot::Sender<Result<RawReply, ClientError>>>,
    feeds: HashMap<i64, Feed>,
    parts: HashMap<i64, mpsc::UnboundedSender<Notification>>,
    paths: Paths,
    exe: PathBuf,
    hello: watch::Sender<Arc<DaemonHelloResult>>,
    on_permission: Option<PermissionHandler>,
}

/// Why the task stops serving a connection.
enum Over {
    Lost(ClientError),
    /// Every handle is gone, or the client was closed.
    Closed(Option<oneshot::Sender<()>>),
}

pub(super) async fn connect(
    paths: &Paths,
    exe: &Path,
    on_permission: Option<PermissionHandler>,
) -> Result<AsyncClient, ClientError> {
    spawn(open(paths, exe).await?, paths, exe, on_permission)
}

/// Makes the task of a client that is connected.
pub(super) fn spawn(
    connection: Connection,
    paths: &Paths,
    exe: &Path,
    on_permission: Option<PermissionHandler>,
) -> Result<AsyncClient, ClientError> {
    let (hello, heard) = watch::channel(Arc::new(connection.hello));
    let (sender, commands) = mpsc::unbounded_channel();
    let ids = Ids::default();
    let actor = Actor {
        codec: Codec::new(ids.clone(), true),
        stream: Some(nonblocking(connection.stream)?),
        commands,
        own_commands: sender.downgrade(),
        replies: HashMap::new(),
        feeds: HashMap::new(),
        parts: HashMap::new(),
        paths: paths.clone(),
        exe: exe.to_owned(),
        hello,
        on_permission,
    };
    tokio::spawn(actor.run());
    Ok(AsyncClient { commands: sender, ids, hello: heard })
}

/// Connects on a thread that may block: it looks at directories, and may start a process.
async fn open(paths: &Paths, exe: &Path) -> Result<Connection, ClientError> {
    let (paths, exe) = (paths.clone(), exe.to_owned());
    let opened = tokio::task::spawn_blocking(move || connect::open_or_start(&paths, &exe)).await;
    opened.map_err(|error| ClientError::io("connect", io::Error::other(error)))?
}

fn nonblocking(stream: std::os::unix::net::UnixStream) -> Result<UnixStream, ClientError> {
    let made = stream.set_nonblocking(true).and_then(|()| UnixStream::from_std(stream));
    made.map_err(|error| ClientError::io("use the connection", error))
}

impl Actor {
    async fn run(mut self) {
        let closed = loop {
            match self.serve().await {
                Over::Lost(error) => self.lost(error).await,
                Over::Closed(done) => break done,
            }
        };
        let _ = tokio::time::timeout(CLOSE_LIMIT, self.flush()).await;
        self.fail_all(&ClientError::Closed);
        drop(self.stream);
        if let Some(done) = closed {
            let _ = done.send(());
        }
    }

    async fn serve(&mut self) -> Over {
        loop {
            if let Err(error) = self.deliver() {
                return Over::Lost(error);
            }
            if self.stream.is_none() && self.codec.needs_connection() {
                self.reconnect().await;
                continue;
            }
            if let Err(error) = self.write() {
                return Over::Lost(error);
            }
            let wanted = if self.codec.frame().is_some() {
                Interest::READABLE | Interest::WRITABLE
            } else {
                Interest::READABLE
            };
            tokio::select! {
                command = self.commands.recv() => match command {
                    None => return Over::Closed(None),
                    Some(Command::Close(done)) => return Over::Closed(Some(done)),
                    Some(command) => self.obey(command),
                },
                ready = ready(self.stream.as_ref(), wanted) => {
                    if let Err(error) = ready.and_then(|ready| self.read(ready)) {
                        return Over::Lost(error);
                    }
                }
            }
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Call(call) => {
                let Call { request, reply, feed, parts } = *call;
                self.parts.extend(parts.map(|parts| (request.id, parts)));
                self.replies.insert(request.id, reply);
                self.feeds.extend(feed.map(|feed| (request.id, feed)));
                self.codec.submit(request, Instant::now());
            }
            Command::Cancel(id) => {
                self.replies.remove(&id);
                self.parts.remove(&id);
                self.codec.cancel(id);
            }
            Command::Unpause(id) => self.codec.unpause(id, self.stream.is_some()),
            Command::Unsubscribe(id) => {
                self.feeds.remove(&id);
                self.codec.unsubscribe(id);
            }
            Command::Answer { request, result } => {
                // An answer that cannot be written as JSON does not exist.
                let _ = self.codec.answer(&request, Ok(&result));
            }
            Command::Close(_) => {}
        }
    }

    // --- bytes ---

    fn read(&mut self, ready: Ready) -> Result<(), ClientError> {
        let Some(stream) = self.stream.as_ref().filter(|_| ready.is_readable()) else { return Ok(()) };
        match stream.try_read_buf(self.codec.room()?) {
            Ok(0) => Err(ClientError::Closed),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Err(ClientError::Closed),
            Err(error) => Err(ClientError::io("read from the daemon", error)),
        }
    }

    /// Writes as much as the socket takes.
    fn write(&mut self) -> Result<(), ClientError> {
        let Some(stream) = &self.stream else { return Ok(()) };
        while let Some(frame) = self.codec.frame() {
            let write = || wire::write(stream, frame.bytes, frame.fds).map_err(io::Error::from);
            match stream.try_io(Interest::WRITABLE, write) {
                Ok(written) => self.codec.wrote(written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => {
                    let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                    return Err(wire::write_error(errno));
                }
            }
        }
        Ok(())
    }

    async fn flush(&mut self) {
        while self.codec.frame().is_some()
            && ready(self.stream.as_ref(), Interest::WRITABLE).await.is_ok()
            && self.write().is_ok()
        {}
    }

    // --- messages ---

    /// Passes on every message that has arrived.
    fn deliver(&mut self) -> Result<(), ClientError> {
        while let Some(message) = self.codec.next()? {
            match message {
                Message::Response(response) => {
                    self.parts.remove(&response.id);
                    if response.result.is_err() {
                        self.feeds.remove(&response.id);
                    }
                    if let Some(reply) = self.replies.remove(&response.id) {
                        // A caller that is gone has cancelled the call, or is about to.
                        let _ = reply.send(response.result);
                    }
                }
                Message::Notification(notification) => self.notification(notification),
                Message::Request(request) => self.request(request),
                Message::SubscriptionEnded { request, error } => {
                    if let Some(feed) = self.feeds.remove(&request) {
                        feed.fail(error.into());
                    }
                }
                Message::EventsExpired { request, first, last } => {
                    self.feed(request, Item::Expired { first, last });
                }
            }
        }
        if self.codec.is_lost() {
            return Err(RpcError::new(ErrorKind::ShuttingDown, "the daemon shuts down").into());
        }
        Ok(())
    }

    fn notification(&mut self, notification: Notification) {
        let Some(id) = message::request_of(&notification) else { return };
        if matches!(notification, Notification::OutputEnd(_)) {
            self.feeds.remove(&id);
            return;
        }
        if let Some(parts) = self.parts.get(&id) {
            // A caller that is gone has cancelled the call, or is about to.
            let _ = parts.send(notification);
            return;
        }
        self.feed(id, Item::Notification(notification));
    }

    fn feed(&mut self, id: i64, item: Item) {
        let Some(feed) = self.feeds.get(&id) else { return };
        match feed.put(item) {
            Fed::Buffered => {}
            Fed::Full => self.codec.pause(id),
            Fed::Unwanted => {
                self.feeds.remove(&id);
                self.codec.unsubscribe(id);
            }
        }
    }

    fn request(&mut self, request: DaemonRequest) {
        let answer = match request.params::<PermissionAsk>() {
            Some(Ok(ask)) => match (&self.on_permission, self.own_commands.upgrade()) {
                (Some(handler), Some(commands)) => {
                    let decision = handler(ask);
                    tokio::spawn(async move {
                        let result = decision.await;
                        let _ = commands.send(Command::Answer { request, result });
                    });
                    return;
                }
                _ => Ok(PermissionAskResult::Declined),
            },
            Some(Err(error)) => Err(RpcError::new(ErrorKind::Invalid, error.to_string())),
            None => {
                let message = format!("this client has no method {}", request.method);
                Err(RpcError::new(ErrorKind::UnknownMethod, message))
            }
        };
        let _ = self.codec.answer(&request, answer.as_ref().map_err(Clone::clone));
    }

    // --- the connection ---

    /// The connection is lost. It is replaced if something needs it.
    async fn lost(&mut self, error: ClientError) {
        self.stream = None;
        if let Some(delay) = self.disconnected(error) {
            tokio::time::sleep(delay).await;
        }
    }

    /// Connects, as often as the codec allows.
    async fn reconnect(&mut self) {
        loop {
            let error = match self.open().await {
                Ok(()) => return,
                Err(error) => error,
            };
            self.stream = None;
            match self.disconnected(error) {
                Some(delay) if self.codec.needs_connection() => tokio::time::sleep(delay).await,
                _ => return,
            }
        }
    }

    async fn open(&mut self) -> Result<(), ClientError> {
        let connection = open(&self.paths, &self.exe).await?;
        self.stream = Some(nonblocking(connection.stream)?);
        self.hello.send_replace(Arc::new(connection.hello));
        self.codec.connected(Instant::now())
    }

    /// Returns the delay before the next attempt. None: everything that was pending has failed.
    fn disconnected(&mut self, error: ClientError) -> Option<Duration> {
        match self.codec.disconnected(error) {
            Ok(delay) => {
                // Calls that must not be repeated fail at once. Without a connection nothing else is delivered.
                let _ = self.deliver();
                Some(delay)
            }
            Err(error) => {
                self.fail_all(&error);
                None
            }
        }
    }

    fn fail_all(&mut self, error: &ClientError) {
        self.codec.drop_all();
        self.parts.clear();
        for reply in std::mem::take(&mut self.replies).into_values() {
            let _ = reply.send(Err(error.duplicate()));
        }
        for feed in std::mem::take(&mut self.feeds).into_values() {
            feed.fail(error.duplicate());
        }
    }
}

/// Waits until the socket is ready; for ever if there is none.
async fn ready(stream: Option<&UnixStream>, wanted: Interest) -> Result<Ready, ClientError> {
    match stream {
        Some(stream) => stream.ready(wanted).await.map_err(|e| ClientError::io("wait for the daemon", e)),
        None => std::future::pending().await,
    }
}
