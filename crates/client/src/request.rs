//! Requests as lines: the envelope, the token that makes a call safe to repeat, and the same request for a new connection.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use belay_protocol::event::EventFollowParams;
use belay_protocol::methods::{
    Call, EventFollow, EventRead, Method, OutputFollow, Repeat, SessionClose, SessionNotices, SessionOpen,
    SessionRenew, SessionWait, TaskStart, TaskWait, TaskWrite,
};
use belay_protocol::output::{OutputFollowParams, OutputFrom, StreamName};
use belay_protocol::rpc::{self, Version};
use belay_protocol::session::SessionOpenParams;
use belay_protocol::task::{StartFollowParams, TaskStartParams, TaskWriteParams};
use belay_protocol::{ErrorKind, MAX_REQUEST_BYTES, RpcError, read_json};
use serde::Serialize;

use crate::error::ClientError;

/// The source of request ids of one client; its clones count on.
#[derive(Clone, Debug)]
pub(crate) struct Ids(Arc<AtomicI64>);

impl Default for Ids {
    fn default() -> Self {
        Self(Arc::new(AtomicI64::new(1)))
    }
}

impl Ids {
    pub(crate) fn take(&self) -> i64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

/// A request, ready to be sent.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) id: i64,
    pub(crate) method: &'static str,
    /// Whether it may be sent again when the connection was lost before the reply.
    pub(crate) repeatable: bool,
    pub(crate) purpose: Purpose,
    /// The message with its line end.
    pub(crate) line: Vec<u8>,
    /// Sent with the first bytes of the line.
    pub(crate) fds: Vec<OwnedFd>,
}

/// What a subscription to output asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WantedOutput {
    pub(crate) stream: Option<StreamName>,
    pub(crate) text: bool,
}

/// What the codec keeps about a request besides its reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Nothing.
    Plain,
    /// A start that subscribes to the output of its task.
    StartWithOutput {
        output: WantedOutput,
    },
    FollowOutput {
        output: WantedOutput,
    },
    FollowEvents(Box<EventFollowParams>),
    /// The session in the reply may be held by the connection.
    HoldSession,
    /// The session in the reply is no longer held.
    CloseSession,
}

#[derive(Serialize)]
struct Envelope<'a, P> {
    jsonrpc: Version,
    id: i64,
    method: &'a str,
    /// How many descriptors come with the line.
    #[serde(skip_serializing_if = "is_zero")]
    fds: usize,
    params: &'a P,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
const fn is_zero(number: &usize) -> bool {
    *number == 0
}

impl Request {
    /// `with_tokens`: a call that is safe to repeat only with a token gets one, if the caller gave none.
    pub(crate) fn new<M: Method>(
        id: i64,
        params: &M::Params,
        fds: Vec<OwnedFd>,
        with_tokens: bool,
    ) -> Result<Self, ClientError> {
        let any: &dyn Any = params;
        let with_token = if with_tokens && M::REPEAT == Repeat::WithToken { tokenized(any)? } else { None };
        let (line, has_token) = match with_token {
            Some(Tokenized::Start(start)) => (encode(id, M::NAME, fds.len(), &*start)?, true),
            Some(Tokenized::Write(write)) => (encode(id, M::NAME, fds.len(), &*write)?, true),
            Some(Tokenized::Open(open)) => (encode(id, M::NAME, fds.len(), &*open)?, true),
            None => (encode(id, M::NAME, fds.len(), params)?, has_token(any)),
        };
        let repeatable = match M::REPEAT {
            Repeat::Safe => true,
            Repeat::WithToken => has_token,
            Repeat::Never => false,
        };
        Ok(Self { id, method: M::NAME, repeatable, purpose: purpose::<M>(any), line, fds })
    }

    /// The line for a new connection: waits have as much time as is left, and subscriptions begin at their position. `announced`:
    /// the task of a start is known to have begun.
    pub(crate) fn line_again(
        &self,
        elapsed: Duration,
        position: Option<u64>,
        announced: bool,
    ) -> Result<Vec<u8>, ClientError> {
        let elapsed_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        let is_timed = [
            TaskStart::NAME,
            OutputFollow::NAME,
            EventFollow::NAME,
            TaskWait::NAME,
            SessionWait::NAME,
            SessionNotices::NAME,
            EventRead::NAME,
            TaskWrite::NAME,
        ];
        if !is_timed.contains(&self.method) {
            return Ok(self.line.clone());
        }
        let sent: rpc::Request = read_json(&self.line).map_err(|e| ClientError::io("repeat a request", e))?;
        let left = |limit: &mut u64| *limit = limit.saturating_sub(elapsed_ms);
        let (id, name, fds) = (self.id, self.method, self.fds.len());
        match Call::parse(name, sent.params)? {
            Call::TaskStart(mut params) => {
                // A task that has run is not run again, also if its record was removed meanwhile.
                params.resume |= announced;
                if let (Some(follow), Some(position)) = (&mut params.follow, position) {
                    follow.from = follow.from.max(position);
                } else {
                    // Its subscription was ended by this client.
                    params.follow = None;
                }
                encode(id, name, fds, &*params)
            }
            Call::OutputFollow(mut params) => {
                if let Some(offset) = position {
                    params.from = OutputFrom::Offset { offset };
                }
                encode(id, name, fds, &*params)
            }
            Call::EventFollow(mut params) => {
                params.after = params.after.max(position.unwrap_or(0));
                encode(id, name, fds, &*params)
            }
            Call::TaskWait(mut params) => {
                params.timeout_ms.as_mut().map(left);
                encode(id, name, fds, &*params)
            }
            Call::SessionWait(mut params) => {
                params.timeout_ms.as_mut().map(left);
                encode(id, name, fds, &*params)
            }
            Call::SessionNotices(mut params) => {
                left(&mut params.wait_ms);
                encode(id, name, fds, &*params)
            }
            Call::EventRead(mut params) => {
                left(&mut params.wait_ms);
                encode(id, name, fds, &*params)
            }
            Call::TaskWrite(mut params) => {
                params.room_ms.as_mut().map(left);
                encode(id, name, fds, &*params)
            }
            _ => Ok(self.line.clone()),
        }
    }
}

