//! What a view of tasks needs: pulses of a set of tasks, previews of stops, and the level of a session as events.

use belay_client::Client;
use belay_protocol::ErrorKind;
use belay_protocol::event::{Event, EventKind};
use belay_protocol::lane::{LaneMode, LaneParams};
use belay_protocol::methods::{
    SessionOpen, TaskGet, TaskPreviewStop, TaskPulse, TaskSetStall, TaskStart, TaskStop,
};
use belay_protocol::session::{SessionCounts, SessionDefaults, SessionOpenParams};
use belay_protocol::task::{
    LanePreview, NoLimit, OnStall, StallParams, StallSetting, StopFence, TaskGetParams, TaskHealth,
    TaskPreviewStopParams, TaskPulseParams, TaskSetStallParams, TaskStartParams, TaskStatus,
};
use belay_testkit::{LONG, World, wait_until};

use crate::support::{FOREVER, refused, stop_of, world};

fn get(client: &mut Client, id: &str) -> belay_protocol::task::TaskInfo {
    client.call::<TaskGet>(&TaskGetParams { id: id.to_owned() }).unwrap()
}

// proves E3
#[test]
fn pulse_reports_output_processes_and_unknown_ids() {
    let world = world();
    let mut client = world.client();
    let busy =
        world.start(&world.start_params(&["sh", "-c", &format!("printf hello; sleep {FOREVER} & wait")])).id;
    world.wait_for_output(&busy, "its word", |said| said == b"hello");
    let ended = world.start(&world.start_params(&["sh", "-c", "printf bye"])).id;
    world.wait_ended(&ended);
    world.kill_daemon();
    let ids = vec![ended.clone(), "sh-nothing".to_owned(), busy.clone(), busy.clone()];
    let mut client_after = world.client();
    let pulse = client_after.call::<TaskPulse>(&TaskPulseParams { ids: ids.clone() }).unwrap();
    assert_eq!(pulse.unknown, ["sh-nothing"]);
    let rows: Vec<(&str, TaskStatus, u64, u64)> = pulse
        .pulses
        .iter()
        .map(|row| (row.id.as_str(), row.status, row.output_bytes, row.processes))
        .collect();
    assert_eq!(
        rows,
        [(ended.as_str(), TaskStatus::Completed, 3, 0), (busy.as_str(), TaskStatus::Running, 5, 2)]
    );
    assert!(pulse.pulses[1].memory_bytes > 0);
    for row in &pulse.pulses {
        let info = get(&mut client_after, &row.id);
        assert_eq!(row.last_event, info.last_event, "{row:?}");
        let (at, seen) = (row.last_output_at.unwrap(), info.output.last_at.unwrap());
        assert!((at.0 - seen.0).abs() <= 100, "{at:?} and {seen:?}");
        assert!(
            at.0 >= info.started_at.unwrap().0
                && at.0 <= info.ended_at.unwrap_or(belay_protocol::Timestamp(i64::MAX)).0
        );
    }
    let error = refused(client_after.call::<TaskPulse>(&TaskPulseParams::default()));
    assert_eq!((error.data.kind, error.data.field.as_deref()), (ErrorKind::Invalid, Some("ids")));
    drop(client.call::<TaskPulse>(&TaskPulseParams { ids }));
}

fn in_lane(world: &World, mode: LaneMode, session: Option<&str>) -> TaskStartParams {
    TaskStartParams {
        lane: Some(LaneParams { name: "deploy".to_owned(), mode, generation: None }),
        session: session.map(str::to_owned),
        ..world.start_params(&["sleep", FOREVER])
    }
}

