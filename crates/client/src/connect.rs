//! Making a connection that can be trusted: the directory is ours alone, the peer is our own user, the versions fit.

use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use belay_protocol::daemon::HelloParams;
use belay_protocol::methods::Hello;
use belay_protocol::{CLIENT_PROTOCOL, CLIENT_PROTOCOL_OLDEST, ErrorKind};

use crate::call::Client;
use crate::error::ClientError;
use crate::places::Places;
use crate::start::start_daemon;

/// How long a daemon may take to say hello.
const HELLO_LIMIT: Duration = Duration::from_secs(10);

/// How long finding or starting a daemon may take in all.
const START_LIMIT: Duration = Duration::from_secs(10);

/// How long a daemon that is alive may be without a socket: it is just starting.
const SETTLE_LIMIT: Duration = Duration::from_secs(2);

/// How long one write to a daemon that does not read may hang.
const WRITE_LIMIT: Duration = Duration::from_secs(30);

impl Client {
    /// Connects to the daemon of these places. Nothing is started.
    pub fn connect(places: &Places) -> Result<Self, ClientError> {
        let socket = places.socket();
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
        let params = HelloParams {
            client: concat!("belay-client ", env!("CARGO_PKG_VERSION")).to_owned(),
            protocol: CLIENT_PROTOCOL,
            token,
        };
        let hello =
            client.call_by::<Hello>(&params, Some(Instant::now() + HELLO_LIMIT)).map_err(version_error)?;
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
        loop {
            let error = match Self::connect(places) {
                Ok(client) => return Ok(client),
                Err(error) => error,
            };
            if Instant::now() >= deadline {
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
        loop {
            match Self::connect(places) {
                Err(error) if error.is_absent() && living_daemon(places).is_some() => {
                    if Instant::now() >= deadline {
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

/// The process that holds the home, if it is alive and a daemon.
fn living_daemon(places: &Places) -> Option<i32> {
    let pid = std::fs::read_to_string(places.home.join("daemon.lock")).ok()?.trim().parse::<i32>().ok()?;
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let home = places.home.as_os_str().as_bytes();
    let words: Vec<&[u8]> = words.split(|byte| *byte == 0).collect();
    (words.contains(&b"daemon".as_slice()) && words.contains(&home)).then_some(pid)
}

/// Nobody answers, and none can be started, because one is there: somebody has removed its socket.
fn cut_off(places: &Places, error: ClientError) -> ClientError {
    match living_daemon(places).filter(|_| error.is_absent()) {
        Some(pid) => ClientError::CutOff { socket: places.socket(), pid },
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

/// Whether sockets in this directory can be trusted: a directory and no link, ours, and closed to everybody else.
/// A directory that does not exist is `Unreachable`.
pub fn check_runtime_dir(dir: &Path) -> Result<(), ClientError> {
    let refuse = |problem: &str, hint: String| {
        Err(ClientError::Refused { dir: dir.to_owned(), problem: problem.to_owned(), hint })
    };
    let elsewhere = || "remove it, or set BELAY_RUNTIME_DIR to a directory of yours".to_owned();
    let meta = match dir.symlink_metadata() {
        Ok(meta) => meta,
        Err(source) if source.kind() == io::ErrorKind::NotFound => {
            return Err(ClientError::Unreachable { socket: dir.join("daemon.sock"), source });
        }
        Err(source) => {
            let hint = "is BELAY_HOME a directory, and yours? Name another one, or set BELAY_RUNTIME_DIR";
            return refuse(&format!("cannot be looked at: {}", source.kind()), hint.to_owned());
        }
    };
    if meta.is_symlink() {
        return refuse("is a symbolic link", elsewhere());
    }
    if !meta.is_dir() {
        return refuse("is not a directory", elsewhere());
    }
    if meta.uid() != rustix::process::getuid().as_raw() {
        return refuse(&format!("belongs to another user (uid {})", meta.uid()), elsewhere());
    }
    if meta.mode() & 0o077 != 0 {
        let mode = meta.mode() & 0o7777;
        // One with the sticky bit is everybody's on purpose, like /tmp: it must stay so.
        let hint = if mode & 0o1000 != 0 {
            format!(
                "set BELAY_RUNTIME_DIR to a directory of its own, for instance {}",
                dir.join("belay").display()
            )
        } else {
            format!("chmod 700 {}", dir.display())
        };
        return refuse(&format!("is open to others (mode {mode:04o})"), hint);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_runtime_dir_that_others_may_enter_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o750)).unwrap();
        let error = check_runtime_dir(dir.path()).unwrap_err();
        assert!(error.to_string().ends_with("is open to others (mode 0750)"), "{error}");
        assert_eq!(error.hint().unwrap(), format!("chmod 700 {}", dir.path().display()));
        fs::set_permissions(dir.path(), Permissions::from_mode(0o1777)).unwrap();
        let hint = check_runtime_dir(dir.path()).unwrap_err().hint().unwrap();
        assert!(hint.starts_with("set BELAY_RUNTIME_DIR to a directory of its own"), "{hint}");
        fs::set_permissions(dir.path(), Permissions::from_mode(0o700)).unwrap();
        check_runtime_dir(dir.path()).unwrap();
    }

    #[test]
    fn links_and_files_are_refused_and_a_missing_one_is_absent() {
        let dir = tempfile::tempdir().unwrap();
        let (link, file) = (dir.path().join("link"), dir.path().join("file"));
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        fs::write(&file, "").unwrap();
        assert!(check_runtime_dir(&link).unwrap_err().to_string().ends_with("is a symbolic link"));
        assert!(check_runtime_dir(&file).unwrap_err().to_string().ends_with("is not a directory"));
        assert!(check_runtime_dir(&dir.path().join("none")).unwrap_err().is_absent());
    }
}
