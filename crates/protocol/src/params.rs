//! Reading the parameters of a call: null counts as absent, and an error names the field at fault and what is expected there.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::error::{RpcError, split_hint};

const SCHEMA: &str = "the schema of every method is in docs/schema/client.json";

/// How much of what was wrong is quoted: it may be long, and hostile.
const SHOWN_CHARS: usize = 300;

pub(crate) fn read_params<P: DeserializeOwned>(params: Option<&RawValue>) -> Result<P, RpcError> {
    let text = params.map_or("{}", RawValue::get);
    // An array would be read as the fields in the order in which they happen to be declared.
    if let Some(what) = not_an_object(text) {
        return Err(RpcError::invalid("params", format!("expected an object, got {what}")).hint(SCHEMA));
    }
    let without = text.contains("null").then(|| without_nulls(text)).flatten();
    let text = without.as_deref().unwrap_or(text);
    serde_json::from_str(text).map_err(|error| {
        let field = field_at_fault(text, &error).unwrap_or_else(|| "params".to_owned());
        let field = field_in_union::<P>(text, &field, &error).unwrap_or(field);
        let message: String =
            error.to_string().chars().filter(|c| !c.is_control()).take(SHOWN_CHARS).collect();
        match split_hint(&message) {
            Some((message, hint)) => RpcError::invalid(&field, message).hint(hint),
            None => RpcError::invalid(&field, format!("{field}: {}", plain(&message))).hint(SCHEMA),
        }
    })
}

/// What a JSON value is, if it is no object.
fn not_an_object(value: &str) -> Option<&'static str> {
    match value.trim_start().as_bytes().first()? {
        b'{' => None,
        b'[' => Some("an array"),
        b'"' => Some("a string"),
        b't' | b'f' => Some("a boolean"),
        b'n' => Some("null"),
        _ => Some("a number"),
    }
}

/// The same object without the members that are null, at every depth. None: it is no JSON.
fn without_nulls(text: &str) -> Option<String> {
    let mut value: Value = serde_json::from_str(text).ok()?;
    remove_nulls(&mut value);
    Some(value.to_string())
}

fn remove_nulls(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|_, member| !member.is_null());
            members.values_mut().for_each(remove_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_nulls),
        _ => {}
    }
}

/// The field that an error is about: by its name, or by the position of the error.
fn field_at_fault(text: &str, error: &serde_json::Error) -> Option<String> {
    let message = error.to_string();
    if ["missing field `", "unknown field `", "duplicate field `"]
        .iter()
        .any(|words| message.starts_with(words))
    {
        return message.split('`').nth(1).map(str::to_owned);
    }
    let lines_before: usize =
        text.split_inclusive('\n').take(error.line().checked_sub(1)?).map(str::len).sum();
    field_around(text, text.as_ptr().addr() + lines_before + error.column())
}

/// The name of the innermost field whose value contains the address.
fn field_around(object: &str, address: usize) -> Option<String> {
    let fields: BTreeMap<String, &RawValue> = serde_json::from_str(object).ok()?;
    let holds = |value: &RawValue| {
        let start = value.get().as_ptr().addr();
        (start..=start + value.get().len()).contains(&address)
    };
    let (name, value) = fields.into_iter().find(|(_, value)| holds(value))?;
    field_around(value.get(), address).or(Some(name))
}

/// How long parameters may be for their unions to be searched for the field at fault.
const MAX_SEARCHED_BYTES: usize = 64 * 1024;

