//! Clients that survive the death of the daemon, blocking and on tokio: what was pending goes on with the next daemon, without
//! loss and without repetition.

use std::future::Future;
use std::time::{Duration, Instant};

use belay_client::{
    AsyncClient, Client, ClientError, EventPiece, ForegroundPiece, Message, OutputPiece, OutputStream, decode,
};
use belay_protocol::ErrorKind;
use belay_protocol::event::{EventFollowParams, EventInfo, EventKind};
use belay_protocol::methods::{
    DaemonStatus, EventFollow, Notification, OutputFollow, SessionGet, SessionOpen, TaskGet, TaskSignal,
    TaskStart, TaskWait, TaskWrite,
};
use belay_protocol::output::{OutputFollowParams, OutputFrom};
use belay_protocol::session::{
    SessionGetParams, SessionHold, SessionOpenParams, SessionOpenResult, SessionState,
};
use belay_protocol::task::{
    AnswerWhen, StartFollowParams, TaskGetParams, TaskSignalParams, TaskStartParams, TaskStatus,
    TaskWaitParams, TaskWriteParams, WaitMet,
};
use belay_protocol::{Bytes, daemon};
use belay_testkit::{LONG, World, end, freeze, wait_until};

use crate::patient::Patient;
use crate::support::{FOREVER, with_stdin, world};

/// How often the daemon goes away while a client follows.
const ROUNDS: usize = 5;

fn blocking(world: &World) -> Client {
    Client::connect_or_start(&world.paths(), world.program()).unwrap()
}

/// Runs a test of the asynchronous client.
fn on_tokio<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(LONG * 2, test).await.unwrap() })
}

async fn asynchronous(world: &World) -> AsyncClient {
    AsyncClient::connect_or_start(&world.paths(), world.program()).await.unwrap()
}

/// `cat`, in the foreground, with its output.
fn foreground_cat(world: &World) -> TaskStartParams {
    TaskStartParams {
        detached: false,
        answer: AnswerWhen::Ended,
        follow: Some(StartFollowParams::default()),
        ..with_stdin(world.start_params(&["cat"]))
    }
}

/// Makes a `cat` write, once, by a connection of its own.
fn write(world: &World, id: &str, data: &str, close: bool) {
    let key = Some(belay_client::random_token().unwrap());
    let params = TaskWriteParams { id: id.to_owned(), data: Bytes::from(data), close, key, room_ms: None };
    Patient::new(world).call::<TaskWrite>(&params);
}

/// What is written in one round: several lines, so that a repeated or missing one shows.
fn part(round: usize) -> String {
    (0..40).map(|line| format!("round {round} line {line}\n")).collect()
}

/// Ends the daemon, as a crash or as a person does.
fn take_away(world: &World, round: usize) {
    if round.is_multiple_of(2) {
        world.kill_daemon();
    } else {
        world.belay(["down"]).ok();
    }
}

fn follow_of(id: &str) -> OutputFollowParams {
    OutputFollowParams { id: id.to_owned(), from: OutputFrom::default(), stream: None, text: false }
}

fn held_session() -> SessionOpenParams {
    SessionOpenParams {
        hold: SessionHold::Connection,
        grace_ms: Some(600_000),
        ..SessionOpenParams::default()
    }
}

/// What a blocking client has received.
#[derive(Debug, Default)]
struct Received {
    task: Option<String>,
    output: Vec<u8>,
    output_ends: usize,
    events: Vec<EventInfo>,
    replies: Vec<(i64, Result<belay_client::RawReply, ClientError>)>,
}

impl Received {
    /// Receives until it is so.
    #[track_caller]
    fn until(&mut self, client: &mut Client, is_so: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + LONG;
        while !is_so(self) {
            match client.receive_by(Some(deadline)).unwrap() {
                Message::Response(response) => self.replies.push((response.id, response.result)),
                Message::Notification(Notification::TaskStarted(start)) => {
                    assert_eq!(self.task.replace(start.task.id), None, "announced twice");
                }
                Message::Notification(Notification::OutputChunk(new)) => {
                    assert_eq!(new.gaps, [[0_u64; 2]; 0]);
                    new.chunks.iter().for_each(|chunk| self.output.extend(&chunk.data.0));
                }
                Message::Notification(Notification::OutputEnd(_)) => self.output_ends += 1,
                Message::Notification(Notification::EventItem(item)) => self.events.push(item.event),
                other => panic!("{other:?}"),
            }
        }
    }

