//! Reads of events that the journal's reader does, while retention removes events.

use belay_protocol::error::ErrorKind;
use belay_protocol::event::EventReadParams;
use belay_protocol::methods::EventRead;
use belay_protocol::rpc::{Incoming, RequestId};

use super::{CLIENT, Fixture};

/// More than stays in memory.
const TASKS: usize = 400;

// proves W4
#[test]
fn read_overtaken_by_retention_is_expired() {
    let mut fixture = Fixture::new();
    for _ in 0..TASKS {
        let task = fixture.start(|_| ());
        fixture.exit(&task);
    }
    fixture.daemon.workers_hang = true;
    let params: EventReadParams = serde_json::from_str(r#"{"after": 10}"#).unwrap();
    let read = fixture.send::<EventRead>(CLIENT, &params);
    let first = fixture.daemon.expire_events(100);
    fixture.daemon.workers_hang = false;
    let hanging = std::mem::take(&mut fixture.hanging);
    let effects = fixture.daemon.work(hanging);
    fixture.execute(effects);
    let replies = fixture.sent.iter().map(|line| serde_json::from_slice::<Incoming<'_>>(line).unwrap());
    let reply = replies.into_iter().find(|reply| reply.id == Some(RequestId::Number(read)));
    let error = reply.and_then(|reply| reply.error).expect("an error, not a page with a hole");
    assert_eq!((error.data.kind, error.data.from), (ErrorKind::Expired, Some(first - 1)));
}
