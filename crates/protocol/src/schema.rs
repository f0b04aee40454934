//! The JSON Schema of the client protocol, made from the method table: every message, every type once, and a union for each
//! direction at its root. Code generators for other languages start from it.

use std::collections::BTreeSet;

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::methods::{MethodSchema, schemas};
use crate::rpc::RequestId;
use crate::{CLIENT_PROTOCOL, RpcError};

/// The document that is written to `docs/schema/client.json`.
pub fn document() -> Value {
    let mut generator = SchemaSettings::draft2020_12().into_generator();
    let table = schemas(&mut generator);
    generator.subschema_for::<RequestId>();
    generator.subschema_for::<RpcError>();
    let mut defs: Map<String, Value> = generator.take_definitions(true);
    let mut unions = Unions::default();
    for method in &table.calls {
        unions.add(&mut defs, "ClientRequest", &format!("{}Request", method.type_name), request(method));
        unions.add(&mut defs, "DaemonResponse", &format!("{}Response", method.type_name), response(method));
    }
    unions.add(&mut defs, "DaemonResponse", "ErrorResponse", error_response());
    for method in &table.notifications {
        let name = format!("{}Message", method.type_name);
        unions.add(&mut defs, "DaemonNotification", &name, notification(method));
    }
    for method in &table.client_calls {
        unions.add(&mut defs, "DaemonRequest", &format!("{}Request", method.type_name), request(method));
        unions.add(&mut defs, "ClientResponse", &format!("{}Response", method.type_name), response(method));
    }
    let roots = unions.write(&mut defs);
    let mut document = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "BelayMessage",
        "description": "One message of the Belay client protocol: JSON-RPC 2.0 on a Unix socket, one message a line. \
            `daemon/hello` comes first.",
        "protocol": CLIENT_PROTOCOL,
        "anyOf": roots,
        "methods": by_name(&table.calls),
        "notifications": by_name(&table.notifications),
        "client_methods": by_name(&table.client_calls),
        "$defs": defs,
    });
    flatten_enums(&mut document);
    move_defaults(&mut document);
    if let Some(defs) = document.get_mut("$defs").and_then(Value::as_object_mut) {
        name_variants(defs);
    }
    document
}

