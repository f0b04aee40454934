//! Events: numbered without a hole, the same for every reader, from any number on, through the death of daemons; and
//! whoever comes too late is told from where to go on.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use belay_client::{Client, ClientError};
use belay_os::signal::Signal;
use belay_protocol::event::{
    EventFollowParams, EventGroup, EventInfo, EventKind, EventReadParams, EventTypePattern,
};
use belay_protocol::life::StopLevel;
use belay_protocol::methods::{
    DaemonGc, EventFollow, EventRead, Notification, SessionClose, SessionOpen, TaskStart, TaskStop,
};
use belay_protocol::session::{SessionCloseParams, SessionOpenParams};
use belay_protocol::task::{TaskStatus, TaskStopParams};
use belay_protocol::{ErrorKind, RpcError};
use belay_testkit::{LONG, World, wait_until};
use serde_json::json;

use crate::patient::{Patient, connect};
use crate::raw::Raw;
use crate::support::{builder, refused, stop_of, world};

/// Takes this long over every event. Goes on after its last one whenever the daemon dies.
fn follow_slowly(world: &World, pause: Duration, last: &AtomicU64) -> Vec<EventInfo> {
    let mut all: Vec<EventInfo> = Vec::new();
    let mut client: Option<Client> = None;
    let until = Instant::now() + LONG * 2;
    while all.len() as u64 != last.load(Ordering::Relaxed) {
        assert!(Instant::now() < until, "{} events came, then nothing", all.len());
        let after = all.last().map_or(0, |event| event.seq);
        let Some(connected) = &mut client else {
            let begin = |client: &mut Client| {
                client
                    .call::<EventFollow>(&EventFollowParams { after, ..EventFollowParams::default() })
                    .is_ok()
            };
            client = connect(world).ok().and_then(|mut new| begin(&mut new).then_some(new));
            continue;
        };
        match connected.next_notification(Some(Instant::now() + Duration::from_millis(200))) {
            Ok(said) => {
                let Notification::EventItem(item) = said else { panic!("{said:?}") };
                all.push(item.event);
                std::thread::sleep(pause);
            }
            Err(ClientError::Deadline) => {}
            Err(_) => client = None,
        }
    }
    all
}

// proves W4
#[test]
fn what_happened_is_told_to_people_in_words() {
    let world = world();
    let id = world.run_detached(["--name", "web", "--", "sh", "-c", "exit 3"]);
    world.wait_ended(&id);
    let pid = world.get(&id).leader.unwrap().pid;
    let told = String::from_utf8(world.belay(["events", "--task", &id]).ok().stdout).unwrap();
    let words = told.lines().map(|line| line.split_once(&format!("{id}  ")).unwrap().1);
    let expected = [
        "created as web: sh -c 'exit 3'".to_owned(),
        format!("started, pid {pid}"),
        "leader exited with 3".to_owned(),
        "failed: exit 3".to_owned(),
    ];
    assert_eq!(words.collect::<Vec<_>>(), expected);
}

/// Asks for a few at a time.
fn read_in_bites(world: &World, last: &AtomicU64) -> Vec<EventInfo> {
    let mut patient = Patient::new(world);
    let mut all: Vec<EventInfo> = Vec::new();
    let until = Instant::now() + LONG * 2;
    while all.len() as u64 != last.load(Ordering::Relaxed) {
        assert!(Instant::now() < until, "{} events came, then nothing", all.len());
        let after = all.last().map_or(0, |event| event.seq);
        let page = patient.call::<EventRead>(&EventReadParams {
            after,
            max: Some(3),
            wait_ms: 100,
            ..EventReadParams::default()
        });
        assert!(page.events.len() <= 3);
        assert_eq!(page.next, page.events.last().map_or(after, |event| event.seq));
        all.extend(page.events);
    }
    all
}

/// Things that happen, and five deaths among them. Returns the number of the last event.
fn live_and_die(world: &World) -> u64 {
    let mut patient = Patient::new(world);
    for round in 0..6 {
        let session = patient.call::<SessionOpen>(&SessionOpenParams::default()).session.id;
        let ended = patient.call::<TaskStart>(&world.start_params(&["true"]));
        let stopped = patient.call::<TaskStart>(&world.start_params(&["sleep", "1000"]));
        world.stop(&stop_of(&stopped.id));
        patient.wait_ended(&ended.id);
        patient.call::<SessionClose>(&SessionCloseParams {
            id: session,
            on_end: None,
            reason: None,
            actor: None,
        });
        if round < 5 {
            world.kill_daemon();
        }
    }
    patient.events(0).last().unwrap().seq
}

