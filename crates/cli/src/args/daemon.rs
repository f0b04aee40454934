//! What the verbs about the daemon itself and its record take.

use std::time::Duration;

use belay_protocol::event::EventTypePattern;
use clap::{Args, ValueEnum};
use clap_complete::Shell;
use serde::Serialize;

use super::filter::{Label, label};
use super::limits::number;
use crate::duration::parse as duration;

#[derive(Args, Debug)]
pub(crate) struct RmArgs {
    /// The tasks
    #[arg(value_name = "ID", required = true)]
    pub(crate) ids: Vec<String>,
    /// One object a line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct GcArgs {
    /// Every ended task, whatever the rules say
    #[arg(long)]
    pub(crate) all: bool,
    /// Only say what would be removed
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct EventsArgs {
    /// Go on with what comes
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Only events with a higher number
    #[arg(long, value_name = "SEQ", value_parser = number, default_value_t = 0, hide_default_value = true)]
    pub(crate) after: u64,
    /// Only what happened to this task
    #[arg(long, value_name = "ID")]
    pub(crate) task: Option<String>,
    /// Only what happened in this session
    #[arg(long, value_name = "SESSION")]
    pub(crate) session: Option<String>,
    /// Only events of this type: task.ended, or task.* for all about tasks; may be given again
    #[arg(long = "type", value_name = "TYPE")]
    pub(crate) types: Vec<EventTypePattern>,
    /// Show only events about tasks and sessions with this label; may be given again
    #[arg(long, value_name = "KEY=VALUE", value_parser = label)]
    pub(crate) label: Vec<Label>,
    /// One object a line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct UpArgs {
    /// Let it leave when it has held nothing for so long
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) idle_exit: Option<Duration>,
    /// Print the daemon's state as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct DownArgs {
    /// Stop every task first
    #[arg(long)]
    pub(crate) stop_tasks: bool,
    /// How long each task may take to end before it is killed
    #[arg(long, value_name = "DURATION", value_parser = duration, requires = "stop_tasks")]
    pub(crate) grace: Option<Duration>,
    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct StatusArgs {
    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// How much a line of the daemon's log matters; the most important first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl LogLevel {
    /// As it stands in the log.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::value_variants().iter().copied().find(|level| {
            level.to_possible_value().is_some_and(|value| value.get_name().eq_ignore_ascii_case(name))
        })
    }
}

#[derive(Args, Debug)]
pub(crate) struct DaemonLogArgs {
    /// Continue with new lines as they are written
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Show only the last LINES lines, and with -f what follows them
    #[arg(short = 'n', long, value_name = "LINES", value_parser = number)]
    pub(crate) tail: Option<u64>,
    /// Show only lines of this level and of more important ones
    #[arg(long, value_name = "LEVEL", value_enum)]
    pub(crate) level: Option<LogLevel>,
    /// Print one JSON object per line, with `at`, `level` and `text`
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub(crate) shell: Shell,
}
