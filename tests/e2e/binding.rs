//! Ways around what binds an agent, each tried and shut: a session inside its own, a seat that it may not take, the token of
//! another, a wish for later.

use belay_protocol::ErrorKind;
use belay_protocol::lane::{LaneListParams, LaneMode, LaneParams, LaneReleaseParams};
use belay_protocol::life::StopLevel;
use belay_protocol::methods::{
    LaneList, LaneRelease, SessionClose, SessionOpen, SessionWait, TaskStart, TaskStop, TaskWait,
};
use belay_protocol::session::{
    OnSessionEnd, SessionCloseParams, SessionDefaults, SessionHold, SessionOpenParams, SessionState,
    SessionWaitParams,
};
use belay_protocol::task::{self, NoLimit, OnTimeout, TaskStartParams, TaskStatus, TaskStopParams};
use belay_testkit::{LONG, World, wait_until};

use crate::sessions::{get, open, sleeper};
use crate::support::{FOREVER, refused, stop_of, world};

fn seat(world: &World, name: &str, mode: LaneMode) -> TaskStartParams {
    let lane = LaneParams { name: name.to_owned(), mode, generation: None };
    TaskStartParams { lane: Some(lane), ..world.start_params(&["sleep", FOREVER]) }
}

// proves X4
#[test]
fn a_session_inside_a_session_is_bound_by_both() {
    let world = world();
    let defaults =
        SessionDefaults { timeout_ms: Some(60_000), ttl_ms: Some(50_000), ..SessionDefaults::default() };
    let outer = open(&world, SessionOpenParams { defaults, ..SessionOpenParams::default() });
    let mut client = world.client_as(&outer.token);
    let inner = client
        .call::<SessionOpen>(&SessionOpenParams {
            on_end: OnSessionEnd::Keep,
            ..SessionOpenParams::default()
        })
        .unwrap();
    let mut inside = world.client_as(&inner.token);
    // It cannot promise its own tasks more than it has.
    let lax = SessionDefaults { ttl_ms: Some(90_000), ..SessionDefaults::default() };
    let error = refused(
        inside.call::<SessionOpen>(&SessionOpenParams { defaults: lax, ..SessionOpenParams::default() }),
    );
    assert_eq!(
        (error.data.kind, error.data.field.as_deref()),
        (ErrorKind::NotPermitted, Some("defaults.ttl_ms"))
    );
    let plain = world.start_params(&["sleep", FOREVER]);
    for (field, params) in [
        ("keep", TaskStartParams { keep: true, ..plain.clone() }),
        ("ttl_ms", TaskStartParams { ttl_ms: Some(70_000), ..plain.clone() }),
        ("no_limits", TaskStartParams { no_limits: vec![NoLimit::Ttl], ..plain.clone() }),
        ("on_timeout", TaskStartParams { on_timeout: Some(OnTimeout::Detach), ..plain.clone() }),
    ] {
        let error = refused(inside.call::<TaskStart>(&params));
        assert_eq!((error.data.kind, error.data.field.as_deref()), (ErrorKind::NotPermitted, Some(field)));
    }
    let started = inside.call::<TaskStart>(&plain).unwrap();
    let clocks = world.get(&started.id).clocks;
    let limits = [clocks.timeout, clocks.ttl].map(|clock| clock.map(|clock| clock.limit_ms));
    assert_eq!(limits, [Some(60_000), Some(50_000)], "what the session above gives");
    let close = SessionCloseParams { id: outer.session.id.clone(), on_end: None, reason: None, actor: None };
    client.call::<SessionClose>(&close).unwrap();
    assert_eq!(world.wait_ended(&started.id).status, TaskStatus::Cancelled);
    assert_eq!(get(&world, &inner.session.id).state, SessionState::Ended);
}

