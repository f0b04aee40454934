//! The JSON-RPC 2.0 envelope: request, response, notification. One message is one line.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::error::RpcError;

/// A request's id: JSON-RPC allows numbers and strings.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum RequestId {
    Number(i64),
    Text(String),
}

/// What a client sends. A message without an id is a notification and gets no answer.
#[derive(Debug, Deserialize)]
pub struct Request<'a> {
    pub jsonrpc: Version,
    #[serde(default)]
    pub id: Option<RequestId>,
    pub method: String,
    #[serde(borrow, default)]
    pub params: Option<&'a RawValue>,
}

/// The word `2.0`, and no other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Version {
    #[default]
    #[serde(rename = "2.0")]
    V2,
}

/// A request as a client writes it.
#[derive(Debug, Serialize)]
pub struct Outgoing<'a, P: Serialize> {
    pub jsonrpc: Version,
    pub id: i64,
    pub method: &'a str,
    pub params: &'a P,
}

/// The answer to a request: a result or an error.
#[derive(Debug, Serialize)]
pub struct Answer<'a, R: Serialize> {
    pub jsonrpc: Version,
    pub id: Option<&'a RequestId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<&'a R>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<&'a RpcError>,
}

/// What the daemon says unasked.
#[derive(Debug, Serialize)]
pub struct Notification<'a, P: Serialize> {
    pub jsonrpc: Version,
    pub method: &'a str,
    pub params: &'a P,
}

/// Anything the daemon sends, as a client reads it.
#[derive(Debug, Deserialize)]
pub struct Incoming<'a> {
    #[serde(default)]
    pub id: Option<RequestId>,
    #[serde(default)]
    pub method: Option<String>,
    #[serde(borrow, default)]
    pub params: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub result: Option<&'a RawValue>,
    #[serde(default)]
    pub error: Option<RpcError>,
}
