//! Sessions: a lease that is held, lost and regained; a policy that is applied once; a level that says whether anything in it
//! still works; and ends that are told once.

use std::time::Duration;

use belay_client::Client;
use belay_os::process::identity;
use belay_os::signal::Signal;
use belay_protocol::ErrorKind;
use belay_protocol::event::{EventInfo, EventKind};
use belay_protocol::methods::{
    SessionClose, SessionGet, SessionList, SessionOpen, SessionRenew, SessionWait, TaskList, TaskStart,
    TaskStop,
};
use belay_protocol::session::{
    OnSessionEnd, SessionCloseParams, SessionDefaults, SessionGetParams, SessionHold, SessionInfo,
    SessionListParams, SessionOpenParams, SessionOpenResult, SessionRenewParams, SessionState,
    SessionWaitParams, UnfinishedStatus,
};
use belay_protocol::task::{self, TaskInfo, TaskStartParams, TaskStatus};
use belay_testkit::{LONG, World, send_signal, wait_until};

use crate::support::{FOREVER, refused, stop_of, world};

pub(crate) fn open(world: &World, params: SessionOpenParams) -> SessionOpenResult {
    world.client().call::<SessionOpen>(&params).unwrap()
}

fn short(on_end: OnSessionEnd) -> SessionOpenParams {
    SessionOpenParams { lease_ms: Some(300), grace_ms: Some(300), on_end, ..SessionOpenParams::default() }
}

pub(crate) fn get(world: &World, id: &str) -> SessionInfo {
    world.client().call::<SessionGet>(&SessionGetParams { id: id.to_owned() }).unwrap()
}

fn renew(client: &mut Client, id: &str) -> SessionInfo {
    client.call::<SessionRenew>(&SessionRenewParams { id: id.to_owned() }).unwrap()
}

#[track_caller]
fn wait_state(world: &World, id: &str, state: SessionState) -> SessionInfo {
    wait_until("the session's state", LONG, || {
        let info = get(world, id);
        if info.state == state { Ok(info) } else { Err(format!("{info:?}")) }
    })
}

pub(crate) fn sleeper(world: &World, session: &str) -> TaskStartParams {
    TaskStartParams { session: Some(session.to_owned()), ..world.start_params(&["sleep", FOREVER]) }
}

/// The types of the events about a session's lease, in order.
fn story(world: &World, id: &str) -> Vec<EventKind> {
    let own = |event: &EventInfo| event.event.session() == Some(id) && event.event.task().is_none();
    let is_level = |kind: &EventKind| matches!(kind, EventKind::SessionBusy | EventKind::SessionDrained);
    let kinds = world.events().into_iter().filter(own).map(|event| event.event.kind());
    kinds.filter(|kind| !is_level(kind)).collect()
}

fn drain(world: &World, id: &str, timeout: Duration) -> belay_protocol::session::SessionWaitResult {
    let timeout_ms = Some(u64::try_from(timeout.as_millis()).unwrap());
    world.client().call::<SessionWait>(&SessionWaitParams { id: id.to_owned(), timeout_ms }).unwrap()
}

// proves L1
#[test]
fn a_lease_lost_and_regained_within_its_grace_changes_nothing() {
    let world = world();
    let params =
        SessionOpenParams { lease_ms: Some(100), grace_ms: Some(60_000), ..SessionOpenParams::default() };
    let opened = open(&world, params);
    let id = opened.session.id;
    let task = world.start(&sleeper(&world, &id));
    wait_state(&world, &id, SessionState::Lapsed);
    assert_eq!(world.get(&task.id).status, TaskStatus::Running);
    let mut client = world.client_as(&opened.token);
    assert_eq!(renew(&mut client, &id).state, SessionState::Open);
    assert_eq!(world.get(&task.id).status, TaskStatus::Running);
    wait_state(&world, &id, SessionState::Lapsed);
    assert_eq!(renew(&mut client, &id).state, SessionState::Open);
    let told = story(&world, &id);
    let again = [EventKind::SessionLapsed, EventKind::SessionRegained];
    assert_eq!(told[..5], [&[EventKind::SessionOpened], &again[..], &again[..]].concat());
}

