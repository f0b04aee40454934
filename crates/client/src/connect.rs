//! Making a connection that can be trusted: the directory is closed to other users, the peer is this user, the versions fit.
//! What is said after the handshake is not here.

use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use belay_protocol::daemon::{DaemonHelloParams, DaemonHelloResult};
use belay_protocol::methods::{DaemonHello, Method as _};
use belay_protocol::vars::SERVING;
use belay_protocol::{CLIENT_PROTOCOL, CLIENT_PROTOCOL_OLDEST, ErrorKind};

use crate::dirs::{check_home, check_runtime_dir};
use crate::error::ClientError;
use crate::message::{self, Parsed, decode};
use crate::paths::Paths;
use crate::start::start_daemon;
use crate::{request, wire};

/// How long a daemon may take to answer the handshake.
const HELLO_LIMIT: Duration = Duration::from_secs(10);

/// How long finding or starting a daemon may take in all.
const START_LIMIT: Duration = Duration::from_secs(10);

/// How long a daemon that is alive may be without a socket: it is starting.
const SETTLE_LIMIT: Duration = Duration::from_secs(2);

/// How long a daemon that says that it serves may be without a socket: it makes a removed one again, unless it cannot.
const SOCKET_LIMIT: Duration = Duration::from_secs(1);

/// How long one write to a daemon that does not read may take.
const WRITE_LIMIT: Duration = Duration::from_secs(30);

/// How much of the reply to the handshake is read at once; it is seldom longer.
const HELLO_BYTES: usize = 4096;
const MAX_HELLO_BYTES: usize = 1024 * 1024;

/// The id of the handshake; calls count from 1.
const HELLO_ID: i64 = 0;

/// A connection on which the handshake was made, and nothing else.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) stream: UnixStream,
    pub(crate) hello: DaemonHelloResult,
}

/// Connects to the daemon of these paths. Nothing is started.
pub(crate) fn open(paths: &Paths) -> Result<Connection, ClientError> {
    let socket = paths.socket();
    check_home(&paths.home)?;
    check_runtime_dir(&paths.runtime_dir)?;
    let stream = UnixStream::connect(&socket)
        .map_err(|source| ClientError::Unreachable { socket: socket.clone(), source })?;
    let peer =
        rustix::net::sockopt::socket_peercred(&stream).map_err(|e| ClientError::io("look at the peer", e))?;
    if peer.uid != rustix::process::getuid() {
        return Err(ClientError::ForeignPeer { socket, uid: peer.uid.as_raw() });
    }
    stream.set_write_timeout(Some(WRITE_LIMIT)).map_err(|e| ClientError::io("set a time limit", e))?;
    let hello = greet(&stream, paths)?;
    let home = Path::new(hello.home.as_os_str());
    if !is_same(home, &paths.home) {
        return Err(ClientError::ForeignHome { socket, home: home.to_owned() });
    }
    Ok(Connection { stream, hello })
}

/// The first exchange on a connection.
pub(crate) fn greet(stream: &UnixStream, paths: &Paths) -> Result<DaemonHelloResult, ClientError> {
    let params = DaemonHelloParams {
        client: paths.client.clone(),
        protocol: CLIENT_PROTOCOL,
        surface: paths.surface,
        token: paths.token.clone(),
    };
    let line = request::encode(HELLO_ID, DaemonHello::NAME, 0, &params)?;
    let mut left = line.as_slice();
    while !left.is_empty() {
        let written = wire::write(stream, left, &[]).map_err(wire::write_error)?;
        left = &left[written..];
    }
    let deadline = Instant::now() + HELLO_LIMIT;
    let mut reply = Vec::with_capacity(HELLO_BYTES);
    while reply.last() != Some(&b'\n') {
        if reply.len() > MAX_HELLO_BYTES {
            return Err(ClientError::Malformed { what: "a handshake without an end".to_owned() });
        }
        wire::wait_readable(stream, deadline)?;
        reply.reserve(HELLO_BYTES);
        wire::read(stream, &mut reply)?;
    }
    let raw = match message::parse(reply.trim_ascii_end())? {
        Parsed::Reply { id: HELLO_ID, result } => result.map_err(|e| version_error(e.into()))?,
        other => return Err(ClientError::Malformed { what: format!("{other:?} before the handshake") }),
    };
    let hello = decode::<DaemonHello>(&raw)?;
    if !(CLIENT_PROTOCOL_OLDEST..=CLIENT_PROTOCOL).contains(&hello.protocol) {
        let message = format!("version {} speaks protocol {}", hello.version, hello.protocol);
        return Err(ClientError::Version { ours: CLIENT_PROTOCOL, message, hint: None });
    }
    Ok(hello)
}

