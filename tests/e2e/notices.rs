//! Completions are told once, to whoever should hear of them.

use belay_client::Client;
use belay_protocol::methods::{SessionNotices, TaskStart, TaskStop, TaskWait};
use belay_protocol::session::{SessionNoticesParams, SessionOpenParams};
use belay_protocol::task::{self, TaskStartParams};

use crate::sessions::{get, open, sleeper};
use crate::support::{stop_of, world};

fn notices(client: &mut Client, id: &str, ack: Option<u64>, wait_ms: u64) -> Vec<(u64, String)> {
    let params = SessionNoticesParams { id: id.to_owned(), ack, wait_ms, max: None };
    let found = client.call::<SessionNotices>(&params).unwrap();
    found.notices.into_iter().map(|notice| (notice.seq, notice.task.id)).collect()
}

// proves W3
#[test]
fn an_end_is_told_once_to_whoever_should_hear_of_it() {
    let world = world();
    let opened = open(&world, SessionOpenParams::default());
    let id = opened.session.id.clone();
    let mut client = world.client_as(&opened.token);
    let quick = TaskStartParams { session: Some(id.clone()), ..world.start_params(&["true"]) };

    // Idle: nobody waits when it ends. It is told until it is acknowledged, also by the next daemon.
    let first = world.start(&quick);
    let told = notices(&mut client, &id, None, 20_000);
    assert_eq!(told.iter().map(|(_, task)| task.as_str()).collect::<Vec<_>>(), [first.id.as_str()]);
    assert_eq!(notices(&mut client, &id, None, 0), told);
    world.kill_daemon();
    let mut client = world.client_as(&opened.token);
    assert_eq!(notices(&mut client, &id, None, 0), told);
    assert_eq!(notices(&mut client, &id, Some(told[0].0), 0), []);
    assert_eq!(get(&world, &id).notices, 0);

    // Busy: whoever waits on another connection is told when it asks; several in order.
    let (second, third) = (world.start(&quick), world.start(&quick));
    for task in [&second, &third] {
        world.wait_ended(&task.id);
    }
    let told = notices(&mut client, &id, None, 0);
    let mut ends: Vec<String> = told.iter().map(|(_, task)| task.clone()).collect();
    ends.sort();
    let mut both = [second.id, third.id];
    both.sort();
    assert_eq!(ends, both);
    assert!(told[0].0 < told[1].0);
    assert_eq!(notices(&mut client, &id, Some(told[1].0), 0), []);

    // Waited for by the session itself: the answer is the telling. Also if it had ended before it was asked.
    let slow = TaskStartParams { session: Some(id.clone()), ..world.start_params(&["sleep", "0.2"]) };
    for params in [&slow, &quick] {
        let task = client.call::<TaskStart>(params).unwrap();
        client.call::<TaskWait>(&task::TaskWaitParams::for_end(&task.id)).unwrap();
        assert_eq!(notices(&mut client, &id, None, 0), []);
    }
    // In the foreground: the caller has it.
    let foreground = TaskStartParams { detached: false, answer: task::AnswerWhen::Ended, ..quick };
    client.call::<TaskStart>(&foreground).unwrap();
    assert_eq!(notices(&mut client, &id, None, 0), []);

    // Stopped by the session itself: it knows. Stopped by somebody else: it is told.
    let own = world.start(&sleeper(&world, &id));
    client.call::<TaskStop>(&stop_of(&own.id)).unwrap();
    assert_eq!(notices(&mut client, &id, None, 0), []);
    let other = world.start(&sleeper(&world, &id));
    world.belay(["stop", &other.id]).ok();
    let told = notices(&mut client, &id, None, 0);
    assert_eq!(told.iter().map(|(_, task)| task.as_str()).collect::<Vec<_>>(), [other.id.as_str()]);
    // As people see it: shown once.
    let shown = world.belay(["sessions", "notices", &id]).ok().line();
    assert!(shown.starts_with(&format!("{} cancelled", other.id)), "{shown}");
    assert_eq!(world.belay(["sessions", "notices", &id]).ok().line(), "");
}
