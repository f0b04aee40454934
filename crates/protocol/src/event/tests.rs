//! Every event type: its tag, its round trip, its schema, and the patterns that select it.

use serde_json::{Value, json};

use super::*;
use crate::life::{ClockName, SurvivorInfo};
use crate::methods::Call;

/// One event of each type. The match makes sure that a new type gets one.
fn sample(kind: EventKind) -> Event {
    let (task, session, lane) = ("sh-1".to_owned(), "se-1".to_owned(), "build".to_owned());
    let by = "user:ada".to_owned();
    match kind {
        EventKind::TaskCreated => {
            let (command, name, parent) = ("make".to_owned(), None, Some("sh-0".to_owned()));
            Event::TaskCreated { task, session, command, name, parent, found: None }
        }
        EventKind::TaskStarted => Event::TaskStarted { task, session, pid: 7, attempt: Some(2) },
        EventKind::TaskLeaderExited => Event::TaskLeaderExited {
            task,
            session,
            exit: ExitStatus::Signal { number: 9, core_dumped: false },
        },
        EventKind::TaskAttemptEnded => {
            Event::TaskAttemptEnded { task, session, exit: ExitStatus::Code(1), attempt: 1, next_ms: 500 }
        }
        EventKind::TaskStalled => {
            let evidence =
                StallEvidence { silent_ms: 1, cpu_ms: 2, output_bytes: 3, processes: Vec::new(), more: 0 };
            Event::TaskStalled { task, session, since: Timestamp(0), evidence, policy: Some(OnStall::Stop) }
        }
        EventKind::TaskRecovered => Event::TaskRecovered { task, session },
        EventKind::TaskStallSet => {
            let stall = Some(StallParams { after_ms: 500, policy: OnStall::Stop });
            Event::TaskStallSet { task, session, stall }
        }
        EventKind::TaskDetached => Event::TaskDetached { task, session, by: DetachedBy::Leader },
        EventKind::TaskSignalled => Event::TaskSignalled { task, session, signal: "SIGINT".to_owned(), by },
        EventKind::TaskStopping => {
            let cause = StopCause::Clock { clock: ClockName::Ttl, limit_ms: 9, reason: None };
            Event::TaskStopping { task, session, level: StopLevel::Terminate, cause }
        }
        EventKind::TaskEnded => {
            let survivor = SurvivorInfo { pid: 7, start_ticks: 8, uid: 0, command: "sleep".to_owned() };
            let outcome =
                Outcome::Lost { reason: "no shim".to_owned(), survivors: vec![survivor], capture: None };
            Event::TaskEnded { task, session, status: TaskStatus::Lost, outcome: Some(outcome) }
        }
        EventKind::TaskRemoved => Event::TaskRemoved { task, session },
        EventKind::TaskAdopted => Event::TaskAdopted { task, session },
        EventKind::SessionOpened => Event::SessionOpened { session, name: None, parent: None, by },
        EventKind::SessionBusy => {
            Event::SessionBusy { session, counts: SessionCounts { shells: 1, ..SessionCounts::default() } }
        }
        EventKind::SessionDrained => Event::SessionDrained { session, counts: SessionCounts::default() },
        EventKind::SessionLapsed => Event::SessionLapsed { session, grace_ms: 30 },
        EventKind::SessionRegained => Event::SessionRegained { session },
        EventKind::SessionEnding => {
            Event::SessionEnding { session, by: Some(by), reason: None, on_end: OnSessionEnd::Keep }
        }
        EventKind::SessionEnded => Event::SessionEnded { session, by: Some(by), reason: None },
        EventKind::LaneQueued => Event::LaneQueued { task, session, lane, place: Some(1), owner: None },
        EventKind::LaneGranted => Event::LaneGranted { task, session, lane, generation: 4, owner: None },
        EventKind::LaneLeft => Event::LaneLeft { task, session, lane, generation: Some(4), blocked: None },
        EventKind::LaneFenced => {
            let owner = "lead".to_owned();
            Event::LaneFenced { task, session, lane, owner, generation: 4, by, reason: None }
        }
        EventKind::LaneReleased => {
            Event::LaneReleased { lane, owners: vec!["lead".to_owned()], unblocked: None, by, reason: None }
        }
        EventKind::DaemonStarted => Event::DaemonStarted { version: "0.1.0".to_owned(), adopting: 3 },
        EventKind::DaemonStopping => Event::DaemonStopping,
        EventKind::Lost => Event::Lost,
    }
}

