//! How sessions look to people.

use std::fmt::Write as _;

use belay_protocol::Timestamp;
use belay_protocol::session::{SessionHold, SessionInfo, SessionState, SessionWaitResult};

use crate::ui::human;
use crate::ui::style::Style;
use crate::ui::table::{Cell, Column, Table};
use crate::ui::text::one_line;

pub(crate) fn render(sessions: &[SessionInfo], now: Timestamp, width: Option<usize>, colour: bool) -> String {
    let mut table = Table::new(vec![
        Column::new("ID"),
        Column::new("NAME").flexible(6),
        Column::new("STATE"),
        Column::new("AGE"),
        Column::new("TASKS").right(),
        Column::new("LEASE"),
        Column::new("ON END"),
        Column::new("PARENT"),
    ]);
    for session in sessions {
        table.row(vec![
            Cell::new(&session.id),
            Cell::new(session.name.as_deref().unwrap_or("-")),
            Cell::new(&state(session)).style(style(session)),
            Cell::new(&human::duration(human::between(session.opened_at, now))),
            Cell::new(&tasks(session)),
            Cell::new(&lease(session)),
            Cell::new(session.on_end.name()),
            Cell::new(session.parent.as_deref().unwrap_or("-")),
        ]);
    }
    table.render(width, colour)
}

fn state(session: &SessionInfo) -> String {
    match session.state {
        SessionState::Open if session.drained => "open, drained".to_owned(),
        other => other.name().to_owned(),
    }
}

const fn style(session: &SessionInfo) -> Style {
    match session.state {
        SessionState::Open => Style::Good,
        SessionState::Lapsed | SessionState::Ending => Style::Busy,
        SessionState::Ended => Style::Plain,
    }
}

fn tasks(session: &SessionInfo) -> String {
    let live = session.counts.agents + session.counts.shells;
    match session.max_tasks {
        Some(most) => format!("{live}/{most}"),
        None => live.to_string(),
    }
}

fn lease(session: &SessionInfo) -> String {
    match (session.state, session.hold, session.due_in_ms) {
        (SessionState::Ending | SessionState::Ended, ..) | (_, SessionHold::Nothing, _) => "-".to_owned(),
        (SessionState::Lapsed, _, Some(ms)) => format!("lost, ends in {}", human::duration(ms)),
        (_, SessionHold::Connection, None) => "connected".to_owned(),
        (_, _, Some(ms)) => human::duration(ms),
        (_, _, None) => "-".to_owned(),
    }
}

/// Everything about one.
pub(crate) fn one(session: &SessionInfo, now: Timestamp, colour: bool) -> String {
    let mut text = String::new();
    let mut line = |label: &str, value: &str| {
        let _ = writeln!(text, "{label:<10} {}", one_line(value));
    };
    line("Session", &session.id);
    if let Some(name) = &session.name {
        line("Name", name);
    }
    line("State", &style(session).paint(&state(session), colour));
    if let Some(parent) = &session.parent {
        line("Parent", parent);
    }
    line("Opened", &format!("{} ({})", session.opened_at, human::ago(session.opened_at, now)));
    if let Some(ended) = session.ended_at {
        let by = session.ended_by.as_deref().unwrap_or("-");
        let why = session.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        line("Ended", &format!("{ended} by {by}{why}"));
    }
    line("Lease", &lease(session));
    line("On end", session.on_end.name());
    let counts = session.counts;
    line(
        "Tasks",
        &format!(
            "{} ({} shells, {} agents; {} in the foreground, {} detached, {} waiting, {} stalled)",
            tasks(session),
            counts.shells,
            counts.agents,
            counts.foreground,
            counts.detached,
            counts.queued,
            counts.stalled
        ),
    );
    line("Notices", &session.notices.to_string());
    text
}

/// The answer to a wait, and what did not come to a proper end.
pub(crate) fn drained(result: &SessionWaitResult) -> String {
    let counts = result.session.counts;
    let live = counts.agents + counts.shells - counts.stalled;
    let mut text = if result.drained {
        format!("{} is drained\n", result.session.id)
    } else {
        format!("{} is not drained: {live} of its tasks work on\n", result.session.id)
    };
    for left in &result.left {
        let _ = writeln!(text, "  {} {}: {}", left.id, left.status.name(), one_line(&left.why));
    }
    text
}
