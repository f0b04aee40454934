//! The file of settings on disk: read whole, written whole or not at all. Its contents are not interpreted here.

use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use rustix::fs::OFlags;

use crate::settings::{Found, Stamp};

/// A longer file is not a settings file.
const MAX_BYTES: u64 = 64 * 1024;

/// Only the owner's, unless the file that is replaced was more open.
const MODE: u32 = 0o600;

pub(super) fn stamp(path: &Path) -> Option<Stamp> {
    path.metadata().ok().map(|meta| (meta.ctime(), meta.ctime_nsec(), meta.size(), meta.ino()))
}

pub(super) fn read(path: &Path) -> io::Result<Found> {
    // Before the text: a change in between is then seen as one the next time.
    let stamp = stamp(path);
    // A pipe without a writer would block the daemon.
    let nonblocking = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
    let file = match std::fs::File::options().read(true).custom_flags(nonblocking).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::default()),
        Err(error) => return Err(error),
    };
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let mut text = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(io::Error::other("it is larger than 64 KiB"));
    }
    Ok(Found { stamp, text: Some(text) })
}

pub(super) fn write(path: &Path, text: &[u8]) -> io::Result<()> {
    // A symbolic link is kept: the file that it points to is replaced.
    let target = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let aside = target.with_extension("toml.new");
    let mode = target.metadata().map_or(MODE, |meta| meta.permissions().mode() & 0o777);
    let written = write_aside(&aside, text, mode).and_then(|()| std::fs::rename(&aside, &target));
    if written.is_err() {
        // What could not become the file is of no use.
        let _ = std::fs::remove_file(&aside);
    }
    written
}

fn write_aside(aside: &Path, text: &[u8], mode: u32) -> io::Result<()> {
    let mut file = std::fs::File::options().create(true).truncate(true).write(true).mode(mode).open(aside)?;
    file.write_all(text)?;
    file.sync_all()
}
