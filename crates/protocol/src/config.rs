//! `config/*`: the settings, each with where it comes from.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::bytes::Bytes;

/// One setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConfigItem {
    /// As in the file, with its table: `daemon.idle_exit`.
    pub key: String,
    /// What counts now, written as in the file; null where there is none.
    pub value: Value,
    pub source: ConfigSource,
    /// What counts from the next start of the daemon on, where that is something else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_next_start: Option<Value>,
}

/// Where the value of a setting comes from, tagged by `kind`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ConfigSource {
    Default,
    File {
        /// `PATH:LINE`.
        #[serde(rename = "where")]
        place: String,
    },
    Env {
        variable: String,
    },
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConfigGetParams {
    /// Only this one; else all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConfigGetResult {
    /// The file, whether it is there or not.
    pub path: Bytes,
    /// In the order of the documentation.
    pub items: Vec<ConfigItem>,
    /// What is wrong with the file as it is now. The values from before count until it is put right.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConfigSetParams {
    pub key: String,
    /// As in the file, or the same as text; null takes the key out of the file.
    #[serde(default)]
    pub value: Value,
}

/// From when on a setting counts that was written into the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ConfigApplies {
    Now,
    NextStart,
    /// Not while the environment of the daemon says something else.
    Overridden,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConfigSetResult {
    pub path: Bytes,
    /// As it stands now.
    pub item: ConfigItem,
    pub counts: ConfigApplies,
}
