//! The two files of the log: `daemon.log`, and `daemon.log.1` with what was in it before. A line that cannot be written is
//! counted, and the count is written as soon as that is possible; the caller never learns of it.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use belay_protocol::{Timestamp, vars};
use rustix::fs::OFlags;

use super::line;

/// For this user alone.
const MODE: u32 = 0o600;

#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    old: PathBuf,
    /// The most that one file holds.
    limit_bytes: u64,
    /// None: it could not be opened; that is tried again with the next line.
    open: Option<Open>,
    lost: Option<Lost>,
}

#[derive(Debug)]
struct Open {
    file: File,
    /// Which file it is: another one, or none, may be at the path by now.
    identity: (u64, u64),
    /// The last line is incomplete, and could not be removed.
    is_torn: bool,
}

/// Lines that could not be written.
#[derive(Debug)]
struct Lost {
    lines: u64,
    /// Why the first one could not.
    cause: String,
}

impl LogFile {
    /// Opens or creates the log of a home. The error says why it cannot be written now.
    pub(super) fn open(home: &Path, limit_bytes: u64) -> (Self, io::Result<()>) {
        let (path, old) = (home.join(vars::LOG_FILE), home.join(vars::OLD_LOG_FILE));
        let mut log = Self { path, old, limit_bytes, open: None, lost: None };
        let opened = log.reopen().map(|_| ());
        (log, opened)
    }

    /// Writes one line, and before it how many could not be written.
    pub(super) fn write_line(&mut self, at: Timestamp, line: &str) {
        if let Some(Lost { lines, cause }) = &self.lost {
            let fields: [(&str, &dyn std::fmt::Debug); 2] =
                [("lines", lines), ("cause", &format_args!("{cause}"))];
            let report = line::own(at, "log lines lost", &fields);
            match self.try_write(&report) {
                Ok(()) => self.lost = None,
                Err(_) => return self.count_lost(None),
            }
        }
        if let Err(error) = self.try_write(line) {
            self.count_lost(Some(&error));
        }
    }

    fn count_lost(&mut self, error: Option<&io::Error>) {
        let cause = || error.map(ToString::to_string).unwrap_or_default();
        self.lost.get_or_insert_with(|| Lost { lines: 0, cause: cause() }).lines += 1;
    }

    fn try_write(&mut self, line: &str) -> io::Result<()> {
        let mut size = self.reopen()?;
        // With the line end that a torn line may still need.
        if size > 0 && size + line.len() as u64 + 1 > self.limit_bytes {
            self.rotate()?;
            size = self.reopen()?;
        }
        let Some(open) = &mut self.open else { return Err(io::ErrorKind::NotFound.into()) };
        open.append(size, line)
    }

    /// Makes sure that the file at the path is the open one. Returns its size.
    fn reopen(&mut self) -> io::Result<u64> {
        if let (Some(open), Ok(meta)) = (&self.open, fs::symlink_metadata(&self.path))
            && open.identity == (meta.dev(), meta.ino())
        {
            return Ok(meta.len());
        }
        self.open = None;
        // A pipe without a reader would hold up the daemon, and a link could lead anywhere.
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let flags = i32::try_from(flags.bits()).map_err(io::Error::other)?;
        let mut options = OpenOptions::new();
        options.read(true).append(true).create(true).mode(MODE).custom_flags(flags);
        let file = options.open(&self.path)?;
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        if meta.mode() & 0o7777 != MODE {
            file.set_permissions(Permissions::from_mode(MODE))?;
        }
        let is_torn = !ends_with_line(&file, meta.len());
        self.open = Some(Open { file, identity: (meta.dev(), meta.ino()), is_torn });
        Ok(meta.len())
    }

    /// The full file replaces the old one. Where that cannot be, it is emptied: the bound counts for more than old lines.
    fn rotate(&mut self) -> io::Result<()> {
        if fs::rename(&self.path, &self.old).is_ok() {
            self.open = None;
            return Ok(());
        }
        match &mut self.open {
            Some(open) => {
                open.is_torn = false;
                open.file.set_len(0)
            }
            None => Ok(()),
        }
    }
}

impl Open {
    /// Appends a whole line or nothing to a file of this size.
    fn append(&mut self, size: u64, line: &str) -> io::Result<()> {
        if self.is_torn {
            self.file.write_all(b"\n")?;
            self.is_torn = false;
            return self.append(size + 1, line);
        }
        let Err(error) = self.file.write_all(line.as_bytes()) else { return Ok(()) };
        // A part of a line is worse than none.
        self.is_torn = self.file.set_len(size).is_err();
        Err(error)
    }
}

/// Whether a file ends with a whole line: a daemon that was killed may have written half of one.
fn ends_with_line(file: &File, size: u64) -> bool {
    let Some(last) = size.checked_sub(1) else { return true };
    let mut byte = [0];
    file.read_exact_at(&mut byte, last).is_err() || byte == *b"\n"
}