/// A request as a line.
pub(crate) fn encode<P: Serialize>(
    id: i64,
    method: &str,
    fds: usize,
    params: &P,
) -> Result<Vec<u8>, ClientError> {
    let envelope = Envelope { jsonrpc: Version::V2, id, method, fds, params };
    let mut line =
        serde_json::to_vec(&envelope).map_err(|error| ClientError::io("write a request", error))?;
    if line.len() > MAX_REQUEST_BYTES {
        return Err(ClientError::Rpc(too_large(method, line.len())));
    }
    line.push(b'\n');
    Ok(line)
}

fn too_large(method: &str, bytes: usize) -> RpcError {
    let message =
        format!("the {method} request has {bytes} bytes, and at most {MAX_REQUEST_BYTES} are taken");
    RpcError::new(ErrorKind::TooLarge, message).hint("shorten the arguments or the environment")
}

fn purpose<M: Method>(params: &dyn Any) -> Purpose {
    match M::NAME {
        TaskStart::NAME => {
            let follow = params.downcast_ref::<TaskStartParams>().and_then(|start| start.follow);
            follow.map_or(Purpose::Plain, |StartFollowParams { stream, text, .. }| Purpose::StartWithOutput {
                output: WantedOutput { stream, text },
            })
        }
        OutputFollow::NAME => params.downcast_ref::<OutputFollowParams>().map_or(
            Purpose::Plain,
            |OutputFollowParams { stream, text, .. }| Purpose::FollowOutput {
                output: WantedOutput { stream: *stream, text: *text },
            },
        ),
        EventFollow::NAME => params
            .downcast_ref::<EventFollowParams>()
            .map_or(Purpose::Plain, |follow| Purpose::FollowEvents(Box::new(follow.clone()))),
        SessionOpen::NAME | SessionRenew::NAME => Purpose::HoldSession,
        SessionClose::NAME => Purpose::CloseSession,
        _ => Purpose::Plain,
    }
}

/// Parameters with the token that their caller did not give.
enum Tokenized {
    Start(Box<TaskStartParams>),
    Write(Box<TaskWriteParams>),
    Open(Box<SessionOpenParams>),
}

fn tokenized(params: &dyn Any) -> Result<Option<Tokenized>, ClientError> {
    if let Some(start) = params.downcast_ref::<TaskStartParams>()
        && start.token.is_none()
    {
        let start = TaskStartParams { token: Some(random_token()?), ..start.clone() };
        return Ok(Some(Tokenized::Start(Box::new(start))));
    }
    if let Some(write) = params.downcast_ref::<TaskWriteParams>()
        && write.key.is_none()
    {
        let write = TaskWriteParams { key: Some(random_token()?), ..write.clone() };
        return Ok(Some(Tokenized::Write(Box::new(write))));
    }
    if let Some(open) = params.downcast_ref::<SessionOpenParams>()
        && open.key.is_none()
    {
        let open = SessionOpenParams { key: Some(random_token()?), ..open.clone() };
        return Ok(Some(Tokenized::Open(Box::new(open))));
    }
    Ok(None)
}

fn has_token(params: &dyn Any) -> bool {
    params.downcast_ref::<TaskStartParams>().is_some_and(|start| start.token.is_some())
        || params.downcast_ref::<TaskWriteParams>().is_some_and(|write| write.key.is_some())
        || params.downcast_ref::<SessionOpenParams>().is_some_and(|open| open.key.is_some())
}

/// A token that no other caller uses: for a start, a write or a session that is to have its effect once, however often it is
/// sent.
pub fn random_token() -> Result<String, ClientError> {
    let mut bytes = [0_u8; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| ClientError::io("get random bytes", errno))?;
    Ok(format!("run-{:032x}", u128::from_le_bytes(bytes)))
}