// proves L6, L4
#[test]
fn nobody_replaces_what_they_may_not_stop_nor_learns_of_it() {
    let world = world();
    let person = world.start(&seat(&world, "deploy", LaneMode::Reject));
    let agent = open(&world, SessionOpenParams::default());
    let mut client = world.client_as(&agent.token);
    let error = refused(client.call::<TaskStart>(&seat(&world, "deploy", LaneMode::Replace)));
    assert_eq!((error.data.kind, error.data.field.as_deref()), (ErrorKind::NotPermitted, Some("lane")));
    let error = refused(client.call::<TaskStart>(&seat(&world, "deploy", LaneMode::Reject)));
    assert_eq!(
        (error.data.kind, error.message.as_str()),
        (ErrorKind::LaneHeld, "lane deploy is held by a task that you may not see")
    );
    assert_eq!(client.call::<LaneList>(&LaneListParams::default()).unwrap().lanes, []);
    let inner = client.call::<SessionOpen>(&SessionOpenParams::default()).unwrap().session.id;
    let release = LaneReleaseParams { name: "deploy".to_owned(), owner: Some(inner), reason: None };
    assert_eq!(refused(client.call::<LaneRelease>(&release)).data.kind, ErrorKind::NotPermitted);
    assert_eq!(world.get(&person.id).status, TaskStatus::Running);
    let fences = world.client().call::<LaneList>(&LaneListParams::default()).unwrap().lanes.remove(0).fences;
    assert_eq!(fences, []);
}

// proves L4, L5
#[test]
fn whoever_replaces_its_own_goes_on_and_a_client_of_the_session_is_no_stranger() {
    let world = world();
    let id = open(&world, SessionOpenParams::default()).session.id;
    let own = |mode| TaskStartParams { session: Some(id.clone()), ..seat(&world, "seat", mode) };
    world.start(&own(LaneMode::Reject));
    let next = world.start(&own(LaneMode::Replace));
    wait_until("the one that replaced it", LONG, || match world.get(&next.id).status {
        TaskStatus::Running => Ok(()),
        other => Err(format!("{other:?}")),
    });
    // The connection that opened the session holds it; the one with its token acts as it.
    let mut opener = world.client();
    let hold = SessionOpenParams { hold: SessionHold::Connection, ..SessionOpenParams::default() };
    let opened = opener.call::<SessionOpen>(&hold).unwrap();
    let id = opened.session.id;
    let mut holder = world.client_as(&opened.token);
    let params = TaskStartParams { session: Some(id.clone()), ..seat(&world, "other", LaneMode::Reject) };
    let first = holder.call::<TaskStart>(&params).unwrap();
    let stopped = holder
        .call::<TaskStop>(&TaskStopParams { level: Some(StopLevel::Kill), ..stop_of(&first.id) })
        .unwrap();
    assert_eq!(stopped.fenced, None);
    holder.call::<TaskStart>(&params).unwrap();
    assert_eq!(get(&world, &id).notices, 0, "it has stopped it itself");
    // What was held last is remembered when nobody holds it.
    let lane = |generation| LaneParams { name: "idle".to_owned(), mode: LaneMode::Reject, generation };
    let start =
        |generation| TaskStartParams { lane: Some(lane(generation)), ..world.start_params(&["true"]) };
    let first = world.start(&start(None)).lane.unwrap().generation;
    let again = || world.client().call::<TaskStart>(&start(first)).map_err(|error| format!("{error}"));
    let second = wait_until("the lane to be free", LONG, again).lane.unwrap().generation;
    assert!(second > first);
    wait_until("the lane to be free", LONG, || {
        let held = world.client().call::<LaneList>(&LaneListParams::default()).unwrap().lanes;
        if held.iter().any(|lane| lane.name == "idle") { Err(format!("{held:?}")) } else { Ok(()) }
    });
    assert_eq!(refused(world.client().call::<TaskStart>(&start(first))).data.kind, ErrorKind::Stale);
}

// proves S2, L6
#[test]
fn a_token_is_good_among_the_starts_of_whoever_uses_it() {
    let world = world();
    let agent = open(&world, SessionOpenParams::default());
    let params = TaskStartParams { token: Some("nightly".to_owned()), ..world.start_params(&["true"]) };
    let taken = world.client_as(&agent.token).call::<TaskStart>(&params).unwrap();
    let own = world.start(&params);
    assert_ne!(own.id, taken.id);
    assert_eq!(world.start(&params).id, own.id);
    assert_eq!(world.client_as(&agent.token).call::<TaskStart>(&params).unwrap().id, taken.id);
}

