//! Every event there is, as people read it.

use belay_protocol::event::EventInfo;
use belay_protocol::life::{ClockName, ExitStatus, Order, StopCause, StopLevel};
use belay_protocol::task::{BudgetInfo, OutcomeInfo, Status};
use serde_json::{Value, json};
use unicode_width::UnicodeWidthStr as _;

use super::samples::{NOW, cancelled, outcome, survivor};
use crate::commands::events;

const TASK: &str = "sh-3kq7w0x2m9d4c8ab";
const SESSION: &str = "se-8d2k5n1p7r3t9w6x";

fn event(seq: u64, kind: &str, about: Option<&str>, more: Value) -> EventInfo {
    let mut event = json!({ "seq": seq, "at": NOW, "type": kind });
    let about = about.map(|id| if id == TASK { ("task", id) } else { ("session", id) });
    let fields = event.as_object_mut().unwrap();
    fields.extend(about.map(|(name, id)| (name.to_owned(), json!(id))));
    fields.extend(more.as_object().unwrap().clone());
    serde_json::from_value(event).unwrap()
}

fn stopping(level: &str, cause: StopCause) -> Value {
    let mut more = json!(cause);
    more.as_object_mut().unwrap().insert("level".to_owned(), json!(level));
    more
}

fn ended(status: Status, outcome: Option<OutcomeInfo>) -> Value {
    json!({ "status": status, "outcome": outcome })
}

fn of_tasks() -> Vec<(&'static str, Value)> {
    let by = "user:ada";
    let order = Order {
        level: StopLevel::Terminate,
        grace_ms: None,
        actor: by.to_owned(),
        reason: Some("too slow".to_owned()),
    };
    let budget = StopCause::Budget { budget: "output".to_owned(), limit: 1 << 20, used: 3 << 19 };
    let clock = StopCause::Clock { clock: ClockName::Silence, limit_ms: 300_000, reason: None };
    let mut spent = outcome("budget");
    spent.budget = Some(BudgetInfo { name: "output".to_owned(), limit: 1 << 20, used: 3 << 19 });
    let mut left = outcome("stop_failed");
    left.survivors = vec![survivor()];
    let mut died = outcome("exited");
    died.signal = Some(11);
    let mut late = outcome("timed_out");
    (late.clock, late.limit_ms) = (Some(ClockName::Timeout), Some(600_000));
    let code = |code| OutcomeInfo { exit_code: Some(code), ..outcome("exited") };
    vec![
        ("task.created", json!({ "command": "npm run dev", "name": null, "parent": null })),
        ("task.created", json!({ "command": "make", "name": "web", "parent": "sh-9a" })),
        ("task.started", json!({ "pid": 4711 })),
        ("task.started", json!({ "pid": 4712, "attempt": 2 })),
        ("task.adopted", json!({})),
        ("task.detached", json!({ "by": by })),
        ("task.detached", json!({ "by": "clock:timeout" })),
        ("task.detached", json!({ "by": "leader" })),
        ("task.detached", json!({ "by": "disconnect" })),
        ("task.signalled", json!({ "signal": "SIGUSR1", "by": by })),
        ("task.leader_exited", json!({ "exit": ExitStatus::Code(0) })),
        ("task.leader_exited", json!({ "exit": ExitStatus::Signal { number: 9, core_dumped: false } })),
        ("task.attempt_ended", json!({ "exit": ExitStatus::Code(7), "attempt": 1, "next_ms": 1000 })),
        ("task.stalled", json!({ "silent_ms": 61_000, "cpu_ms": 20, "processes": [], "policy": "stop" })),
        ("task.recovered", json!({})),
        ("task.stopping", stopping("terminate", StopCause::Asked { order })),
        ("task.stopping", stopping("terminate", clock)),
        ("task.stopping", stopping("kill", budget)),
        ("task.ended", ended(Status::Completed, Some(code(0)))),
        ("task.ended", ended(Status::Failed, Some(code(2)))),
        ("task.ended", ended(Status::Failed, Some(died))),
        ("task.ended", ended(Status::Cancelled, cancelled().outcome)),
        ("task.ended", ended(Status::TimedOut, Some(late))),
        ("task.ended", ended(Status::Failed, Some(spent))),
        ("task.ended", ended(Status::StopFailed, Some(left))),
        ("task.ended", ended(Status::Lost, None)),
        ("task.removed", json!({})),
        ("lane.queued", json!({ "lane": "member-1", "place": 2, "owner": null })),
        ("lane.granted", json!({ "lane": "member-1", "generation": 12, "owner": "lead" })),
        ("lane.left", json!({ "lane": "member-1", "generation": 12, "blocked": null })),
        (
            "lane.left",
            json!({ "lane": "member-1", "generation": 12, "blocked": "2 of its processes could not be stopped" }),
        ),
        (
            "lane.fenced",
            json!({ "lane": "member-1", "owner": "lead", "generation": 12, "by": by, "reason": "too slow" }),
        ),
    ]
}

fn of_sessions() -> Vec<(&'static str, Value)> {
    let by = "user:ada";
    vec![
        ("session.opened", json!({ "name": "review", "parent": null, "by": by })),
        ("session.lapsed", json!({ "grace_ms": 30_000 })),
        ("session.regained", json!({})),
        ("session.ending", json!({ "by": by, "reason": "done for today", "on_end": "stop" })),
        ("session.ended", json!({ "by": by, "reason": null })),
    ]
}

fn of_others() -> Vec<(&'static str, Value)> {
    let owners = ["lead"];
    vec![
        (
            "lane.released",
            json!({ "lane": "member-1", "owners": owners, "unblocked": null, "by": "user:ada", "reason": null }),
        ),
        ("daemon.started", json!({ "version": "0.1.0", "adopting": 3 })),
        ("daemon.stopping", json!({})),
        ("later.invented", json!({ "how": "a\nb", "not": null, "much": 3 })),
    ]
}

fn all() -> Vec<EventInfo> {
    let about = |id, events: Vec<(&'static str, Value)>| events.into_iter().map(move |event| (id, event));
    let events = about(Some(TASK), of_tasks()).chain(about(Some(SESSION), of_sessions()));
    let events = events.chain(about(None, of_others()));
    (1..).zip(events).map(|(seq, (id, (kind, more)))| event(seq, kind, id, more)).collect()
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
    let all = all();
    let mut shown: Vec<&str> = all.iter().map(|event| event.kind.as_str()).collect();
    let mut types = EventInfo::TYPES.to_vec();
    for list in [&mut types, &mut shown] {
        list.sort_unstable();
        list.dedup();
    }
    shown.retain(|kind| *kind != "later.invented");
    assert_eq!(shown, types);
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
