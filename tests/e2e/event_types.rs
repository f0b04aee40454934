//! The types of events on the wire: a run that causes every one of them, read as JSON and as the typed enum.

use belay_protocol::event::{EventInfo, EventKind};
use belay_protocol::lane::{LaneMode, LaneParams, LaneReleaseParams};
use belay_protocol::methods::{
    LaneRelease, SessionClose, SessionOpen, SessionRenew, TaskRemove, TaskSetStall,
};
use belay_protocol::session::{SessionCloseParams, SessionOpenParams, SessionRenewParams};
use belay_protocol::task::{
    OnStall, StallSetting, TaskRemoveParams, TaskSetStallParams, TaskStartParams, TaskStatus,
};
use belay_testkit::{LONG, World, wait_until};
use serde_json::{Value, json};

use crate::raw::Raw;
use crate::support::{FOREVER, stop_of, world};

fn wait_for(world: &World, kind: EventKind, count: usize) {
    wait_until(kind.name(), LONG, || {
        let seen = world.events().iter().filter(|info| info.event.kind() == kind).count();
        if seen >= count { Ok(()) } else { Err(format!("{seen} of {count}")) }
    });
}

/// A task that fails once, one that stalls and goes on, one that is detached, signalled and removed.
fn make_task_events(world: &World) {
    let retried = world.run_detached(["--retry", "1", "--retry-delay", "10ms", "--", "false"]);
    world.wait_ended(&retried);
    let script = "read word; echo $word";
    let stalled = world.run_detached(["--stdin", "--stall", "200ms", "--", "sh", "-c", script]);
    wait_for(world, EventKind::TaskStalled, 1);
    world.belay(["send", &stalled, "it"]).ok();
    world.wait_ended(&stalled);
    world.belay(["run", "--timeout", "100ms", "--on-timeout", "detach", "--", "sleep", FOREVER]).ok();
    wait_for(world, EventKind::TaskDetached, 1);
    let signalled = world.run_detached(["sleep", FOREVER]);
    let stall = StallSetting::Check { after_ms: 60_000, policy: OnStall::Tell };
    world.client().call::<TaskSetStall>(&TaskSetStallParams { id: signalled.clone(), stall }).unwrap();
    world.belay(["signal", "USR1", &signalled]).ok();
    world.wait_ended(&signalled);
    world.client().call::<TaskRemove>(&TaskRemoveParams { id: signalled }).unwrap();
}

/// A session that loses its lease and renews it; a lane in it whose owner is fenced and released.
fn make_session_and_lane_events(world: &World) {
    let params =
        SessionOpenParams { lease_ms: Some(1_000), grace_ms: Some(60_000), ..SessionOpenParams::default() };
    let opened = world.client().call::<SessionOpen>(&params).unwrap();
    let (id, mut client) = (opened.session.id, world.client_as(&opened.token));
    wait_for(world, EventKind::SessionLapsed, 1);
    client.call::<SessionRenew>(&SessionRenewParams { id: id.clone() }).unwrap();
    let lane = Some(LaneParams { name: "seat".to_owned(), mode: LaneMode::Queue, generation: None });
    let params =
        TaskStartParams { session: Some(id.clone()), lane, ..world.start_params(&["sleep", FOREVER]) };
    let holder = world.start(&params);
    let waiting = world.start(&params);
    assert_eq!(waiting.status, TaskStatus::Queued);
    // A person stops what the session has there: the session may not use the lane until it is released.
    world.stop(&stop_of(&holder.id));
    world.wait_ended(&waiting.id);
    let release = LaneReleaseParams { name: "seat".to_owned(), owner: None, reason: None };
    world.client().call::<LaneRelease>(&release).unwrap();
    let close = SessionCloseParams { id, on_end: None, reason: None, actor: None };
    world.client().call::<SessionClose>(&close).unwrap();
}

/// Every event, as the daemon writes it.
fn all_as_json(world: &World) -> Vec<Value> {
    let mut raw = Raw::greeted(world);
    let (mut after, mut all) = (0, Vec::new());
    loop {
        let page = raw.call("event/read", &json!({ "after": after }))["result"].take();
        let events = page["events"].as_array().unwrap();
        if events.is_empty() {
            return all;
        }
        all.extend(events.iter().cloned());
        after = page["next"].as_u64().unwrap();
    }
}

// proves E1
#[test]
fn documented_schema_lists_every_event_type() {
    let schema: Value = serde_json::from_str(include_str!("../../docs/schema/client.json")).unwrap();
    let tag = |variant: &Value| {
        let name = variant["$ref"].as_str().unwrap().strip_prefix("#/$defs/").unwrap();
        let name = schema["$defs"][name]["properties"]["type"]["const"].as_str().unwrap();
        EventKind::from_name(name).unwrap()
    };
    let mut listed: Vec<EventKind> =
        schema["$defs"]["EventInfo"]["oneOf"].as_array().unwrap().iter().map(tag).collect();
    listed.sort_unstable();
    assert_eq!(listed, EventKind::ALL);
    assert_eq!(schema["$defs"]["EventInfo"]["discriminator"], json!({ "propertyName": "type" }));
}

// proves E1
#[test]
fn every_event_reads_as_the_typed_enum() {
    let world = world();
    make_task_events(&world);
    make_session_and_lane_events(&world);
    world.kill_daemon();
    wait_for(&world, EventKind::TaskAdopted, 1);
    world.belay(["down"]).ok();

    let mut kinds = Vec::new();
    for written in all_as_json(&world) {
        let read: EventInfo = serde_json::from_value(written.clone()).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), written);
        assert_eq!(written["type"], read.event.kind().name());
        assert_eq!(written["task"].as_str(), read.event.task());
        assert_eq!(written["session"].as_str(), read.event.session());
        kinds.push(read.event.kind());
    }
    kinds.sort_unstable();
    kinds.dedup();
    let expected: Vec<EventKind> =
        EventKind::ALL.iter().copied().filter(|kind| *kind != EventKind::Lost).collect();
    assert_eq!(kinds, expected);
}
