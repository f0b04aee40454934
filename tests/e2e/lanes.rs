//! Lanes: one holder at a time, whoever asks and whatever dies; an order that is kept; and owners who stay out once somebody
//! else has stopped what they had there.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use belay_client::ClientError;
use belay_os::signal::Signal;
use belay_protocol::event::EventKind;
use belay_protocol::lane::{LaneInfo, LaneListParams, LaneMode, LaneParams, LaneReleaseParams};
use belay_protocol::methods::{LaneList, LaneRelease, TaskStart, TaskStop, TaskWrite};
use belay_protocol::session::SessionOpenParams;
use belay_protocol::task::{TaskInfo, TaskStartParams, TaskStatus, TaskWriteParams};
use belay_protocol::{ErrorKind, RpcError};
use belay_testkit::{LONG, World, freeze, wait_until};

use crate::patient::Patient;
use crate::sessions::open;
use crate::support::{FOREVER, refused, stop_of, with_stdin, world};

fn lane(name: &str, mode: LaneMode) -> LaneParams {
    LaneParams { name: name.to_owned(), mode, generation: None }
}

fn holder(world: &World, name: &str, mode: LaneMode) -> TaskStartParams {
    TaskStartParams { lane: Some(lane(name, mode)), ..world.start_params(&["sleep", FOREVER]) }
}

fn lanes(world: &World) -> Vec<LaneInfo> {
    world.client().call::<LaneList>(&LaneListParams::default()).unwrap().lanes
}

#[track_caller]
fn wait_status(world: &World, id: &str, status: TaskStatus) -> TaskInfo {
    wait_until("the task's status", LONG, || {
        let task = world.get(id);
        if task.status == status { Ok(task) } else { Err(format!("{task:?}")) }
    })
}

// proves L4
#[test]
fn a_lane_rejects_queues_and_lets_go_in_order() {
    let world = world();
    let first = world.start(&holder(&world, "seat", LaneMode::Reject));
    let error = refused(world.client().call::<TaskStart>(&holder(&world, "seat", LaneMode::Reject)));
    assert_eq!((error.data.kind, error.data.ids.clone()), (ErrorKind::LaneHeld, vec![first.id.clone()]));
    assert_eq!(error.message, format!("lane seat is held by task {} of user", first.id));
    let said = world.belay(["run", "--lane", "seat", "--", "true"]);
    assert_eq!(said.code, Some(1), "{said}");

    let queue: Vec<TaskInfo> =
        (0..3).map(|_| world.start(&holder(&world, "seat", LaneMode::Queue))).collect();
    for (place, task) in (1..).zip(&queue) {
        let seat = world.get(&task.id).lane.unwrap();
        assert_eq!((task.status, seat.place, seat.generation), (TaskStatus::Queued, Some(place), None));
    }
    // One that waits can be seen, and cancelled; it never runs.
    world.stop(&stop_of(&queue[1].id));
    let gone = world.wait_ended(&queue[1].id);
    assert_eq!((gone.status, gone.pid), (TaskStatus::Cancelled, None));
    assert!(gone.outcome.unwrap().receipt().unwrap().signals.is_empty());
    let [seat] = lanes(&world).try_into().unwrap();
    assert_eq!(seat.holder.unwrap().task, first.id);
    assert_eq!(
        seat.queue.into_iter().map(|waiting| waiting.task).collect::<Vec<_>>(),
        [queue[0].id.clone(), queue[2].id.clone()]
    );

    world.stop(&stop_of(&first.id));
    let next = wait_status(&world, &queue[0].id, TaskStatus::Running);
    assert!(next.lane.unwrap().generation > first.lane.unwrap().generation);
    assert_eq!(world.get(&queue[2].id).status, TaskStatus::Queued);
    world.stop(&stop_of(&queue[0].id));
    wait_status(&world, &queue[2].id, TaskStatus::Running);
    world.stop(&stop_of(&queue[2].id));
    assert_eq!(lanes(&world), [], "a lane that nobody wants is no lane");
}

