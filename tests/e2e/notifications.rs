//! Notifications of the daemon: each names the call it belongs to, and the calls of one connection do not disturb each other.

use std::collections::BTreeMap;

use belay_client::Client;
use belay_protocol::ErrorKind;
use belay_protocol::lane::{LaneMode, LaneParams};
use belay_protocol::methods::{SessionOpen, TaskStart, TaskStop, TaskWait};
use belay_protocol::session::SessionOpenParams;
use belay_protocol::task::{
    StopFence, TaskStartParams, TaskStatus, TaskStopParams, TaskWaitParams, WaitMet, WaitUntil,
};
use belay_testkit::{LONG, World, wait_until};
use serde_json::{Value, json};

use crate::raw::Raw;
use crate::support::{FOREVER, refused, stop_of, world};

fn start(world: &World, line: &str, more: &Value) -> Value {
    let mut params = json!({
        "spec": { "kind": "shell", "command": { "kind": "line", "line": line } },
        "cwd": "/",
        "env": [format!("BELAY_HOME={}", world.marker()), "PATH=/usr/bin:/bin"],
    });
    params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    params
}

fn send(raw: &mut Raw, id: &Value, method: &str, params: &Value) {
    let message = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
    raw.send(format!("{message}\n").as_bytes());
}

/// The messages of each call, in the order in which they came, until so many calls are answered.
fn messages_by_request(raw: &mut Raw, calls: usize) -> BTreeMap<String, Vec<Value>> {
    let mut all: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    let mut answered = 0;
    while answered < calls {
        let message = raw.hear();
        answered += usize::from(message.get("id").is_some());
        let request = message.get("id").unwrap_or(&message["params"]["request"]);
        all.entry(request.as_str().unwrap().to_owned()).or_default().push(message);
    }
    all
}

// proves E2, E5, O1
#[test]
fn concurrent_foreground_starts_are_told_apart() {
    const CALLS: usize = 20;
    let world = world();
    let mut raw = Raw::greeted(&world);
    for n in 0..CALLS {
        let more = json!({ "answer": "ended", "follow": { "text": true } });
        let params = start(&world, &format!("echo said {n}"), &more);
        send(&mut raw, &json!(format!("call-{n}")), "task/start", &params);
    }
    let all = messages_by_request(&mut raw, CALLS);
    assert_eq!(all.len(), CALLS);
    for (request, messages) in all {
        let n = request.strip_prefix("call-").unwrap();
        let methods: Vec<&str> =
            messages.iter().map(|message| message["method"].as_str().unwrap_or("result")).collect();
        assert_eq!(methods, ["task/started", "output/chunk", "output/end", "result"], "{request}");
        let id = &messages[0]["params"]["task"]["id"];
        assert_eq!(messages[1]["params"]["chunks"][0]["text"], format!("said {n}\n"));
        assert_eq!([&messages[1]["params"]["id"], &messages[2]["params"]["id"]], [id, id]);
        assert_eq!(messages[3]["result"]["id"], *id);
        assert_eq!(messages[3]["result"]["status"], "completed");
    }
}

// proves E2, O5
#[test]
fn command_that_cannot_start_is_announced_before_its_end() {
    let world = world();
    let mut raw = Raw::greeted(&world);
    let spec = json!({ "kind": "shell", "command": { "kind": "argv", "argv": ["/no/such/program"] } });
    let params =
        start(&world, "", &json!({ "spec": spec, "answer": "ended", "follow": {}, "token": "once" }));
    for request in ["first", "again"] {
        send(&mut raw, &json!(request), "task/start", &params);
        let messages = messages_by_request(&mut raw, 1).remove(request).unwrap();
        let methods: Vec<&str> =
            messages.iter().map(|message| message["method"].as_str().unwrap_or("result")).collect();
        assert_eq!(methods, ["task/started", "output/end", "result"], "{request}");
        assert_eq!(messages[2]["result"]["outcome"]["kind"], "spawn");
    }
}

