//! The settings and their sources: an environment variable overrides the file, and the file
//! overrides the built-in value. No I/O: the caller reads and writes the file.

mod file;
mod handlers;
mod key;
mod log_levels;
mod value;

pub(crate) use handlers::SettingsEdits;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use belay_protocol::config::{ConfigApplies, ConfigItem, ConfigSource};
use belay_protocol::task::OnTimeout;
use belay_protocol::{units, vars};
use serde_json::Value as Json;

use crate::config::{Retention, SessionDefaults};
use crate::defaults::Defaults;
pub use key::Key;
pub use log_levels::LogLevels;
pub use value::Hook;
use value::{Raw, Value};

/// Identifies a version of the file: modification time (seconds, nanoseconds), size and inode.
pub type Stamp = (i64, i64, u64, u64);

/// The file as it was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    pub stamp: Option<Stamp>,
    /// None if there is no file.
    pub text: Option<Vec<u8>>,
}

type FileValues = BTreeMap<Key, (Value, usize)>;

/// All settings, by source.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    path: PathBuf,
    env: BTreeMap<Key, Value>,
    file: FileValues,
    /// The file at the start of the daemon, for settings that a later change does not affect.
    file_at_start: FileValues,
    stamp: Option<Stamp>,
    problem: Option<String>,
    /// From the environment only: the levels are fixed when the log is opened.
    log_levels: LogLevels,
}

/// An invalid setting: where it is, and what is allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSetting {
    #[error("{name} is {found:?}, which is not understood: write it as {example}")]
    Variable { name: &'static str, found: String, example: &'static str },
    #[error("{place}: {message}")]
    File { place: String, message: String },
    /// The value of a `config/set` request.
    #[error("{message}")]
    Requested { message: String },
}

impl Settings {
    /// The settings that a daemon starts with.
    pub fn read(
        home: &Path,
        found: &Found,
        get: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, BadSetting> {
        let path = home.join(vars::CONFIG_FILE);
        let file = parse(&path, found.text.as_deref())?;
        let env = variables(&get)?;
        let log_levels = log_levels(&get)?;
        let stamp = found.stamp;
        Ok(Self { path, env, file_at_start: file.clone(), file, stamp, problem: None, log_levels })
    }

    pub(crate) const fn log_levels(&self) -> &LogLevels {
        &self.log_levels
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the file is still the one that was read.
    pub(crate) fn is_of(&self, stamp: Option<Stamp>) -> bool {
        self.stamp == stamp
    }

    /// The error in the current file, if it is invalid.
    pub(crate) fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Applies the current file. If it is invalid, the previous settings stay in force, and the
    /// error is kept.
    pub(crate) fn take_over(&mut self, found: &Found) {
        self.stamp = found.stamp;
        match parse(&self.path, found.text.as_deref()) {
            Ok(file) => {
                self.file = file;
                self.problem = None;
            }
            Err(error) => self.problem = Some(error.to_string()),
        }
    }

    /// The text of the file with one setting changed or removed. The result is a valid file.
    pub(crate) fn edited(&self, found: &Found, key: Key, value: &Json) -> Result<String, BadSetting> {
        let value = match value {
            Json::Null => None,
            some => {
                let read = Raw::from_json(some).and_then(|raw| key.kind().read(&raw.coerced(key.kind())));
                let invalid = |allowed| BadSetting::Requested {
                    message: format!("{} cannot be {some}: write it as {allowed}", key.name()),
                };
                Some(read.ok_or_else(|| invalid(key.kind().allowed()))?)
            }
        };
        let text = text_of(&self.path, found.text.as_deref())?;
        let edited = file::edit(text, key, value.as_ref()).map_err(|fault| fault.at(&self.path))?;
        parse(&self.path, Some(edited.as_bytes()))?;
        Ok(edited)
    }

    /// When a change of this key takes effect.
    pub(crate) fn counts(&self, key: Key) -> ConfigApplies {
        match (self.env.contains_key(&key), key.is_live()) {
            (true, _) => ConfigApplies::Overridden,
            (false, true) => ConfigApplies::Now,
            (false, false) => ConfigApplies::NextStart,
        }
    }

    /// The source of a value, for a message: the variable, or the line of the file.
    pub(crate) fn source(&self, key: Key) -> String {
        match self.item(key).source {
            ConfigSource::Default => "default".to_owned(),
            ConfigSource::File { place } => place,
            ConfigSource::Env { variable } => variable,
        }
    }

    pub(crate) fn item(&self, key: Key) -> ConfigItem {
        let file = if key.is_live() { &self.file } else { &self.file_at_start };
        let (value, source) = match (self.env.get(&key), file.get(&key)) {
            (Some(value), _) => {
                let variable = key.variable().unwrap_or("?").to_owned();
                (Some(value.clone()), ConfigSource::Env { variable })
            }
            (None, Some((value, line))) => {
                let place = format!("{}:{line}", self.path.display());
                (Some(value.clone()), ConfigSource::File { place })
            }
            (None, None) => (key.built_in(), ConfigSource::Default),
        };
        let next =
            self.env.get(&key).cloned().or_else(|| self.file.get(&key).map(|(value, _)| value.clone()));
        let next = next.or_else(|| key.built_in());
        let json = |value: Option<Value>| value.map_or(Json::Null, |value| value.to_json());
        let from_next_start = (next != value).then(|| json(next));
        ConfigItem { key: key.name().to_owned(), value: json(value), source, from_next_start }
    }

    fn value(&self, key: Key) -> Option<Value> {
        let in_file = || {
            let file = if key.is_live() { &self.file } else { &self.file_at_start };
            file.get(&key).map(|(value, _)| value.clone())
        };
        self.env.get(&key).cloned().or_else(in_file).or_else(|| key.built_in())
    }

    fn number(&self, key: Key) -> Option<u64> {
        match self.value(key)? {
            Value::Ms(number) | Value::Bytes(number) | Value::Count(number) => Some(number),
            Value::Never | Value::Flag(_) | Value::Word(_) | Value::Command(_) => None,
        }
    }

    /// How long an idle daemon runs before it exits. None: it never exits.
    pub fn idle_exit(&self) -> Option<Duration> {
        self.number(Key::IdleExit).map(Duration::from_millis)
    }

    pub(crate) fn cgroup(&self) -> bool {
        self.value(Key::Cgroup) != Some(Value::Flag(false))
    }

    pub(crate) fn max_tasks(&self) -> usize {
        self.number(Key::MaxTasks).and_then(|tasks| usize::try_from(tasks).ok()).unwrap_or(usize::MAX)
    }

    pub(crate) fn retention(&self) -> Retention {
        let built_in = Retention::default();
        Retention {
            age_ms: self.number(Key::KeepAge).unwrap_or(built_in.age_ms),
            tasks: self.number(Key::KeepTasks).unwrap_or(built_in.tasks),
            output_bytes: self.number(Key::KeepOutput).unwrap_or(built_in.output_bytes),
            events: self.number(Key::KeepEvents).unwrap_or(built_in.events),
        }
    }

    pub(crate) fn defaults(&self) -> Defaults {
        let on_timeout = match self.value(Key::OnTimeout) {
            Some(Value::Word("detach")) => OnTimeout::Detach,
            _ => OnTimeout::Stop,
        };
        Defaults {
            timeout_ms: self.number(Key::Timeout),
            on_timeout: Some(on_timeout),
            ttl_ms: self.number(Key::Ttl),
            silence_ms: self.number(Key::Silence),
            grace_ms: self.number(Key::Grace),
            output_limit_bytes: self.number(Key::OutputLimit),
            stall: None,
        }
    }

    pub(crate) fn session(&self) -> SessionDefaults {
        SessionDefaults {
            lease_ms: self.number(Key::SessionLease),
            grace_ms: self.number(Key::SessionGrace),
            max_tasks: self.number(Key::SessionMaxTasks),
        }
    }

    pub(crate) fn on_end(&self) -> Option<Hook> {
        match self.value(Key::OnEnd) {
            Some(Value::Command(hook)) => Some(hook),
            _ => None,
        }
    }
}

fn text_of<'a>(path: &Path, bytes: Option<&'a [u8]>) -> Result<&'a str, BadSetting> {
    std::str::from_utf8(bytes.unwrap_or_default()).map_err(|error| {
        let before = &bytes.unwrap_or_default()[..error.valid_up_to()];
        let line = before.split(|byte| *byte == b'\n').count();
        BadSetting::File {
            place: format!("{}:{line}", path.display()),
            message: "this line is not UTF-8 text".to_owned(),
        }
    })
}

