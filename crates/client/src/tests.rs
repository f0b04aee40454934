//! Framing, tried against a small server on a real socket: cut messages, long lines, ends in the middle.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use belay_protocol::daemon::DaemonGcParams;
use belay_protocol::event;
use belay_protocol::methods::{DaemonGc, EventRead};

use crate::{Client, ClientError, Message};

const GC: &str = r#"{"removed":[],"freed_bytes":7,"events_expired":0,"dry_run":false}"#;

/// A client, and the thread that plays its daemon.
fn served(serve: impl FnOnce(&mut Peer) + Send + 'static) -> (Client, JoinHandle<()>) {
    let (near, far) = UnixStream::pair().unwrap();
    let reader = BufReader::new(far.try_clone().unwrap());
    let mut peer = Peer { reader, stream: far };
    (Client::over(near), thread::spawn(move || serve(&mut peer)))
}

struct Peer {
    reader: BufReader<UnixStream>,
    stream: UnixStream,
}

impl Peer {
    fn request(&mut self) -> serde_json::Value {
        let mut line = String::new();
        self.reader.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    fn say(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).unwrap();
    }

    fn answer(&mut self, id: i64) {
        self.say(&format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{GC}}}\n"));
    }
}

#[test]
fn an_answer_in_pieces_is_one_answer() {
    let (mut client, server) = served(|peer| {
        assert_eq!(peer.request()["method"], "daemon/gc");
        let text = format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{GC}}}\n");
        for piece in text.as_bytes().chunks(5) {
            peer.stream.write_all(piece).unwrap();
            thread::yield_now();
        }
    });
    assert_eq!(client.call::<DaemonGc>(&DaemonGcParams::default()).unwrap().freed_bytes, 7);
    server.join().unwrap();
}

#[test]
fn notifications_in_between_are_kept_in_order() {
    let (mut client, server) = served(|peer| {
        peer.request();
        peer.say(
            "{\"jsonrpc\":\"2.0\",\"method\":\"a\",\"params\":1}\n{\"jsonrpc\":\"2.0\",\"method\":\"b\"}\n",
        );
        peer.answer(1);
    });
    client.call::<DaemonGc>(&DaemonGcParams::default()).unwrap();
    assert!(client.has_buffered());
    let first = client.next_notification(None).unwrap();
    assert_eq!((first.method.as_str(), first.params.get()), ("a", "1"));
    assert_eq!(client.next_notification(None).unwrap().method, "b");
    assert!(!client.has_buffered());
    server.join().unwrap();
}

#[test]
fn answers_to_several_requests_come_with_their_ids() {
    let (mut client, server) = served(|peer| {
        peer.request();
        peer.request();
        peer.answer(2);
        peer.say("{\"jsonrpc\":\"2.0\",\"method\":\"n\",\"params\":{}}\n");
        peer.answer(1);
    });
    let ids = [
        client.send::<DaemonGc>(&DaemonGcParams::default()),
        client.send::<DaemonGc>(&DaemonGcParams::default()),
    ];
    assert_eq!(ids.map(Result::unwrap), [1, 2]);
    assert_eq!(client.next_notification(None).unwrap().method, "n");
    let mut seen = Vec::new();
    for _ in 0..2 {
        if let Message::Response(response) = client.receive().unwrap() {
            seen.push(response.id);
        }
    }
    assert_eq!(seen, [2, 1]);
    server.join().unwrap();
}

#[test]
fn a_line_of_a_megabyte_is_a_line() {
    let (mut client, server) = served(|peer| {
        peer.request();
        let text = "x".repeat(1 << 20);
        peer.say(&format!("{{\"jsonrpc\":\"2.0\",\"method\":\"long\",\"params\":\"{text}\"}}\n"));
        peer.answer(1);
    });
    client.call::<DaemonGc>(&DaemonGcParams::default()).unwrap();
    assert_eq!(client.next_notification(None).unwrap().params.get().len(), (1 << 20) + 2);
    server.join().unwrap();
}

#[test]
fn an_end_in_the_middle_of_a_message_is_an_end() {
    let (mut client, server) = served(|peer| {
        peer.request();
        peer.say("{\"jsonrpc\":\"2.0\",\"id\":1,");
    });
    assert!(matches!(client.call::<DaemonGc>(&DaemonGcParams::default()), Err(ClientError::Closed)));
    server.join().unwrap();
}

#[test]
fn a_typed_error_arrives_as_one() {
    let (mut client, server) = served(|peer| {
        peer.request();
        peer.say(concat!(
            r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32006,"message":"gone","#,
            r#""data":{"kind":"expired","from":9}}}"#,
            "\n"
        ));
    });
    let error = client.call::<EventRead>(&event::EventReadParams::default()).unwrap_err();
    let ClientError::Rpc(rpc) = error else { panic!("{error:?}") };
    assert_eq!((rpc.message.as_str(), rpc.data.from), ("gone", Some(9)));
    server.join().unwrap();
}

#[test]
fn a_late_answer_disturbs_nobody() {
    let (mut client, server) = served(|peer| {
        peer.request();
        peer.request();
        peer.answer(1);
        peer.answer(2);
    });
    let soon = Instant::now() + Duration::from_millis(20);
    let late = client.call_by::<DaemonGc>(&DaemonGcParams::default(), Some(soon));
    assert!(matches!(late, Err(ClientError::Deadline)));
    client.call::<DaemonGc>(&DaemonGcParams::default()).unwrap();
    assert!(!client.has_buffered());
    server.join().unwrap();
}

#[test]
fn what_is_no_message_is_said_to_be_none() {
    let (mut client, server) = served(|peer| {
        peer.request();
        peer.say("HTTP/1.1 400 Bad Request\n");
    });
    let error = client.call::<DaemonGc>(&DaemonGcParams::default()).unwrap_err();
    assert!(matches!(error, ClientError::Malformed { .. }), "{error:?}");
    server.join().unwrap();
}

#[test]
fn another_version_is_told_apart() {
    let (near, far) = UnixStream::pair().unwrap();
    let server = thread::spawn(move || {
        let mut peer = Peer { reader: BufReader::new(far.try_clone().unwrap()), stream: far };
        assert_eq!(peer.request()["method"], "daemon/hello");
        let hello = r#"{"version":"9.0.0","protocol":9,"pid":1,"home":"/h","capabilities":[]}"#;
        peer.say(&format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{hello}}}\n"));
    });
    let error = Client::greet(near, None).unwrap_err();
    assert!(matches!(error, ClientError::Version { ours: 1, .. }), "{error:?}");
    assert!(error.hint().unwrap().contains("belay down"));
    server.join().unwrap();
}
