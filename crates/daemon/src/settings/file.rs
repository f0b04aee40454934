//! The settings file as text: parses it with the line of every key, and changes one key without
//! changing anything else.

use std::ops::Range;
use std::path::Path;

use toml_edit::{Document, Item, TableLike};

use super::key::Key;
use super::value::{Raw, Value};
use super::{BadSetting, FileValues};

/// An error in the file, and its line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fault {
    line: usize,
    message: String,
}

impl Fault {
    pub(super) fn at(self, path: &Path) -> BadSetting {
        BadSetting::File { place: format!("{}:{}", path.display(), self.line), message: self.message }
    }
}

/// Parses the whole file. An unknown or invalid entry is an error; the first one in the file is
/// returned.
pub(super) fn parse(text: &str) -> Result<FileValues, Fault> {
    let document = document(text)?;
    let mut found = FileValues::new();
    let mut first: Option<Fault> = None;
    let mut report = |fault: Fault| {
        if first.as_ref().is_none_or(|known| fault.line < known.line) {
            first = Some(fault);
        }
    };
    for (table, item) in document.iter() {
        let line = line_of(text, key_span(document.as_table(), table, item));
        if !tables().contains(&table) {
            let message = format!("there is no table [{}]; there are {}", shown(table), list(&tables()));
            report(Fault { line, message });
            continue;
        }
        let Some(entries) = item.as_table_like() else {
            let message = format!("{table} is a table: write [{table}], and its settings below it");
            report(Fault { line, message });
            continue;
        };
        for (name, item) in entries.iter() {
            let line = line_of(text, key_span(entries, name, item));
            match entry(table, name, item) {
                Ok((key, value)) => drop(found.insert(key, (value, line))),
                Err(message) => report(Fault { line, message }),
            }
        }
    }
    first.map_or(Ok(found), Err)
}

fn entry(table: &str, name: &str, item: &Item) -> Result<(Key, Value), String> {
    let Some(key) = Key::from_name(&format!("{table}.{name}")) else {
        let names: Vec<&str> = Key::ALL
            .iter()
            .map(|key| key.parts())
            .filter(|parts| parts.0 == table)
            .map(|parts| parts.1)
            .collect();
        return Err(format!("there is no setting {} in [{table}]; there are {}", shown(name), list(&names)));
    };
    let value = raw(item).and_then(|raw| key.kind().read(&raw));
    value.map(|value| (key, value)).ok_or_else(|| {
        let found: String = item.to_string().trim().chars().take(60).collect();
        format!("{} cannot be {}: write it as {}", key.name(), shown(&found), key.kind().allowed())
    })
}

fn raw(item: &Item) -> Option<Raw> {
    match item.as_value()? {
        toml_edit::Value::String(text) => Some(Raw::Text(text.value().clone())),
        toml_edit::Value::Integer(number) => Some(Raw::Number(*number.value())),
        toml_edit::Value::Boolean(flag) => Some(Raw::Flag(*flag.value())),
        toml_edit::Value::Array(items) => {
            let words = items.iter().map(|item| item.as_str().map(str::to_owned)).collect();
            Option::map(words, Raw::List)
        }
        toml_edit::Value::Float(_) | toml_edit::Value::Datetime(_) | toml_edit::Value::InlineTable(_) => None,
    }
}

/// The same file with this key set, or without it. Comments and everything else stay as they are.
pub(super) fn edit(text: &str, key: Key, value: Option<&Value>) -> Result<String, Fault> {
    let document = document(text)?;
    let (table, name) = key.parts();
    let entries = document.get(table).and_then(Item::as_table_like);
    let known = entries.and_then(|entries| Some((entries, entries.get(name)?)));
    let span = known.and_then(|(_, item)| item.span());
    let is_inline = document.get(table).is_some_and(Item::is_inline_table);
    match (value, known.zip(span)) {
        (Some(value), Some((_, span))) => {
            Ok([&text[..span.start], value.to_toml().to_string().trim(), &text[span.end..]].concat())
        }
        (None, Some(((entries, item), span))) if !is_inline => {
            // Whole lines are removed: a comment on the same line is removed too, a comment above
            // it stays.
            let from = key_span(entries, name, item).map_or(span.start, |key| key.start);
            let from = text[..from].rfind('\n').map_or(0, |at| at + 1);
            let to = text[span.end..].find('\n').map_or(text.len(), |at| span.end + at + 1);
            Ok([&text[..from], &text[to..]].concat())
        }
        (None, None) => Ok(text.to_owned()),
        (Some(value), None) if document.get(table).is_none() => {
            // Appended at the end of the file, after any trailing comments.
            let gap = if text.is_empty() || text.ends_with("\n\n") {
                ""
            } else if text.ends_with('\n') {
                "\n"
            } else {
                "\n\n"
            };
            Ok(format!("{text}{gap}[{table}]\n{name} = {}\n", value.to_toml().to_string().trim()))
        }
        (value, _) => {
            let mut document = document.into_mut();
            let entries = document.entry(table).or_insert_with(toml_edit::table);
            if let Some(entries) = entries.as_table_like_mut() {
                match value {
                    Some(value) => drop(entries.insert(name, Item::Value(value.to_toml()))),
                    None => drop(entries.remove(name)),
                }
            }
            Ok(document.to_string())
        }
    }
}

fn document(text: &str) -> Result<Document<&str>, Fault> {
    Document::parse(text).map_err(|error| Fault {
        line: line_of(text, error.span()),
        message: format!("this is not TOML: {}", error.message().replace('\n', ", ")),
    })
}

fn key_span(entries: &dyn TableLike, name: &str, item: &Item) -> Option<Range<usize>> {
    entries.key(name).and_then(toml_edit::Key::span).or_else(|| item.span())
}

fn line_of(text: &str, span: Option<Range<usize>>) -> usize {
    let before = text.get(..span.map_or(0, |span| span.start)).unwrap_or(text);
    before.matches('\n').count() + 1
}

fn tables() -> Vec<&'static str> {
    let mut names: Vec<&str> = Key::ALL.iter().map(|key| key.parts().0).collect();
    names.dedup();
    names
}

fn list(names: &[&str]) -> String {
    names.join(", ")
}

/// Text of the file with control characters replaced, for a message.
fn shown(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}
