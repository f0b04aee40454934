//! Kinds of settings with their allowed values, and conversions of values from and to TOML and
//! JSON.

use belay_protocol::units;
use serde_json::Value as Json;

use crate::config::bounds;

/// The command of a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hook {
    Program(Vec<String>),
    /// A line for the shell.
    Line(String),
}

/// A valid value of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Never,
    Ms(u64),
    Bytes(u64),
    Count(u64),
    Flag(bool),
    Word(&'static str),
    Command(Hook),
}

/// A value before it is checked against the kind of its setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Raw {
    Text(String),
    Number(i64),
    Flag(bool),
    List(Vec<String>),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Duration { least_ms: u64, never: bool },
    Size { least: u64 },
    Count { least: u64, most: u64 },
    Flag,
    Word(&'static [&'static str]),
    Command,
}

impl Raw {
    pub(super) fn from_json(value: &Json) -> Option<Self> {
        match value {
            Json::String(text) => Some(Self::Text(text.clone())),
            Json::Number(number) => number.as_i64().map(Self::Number),
            Json::Bool(flag) => Some(Self::Flag(*flag)),
            Json::Array(items) => {
                let words = items.iter().map(|item| item.as_str().map(str::to_owned)).collect();
                Option::map(words, Self::List)
            }
            Json::Null | Json::Object(_) => None,
        }
    }

    /// Converts text from a command line to the type that the setting needs, if it can be parsed as
    /// such.
    pub(super) fn coerced(self, kind: Kind) -> Self {
        let Self::Text(text) = &self else { return self };
        let converted = match kind {
            Kind::Count { .. } => text.parse().ok().map(Self::Number),
            Kind::Flag => text.parse().ok().map(Self::Flag),
            Kind::Command if text.starts_with('[') => serde_json::from_str(text).ok().map(Self::List),
            Kind::Command | Kind::Duration { .. } | Kind::Size { .. } | Kind::Word(_) => None,
        };
        converted.unwrap_or(self)
    }
}

impl Kind {
    pub(super) fn read(self, raw: &Raw) -> Option<Value> {
        match (self, raw) {
            (Self::Duration { never: true, .. }, Raw::Text(text)) if text == "never" => Some(Value::Never),
            (Self::Duration { least_ms, .. }, Raw::Text(text)) => {
                let ms = units::millis(units::parse(text).ok()?);
                (least_ms..=bounds::CLOCK_MS).contains(&ms).then_some(Value::Ms(ms))
            }
            (Self::Size { least }, Raw::Text(text)) => {
                units::parse_size(text).ok().filter(|size| *size >= least).map(Value::Bytes)
            }
            (Self::Size { least }, Raw::Number(number)) => {
                u64::try_from(*number).ok().filter(|size| *size >= least).map(Value::Bytes)
            }
            (Self::Count { least, most }, Raw::Number(number)) => {
                let number = u64::try_from(*number).ok()?;
                (least..=most).contains(&number).then_some(Value::Count(number))
            }
            (Self::Flag, Raw::Flag(flag)) => Some(Value::Flag(*flag)),
            (Self::Word(words), Raw::Text(text)) => {
                words.iter().find(|word| *word == text).map(|word| Value::Word(word))
            }
            (Self::Command, Raw::Text(line)) if is_clean(line) => {
                Some(Value::Command(Hook::Line(line.clone())))
            }
            (Self::Command, Raw::List(words)) => {
                let fits = words.first().is_some_and(|program| is_clean(program))
                    && words.iter().all(|word| !word.contains('\0'));
                fits.then(|| Value::Command(Hook::Program(words.clone())))
            }
            _ => None,
        }
    }

    /// A description of the allowed values, for messages.
    pub(super) fn allowed(self) -> String {
        match self {
            Self::Duration { least_ms, never } => {
                let never = if never { ", or \"never\"" } else { "" };
                let least = match least_ms {
                    0 | 1 => String::new(),
                    ms => format!(", at least {}", units::format(std::time::Duration::from_millis(ms))),
                };
                let above = if least_ms == 1 { " above 0" } else { "" };
                format!("a duration{above} such as \"30s\", \"10m\" or \"2h\"{least}, at most a year{never}")
            }
            Self::Size { least: 0 } => "a size such as \"64MiB\" or \"4GiB\"".to_owned(),
            Self::Size { least } => {
                format!("a size such as \"64MiB\" or \"4GiB\", at least {}", units::format_size(least))
            }
            Self::Count { least, most } => format!("a whole number from {least} to {most}"),
            Self::Flag => "true or false".to_owned(),
            Self::Word(words) => {
                words.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(" or ")
            }
            Self::Command => {
                "a program with its arguments, [\"program\", \"argument\"], or a line for the shell, \"line\""
                    .to_owned()
            }
        }
    }
}

fn is_clean(text: &str) -> bool {
    !text.trim().is_empty() && !text.contains('\0')
}

impl Value {
    pub(super) fn to_json(&self) -> Json {
        match self {
            Self::Never => "never".into(),
            Self::Ms(ms) => units::format(std::time::Duration::from_millis(*ms)).into(),
            Self::Bytes(bytes) => units::format_size(*bytes).into(),
            Self::Count(count) => (*count).into(),
            Self::Flag(flag) => (*flag).into(),
            Self::Word(word) => (*word).into(),
            Self::Command(Hook::Line(line)) => line.clone().into(),
            Self::Command(Hook::Program(words)) => words.clone().into(),
        }
    }

    pub(super) fn to_toml(&self) -> toml_edit::Value {
        match self {
            Self::Count(count) => i64::try_from(*count).unwrap_or(i64::MAX).into(),
            Self::Flag(flag) => (*flag).into(),
            Self::Command(Hook::Program(words)) => {
                toml_edit::Value::Array(words.iter().map(String::as_str).collect())
            }
            Self::Command(Hook::Line(line)) => line.clone().into(),
            Self::Never | Self::Ms(_) | Self::Bytes(_) | Self::Word(_) => {
                self.to_json().as_str().unwrap_or_default().into()
            }
        }
    }
}
