//! One line of English for each event, for people at a terminal. Programs read the fields of the event instead.

use belay_protocol::event::Event;
use belay_protocol::life::{ExitStatus, StopCause, StopLevel};
use belay_protocol::session::OnSessionEnd;
use belay_protocol::task::{BudgetInfo, DetachedBy, OnStall, StallEvidence, StallParams};

use crate::outcome;
use crate::ui::human;

/// What happened, the most important part first: the rest may be cut off.
pub(crate) fn describe(event: &Event) -> String {
    match event {
        Event::TaskCreated { command, name, parent, .. } => {
            format!("created{}{}: {command}", with(" as ", name.as_deref()), with(" by ", parent.as_deref()))
        }
        Event::TaskStarted { pid, attempt, .. } => {
            let attempt = attempt.map(|attempt| format!(" attempt {attempt}")).unwrap_or_default();
            format!("started{attempt}, pid {pid}")
        }
        Event::TaskAdopted { .. } => "adopted by a new daemon".to_owned(),
        Event::TaskDetached { by, .. } => format!("detached{}", detached(by)),
        Event::TaskSignalled { signal, by, .. } => format!("received {signal} from {by}"),
        Event::TaskLeaderExited { exit, .. } => format!("leader {}", exited(*exit)),
        Event::TaskAttemptEnded { exit, attempt, next_ms, .. } => {
            let (how, next) = (exited(*exit), human::duration(*next_ms));
            format!("attempt {attempt} {how}, the next one in {next}")
        }
        Event::TaskStalled { evidence: StallEvidence { silent_ms, cpu_ms, .. }, policy, .. } => {
            let stops = if *policy == Some(OnStall::Stop) { " and is being stopped" } else { "" };
            let (silent, cpu) = (human::duration(*silent_ms), human::took(*cpu_ms));
            format!("stalled{stops}: no output for {silent}, {cpu} of CPU time")
        }
        Event::TaskRecovered { .. } => "recovered: makes progress again".to_owned(),
        Event::TaskStallSet { stall: None, .. } => "no longer checked for progress".to_owned(),
        Event::TaskStallSet { stall: Some(StallParams { after_ms, policy }), .. } => {
            let stops = if *policy == OnStall::Stop { ", stopped when it makes none" } else { "" };
            format!("checked for progress every {}{stops}", human::duration(*after_ms))
        }
        Event::TaskStopping { level, cause, .. } => stopping(*level, cause),
        Event::TaskEnded { status, outcome, .. } => outcome::sentence_of(*status, outcome.as_ref()),
        Event::TaskRemoved { .. } => "removed".to_owned(),
        Event::SessionOpened { name, by, .. } => format!("opened{} by {by}", with(" as ", name.as_deref())),
        Event::SessionBusy { counts, .. } => {
            let tasks = human::count(counts.shells + counts.agents, "live task", "live tasks");
            format!("busy: {tasks}")
        }
        Event::SessionDrained { counts, .. } if counts.stalled > 0 => {
            format!("drained: {}", human::count(counts.stalled, "stalled task", "stalled tasks"))
        }
        Event::SessionDrained { .. } => "drained: every task has ended".to_owned(),
        Event::SessionLapsed { grace_ms, .. } => {
            format!("lease lost; ends in {} unless renewed", human::duration(*grace_ms))
        }
        Event::SessionRegained { .. } => "lease renewed".to_owned(),
        Event::SessionEnding { by, reason, on_end, .. } => {
            format!("ending{}; its tasks are {}", by_and_why(by.as_deref(), reason.as_deref()), fate(*on_end))
        }
        Event::SessionEnded { by, reason, .. } => {
            format!("ended{}", by_and_why(by.as_deref(), reason.as_deref()))
        }
        Event::LaneQueued { lane, place, owner, .. } => {
            let place = place.map(|place| format!(", place {place}")).unwrap_or_default();
            format!("waits for lane {lane}{place}{}", with(", for ", owner.as_deref()))
        }
        Event::LaneGranted { lane, generation, owner, .. } => {
            format!("holds lane {lane}, generation {generation}{}", with(", for ", owner.as_deref()))
        }
        Event::LaneLeft { lane, blocked: Some(why), .. } => {
            format!("ended, but lane {lane} is blocked: {why}")
        }
        Event::LaneLeft { lane, blocked: None, .. } => format!("left lane {lane}"),
        Event::LaneFenced { lane, owner, by, reason, .. } => {
            format!("{owner} is fenced from lane {lane}, stopped{}", by_and_why(Some(by), reason.as_deref()))
        }
        Event::LaneReleased { lane, owners, by, reason, .. } => {
            let to = if owners.is_empty() { String::new() } else { format!(" for {}", owners.join(", ")) };
            format!("lane {lane} released{to}{}", by_and_why(Some(by), reason.as_deref()))
        }
        Event::DaemonStarted { version, adopting } => {
            let adopting = match adopting {
                0 => String::new(),
                many => format!(", adopting {}", human::count(*many, "task", "tasks")),
            };
            format!("daemon {version} started{adopting}")
        }
        Event::DaemonStopping => "daemon stopping".to_owned(),
        Event::Lost => "lost: damaged in the journal, or unknown to this version".to_owned(),
    }
}

/// The text with these words before it, or nothing.
fn with(before: &str, text: Option<&str>) -> String {
    text.map(|text| format!("{before}{text}")).unwrap_or_default()
}

/// ` by user:ada: too slow`.
fn by_and_why(by: Option<&str>, reason: Option<&str>) -> String {
    format!("{}{}", with(" by ", by), with(": ", reason))
}

const fn fate(on_end: OnSessionEnd) -> &'static str {
    match on_end {
        OnSessionEnd::Keep => "kept",
        OnSessionEnd::Stop => "stopped",
    }
}

fn exited(exit: ExitStatus) -> String {
    match exit {
        ExitStatus::Code(code) => format!("exited with {code}"),
        ExitStatus::Signal { number, .. } => format!("died of {}", human::signal(number)),
    }
}

fn detached(by: &DetachedBy) -> String {
    match by {
        DetachedBy::Timeout => ": the time limit passed".to_owned(),
        DetachedBy::Leader => ": the leader exited and left processes behind".to_owned(),
        DetachedBy::Disconnect => ": the caller disconnected".to_owned(),
        DetachedBy::Actor(actor) => format!(" by {actor}"),
    }
}

fn stopping(level: StopLevel, cause: &StopCause) -> String {
    let level = level.name();
    match cause {
        StopCause::Asked { order } => {
            format!("stopping ({level}), asked by {}{}", order.actor, with(": ", order.reason.as_deref()))
        }
        StopCause::Clock { clock, limit_ms, reason } => {
            let (clock, limit) = (outcome::clock_name(*clock), human::duration(*limit_ms));
            format!("stopping ({level}): the {clock} of {limit} passed{}", with(": ", reason.as_deref()))
        }
        StopCause::Budget { budget, limit, used } => {
            let beyond = outcome::beyond(&BudgetInfo { name: *budget, limit: *limit, used: *used });
            format!("stopping ({level}): {beyond}")
        }
    }
}
