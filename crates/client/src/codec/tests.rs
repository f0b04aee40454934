//! The codec against a model of the daemon: bytes cut anywhere, replies and notifications interleaved in any order, and
//! connections lost at any point. Each reply is delivered once, output and events exactly once and in order.

mod model;

use std::time::{Duration, Instant};

use belay_protocol::event::EventFollowParams;
use belay_protocol::methods::{
    EventFollow, Method, Notification, OutputFollow, SessionOpen, TaskGet, TaskSignal, TaskStart, TaskWait,
};
use belay_protocol::output::{OutputFollowParams, OutputFrom};
use belay_protocol::session::{SessionHold, SessionOpenParams};
use belay_protocol::task::{
    AnswerWhen, ShellCommand, StartFollowParams, TaskGetParams, TaskSignalParams, TaskStartParams,
    TaskWaitParams,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use self::model::World;
use super::Codec;
use crate::error::ClientError;
use crate::message::Message;
use crate::request::{Ids, Request};

pub(super) fn submit<M: Method>(codec: &mut Codec, params: &M::Params, now: Instant) -> i64 {
    let id = codec.ids().take();
    let request = Request::new::<M>(id, params, Vec::new(), codec.resumes()).unwrap();
    codec.submit(request, now);
    id
}

pub(super) fn start_params() -> TaskStartParams {
    TaskStartParams {
        answer: AnswerWhen::Ended,
        follow: Some(StartFollowParams::default()),
        ..TaskStartParams::new(ShellCommand::argv(["true"]), "/")
    }
}

/// Everything that the codec has to write, as messages.
fn written(codec: &mut Codec) -> Vec<Value> {
    let mut lines = Vec::new();
    while let Some(frame) = codec.frame() {
        let (line, length) = (serde_json::from_slice(frame.bytes).unwrap(), frame.bytes.len());
        lines.push(line);
        codec.wrote(length);
    }
    lines
}

fn receive(codec: &mut Codec, message: &Value) {
    codec.room().unwrap().extend_from_slice(format!("{message}\n").as_bytes());
}

fn reply(id: i64, result: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "result": result})
}

fn resuming() -> Codec {
    Codec::new(Ids::default(), true)
}

fn reconnect(codec: &mut Codec, now: Instant) -> Vec<Value> {
    codec.disconnected(ClientError::Closed).unwrap();
    codec.connected(now).unwrap();
    written(codec)
}

#[test]
fn repeated_wait_keeps_its_deadline() {
    let (mut codec, now) = (resuming(), Instant::now());
    let params = TaskWaitParams { timeout_ms: Some(5_000), ..TaskWaitParams::for_end("sh-1") };
    submit::<TaskWait>(&mut codec, &params, now);
    assert_eq!(written(&mut codec)[0]["params"]["timeout_ms"], 5_000);
    let again = reconnect(&mut codec, now + Duration::from_millis(1_200));
    assert_eq!((again.len(), &again[0]["params"]["timeout_ms"]), (1, &3_800.into()));
    let again = reconnect(&mut codec, now + Duration::from_secs(9));
    assert_eq!(again[0]["params"]["timeout_ms"], 0);
}

#[test]
fn repeated_start_has_its_token_and_position() {
    let (mut codec, now) = (resuming(), Instant::now());
    let id = submit::<TaskStart>(&mut codec, &start_params(), now);
    let first = written(&mut codec).remove(0);
    let token = first["params"]["token"].as_str().unwrap().to_owned();
    receive(&mut codec, &model::chunk(id, 1, 0, b"abc"));
    assert!(matches!(codec.next(), Ok(Some(Message::Notification(Notification::OutputChunk(_))))));
    let again = reconnect(&mut codec, now);
    assert_eq!(again[0]["params"]["token"], token);
    assert_eq!(again[0]["params"]["follow"]["from"], 3);
    // A start whose output is not wanted any more is repeated without it.
    codec.unsubscribe(id);
    assert_eq!(reconnect(&mut codec, now)[0]["params"].get("follow"), None);
}

#[test]
fn unsafe_call_fails_with_unknown_outcome() {
    let (mut codec, now) = (resuming(), Instant::now());
    let params = TaskSignalParams { id: "sh-1".into(), signal: "INT".into() };
    // One that was never written is sent on the next connection.
    submit::<TaskSignal>(&mut codec, &params, now);
    assert_eq!(reconnect(&mut codec, now).len(), 1);
    assert!(codec.next().unwrap().is_none());
    assert_eq!(reconnect(&mut codec, now), [] as [Value; 0]);
    let Some(Message::Response(response)) = codec.next().unwrap() else { panic!("no reply") };
    assert!(matches!(response.result, Err(ClientError::OutcomeUnknown { method: "task/signal" })));
}

#[test]
fn fruitless_connections_end_in_an_error() {
    let (mut codec, now) = (resuming(), Instant::now());
    submit::<TaskGet>(&mut codec, &TaskGetParams { id: "sh-1".into() }, now);
    let delays: Vec<u64> = (0..5)
        .map(|_| {
            let delay = codec.disconnected(ClientError::Closed).unwrap();
            codec.connected(now).unwrap();
            u64::try_from(delay.as_millis()).unwrap()
        })
        .collect();
    assert_eq!(delays, [0, 20, 40, 60, 80]);
    assert!(matches!(codec.disconnected(ClientError::Closed), Err(ClientError::Closed)));
}