// proves L4, L5
#[test]
fn preview_of_stop_agrees_with_the_stop() {
    let world = world();
    let mut client = world.client();
    let agent = client.call::<SessionOpen>(&SessionOpenParams::default()).unwrap().session.id;
    let holder = world.start(&in_lane(&world, LaneMode::Reject, Some(&agent))).id;
    let queued = world.start(&in_lane(&world, LaneMode::Queue, Some(&agent))).id;
    let next = world.start(&in_lane(&world, LaneMode::Queue, None)).id;

    let ask = |fence| TaskPreviewStopParams { id: holder.clone(), cascade: false, fence };
    let mild = client.call::<TaskPreviewStop>(&ask(StopFence::No)).unwrap();
    let lane = LanePreview {
        lane: "deploy".to_owned(),
        is_holder: true,
        fenced: None,
        stopped: Vec::new(),
        next: Some(queued.clone()),
    };
    assert_eq!(mild.lane.as_ref(), Some(&lane));
    let preview = client.call::<TaskPreviewStop>(&ask(StopFence::Auto)).unwrap();
    assert_eq!(
        preview.lane,
        Some(LanePreview {
            fenced: Some(agent.clone()),
            stopped: vec![queued.clone()],
            next: Some(next.clone()),
            ..lane
        })
    );
    assert_eq!((preview.status, preview.process_count, preview.below_count), (TaskStatus::Running, 1, 0));
    assert_eq!(preview.processes[0].command, format!("sleep {FOREVER}"));
    assert_eq!(get(&mut client, &holder).status, TaskStatus::Running, "a preview stops nothing");

    let stopped = client.call::<TaskStop>(&stop_of(&holder)).unwrap();
    assert_eq!(stopped.fenced.unwrap().owner, agent);
    assert_eq!(stopped.receipt.unwrap().signals[0].processes, preview.process_count);
    assert_eq!(world.wait_ended(&queued).status, TaskStatus::Cancelled);
    wait_until("the next task to run", LONG, || match get(&mut client, &next).status {
        TaskStatus::Running => Ok(()),
        other => Err(format!("{other:?}")),
    });
    let ended = client.call::<TaskPreviewStop>(&ask(StopFence::Auto)).unwrap();
    assert_eq!((ended.status, ended.process_count, ended.lane), (TaskStatus::Cancelled, 0, None));
}

/// The levels of a session in the order in which they were recorded.
fn levels(world: &World, session: &str) -> Vec<(EventKind, SessionCounts)> {
    let of = |event: &Event| match event {
        Event::SessionBusy { session: of, counts } | Event::SessionDrained { session: of, counts }
            if of == session =>
        {
            Some((event.kind(), *counts))
        }
        _ => None,
    };
    world.events().iter().filter_map(|info| of(&info.event)).collect()
}

// proves L1, E3
#[test]
fn session_levels_are_recorded_once_over_daemon_restart() {
    let world = world();
    let session = world.client().call::<SessionOpen>(&SessionOpenParams::default()).unwrap().session.id;
    let start =
        || TaskStartParams { session: Some(session.clone()), ..world.start_params(&["sleep", FOREVER]) };
    let first = world.start(&start()).id;
    let second = world.start(&start()).id;
    world.kill_daemon();
    world.stop(&stop_of(&first));
    let one = SessionCounts { shells: 1, detached: 0, foreground: 0, queued: 1, ..SessionCounts::default() };
    let busy = (EventKind::SessionBusy, one);
    assert_eq!(levels(&world, &session).iter().map(|level| level.0).collect::<Vec<_>>(), [busy.0]);
    world.stop(&stop_of(&second));
    let drained = (EventKind::SessionDrained, SessionCounts::default());
    assert_eq!(levels(&world, &session)[1..], [drained]);
    world.kill_daemon();
    world.start(&start());
    let kinds: Vec<EventKind> = levels(&world, &session).iter().map(|level| level.0).collect();
    assert_eq!(kinds, [EventKind::SessionBusy, EventKind::SessionDrained, EventKind::SessionBusy]);
    // Right after their causes.
    let all = world.events();
    let at = all.iter().position(|info| info.event.kind() == EventKind::SessionDrained).unwrap();
    assert_eq!(all[at - 1].event.kind(), EventKind::TaskEnded);
    assert_eq!(all[at - 1].event.task(), Some(second.as_str()));
}