/// The name of the innermost field at fault inside a union. The parser of a union reports no position: the field at fault is
/// the one without which the error is another one.
fn field_in_union<P: DeserializeOwned>(text: &str, field: &str, error: &serde_json::Error) -> Option<String> {
    if text.len() > MAX_SEARCHED_BYTES {
        return None;
    }
    let whole: Value = serde_json::from_str(text).ok()?;
    let mut path = path_to(&whole, field)?;
    let found = path.len();
    while let Some(members) = members_of_union(&whole, &path) {
        let is_fault = |name: &String| {
            let mut without = whole.clone();
            remove_member(&mut without, &path, name);
            let now = serde_json::from_value::<P>(without).err().map(|error| error.to_string());
            now.as_deref() != Some(without_position(&error.to_string()))
        };
        let Some(next) = members.into_iter().find(is_fault) else { break };
        path.push(next);
    }
    (path.len() > found).then(|| path.pop()).flatten()
}

/// The names of the members of the object at this path, without its tag, if it is a union.
fn members_of_union(whole: &Value, path: &[String]) -> Option<Vec<String>> {
    let object = path.iter().try_fold(whole, |value, name| value.get(name))?.as_object()?;
    let is_tag = |name: &&String| *name == "kind" || *name == "type";
    object
        .keys()
        .any(|name| is_tag(&name))
        .then(|| object.keys().filter(|name| !is_tag(name)).cloned().collect())
}

fn remove_member(whole: &mut Value, path: &[String], name: &str) {
    let object = path.iter().try_fold(whole, |value, name| value.get_mut(name));
    if let Some(members) = object.and_then(Value::as_object_mut) {
        members.remove(name);
    }
}

/// Where the first field of this name is.
fn path_to(value: &Value, field: &str) -> Option<Vec<String>> {
    let members = value.as_object()?;
    if members.contains_key(field) {
        return Some(vec![field.to_owned()]);
    }
    members.iter().find_map(|(name, member)| {
        let mut path = path_to(member, field)?;
        path.insert(0, name.clone());
        Some(path)
    })
}

fn without_position(message: &str) -> &str {
    message.rsplit_once(" at line ").map_or(message, |(message, _)| message)
}

/// The message of a parse error without the words of Rust.
fn plain(message: &str) -> String {
    let message = without_position(message);
    let quoted = |message: &str| message.split('`').nth(1).unwrap_or_default().to_owned();
    if message.starts_with("missing field `") {
        return "the field is required".to_owned();
    }
    if message.starts_with("duplicate field `") {
        return "the field is there twice".to_owned();
    }
    if let Some(rest) = message.strip_prefix("unknown field `") {
        let known = rest.split_once("expected ").map(|(_, known)| known.trim_start_matches("one of "));
        return known.map_or_else(
            || "there is no such field".to_owned(),
            |known| format!("there is no such field; there is {known}"),
        );
    }
    if message.starts_with("unknown variant `") {
        let known = message.split_once("expected ").map_or("", |(_, known)| known);
        return format!("expected {known}, got `{}`", quoted(message));
    }
    let got = message.strip_prefix("invalid type: ").or_else(|| message.strip_prefix("invalid value: "));
    match got.and_then(|rest| rest.rsplit_once(", expected ")) {
        Some((got, expected)) => format!("expected {}, got {}", plain_expected(expected), plain_got(got)),
        None => message.to_owned(),
    }
}

/// What a parser of Rust expects, in the words of JSON.
fn plain_expected(expected: &str) -> String {
    match expected {
        "u64" | "usize" => "a whole number that is not negative".to_owned(),
        "u32" => "a whole number from 0 to 4294967295".to_owned(),
        "u16" => "a whole number from 0 to 65535".to_owned(),
        "i64" | "i32" => "a whole number".to_owned(),
        "a sequence" => "an array".to_owned(),
        "a map" => "an object".to_owned(),
        "string or map" => "a string or an object".to_owned(),
        _ if expected.starts_with("struct ") || expected.contains("tagged enum ") => "an object".to_owned(),
        _ if expected.starts_with("enum ") => "a string".to_owned(),
        _ => expected.to_owned(),
    }
}