// proves L4
#[test]
fn what_waits_for_its_turn_has_not_started_and_then_has_from_there_on() {
    let world = world();
    let first = world.start(&holder(&world, "seat", LaneMode::Reject));
    assert!(first.started_at.is_some_and(|started| started >= first.created_at), "{first:?}");
    let waiting = world.start(&holder(&world, "seat", LaneMode::Queue));
    let never = world.start(&holder(&world, "seat", LaneMode::Queue));
    assert_eq!((waiting.status, waiting.started_at), (TaskStatus::Queued, None));
    world.stop(&stop_of(&never.id));
    assert_eq!(world.wait_ended(&never.id).started_at, None);

    world.stop(&stop_of(&first.id));
    let freed = world.wait_ended(&first.id).ended_at.unwrap();
    let running = wait_status(&world, &waiting.id, TaskStatus::Running);
    assert_eq!(running.created_at, waiting.created_at);
    assert!(running.created_at <= freed && running.started_at.unwrap() >= freed, "{running:?}, {freed}");
    // The next daemon says the same, of what runs and of what has ended.
    world.kill_daemon();
    let adopted = world.get(&running.id);
    assert_eq!((adopted.created_at, adopted.started_at), (running.created_at, running.started_at));
    world.stop(&stop_of(&running.id));
    assert_eq!(world.wait_ended(&running.id).started_at, running.started_at);
}

/// The holder ignores SIGTERM and leaves a child that does too: the next one begins when nobody of it is left.
// proves L4, K1
#[test]
fn replacing_stops_the_holder_first_and_begins_when_its_tree_is_empty() {
    let world = world();
    let alive = world.dir().join("alive");
    let script = format!(
        "trap '' TERM; (trap '' TERM; while :; do date +%s%N >{0}.new; mv {0}.new {0}; sleep 0.02; done) & \
         sleep {FOREVER}; sleep {FOREVER}",
        alive.display()
    );
    let stubborn = TaskStartParams {
        lane: Some(lane("seat", LaneMode::Reject)),
        grace_ms: Some(300),
        ..world.start_params(&["sh", "-c", &script])
    };
    let first = world.start(&stubborn);
    wait_until("the holder's child", LONG, || if alive.exists() { Ok(()) } else { Err(String::new()) });
    let queued = world.start(&holder(&world, "seat", LaneMode::Queue));
    let script = format!("date +%s%N; cat {}; sleep {FOREVER}", alive.display());
    let replacing = |name: &str| TaskStartParams {
        lane: Some(lane("seat", LaneMode::Replace)),
        name: Some(name.to_owned()),
        ..world.start_params(&["sh", "-c", &script])
    };
    let too_slow = world.start(&replacing("too slow"));
    let second = world.start(&replacing("second"));
    // One that waited to replace the holder gives way to the next that does.
    let gone = world.wait_ended(&too_slow.id);
    assert_eq!((gone.status, gone.pid), (TaskStatus::Cancelled, None));
    let outcome = world.wait_ended(&first.id).outcome.unwrap();
    let reason = outcome.reason().unwrap();
    assert_eq!(reason, format!("replaced in lane seat by {}", too_slow.id));
    wait_status(&world, &second.id, TaskStatus::Running);
    let said = world
        .wait_for_output(&second.id, "both times", |said| said.split(|byte| *byte == b'\n').count() == 3);
    let times: Vec<u128> =
        String::from_utf8(said).unwrap().lines().map(|line| line.parse().unwrap()).collect();
    assert!(times[0] > times[1], "the holder's child was alive after the next had begun");
    assert_eq!(world.get(&queued.id).status, TaskStatus::Queued, "who waited in line waits on");
    world.stop(&stop_of(&second.id));
    wait_status(&world, &queued.id, TaskStatus::Running);
}

