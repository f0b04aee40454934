//! The one error of the command line: a kind that fixes the exit code, a sentence, and hints on the way out.

use std::fmt::Write as _;
use std::io;

use belay_client::{ClientError, PathsError};
use belay_protocol::{ErrorKind, RpcError};

use crate::ui::style::Style;
use crate::ui::text::one_line;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The answer is no: not found, refused, timed out waiting.
    No,
    Usage,
    /// The daemon could not be reached or started, or went away.
    Unreachable,
    /// Nobody reads our output any more. Nothing is said.
    PipeClosed,
}

#[derive(Debug)]
pub(crate) struct CliError {
    pub(crate) kind: Kind,
    pub(crate) message: String,
    hints: Vec<String>,
    /// What the daemon answered, where it did.
    rpc: Option<Box<RpcError>>,
}

impl CliError {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hints: Vec::new(), rpc: None }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Kind::Usage, message)
    }

    pub(crate) fn no(message: impl Into<String>) -> Self {
        Self::new(Kind::No, message)
    }

    /// Standard output could not be written.
    pub(crate) fn output(error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::new(Kind::PipeClosed, "");
        }
        Self::no(format!("cannot write to standard output: {}", system_text(error)))
    }

    pub(crate) fn io(doing: &str, error: &io::Error) -> Self {
        Self::no(format!("cannot {doing}: {}", system_text(error)))
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    pub(crate) fn rpc(&self) -> Option<&RpcError> {
        self.rpc.as_deref()
    }

    pub(crate) const fn is_quiet(&self) -> bool {
        matches!(self.kind, Kind::PipeClosed)
    }

    pub(crate) const fn exit_code(&self) -> u8 {
        match self.kind {
            Kind::PipeClosed => 0,
            Kind::No => 1,
            Kind::Usage => 2,
            Kind::Unreachable => 4,
        }
    }

    /// As people read it: `error:` and a sentence, then a line for each hint.
    pub(crate) fn render(&self, colour: bool) -> String {
        let mut text = String::new();
        let mut lines = self.message.lines();
        let first = one_line(lines.next().unwrap_or("")).into_owned();
        let _ = writeln!(text, "{} {first}", Style::Bad.paint("error:", colour));
        for line in lines {
            let _ = writeln!(text, "       {}", one_line(line));
        }
        for hint in &self.hints {
            let _ = writeln!(text, " {} {}", Style::Hint.paint("hint:", colour), one_line(hint));
        }
        text
    }
}

/// The system's sentence without Rust's `(os error 28)`.
pub(crate) fn system_text(error: &io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error ") {
        Some(at) => text[..at].to_owned(),
        None => text,
    }
}

impl From<RpcError> for CliError {
    fn from(error: RpcError) -> Self {
        let kind = match error.data.kind {
            ErrorKind::Invalid => Kind::Usage,
            ErrorKind::Version | ErrorKind::ShuttingDown => Kind::Unreachable,
            _ => Kind::No,
        };
        let mut shown = Self::new(kind, error.message.clone());
        if let Some(hint) = &error.data.hint {
            shown = shown.hint(hint.clone());
        }
        shown.rpc = Some(Box::new(error));
        shown
    }
}

impl From<ClientError> for CliError {
    fn from(error: ClientError) -> Self {
        if let ClientError::Rpc(rpc) = error {
            return rpc.into();
        }
        let message = match std::error::Error::source(&error).and_then(|source| source.downcast_ref()) {
            Some(source) => format!("{error}: {}", system_text(source)),
            None => error.to_string(),
        };
        let shown = Self::new(Kind::Unreachable, message);
        match error.hint() {
            Some(hint) => shown.hint(hint),
            None => shown,
        }
    }
}

impl From<PathsError> for CliError {
    fn from(error: PathsError) -> Self {
        Self::new(Kind::Unreachable, error.to_string()).hint(error.hint())
    }
}
