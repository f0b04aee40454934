//! Stops of several tasks in one call: each receipt comes by itself, and no reply grows with the number of tasks.

use std::collections::{BTreeMap, BTreeSet};

use belay_protocol::ErrorKind;
use belay_protocol::methods::{Notification, SessionOpen, TaskStart, TaskStopMany};
use belay_protocol::session::SessionOpenParams;
use belay_protocol::task::{
    StopCounts, StopVerdict, TaskStartParams, TaskStatus, TaskStopManyParams, TaskStopResult,
};
use belay_testkit::{LONG, wait_until};
use serde_json::json;

use crate::raw::Raw;
use crate::support::{FOREVER, refused, world};

// proves K1, K4
#[test]
fn stop_of_several_ids_returns_receipt_for_each() {
    let world = world();
    let mut client = world.client();
    let mut start = |name: Option<&str>, argv: &[&str]| {
        let params = TaskStartParams { name: name.map(str::to_owned), ..world.start_params(argv) };
        client.call::<TaskStart>(&params).unwrap().id
    };
    let stubborn = start(None, &["sh", "-c", &format!("trap '' TERM; sleep {FOREVER} & wait; wait")]);
    let named = start(Some("web"), &["sleep", FOREVER]);
    let twins = [start(Some("twin"), &["sleep", FOREVER]), start(Some("twin"), &["sleep", FOREVER])];
    let ended = start(None, &["true"]);
    world.wait_ended(&ended);

    let ids = [stubborn.as_str(), "web", &named, "twin", &ended, "sh-nothing", "nobody"];
    let params = TaskStopManyParams {
        ids: ids.map(str::to_owned).to_vec(),
        grace_ms: Some(200),
        reason: Some("enough".to_owned()),
        ..TaskStopManyParams::default()
    };
    let mut receipts: Vec<TaskStopResult> = Vec::new();
    let result = world
        .client()
        .call_with_parts::<TaskStopMany>(&params, |part| {
            let Notification::TaskStopped(part) = part else { panic!("{part:?}") };
            receipts.push(part.result);
        })
        .unwrap();
    // One task under two names is two answers about one task.
    let counts = StopCounts { tasks: 7, stopped: 2, already_ended: 1, failed: 0, refused: 3 };
    let seen: BTreeMap<&str, StopVerdict> =
        receipts.iter().map(|stopped| (stopped.id.as_str(), stopped.result)).collect();
    let expected = BTreeMap::from([
        (stubborn.as_str(), StopVerdict::Accepted),
        (named.as_str(), StopVerdict::Accepted),
        ("twin", StopVerdict::Ambiguous),
        (ended.as_str(), StopVerdict::AlreadyEnded),
        ("sh-nothing", StopVerdict::NotFound),
        ("nobody", StopVerdict::NotFound),
    ]);
    assert_eq!(seen, expected);
    assert_eq!(result.counts, StopCounts { tasks: receipts.len() as u64, ..counts });
    for stopped in receipts.iter().filter(|stopped| stopped.result == StopVerdict::Accepted) {
        let receipt = stopped.receipt.as_ref().unwrap();
        assert!(receipt.empty_at.is_some() && receipt.survivors.is_empty(), "{receipt:?}");
        assert_eq!(receipt.reason.as_deref(), Some("enough"));
        assert_eq!(world.get(&stopped.id).status, TaskStatus::Cancelled);
    }
    for twin in twins {
        assert_eq!(world.get(&twin).status, TaskStatus::Running);
    }
    let none = refused(client.call::<TaskStopMany>(&TaskStopManyParams::default()));
    assert_eq!((none.data.kind, none.data.field.as_deref()), (ErrorKind::Invalid, Some("ids")));
}

// proves X3
#[test]
fn receipts_of_many_stops_wait_for_slow_reader() {
    const TASKS: usize = 600;
    let world = world();
    let mut client = world.client();
    let session = client.call::<SessionOpen>(&SessionOpenParams::default()).unwrap().session.id;
    let params =
        TaskStartParams { session: Some(session.clone()), ..world.start_params(&["sleep", FOREVER]) };
    let started: BTreeSet<String> =
        (0..TASKS).map(|_| client.call::<TaskStart>(&params).unwrap().id).collect();

    let mut raw = Raw::greeted(&world);
    // Together, the receipts are larger than what the daemon keeps for a client that does not read.
    let close = json!({ "id": session, "reason": "x".repeat(2_000) });
    let line = json!({ "jsonrpc": "2.0", "id": 1, "method": "session/close", "params": close });
    raw.send(format!("{line}\n").as_bytes());
    wait_until("all tasks to be stopped", LONG, || match world.status().tasks_live {
        0 => Ok(()),
        live => Err(live.to_string()),
    });
    let mut stopped = BTreeSet::new();
    loop {
        let message = raw.hear();
        assert!(message.to_string().len() < 16 * 1024, "no message grows with the number of tasks");
        if message["id"] == 1 {
            let counts =
                json!({ "tasks": TASKS, "stopped": TASKS, "already_ended": 0, "failed": 0, "refused": 0 });
            assert_eq!(message["result"]["counts"], counts);
            break;
        }
        assert_eq!((&message["method"], &message["params"]["request"]), (&json!("task/stopped"), &json!(1)));
        let result = &message["params"]["result"];
        assert_eq!(result["receipt"]["survivors"], json!([]));
        assert!(stopped.insert(result["id"].as_str().unwrap().to_owned()));
    }
    assert_eq!(stopped, started);
}
