//! Options that select tasks, sessions and events: labels, statuses, and the filters of `belay ps`.

use std::time::Duration;

use belay_protocol::labels::{Labels, check_labels};
use belay_protocol::task::TaskStatus;
use clap::Args;

use crate::duration::parse as duration;

/// One label, as `KEY=VALUE`.
pub(crate) type Label = (String, String);

/// Parses `KEY=VALUE`.
pub(crate) fn label(text: &str) -> Result<Label, String> {
    let (key, value) = text.split_once('=').ok_or("a label is KEY=VALUE, for example team=web")?;
    let labels = Labels::from([(key.to_owned(), value.to_owned())]);
    check_labels("label", &labels).map_err(|error| error.message)?;
    Ok((key.to_owned(), value.to_owned()))
}

/// Parses a status as `belay ps --json` prints it.
pub(crate) fn status(text: &str) -> Result<TaskStatus, String> {
    let names = || TaskStatus::ALL.iter().map(|status| status.name()).collect::<Vec<_>>().join(", ");
    let found = TaskStatus::ALL.iter().find(|status| status.name() == text);
    found.copied().ok_or_else(|| format!("a status is one of: {}", names()))
}

#[derive(Args, Debug)]
pub(crate) struct PsArgs {
    /// List ended tasks too
    #[arg(short, long)]
    pub(crate) all: bool,
    /// List only tasks of this session and below it
    #[arg(long, value_name = "SESSION")]
    pub(crate) session: Option<String>,
    /// List only tasks with this status, such as running or failed; may be given again
    #[arg(long, value_name = "STATUS", value_parser = status)]
    pub(crate) status: Vec<TaskStatus>,
    /// List only tasks that hold, held or wait for this lane
    #[arg(long, value_name = "LANE")]
    pub(crate) lane: Option<String>,
    /// List only tasks with exactly this name
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// List only tasks whose command, name or id contains TEXT, in any case
    #[arg(long, value_name = "TEXT")]
    pub(crate) text: Option<String>,
    /// List only tasks whose starter contains TEXT, such as user:ada or `via mcp`
    #[arg(long, value_name = "TEXT")]
    pub(crate) actor: Option<String>,
    /// List only tasks with this label; may be given again
    #[arg(long, value_name = "KEY=VALUE", value_parser = label)]
    pub(crate) label: Vec<Label>,
    /// List only tasks that ended more than DURATION ago
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) ended_before: Option<Duration>,
    /// Show each task below the task that has started it
    #[arg(long, conflicts_with = "json")]
    pub(crate) tree: bool,
    /// Print one JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_statuses_are_parsed_or_refused() {
        assert_eq!(label("team=web=x"), Ok(("team".to_owned(), "web=x".to_owned())));
        assert_eq!(label("team"), Err("a label is KEY=VALUE, for example team=web".to_owned()));
        assert!(label("a b=c").unwrap_err().starts_with("the key of a label"));
        assert_eq!(status("timed_out"), Ok(TaskStatus::TimedOut));
        assert!(status("done").unwrap_err().starts_with("a status is one of: queued, starting, running"));
    }
}