    fn has_ended(&self, id: &str) -> bool {
        let last = self.events.last().map(|info| &info.event);
        last.is_some_and(|event| event.kind() == EventKind::TaskEnded && event.task() == Some(id))
    }
}

// proves E4
#[test]
fn blocking_wait_follow_and_events_survive_restarts() {
    let world = world();
    let id = world.start(&with_stdin(world.start_params(&["cat"]))).id;
    let mut client = blocking(&world);
    client.call::<OutputFollow>(&follow_of(&id)).unwrap();
    client.call::<EventFollow>(&EventFollowParams::default()).unwrap();
    let wait = client.send::<TaskWait>(&TaskWaitParams::for_end(&id)).unwrap();
    let (mut received, mut expected) = (Received::default(), String::new());
    for round in 0..ROUNDS {
        write(&world, &id, &part(round), false);
        expected.push_str(&part(round));
        received.until(&mut client, |received| received.output.len() >= expected.len());
        assert!(received.output == expected.as_bytes(), "round {round}");
        take_away(&world, round);
        // Written while the client has no connection, or has just made one.
        write(&world, &id, "between\n", false);
        expected.push_str("between\n");
    }
    write(&world, &id, "", true);
    received.until(&mut client, |received| {
        received.output_ends > 0 && received.has_ended(&id) && !received.replies.is_empty()
    });
    assert_eq!(received.output_ends, 1);
    assert!(received.output == expected.as_bytes());
    let replies = std::mem::take(&mut received.replies);
    let [(replied, result)] = <[_; 1]>::try_from(replies).unwrap();
    let waited = decode::<TaskWait>(&result.unwrap()).unwrap();
    assert_eq!((replied, waited.met, waited.task.status), (wait, WaitMet::Ended, TaskStatus::Completed));
    let all = Patient::new(&world).events(0);
    assert_eq!(received.events, all[..received.events.len()]);
    let restarts = all.iter().filter(|info| info.event.kind() == EventKind::DaemonStarted).count();
    assert_eq!(restarts, ROUNDS + 1);
}

// proves E4
#[test]
fn blocking_foreground_start_survives_restarts() {
    let world = world();
    let mut client = blocking(&world);
    // Without a token of the caller's: the client gives one.
    let start = client.send::<TaskStart>(&foreground_cat(&world)).unwrap();
    let (mut received, mut expected) = (Received::default(), String::new());
    received.until(&mut client, |received| received.task.is_some());
    let id = received.task.clone().unwrap();
    for round in 0..ROUNDS {
        write(&world, &id, &part(round), false);
        expected.push_str(&part(round));
        received.until(&mut client, |received| received.output.len() >= expected.len());
        take_away(&world, round);
    }
    write(&world, &id, "last\n", true);
    expected.push_str("last\n");
    received.until(&mut client, |received| !received.replies.is_empty());
    let replies = std::mem::take(&mut received.replies);
    let [(replied, result)] = <[_; 1]>::try_from(replies).unwrap();
    let task = decode::<TaskStart>(&result.unwrap()).unwrap();
    assert_eq!((replied, &task.id, task.status), (start, &id, TaskStatus::Completed));
    assert!(received.output == expected.as_bytes());
    assert_eq!(Patient::new(&world).tasks().into_keys().collect::<Vec<_>>(), [id]);
}

