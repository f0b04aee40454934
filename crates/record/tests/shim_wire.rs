//! What shims and daemons of protocol 1 said to each other, recorded: today's types must still understand every word of it,
//! because shims that were started by an older binary live as long as their tasks do. It decides nothing about what is
//! said next.

use std::collections::BTreeSet;

use belay_protocol::shim::{FromShim, LifeEvent, ToShim};
use belay_record::EndFile;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

const FROM_SHIM: &str = include_str!("shim-1/from.jsonl");
const TO_SHIM: &str = include_str!("shim-1/to.jsonl");
const END_FILE: &str = include_str!("shim-1/end.json");

/// Whether everything that was recorded is still said, under the same name; more may be. Nothing and null are the same.
fn keeps(recorded: &Value, today: &Value) -> bool {
    match (recorded, today) {
        (Value::Object(recorded), Value::Object(today)) => recorded
            .iter()
            .all(|(name, value)| today.get(name).map_or(value.is_null(), |today| keeps(value, today))),
        (Value::Array(recorded), Value::Array(today)) => {
            recorded.len() == today.len() && recorded.iter().zip(today).all(|(one, other)| keeps(one, other))
        }
        (recorded, today) => recorded == today,
    }
}

/// Reads a recorded text. A field that has another name today would be passed over in silence: it shows in what is said.
#[track_caller]
fn read<T: DeserializeOwned + Serialize>(text: &str) -> T {
    let read: T = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let recorded = serde_json::from_str(text).unwrap_or(Value::Null);
    let today = serde_json::to_value(&read).unwrap_or(Value::Null);
    assert!(keeps(&recorded, &today) && today != Value::Null, "recorded: {text}\ntoday: {today}");
    read
}

const fn to_name(said: &ToShim) -> &'static str {
    match said {
        ToShim::Hello { .. } => "hello",
        ToShim::Start(_) => "start",
        ToShim::Admit { .. } => "admit",
        ToShim::Stop { .. } => "stop",
        ToShim::Detach { .. } => "detach",
        ToShim::Write { .. } => "write",
        ToShim::Resize { .. } => "resize",
        ToShim::Signal { .. } => "signal",
        ToShim::Excuse { .. } => "excuse",
        ToShim::SetStall { .. } => "set_stall",
        ToShim::OverBudget { .. } => "over_budget",
        ToShim::Watch { .. } => "watch",
        ToShim::Query { .. } => "query",
        ToShim::Ack { .. } => "ack",
    }
}

const fn life_name(event: &LifeEvent) -> &'static str {
    match event {
        LifeEvent::Spawned { .. } => "spawned",
        LifeEvent::SpawnFailed { .. } => "spawn_failed",
        LifeEvent::LeaderExited { .. } => "leader_exited",
        LifeEvent::TreeEmpty => "tree_empty",
        LifeEvent::Detach { .. } => "detach",
        LifeEvent::Stop { .. } => "stop",
        LifeEvent::ClockRanOut { .. } => "clock_ran_out",
        LifeEvent::BudgetRanOut { .. } => "budget_ran_out",
        LifeEvent::Stalled { .. } => "stalled",
        LifeEvent::Recovered => "recovered",
        LifeEvent::StallSet { .. } => "stall_set",
        LifeEvent::Signalled { .. } => "signalled",
        LifeEvent::Survivors { .. } => "survivors",
        LifeEvent::ShimLost { .. } => "shim_lost",
    }
}

fn set<const N: usize>(names: [&'static str; N]) -> BTreeSet<&'static str> {
    BTreeSet::from(names)
}

// proves D6
#[test]
fn what_a_shim_of_protocol_1_says_is_understood() {
    let said: Vec<FromShim> = FROM_SHIM.lines().map(read).collect();
    // It speaks of room only when it is asked to, which nobody could do then.
    let names = ["hello", "ready", "life", "output", "memory", "now", "signalled", "written", "resized"];
    assert_eq!(said.iter().map(FromShim::name).collect::<BTreeSet<_>>(), set(names));
    let lives = said.iter().filter_map(|said| match said {
        FromShim::Life(item) => Some(life_name(&item.event)),
        _ => None,
    });
    // Whoever outlives SIGKILL could not be recorded, and of its own death no shim tells.
    let names = [
        "spawned",
        "spawn_failed",
        "leader_exited",
        "tree_empty",
        "detach",
        "stop",
        "clock_ran_out",
        "budget_ran_out",
        "stalled",
        "recovered",
        "signalled",
    ];
    assert_eq!(lives.collect::<BTreeSet<_>>(), set(names));
}

// proves D6
#[test]
fn what_a_shim_of_protocol_1_understands_is_said_in_its_words() {
    let said: Vec<ToShim> = TO_SHIM.lines().map(read).collect();
    let names = [
        "hello",
        "start",
        "admit",
        "stop",
        "detach",
        "write",
        "resize",
        "signal",
        "excuse",
        "over_budget",
        "watch",
        "query",
        "ack",
    ];
    assert_eq!(said.iter().map(to_name).collect::<BTreeSet<_>>(), set(names));
}

// proves D6
#[test]
fn the_end_file_of_a_shim_of_protocol_1_is_read() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("end.json"), END_FILE).unwrap();
    let file = EndFile::read(dir.path()).unwrap().unwrap();
    assert_eq!(file, read::<EndFile>(END_FILE));
    let numbers: Vec<u64> = file.life.iter().map(|item| item.number).collect();
    assert_eq!((file.task.as_str(), numbers.as_slice()), ("sh-7", &[1, 2, 3][..]));
    assert_eq!(file.life.iter().filter(|item| item.end.is_some()).count(), 1);
}
