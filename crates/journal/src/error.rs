//! The journal's error type, sorted by what the daemon can do about an error.
//!
//! `Display` says what happened and never repeats its source.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use rusqlite::ffi;

/// The field of a task that an error is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    Id,
    Number,
    Token,
    OutputBytes,
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Id => "id",
            Self::Number => "number",
            Self::Token => "token",
            Self::OutputBytes => "output size",
        })
    }
}

/// Why the journal could not be opened, read or written.
///
/// After an error from an append, nothing of the batch counts, and the journal remains usable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("cannot use the journal at {}", path.display())]
    Io { path: PathBuf, source: io::Error },

    /// The disk (or the quota) is full. The same write succeeds once there is room.
    #[error("no room left for the journal at {}", path.display())]
    Full { path: PathBuf, source: io::Error },

    #[error("the journal at {} may not be written", path.display())]
    ReadOnly { path: PathBuf, source: io::Error },

    /// Too many batches wait for the database. The same append succeeds after a flush.
    #[error("{bytes} bytes wait to be written to the journal at {}", path.display())]
    Backlog { path: PathBuf, bytes: u64 },

    /// Another program held the database's write lock for longer than the busy timeout.
    #[error("the journal at {} is locked by another program", path.display())]
    Busy { path: PathBuf, source: rusqlite::Error },

    #[error("the journal has format {found}, and this program knows formats up to {known}")]
    Newer { found: i64, known: i64 },

    #[error("event {found} does not follow: the next event is number {expected}")]
    Sequence { expected: u64, found: u64 },

    /// The database cannot store the number.
    #[error("the task's {field} {value} is too large")]
    TooLarge { field: Field, value: u64 },

    /// A flush met a value that another task has. The batches are in the database without it.
    #[error("another task has the {field} {value:?}")]
    Duplicate { field: Field, value: String },

    /// Damage found while running. Opening the journal again quarantines the file and keeps what
    /// can be read.
    #[error("the journal at {} is damaged", path.display())]
    Corrupt { path: PathBuf, source: rusqlite::Error },

    #[error("the journal at {} refused a statement", path.display())]
    Sql { path: PathBuf, source: rusqlite::Error },
}

impl Error {
    /// Classifies an error of the file system.
    pub(crate) fn io(path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full { path, source },
            io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
                Self::ReadOnly { path, source }
            }
            _ => Self::Io { path, source },
        }
    }

    /// Classifies an error of the database.
    pub(crate) fn sql(path: &Path, source: rusqlite::Error) -> Self {
        let path = path.to_owned();
        if is_damage(&source) {
            return Self::Corrupt { path, source };
        }
        match source.sqlite_error_code() {
            Some(ffi::ErrorCode::DiskFull) => Self::Full { path, source: io::Error::other(source) },
            // The shared index of the log could not grow because the disk is full.
            Some(_) if source.sqlite_extended_error_code() == Some(ffi::SQLITE_IOERR_SHMSIZE) => {
                Self::Full { path, source: io::Error::other(source) }
            }
            Some(ffi::ErrorCode::ReadOnly | ffi::ErrorCode::PermissionDenied) => {
                Self::ReadOnly { path, source: io::Error::other(source) }
            }
            Some(ffi::ErrorCode::DatabaseBusy | ffi::ErrorCode::DatabaseLocked) => {
                Self::Busy { path, source }
            }
            Some(ffi::ErrorCode::SystemIoFailure | ffi::ErrorCode::CannotOpen) => {
                Self::Io { path, source: io::Error::other(source) }
            }
            _ => Self::Sql { path, source },
        }
    }
}

/// Whether this error says that the stored bytes are wrong, rather than that something else failed.
pub(crate) fn is_damage(error: &rusqlite::Error) -> bool {
    use rusqlite::Error as E;
    match error {
        E::FromSqlConversionFailure(..)
        | E::IntegralValueOutOfRange(..)
        | E::Utf8Error(..)
        | E::InvalidColumnType(..) => true,
        E::SqliteFailure(..) => {
            matches!(
                error.sqlite_error_code(),
                Some(ffi::ErrorCode::DatabaseCorrupt | ffi::ErrorCode::NotADatabase)
            ) || error.sqlite_extended_error_code() == Some(ffi::SQLITE_IOERR_SHORT_READ)
        }
        _ => false,
    }
}
