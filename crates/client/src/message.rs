//! Messages from the daemon as the drivers pass them on: replies, notifications, requests, and what the client itself reports
//! about a subscription. Parsing one line is here; what a message means for pending calls is in the codec.

use belay_protocol::methods::{Method, Notification};
use belay_protocol::rpc::{Incoming, RequestId};
use belay_protocol::{RpcError, read_json};
use serde_json::value::RawValue;

use crate::error::ClientError;

/// How many bytes of a message that is not understood are shown.
const SHOWN_BYTES: usize = 120;

/// One message of a connection.
#[derive(Debug)]
#[non_exhaustive]
pub enum Message {
    /// The reply to a call.
    Response(Response),
    /// A notification that belongs to a pending call or to a subscription. Output and events that arrived before are left out.
    Notification(Notification),
    /// A request of the daemon, to be answered with `answer` or `refuse`.
    Request(DaemonRequest),
    /// A subscription could not be resumed on a new connection, and has ended.
    SubscriptionEnded {
        /// The id of the call that made the subscription.
        request: i64,
        /// Why the daemon refused it.
        error: RpcError,
    },
    /// Events of a subscription were removed by retention before they could be sent. The subscription goes on behind them.
    EventsExpired {
        /// The id of the call that made the subscription.
        request: i64,
        /// The first number that is missing.
        first: u64,
        /// The last number that is missing.
        last: u64,
    },
}

/// The reply to the call with this id. [`decode`] reads the result.
#[derive(Debug)]
pub struct Response {
    /// The id of the call.
    pub id: i64,
    /// The result, or why there is none.
    pub result: Result<RawReply, ClientError>,
}

/// The result of a call as the daemon sent it: JSON that has not been parsed yet.
#[derive(Clone, Debug)]
pub struct RawReply(pub(crate) Vec<u8>);

/// Reads the result of a method.
pub fn decode<M: Method>(raw: &RawReply) -> Result<M::Result, ClientError> {
    read_json(&raw.0)
        .map_err(|error| ClientError::Malformed { what: format!("the result of {}: {error}", M::NAME) })
}

/// A request of the daemon to this client.
#[derive(Debug)]
pub struct DaemonRequest {
    /// The name of the method, one of `belay_protocol::methods::client_calls`.
    pub method: String,
    pub(crate) id: RequestId,
    pub(crate) params: Box<RawValue>,
    /// The connection on which it came: an answer on another one would answer another request.
    pub(crate) connection: u64,
}

impl DaemonRequest {
    /// Reads the parameters, if the request is for this method.
    pub fn params<M: Method>(&self) -> Option<Result<M::Params, ClientError>> {
        let malformed = |error| ClientError::Malformed { what: format!("the request {}: {error}", M::NAME) };
        (self.method == M::NAME).then(|| serde_json::from_str(self.params.get()).map_err(malformed))
    }
}

/// One line, parsed.
#[derive(Debug)]
pub(crate) enum Parsed {
    Reply {
        id: i64,
        result: Result<RawReply, RpcError>,
    },
    Notification(Box<Notification>),
    Request {
        id: RequestId,
        method: String,
        params: Box<RawValue>,
    },
    /// A notification that this version does not know.
    Unknown,
}

/// The id and the result in the line of a good reply, if it is written as a daemon writes it: so a long result is found without
/// being parsed. The caller that decodes it finds out whether it is JSON.
pub(crate) fn split_result(line: &[u8]) -> Option<(i64, &[u8])> {
    let rest = line.strip_prefix(br#"{"jsonrpc":"2.0","id":"#)?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let id = std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()?;
    let result = rest[digits..].strip_prefix(br#","result":"#)?.strip_suffix(b"}")?;
    Some((id, result))
}

pub(crate) fn parse(line: &[u8]) -> Result<Parsed, ClientError> {
    let malformed = |why: &str| {
        let shown = &line[..line.len().min(SHOWN_BYTES)];
        ClientError::Malformed { what: format!("{why}: {:?}", String::from_utf8_lossy(shown)) }
    };
    if let Some((id, result)) = split_result(line) {
        return Ok(Parsed::Reply { id, result: Ok(RawReply(result.to_vec())) });
    }
    let incoming: Incoming = read_json(line).map_err(|error| malformed(&error.to_string()))?;
    let bytes = |raw: Option<&RawValue>| RawReply(raw.unwrap_or(RawValue::NULL).get().as_bytes().to_vec());
    match (incoming.method, incoming.id, incoming.error) {
        (Some(method), None, _) => {
            let params = incoming.params.unwrap_or(RawValue::NULL);
            let known = Notification::parse(&method, params)
                .map_err(|error| malformed(&format!("the notification {method}: {error}")))?;
            Ok(known.map_or(Parsed::Unknown, |known| Parsed::Notification(Box::new(known))))
        }
        (Some(method), Some(id), _) => {
            let params = incoming.params.unwrap_or(RawValue::NULL).to_owned();
            Ok(Parsed::Request { id, method, params })
        }
        (None, Some(RequestId::Number(id)), Some(error)) => Ok(Parsed::Reply { id, result: Err(error) }),
        (None, Some(RequestId::Number(id)), None) => {
            Ok(Parsed::Reply { id, result: Ok(bytes(incoming.result)) })
        }
        // An error that belongs to no request: the daemon could not read a line, or accepts no more connections.
        (None, None, Some(error)) => Err(ClientError::Rpc(error)),
        _ => Err(malformed("neither a reply nor a notification")),
    }
}

/// The id of the call that a notification belongs to.
pub(crate) fn request_of(notification: &Notification) -> Option<i64> {
    let request = match notification {
        Notification::TaskQueued(start) | Notification::TaskStarted(start) => &start.request,
        Notification::OutputChunk(chunk) => &chunk.request,
        Notification::OutputEnd(end) => &end.request,
        Notification::EventItem(item) => &item.request,
        Notification::EventEnd(end) => &end.request,
        Notification::TaskStopped(stopped) => &stopped.request,
        Notification::TaskRemoved(removed) => &removed.request,
    };
    match request {
        RequestId::Number(id) => Some(*id),
        RequestId::Text(_) => None,
    }
}

/// The id in a reply whose other fields do not matter.
#[derive(serde::Deserialize)]
pub(crate) struct Named {
    pub(crate) id: String,
}

/// Reads a result that the codec itself uses.
pub(crate) fn read<T: serde::de::DeserializeOwned>(raw: &RawReply, method: &str) -> Result<T, ClientError> {
    read_json(&raw.0)
        .map_err(|error| ClientError::Malformed { what: format!("the result of {method}: {error}") })
}