/// The unions of messages, each with its members in the order of the table.
#[derive(Default)]
struct Unions(Vec<(&'static str, Vec<Value>)>);

impl Unions {
    /// Adds a message type to the definitions and to a union.
    fn add(&mut self, defs: &mut Map<String, Value>, union: &'static str, name: &str, schema: Value) {
        defs.insert(name.to_owned(), schema);
        let member = reference(name);
        match self.0.iter_mut().find(|(name, _)| *name == union) {
            Some((_, members)) => members.push(member),
            None => self.0.push((union, vec![member])),
        }
    }

    /// Writes the unions to the definitions. Returns the references to them.
    fn write(self, defs: &mut Map<String, Value>) -> Vec<Value> {
        let mut roots = Vec::new();
        for (name, members) in self.0 {
            defs.insert(name.to_owned(), json!({ "anyOf": members }));
            roots.push(reference(name));
        }
        roots
    }
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/$defs/{name}") })
}

fn version() -> Value {
    json!({ "const": "2.0", "type": "string" })
}

fn name_of(method: &MethodSchema) -> Value {
    json!({ "const": method.name, "type": "string" })
}

fn request(method: &MethodSchema) -> Value {
    json!({
        "description": method.about,
        "type": "object",
        "properties": {
            "jsonrpc": version(),
            "id": reference("RequestId"),
            "method": name_of(method),
            "params": method.params,
        },
        "required": ["jsonrpc", "id", "method", "params"],
    })
}

fn response(method: &MethodSchema) -> Value {
    json!({
        "description": format!("The result of `{}`.", method.name),
        "type": "object",
        "properties": { "jsonrpc": version(), "id": reference("RequestId"), "result": method.result },
        "required": ["jsonrpc", "id", "result"],
    })
}

fn error_response() -> Value {
    json!({
        "description": "The call failed. `id` is null if the request could not be read.",
        "type": "object",
        "properties": {
            "jsonrpc": version(),
            "id": { "anyOf": [reference("RequestId"), { "type": "null" }] },
            "error": reference("RpcError"),
        },
        "required": ["jsonrpc", "id", "error"],
    })
}

fn notification(method: &MethodSchema) -> Value {
    json!({
        "description": method.about,
        "type": "object",
        "properties": { "jsonrpc": version(), "method": name_of(method), "params": method.params },
        "required": ["jsonrpc", "method", "params"],
    })
}

/// The table by name, for readers that look up a method.
fn by_name(methods: &[MethodSchema]) -> Value {
    let entry = |method: &MethodSchema| {
        let mut entry = json!({ "description": method.about, "params": method.params });
        if let (Value::Object(entry), Some(result)) = (&mut entry, &method.result) {
            entry.insert("result".to_owned(), result.clone().into());
        }
        if let (Value::Object(entry), Some(repeat)) = (&mut entry, method.repeat) {
            entry.insert("repeat".to_owned(), repeat.name().into());
        }
        (method.name.to_owned(), entry)
    };
    methods.iter().map(entry).collect::<Map<_, _>>().into()
}

/// Turns every union of string constants into one flat enumeration, in which generators see one type. The descriptions of the
/// members move into the description of the enumeration.
fn flatten_enums(value: &mut Value) {
    match value {
        Value::Object(object) => {
            if let Some(flat) = object.get("oneOf").and_then(Value::as_array).and_then(|of| flat_enum(of)) {
                object.remove("oneOf");
                object.insert("type".to_owned(), "string".into());
                object.insert("enum".to_owned(), flat.names.into());
                let about = object.get("description").and_then(Value::as_str).unwrap_or_default();
                let about = format!("{about}\n\n{}", flat.descriptions.join("\n"));
                object.insert("description".to_owned(), about.trim().into());
            }
            object.values_mut().for_each(flatten_enums);
        }
        Value::Array(items) => items.iter_mut().for_each(flatten_enums),
        _ => {}
    }
}

/// Moves the default of a field whose type has a name into the description: generators do not agree on what it means there.
fn move_defaults(value: &mut Value) {
    match value {
        Value::Object(object) => {
            if object.contains_key("$ref")
                && let Some(default) = object.remove("default")
            {
                let about = object.get("description").and_then(Value::as_str).unwrap_or_default();
                let about = format!("{about} Default: `{default}`.");
                object.insert("description".to_owned(), about.trim().into());
            }
            object.values_mut().for_each(move_defaults);
        }
        Value::Array(items) => items.iter_mut().for_each(move_defaults),
        _ => {}
    }
}

/// Gives every variant of a tagged union a name of its own, made of its tag and of the union: `ExitedOutcome`.
fn name_variants(defs: &mut Map<String, Value>) {
    let names: BTreeSet<String> = defs.keys().cloned().collect();
    let mut named = Map::new();
    for (name, schema) in defs.iter_mut() {
        let Some(object) = schema.as_object_mut() else { continue };
        let Some(tag) = object.get("oneOf").and_then(Value::as_array).and_then(|of| tag_of(of)) else {
            continue;
        };
        let Some(Value::Array(variants)) = object.get_mut("oneOf") else { continue };
        for variant in variants {
            let value = variant["properties"][&tag]["const"].as_str().unwrap_or_default();
            // `TaskSpecInfo` is not `TaskSpec`; there is only an `EventInfo`.
            let short = name.trim_end_matches("Info");
            let own = format!("{}{}", pascal_case(value), if names.contains(short) { name } else { short });
            named.insert(own.clone(), std::mem::replace(variant, reference(&own)));
        }
        object.insert("discriminator".to_owned(), json!({ "propertyName": tag }));
    }
    defs.extend(named);
}

/// The field that tells the variants of a union apart: it is a constant in each of them.
fn tag_of(variants: &[Value]) -> Option<String> {
    let is_tag = |name: &str| variants.iter().all(|variant| variant["properties"][name]["const"].is_string());
    let fields = variants.first()?.get("properties")?.as_object()?;
    fields.keys().find(|name| is_tag(name)).cloned()
}

fn pascal_case(words: &str) -> String {
    let capitalised = |word: &str| {
        let mut letters = word.chars();
        letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
    };
    words.split(['_', '.', '/']).map(capitalised).collect()
}

struct FlatEnum {
    names: Vec<Value>,
    descriptions: Vec<String>,
}

/// The members of a union, if all of them are strings.
fn flat_enum(members: &[Value]) -> Option<FlatEnum> {
    let mut flat = FlatEnum { names: Vec::new(), descriptions: Vec::new() };
    for member in members {
        if let Some(name) = member.get("const").filter(|name| name.is_string()) {
            flat.names.push(name.clone());
            if let (Some(name), Some(about)) = (name.as_str(), member.get("description")?.as_str()) {
                flat.descriptions.push(format!("- `{name}`: {}", about.replace('\n', " ")));
            }
        } else {
            let names = member.get("enum")?.as_array()?;
            flat.names.extend(names.iter().filter(|name| name.is_string()).cloned());
        }
    }
    Some(flat)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(value: &Value, visit: &mut impl FnMut(&Map<String, Value>)) {
        match value {
            Value::Object(object) => {
                visit(object);
                object.values().for_each(|member| walk(member, visit));
            }
            Value::Array(items) => items.iter().for_each(|item| walk(item, visit)),
            _ => {}
        }
    }

    // proves E2
    #[test]
    fn every_type_has_a_unique_descriptive_name() {
        let document = document();
        let defs = document["$defs"].as_object().unwrap();
        for name in defs.keys() {
            assert!(!name.ends_with(|c: char| c.is_ascii_digit()), "{name}: two types have this name");
        }
        for (kind, suffixes) in [("methods", ["Params", "Result"]), ("client_methods", ["Params", "Result"])]
        {
            for (method, entry) in document[kind].as_object().unwrap() {
                let params = entry["params"]["$ref"].as_str().unwrap();
                assert!(params.ends_with(suffixes[0]), "{method}: {params}");
                let noun: String = method.split('/').next().unwrap().to_owned();
                assert!(params.to_lowercase().contains(&format!("/{noun}")), "{method}: {params}");
            }
        }
    }

    // proves E2
    #[test]
    fn every_type_is_used() {
        let document = document();
        let mut used = BTreeSet::new();
        walk(&document, &mut |object| {
            used.extend(object.get("$ref").and_then(Value::as_str).map(str::to_owned));
        });
        for name in document["$defs"].as_object().unwrap().keys() {
            assert!(used.contains(&format!("#/$defs/{name}")), "no message has a {name}");
        }
        let spec = &document["$defs"]["ShellTaskSpec"]["properties"];
        assert!(spec.get("command").is_some() && spec.get("argv").is_none(), "{spec}");
    }

    // proves E2
    #[test]
    fn every_message_is_in_a_union_at_the_root() {
        let document = document();
        let members = |union: &str| -> Vec<String> {
            let of = document["$defs"][union]["anyOf"].as_array().unwrap();
            of.iter().map(|member| member["$ref"].as_str().unwrap().to_owned()).collect()
        };
        let count = |kind: &str| document[kind].as_object().unwrap().len();
        assert_eq!(members("ClientRequest").len(), count("methods"));
        assert_eq!(members("DaemonResponse").len(), count("methods") + 1);
        assert_eq!(members("DaemonNotification").len(), count("notifications"));
        assert_eq!(members("DaemonRequest").len(), count("client_methods"));
        assert_eq!(members("ClientResponse").len(), count("client_methods"));
        assert_eq!(document["anyOf"].as_array().unwrap().len(), 5);
    }

    #[test]
    fn enumerations_of_strings_are_flat() {
        walk(&document(), &mut |object| {
            let Some(members) = object.get("oneOf").and_then(Value::as_array) else { return };
            let is_string = |member: &Value| member.get("type") == Some(&"string".into());
            assert!(!members.iter().all(is_string), "{members:?}");
        });
    }

    #[test]
    fn flat_enumeration_keeps_names_and_descriptions() {
        let mut schema = json!({ "description": "Levels.", "oneOf": [
            { "type": "string", "enum": ["a", "b"] },
            { "type": "string", "const": "c", "description": "The\nthird." },
        ] });
        flatten_enums(&mut schema);
        let flat = json!({ "type": "string", "enum": ["a", "b", "c"], "description": "Levels.\n\n- `c`: The third." });
        assert_eq!(schema, flat);
    }
}
