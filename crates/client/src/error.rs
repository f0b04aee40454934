//! Everything that can go wrong between a caller and the daemon, each with its way out. No error prints itself.

use std::io;
use std::path::PathBuf;

use belay_protocol::RpcError;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    #[error("no daemon answers at {}", socket.display())]
    Unreachable { socket: PathBuf, source: io::Error },

    #[error("a daemon is running (pid {pid}), and its socket {} is gone", socket.display())]
    CutOff { socket: PathBuf, pid: i32 },

    #[error("the daemon could not be started: {}", said(stderr, status))]
    StartFailed { status: String, stderr: String },

    #[error("{what} {} {problem}", dir.display())]
    Refused { what: &'static str, dir: PathBuf, problem: String, hint: String },

    #[error("the socket {} is served by another user (uid {uid})", socket.display())]
    ForeignPeer { socket: PathBuf, uid: u32 },

    #[error("the socket {} is that of the daemon of another home, {}", socket.display(), home.display())]
    ForeignHome { socket: PathBuf, home: PathBuf },

    #[error("this belay speaks protocol {ours}, and the daemon answered: {message}")]
    Version { ours: u32, message: String, hint: Option<String> },

    #[error(transparent)]
    Rpc(#[from] RpcError),

    #[error("cannot {doing}")]
    Io { doing: &'static str, source: io::Error },

    /// The daemon ended the connection, or ended itself.
    #[error("the daemon closed the connection")]
    Closed,

    #[error("the daemon did not answer in time")]
    Deadline,

    #[error("the daemon sent what this belay does not understand: {what}")]
    Malformed { what: String },
}

impl ClientError {
    pub(crate) fn io(doing: &'static str, source: impl Into<io::Error>) -> Self {
        Self::Io { doing, source: source.into() }
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
            Self::Io { .. } | Self::Closed => None,
        }
    }

    /// The connection is gone, or the daemon behind it is about to be: with a new one the work can go on.
    pub fn is_disconnect(&self) -> bool {
        match self {
            Self::Rpc(error) => error.is_leaving(),
            other => matches!(other, Self::Closed | Self::Io { .. }),
        }
    }

    /// Nobody listens: a daemon may be started.
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