// proves W4, D1
#[test]
fn three_readers_see_the_same_through_five_deaths() {
    let world = world();
    world.belay(["up"]).ok();
    // Nobody knows the last number before it has happened.
    let last = AtomicU64::new(u64::MAX);
    let following = world.spawn(["events", "-f", "--json"]);
    let (slow, bites, count) = std::thread::scope(|scope| {
        let slow = scope.spawn(|| follow_slowly(&world, Duration::from_millis(20), &last));
        let bites = scope.spawn(|| read_in_bites(&world, &last));
        let count = live_and_die(&world);
        last.store(count, Ordering::Relaxed);
        (slow.join().unwrap(), bites.join().unwrap(), count)
    });
    let whole = |heard: &[u8]| heard.split(|byte| *byte == b'\n').count() as u64 == count + 1;
    let heard = following.wait_for_stdout("every event", whole);
    let followed: Vec<EventInfo> =
        heard.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect();

    let all = Patient::new(&world).events(0);
    assert_eq!(all.iter().map(|event| event.seq).collect::<Vec<_>>(), (1..=count).collect::<Vec<_>>());
    assert_eq!(slow, all);
    assert_eq!(bites, all);
    assert_eq!(followed, all);
    assert_eq!(all.iter().filter(|event| event.event.kind() == EventKind::DaemonStarted).count(), 6);
    assert_eq!(all.iter().filter(|event| event.event.kind() == EventKind::TaskEnded).count(), 12);
    assert_eq!(all.iter().filter(|event| event.event.kind() == EventKind::SessionEnded).count(), 6);
    for after in [0, 1, count / 2, count - 1, count] {
        let place = usize::try_from(after).unwrap();
        assert_eq!(Patient::new(&world).events(after), all[place..], "from {after} on");
    }
}

// proves W4
#[test]
fn a_number_that_has_not_been_is_told_so() {
    let world = world();
    let mut client = world.client();
    let last = world.status().events_last;
    let error = refused(
        client.call::<EventRead>(&EventReadParams { after: last + 100, ..EventReadParams::default() }),
    );
    assert_eq!((error.data.kind, error.data.field.as_deref()), (ErrorKind::Invalid, Some("after")));
    assert_eq!(error.data.from, Some(last));
    let error = refused(
        client.call::<EventFollow>(&EventFollowParams { after: last + 100, ..EventFollowParams::default() }),
    );
    assert_eq!((error.data.kind, error.data.from), (ErrorKind::Invalid, Some(last)));
    let said = world.belay(["events", "--after", "1000"]);
    let expected = format!(
        "error: event 1000 has not happened yet: the last one is {last}\n \
         hint: go on with after = {last}; belay events -f --after {last} shows what comes\n"
    );
    assert_eq!((said.code, String::from_utf8(said.stderr).unwrap()), (Some(2), expected));
}

fn run_some(world: &World, count: usize) {
    let mut client = world.client();
    for _ in 0..count {
        let task = client.call::<TaskStart>(&world.start_params(&["true"])).unwrap();
        assert_eq!(world.wait_ended(&task.id).status, TaskStatus::Completed);
    }
}

// proves W4, D8
#[test]
fn events_expire_by_rule_and_a_late_reader_is_told_where_to_go_on() {
    let world = builder().env("BELAY_RETENTION", "events=10").build();
    run_some(&world, 5);
    let before = Patient::new(&world).events(0);
    let last = before.last().unwrap().seq;
    assert!(last >= 20, "{before:?}");
    let gone = world.client().call::<DaemonGc>(&belay_protocol::daemon::DaemonGcParams::default()).unwrap();
    assert_eq!((gone.events_expired, gone.removed), (last - 10, 0));
    let status = world.status();
    assert_eq!((status.events_first, status.events_last), (last - 9, last));

    let error = refused(
        world.client().call::<EventRead>(&EventReadParams { after: 3, ..EventReadParams::default() }),
    );
    assert_eq!((error.data.kind, error.data.from), (ErrorKind::Expired, Some(last - 10)));
    assert_eq!(
        error.message,
        format!("events up to {} have been removed by the rules of retention", last - 10)
    );
    let error = refused(
        world.client().call::<EventFollow>(&EventFollowParams { after: 3, ..EventFollowParams::default() }),
    );
    assert_eq!((error.data.kind, error.data.from), (ErrorKind::Expired, Some(last - 10)));
    for args in [&["events", "--after", "3"][..], &["events", "-f", "--after", "3"]] {
        let said = world.belay(args);
        assert_eq!((said.code, said.stdout.as_slice()), (Some(1), &b""[..]), "{said}");
        let told = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(told.contains(&format!("belay events --after {}", last - 10)), "{told}");
    }
    let kept = usize::try_from(last - 10).unwrap();
    assert_eq!(Patient::new(&world).events(last - 10), before[kept..]);
    assert_eq!(Patient::new(&world).events(0), before[kept..], "0 is the oldest that is kept");

    // The numbers go on where they were, also after a restart.
    world.kill_daemon();
    run_some(&world, 1);
    let numbers: Vec<u64> = Patient::new(&world).events(last).iter().map(|event| event.seq).collect();
    assert_eq!(numbers, (last + 1..=last + numbers.len() as u64).collect::<Vec<_>>());
}