/// A signal that a daemon has received and not answered, a start and a read, when the daemon is killed.
// proves E4
#[test]
fn blocking_pending_calls_are_repeated_by_rule() {
    let world = world();
    let id = world.start(&world.start_params(&["sleep", FOREVER])).id;
    let mut client = blocking(&world);
    let daemon = world.daemon().unwrap().identity;
    let frozen = freeze(daemon.pid);
    let get = client.send::<TaskGet>(&TaskGetParams { id: id.clone() }).unwrap();
    let signal =
        client.send::<TaskSignal>(&TaskSignalParams { id: id.clone(), signal: "WINCH".into() }).unwrap();
    let start = client.send::<TaskStart>(&world.start_params(&["sleep", FOREVER])).unwrap();
    end(daemon);
    drop(frozen);
    let mut received = Received::default();
    received.until(&mut client, |received| received.replies.len() == 3);
    received.replies.sort_by_key(|(id, _)| *id);
    let [(first, got), (second, signalled), (third, started)] = <[_; 3]>::try_from(received.replies).unwrap();
    assert_eq!([first, second, third], [get, signal, start]);
    assert_eq!(decode::<TaskGet>(&got.unwrap()).unwrap().id, id);
    assert!(matches!(signalled, Err(ClientError::OutcomeUnknown { method: "task/signal" })), "{signalled:?}");
    let started = decode::<TaskStart>(&started.unwrap()).unwrap().id;
    let mut expected = [id, started];
    expected.sort();
    assert_eq!(Patient::new(&world).tasks().into_keys().collect::<Vec<_>>(), expected);
}

// proves E4
#[test]
fn blocking_wait_keeps_its_deadline_over_a_restart() {
    let world = world();
    let id = world.start(&world.start_params(&["sleep", FOREVER])).id;
    let mut client = blocking(&world);
    let limit = Duration::from_secs(3);
    let params = TaskWaitParams { timeout_ms: Some(3_000), ..TaskWaitParams::for_end(&id) };
    let began = Instant::now();
    let wait = client.send::<TaskWait>(&params).unwrap();
    // The last restart is late enough that a wait that begins anew would end long after its deadline.
    let late = Instant::now() + limit * 2 / 3;
    let passed = || if Instant::now() >= late { Ok(()) } else { Err("not yet".to_owned()) };
    wait_until("two thirds of the time", limit, passed);
    world.kill_daemon();
    let Message::Response(response) = client.receive_by(Some(Instant::now() + LONG)).unwrap() else {
        panic!("no reply")
    };
    let took = began.elapsed();
    assert_eq!(response.id, wait);
    assert_eq!(decode::<TaskWait>(&response.result.unwrap()).unwrap().met, WaitMet::Timeout);
    // The timers of the daemon count whole milliseconds.
    let slack = Duration::from_millis(10);
    assert!(took + slack >= limit && took < limit * 5 / 3, "{took:?}");
}

/// Waits until a connection holds the session again.
#[track_caller]
fn wait_held(world: &World, id: &str) {
    wait_until("a session that is held", LONG, || {
        let info = world.client().call::<SessionGet>(&SessionGetParams { id: id.to_owned() }).unwrap();
        let regained = |info: &EventInfo| {
            info.event.kind() == EventKind::SessionRegained && info.event.session() == Some(id)
        };
        let is_held = info.state == SessionState::Open && world.events().iter().any(regained);
        if is_held { Ok(()) } else { Err(format!("{info:?}")) }
    });
}

// proves E4
#[test]
fn blocking_held_session_is_renewed_after_a_restart() {
    let world = world();
    let mut client = blocking(&world);
    let SessionOpenResult { session, .. } = client.call::<SessionOpen>(&held_session()).unwrap();
    world.kill_daemon();
    client.call::<DaemonStatus>(&daemon::DaemonStatusParams::default()).unwrap();
    wait_held(&world, &session.id);
}