// proves L1, E4
#[test]
fn open_with_the_same_key_is_one_session_over_daemon_kill() {
    let world = world();
    let params = SessionOpenParams { key: Some("build-17".to_owned()), ..SessionOpenParams::default() };
    let first = open(&world, params.clone());
    world.kill_daemon();
    let again = open(&world, params.clone());
    assert_eq!((&again.token, &again.session.id), (&first.token, &first.session.id));
    // The token is good, and another scope has keys of its own.
    let mut inside = world.client_as(&again.token);
    assert_ne!(inside.call::<SessionOpen>(&params).unwrap().session.id, first.session.id);
    let other = SessionOpenParams { name: Some("other".to_owned()), ..params.clone() };
    let error = refused(world.client().call::<SessionOpen>(&other));
    assert_eq!((error.data.kind, error.data.field.as_deref()), (ErrorKind::Conflict, Some("key")));
    world.belay(["sessions", "close", &first.session.id]).ok();
    let error = refused(world.client().call::<SessionOpen>(&params));
    assert_eq!((error.data.kind, error.data.field.as_deref()), (ErrorKind::WrongState, Some("key")));
}

// proves L1, L7
#[test]
fn a_lease_lost_for_good_ends_the_session_once_and_its_tasks_by_policy() {
    let world = world();
    let opened = open(&world, short(OnSessionEnd::Stop));
    let id = opened.session.id.clone();
    let bound = world.start(&sleeper(&world, &id));
    let kept = world.start(&TaskStartParams { keep: true, ..sleeper(&world, &id) });
    let foreign = world.start(&world.start_params(&["sleep", FOREVER]));
    let ended = world.wait_ended(&bound.id);
    let outcome = ended.outcome.unwrap();
    assert_eq!(
        (ended.status, outcome.actor(), outcome.reason()),
        (
            TaskStatus::Cancelled,
            Some(format!("session:{id}").as_str()),
            Some("the session ended: its lease was not renewed")
        )
    );
    let info = wait_state(&world, &id, SessionState::Ended);
    assert_eq!((info.ended_by.as_deref(), info.notices), (Some("lease"), 0));
    assert_eq!(world.get(&kept.id).status, TaskStatus::Running);
    assert_eq!(world.get(&foreign.id).status, TaskStatus::Running);
    let lost = [
        EventKind::SessionOpened,
        EventKind::SessionLapsed,
        EventKind::SessionEnding,
        EventKind::SessionEnded,
    ];
    assert_eq!(story(&world, &id), lost);

    // Nothing new begins in it; what was in it can be listed, read and stopped.
    let error = refused(world.client().call::<TaskStart>(&sleeper(&world, &id)));
    assert_eq!((error.data.kind, error.data.field.as_deref()), (ErrorKind::WrongState, Some("session")));
    let error =
        refused(world.client_as(&opened.token).call::<SessionRenew>(&SessionRenewParams { id: id.clone() }));
    assert_eq!(error.data.kind, ErrorKind::WrongState);
    let params =
        task::TaskListParams { all: true, session: Some(id.clone()), ..task::TaskListParams::default() };
    let listed = world.client_as(&opened.token).call::<TaskList>(&params).unwrap().tasks;
    let ids: Vec<String> = listed.into_iter().map(|task| task.id).collect();
    assert_eq!(ids, [kept.id.clone(), bound.id]);
    let stopped = world.client_as(&opened.token).call::<TaskStop>(&stop_of(&kept.id)).unwrap();
    assert_eq!(stopped.status, Some(TaskStatus::Cancelled));
}