/// What a parser of Rust got, in the words of JSON.
fn plain_got(got: &str) -> String {
    let number = got.strip_prefix("integer `").or_else(|| got.strip_prefix("floating point `"));
    match (number, got) {
        (Some(number), _) => number.trim_end_matches('`').to_owned(),
        (None, "map") => "an object".to_owned(),
        (None, "sequence") => "an array".to_owned(),
        (None, _) => got.trim_start_matches("boolean ").trim_start_matches("string ").replace('`', ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::methods::Call;

    fn refused(method: &str, params: &str) -> RpcError {
        let raw = RawValue::from_string(params.to_owned()).unwrap();
        Call::parse(method, Some(&raw)).unwrap_err()
    }

    #[test]
    fn error_names_field_and_expectation() {
        for (params, field, message) in [
            (r"{}", "id", "id: the field is required"),
            (r#"{"id": null}"#, "id", "id: the field is required"),
            (r#"{"id": 17}"#, "id", "id: expected a string, got 17"),
            (r#"{"id": ["x"]}"#, "id", "id: expected a string, got an array"),
            (
                "{\n \"id\": \"x\",\n \"level\": \"hard\"}",
                "level",
                "level: expected one of `drain`, `interrupt`, `terminate`, `kill`, got `hard`",
            ),
            (
                r#"{"id": "x", "grace_ms": -1, "wait": true}"#,
                "grace_ms",
                "grace_ms: expected a whole number that is not negative, got -1",
            ),
            (r#"{"wait": "yes", "id": "x"}"#, "wait", "wait: expected a boolean, got \"yes\""),
            (r"[]", "params", "expected an object, got an array"),
            (r"null", "params", "expected an object, got null"),
            (r"-1", "params", "expected an object, got a number"),
        ] {
            let error = refused("task/stop", params);
            assert_eq!(
                (error.data.field.as_deref(), error.message.as_str()),
                (Some(field), message),
                "{params}"
            );
        }
        for (spec, field, message) in [
            (r#"{"kind": "shell"}"#, "command", "command: the field is required"),
            (
                r#"{"kind": "shell", "stdin": false, "command": {"kind": "argv", "argv": "ls -l"}}"#,
                "argv",
                "argv: expected an array, got \"ls -l\"",
            ),
            (
                r#"{"kind": "shell", "command": {"kind": "line", "line": "ls"}, "stdin": "yes"}"#,
                "stdin",
                "stdin: expected a boolean, got \"yes\"",
            ),
            (
                r#"{"kind": "shell", "command": {"kind": "line", "line": "ls"}, "pty": {"rows": -1, "cols": 2}}"#,
                "pty",
                "pty: expected a whole number from 0 to 65535, got -1",
            ),
            (r#"{"kind": "robot"}"#, "kind", "kind: expected `shell` or `agent`, got `robot`"),
        ] {
            let error = refused("task/start", &format!(r#"{{"spec": {spec}, "cwd": "/"}}"#));
            assert_eq!(
                (error.data.field.as_deref(), error.message.as_str()),
                (Some(field), message),
                "{spec}"
            );
        }
        let error = refused("event/unfollow", r#"{"follow": 1, "more": 1}"#);
        assert_eq!(error.message, "more: there is no such field; there is `follow`");
    }

    #[test]
    fn null_counts_as_absent() {
        for (with, without) in [
            (r#"{"id": "x", "level": null, "wait": null}"#, r#"{"id": "x"}"#),
            (r#"{"all": null, "limit": null, "session": null}"#, "{}"),
            (r#"{"only": {"task": null, "types": null}, "after": null}"#, "{}"),
        ] {
            let read = |method: &str, params: &str| {
                let raw = RawValue::from_string(params.to_owned()).unwrap();
                format!("{:?}", Call::parse(method, Some(&raw)).unwrap())
            };
            let method = if with.contains("\"id\"") {
                "task/stop"
            } else if with.contains("only") {
                "event/read"
            } else {
                "task/list"
            };
            assert_eq!(read(method, with), read(method, without));
        }
    }
}
