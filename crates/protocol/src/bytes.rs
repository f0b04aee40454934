//! Bytes on a JSON wire: a plain string where they are UTF-8, `{"base64": "…"}` where they are not, or where that is shorter
//! because most of them would have to be escaped.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::fmt::{self, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

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
        match std::str::from_utf8(&self.0) {
            Ok(text) if text.len() < LARGE_BYTES => return serializer.serialize_str(text),
            Ok(text) => {
                if let Some(raw) = escaped(text).and_then(|json| RawValue::from_string(json).ok()) {
                    return raw.serialize(serializer);
                }
            }
            Err(_) => {}
        }
        let mut map = serializer.serialize_map(Some(1))?;
        map.serialize_entry("base64", &STANDARD.encode(&self.0))?;
        map.end()
    }
}

/// From so many bytes on it pays to look at eight at a time.
const LARGE_BYTES: usize = 1024;

/// A text as JSON writes it; none if it is shorter in base64.
fn escaped(text: &str) -> Option<String> {
    let limit = text.len() / 3 * 4;
    let mut json = String::with_capacity(text.len() + text.len() / 16 + 2);
    json.push('"');
    let mut from = 0;
    while let Some(at) = next_to_escape(text.as_bytes(), from) {
        // What is escaped is one byte of its own, so no character is cut.
        json.push_str(text.get(from..at)?);
        match text.as_bytes()[at] {
            b'\n' => json.push_str("\\n"),
            b'"' => json.push_str("\\\""),
            b'\\' => json.push_str("\\\\"),
            b'\t' => json.push_str("\\t"),
            b'\r' => json.push_str("\\r"),
            0x08 => json.push_str("\\b"),
            0x0c => json.push_str("\\f"),
            byte => write!(json, "\\u{byte:04x}").ok()?,
        }
        if json.len() > limit {
            return None;
        }
        from = at + 1;
    }
    json.push_str(text.get(from..)?);
    json.push('"');
    Some(json)
}

/// The place of the next quote, backslash or control character.
fn next_to_escape(bytes: &[u8], from: usize) -> Option<usize> {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const HIGH: u64 = ONES << 7;
    let mut at = from;
    while let Some(eight) = bytes.get(at..at + 8).and_then(|part| <[u8; 8]>::try_from(part).ok()) {
        let word = u64::from_le_bytes(eight);
        let zero_in = |word: u64| word.wrapping_sub(ONES) & !word;
        let control = word.wrapping_sub(ONES * 0x20) & !word;
        let found =
            (control | zero_in(word ^ (ONES * u64::from(b'"'))) | zero_in(word ^ (ONES * u64::from(b'\\'))))
                & HIGH;
        if found != 0 {
            // The lowest is right; above it there may be more than there are.
            return Some(at + (found.trailing_zeros() / 8) as usize);
        }
        at += 8;
    }
    let rest = bytes.get(at..)?.iter().position(|byte| *byte < 0x20 || matches!(byte, b'"' | b'\\'));
    rest.map(|place| at + place)
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
    fn text_stays_text_and_what_is_mostly_escapes_does_not() {
        let wire = |text: &str| serde_json::to_string(&Bytes::from(text)).unwrap();
        let line = "a line of \"text\" \\ with ä and 漢\t\u{1}\n".repeat(100);
        assert_eq!(wire(&line), serde_json::to_string(&line).unwrap());
        assert!(wire(&"\0".repeat(5000)).starts_with("{\"base64\":"));
        assert_eq!(serde_json::to_value(Bytes::from(line.as_str())).unwrap(), serde_json::Value::from(line));
    }

    proptest! {
        #[test]
        fn large_text_is_escaped_as_serde_escapes_it(parts in prop::collection::vec("[ -~äé漢𝄞\n\t\r\"\\\\\u{0}-\u{1f}]{0,40}", 60..90)) {
            let text = parts.concat();
            if let Some(json) = escaped(&text) {
                prop_assert_eq!(json, serde_json::to_string(&text).unwrap());
            }
            let wire = serde_json::to_string(&Bytes::from(text.as_str())).unwrap();
            prop_assert_eq!(serde_json::from_str::<Bytes>(&wire).unwrap(), Bytes::from(text.as_str()));
        }

        #[test]
        fn bytes_come_back_as_they_went(bytes: Vec<u8>) {
            let wire = serde_json::to_string(&Bytes(bytes.clone())).unwrap();
            prop_assert_eq!(serde_json::from_str::<Bytes>(&wire).unwrap().0, bytes);
        }
    }
}