// proves L1: also if the daemon was down at the time
#[test]
fn a_lease_that_ended_while_no_daemon_was_there_is_dealt_with_by_the_next() {
    let world = world();
    let opened = open(&world, short(OnSessionEnd::Stop));
    let id = opened.session.id.clone();
    let bound = world.start(&sleeper(&world, &id));
    world.kill_daemon();
    // Whoever comes next brings a daemon; nobody renews.
    let ended = world.wait_ended(&bound.id);
    assert_eq!(ended.status, TaskStatus::Cancelled);
    wait_state(&world, &id, SessionState::Ended);
    let count = |kind: EventKind| story(&world, &id).iter().filter(|told| **told == kind).count();
    assert_eq!((count(EventKind::SessionEnding), count(EventKind::SessionEnded)), (1, 1));

    // One whose client comes back goes on, whatever was between.
    let opened = open(&world, SessionOpenParams { lease_ms: Some(60_000), ..SessionOpenParams::default() });
    let id = opened.session.id.clone();
    let bound = world.start(&sleeper(&world, &id));
    world.kill_daemon();
    let mut client = world.client_as(&opened.token);
    assert_eq!(renew(&mut client, &id).state, SessionState::Open);
    assert_eq!(world.get(&bound.id).status, TaskStatus::Running);
    assert_eq!(story(&world, &id), [EventKind::SessionOpened]);
}

/// The daemon is killed again and again while sessions end: each ends once, and every task once, by its session.
// proves L1, D1
#[test]
fn the_end_of_a_session_survives_the_death_of_the_daemon() {
    let world = world();
    for round in 0..6_u64 {
        let opened = open(&world, SessionOpenParams::default());
        let id = opened.session.id.clone();
        let script = format!("trap '' TERM; sleep {FOREVER} & wait; sleep {FOREVER}");
        let stubborn = TaskStartParams {
            session: Some(id.clone()),
            grace_ms: Some(200),
            ..world.start_params(&["sh", "-c", &script])
        };
        let tasks: Vec<TaskInfo> = (0..3).map(|_| world.start(&stubborn)).collect();
        let params = SessionCloseParams { id: id.clone(), on_end: None, reason: None, actor: None };
        let mut client = world.client_as(&opened.token);
        client.send::<SessionClose>(&params).unwrap();
        // Sleeps because the daemon is to be killed at another instant of the ending each time.
        std::thread::sleep(Duration::from_millis(round * 7));
        world.kill_daemon();
        if get(&world, &id).state.is_open() {
            // It had not heard of it.
            world.client().call::<SessionClose>(&params).unwrap();
        }
        wait_state(&world, &id, SessionState::Ended);
        for task in &tasks {
            let ended = world.wait_ended(&task.id);
            let actor = format!("session:{id}");
            assert_eq!(ended.outcome.unwrap().actor(), Some(actor.as_str()), "round {round}");
            assert_eq!(
                world.events_of(&task.id).iter().filter(|kind| **kind == EventKind::TaskEnded).count(),
                1
            );
        }
        let count = |kind: EventKind| story(&world, &id).iter().filter(|told| **told == kind).count();
        assert_eq!(
            (count(EventKind::SessionEnding), count(EventKind::SessionEnded)),
            (1, 1),
            "round {round}"
        );
    }
}

// proves L1, D7
#[test]
fn a_session_that_is_held_by_its_connection_lapses_with_it() {
    let world = world();
    let params = SessionOpenParams {
        hold: SessionHold::Connection,
        grace_ms: Some(60_000),
        ..SessionOpenParams::default()
    };
    let mut holder = world.client();
    let opened = holder.call::<SessionOpen>(&params).unwrap();
    let id = opened.session.id;
    let task = world.start(&sleeper(&world, &id));
    assert_eq!(get(&world, &id).due_in_ms, None);
    drop(holder);
    wait_state(&world, &id, SessionState::Lapsed);
    let mut again = world.client_as(&opened.token);
    assert_eq!(renew(&mut again, &id).due_in_ms, None);
    assert_eq!(world.get(&task.id).status, TaskStatus::Running);

    let params = SessionOpenParams {
        hold: SessionHold::Connection,
        grace_ms: Some(100),
        ..SessionOpenParams::default()
    };
    let mut holder = world.client();
    let id = holder.call::<SessionOpen>(&params).unwrap().session.id;
    let task = world.start(&sleeper(&world, &id));
    drop(holder);
    assert_eq!(world.wait_ended(&task.id).status, TaskStatus::Cancelled);
    wait_state(&world, &id, SessionState::Ended);
}

