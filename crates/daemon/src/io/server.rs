//! Clients at the door: who may come in, reading their lines, and never letting one of them hurt another.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use belay_os::process;
use belay_protocol::MAX_REQUEST_BYTES;
use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::rpc::{Answer, Version};
use tokio::net::UnixStream;

use super::door::Door;
use super::outbox::Outbox;
use super::run::Hub;
use crate::config::bounds;
use crate::event::{ClientId, Event};

/// How long one client may keep all others waiting with what it sent at once.
const TURN: Duration = Duration::from_millis(2);

pub(crate) const READ_BYTES: usize = 64 * 1024;

pub(crate) async fn accept(hub: &Rc<Hub>, door: &mut Door) {
    let own = rustix::process::getuid().as_raw();
    loop {
        match door.accept().await {
            Ok(stream) => {
                match stream.peer_cred() {
                    Ok(peer) if peer.uid() == own => welcome(hub, stream, own, peer.pid().unwrap_or(0)),
                    // Somebody else's process got through the directory's mode: it is told nothing.
                    _ => drop(stream),
                }
            }
            // Out of descriptors: whoever is connected goes on being served; the next closing makes room.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Who connects is looked at before anything is read: what runs inside a task is that task, whatever it says.
fn welcome(hub: &Rc<Hub>, stream: UnixStream, uid: u32, pid: i32) {
    // One from outside of what this daemon can see at all is no part of any task.
    let ancestors = if pid == 0 { Ok(Some(Vec::new())) } else { process::ancestors(pid) };
    let ancestors = match ancestors {
        Ok(Some(ancestors)) => ancestors,
        Ok(None) => {
            let gone =
                RpcError::new(ErrorKind::NotPermitted, "the process that made this connection is gone");
            return refuse(&stream, &gone.hint("whoever speaks to the daemon has to be there"));
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
    let Ok(outbox) = stream.into_std().and_then(Outbox::new).map(Rc::new) else { return };
    hub.clients.borrow_mut().insert(client, Rc::clone(&outbox));
    let of_a_task = ancestors.contains(&hub.pid) || hub.recipe.holds_in_cgroup(pid);
    hub.dispatch(Event::ClientCame { client, uid, ancestors, of_a_task });
    let writer = (Rc::clone(hub), Rc::clone(&outbox));
    tokio::task::spawn_local(async move {
        let (hub, outbox) = writer;
        outbox.run(|bytes| hub.dispatch(Event::ClientWrote { client, bytes })).await;
    });
    let hub = Rc::clone(hub);
    tokio::task::spawn_local(async move {
        listen(&hub, client, &outbox).await;
        hub.clients.borrow_mut().remove(&client);
        outbox.close();
        hub.dispatch(Event::ClientGone { client });
    });
}

/// Told why, and closed.
fn refuse(stream: &UnixStream, error: &RpcError) {
    let _ = stream.try_write(&error_line(error));
}

fn error_line(error: &RpcError) -> Vec<u8> {
    let answer = Answer::<()> { jsonrpc: Version::V2, id: None, result: None, error: Some(error) };
    let mut line = serde_json::to_vec(&answer).unwrap_or_default();
    line.push(b'\n');
    line
}

/// Reads lines until the client leaves, says too much at once, or is told to go.
async fn listen(hub: &Rc<Hub>, client: ClientId, outbox: &Outbox) {
    let mut buffer: Vec<u8> = Vec::new();
    let mut unfinished = Unfinished { total: &hub.unfinished_bytes, own: 0 };
    let mut scanned = 0;
    loop {
        // A client that does not read its answers is not asked for more questions.
        outbox.below(bounds::CLIENT_QUEUE_BYTES).await;
        if outbox.is_closing() {
            return;
        }
        match outbox.read(&hub.scratch, |bytes| buffer.extend_from_slice(bytes)).await {
            Err(_) => return,
            Ok(0) if outbox.is_closing() || outbox.is_hung_up() => return,
            Ok(0) => {
                hub.dispatch(Event::ClientSaidAll { client });
                return outbox.until_over().await;
            }
            Ok(_) => {}
        }
        scanned = take_lines(hub, client, outbox, &mut buffer, scanned).await;
        unfinished.set(buffer.len());
        if let Some(error) = too_much(buffer.len(), hub.unfinished_bytes.get()) {
            outbox.push(error_line(&error));
            outbox.close();
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

/// What one client has sent of a line that has no end yet, as a part of what all have.
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

/// Handles every whole line in the buffer. Returns how much of the rest has been looked through already.
async fn take_lines(
    hub: &Rc<Hub>,
    client: ClientId,
    outbox: &Outbox,
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
            hub.dispatch(Event::ClientSaid { client, line });
        }
        if since.elapsed() > TURN {
            tokio::task::yield_now().await;
            since = Instant::now();
        }
        // Whoever does not read its answers is not heard on; whoever is gone wants none.
        outbox.below(bounds::CLIENT_QUEUE_BYTES).await;
        if outbox.is_closing() {
            taken = buffer.len();
            break;
        }
    }
    buffer.drain(..taken);
    buffer.shrink_to(READ_BYTES * 2);
    buffer.len()
}