// proves E1
#[test]
fn event_round_trip_keeps_json_and_tag() {
    for kind in EventKind::ALL {
        let info = EventInfo { seq: 3, at: Timestamp(1_000), event: sample(*kind) };
        assert_eq!(info.event.kind(), *kind);
        let value = serde_json::to_value(&info).unwrap();
        assert_eq!(value["type"], kind.name());
        assert_eq!(value.get("task").and_then(Value::as_str), info.event.task());
        assert_eq!(value.get("session").and_then(Value::as_str), info.event.session());
        let back: EventInfo = serde_json::from_value(value.clone()).unwrap();
        assert_eq!(back, info);
        assert_eq!(serde_json::to_value(&back).unwrap(), value);
    }
}

// proves E1
#[test]
fn event_schema_lists_every_kind() {
    let schema = schemars::schema_for!(Event);
    let variants = schema.get("oneOf").and_then(Value::as_array).unwrap();
    let mut tags: Vec<&str> =
        variants.iter().map(|variant| variant["properties"]["type"]["const"].as_str().unwrap()).collect();
    let mut kinds: Vec<&str> = EventKind::ALL.iter().map(|kind| kind.name()).collect();
    tags.sort_unstable();
    kinds.sort_unstable();
    assert_eq!(tags, kinds);
}

#[test]
fn unknown_event_type_reads_as_lost() {
    let newer =
        json!({ "seq": 9, "at": Timestamp(1_000), "type": "task.invented", "task": "sh-1", "how": 3 });
    let read: EventInfo = serde_json::from_value(newer).unwrap();
    assert_eq!((read.seq, read.event), (9, Event::Lost));
    // A known type with fields missing is an error, not a lost event.
    let broken = json!({ "seq": 9, "at": Timestamp(1_000), "type": "task.started", "task": "sh-1" });
    serde_json::from_value::<EventInfo>(broken).unwrap_err();
}

#[test]
fn pattern_matches_its_kind_or_group() {
    let matching = |text: &str| {
        let pattern: EventTypePattern = text.parse().unwrap();
        assert_eq!(serde_json::to_value(pattern).unwrap(), text);
        EventKind::ALL
            .iter()
            .filter(|kind| pattern.matches(**kind))
            .map(|kind| kind.name())
            .collect::<Vec<_>>()
    };
    for kind in EventKind::ALL {
        assert_eq!(matching(kind.name()), [kind.name()]);
        assert_eq!(EventKind::from_name(kind.name()), Some(*kind));
    }
    for group in EventGroup::ALL {
        let prefix = group.pattern().trim_end_matches('*');
        let begun: Vec<&str> =
            EventKind::ALL.iter().map(|kind| kind.name()).filter(|name| name.starts_with(prefix)).collect();
        assert!(!begun.is_empty());
        assert_eq!(matching(group.pattern()), begun);
    }
}

#[test]
fn unknown_pattern_names_field_and_hint() {
    for odd in ["task ended", "task.endd", "tasks.*", "*", "", "lost.*", "task.*\u{7}", "a\") at (hint: b"] {
        assert!(odd.parse::<EventTypePattern>().is_err());
        let params = json!({ "after": 3, "only": { "session": "se-1", "types": ["task.*", odd] } });
        let raw = serde_json::value::to_raw_value(&params).unwrap();
        let error = Call::parse("event/read", Some(&raw)).unwrap_err();
        assert_eq!(error.data.field.as_deref(), Some("types"), "{error}");
        assert!(error.message.starts_with("there is no type of event "), "{error}");
        assert!(
            error.data.hint.unwrap().ends_with(EventTypePattern::HINT),
            "{error:?}",
            error = error.message
        );
    }
}
