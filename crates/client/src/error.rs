//! The error type of the client: everything that can go wrong between a caller and the daemon, each with a hint. No error
//! prints itself.

use std::io;
use std::path::PathBuf;

use belay_protocol::RpcError;

/// Why a call or a connection failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// No daemon listens on the socket.
    #[error("no daemon answers at {}", socket.display())]
    Unreachable {
        /// The socket of the daemon.
        socket: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },

    /// A daemon is alive, but its socket was removed.
    #[error("a daemon is running (pid {pid}), and its socket {} is gone", socket.display())]
    CutOff {
        /// Where the socket was.
        socket: PathBuf,
        /// The daemon.
        pid: i32,
    },

    /// The daemon was started and exited with an error.
    #[error("the daemon could not be started: {}", said(stderr, status))]
    StartFailed {
        /// Its exit status.
        status: String,
        /// What it wrote to standard error.
        stderr: String,
    },

    /// A directory cannot be used.
    #[error("{what} {} {problem}", dir.display())]
    Refused {
        /// What the directory is for.
        what: &'static str,
        /// The directory.
        dir: PathBuf,
        /// What is wrong with it.
        problem: String,
        /// What to do about it.
        hint: String,
    },

    /// Another user serves the socket.
    #[error("the socket {} is served by another user (uid {uid})", socket.display())]
    ForeignPeer {
        /// The socket.
        socket: PathBuf,
        /// The user that serves it.
        uid: u32,
    },

    /// The socket belongs to the daemon of another home.
    #[error("the socket {} is that of the daemon of another home, {}", socket.display(), home.display())]
    ForeignHome {
        /// The socket.
        socket: PathBuf,
        /// The home of the daemon that serves it.
        home: PathBuf,
    },

    /// Client and daemon speak different versions of the protocol.
    #[error("this belay speaks protocol {ours}, and the daemon answered: {message}")]
    Version {
        /// The version of this client.
        ours: u32,
        /// What the daemon answered.
        message: String,
        /// The hint of the daemon.
        hint: Option<String>,
    },

    /// The daemon answered the call with an error.
    #[error(transparent)]
    Rpc(#[from] RpcError),

    /// A system call failed.
    #[error("cannot {doing}")]
    Io {
        /// What the client tried to do.
        doing: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },

    /// The daemon ended the connection, or exited.
    #[error("the daemon closed the connection")]
    Closed,

    /// The connection was lost before the daemon answered a call that is not safe to repeat.
    #[error("the connection was lost before {method} was answered: it is unknown whether it took effect")]
    OutcomeUnknown {
        /// The method of the call.
        method: &'static str,
    },

    /// The deadline of the call passed without an answer.
    #[error("the daemon did not answer in time")]
    Deadline,

    /// The daemon sent something that is not a message of the protocol.
    #[error("the daemon sent what this belay does not understand: {what}")]
    Malformed {
        /// What was received, shortened.
        what: String,
    },
}

impl ClientError {
    pub(crate) fn io(doing: &'static str, source: impl Into<io::Error>) -> Self {
        Self::Io { doing, source: source.into() }
    }

    /// The same error for another caller: every pending call of a connection fails with it.
    #[cfg(feature = "tokio")]
    pub(crate) fn duplicate(&self) -> Self {
        let io = |source: &io::Error| {
            source.raw_os_error().map_or_else(|| source.kind().into(), io::Error::from_raw_os_error)
        };
        match self {
            Self::Unreachable { socket, source } => {
                Self::Unreachable { socket: socket.clone(), source: io(source) }
            }
            Self::CutOff { socket, pid } => Self::CutOff { socket: socket.clone(), pid: *pid },
            Self::StartFailed { status, stderr } => {
                Self::StartFailed { status: status.clone(), stderr: stderr.clone() }
            }
            Self::Refused { what, dir, problem, hint } => {
                Self::Refused { what, dir: dir.clone(), problem: problem.clone(), hint: hint.clone() }
            }
            Self::ForeignPeer { socket, uid } => Self::ForeignPeer { socket: socket.clone(), uid: *uid },
            Self::ForeignHome { socket, home } => {
                Self::ForeignHome { socket: socket.clone(), home: home.clone() }
            }
            Self::Version { ours, message, hint } => {
                Self::Version { ours: *ours, message: message.clone(), hint: hint.clone() }
            }
            Self::Rpc(error) => Self::Rpc(error.clone()),
            Self::Io { doing, source } => Self::Io { doing, source: io(source) },
            Self::Closed => Self::Closed,
            Self::OutcomeUnknown { method } => Self::OutcomeUnknown { method },
            Self::Deadline => Self::Deadline,
            Self::Malformed { what } => Self::Malformed { what: what.clone() },
        }
    }

    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Unreachable { .. } => Some("start it with `belay up`".to_owned()),
            Self::CutOff { pid, .. } => Some(format!(
                "kill {pid}: tasks run on, and the next command starts a daemon that adopts them"
            )),
            Self::StartFailed { .. } => Some("`belay doctor` looks at what a daemon needs".to_owned()),
            Self::Refused { hint, .. } => Some(hint.clone()),
            Self::ForeignPeer { .. } => {
                Some("set BELAY_RUNTIME_DIR to a directory that only you can write to".to_owned())
            }
            Self::ForeignHome { home, .. } => Some(format!(
                "give every home a runtime directory of its own: set BELAY_RUNTIME_DIR, or set BELAY_HOME={}",
                home.display()
            )),
            Self::Version { hint, .. } => Some(hint.clone().unwrap_or_else(|| {
                "end the other version with its own `belay down` (tasks run on), then try again".to_owned()
            })),
            Self::Rpc(error) => error.data.hint.clone(),
            Self::Deadline => Some("`belay status` tells whether the daemon is well".to_owned()),
            Self::Malformed { .. } => {
                Some("if the daemon is of another version: `belay down`, then try again".to_owned())
            }
            Self::OutcomeUnknown { .. } => Some("look whether it did before you ask for it again".to_owned()),
            Self::Io { .. } | Self::Closed => None,
        }
    }

    /// Whether the connection is lost, or the daemon behind it shuts down: a call that is safe to repeat can be made on a new
    /// connection.
    pub fn is_disconnect(&self) -> bool {
        match self {
            Self::Rpc(error) => error.is_leaving(),
            other => matches!(other, Self::Closed | Self::Io { .. }),
        }
    }

    /// Whether no daemon listens, so that one may be started.
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Unreachable { source, .. } if matches!(
            source.kind(),
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
        ))
    }
}

fn said(stderr: &str, status: &str) -> String {
    // The daemon's own word before its sentence is ours to say.
    let text = stderr.trim().trim_start_matches("error: ");
    if text.is_empty() { format!("it ended with {status} and said nothing") } else { text.to_owned() }
}