// proves E4
#[test]
fn async_wait_follow_and_events_survive_restarts() {
    let world = world();
    let id = world.start(&with_stdin(world.start_params(&["cat"]))).id;
    let (output, expected, events) = on_tokio(async {
        let client = asynchronous(&world).await;
        let mut follow = client.follow_output(&follow_of(&id)).await.unwrap();
        let mut events = client.follow_events(&EventFollowParams::default()).await.unwrap();
        let waiting = tokio::spawn({
            let (client, params) = (client.clone(), TaskWaitParams::for_end(&id));
            async move { client.call::<TaskWait>(&params).await }
        });
        let (mut output, mut expected) = (Vec::new(), String::new());
        for round in 0..ROUNDS {
            write(&world, &id, &part(round), false);
            expected.push_str(&part(round));
            while output.len() < expected.len() {
                let OutputPiece::Chunk(chunk) = follow.next().await.unwrap().unwrap() else {
                    panic!("a gap")
                };
                output.extend(chunk.data.0);
            }
            take_away(&world, round);
        }
        write(&world, &id, "last\n", true);
        expected.push_str("last\n");
        output.extend(read_to_end(&mut follow).await);
        let waited = waiting.await.unwrap().unwrap();
        assert_eq!((waited.met, waited.task.status), (WaitMet::Ended, TaskStatus::Completed));
        let mut seen = Vec::new();
        while seen.last().is_none_or(|info: &EventInfo| info.seq < waited.task.last_event) {
            let EventPiece::Event(event) = events.next().await.unwrap().unwrap() else { panic!("a gap") };
            seen.push(*event);
        }
        client.close().await;
        (output, expected, seen)
    });
    assert!(output == expected.as_bytes());
    let all = Patient::new(&world).events(0);
    assert_eq!(events, all[..events.len()]);
}

// proves E4
#[test]
fn async_foreground_start_survives_restarts() {
    let world = world();
    let (id, output, expected) = on_tokio(async {
        let client = asynchronous(&world).await;
        let mut task = client.start_in_foreground(&foreground_cat(&world)).unwrap();
        let ForegroundPiece::Started(started) = task.next().await.unwrap().unwrap() else {
            panic!("not announced")
        };
        let (mut output, mut expected) = (Vec::new(), String::new());
        for round in 0..ROUNDS {
            write(&world, &started.id, &part(round), false);
            expected.push_str(&part(round));
            while output.len() < expected.len() {
                output.extend(bytes_of(task.next().await.unwrap()));
            }
            take_away(&world, round);
        }
        write(&world, &started.id, "last\n", true);
        expected.push_str("last\n");
        while let Some(piece) = task.next().await {
            output.extend(bytes_of(piece));
        }
        let ended = task.end().await.unwrap();
        assert_eq!((&ended.id, ended.status), (&started.id, TaskStatus::Completed));
        (ended.id, output, expected)
    });
    assert!(output == expected.as_bytes());
    assert_eq!(Patient::new(&world).tasks().into_keys().collect::<Vec<_>>(), [id]);
}

#[track_caller]
fn bytes_of(piece: Result<ForegroundPiece, ClientError>) -> Vec<u8> {
    match piece.unwrap() {
        ForegroundPiece::Output(OutputPiece::Chunk(chunk)) => chunk.data.0,
        other => panic!("{other:?}"),
    }
}

// proves E4
#[test]
fn async_pending_calls_are_repeated_by_rule() {
    let world = world();
    let id = world.start(&world.start_params(&["sleep", FOREVER])).id;
    let started = on_tokio(async {
        let client = asynchronous(&world).await;
        let SessionOpenResult { session, .. } = client.call::<SessionOpen>(&held_session()).await.unwrap();
        let daemon = world.daemon().unwrap().identity;
        let frozen = freeze(daemon.pid);
        let (get, params) = (TaskGetParams { id: id.clone() }, world.start_params(&["sleep", FOREVER]));
        let signal = TaskSignalParams { id: id.clone(), signal: "WINCH".into() };
        let killed = async {
            // The calls are polled first. The task of the connection runs on this thread, and writes while this one yields.
            for _ in 0..1_000 {
                tokio::task::yield_now().await;
            }
            end(daemon);
            drop(frozen);
        };
        let (got, signalled, started, ()) = tokio::join!(
            client.call::<TaskGet>(&get),
            client.call::<TaskSignal>(&signal),
            client.call::<TaskStart>(&params),
            killed
        );
        assert_eq!(got.unwrap().id, id);
        let is_unknown = matches!(signalled, Err(ClientError::OutcomeUnknown { method: "task/signal" }));
        assert!(is_unknown, "{signalled:?}");
        wait_held(&world, &session.id);
        started.unwrap().id
    });
    let mut expected = [id, started];
    expected.sort();
    assert_eq!(Patient::new(&world).tasks().into_keys().collect::<Vec<_>>(), expected);
}

