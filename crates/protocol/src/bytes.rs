//! Arguments, paths and names on the wire: a string if they are UTF-8, else `{"base64": "…"}`.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Any bytes: arguments, paths and environment values on Unix need not be text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Bytes(pub Vec<u8>);

/// How [`Bytes`] look on the wire.
#[derive(JsonSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only its shape is wanted")]
enum Wire {
    Text(String),
    Coded { base64: String },
}

impl Bytes {
    pub fn to_text_lossy(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }

    pub fn as_os_str(&self) -> &OsStr {
        OsStr::from_bytes(&self.0)
    }
}

impl From<&str> for Bytes {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().to_vec())
    }
}

impl From<String> for Bytes {
    fn from(text: String) -> Self {
        Self(text.into_bytes())
    }
}

impl From<OsString> for Bytes {
    fn from(text: OsString) -> Self {
        Self(text.into_vec())
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap as _;
        if let Ok(text) = std::str::from_utf8(&self.0) {
            return serializer.serialize_str(text);
        }
        let mut map = serializer.serialize_map(Some(1))?;
        map.serialize_entry("base64", &STANDARD.encode(&self.0))?;
        map.end()
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FromWire)
    }
}

/// Reads either form at once: an environment is many of these, at every start.
struct FromWire;

impl<'de> Visitor<'de> for FromWire {
    type Value = Bytes;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, or {\"base64\": \"…\"}")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Bytes, E> {
        Ok(Bytes(text.as_bytes().to_vec()))
    }

    fn visit_string<E: serde::de::Error>(self, text: String) -> Result<Bytes, E> {
        Ok(Bytes(text.into_bytes()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Bytes, A::Error> {
        let Some((name, coded)) = map.next_entry::<String, String>()? else {
            return Err(serde::de::Error::missing_field("base64"));
        };
        if name != "base64" || map.next_key::<String>()?.is_some() {
            return Err(serde::de::Error::unknown_field(&name, &["base64"]));
        }
        STANDARD.decode(coded).map(Bytes).map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Bytes {
    fn schema_name() -> Cow<'static, str> {
        "Bytes".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        Wire::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn text_is_a_string_and_other_bytes_are_base64() {
        let wire = |bytes: &[u8]| serde_json::to_string(&Bytes(bytes.to_vec())).unwrap();
        assert_eq!(wire("a \"ä\"\n\0".as_bytes()), r#""a \"ä\"\n\u0000""#);
        assert_eq!(wire(b"\xff"), r#"{"base64":"/w=="}"#);
    }

    proptest! {
        #[test]
        fn bytes_come_back_as_they_went(bytes: Vec<u8>) {
            let wire = serde_json::to_string(&Bytes(bytes.clone())).unwrap();
            prop_assert_eq!(serde_json::from_str::<Bytes>(&wire).unwrap().0, bytes);
        }
    }
}
