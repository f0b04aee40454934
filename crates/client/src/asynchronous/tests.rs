//! What a real daemon does not ask for yet: requests to a client, and descriptors with a call, against the other end of a socket.

use std::io::{BufRead as _, BufReader, IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use std::path::Path;

use belay_protocol::daemon::DaemonStatusParams;
use belay_protocol::methods::DaemonStatus;
use belay_protocol::permission::PermissionAskResult;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde_json::{Value, json};

use super::{AsyncClient, AsyncOptions, actor};
use crate::connect::Connection;
use crate::paths::Paths;

/// A client, and the socket of its daemon.
fn connected(options: AsyncOptions) -> (AsyncClient, UnixStream) {
    let (stream, daemon) = UnixStream::pair().unwrap();
    let hello = json!({"version": "0", "protocol": 1, "pid": 1, "home": "/h", "capabilities": [], "scope": {"kind": "person"}});
    let connection = Connection { stream, hello: serde_json::from_value(hello).unwrap() };
    let paths = Paths::new("/h".into(), "/r".into());
    let client = actor::spawn(connection, &paths, Path::new("/no/belay"), options.on_permission).unwrap();
    (client, daemon)
}

/// Sends a request of the daemon and returns the answer.
async fn ask(daemon: &UnixStream, method: &str) -> Value {
    let params = json!({
        "permission": "p-1", "task": "ag-1", "title": "Run it", "options": [], "expires_at": "2026-01-01T00:00:00.000Z"
    });
    let request = json!({"jsonrpc": "2.0", "id": "d-1", "method": method, "params": params});
    let mut daemon = daemon.try_clone().unwrap();
    let answered = tokio::task::spawn_blocking(move || {
        daemon.write_all(format!("{request}\n").as_bytes()).unwrap();
        let mut line = String::new();
        BufReader::new(daemon).read_line(&mut line).unwrap();
        line
    });
    serde_json::from_str(&answered.await.unwrap()).unwrap()
}

#[tokio::test]
async fn permission_request_is_answered_by_the_handler() {
    let options = AsyncOptions::new()
        .on_permission(|ask| async move { PermissionAskResult::Selected { option: ask.title } });
    let (_client, daemon) = connected(options);
    let answer = ask(&daemon, "permission/ask").await;
    assert_eq!(answer["id"], "d-1");
    assert_eq!(answer["result"], json!({"decision": "selected", "option": "Run it"}));
}

#[tokio::test]
async fn permission_request_without_handler_is_declined() {
    let (_client, daemon) = connected(AsyncOptions::new());
    assert_eq!(ask(&daemon, "permission/ask").await["result"], json!({"decision": "declined"}));
    assert_eq!(ask(&daemon, "later/version").await["error"]["data"]["kind"], "unknown_method");
}

#[tokio::test]
async fn descriptors_arrive_with_their_call() {
    let (client, daemon) = connected(AsyncOptions::new());
    let (given, _kept) = UnixStream::pair().unwrap();
    let received = tokio::task::spawn_blocking(move || {
        let mut bytes = vec![0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut passed = RecvAncillaryBuffer::new(&mut space);
        let got =
            recvmsg(&daemon, &mut [IoSliceMut::new(&mut bytes)], &mut passed, RecvFlags::empty()).unwrap();
        let fds = passed.drain().map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => fds.count(),
            _ => 0,
        });
        (fds.sum::<usize>(), serde_json::from_slice::<Value>(&bytes[..got.bytes]).unwrap())
    });
    let params = DaemonStatusParams::default();
    let call = client.call_with_fds::<DaemonStatus>(&params, vec![given.into()]);
    let (count, request) = tokio::select! {
        _ = call => panic!("answered"),
        received = received => received.unwrap(),
    };
    assert_eq!((count, &request["fds"]), (1, &1.into()));
}
