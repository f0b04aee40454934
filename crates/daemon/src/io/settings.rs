//! The daemon's settings from its environment, checked: a wrong one is told before anything is started.

use std::ffi::OsString;
use std::time::Duration;

use belay_protocol::vars;

use crate::config::{Config, Retention};

/// A setting that cannot be understood: the variable, and what it should look like.
#[derive(Debug, thiserror::Error)]
#[error("{name} is {found:?}, which is not understood: write it as {example}")]
pub(crate) struct BadSetting {
    name: &'static str,
    found: String,
    example: &'static str,
}

pub(crate) struct Settings {
    pub(crate) idle_exit: Option<Duration>,
    pub(crate) retention: Retention,
    pub(crate) cgroup: bool,
    pub(crate) crash_at: Option<(String, u32)>,
}

impl Settings {
    pub(crate) fn read(get: impl Fn(&str) -> Option<OsString>) -> Result<Self, BadSetting> {
        let text = |name: &'static str| get(name).map(|value| value.to_string_lossy().into_owned());
        Ok(Self {
            idle_exit: match text(vars::IDLE_EXIT).as_deref() {
                None => Some(Config::DEFAULT_IDLE_EXIT),
                Some("never") => None,
                Some(other) => {
                    Some(duration(other).ok_or_else(|| bad(vars::IDLE_EXIT, other, "30m, 2h or never"))?)
                }
            },
            retention: retention(text(vars::RETENTION).as_deref())?,
            cgroup: match text(vars::CGROUP).as_deref() {
                None | Some("on") => true,
                Some("off") => false,
                Some(other) => return Err(bad(vars::CGROUP, other, "on or off")),
            },
            crash_at: text(vars::CRASH_AT).map(|value| match value.split_once(':') {
                Some((point, count)) => (point.to_owned(), count.parse().unwrap_or(0)),
                None => (value, 0),
            }),
        })
    }
}

fn bad(name: &'static str, found: &str, example: &'static str) -> BadSetting {
    BadSetting { name, found: found.to_owned(), example }
}

fn retention(text: Option<&str>) -> Result<Retention, BadSetting> {
    let mut retention = Retention::default();
    let Some(text) = text else { return Ok(retention) };
    let wrong = || bad(vars::RETENTION, text, "age=7d,tasks=20000,output=4GiB,events=200000");
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (name, value) = part.split_once('=').ok_or_else(wrong)?;
        match name {
            "age" => {
                let age = duration(value).ok_or_else(wrong)?;
                retention.age_ms = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
            }
            "tasks" => retention.tasks = value.parse().map_err(|_| wrong())?,
            "events" => retention.events = value.parse().map_err(|_| wrong())?,
            "output" => retention.output_bytes = size(value).ok_or_else(wrong)?,
            _ => return Err(wrong()),
        }
    }
    Ok(retention)
}

fn split_unit(text: &str) -> Option<(u64, &str)> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    Some((text[..digits].parse().ok()?, &text[digits..]))
}

fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = split_unit(text)?;
    let ms = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    Some(Duration::from_millis(number.checked_mul(ms)?))
}

fn size(text: &str) -> Option<u64> {
    let (number, unit) = split_unit(text)?;
    let factor = match unit {
        "" | "B" => 1,
        "KiB" | "K" => 1 << 10,
        "MiB" | "M" => 1 << 20,
        "GiB" | "G" => 1 << 30,
        _ => return None,
    };
    number.checked_mul(factor)
}