// proves E5, W4
#[test]
fn one_connection_has_several_event_subscriptions() {
    let world = world();
    let mut raw = Raw::greeted(&world);
    let follow = |raw: &mut Raw, request: &str, kind: &str| {
        let params = json!({ "only": { "types": [kind] } });
        send(raw, &json!(request), "event/follow", &params);
        let answer = raw.hear();
        assert_eq!(answer["id"], request, "{answer}");
        answer["result"]["follow"].clone()
    };
    let ended = follow(&mut raw, "ends", "task.ended");
    let created = follow(&mut raw, "creations", "task.created");
    let id = world.run_detached(["true"]);
    let mut items = BTreeMap::new();
    for _ in 0..2 {
        let item = raw.hear();
        assert_eq!((&item["method"], &item["params"]["event"]["task"]), (&json!("event/item"), &json!(id)));
        let params = &item["params"];
        items.insert(params["request"].as_str().unwrap().to_owned(), params.clone());
    }
    assert_eq!([&items["ends"]["follow"], &items["creations"]["follow"]], [&ended, &created]);
    assert_eq!(items["ends"]["event"]["type"], "task.ended");
    assert_eq!(items["creations"]["event"]["type"], "task.created");

    assert_eq!(raw.call("event/unfollow", &json!({ "follow": ended }))["result"], json!({ "ended": 1 }));
    let error = &raw.call("event/unfollow", &json!({ "follow": ended }))["error"];
    assert_eq!([&error["data"]["kind"], &error["data"]["field"]], ["not_found", "follow"]);
    for _ in 0..2 {
        let id = world.run_detached(["true"]);
        world.wait_ended(&id);
        let item = raw.hear();
        assert_eq!(
            [&item["params"]["request"], &item["params"]["event"]["task"]],
            ["creations", id.as_str()]
        );
    }
}

// proves O1, E5
#[test]
fn output_subscription_ends_alone_by_its_number() {
    let world = world();
    let gate = world.dir().join("gate");
    world.shell(&format!("mkfifo {}", gate.display())).ok();
    let script = "echo one; read -r _ < \"$0\"; echo two";
    let id = world.run_detached(["sh", "-c", script, gate.to_str().unwrap()]);
    world.wait_for_output(&id, "the first line", |said| said == b"one\n");
    let mut raw = Raw::greeted(&world);
    let mut numbers = Vec::new();
    for request in ["a", "b"] {
        send(&mut raw, &json!(request), "output/follow", &json!({ "id": id, "text": true }));
        let answer = raw.hear();
        numbers.push(answer["result"]["follow"].clone());
        let chunk = raw.hear();
        assert_eq!([&chunk["params"]["request"], &chunk["params"]["chunks"][0]["text"]], [request, "one\n"]);
    }
    let answer = raw.call("output/unfollow", &json!({ "follow": numbers[0] }));
    assert_eq!(answer["result"], json!({ "ended": 1 }));
    std::fs::write(&gate, "go\n").unwrap();
    let (chunk, end) = (raw.hear(), raw.hear());
    assert_eq!([&chunk["params"]["request"], &chunk["params"]["chunks"][0]["text"]], ["b", "two\n"]);
    assert_eq!([&end["method"], &end["params"]["request"]], ["output/end", "b"]);
    for (params, field) in [
        (json!({}), "follow"),
        (json!({ "id": id, "follow": 1 }), "id"),
        (json!({ "follow": numbers[0] }), "follow"),
    ] {
        let error = &raw.call("output/unfollow", &params)["error"];
        assert_eq!(error["data"]["field"], field, "{params}: {error}");
    }
}

