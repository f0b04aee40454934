//! A client that has said all it wants to and closes its writing side, as `nc -N` does: it gets what it was promised, and is let
//! go. One that closes altogether is noticed, whatever it did before.

use std::net::Shutdown;

use belay_protocol::task::{AnswerWhen, OnDisconnect, StartFollowParams, TaskStartParams, TaskStatus};
use belay_testkit::World;
use serde_json::{Value, json};

use crate::raw::Raw;
use crate::support::{FOREVER, running, world};

/// Asks all of this, and says that it was all.
pub(crate) fn ask_and_finish(world: &World, asked: &[(&str, Value)]) -> Raw {
    let mut raw = Raw::greeted(world);
    for (number, (method, params)) in (1..).zip(asked) {
        let line = json!({ "jsonrpc": "2.0", "id": number, "method": method, "params": params });
        raw.send(format!("{line}\n").as_bytes());
    }
    raw.stream().shutdown(Shutdown::Write).unwrap();
    raw
}

/// What is said until the daemon closes the connection.
fn all_of(raw: Raw) -> Vec<Value> {
    raw.last_words().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

// proves D7
#[test]
fn whoever_says_no_more_gets_every_answer_and_is_let_go() {
    let world = world();
    let go = world.dir().join("go");
    let script = format!("until [ -e {} ]; do sleep 0.01; done; exit 7", go.display());
    let id = world.run_detached(["sh", "-c", &script]);
    let asked =
        [("task/wait", json!({ "id": id })), ("task/list", json!({})), ("task/get", json!({ "id": id }))];
    let mut raw = ask_and_finish(&world, &asked);
    let [list, task] = [raw.hear(), raw.hear()];
    assert_eq!((&list["id"], &list["result"]["tasks"][0]["id"]), (&json!(2), &json!(id)));
    assert_eq!((&task["id"], &task["result"]["status"]), (&json!(3), &json!("running")));
    std::fs::write(&go, "").unwrap();
    let [waited] = all_of(raw).try_into().unwrap();
    assert_eq!((&waited["id"], &waited["result"]["task"]["outcome"]["exit_code"]), (&json!(1), &json!(7)));
    // With nothing left to be told, at once.
    assert_eq!(all_of(ask_and_finish(&world, &[])), Vec::<Value>::new());
}

// proves D7, O1
#[test]
fn output_that_was_asked_for_with_the_end_comes_before_it() {
    let world = world();
    let params = TaskStartParams {
        detached: false,
        answer: AnswerWhen::Ended,
        follow: Some(StartFollowParams::default()),
        ..world.start_params(&["sh", "-c", "echo first; sleep 0.1; head -c 3000000 /dev/zero; exit 3"])
    };
    let said = all_of(ask_and_finish(&world, &[("task/start", serde_json::to_value(params).unwrap())]));
    let ended = said.last().unwrap();
    assert_eq!((&ended["id"], &ended["result"]["outcome"]["exit_code"]), (&json!(1), &json!(3)));
    assert_eq!(ended["result"]["output"]["bytes"], 3_000_006);
    assert_eq!(said[said.len() - 2]["method"], "output/end");
}

// proves F7, D7
#[test]
fn whoever_has_said_all_and_then_leaves_is_noticed() {
    let world = world();
    let params = TaskStartParams {
        detached: false,
        answer: AnswerWhen::Ended,
        on_disconnect: OnDisconnect::Stop,
        ..world.start_params(&["sleep", FOREVER])
    };
    let raw = ask_and_finish(&world, &[("task/start", serde_json::to_value(params).unwrap())]);
    let task = running(&world);
    assert!(!task.detached, "somebody waits for it");
    drop(raw);
    let ended = world.wait_ended(&task.id);
    assert_eq!((ended.status, ended.outcome.unwrap().actor()), (TaskStatus::Cancelled, Some("disconnect")));
}
