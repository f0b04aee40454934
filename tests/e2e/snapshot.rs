//! A view of all tasks: a list in pages, then the events after it. Nothing is missed and nothing is applied twice.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use belay_client::Client;
use belay_protocol::event::{Event, EventFollowParams, EventInfo};
use belay_protocol::lane::LaneListParams;
use belay_protocol::methods::{EventFollow, LaneList, Notification, SessionList, TaskList};
use belay_protocol::session::SessionListParams;
use belay_protocol::task::{TaskListParams, TaskStatus};
use belay_testkit::{LONG, World};

use crate::support::world;

/// What a view knows of one task.
#[derive(Debug)]
struct Row {
    status: TaskStatus,
    last_event: u64,
}

/// Reads all pages. Returns the rows and the number to follow from.
fn snapshot(client: &mut Client) -> (BTreeMap<String, Row>, u64) {
    let mut params = TaskListParams { all: true, limit: Some(1), ..TaskListParams::default() };
    let (mut rows, mut from) = (BTreeMap::new(), None);
    loop {
        let page = client.call::<TaskList>(&params).unwrap();
        from.get_or_insert(page.as_of);
        for task in page.tasks {
            assert!(task.last_event <= page.as_of, "{task:?}");
            rows.insert(task.id, Row { status: task.status, last_event: task.last_event });
        }
        params.cursor = page.next_cursor;
        if params.cursor.is_none() {
            return (rows, from.unwrap());
        }
    }
}

/// Applies an event, unless the row contains it.
fn apply(rows: &mut BTreeMap<String, Row>, info: &EventInfo) {
    let Some(task) = info.event.task() else { return };
    let row = rows.entry(task.to_owned()).or_insert(Row { status: TaskStatus::Queued, last_event: 0 });
    if info.seq <= row.last_event {
        return;
    }
    assert!(!row.status.is_ended(), "{info:?} comes after the end: {row:?}");
    row.last_event = info.seq;
    match &info.event {
        Event::TaskStarted { .. } => row.status = TaskStatus::Running,
        Event::TaskEnded { status, .. } => row.status = *status,
        _ => {}
    }
}

fn busy(world: &World, done: &AtomicBool) {
    let mut number = 0;
    while !done.load(Ordering::Relaxed) {
        number += 1;
        world.start(&world.start_params(&["sh", "-c", &format!("exit {}", number % 3)]));
    }
}

// proves E3
#[test]
fn list_and_following_events_yield_every_change_once() {
    const EVENTS: usize = 400;
    let world = world();
    // Some end while the pages are read: a later page has them as ended, and their end comes as an event, too.
    for n in 0..60 {
        world.start(&world.start_params(&["sleep", &format!("0.{n:02}")]));
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| busy(&world, &done));
        let mut client = world.client();
        let (mut rows, from) = snapshot(&mut client);
        let params = EventFollowParams { after: from, ..EventFollowParams::default() };
        client.call::<EventFollow>(&params).unwrap();
        let mut last = from;
        for _ in 0..EVENTS {
            last = next_event(&mut client, &mut rows, last);
        }
        done.store(true, Ordering::Relaxed);
        // Until everything that was started has ended.
        while rows.values().any(|row| !row.status.is_ended()) {
            last = next_event(&mut client, &mut rows, last);
        }
        let now = snapshot(&mut world.client()).0;
        let known: BTreeMap<&String, TaskStatus> = rows.iter().map(|(id, row)| (id, row.status)).collect();
        for (id, row) in &now {
            if row.last_event <= last {
                assert_eq!(known.get(id), Some(&row.status), "{id}");
            }
        }
        assert!(known.keys().all(|id| now.contains_key(*id)));
    });
    let status = world.status();
    assert_eq!(
        world.client().call::<SessionList>(&SessionListParams::default()).unwrap().as_of,
        status.events_last
    );
    assert_eq!(
        world.client().call::<LaneList>(&LaneListParams::default()).unwrap().as_of,
        status.events_last
    );
}

/// Applies the next event. Numbers have no hole.
fn next_event(client: &mut Client, rows: &mut BTreeMap<String, Row>, last: u64) -> u64 {
    let said = client.next_notification(Some(Instant::now() + LONG)).unwrap();
    let Notification::EventItem(item) = said else { panic!("{said:?}") };
    assert_eq!(item.event.seq, last + 1);
    apply(rows, &item.event);
    item.event.seq
}
