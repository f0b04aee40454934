//! The examples of docs/protocol.md, run as they stand: what the client sends is sent, and what the daemon answers is compared.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use belay_testkit::World;
use serde_json::{Map, Value, json};

use crate::raw::Raw;
use crate::support::world;

const PAGE: &str = include_str!("../../docs/protocol.md");
/// Any value; as a name, fields that are left out.
const ANY: &str = "…";

/// One line of an example.
#[derive(Debug)]
struct Step {
    connection: usize,
    is_sent: bool,
    message: Value,
}

fn examples() -> Vec<Vec<Step>> {
    let blocks = PAGE.split("```wire\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    blocks.map(|block| block.lines().map(step).collect()).collect()
}

fn step(line: &str) -> Step {
    let (mark, message) = line.split_once(' ').unwrap();
    let message = serde_json::from_str(message).unwrap_or_else(|error| panic!("{error}: {line}"));
    let connection = usize::from(mark.starts_with('2'));
    Step { connection, is_sent: mark.ends_with('>'), message }
}

/// The ids of the page and those of this run.
#[derive(Default)]
struct Ids(BTreeMap<String, String>);

fn is_id(text: &str) -> bool {
    matches!(text.split_once('-'), Some(("sh" | "se", rest)) if rest.len() == 16)
}

impl Ids {
    fn substitute(&self, value: &mut Value) {
        match value {
            Value::String(text) if is_id(text) => {
                *text = self.0.get(text).unwrap_or_else(|| panic!("{text} was not answered before")).clone();
            }
            Value::Object(fields) => fields.values_mut().for_each(|value| self.substitute(value)),
            Value::Array(items) => items.iter_mut().for_each(|value| self.substitute(value)),
            _ => {}
        }
    }

    /// Compares, and learns the ids that the page has not had before.
    fn compare(&mut self, at: &str, expected: &Value, found: &Value) {
        match (expected, found) {
            (Value::String(text), _) if text == ANY => {}
            (Value::String(text), Value::String(id)) if is_id(text) => {
                let known = self.0.entry(text.clone()).or_insert_with(|| id.clone());
                assert_eq!(known, id, "{at}");
            }
            (Value::Object(expected), Value::Object(found)) => self.compare_fields(at, expected, found),
            (Value::Array(expected), Value::Array(found)) => {
                assert_eq!(expected.len(), found.len(), "{at}: {found:?}");
                for (number, (expected, found)) in expected.iter().zip(found).enumerate() {
                    self.compare(&format!("{at}[{number}]"), expected, found);
                }
            }
            _ => assert_eq!(expected, found, "{at}"),
        }
    }

    fn compare_fields(&mut self, at: &str, expected: &Map<String, Value>, found: &Map<String, Value>) {
        for (name, expected) in expected.iter().filter(|(name, _)| *name != ANY) {
            let found = found.get(name).unwrap_or_else(|| panic!("{at}.{name} is missing: {found:?}"));
            self.compare(&format!("{at}.{name}"), expected, found);
        }
        if !expected.contains_key(ANY) {
            let names = |fields: &Map<String, Value>| fields.keys().cloned().collect::<Vec<_>>();
            assert_eq!(names(expected), names(found), "{at}");
        }
    }
}

static SCHEMA: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("../../docs/schema/client.json")).unwrap());

/// A real message fits the type that the schema gives it.
#[track_caller]
fn validate(at: &str, schema: &Value, message: &Value) {
    assert!(schema.is_object(), "{at}: the schema does not know it");
    let mut schema = schema.clone();
    schema["$defs"] = SCHEMA["$defs"].clone();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let errors: Vec<String> = validator.iter_errors(message).map(|error| error.to_string()).collect();
    assert!(errors.is_empty(), "{at}: {errors:?}: {message}");
}

fn run(world: &World, number: usize, steps: Vec<Step>) {
    drop(world.client());
    let has_hello = steps.iter().any(|step| step.message["method"] == "daemon/hello");
    let connect = || if has_hello { Raw::silent(world) } else { Raw::greeted(world) };
    let mut connections = [connect(), connect()];
    let mut ids = Ids::default();
    let mut methods = BTreeMap::new();
    for (line, mut step) in steps.into_iter().enumerate() {
        let connection = &mut connections[step.connection];
        let at = format!("example {}, line {}", number + 1, line + 1);
        if step.is_sent {
            ids.substitute(&mut step.message);
            let method = step.message["method"].as_str().unwrap().to_owned();
            // One example shows what becomes of a wrong parameter.
            if step.message["params"]["timeout_ms"] != "5s" {
                validate(&at, &SCHEMA["methods"][&method]["params"], &step.message["params"]);
            }
            methods.insert((step.connection, step.message["id"].to_string()), method);
            connection.send(format!("{}\n", step.message).as_bytes());
        } else {
            let heard = connection.hear();
            ids.compare(&at, &step.message, &heard);
            let request = (step.connection, heard["id"].to_string());
            match (heard["method"].as_str(), methods.get(&request)) {
                (Some(method), _) => {
                    validate(&at, &SCHEMA["notifications"][method]["params"], &heard["params"]);
                }
                (None, Some(method)) if heard.get("result").is_some() => {
                    validate(&at, &SCHEMA["methods"][method]["result"], &heard["result"]);
                }
                (None, _) => validate(&at, &json!({ "$ref": "#/$defs/ErrorResponse" }), &heard),
            }
        }
    }
}

// proves E2, E5
#[test]
fn examples_of_protocol_page_hold() {
    let all = examples();
    assert_eq!(all.len(), 14);
    for (number, steps) in all.into_iter().enumerate() {
        run(&world(), number, steps);
    }
}