// proves R7
#[test]
fn stall_check_comes_from_session_and_changes_while_task_runs() {
    let world = world();
    let mut client = world.client();
    let check = StallParams { after_ms: 200, policy: OnStall::Tell };
    let defaults = SessionDefaults { stall: Some(check), ..SessionDefaults::default() };
    let open = SessionOpenParams { defaults, ..SessionOpenParams::default() };
    let session = client.call::<SessionOpen>(&open).unwrap().session.id;
    let params =
        TaskStartParams { session: Some(session.clone()), ..world.start_params(&["sleep", FOREVER]) };
    let task = client.call::<TaskStart>(&params).unwrap().id;
    wait_until("a stalled task", LONG, || match get(&mut client, &task).health {
        TaskHealth::Stalled => Ok(()),
        other @ TaskHealth::Ok => Err(format!("{other:?}")),
    });
    let kinds: Vec<EventKind> = levels(&world, &session).iter().map(|level| level.0).collect();
    assert_eq!(kinds, [EventKind::SessionBusy, EventKind::SessionDrained], "a stalled task does not work");

    let set = |stall| TaskSetStallParams { id: task.clone(), stall };
    let off = client.call::<TaskSetStall>(&set(StallSetting::Off)).unwrap();
    assert_eq!((off.health, off.clocks.stall), (TaskHealth::Ok, None));
    // The next daemon hears the whole life, in which the check was on at first.
    world.kill_daemon();
    let mut client = world.client();
    let adopted = get(&mut client, &task);
    assert_eq!(
        (adopted.health, adopted.status, adopted.clocks.stall),
        (TaskHealth::Ok, TaskStatus::Running, None)
    );
    let stop = StallSetting::Check { after_ms: 200, policy: OnStall::Stop };
    client.call::<TaskSetStall>(&set(stop)).unwrap();
    assert_eq!(world.wait_ended(&task).status, TaskStatus::TimedOut);
    let error = refused(client.call::<TaskSetStall>(&set(StallSetting::Off)));
    assert_eq!(error.data.kind, ErrorKind::WrongState);
    let changes: Vec<Option<StallParams>> = world
        .events()
        .iter()
        .filter_map(|info| match &info.event {
            Event::TaskStallSet { stall, .. } => Some(*stall),
            _ => None,
        })
        .collect();
    assert_eq!(changes, [None, stop.params()]);

    let without = TaskStartParams { no_limits: vec![NoLimit::Stall], ..params };
    assert_eq!(client.call::<TaskStart>(&without).unwrap().clocks.stall, None);
    let short = SessionDefaults { stall: Some(StallParams { after_ms: 1, ..check }), ..defaults };
    let error = refused(client.call::<SessionOpen>(&SessionOpenParams { defaults: short, ..open }));
    assert_eq!(error.data.field.as_deref(), Some("defaults.stall"));
}

// proves L1, R7
#[test]
fn stop_of_stalled_task_leaves_session_drained() {
    let world = world();
    let mut client = world.client();
    let session = client.call::<SessionOpen>(&SessionOpenParams::default()).unwrap().session.id;
    // It takes a while to end, so that the stop is seen on its way.
    let script = "trap 'sleep 0.3; exit' TERM; while :; do sleep 1000 & wait; done";
    let params = TaskStartParams {
        session: Some(session.clone()),
        stall: Some(StallParams { after_ms: 200, policy: OnStall::Tell }),
        ..world.start_params(&["sh", "-c", script])
    };
    let task = client.call::<TaskStart>(&params).unwrap().id;
    wait_until("a drained session", LONG, || match levels(&world, &session).last() {
        Some((EventKind::SessionDrained, _)) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    client.call::<TaskStop>(&stop_of(&task)).unwrap();
    let kinds: Vec<EventKind> = levels(&world, &session).iter().map(|level| level.0).collect();
    assert_eq!(kinds, [EventKind::SessionBusy, EventKind::SessionDrained]);
}
