//! Every event there is, as people read it.

use belay_protocol::event::{Event, EventInfo, EventKind};
use belay_protocol::life::{ClockName, ExitStatus, StopCause, StopLevel, StopOrderInfo};
use belay_protocol::session::{OnSessionEnd, SessionCounts};
use belay_protocol::task::{
    BudgetName, DetachedBy, OnStall, Outcome, StallEvidence, StallParams, TaskStatus,
};
use unicode_width::UnicodeWidthStr as _;

use super::samples::{NOW, cancelled, over_budget, stop_failed, timed_out};
use crate::commands::events;

fn task() -> String {
    "sh-3kq7w0x2m9d4c8ab".into()
}

fn session() -> String {
    "se-8d2k5n1p7r3t9w6x".into()
}

fn ada() -> String {
    "user:ada".into()
}

fn lane() -> String {
    "member-1".into()
}

fn beginnings() -> Vec<Event> {
    let (task, session) = (task(), session());
    let created = |command: &str, name: Option<&str>, parent: Option<&str>| Event::TaskCreated {
        task: task.clone(),
        session: session.clone(),
        command: command.into(),
        name: name.map(Into::into),
        parent: parent.map(Into::into),
        found: None,
    };
    let started =
        |pid, attempt| Event::TaskStarted { task: task.clone(), session: session.clone(), pid, attempt };
    vec![
        created("npm run dev", None, None),
        created("make", Some("web"), Some("sh-9a")),
        started(4711, None),
        started(4712, Some(2)),
        Event::TaskAdopted { task: task.clone(), session: session.clone() },
    ]
}

fn changes() -> Vec<Event> {
    let (task, session) = (task(), session());
    let detached = |by| Event::TaskDetached { task: task.clone(), session: session.clone(), by };
    let exited = |exit| Event::TaskLeaderExited { task: task.clone(), session: session.clone(), exit };
    let evidence =
        StallEvidence { silent_ms: 61_000, cpu_ms: 20, output_bytes: 9, processes: Vec::new(), more: 0 };
    vec![
        detached(DetachedBy::Actor(ada())),
        detached(DetachedBy::Timeout),
        detached(DetachedBy::Leader),
        detached(DetachedBy::Disconnect),
        Event::TaskSignalled {
            task: task.clone(),
            session: session.clone(),
            signal: "SIGUSR1".into(),
            by: ada(),
        },
        exited(ExitStatus::Code(0)),
        exited(ExitStatus::Signal { number: 9, core_dumped: false }),
        Event::TaskAttemptEnded {
            task: task.clone(),
            session: session.clone(),
            exit: ExitStatus::Code(7),
            attempt: 1,
            next_ms: 1000,
        },
        Event::TaskStalled {
            task: task.clone(),
            session: session.clone(),
            since: NOW,
            evidence,
            policy: Some(OnStall::Stop),
        },
        Event::TaskRecovered { task: task.clone(), session: session.clone() },
    ]
}

fn endings() -> Vec<Event> {
    let order = StopOrderInfo {
        level: StopLevel::Terminate,
        grace_ms: None,
        actor: ada(),
        reason: Some("too slow".into()),
    };
    let budget = StopCause::Budget { budget: BudgetName::Output, limit: 1 << 20, used: 3 << 19 };
    let clock = StopCause::Clock { clock: ClockName::Silence, limit_ms: 300_000, reason: None };
    let stopping = |level, cause| Event::TaskStopping { task: task(), session: session(), level, cause };
    let ended = |status, outcome| Event::TaskEnded { task: task(), session: session(), status, outcome };
    let code = |exit_code| Some(Outcome::Exited { exit_code, capture: None });
    let died = Outcome::Signaled { signal: 11, core_dumped: false, capture: None };
    vec![
        stopping(StopLevel::Terminate, StopCause::Asked { order }),
        stopping(StopLevel::Terminate, clock),
        stopping(StopLevel::Kill, budget),
        ended(TaskStatus::Completed, code(0)),
        ended(TaskStatus::Failed, code(2)),
        ended(TaskStatus::Failed, Some(died)),
        ended(TaskStatus::Cancelled, cancelled().outcome),
        ended(TaskStatus::TimedOut, Some(timed_out(ClockName::Timeout, 600_000, None))),
        ended(TaskStatus::Failed, Some(over_budget(1 << 20, 3 << 19))),
        ended(TaskStatus::StopFailed, Some(stop_failed())),
        ended(TaskStatus::Lost, None),
        Event::TaskRemoved { task: task(), session: session() },
    ]
}