/// Connects, and starts the daemon first if there is none. `exe` is the `belay` program. A daemon that is about to exit is
/// waited for.
pub(crate) fn open_or_start(paths: &Paths, exe: &Path) -> Result<Connection, ClientError> {
    let deadline = Instant::now() + START_LIMIT;
    let mut pause = Duration::from_millis(2);
    let mut without = Without::default();
    loop {
        let error = match open(paths) {
            Ok(connection) => return Ok(connection),
            Err(error) => error,
        };
        if Instant::now() >= deadline || without.socket_too_long(paths, &error) {
            return Err(cut_off(paths, error));
        }
        if error.is_absent() {
            start_daemon(paths, exe, &[])?;
            if let Ok(connection) = open(paths) {
                return Ok(connection);
            }
        } else if !error.is_disconnect() {
            return Err(error);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(250));
    }
}

/// Connects to a daemon that may be starting or cut off from its socket; starts none.
pub(crate) fn open_if_alive(paths: &Paths) -> Result<Connection, ClientError> {
    let deadline = Instant::now() + SETTLE_LIMIT;
    let mut without = Without::default();
    loop {
        match open(paths) {
            Err(error) if error.is_absent() && living_daemon(paths).is_some() => {
                if Instant::now() >= deadline || without.socket_too_long(paths, &error) {
                    return Err(cut_off(paths, error));
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            other => return other,
        }
    }
}

/// Whether two paths are those of one directory.
fn is_same(one: &Path, other: &Path) -> bool {
    let number = |path: &Path| path.metadata().ok().map(|found| (found.dev(), found.ino()));
    one == other || (number(one).is_some() && number(one) == number(other))
}

/// Since when a daemon that says that it serves has had no socket.
#[derive(Default)]
struct Without(Option<Instant>);

impl Without {
    /// Whether the daemon is cut off. One that starts or exits does not say that it serves.
    fn socket_too_long(&mut self, paths: &Paths, error: &ClientError) -> bool {
        if !error.is_absent() || !living_daemon(paths).is_some_and(|daemon| daemon.serving) {
            self.0 = None;
            return false;
        }
        self.0.get_or_insert_with(Instant::now).elapsed() >= SOCKET_LIMIT
    }
}

/// The process that has the lock of the home.
struct Living {
    pid: i32,
    /// It says that clients can find a socket.
    serving: bool,
}

/// The process that has the lock of the home, if it is alive and a daemon.
fn living_daemon(paths: &Paths) -> Option<Living> {
    let text = std::fs::read_to_string(paths.home.join("daemon.lock")).ok()?;
    let (pid, more) = text.split_once('\n')?;
    let pid = pid.parse::<i32>().ok()?;
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let home = paths.home.as_os_str().as_bytes();
    let words: Vec<&[u8]> = words.split(|byte| *byte == 0).collect();
    (words.contains(&b"daemon".as_slice()) && words.contains(&home))
        .then(|| Living { pid, serving: more == SERVING })
}

/// No daemon answers and none can be started, because one is alive whose socket was removed.
fn cut_off(paths: &Paths, error: ClientError) -> ClientError {
    match living_daemon(paths).filter(|_| error.is_absent()) {
        Some(daemon) => ClientError::CutOff { socket: paths.socket(), pid: daemon.pid },
        None => error,
    }
}

fn version_error(error: ClientError) -> ClientError {
    match error {
        ClientError::Rpc(rpc) if rpc.data.kind == ErrorKind::Version => {
            ClientError::Version { ours: CLIENT_PROTOCOL, message: rpc.message, hint: rpc.data.hint }
        }
        other => other,
    }
}