// proves E4
#[test]
fn async_client_without_work_starts_no_daemon() {
    let world = world();
    on_tokio(async {
        let client = asynchronous(&world).await;
        world.belay(["down"]).ok();
        assert!(world.daemon().is_none());
        let status = client.call::<DaemonStatus>(&daemon::DaemonStatusParams::default()).await.unwrap();
        assert_eq!(status.pid, world.daemon_pid());
        assert_eq!(client.hello().pid, status.pid);
    });
}

/// How many calls the daemon has not answered, but for the one that asks.
async fn calls_waiting(client: &AsyncClient) -> u64 {
    client.call::<DaemonStatus>(&daemon::DaemonStatusParams::default()).await.unwrap().calls_waiting
}

// proves E4
#[test]
fn dropped_future_cancels_its_call() {
    let world = world();
    let id = world.start(&world.start_params(&["sleep", FOREVER])).id;
    on_tokio(async {
        let client = asynchronous(&world).await;
        let before = calls_waiting(&client).await;
        let params = TaskWaitParams::for_end(&id);
        let mut wait = Box::pin(client.call::<TaskWait>(&params));
        while calls_waiting(&client).await == before {
            // Polled for a moment, so that it is sent.
            assert!(tokio::time::timeout(Duration::from_millis(1), &mut wait).await.is_err());
        }
        drop(wait);
        while calls_waiting(&client).await > before {}
    });
    assert_eq!(world.get(&id).status, TaskStatus::Running);
}

async fn read_to_end(stream: &mut OutputStream) -> Vec<u8> {
    let mut output = Vec::new();
    while let Some(piece) = stream.next().await {
        let OutputPiece::Chunk(chunk) = piece.unwrap() else { panic!("a gap") };
        output.extend(chunk.data.0);
    }
    output
}

// proves E4
#[test]
fn slow_consumer_does_not_hold_up_others() {
    // Far more than a stream buffers.
    const BYTES: usize = 24_000_000;
    let world = world();
    let line = format!("yes 0123456789abcdef | head -c {BYTES}");
    let id = world.start(&world.start_params(&["sh", "-c", &line])).id;
    let (other, slow) = on_tokio(async {
        let client = asynchronous(&world).await;
        let mut slow = client.follow_output(&follow_of(&id)).await.unwrap();
        let mut other = client.follow_output(&follow_of(&id)).await.unwrap();
        // Neither another stream nor a call waits for the one that is not read.
        let other = read_to_end(&mut other).await;
        client.call::<TaskGet>(&TaskGetParams { id: id.clone() }).await.unwrap();
        (other, read_to_end(&mut slow).await)
    });
    let expected: Vec<u8> = b"0123456789abcdef\n".iter().copied().cycle().take(BYTES).collect();
    assert!(other == expected, "{} bytes", other.len());
    assert!(slow == expected, "{} bytes", slow.len());
}

// proves E4
#[test]
fn closed_client_fails_what_is_pending() {
    let world = world();
    let id = world.start(&world.start_params(&["sleep", FOREVER])).id;
    on_tokio(async {
        let client = asynchronous(&world).await;
        let mut follow = client.follow_output(&follow_of(&id)).await.unwrap();
        let other = client.clone();
        let params = TaskWaitParams::for_end(&id);
        let (waited, ()) = tokio::join!(other.call::<TaskWait>(&params), client.close());
        assert!(matches!(waited, Err(ClientError::Closed)), "{waited:?}");
        assert!(matches!(follow.next().await, Some(Err(ClientError::Closed))));
        assert!(follow.next().await.is_none());
        assert!(matches!(other.call::<TaskWait>(&params).await, Err(ClientError::Closed)));
    });
}

// proves E4
#[test]
fn refused_calls_leave_the_client_usable() {
    let world = world();
    on_tokio(async {
        let client = asynchronous(&world).await;
        let missing = TaskGetParams { id: "sh-none".into() };
        let Err(ClientError::Rpc(error)) = client.call::<TaskGet>(&missing).await else { panic!("found") };
        assert_eq!(error.data.kind, ErrorKind::NotFound);
        assert!(client.follow_output(&follow_of("sh-none")).await.is_err());
        calls_waiting(&client).await;
    });
}
