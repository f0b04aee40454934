//! Connections of clients: which are accepted, reading their lines, and keeping one client from delaying another.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use belay_os::process;
use belay_protocol::MAX_REQUEST_BYTES;
use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::rpc::{Answer, Version};
use tokio::net::UnixStream;

use super::connection::Connection;
use super::hub::Hub;
use super::listener::Listener;
use crate::config::bounds;
use crate::input::{ClientId, Input};

/// How long one client may keep all others waiting with requests that it sent at once.
const TURN: Duration = Duration::from_millis(2);

pub(crate) const READ_BYTES: usize = 64 * 1024;

pub(crate) async fn accept(hub: &Rc<Hub>, listener: &mut Listener) {
    let own = rustix::process::getuid().as_raw();
    loop {
        match listener.accept().await {
            Ok(stream) => {
                match stream.peer_cred() {
                    Ok(peer) if peer.uid() == own => welcome(hub, stream, own, peer.pid().unwrap_or(0)),
                    // A process of another user got through the directory's mode: it gets no reply.
                    Ok(peer) => {
                        tracing::warn!(uid = peer.uid(), pid = peer.pid(), "client of another user refused");
                    }
                    Err(error) => tracing::warn!(%error, "client of an unknown user refused"),
                }
            }
            // Out of descriptors: connected clients go on being served; the next one that closes makes room.
            Err(error) => {
                tracing::debug!(%error, "no connection can be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// The process that connects is examined before anything is read: a process inside a task acts as that task, whatever it says.
fn welcome(hub: &Rc<Hub>, stream: UnixStream, uid: u32, pid: i32) {
    // A process that this daemon cannot see at all is no part of any task.
    let ancestors = if pid == 0 { Ok(Some(Vec::new())) } else { process::ancestors(pid) };
    let ancestors = match ancestors {
        Ok(Some(ancestors)) => ancestors,
        Ok(None) => {
            let gone =
                RpcError::new(ErrorKind::NotPermitted, "the process that made this connection is gone");
            return refuse(
                &stream,
                &gone.hint("the process that connects must live until the connection is accepted"),
            );
        }
        Err(_) => {
            let busy = RpcError::new(ErrorKind::Busy, "the daemon has no descriptor left to see who this is");
            return refuse(&stream, &busy.hint("close some connections, or try again later"));
        }
    };
    if hub.clients.borrow().len() >= bounds::CLIENTS {
        let error =
            RpcError::new(ErrorKind::Busy, format!("{} clients are connected already", bounds::CLIENTS))
                .hint("close some connections, or try again later");
        return refuse(&stream, &error);
    }
    let client = hub.next_client();
    let Ok(connection) = stream.into_std().and_then(Connection::new).map(Rc::new) else { return };
    hub.clients.borrow_mut().insert(client, Rc::clone(&connection));
    let in_task = ancestors.contains(&hub.pid) || hub.recipe.holds_in_cgroup(pid);
    hub.dispatch(Input::ClientConnected { client, uid, ancestors, in_task });
    let writer = (Rc::clone(hub), Rc::clone(&connection));
    tokio::task::spawn_local(async move {
        let (hub, connection) = writer;
        connection.run(|bytes| hub.dispatch(Input::ClientWritten { client, bytes })).await;
    });
    let hub = Rc::clone(hub);
    tokio::task::spawn_local(async move {
        listen(&hub, client, &connection).await;
        hub.clients.borrow_mut().remove(&client);
        connection.close();
        hub.dispatch(Input::ClientGone { client });
    });
}

/// Sends the reason for a refusal and closes the connection.
fn refuse(stream: &UnixStream, error: &RpcError) {
    tracing::info!(cause = error.message, "client refused");
    let _ = stream.try_write(&error_line(error));
}

fn error_line(error: &RpcError) -> Vec<u8> {
    let answer = Answer::<()> { jsonrpc: Version::V2, id: None, result: None, error: Some(error) };
    let mut line = serde_json::to_vec(&answer).unwrap_or_default();
    line.push(b'\n');
    line
}

/// Reads lines until the client leaves, sends too much at once, or is closed.
async fn listen(hub: &Rc<Hub>, client: ClientId, connection: &Connection) {
    let mut buffer: Vec<u8> = Vec::new();
    let mut unfinished = Unfinished { total: &hub.unfinished_bytes, own: 0 };
    let mut scanned = 0;
    loop {
        // A client that does not read its replies is not read from.
        connection.below(bounds::CLIENT_QUEUE_BYTES).await;
        if connection.is_closing() {
            return;
        }
        match connection.read(&hub.scratch, |bytes| buffer.extend_from_slice(bytes)).await {
            Err(_) => return,
            Ok(0) if connection.is_closing() || connection.is_hung_up() => return,
            Ok(0) => {
                hub.dispatch(Input::ClientHalfClosed { client });
                return connection.until_over().await;
            }
            Ok(_) => {}
        }
        scanned = take_lines(hub, client, connection, &mut buffer, scanned).await;
        unfinished.set(buffer.len());
        if let Some(error) = too_much(buffer.len(), hub.unfinished_bytes.get()) {
            tracing::info!(client = client.0, cause = error.message, "client closed");
            connection.push(error_line(&error), true);
            connection.close();
            return;
        }
    }
}

fn too_much(line: usize, all: usize) -> Option<RpcError> {
    if line > MAX_REQUEST_BYTES {
        let message = format!("a request is at most {MAX_REQUEST_BYTES} bytes long, on one line");
        return Some(RpcError::new(ErrorKind::TooLarge, message));
    }
    let message = "other clients are sending long requests that have no end yet";
    (all > bounds::UNFINISHED_BYTES && line > READ_BYTES)
        .then(|| RpcError::new(ErrorKind::Busy, message).hint("try again later"))
}

/// What one client has sent of a line that has no end yet, as a part of the total.
struct Unfinished<'a> {
    total: &'a Cell<usize>,
    own: usize,
}

impl Unfinished<'_> {
    fn set(&mut self, bytes: usize) {
        self.total.set(self.total.get() - self.own + bytes);
        self.own = bytes;
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// Handles every complete line in the buffer. Returns how much of the rest has been scanned already.
async fn take_lines(
    hub: &Rc<Hub>,
    client: ClientId,
    connection: &Connection,
    buffer: &mut Vec<u8>,
    mut scanned: usize,
) -> usize {
    let mut taken = 0;
    let mut since = Instant::now();
    while let Some(place) = buffer[scanned..].iter().position(|byte| *byte == b'\n') {
        let line = buffer[taken..scanned + place].to_vec();
        scanned += place + 1;
        taken = scanned;
        if !line.iter().all(u8::is_ascii_whitespace) {
            hub.dispatch(Input::ClientLine { client, line });
        }
        if since.elapsed() > TURN {
            tokio::task::yield_now().await;
            since = Instant::now();
        }
        // A client that does not read its replies has to wait, as does one with many calls at the workers; one that is gone
        // wants no reply.
        connection.until(|| !hub.is_saturated(client)).await;
        connection.below(bounds::CLIENT_QUEUE_BYTES).await;
        if connection.is_closing() {
            taken = buffer.len();
            break;
        }
    }
    buffer.drain(..taken);
    buffer.shrink_to(READ_BYTES * 2);
    buffer.len()
}
