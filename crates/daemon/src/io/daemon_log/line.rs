//! One event as one line: `2026-01-31T12:00:00.000Z INFO  message name=value name="another value"`. Control characters are
//! escaped, long values are cut.

use std::fmt::{self, Debug, Write};

use belay_protocol::Timestamp;
use tracing::field::{Field, Visit};
use tracing::{Event, Level};

use crate::config::bounds::{LOG_LINE_BYTES, LOG_VALUE_BYTES};

/// Stands where something was cut off.
const CUT: char = '…';

/// The line with its line end.
pub(super) fn format(at: Timestamp, event: &Event<'_>) -> String {
    let mut parts = Parts { message: String::new(), fields: String::new() };
    event.record(&mut parts);
    assemble(at, *event.metadata().level(), &parts.message, &parts.fields)
}

/// A line that reports something about the log itself.
pub(super) fn own(at: Timestamp, message: &str, fields: &[(&str, &dyn Debug)]) -> String {
    let mut parts = Parts { message: String::new(), fields: String::new() };
    for (name, value) in fields {
        parts.add(name, value);
    }
    assemble(at, Level::WARN, message, &parts.fields)
}

fn assemble(at: Timestamp, level: Level, message: &str, fields: &str) -> String {
    let mut line = format!("{at} {level:<5} {message}{fields}");
    if line.len() >= LOG_LINE_BYTES {
        line.truncate(line.floor_char_boundary(LOG_LINE_BYTES - CUT.len_utf8() - 1));
        line.push(CUT);
    }
    line.push('\n');
    line
}

/// The message and everything else of an event, escaped.
struct Parts {
    message: String,
    fields: String,
}

impl Parts {
    fn add(&mut self, name: &str, value: &dyn Debug) {
        let mut text = Limited(String::new());
        // It fails when there is no room for more.
        let is_cut = write!(text, "{value:?}").is_err();
        let Limited(text) = text;
        if name == "message" {
            escape(&mut self.message, &text, is_cut, false);
            return;
        }
        let is_plain = |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '\\' | '=');
        let is_quoted = text.is_empty() || !text.chars().all(is_plain);
        let quote = if is_quoted { "\"" } else { "" };
        let _ = write!(self.fields, " {name}={quote}");
        escape(&mut self.fields, &text, is_cut, is_quoted);
        self.fields.push_str(quote);
    }
}

impl Visit for Parts {
    /// Text, without the quotes of `Debug`.
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field.name(), &format_args!("{value}"));
    }

    /// Everything else; what was given with `%` comes as its `Display`.
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.add(field.name(), value);
    }
}

fn escape(to: &mut String, text: &str, is_cut: bool, is_quoted: bool) {
    for c in text.chars() {
        match c {
            '\'' => to.push(c),
            '"' if !is_quoted => to.push(c),
            _ => to.extend(c.escape_debug()),
        }
    }
    if is_cut {
        to.push(CUT);
    }
}

/// Takes text up to the bound of a value, and then refuses more, which ends the formatting of a long one.
struct Limited(String);

impl Write for Limited {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = LOG_VALUE_BYTES - self.0.len();
        if text.len() <= room {
            self.0.push_str(text);
            return Ok(());
        }
        self.0.push_str(&text[..text.floor_char_boundary(room)]);
        Err(fmt::Error)
    }
}
