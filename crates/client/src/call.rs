//! Calls over one connection: a request and its answer, several requests on their way at once, and what the daemon
//! says unasked. One message is one line.

use std::collections::VecDeque;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use belay_protocol::daemon::DaemonHelloResult;
use belay_protocol::methods::{self, Method};
use belay_protocol::rpc::{Answered, Incoming, Outgoing, RequestId, Version};
use belay_protocol::{ErrorKind, MAX_REQUEST_BYTES, RpcError, read_json};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use serde_json::value::RawValue;

use crate::error::ClientError;
use crate::lines::{Filled, Lines};

/// How much of a message that is not understood is shown.
const SHOWN_BYTES: usize = 120;

/// How long a call that makes nobody wait may take.
const CALL_LIMIT: Duration = Duration::from_mins(1);

/// One connection to the daemon.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    lines: Lines,
    /// Read while something else was waited for. As long as the requests that were sent and the follows that were
    /// asked for: a caller that wants neither gets neither.
    queued: VecDeque<Message>,
    next_id: i64,
    /// Calls whose answer nobody waits for any more.
    abandoned: Vec<i64>,
    hello: Option<DaemonHelloResult>,
}

/// One message from the daemon.
#[derive(Debug)]
pub enum Message {
    Response(Response),
    Notification(Notification),
}

/// The answer to the request with this id. [`decode`] reads it.
#[derive(Debug)]
pub struct Response {
    pub id: i64,
    pub result: Result<Box<RawValue>, RpcError>,
}

/// A notification from the daemon, as it came. [`Notification::parse`] reads it.
#[derive(Debug)]
pub struct Notification {
    pub method: String,
    pub params: Box<RawValue>,
}

impl Notification {
    /// Reads the parameters. None: this version does not know the notification.
    pub fn parse(&self) -> Result<Option<methods::Notification>, ClientError> {
        methods::Notification::parse(&self.method, &self.params).map_err(|error| ClientError::Malformed {
            what: format!("the notification {}: {error}", self.method),
        })
    }
}

/// Reads the result of a method.
pub fn decode<M: Method>(raw: &RawValue) -> Result<M::Result, ClientError> {
    serde_json::from_str(raw.get())
        .map_err(|error| ClientError::Malformed { what: format!("the result of {}: {error}", M::NAME) })
}

impl Client {
    pub(crate) fn over(stream: UnixStream) -> Self {
        let (lines, queued) = (Lines::default(), VecDeque::new());
        Self { stream, lines, queued, next_id: 1, abandoned: Vec::new(), hello: None }
    }

    pub(crate) fn set_hello(&mut self, hello: DaemonHelloResult) {
        self.hello = Some(hello);
    }

    /// What the daemon said of itself when the connection was made.
    pub fn hello(&self) -> Option<&DaemonHelloResult> {
        self.hello.as_ref()
    }

    /// Asks and waits for the answer. A daemon answers what makes nobody wait in far less than the limit; one that does
    /// not answer by then hangs, and the caller is told so.
    pub fn call<M: Method>(&mut self, params: &M::Params) -> Result<M::Result, ClientError> {
        self.call_by::<M>(params, Some(Instant::now() + CALL_LIMIT))
    }

    /// Asks and waits for the answer until the deadline. Everything else that arrives meanwhile is kept.
    pub fn call_by<M: Method>(
        &mut self,
        params: &M::Params,
        deadline: Option<Instant>,
    ) -> Result<M::Result, ClientError> {
        let id = self.send::<M>(params)?;
        loop {
            if let Err(error) = self.read_line(deadline) {
                if matches!(error, ClientError::Deadline) {
                    self.abandoned.push(id);
                }
                return Err(error);
            }
            if let Some(result) = self.take_answer::<M>(id) {
                return Ok(result);
            }
            match self.parse_buffered()? {
                // An error, or not what the method promises.
                Some(Message::Response(response)) if response.id == id => {
                    return decode::<M>(&response.result?);
                }
                other => self.queued.extend(other),
            }
        }
    }

    /// Asks and waits for the result without a limit; the notifications that belong to the call are handed on as they come.
    pub fn call_with_parts<M: Method>(
        &mut self,
        params: &M::Params,
        mut part: impl FnMut(methods::Notification),
    ) -> Result<M::Result, ClientError> {
        let id = self.send::<M>(params)?;
        loop {
            match self.read_message(None)? {
                Message::Response(response) if response.id == id => return decode::<M>(&response.result?),
                Message::Notification(said) => {
                    if let Some(known) = said.parse()? {
                        part(known);
                    }
                }
                other @ Message::Response(_) => self.queued.push_back(other),
            }
        }
    }

    /// Asks without waiting; the answer comes out of [`Client::receive`] with this id.
    pub fn send<M: Method>(&mut self, params: &M::Params) -> Result<i64, ClientError> {
        let id = self.next_id;
        let request = Outgoing { jsonrpc: Version::V2, id, method: M::NAME, params };
        let mut line =
            serde_json::to_vec(&request).map_err(|error| ClientError::io("write a request", error))?;
        if line.len() > MAX_REQUEST_BYTES {
            return Err(ClientError::Rpc(too_large(M::NAME, line.len())));
        }
        line.push(b'\n');
        self.next_id += 1;
        self.stream.write_all(&line).map_err(write_error)?;
        Ok(id)
    }