/// The story that lanes are for, step by step: a lead agent's dispatcher fires prompts at a member; a person stops the job;
/// the dispatcher, which nobody has stopped, tries again.
// proves L5, L4
#[test]
fn an_orphaned_dispatcher_cannot_fire_a_second_prompt() {
    let world = world();
    let belay = world.program().to_str().unwrap();
    // The lead's session, and its dispatcher: a loop of its own that starts a job at the member whenever it may.
    let lead =
        open(&world, SessionOpenParams { name: Some("lead".to_owned()), ..SessionOpenParams::default() });
    let fired = world.dir().join("fired");
    let job = format!("echo >>{}; sleep {FOREVER}", fired.display());
    let script = format!(
        r#"while :; do "$0" run --lane member-1 -- sh -c '{job}' 2>&1; echo "code $?"; sleep 0.05; done"#
    );
    let dispatcher = TaskStartParams {
        session: Some(lead.session.id.clone()),
        ..world.start_params(&["sh", "-c", &script, belay])
    };
    let dispatcher = world.start(&dispatcher);
    let prompts = || std::fs::read(&fired).map_or(0, |bytes| bytes.len());
    wait_until("the first prompt", LONG, || if prompts() == 1 { Ok(()) } else { Err(String::new()) });
    let [seat] = lanes(&world).try_into().unwrap();
    let running = seat.holder.unwrap();
    assert_eq!(running.owner, lead.session.id);

    // A person stops the job. The dispatcher is not stopped, and retries: it is refused, and told by whom, when and why.
    let said = world.belay(["stop", &running.task, "--reason", "wrong branch"]);
    assert_eq!(said.code, Some(0), "{said}");
    let told = format!(
        "{} is fenced from lane member-1; belay lanes release member-1 removes the fence\n",
        lead.session.id
    );
    assert_eq!(String::from_utf8(said.stderr).unwrap(), told);
    let said = world.wait_for_output(&dispatcher.id, "three refusals", |said| {
        String::from_utf8_lossy(said).matches("code 1").count() >= 3
    });
    let said = String::from_utf8(said).unwrap();
    let outcome = world.get(&running.task).outcome.unwrap();
    let who = outcome.actor().unwrap();
    let refusal =
        format!("{} is fenced from lane member-1: {who} stopped {} at ", lead.session.id, running.task);
    assert!(said.contains(&refusal) && said.contains(": wrong branch"), "{said}");
    assert_eq!(prompts(), 1);

    // So is everything else that would be done in the lead's name there, by whatever means.
    let mut client = world.client_as(&lead.token);
    for mode in [LaneMode::Reject, LaneMode::Queue, LaneMode::Replace] {
        let error = refused(client.call::<TaskStart>(&holder(&world, "member-1", mode)));
        fenced(&error, &lead.session.id, &running.task, "wrong branch");
    }
    let mut nested =
        client.call::<belay_protocol::methods::SessionOpen>(&SessionOpenParams::default()).unwrap();
    let error = refused(world.client_as(&nested.token).call::<TaskStart>(&holder(
        &world,
        "member-1",
        LaneMode::Reject,
    )));
    fenced(&error, &lead.session.id, &running.task, "wrong branch");
    nested.token.clear();
    let release = LaneReleaseParams { name: "member-1".to_owned(), owner: None, reason: None };
    assert_eq!(refused(client.call::<LaneRelease>(&release)).data.kind, ErrorKind::NotPermitted);
    // Other lanes are not its fault, and others may have this one.
    let other = client.call::<TaskStart>(&holder(&world, "member-2", LaneMode::Reject)).unwrap();
    world.stop(&stop_of(&world.start(&holder(&world, "member-1", LaneMode::Reject)).id));
    client.call::<TaskStop>(&stop_of(&other.id)).unwrap();

    // Also across the death of the daemon.
    world.kill_daemon();
    let mut client = world.client_as(&lead.token);
    let error = refused(client.call::<TaskStart>(&holder(&world, "member-1", LaneMode::Reject)));
    fenced(&error, &lead.session.id, &running.task, "wrong branch");
    assert_eq!(prompts(), 1);

    // Re-armed by a person, it works again: the dispatcher's own loop gets through.
    let said = world.belay(["lanes", "release", "member-1", "--reason", "right branch now"]).ok().line();
    assert_eq!(said, format!("lane member-1 released; {} may have it again", lead.session.id));
    wait_until("the second prompt", LONG, || {
        if prompts() == 2 { Ok(()) } else { Err(format!("{}", prompts())) }
    });
    world.stop(&stop_of(&dispatcher.id));
    let kinds: Vec<EventKind> = world.events().into_iter().map(|event| event.event.kind()).collect();
    assert_eq!(kinds.iter().filter(|kind| **kind == EventKind::LaneFenced).count(), 1);
    assert_eq!(kinds.iter().filter(|kind| **kind == EventKind::LaneReleased).count(), 1);
}

#[track_caller]
fn fenced(error: &RpcError, owner: &str, task: &str, reason: &str) {
    assert_eq!(
        (error.data.kind, error.data.field.as_deref()),
        (ErrorKind::Fenced, Some("lane")),
        "{error:?}"
    );
    let fence = error.data.fence.clone().unwrap();
    assert_eq!(
        (fence.owner.as_str(), fence.task.as_str(), fence.reason.as_deref()),
        (owner, task, Some(reason))
    );
}