// proves W4
#[test]
fn a_reader_can_ask_for_some_and_the_numbers_stay() {
    let world = world();
    let session = crate::sessions::open(&world, SessionOpenParams::default()).session.id;
    let mut params = world.start_params(&["true"]);
    let outside = world.start(&params).id;
    params.session = Some(session.clone());
    let inside = world.start(&params).id;
    for id in [&outside, &inside] {
        world.wait_ended(id);
    }
    let all = Patient::new(&world).events(0);
    let read = |args: &[&str]| -> Vec<EventInfo> {
        world.belay([&["events", "--json"], args].concat()).ok().json_lines()
    };
    let only = |wanted: &dyn Fn(&EventInfo) -> bool| -> Vec<EventInfo> {
        all.iter().filter(|event| wanted(event)).cloned().collect()
    };
    assert_eq!(read(&[]), all);
    assert_eq!(read(&["--type", "task.ended"]), only(&|event| event.event.kind() == EventKind::TaskEnded));
    let several = read(&["--type", "session.*", "--type", "task.created"]);
    assert_eq!(
        several,
        only(&|event| {
            let kind = event.event.kind();
            kind.group() == Some(EventGroup::Session) || kind == EventKind::TaskCreated
        })
    );
    assert_eq!(read(&["--task", &inside[..8]]), only(&|event| event.event.task() == Some(inside.as_str())));
    assert_eq!(
        read(&["--session", &session]),
        only(&|event| event.event.session() == Some(session.as_str()))
    );
    // One that waits is not answered by what it does not want.
    let following = world.spawn(["events", "-f", "--json", "--type", "lane.*"]);
    let mut params = world.start_params(&["true"]);
    world.wait_ended(&world.start(&params).id);
    params.lane = Some(belay_protocol::lane::LaneParams {
        name: "seat".to_owned(),
        mode: belay_protocol::lane::LaneMode::Reject,
        generation: None,
    });
    world.wait_ended(&world.start(&params).id);
    let heard =
        following.wait_for_stdout("two events", |heard| heard.split(|byte| *byte == b'\n').count() == 3);
    let kinds: Vec<EventKind> = heard
        .split(|byte| *byte == b'\n')
        .filter_map(|line| serde_json::from_slice::<EventInfo>(line).ok())
        .map(|event| event.event.kind())
        .collect();
    assert_eq!(kinds, [EventKind::LaneGranted, EventKind::LaneLeft]);
    for odd in ["task ended", "task.endd", "tasks.*", "*"] {
        let answer = Raw::greeted(&world).call("event/read", &json!({ "only": { "types": [odd] } }));
        let error: RpcError = serde_json::from_value(answer["error"].clone()).unwrap();
        assert_eq!((error.data.kind, error.data.field.as_deref()), (ErrorKind::Invalid, Some("types")));
        assert_eq!(error.message, format!("there is no type of event {odd:?}"));
        assert_eq!(error.data.hint.as_deref(), Some(EventTypePattern::HINT));
        let said = world.belay(["events", "--type", odd]);
        assert_eq!(said.code, Some(2), "{said}");
    }
}

// proves K6
#[test]
fn a_stop_that_takes_long_is_told_when_it_begins() {
    let world = world();
    let mut client = world.client();
    let id = world.run_detached(["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done"]);
    world.wait_for_output(&id, "ready", |said| said == b"ready\n");
    let follower = world.spawn(["events", "-f", "--type", "task.stopping", "--json"]);
    wait_until("a follower", LONG, || match world.status().clients {
        3.. => Ok(()),
        clients => Err(format!("{clients} clients")),
    });
    // Nothing else happens after it: neither an end, nor a question, nor somebody who leaves.
    let stop = TaskStopParams { wait: false, grace_ms: Some(500_000), ..stop_of(&id) };
    client.call::<TaskStop>(&stop).unwrap();
    let line = follower.wait_for_stdout("the beginning of the stop", |said| said.ends_with(b"\n"));
    let told: EventInfo = serde_json::from_slice(&line).unwrap();
    assert_eq!((told.event.kind(), told.event.task()), (EventKind::TaskStopping, Some(id.as_str())));
    client.call::<TaskStop>(&TaskStopParams { level: Some(StopLevel::Kill), ..stop_of(&id) }).unwrap();
    follower.signal(Signal::TERM);
    follower.finish();
}