// proves X4, W3
#[test]
fn what_an_agent_wants_run_later_is_bound_as_it_is() {
    let world = world();
    let opened = open(&world, SessionOpenParams::default());
    let said = world.dir().join("said");
    let line = format!("echo \"$BELAY_SESSION\" >{}", said.display());
    let params = TaskStartParams { notify: Some(line), ..world.start_params(&["true"]) };
    let mut client = world.client_as(&opened.token);
    let task = client.call::<TaskStart>(&params).unwrap();
    client.call::<TaskWait>(&task::TaskWaitParams::for_end(&task.id)).unwrap();
    let heard = wait_until("the hook", LONG, || {
        std::fs::read_to_string(&said).ok().filter(|text| text.ends_with('\n')).ok_or_else(String::new)
    });
    assert_eq!(heard.trim_end(), opened.session.id);
    // A cascade ends what was started below a task, and not what was to be run after it.
    let said = world.dir().join("after");
    let line = format!("sleep 0.3; echo done >{}", said.display());
    let params = TaskStartParams { notify: Some(line), ..sleeper(&world, &opened.session.id) };
    let task = world.start(&params);
    world.stop(&TaskStopParams { cascade: true, ..stop_of(&task.id) });
    world.stop(&TaskStopParams { cascade: true, ..stop_of(&task.id) });
    wait_until("the hook", LONG, || if said.exists() { Ok(()) } else { Err(String::new()) });
}

/// The daemon dies after an end is durable and before whoever waited for it has been answered.
// proves W3
#[test]
fn an_end_that_nobody_was_told_of_in_time_is_noticed() {
    let world = world();
    let doom = |command: &mut std::process::Command| {
        command.env("BELAY_CRASH_AT", "after-end");
    };
    world.belay_with(["up"], doom).ok();
    let opened = open(&world, SessionOpenParams::default());
    let mut client = world.client_as(&opened.token);
    let task = client.call::<TaskStart>(&world.start_params(&["sleep", "0.2"])).unwrap();
    client.call::<TaskWait>(&task::TaskWaitParams::for_end(&task.id)).unwrap_err();
    assert_eq!(world.wait_ended(&task.id).status, TaskStatus::Completed);
    assert_eq!(get(&world, &opened.session.id).notices, 1);
}

// proves L7, X3
#[test]
fn sessions_that_are_forgotten_are_answered_for() {
    const OPENED: usize = 1_010;
    let world = world();
    let mut client = world.client();
    let mut first = None;
    for _ in 0..OPENED {
        let id = client.call::<SessionOpen>(&SessionOpenParams::default()).unwrap().session.id;
        client
            .call::<SessionClose>(&SessionCloseParams {
                id: id.clone(),
                on_end: None,
                reason: None,
                actor: None,
            })
            .unwrap();
        first.get_or_insert(id);
    }
    let wait = SessionWaitParams { id: first.unwrap(), timeout_ms: Some(10) };
    assert_eq!(refused(client.call::<SessionWait>(&wait)).data.kind, ErrorKind::NotFound);
    // What an agent opens has a bound of its own, and goes with the session around it.
    let outer = open(&world, SessionOpenParams::default());
    let mut agent = world.client_as(&outer.token);
    let mut opened = 0;
    let error = loop {
        match agent.call::<SessionOpen>(&SessionOpenParams::default()) {
            Ok(_) => opened += 1,
            other => break refused(other),
        }
        assert!(opened < 500, "there is a bound");
    };
    assert_eq!(error.data.kind, ErrorKind::Limit);
    let close = SessionCloseParams { id: outer.session.id, on_end: None, reason: None, actor: None };
    assert_eq!(client.call::<SessionClose>(&close).unwrap().session.state, SessionState::Ended);
}