// proves W1, L2
#[test]
fn wait_for_start_returns_when_queued_task_starts() {
    let world = world();
    let lane = |mode| Some(LaneParams { name: "seat".to_owned(), mode, generation: None });
    let start = |mode| TaskStartParams { lane: lane(mode), ..world.start_params(&["sleep", FOREVER]) };
    let mut client = world.client();
    let holder = client.call::<TaskStart>(&start(LaneMode::Reject)).unwrap();
    let queued = client.call::<TaskStart>(&start(LaneMode::Queue)).unwrap();
    let until = |id: &str, until, timeout_ms| TaskWaitParams {
        until,
        timeout_ms: Some(timeout_ms),
        ..TaskWaitParams::for_end(id)
    };
    let soon = client.call::<TaskWait>(&until(&queued.id, WaitUntil::Started, 50)).unwrap();
    assert_eq!(soon.met, WaitMet::Timeout);
    let wait = client.send::<TaskWait>(&until(&queued.id, WaitUntil::Started, 60_000)).unwrap();
    world.client().call::<TaskStop>(&stop_of(&holder.id)).unwrap();
    let belay_client::Message::Response(answer) = client.receive().unwrap() else { panic!("no answer") };
    assert_eq!(answer.id, wait);
    let met = belay_client::decode::<TaskWait>(&answer.result.unwrap()).unwrap();
    assert_eq!((met.met, met.task.pid.is_some()), (WaitMet::Started, true));
    let at_once = client.call::<TaskWait>(&until(&queued.id, WaitUntil::Started, 60_000)).unwrap();
    assert_eq!(at_once.met, WaitMet::Started);
    for of_agents in [WaitUntil::Turn, WaitUntil::InputNeeded] {
        let error = refused(client.call::<TaskWait>(&until(&queued.id, of_agents, 1)));
        assert_eq!((error.data.kind, error.data.field.as_deref()), (ErrorKind::Invalid, Some("until")));
    }
    world.stop(&stop_of(&queued.id));
    let said = world.belay(["wait", "--started", &queued.id]);
    assert_eq!(said.code, Some(1), "{said}");
}

// proves X2
#[test]
fn null_is_absent_and_agents_are_refused_by_name() {
    let world = world();
    let mut raw = Raw::greeted(&world);
    let nulls = json!({ "name": null, "timeout_ms": null, "on_disconnect": null, "lane": null, "follow": null,
        "detached": true, "stall": null, "set_env": null, "rlimits": null, "answer": null });
    let answer = raw.call("task/start", &start(&world, "true", &nulls));
    assert_eq!(answer["result"]["kind"], "shell", "{answer}");
    let agent = json!({ "spec": { "kind": "agent", "agent": "claude" } });
    let error = &raw.call("task/start", &start(&world, "", &agent))["error"];
    assert_eq!([&error["data"]["kind"], &error["data"]["field"]], ["unsupported", "spec"]);
    let unknown = json!({ "spec": { "kind": "robot" } });
    let error = &raw.call("task/start", &start(&world, "", &unknown))["error"];
    assert_eq!(error["message"], "kind: expected `shell` or `agent`, got `robot`");
}

/// The answers to these calls, by id.
fn answers(raw: &mut Raw, calls: usize) -> BTreeMap<String, Value> {
    let all = messages_by_request(raw, calls).into_iter();
    all.filter_map(|(id, messages)| {
        Some((id, messages.into_iter().find(|message| message.get("id").is_some())?))
    })
    .collect()
}

// proves E5, W2
#[test]
fn cancelled_call_fails_alone_and_its_task_goes_on() {
    let world = world();
    let mut raw = Raw::greeted(&world);
    let ids: Vec<String> = (0..3).map(|_| world.run_detached(["sleep", FOREVER])).collect();
    for id in &ids {
        send(&mut raw, &json!(id), "task/wait", &json!({ "id": id }));
    }
    send(&mut raw, &json!("cancel"), "call/cancel", &json!({ "request": ids[1] }));
    let first = answers(&mut raw, 2);
    assert_eq!(first["cancel"]["result"], json!({ "cancelled": true }));
    assert_eq!(first[&ids[1]]["error"]["data"]["kind"], "cancelled");
    send(&mut raw, &json!("again"), "call/cancel", &json!({ "request": ids[1] }));
    assert_eq!(answers(&mut raw, 1)["again"]["result"], json!({ "cancelled": false }));
    for id in &ids {
        assert_eq!(world.get(id).status, TaskStatus::Running);
        world.stop(&stop_of(id));
    }
    let rest = answers(&mut raw, 2);
    assert_eq!(rest[&ids[0]]["result"]["met"], "ended");
    assert_eq!(rest[&ids[2]]["result"]["met"], "ended");
}

