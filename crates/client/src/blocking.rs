//! The blocking driver: one connection at a time, no threads and no async runtime, because every short command pays for what it
//! loads. A client that resumes replaces a lost connection inside of any of its calls.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use belay_protocol::daemon::DaemonHelloResult;
use belay_protocol::methods::{Method, Notification};
use belay_protocol::{ErrorKind, RpcError};

use crate::codec::Codec;
use crate::connect::{self, Connection};
use crate::error::ClientError;
use crate::message::{self, DaemonRequest, Message, decode};
use crate::paths::Paths;
use crate::request::{Ids, Request};
use crate::wire;

/// How long a call without a deadline of its own may take. A daemon answers a call that does not wait in far less.
const CALL_LIMIT: Duration = Duration::from_mins(1);

/// A connection to the daemon, for programs that block.
///
/// [`Client::connect`] makes a client for one connection: if it is lost, calls fail with an error of which
/// [`ClientError::is_disconnect`] is true. [`Client::connect_or_start`] makes one that resumes: it connects again, starts the
/// daemon if there is none, repeats the calls that are safe to repeat, and goes on with its subscriptions where they were.
#[derive(Debug)]
pub struct Client {
    codec: Codec,
    stream: UnixStream,
    /// Read while something else was waited for. It grows only by replies and notifications that the caller has asked for.
    queued: VecDeque<Message>,
    hello: Option<DaemonHelloResult>,
    /// Where the next connection is made, for a client that resumes.
    route: Option<Route>,
}

/// How to reach a daemon again.
#[derive(Debug)]
struct Route {
    paths: Paths,
    exe: PathBuf,
}

impl Client {
    pub(crate) fn over(stream: UnixStream) -> Self {
        let codec = Codec::new(Ids::default(), false);
        Self { codec, stream, queued: VecDeque::new(), hello: None, route: None }
    }

    fn with(connection: Connection) -> Self {
        Self { hello: Some(connection.hello), ..Self::over(connection.stream) }
    }

    /// Connects to the daemon. No daemon is started, and a lost connection is not replaced.
    pub fn connect(paths: &Paths) -> Result<Self, ClientError> {
        connect::open(paths).map(Self::with)
    }

    /// Connects, and starts the daemon first if there is none. `exe` is the `belay` program. The client resumes.
    pub fn connect_or_start(paths: &Paths, exe: &Path) -> Result<Self, ClientError> {
        Ok(Self::with(connect::open_or_start(paths, exe)?).resuming(paths, exe))
    }

    /// Connects to a daemon that may be starting or cut off from its socket; starts none. The error says that a daemon is
    /// absent ([`ClientError::is_absent`]) only if none is alive.
    pub fn connect_if_alive(paths: &Paths) -> Result<Self, ClientError> {
        connect::open_if_alive(paths).map(Self::with)
    }

    /// The same client, resuming from now on.
    pub fn resuming(mut self, paths: &Paths, exe: &Path) -> Self {
        self.codec.set_resumes(true);
        self.route = Some(Route { paths: paths.clone(), exe: exe.to_owned() });
        self
    }

    /// What the daemon said about itself when the present connection was made.
    pub fn hello(&self) -> Option<&DaemonHelloResult> {
        self.hello.as_ref()
    }

    // --- calls ---

    /// Calls a method and waits for its result, at most one minute.
    pub fn call<M: Method>(&mut self, params: &M::Params) -> Result<M::Result, ClientError> {
        self.call_by::<M>(params, Some(Instant::now() + CALL_LIMIT))
    }

    /// Calls a method and waits for its result until the deadline. Other messages that arrive meanwhile are kept for
    /// [`Client::receive`].
    pub fn call_by<M: Method>(
        &mut self,
        params: &M::Params,
        deadline: Option<Instant>,
    ) -> Result<M::Result, ClientError> {
        let id = self.send::<M>(params)?;
        loop {
            if let Some(result) = self.codec.take_result::<M>(id) {
                return Ok(result);
            }
            let next = match self.next_buffered() {
                Ok(None) => self.read(deadline).map(|()| None),
                other => other,
            };
            match next.inspect_err(|_| self.codec.forget(id))? {
                Some(Message::Response(response)) if response.id == id => {
                    return decode::<M>(&response.result?);
                }
                Some(other) => self.queued.push_back(other),
                None => {}
            }
        }
    }

    /// Calls a method and waits for its result, without a deadline. `part` gets the notifications that belong to the call and come
    /// before the result, such as the receipts of several stops.
    pub fn call_with_parts<M: Method>(
        &mut self,
        params: &M::Params,
        mut part: impl FnMut(Notification),
    ) -> Result<M::Result, ClientError> {
        let id = self.send::<M>(params)?;
        loop {
            let next = match self.next_buffered() {
                Ok(None) => self.read(None).map(|()| None),
                other => other,
            };
            match next.inspect_err(|_| self.codec.forget(id))? {
                Some(Message::Response(response)) if response.id == id => {
                    return decode::<M>(&response.result?);
                }
                Some(Message::Notification(said)) if message::request_of(&said) == Some(id) => part(said),
                Some(other) => self.queued.push_back(other),
                None => {}
            }
        }
    }

    /// Sends a call without waiting. The reply comes from [`Client::receive`] with the id that is returned.
    pub fn send<M: Method>(&mut self, params: &M::Params) -> Result<i64, ClientError> {
        self.send_with_fds::<M>(params, Vec::new())
    }

