//! Who moved a task to the background. A string on the wire.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// Who or what moved a task to the background.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum DetachedBy {
    /// `clock:timeout`: the limit for the foreground passed.
    Timeout,
    /// `leader`: the first process has exited and left others behind.
    Leader,
    /// `disconnect`: the connection of the waiting caller ended.
    Disconnect,
    /// A client that asked for it, such as `user:NAME`.
    Actor(String),
}

impl DetachedBy {
    pub fn as_str(&self) -> &str {
        match self {
            Self::Timeout => "clock:timeout",
            Self::Leader => "leader",
            Self::Disconnect => "disconnect",
            Self::Actor(actor) => actor,
        }
    }
}

impl From<String> for DetachedBy {
    fn from(text: String) -> Self {
        let named = [Self::Timeout, Self::Leader, Self::Disconnect].into_iter();
        named.into_iter().find(|by| by.as_str() == text).unwrap_or(Self::Actor(text))
    }
}

impl From<DetachedBy> for String {
    fn from(by: DetachedBy) -> Self {
        match by {
            DetachedBy::Actor(actor) => actor,
            other => other.as_str().to_owned(),
        }
    }
}

impl std::fmt::Display for DetachedBy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl JsonSchema for DetachedBy {
    fn schema_name() -> Cow<'static, str> {
        "DetachedBy".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Who or what moved a task to the background: an actor such as `user:NAME`, or `clock:timeout`, \
                `disconnect`, or `leader` when the first process has exited and left others behind.",
            "type": "string",
        })
    }
}