// proves L5
#[test]
fn a_fence_ends_what_waits_and_stops_writes_and_an_owner_who_stops_its_own_is_not_fenced() {
    let world = world();
    let owner = open(&world, SessionOpenParams::default());
    let mut client = world.client_as(&owner.token);
    // Stopped by itself: no fence.
    let own = client.call::<TaskStart>(&holder(&world, "seat", LaneMode::Reject)).unwrap();
    assert_eq!(client.call::<TaskStop>(&stop_of(&own.id)).unwrap().fenced, None);
    // It takes SIGTERM for a while, so that it can be written to while it is being stopped.
    let script = format!("trap '' TERM; echo ready; cat; sleep {FOREVER}");
    let slow = TaskStartParams {
        grace_ms: Some(60_000),
        lane: Some(lane("seat", LaneMode::Reject)),
        ..with_stdin(world.start_params(&["sh", "-c", &script]))
    };
    let held = client.call::<TaskStart>(&slow).unwrap();
    let generation = held.lane.as_ref().unwrap().generation;
    world.wait_for_output(&held.id, "the trap", |said| said == b"ready\n");
    let waiting = client.call::<TaskStart>(&holder(&world, "seat", LaneMode::Queue)).unwrap();
    let write = |text: &str| TaskWriteParams {
        id: held.id.clone(),
        data: text.into(),
        close: false,
        key: None,
        room_ms: None,
    };
    client.call::<TaskWrite>(&write("before\n")).unwrap();
    let params = belay_protocol::task::TaskStopParams { wait: false, ..stop_of(&held.id) };
    let fence = world.stop(&params).fenced.unwrap();
    assert_eq!((fence.owner.as_str(), Some(fence.generation)), (owner.session.id.as_str(), generation));
    assert_eq!(refused(client.call::<TaskWrite>(&write("after\n"))).data.kind, ErrorKind::Fenced);
    world.client().call::<TaskWrite>(&write("a person may\n")).unwrap();
    let gone = world.wait_ended(&waiting.id);
    assert_eq!((gone.status, gone.pid), (TaskStatus::Cancelled, None));
    let kill = belay_protocol::task::TaskStopParams {
        level: Some(belay_protocol::life::StopLevel::Kill),
        ..stop_of(&held.id)
    };
    world.stop(&kill);
    assert_eq!(world.logs(&held.id), b"ready\nbefore\na person may\n");
    // A generation that somebody has followed is stale, whoever shows it.
    world
        .client()
        .call::<LaneRelease>(&LaneReleaseParams { name: "seat".to_owned(), owner: None, reason: None })
        .unwrap();
    let with = |generation| TaskStartParams {
        lane: Some(LaneParams { name: "seat".to_owned(), mode: LaneMode::Reject, generation }),
        ..world.start_params(&["true"])
    };
    let next = world.start(&holder(&world, "seat", LaneMode::Reject));
    let keeper = world.start(&holder(&world, "seat", LaneMode::Queue));
    world.stop(&stop_of(&next.id));
    wait_status(&world, &keeper.id, TaskStatus::Running);
    assert_eq!(refused(client.call::<TaskStart>(&with(generation))).data.kind, ErrorKind::Stale);
}

/// Fifty clients want one seat, and the daemon is killed again and again. Each task marks its own beginning and end: they never
/// overlap, they begin in the order in which they were let in, and everybody gets a turn.
// proves L4, D1
#[test]
fn fifty_clients_race_for_one_lane_and_the_daemon_dies_in_between() {
    const CLIENTS: usize = 50;
    let world = world();
    let log = world.dir().join("log");
    let over = AtomicBool::new(false);
    let crashes = AtomicU64::new(0);
    let numbers: BTreeMap<usize, TaskInfo> = std::thread::scope(|scope| {
        let client = |number: usize| {
            let (world, log) = (&world, &log);
            move || {
                let script =
                    format!("echo begin {number} >>{0}; sleep 0.03; echo end {number} >>{0}", log.display());
                let params = TaskStartParams {
                    token: Some(format!("client {number}")),
                    lane: Some(lane("seat", LaneMode::Queue)),
                    ..world.start_params(&["sh", "-c", &script])
                };
                (number, Patient::new(world).call::<TaskStart>(&params))
            }
        };
        let all: Vec<_> = (0..CLIENTS).map(|number| scope.spawn(client(number))).collect();
        let killer = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) || crashes.load(Ordering::Relaxed) < 5 {
                // Sleeps because the daemon is to die at instants that nobody chose.
                std::thread::sleep(Duration::from_millis(120));
                if let Some(daemon) = world.daemon() {
                    belay_testkit::end(daemon.identity);
                    crashes.fetch_add(1, Ordering::Relaxed);
                } else {
                    world.belay(["up"]);
                }
            }
        });
        let started: BTreeMap<usize, TaskInfo> = all.into_iter().map(|one| one.join().unwrap()).collect();
        over.store(true, Ordering::Relaxed);
        killer.join().unwrap();
        started
    });
    for task in numbers.values() {
        let ended = world.wait_ended(&task.id);
        let story = || world.events_of(&task.id);
        assert_eq!(ended.status, TaskStatus::Completed, "nobody is forgotten: {:?} {ended:?}", story());
    }
    let said = String::from_utf8(std::fs::read(&log).unwrap()).unwrap();
    let lines: Vec<(&str, usize)> = said
        .lines()
        .map(|line| line.split_once(' ').map(|(what, number)| (what, number.parse().unwrap())).unwrap())
        .collect();
    assert_eq!(lines.len(), 2 * CLIENTS);
    for turn in lines.chunks(2) {
        assert_eq!((turn[0].0, turn[1].0, turn[0].1), ("begin", "end", turn[1].1), "two at once: {said}");
    }
    // In the order in which they came in, as the record has it.
    let came: Vec<String> = world
        .events()
        .into_iter()
        .filter(|event| event.event.kind() == EventKind::TaskCreated)
        .filter_map(|event| event.event.task().map(str::to_owned))
        .collect();
    let begun: Vec<String> = lines
        .iter()
        .filter(|(what, _)| *what == "begin")
        .map(|(_, number)| numbers[number].id.clone())
        .collect();
    assert_eq!(begun, came);
}