// proves E5, D7
#[test]
fn cancelled_foreground_start_follows_disconnect_policy() {
    let world = world();
    let mut raw = Raw::greeted(&world);
    for (policy, status, detached_by) in
        [("detach", TaskStatus::Running, Some("disconnect")), ("stop", TaskStatus::Cancelled, None)]
    {
        let more = json!({ "answer": "ended", "follow": {}, "on_disconnect": policy });
        send(&mut raw, &json!("start"), "task/start", &start(&world, &format!("sleep {FOREVER}"), &more));
        let started = raw.hear();
        assert_eq!(started["method"], "task/started");
        let id = started["params"]["task"]["id"].as_str().unwrap().to_owned();
        send(&mut raw, &json!("cancel"), "call/cancel", &json!({ "request": "start" }));
        let said = answers(&mut raw, 2);
        assert_eq!(said["start"]["error"]["data"]["kind"], "cancelled");
        wait_until("the policy", LONG, || {
            let task = world.get(&id);
            let by = task.detached_by.as_ref().map(|by| by.as_str().to_owned());
            if (task.status, by.as_deref()) == (status, detached_by) {
                Ok(())
            } else {
                Err(format!("{task:?}"))
            }
        });
    }
}

// proves E5
#[test]
fn cancelled_start_gets_no_more_output() {
    let world = world();
    let mut raw = Raw::greeted(&world);
    let line = format!(
        "echo one; while [ ! -e {0} ]; do sleep 0.02; done; echo two",
        world.dir().join("go").display()
    );
    let more = json!({ "answer": "ended", "follow": {}, "on_disconnect": "detach" });
    send(&mut raw, &json!("start"), "task/start", &start(&world, &line, &more));
    let (started, chunk) = (raw.hear(), raw.hear());
    assert_eq!([&started["method"], &chunk["method"]], ["task/started", "output/chunk"]);
    let id = started["params"]["task"]["id"].as_str().unwrap().to_owned();
    send(&mut raw, &json!("cancel"), "call/cancel", &json!({ "request": "start" }));
    assert_eq!(answers(&mut raw, 2)["cancel"]["result"], json!({ "cancelled": true }));
    std::fs::write(world.dir().join("go"), "").unwrap();
    world.wait_ended(&id);
    assert_eq!(world.logs(&id), b"one\ntwo\n");
    // The next message is the answer to the next call: nothing came between.
    assert_eq!(raw.call("task/get", &json!({ "id": id }))["result"]["status"], "completed");
}

// proves L5
#[test]
fn stop_fences_as_it_is_told_and_identity_stays() {
    let world = world();
    let mut person = world.client();
    let opened = person.call::<SessionOpen>(&SessionOpenParams::default()).unwrap();
    let owner = opened.session.id.clone();
    let seat = |generation| Some(LaneParams { name: "seat".to_owned(), mode: LaneMode::Reject, generation });
    let held = |session: &mut Client, generation| {
        let params = TaskStartParams { lane: seat(generation), ..world.start_params(&["sleep", FOREVER]) };
        session.call::<TaskStart>(&params)
    };
    let mut session = world.client_as(&opened.token);
    let stop = |id: &str, fence| TaskStopParams { fence, ..stop_of(id) };
    for (fence, by_owner, is_fenced) in [
        (StopFence::No, false, false),
        (StopFence::Auto, true, false),
        (StopFence::Yes, true, true),
        // The person has opened the session, and is another owner all the same.
        (StopFence::Auto, false, true),
    ] {
        let task = held(&mut session, None).unwrap();
        let stopper = if by_owner { &mut session } else { &mut person };
        let stopped = stopper.call::<TaskStop>(&stop(&task.id, fence)).unwrap();
        assert_eq!(stopped.fenced.map(|fence| fence.owner), is_fenced.then(|| owner.clone()), "{fence:?}");
        if is_fenced {
            assert_eq!(refused(held(&mut session, None)).data.kind, ErrorKind::Fenced);
            world.belay(["lanes", "release", "seat"]).ok();
        }
    }
    let task = held(&mut session, None).unwrap();
    let generation = task.lane.unwrap().generation.unwrap();
    session.call::<TaskStop>(&stop_of(&task.id)).unwrap();
    let other =
        person.call::<TaskStart>(&TaskStartParams { lane: seat(None), ..world.start_params(&["true"]) });
    world.wait_ended(&other.unwrap().id);
    let error = refused(held(&mut session, Some(generation)));
    assert_eq!((error.data.kind, error.data.field.as_deref()), (ErrorKind::Stale, Some("lane")));
    assert_eq!(
        error.message,
        format!("generation {generation} of lane seat is outdated: the lane has had another holder since")
    );
}