fn lanes() -> Vec<Event> {
    let (task, session, lane) = (task(), session(), lane());
    let left = |blocked: Option<&str>| Event::LaneLeft {
        task: task.clone(),
        session: session.clone(),
        lane: lane.clone(),
        generation: Some(12),
        blocked: blocked.map(Into::into),
    };
    vec![
        Event::LaneQueued {
            task: task.clone(),
            session: session.clone(),
            lane: lane.clone(),
            place: Some(2),
            owner: None,
        },
        Event::LaneGranted {
            task: task.clone(),
            session: session.clone(),
            lane: lane.clone(),
            generation: 12,
            owner: Some("lead".into()),
        },
        left(None),
        left(Some("2 of its processes could not be stopped")),
        Event::LaneFenced {
            task: task.clone(),
            session: session.clone(),
            lane: lane.clone(),
            owner: "lead".into(),
            generation: 12,
            by: ada(),
            reason: Some("too slow".into()),
        },
    ]
}

fn sessions() -> Vec<Event> {
    let (task, session, by) = (task(), session(), Some(ada()));
    vec![
        Event::TaskStallSet {
            task: task.clone(),
            session: session.clone(),
            stall: Some(StallParams { after_ms: 5_000, policy: OnStall::Stop }),
        },
        Event::TaskStallSet { task: task.clone(), session: session.clone(), stall: None },
        Event::SessionBusy {
            session: session.clone(),
            counts: SessionCounts { shells: 1, detached: 1, ..SessionCounts::default() },
        },
        Event::SessionDrained {
            session: session.clone(),
            counts: SessionCounts { shells: 1, stalled: 1, ..SessionCounts::default() },
        },
        Event::SessionDrained { session: session.clone(), counts: SessionCounts::default() },
        Event::SessionOpened {
            session: session.clone(),
            name: Some("review".into()),
            parent: None,
            by: ada(),
        },
        Event::SessionLapsed { session: session.clone(), grace_ms: 30_000 },
        Event::SessionRegained { session: session.clone() },
        Event::SessionEnding {
            session: session.clone(),
            by: by.clone(),
            reason: Some("done for today".into()),
            on_end: OnSessionEnd::Stop,
        },
        Event::SessionEnded { session, by, reason: None },
    ]
}

fn others() -> Vec<Event> {
    let owners = vec!["lead".into()];
    vec![
        Event::LaneReleased { lane: lane(), owners, unblocked: None, by: ada(), reason: None },
        Event::DaemonStarted { version: "0.1.0".into(), adopting: 3 },
        Event::DaemonStopping,
        Event::Lost,
    ]
}

fn all() -> Vec<EventInfo> {
    let events = [beginnings(), changes(), endings(), lanes(), sessions(), others()].into_iter().flatten();
    (1..).zip(events).map(|(seq, event)| EventInfo { seq, at: NOW, event }).collect()
}

#[test]
fn every_event_in_words() {
    let lines =
        |limit| all().iter().map(|event| events::line(event, limit, false) + "\n").collect::<String>();
    insta::assert_snapshot!("events_for_a_terminal", lines(Some(80)));
    insta::assert_snapshot!("events_for_a_file", lines(None));
}

#[test]
fn every_type_that_there_is_is_among_them() {
    let mut shown: Vec<EventKind> = all().iter().map(|info| info.event.kind()).collect();
    shown.sort_unstable();
    shown.dedup();
    assert_eq!(shown, EventKind::ALL);
}

#[test]
fn a_line_fits_any_terminal() {
    for event in all() {
        for width in 1..120 {
            let line = events::line(&event, Some(width), false);
            assert!(line.width() <= width, "{line}");
        }
    }
}
