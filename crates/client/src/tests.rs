//! The blocking client against a small server on a real socket: messages in pieces, replies out of order, lost connections,
//! descriptors. The codec by itself is tested beside it.

use std::io::{BufRead as _, BufReader, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use belay_protocol::daemon::{DaemonGcParams, DaemonStatusParams};
use belay_protocol::event;
use belay_protocol::methods::client_calls::PermissionAsk;
use belay_protocol::methods::{DaemonGc, DaemonStatus, EventFollow, EventRead, Notification, TaskPulse};
use belay_protocol::permission::PermissionAskResult;
use belay_protocol::task::TaskPulseParams;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::{Client, ClientError, Message, Paths, connect};

const GC: &str = r#"{"removed":0,"freed_bytes":7,"events_expired":0,"dry_run":false}"#;

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

    /// An event of the subscription that request 1 has made.
    fn event(&mut self, seq: u64) {
        let event = format!(r#"{{"seq":{seq},"at":"2026-01-01T00:00:00.000Z","type":"daemon.stopping"}}"#);
        self.say(&format!(
            "{{\"jsonrpc\":\"2.0\",\"method\":\"event/item\",\"params\":{{\"request\":1,\"follow\":5,\"event\":{event}}}}}\n"
        ));
    }

    fn accept_events(&mut self) {
        assert_eq!(self.request()["method"], "event/follow");
        self.say(
            "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"follow\":5,\"after\":0,\"first\":1,\"last\":1}}\n",
        );
    }
}

fn seq(notification: &Notification) -> u64 {
    let Notification::EventItem(item) = notification else { panic!("{notification:?}") };
    item.event.seq
}

#[test]
fn reply_in_pieces_is_one_reply() {
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
fn reply_in_another_form_is_read() {
    let (mut client, server) = served(|peer| {
        peer.request();
        peer.say(&format!("{{ \"result\": {GC}, \"id\": 1, \"jsonrpc\": \"2.0\" }}\n"));
    });
    assert_eq!(client.call::<DaemonGc>(&DaemonGcParams::default()).unwrap().freed_bytes, 7);
    server.join().unwrap();
}

#[test]
fn notifications_between_replies_keep_their_order() {
    let (mut client, server) = served(|peer| {
        peer.accept_events();
        peer.request();
        peer.event(1);
        // Neither a subscription of this client nor a notification of this version.
        peer.say("{\"jsonrpc\":\"2.0\",\"method\":\"later/version\",\"params\":{\"request\":1}}\n");
        peer.event(2);
        peer.event(2);
        peer.answer(2);
    });
    client.call::<EventFollow>(&event::EventFollowParams::default()).unwrap();
    client.call::<DaemonGc>(&DaemonGcParams::default()).unwrap();
    assert!(client.has_buffered());
    assert_eq!(seq(&client.next_notification(None).unwrap()), 1);
    assert_eq!(seq(&client.next_notification(None).unwrap()), 2);
    assert!(!client.has_buffered());
    server.join().unwrap();
}

#[test]
fn replies_to_several_calls_carry_their_ids() {
    let (mut client, server) = served(|peer| {
        peer.accept_events();
        peer.request();
        peer.request();
        peer.answer(3);
        peer.event(1);
        peer.answer(2);
    });
    client.call::<EventFollow>(&event::EventFollowParams::default()).unwrap();
    let ids = [
        client.send::<DaemonGc>(&DaemonGcParams::default()),
        client.send::<DaemonGc>(&DaemonGcParams::default()),
    ];
    assert_eq!(ids.map(Result::unwrap), [2, 3]);
    assert_eq!(seq(&client.next_notification(None).unwrap()), 1);
    let mut seen = Vec::new();
    for _ in 0..2 {
        if let Message::Response(response) = client.receive().unwrap() {
            seen.push(response.id);
        }
    }
    assert_eq!(seen, [3, 2]);
    server.join().unwrap();
}

#[test]
fn result_of_a_megabyte_is_read() {
    let (mut client, server) = served(|peer| {
        peer.request();
        let id = "x".repeat(1 << 20);
        let result = format!(r#"{{"pulses":[],"unknown":["{id}"],"as_of":0}}"#);
        peer.say(&format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{result}}}\n"));
    });
    let unknown = client.call::<TaskPulse>(&TaskPulseParams::default()).unwrap().unknown;
    assert_eq!(unknown[0].len(), 1 << 20);
    server.join().unwrap();
}

#[test]
fn connection_that_ends_in_a_message_is_closed() {
    let (mut client, server) = served(|peer| {
        peer.request();
        peer.say("{\"jsonrpc\":\"2.0\",\"id\":1,");
    });
    assert!(matches!(client.call::<DaemonGc>(&DaemonGcParams::default()), Err(ClientError::Closed)));
    server.join().unwrap();
}

#[test]
fn typed_error_is_returned_as_one() {
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
fn reply_after_the_deadline_is_dropped() {
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
fn other_protocols_are_malformed() {
    let (mut client, server) = served(|peer| {
        peer.request();
        peer.say("HTTP/1.1 400 Bad Request\n");
    });
    let error = client.call::<DaemonGc>(&DaemonGcParams::default()).unwrap_err();
    assert!(matches!(error, ClientError::Malformed { .. }), "{error:?}");
    server.join().unwrap();
}

#[test]
fn another_version_is_refused() {
    let (near, far) = UnixStream::pair().unwrap();
    let server = thread::spawn(move || {
        let mut peer = Peer { reader: BufReader::new(far.try_clone().unwrap()), stream: far };
        assert_eq!(peer.request()["method"], "daemon/hello");
        let hello = r#"{"version":"9.0.0","protocol":9,"pid":1,"home":"/h","capabilities":[]}"#;
        peer.say(&format!("{{\"jsonrpc\":\"2.0\",\"id\":0,\"result\":{hello}}}\n"));
    });
    let error = connect::greet(&near, &Paths::new("/h".into(), "/r".into())).unwrap_err();
    assert!(matches!(error, ClientError::Version { ours: 1, .. }), "{error:?}");
    assert!(error.hint().unwrap().contains("belay down"));
    server.join().unwrap();
}

#[test]
fn request_of_the_daemon_is_answered() {
    let ask = r#"{"permission":"p-1","task":"ag-1","title":"Run it","options":[],"expires_at":"2026-01-01T00:00:00.000Z"}"#;
    let (mut client, server) = served(move |peer| {
        peer.say(&format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":\"d1\",\"method\":\"permission/ask\",\"params\":{ask}}}\n"
        ));
        let answer = peer.request();
        assert_eq!(answer["id"], "d1");
        assert_eq!(answer["result"]["decision"], "declined");
    });
    let Message::Request(request) = client.receive().unwrap() else { panic!("no request") };
    assert_eq!(request.params::<PermissionAsk>().unwrap().unwrap().title, "Run it");
    client.answer::<PermissionAsk>(&request, &PermissionAskResult::Declined).unwrap();
    server.join().unwrap();
}

/// Reads bytes and the descriptors that come with them.
fn receive_with_fds(stream: &UnixStream) -> (Vec<u8>, Vec<OwnedFd>) {
    let mut bytes = vec![0; 4096];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut passed = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(stream, &mut [IoSliceMut::new(&mut bytes)], &mut passed, RecvFlags::empty()).unwrap();
    bytes.truncate(got.bytes);
    let fds = passed.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => fds.collect::<Vec<_>>(),
        _ => Vec::new(),
    });
    let fds = fds.collect();
    (bytes, fds)
}

#[test]
fn descriptors_arrive_with_their_line() {
    let (near, far) = UnixStream::pair().unwrap();
    let mut client = Client::over(near);
    let (given, mut kept) = UnixStream::pair().unwrap();
    client.send::<DaemonStatus>(&DaemonStatusParams::default()).unwrap();
    let (line, fds) = receive_with_fds(&far);
    assert!(!line.windows(6).any(|word| word == b"\"fds\":"), "{}", String::from_utf8_lossy(&line));
    assert!(fds.is_empty());
    client.send_with_fds::<DaemonStatus>(&DaemonStatusParams::default(), vec![given.into()]).unwrap();
    let (line, mut fds) = receive_with_fds(&far);
    let request: serde_json::Value = serde_json::from_slice(&line).unwrap();
    assert_eq!((&request["method"], &request["fds"]), (&"daemon/status".into(), &1.into()));
    let mut other_end = UnixStream::from(fds.pop().unwrap());
    assert!(fds.is_empty());
    other_end.write_all(b"hello").unwrap();
    let mut heard = [0; 5];
    kept.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"hello");
}

#[test]
fn long_handshake_is_read_whole() {
    let (near, far) = UnixStream::pair().unwrap();
    let server = thread::spawn(move || {
        let mut peer = Peer { reader: BufReader::new(far.try_clone().unwrap()), stream: far };
        peer.request();
        let can = format!("\"{}\"", "x".repeat(100));
        let hello = format!(
            r#"{{"version":"0","protocol":1,"pid":1,"home":"/h","capabilities":[{}],"scope":{{"kind":"person"}}}}"#,
            vec![can; 200].join(",")
        );
        peer.say(&format!("{{\"jsonrpc\":\"2.0\",\"id\":0,\"result\":{hello}}}\n"));
    });
    assert_eq!(connect::greet(&near, &Paths::new("/h".into(), "/r".into())).unwrap().capabilities.len(), 200);
    server.join().unwrap();
}