    /// Sends a call with descriptors for the daemon.
    pub fn send_with_fds<M: Method>(
        &mut self,
        params: &M::Params,
        fds: Vec<OwnedFd>,
    ) -> Result<i64, ClientError> {
        let id = self.codec.ids().take();
        self.codec.submit(Request::new::<M>(id, params, fds, self.codec.resumes())?, Instant::now());
        if let Err(error) = self.flush() {
            // A call that is reported as failed must not be sent later.
            self.codec.forget(id);
            return Err(error);
        }
        Ok(id)
    }

    /// Ends the subscription that the call with this id has made; a start goes on without its output.
    pub fn unsubscribe(&mut self, id: i64) -> Result<(), ClientError> {
        self.codec.unsubscribe(id);
        self.flush()
    }

    /// Answers a request of the daemon. `M` is one of `belay_protocol::methods::client_calls`.
    pub fn answer<M: Method>(
        &mut self,
        request: &DaemonRequest,
        result: &M::Result,
    ) -> Result<(), ClientError> {
        self.codec.answer(request, Ok(result))?;
        self.flush()
    }

    /// Answers a request of the daemon with an error.
    pub fn refuse(&mut self, request: &DaemonRequest, error: RpcError) -> Result<(), ClientError> {
        self.codec.answer(request, Err::<&(), _>(error))?;
        self.flush()
    }

    // --- messages ---

    /// Waits for the next message, in the order in which they arrived.
    pub fn receive(&mut self) -> Result<Message, ClientError> {
        self.receive_by(None)
    }

    /// Waits for the next message until the deadline.
    pub fn receive_by(&mut self, deadline: Option<Instant>) -> Result<Message, ClientError> {
        loop {
            if let Some(message) = self.take_buffered()? {
                return Ok(message);
            }
            self.read(deadline)?;
        }
    }

    /// Waits for the next notification. Other messages that come before it are kept for [`Client::receive`].
    pub fn next_notification(&mut self, deadline: Option<Instant>) -> Result<Notification, ClientError> {
        let queued = self.queued.iter().position(|message| matches!(message, Message::Notification(_)));
        if let Some(Message::Notification(found)) = queued.and_then(|at| self.queued.remove(at)) {
            return Ok(found);
        }
        loop {
            match self.next_buffered()? {
                Some(Message::Notification(found)) => return Ok(found),
                Some(other) => self.queued.push_back(other),
                None => self.read(deadline)?,
            }
        }
    }

    /// Whether a message can be taken without reading from the socket. A caller that polls the descriptor takes these first:
    /// the kernel knows nothing about them.
    pub fn has_buffered(&self) -> bool {
        !self.queued.is_empty() || self.codec.has_message()
    }

    /// The next message among those that were read already.
    pub fn take_buffered(&mut self) -> Result<Option<Message>, ClientError> {
        match self.queued.pop_front() {
            Some(message) => Ok(Some(message)),
            None => self.next_buffered(),
        }
    }

    /// One read from the socket, for a caller whose poll said that it is readable.
    pub fn fill(&mut self) -> Result<(), ClientError> {
        match wire::read(&self.stream, self.codec.room()?) {
            Ok(()) => Ok(()),
            Err(error) => self.reconnect(error),
        }
    }

    /// Waits until the daemon has closed the connection, as it does when it exits. False: it has not by the deadline.
    pub fn wait_closed(mut self, deadline: Instant) -> bool {
        self.codec.set_resumes(false);
        loop {
            match self.receive_by(Some(deadline)) {
                Ok(_) => {}
                Err(error) => return error.is_disconnect(),
            }
        }
    }

    fn read(&mut self, deadline: Option<Instant>) -> Result<(), ClientError> {
        if let Some(deadline) = deadline {
            wire::wait_readable(&self.stream, deadline)?;
        }
        self.fill()
    }

    fn next_buffered(&mut self) -> Result<Option<Message>, ClientError> {
        loop {
            match self.codec.next() {
                Ok(None) if self.codec.is_lost() => {
                    let leaving = RpcError::new(ErrorKind::ShuttingDown, "the daemon shuts down");
                    self.reconnect(leaving.into())?;
                }
                Ok(found) => {
                    // The codec may have ended a subscription that is not wanted any more.
                    self.flush()?;
                    return Ok(found);
                }
                Err(error) => self.reconnect(error)?,
            }
        }
    }

    // --- the connection ---

    fn flush(&mut self) -> Result<(), ClientError> {
        match self.write_frames() {
            Ok(()) => Ok(()),
            Err(error) => self.reconnect(error),
        }
    }

    fn write_frames(&mut self) -> Result<(), ClientError> {
        while let Some(frame) = self.codec.frame() {
            let written = wire::write(&self.stream, frame.bytes, frame.fds).map_err(wire::write_error)?;
            self.codec.wrote(written);
        }
        Ok(())
    }

    /// Replaces the connection that was lost by this error, as often as the codec allows. Any other error is returned.
    fn reconnect(&mut self, mut error: ClientError) -> Result<(), ClientError> {
        if !error.is_disconnect() {
            return Err(error);
        }
        loop {
            let delay = self.codec.disconnected(error)?;
            if !self.codec.needs_connection() {
                // The next call makes the connection that it needs.
                return Ok(());
            }
            if !delay.is_zero() {
                std::thread::sleep(delay);
            }
            let Some(route) = &self.route else { return Err(ClientError::Closed) };
            error = match connect::open_or_start(&route.paths, &route.exe) {
                Ok(connection) => {
                    (self.stream, self.hello) = (connection.stream, Some(connection.hello));
                    self.codec.connected(Instant::now())?;
                    match self.write_frames() {
                        Ok(()) => return Ok(()),
                        Err(error) => error,
                    }
                }
                Err(error) => error,
            };
        }
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