// proves W5
#[test]
fn whether_a_session_is_drained_is_a_level_with_counts() {
    let world = world();
    let id = open(&world, SessionOpenParams::default()).session.id;
    let now = get(&world, &id);
    assert!(now.drained && drain(&world, &id, LONG).drained, "nothing has been started in it: {now:?}");
    let gate = world.dir().join("gate");
    let script = format!("until [ -e {} ]; do sleep 0.01; done", gate.display());
    let job = TaskStartParams { session: Some(id.clone()), ..world.start_params(&["sh", "-c", &script]) };
    let first = world.start(&job);
    let foreground = TaskStartParams { detached: false, answer: task::AnswerWhen::Ended, ..job };
    let mut caller = world.client();
    caller.send::<TaskStart>(&foreground).unwrap();
    let now = wait_until("both tasks", LONG, || {
        let now = get(&world, &id);
        if now.counts.shells == 2 { Ok(now) } else { Err(format!("{now:?}")) }
    });
    assert_eq!((now.counts.agents, now.counts.foreground, now.counts.detached), (0, 1, 1));
    assert!(!now.drained);
    let waited = drain(&world, &id, Duration::from_millis(50));
    assert!(!waited.drained && waited.left.is_empty(), "{waited:?}");
    let waiting = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| drain(&world, &id, LONG));
        std::fs::write(&gate, "").unwrap();
        waiting.join().unwrap()
    });
    assert!(waiting.drained && waiting.left.is_empty(), "{waiting:?}");
    assert_eq!(world.wait_ended(&first.id).status, TaskStatus::Completed);
    assert_eq!(world.belay(["sessions", "wait", &id]).ok().line(), format!("{id} is drained"));
}

/// The shim of a task is stopped, so that its end would never be told. Policy deals with it, and the session drains.
// proves W5, K10
#[test]
fn a_task_whose_end_never_comes_does_not_keep_its_session_from_draining() {
    let world = world();
    let id = open(&world, SessionOpenParams::default()).session.id;
    let hung = world.start(&TaskStartParams { grace_ms: Some(100), ..sleeper(&world, &id) });
    let lost = world.start(&sleeper(&world, &id));
    let shim = |task: &TaskInfo| identity(world.get(&task.id).held_by.unwrap().shim_pid).unwrap();
    send_signal(shim(&lost), Signal::KILL);
    world.wait_ended(&lost.id);
    send_signal(shim(&hung), Signal::STOP);
    assert!(!drain(&world, &id, Duration::from_millis(50)).drained);
    let params = SessionCloseParams { id: id.clone(), on_end: None, reason: None, actor: None };
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| drain(&world, &id, LONG));
        world.client().call::<SessionClose>(&params).unwrap();
        let waited = waiting.join().unwrap();
        assert!(waited.drained, "{waited:?}");
        let left: Vec<(String, UnfinishedStatus)> =
            waited.left.into_iter().map(|left| (left.id, left.status)).collect();
        assert_eq!(left[0], (lost.id.clone(), UnfinishedStatus::Lost));
    });
    wait_state(&world, &id, SessionState::Ended);
}

/// A task that does not get on is listed and told; it does not hide that nothing else works.
// proves W5, R7
#[test]
fn a_stalled_task_does_not_keep_its_session_from_draining() {
    let world = world();
    let id = open(&world, SessionOpenParams::default()).session.id;
    let stall = Some(task::StallParams { after_ms: 300, policy: task::OnStall::Tell });
    let hung = world.start(&TaskStartParams { stall, ..sleeper(&world, &id) });
    let waited = drain(&world, &id, LONG);
    assert!(waited.drained, "{waited:?}");
    let left: Vec<(&str, UnfinishedStatus)> =
        waited.left.iter().map(|left| (left.id.as_str(), left.status)).collect();
    assert_eq!(left, [(hung.id.as_str(), UnfinishedStatus::Stalled)]);
    assert_eq!((waited.session.counts.shells, waited.session.counts.stalled), (1, 1));
    assert_eq!(world.get(&hung.id).status, TaskStatus::Running);
}