/// A seat is given to whoever is next, also while its shim cannot be reached; it sits down when the shim answers.
// proves L4, D1
#[test]
fn whose_turn_came_while_its_shim_stood_still_begins_when_it_answers() {
    let world = world();
    let first = world.start(&holder(&world, "one", LaneMode::Queue));
    let script = format!("echo begun; exec sleep {FOREVER}");
    let params = TaskStartParams {
        lane: Some(lane("one", LaneMode::Queue)),
        ..world.start_params(&["sh", "-c", &script])
    };
    let second = world.start(&params);
    assert_eq!(second.status, TaskStatus::Queued);
    let frozen = freeze(second.held_by.unwrap().shim_pid);
    world.kill_daemon();
    world.stop(&stop_of(&first.id));
    wait_until("the seat for the second", LONG, || match lanes(&world).as_slice() {
        [lane] if lane.holder.as_ref().is_some_and(|holder| holder.task == second.id) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    assert_eq!(world.get(&second.id).status, TaskStatus::Queued);
    drop(frozen);
    world.wait_for_output(&second.id, "its word", |said| said == b"begun\n");
    assert_eq!(world.get(&second.id).status, TaskStatus::Running);
}

// proves L4, S5
#[test]
fn whoever_waits_in_the_foreground_waits_for_its_turn_and_can_give_up() {
    let world = world();
    let first = world.start(&holder(&world, "seat", LaneMode::Reject));
    let mut waiting = world.spawn_with_stdin(["run", "--stdin", "--lane", "seat:queue", "--", "cat"]);
    waiting.write(b"typed while it waits\n");
    waiting.close_stdin();
    let impatient = world.spawn(["run", "--lane", "seat:queue", "--", "echo", "never"]);
    wait_until("both in line", LONG, || match lanes(&world).first() {
        Some(lane) if lane.queue.len() == 2 => Ok(()),
        other => Err(format!("{other:?}")),
    });
    impatient.signal(Signal::INT);
    let gone = impatient.finish();
    assert_eq!((gone.code, gone.stdout.as_slice()), (Some(130), b"".as_slice()), "{gone}");
    world.stop(&stop_of(&first.id));
    let done = waiting.finish();
    assert_eq!(
        (done.code, done.stdout.as_slice()),
        (Some(0), b"typed while it waits\n".as_slice()),
        "{done}"
    );
}

#[test]
fn a_lane_without_a_name_is_refused() {
    let world = world();
    for name in ["", " ", "a\nb"] {
        let params =
            TaskStartParams { lane: Some(lane(name, LaneMode::Queue)), ..world.start_params(&["true"]) };
        let error = match world.client().call::<TaskStart>(&params) {
            Err(ClientError::Rpc(error)) => error,
            other => panic!("{other:?}"),
        };
        assert_eq!((error.data.kind, error.data.field.as_deref()), (ErrorKind::Invalid, Some("lane")));
    }
    assert_eq!(world.belay(["run", "--lane", "x:later", "--", "true"]).code, Some(2));
    let release = LaneReleaseParams { name: "none".to_owned(), owner: None, reason: None };
    assert_eq!(refused(world.client().call::<LaneRelease>(&release)).data.kind, ErrorKind::NotFound);
}
