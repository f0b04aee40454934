//! Making a connection that can be trusted: the directory is ours alone, the peer is our own user, the versions fit.

use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use belay_protocol::daemon::{ClientInfo, DaemonHelloParams, Surface};
use belay_protocol::methods::DaemonHello;
use belay_protocol::vars::SERVING;
use belay_protocol::{CLIENT_PROTOCOL, CLIENT_PROTOCOL_OLDEST, ErrorKind};

use crate::call::Client;
use crate::dirs::{check_home, check_runtime_dir};
use crate::error::ClientError;
use crate::places::Places;
use crate::start::start_daemon;

/// How long a daemon may take to say hello.
const HELLO_LIMIT: Duration = Duration::from_secs(10);

/// How long finding or starting a daemon may take in all.
const START_LIMIT: Duration = Duration::from_secs(10);

/// How long a daemon that is alive may be without a socket: it is just starting.
const SETTLE_LIMIT: Duration = Duration::from_secs(2);

/// How long one that says it serves may be: it puts back what somebody has removed, unless it cannot.
const SOCKET_LIMIT: Duration = Duration::from_secs(1);

/// How long one write to a daemon that does not read may hang.
const WRITE_LIMIT: Duration = Duration::from_secs(30);

impl Client {
    /// Connects to the daemon of these places. Nothing is started.
    pub fn connect(places: &Places) -> Result<Self, ClientError> {
        let socket = places.socket();
        check_home(&places.home)?;
        check_runtime_dir(&places.runtime_dir)?;
        let stream = UnixStream::connect(&socket)
            .map_err(|source| ClientError::Unreachable { socket: socket.clone(), source })?;
        let peer = rustix::net::sockopt::socket_peercred(&stream)
            .map_err(|e| ClientError::io("look at the peer", e))?;
        if peer.uid != rustix::process::getuid() {
            return Err(ClientError::ForeignPeer { socket, uid: peer.uid.as_raw() });
        }
        stream.set_write_timeout(Some(WRITE_LIMIT)).map_err(|e| ClientError::io("set a time limit", e))?;
        let client = Self::greet(stream, places.token.clone())?;
        match client.hello().map(|hello| Path::new(hello.home.as_os_str())) {
            Some(home) if !is_same(home, &places.home) => {
                Err(ClientError::ForeignHome { socket, home: home.to_owned() })
            }
            _ => Ok(client),
        }
    }

    /// The first exchange on a connection.
    pub(crate) fn greet(stream: UnixStream, token: Option<String>) -> Result<Self, ClientError> {
        let mut client = Self::over(stream);
        let params = DaemonHelloParams {
            client: ClientInfo::new("belay", env!("CARGO_PKG_VERSION")),
            surface: Surface::Cli,
            protocol: CLIENT_PROTOCOL,
            token,
        };
        let hello = client
            .call_by::<DaemonHello>(&params, Some(Instant::now() + HELLO_LIMIT))
            .map_err(version_error)?;
        if !(CLIENT_PROTOCOL_OLDEST..=CLIENT_PROTOCOL).contains(&hello.protocol) {
            let message = format!("version {} speaks protocol {}", hello.version, hello.protocol);
            return Err(ClientError::Version { ours: CLIENT_PROTOCOL, message, hint: None });
        }
        client.set_hello(hello);
        Ok(client)
    }

    /// Connects, and starts the daemon first where there is none. `exe` is the `belay` program. A daemon that is
    /// just leaving is waited for.
    pub fn connect_or_start(places: &Places, exe: &Path) -> Result<Self, ClientError> {
        let deadline = Instant::now() + START_LIMIT;
        let mut pause = Duration::from_millis(2);
        let mut without = Without::default();
        loop {
            let error = match Self::connect(places) {
                Ok(client) => return Ok(client),
                Err(error) => error,
            };
            if Instant::now() >= deadline || without.socket_too_long(places, &error) {
                return Err(cut_off(places, error));
            }
            if error.is_absent() {
                start_daemon(places, exe, &[])?;
                if let Ok(client) = Self::connect(places) {
                    return Ok(client);
                }
            } else if !error.is_disconnect() {
                return Err(error);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(250));
        }
    }
}

impl Client {
    /// Connects to a daemon that may be starting or cut off from its socket; starts none. `is_absent` is true of the
    /// error only if none is alive.
    pub fn connect_if_alive(places: &Places) -> Result<Self, ClientError> {
        let deadline = Instant::now() + SETTLE_LIMIT;
        let mut without = Without::default();
        loop {
            match Self::connect(places) {
                Err(error) if error.is_absent() && living_daemon(places).is_some() => {
                    if Instant::now() >= deadline || without.socket_too_long(places, &error) {
                        return Err(cut_off(places, error));
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
                other => return other,
            }
        }
    }
}

/// Whether two paths are those of one directory.
fn is_same(one: &Path, other: &Path) -> bool {
    let number = |path: &Path| path.metadata().ok().map(|found| (found.dev(), found.ino()));
    one == other || (number(one).is_some() && number(one) == number(other))
}

/// Since when a daemon that says it serves has had no socket.
#[derive(Default)]
struct Without(Option<Instant>);

impl Without {
    /// Whether it is cut off, and not just starting or leaving: of those it does not say that it serves.
    fn socket_too_long(&mut self, places: &Places, error: &ClientError) -> bool {
        if !error.is_absent() || !living_daemon(places).is_some_and(|daemon| daemon.serving) {
            self.0 = None;
            return false;
        }
        self.0.get_or_insert_with(Instant::now).elapsed() >= SOCKET_LIMIT
    }
}

/// The process that holds the home.
struct Living {
    pid: i32,
    /// It says that clients are to find a socket.
    serving: bool,
}

/// Who holds the home, if it is alive and a daemon.
fn living_daemon(places: &Places) -> Option<Living> {
    let text = std::fs::read_to_string(places.home.join("daemon.lock")).ok()?;
    let (pid, more) = text.split_once('\n')?;
    let pid = pid.parse::<i32>().ok()?;
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let home = places.home.as_os_str().as_bytes();
    let words: Vec<&[u8]> = words.split(|byte| *byte == 0).collect();
    (words.contains(&b"daemon".as_slice()) && words.contains(&home))
        .then(|| Living { pid, serving: more == SERVING })
}

/// Nobody answers, and none can be started, because one is there: somebody has removed its socket.
fn cut_off(places: &Places, error: ClientError) -> ClientError {
    match living_daemon(places).filter(|_| error.is_absent()) {
        Some(daemon) => ClientError::CutOff { socket: places.socket(), pid: daemon.pid },
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