// proves S4
#[test]
fn admission_is_atomic_and_leaves_no_trace_when_it_refuses() {
    const MOST: u64 = 5;
    let world = world();
    let opened = open(&world, SessionOpenParams { max_tasks: Some(MOST), ..SessionOpenParams::default() });
    let id = opened.session.id.clone();
    let started: Vec<Option<String>> = std::thread::scope(|scope| {
        let start = |number: usize| {
            let (world, id) = (&world, &id);
            move || {
                let mut params = sleeper(world, id);
                params.detached = number.is_multiple_of(2);
                match world.client().call::<TaskStart>(&params) {
                    Ok(task) => Some(task.id),
                    other => {
                        let error = refused(other);
                        assert_eq!(
                            (error.data.kind, error.data.field.as_deref()),
                            (ErrorKind::Limit, Some("session"))
                        );
                        None
                    }
                }
            }
        };
        let all: Vec<_> = (0..20).map(|number| scope.spawn(start(number))).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let started: Vec<String> = started.into_iter().flatten().collect();
    assert_eq!(started.len() as u64, MOST);
    let params =
        task::TaskListParams { all: true, session: Some(id.clone()), ..task::TaskListParams::default() };
    let listed = world.client().call::<TaskList>(&params).unwrap().tasks;
    assert_eq!(listed.len() as u64, MOST, "no row of those that were refused");
    assert!(listed.iter().all(|task| task.status == TaskStatus::Running), "nobody had to leave: {listed:?}");
    // One that ends makes room for one.
    world.stop(&stop_of(&started[0]));
    world.start(&sleeper(&world, &id));
    assert_eq!(refused(world.client().call::<TaskStart>(&sleeper(&world, &id))).data.kind, ErrorKind::Limit);
}

// proves R1
#[test]
fn a_session_gives_its_tasks_their_clocks() {
    let world = world();
    let defaults = SessionDefaults {
        timeout_ms: Some(60_000),
        ttl_ms: Some(300),
        silence_ms: Some(50_000),
        grace_ms: Some(100),
        ..SessionDefaults::default()
    };
    let id = open(&world, SessionOpenParams { defaults, ..SessionOpenParams::default() }).session.id;
    let task = world.start(&TaskStartParams { ttl_ms: Some(70_000), ..sleeper(&world, &id) });
    let clocks = world.get(&task.id).clocks;
    let limit = |clock: Option<task::ClockInfo>| clock.map(|clock| clock.limit_ms);
    let limits = [limit(clocks.timeout), limit(clocks.ttl), limit(clocks.silence)];
    assert_eq!(limits, [Some(60_000), Some(70_000), Some(50_000)], "its own ttl, the session's others");
    let ended = world.wait_ended(&world.start(&sleeper(&world, &id)).id);
    let Some(task::Outcome::TimedOut { limit_ms, .. }) = ended.outcome else { panic!("{ended:?}") };
    assert_eq!((ended.status, limit_ms), (TaskStatus::TimedOut, 300));
}

// proves L2, L1
#[test]
fn a_session_in_a_session_ends_with_it() {
    let world = world();
    let outer = open(&world, SessionOpenParams::default());
    let inner = world.client_as(&outer.token).call::<SessionOpen>(&short_keep()).unwrap();
    assert_eq!(inner.session.parent.as_deref(), Some(outer.session.id.as_str()));
    let task =
        world.client_as(&inner.token).call::<TaskStart>(&world.start_params(&["sleep", FOREVER])).unwrap();
    assert_eq!(task.lineage, [outer.session.id.as_str(), inner.session.id.as_str()]);
    let closed = world.belay(["sessions", "close", "--json", &outer.session.id]).ok();
    let closed: serde_json::Value = closed.json();
    assert_eq!(closed["receipts"].as_array().unwrap().len(), 1);
    assert_eq!(closed["session"]["state"], "ended");
    assert_eq!(get(&world, &inner.session.id).state, SessionState::Ended);
    assert_eq!(world.wait_ended(&task.id).status, TaskStatus::Cancelled);
    let all = SessionListParams { all: true, ..SessionListParams::default() };
    assert_eq!(world.client().call::<SessionList>(&all).unwrap().sessions.len(), 3);
}

/// One whose tasks would live on if it alone ended.
fn short_keep() -> SessionOpenParams {
    SessionOpenParams { on_end: OnSessionEnd::Keep, ..SessionOpenParams::default() }
}

// proves L3
#[test]
fn an_interrupt_of_what_is_waited_for_stops_nothing_in_the_background() {
    let world = world();
    let opened = open(&world, SessionOpenParams::default());
    let background = world.start(&sleeper(&world, &opened.session.id));
    let turn = world.spawn(["run", "--session", &opened.session.id, "--", "sleep", FOREVER]);
    wait_until("the turn's own task", LONG, || {
        let now = get(&world, &opened.session.id);
        if now.counts.foreground == 1 { Ok(()) } else { Err(format!("{now:?}")) }
    });
    turn.signal(Signal::INT);
    assert_eq!(turn.finish().code, Some(130));
    // The next prompt begins, and the one before it is over: nothing of it touches what was put aside.
    world.belay(["run", "--session", &opened.session.id, "--", "true"]).ok();
    assert_eq!(world.get(&background.id).status, TaskStatus::Running);
    assert_eq!(get(&world, &opened.session.id).counts.shells, 1);
}

// proves L1, S6
#[test]
fn a_command_runs_in_a_session_of_its_own_that_ends_with_it() {
    let world = world();
    let belay = world.program().to_str().unwrap();
    let script = format!("\"$0\" run -d -- sleep {FOREVER}; printf '%s' \"$BELAY_SESSION\" >&2; exit 7");
    let ran = world.belay(["sessions", "run", "--name", "own", "--", "sh", "-c", &script, belay]);
    assert_eq!(ran.code, Some(7), "{ran}");
    let (task, session) = (ran.line(), String::from_utf8(ran.stderr).unwrap());
    assert_eq!(world.get(&task).session, session);
    assert_eq!(world.wait_ended(&task).status, TaskStatus::Cancelled);
    assert_eq!(get(&world, &session).state, SessionState::Ended);
}

#[test]
fn what_cannot_be_a_session_is_refused_by_its_field() {
    let world = world();
    let wrong = [
        ("name", SessionOpenParams { name: Some(" ".to_owned()), ..SessionOpenParams::default() }),
        ("name", SessionOpenParams { name: Some("user".to_owned()), ..SessionOpenParams::default() }),
        ("hold", SessionOpenParams { hold: SessionHold::Nothing, ..SessionOpenParams::default() }),
        ("lease_ms", SessionOpenParams { lease_ms: Some(5), ..SessionOpenParams::default() }),
        ("max_tasks", SessionOpenParams { max_tasks: Some(0), ..SessionOpenParams::default() }),
        (
            "defaults.ttl_ms",
            SessionOpenParams {
                defaults: SessionDefaults { ttl_ms: Some(0), ..SessionDefaults::default() },
                ..SessionOpenParams::default()
            },
        ),
    ];
    let mut client = world.client();
    for (field, params) in wrong {
        let error = refused(client.call::<SessionOpen>(&params));
        assert_eq!(
            (error.data.kind, error.data.field.as_deref()),
            (ErrorKind::Invalid, Some(field)),
            "{params:?}"
        );
    }
    for id in ["se-nothing", "", "user ", "sh-0123456789abcdef"] {
        let error = refused(client.call::<SessionGet>(&SessionGetParams { id: id.to_owned() }));
        assert_eq!(error.data.kind, ErrorKind::NotFound, "{id:?}");
    }
    let error = refused(client.call::<SessionClose>(&SessionCloseParams {
        id: "user".to_owned(),
        on_end: None,
        reason: None,
        actor: None,
    }));
    assert_eq!(error.data.kind, ErrorKind::WrongState);
    assert_eq!(story(&world, "user"), Vec::<EventKind>::new());
}