fn parse(path: &Path, bytes: Option<&[u8]>) -> Result<FileValues, BadSetting> {
    file::parse(text_of(path, bytes)?).map_err(|fault| fault.at(path))
}

fn variables(get: impl Fn(&str) -> Option<String>) -> Result<BTreeMap<Key, Value>, BadSetting> {
    let mut found = BTreeMap::new();
    if let Some(text) = get(vars::IDLE_EXIT) {
        let read = Key::IdleExit.kind().read(&Raw::Text(text.clone()));
        let value = read.ok_or_else(|| bad(vars::IDLE_EXIT, &text, "30m, 2h or never"))?;
        found.insert(Key::IdleExit, value);
    }
    match get(vars::CGROUP).as_deref() {
        None => {}
        Some("on") => drop(found.insert(Key::Cgroup, Value::Flag(true))),
        Some("off") => drop(found.insert(Key::Cgroup, Value::Flag(false))),
        Some(other) => return Err(bad(vars::CGROUP, other, "on or off")),
    }
    if let Some(text) = get(vars::RETENTION) {
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let read = retention_part(part);
            let (key, value) = read
                .ok_or_else(|| bad(vars::RETENTION, &text, "age=7d,tasks=20000,output=4GiB,events=200000"))?;
            found.insert(key, value);
        }
    }
    Ok(found)
}

fn log_levels(get: impl Fn(&str) -> Option<String>) -> Result<LogLevels, BadSetting> {
    let Some(text) = get(vars::LOG) else { return Ok(LogLevels::default()) };
    LogLevels::parse(&text).ok_or_else(|| bad(vars::LOG, &text, LogLevels::EXAMPLE))
}

fn retention_part(part: &str) -> Option<(Key, Value)> {
    let (name, text) = part.split_once('=')?;
    // Not checked against the bounds of the file. With 0, nothing is kept.
    let value = match name {
        "age" => Value::Ms(units::millis(units::parse(text).ok()?)),
        "output" => Value::Bytes(units::parse_size(text).ok()?),
        "tasks" | "events" => Value::Count(text.parse().ok()?),
        _ => return None,
    };
    let key = match name {
        "age" => Key::KeepAge,
        "output" => Key::KeepOutput,
        "tasks" => Key::KeepTasks,
        _ => Key::KeepEvents,
    };
    Some((key, value))
}

fn bad(name: &'static str, found: &str, example: &'static str) -> BadSetting {
    BadSetting::Variable { name, found: found.to_owned(), example }
}

#[cfg(test)]
mod tests;