    /// The next message, in the order in which they arrived.
    pub fn receive(&mut self) -> Result<Message, ClientError> {
        self.receive_by(None)
    }

    pub fn receive_by(&mut self, deadline: Option<Instant>) -> Result<Message, ClientError> {
        match self.queued.pop_front() {
            Some(message) => Ok(message),
            None => self.read_message(deadline),
        }
    }

    /// The next notification; answers that come before it are kept for [`Client::receive`].
    pub fn next_notification(&mut self, deadline: Option<Instant>) -> Result<Notification, ClientError> {
        let queued = self.queued.iter().position(|message| matches!(message, Message::Notification(_)));
        if let Some(Message::Notification(found)) = queued.and_then(|at| self.queued.remove(at)) {
            return Ok(found);
        }
        loop {
            match self.read_message(deadline)? {
                Message::Notification(found) => return Ok(found),
                response @ Message::Response(_) => self.queued.push_back(response),
            }
        }
    }

    /// Whether a message can be taken without touching the socket. A caller that polls the descriptor must take
    /// these first: the kernel knows nothing of them.
    pub fn has_buffered(&self) -> bool {
        !self.queued.is_empty() || self.lines.has_line()
    }

    /// The next message of those that have been read already.
    pub fn take_buffered(&mut self) -> Result<Option<Message>, ClientError> {
        match self.queued.pop_front() {
            Some(message) => Ok(Some(message)),
            None => self.parse_buffered(),
        }
    }

    /// One read from the socket, for a caller whose poll said that there is something.
    pub fn fill(&mut self) -> Result<(), ClientError> {
        match self.lines.fill(&self.stream) {
            Ok(Filled::Some) => Ok(()),
            Ok(Filled::End) | Err(Errno::CONNRESET) => Err(ClientError::Closed),
            Ok(Filled::TooLong) => Err(ClientError::Malformed { what: "a line without an end".to_owned() }),
            Err(errno) => Err(ClientError::io("read from the daemon", errno)),
        }
    }

    fn read_message(&mut self, deadline: Option<Instant>) -> Result<Message, ClientError> {
        loop {
            self.read_line(deadline)?;
            if let Some(message) = self.parse_buffered()? {
                return Ok(message);
            }
        }
    }

    /// Reads until a whole line is there.
    fn read_line(&mut self, deadline: Option<Instant>) -> Result<(), ClientError> {
        while self.lines.peek_line().is_none() {
            if let Some(deadline) = deadline {
                self.wait_readable(deadline)?;
            }
            self.fill()?;
        }
        Ok(())
    }

    /// The next line, if it is the answer to this call: read once, straight into what was asked for, for it may be long.
    fn take_answer<M: Method>(&mut self, id: i64) -> Option<M::Result> {
        let answered: Answered<M::Result> = read_json(self.lines.peek_line()?).ok()?;
        (answered.id == id).then(|| {
            self.lines.next_line();
            answered.result
        })
    }

    fn parse_buffered(&mut self) -> Result<Option<Message>, ClientError> {
        while let Some(line) = self.lines.next_line() {
            let message = parse(line)?;
            if let Message::Response(response) = &message
                && let Some(at) = self.abandoned.iter().position(|id| *id == response.id)
            {
                self.abandoned.swap_remove(at);
                continue;
            }
            return Ok(Some(message));
        }
        Ok(None)
    }

    fn wait_readable(&self, deadline: Instant) -> Result<(), ClientError> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).map_err(|_| ClientError::Deadline)?;
            let mut fds = [PollFd::new(&self.stream, PollFlags::IN)];
            match rustix::event::poll(&mut fds, Some(&left)) {
                Ok(0) => return Err(ClientError::Deadline),
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(ClientError::io("wait for the daemon", errno)),
            }
        }
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

fn parse(line: &[u8]) -> Result<Message, ClientError> {
    let malformed = |why: &str| {
        let shown = &line[..line.len().min(SHOWN_BYTES)];
        ClientError::Malformed { what: format!("{why}: {:?}", String::from_utf8_lossy(shown)) }
    };
    let incoming: Incoming = read_json(line).map_err(|error| malformed(&error.to_string()))?;
    let null = || RawValue::NULL.to_owned();
    if let Some(method) = incoming.method {
        let params = incoming.params.map_or_else(null, RawValue::to_owned);
        return Ok(Message::Notification(Notification { method, params }));
    }
    match (incoming.id, incoming.error) {
        (Some(RequestId::Number(id)), None) => {
            let result = incoming.result.map_or_else(null, RawValue::to_owned);
            Ok(Message::Response(Response { id, result: Ok(result) }))
        }
        (Some(RequestId::Number(id)), Some(error)) => {
            Ok(Message::Response(Response { id, result: Err(error) }))
        }
        // An error that belongs to no request: the daemon could not read what was sent, or takes nobody in.
        (None, Some(error)) => Err(ClientError::Rpc(error)),
        _ => Err(malformed("neither an answer nor a notification")),
    }
}

fn too_large(method: &str, bytes: usize) -> RpcError {
    let message =
        format!("the {method} request has {bytes} bytes, and at most {MAX_REQUEST_BYTES} are taken");
    RpcError::new(ErrorKind::TooLarge, message).hint("shorten the arguments or the environment")
}

fn write_error(error: io::Error) -> ClientError {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => ClientError::Closed,
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => ClientError::Deadline,
        _ => ClientError::io("write to the daemon", error),
    }
}