#[test]
fn shutting_down_reply_counts_as_disconnect() {
    let (mut codec, now) = (resuming(), Instant::now());
    let id = submit::<TaskGet>(&mut codec, &TaskGetParams { id: "sh-1".into() }, now);
    written(&mut codec);
    let error = json!({"code": -32012, "message": "leaving", "data": {"kind": "shutting_down"}});
    receive(&mut codec, &json!({"jsonrpc": "2.0", "id": id, "error": error}));
    assert!(codec.next().unwrap().is_none() && codec.is_lost());
    assert_eq!(reconnect(&mut codec, now)[0]["id"], id);
    assert!(!codec.is_lost());
}

#[test]
fn held_session_is_renewed_first() {
    let (mut codec, now) = (resuming(), Instant::now());
    let params = SessionOpenParams { hold: SessionHold::Connection, ..SessionOpenParams::default() };
    let id = submit::<SessionOpen>(&mut codec, &params, now);
    written(&mut codec);
    let session = json!({
        "id": "se-1", "name": null, "state": "open", "parent": null, "hold": "connection", "on_end": "stop",
        "lease_ms": 0, "grace_ms": 0, "due_in_ms": null, "defaults": {}, "max_tasks": null,
        "opened_at": "2026-01-01T00:00:00.000Z", "ended_at": null, "ended_by": null, "reason": null,
        "drained": true, "notices": 0,
        "counts": {"agents": 0, "shells": 0, "foreground": 0, "detached": 0, "queued": 0, "stalled": 0},
    });
    receive(&mut codec, &reply(id, &json!({"token": "t", "session": session})));
    assert!(matches!(codec.next().unwrap(), Some(Message::Response(_))));
    submit::<TaskGet>(&mut codec, &TaskGetParams { id: "sh-1".into() }, now);
    let again = reconnect(&mut codec, now);
    let methods: Vec<&Value> = again.iter().map(|request| &request["method"]).collect();
    assert_eq!(methods, ["session/renew", "task/get"]);
    assert_eq!(again[0]["params"]["id"], "se-1");
}

#[test]
fn expired_events_are_reported_and_skipped() {
    let (mut codec, now) = (resuming(), Instant::now());
    let id = submit::<EventFollow>(&mut codec, &EventFollowParams::default(), now);
    written(&mut codec);
    receive(&mut codec, &reply(id, &json!({"follow": 1, "after": 0, "first": 1, "last": 3})));
    receive(&mut codec, &model::event(id, 1, 3));
    while codec.next().unwrap().is_some() {}
    let wire = reconnect(&mut codec, now).remove(0);
    assert_eq!((&wire["method"], &wire["params"]["after"]), (&"event/follow".into(), &3.into()));
    let error = json!({"code": -32006, "message": "gone", "data": {"kind": "expired", "from": 8}});
    receive(&mut codec, &json!({"jsonrpc": "2.0", "id": wire["id"], "error": error}));
    let found = codec.next().unwrap();
    assert!(matches!(found, Some(Message::EventsExpired { request, first: 4, last: 8 }) if request == id));
    assert_eq!(written(&mut codec)[0]["params"]["after"], 8);
}

#[test]
fn unwanted_subscription_is_ended_at_the_daemon() {
    let (mut codec, now) = (resuming(), Instant::now());
    let params =
        OutputFollowParams { id: "sh-1".into(), from: OutputFrom::default(), stream: None, text: false };
    let id = submit::<OutputFollow>(&mut codec, &params, now);
    written(&mut codec);
    codec.unsubscribe(id);
    assert_eq!(written(&mut codec), [] as [Value; 0]);
    receive(&mut codec, &reply(id, &json!({"id": "sh-1", "follow": 7, "from": 0})));
    receive(&mut codec, &model::chunk(id, 7, 0, b"abc"));
    assert!(matches!(codec.next().unwrap(), Some(Message::Response(_))));
    assert!(codec.next().unwrap().is_none());
    let ended = written(&mut codec);
    assert_eq!((ended.len(), &ended[0]["params"]["follow"]), (1, &7.into()));
}

#[test]
fn cancelled_call_is_cancelled_at_the_daemon() {
    let (mut codec, now) = (resuming(), Instant::now());
    let unwritten = submit::<TaskWait>(&mut codec, &TaskWaitParams::for_end("sh-1"), now);
    codec.cancel(unwritten);
    assert_eq!(written(&mut codec), [] as [Value; 0]);
    let id = submit::<TaskWait>(&mut codec, &TaskWaitParams::for_end("sh-1"), now);
    written(&mut codec);
    codec.cancel(id);
    let cancel = written(&mut codec).remove(0);
    assert_eq!((&cancel["method"], &cancel["params"]["request"]), (&"call/cancel".into(), &id.into()));
    // Its reply, and that to the cancellation, reach no caller; and neither is repeated.
    receive(&mut codec, &reply(id, &json!({})));
    receive(&mut codec, &reply(cancel["id"].as_i64().unwrap(), &json!({"cancelled": true})));
    assert!(codec.next().unwrap().is_none());
    assert_eq!(reconnect(&mut codec, now), [] as [Value; 0]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Whatever happens on the way, each reply is delivered once, and output and events exactly once and in order.
    #[test]
    fn everything_is_delivered_exactly_once(steps in prop::collection::vec(model::step(), 0..200)) {
        let mut world = World::new();
        for step in steps {
            world.take(&step);
        }
        world.finish();
        world.check()?;
    }
}
