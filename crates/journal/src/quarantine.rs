//! Quarantine of damaged files: names, the order of steps, and resuming after a crash between two
//! of them.
//!
//! Nothing here opens a database or interprets bytes. Damaged files are renamed, never overwritten
//! or removed.
//!
//! A marker file (`journal.salvage`) names the quarantined database while the steps run, so that a
//! start that dies between them is finished by the next: marker, rename, rebuild under another
//! name, put in place, remove the marker.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::open::beside;

const MARKER: &str = "journal.salvage";
const PREFIX: &str = "journal.damaged-";
/// More names than this in one second point to a fault that needs a person.
const MAX_NAMES: u32 = 1000;
/// The files of one database.
const PARTS: [&str; 3] = ["", "-wal", "-shm"];

/// A damaged database that has, or is about to get, a name of its own.
#[derive(Debug)]
pub(crate) struct Quarantine {
    /// Where the database file goes; its log goes beside it.
    pub(crate) path: PathBuf,
    pub(crate) why: String,
}

/// What an earlier start left unfinished.
#[derive(Debug)]
pub(crate) enum Unfinished {
    /// The new database is not yet in place.
    Rebuild(Quarantine),
    /// Only the marker has to be removed and the notice to be given.
    Report(Quarantine),
}

/// Chooses an unused name and writes the marker.
pub(crate) fn begin(dir: &Path, why: String) -> io::Result<Quarantine> {
    let name = free_name(dir, "db")?;
    let mut marker = File::create(dir.join(MARKER))?;
    marker.write_all(format!("{name}\n{why}\n").as_bytes())?;
    marker.sync_all()?;
    sync_dir(dir)?;
    Ok(Quarantine { path: dir.join(name), why })
}

/// An unused name in `dir` for a damaged file.
fn free_name(dir: &Path, extension: &str) -> io::Result<String> {
    let stamp = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ").to_string();
    (0..MAX_NAMES)
        .map(|n| if n == 0 { stamp.clone() } else { format!("{stamp}-{n}") })
        .map(|stamp| format!("{PREFIX}{stamp}.{extension}"))
        .find(|name| PARTS.iter().all(|part| !exists(&beside(&dir.join(name), part))))
        .ok_or_else(|| io::Error::from(io::ErrorKind::AlreadyExists))
}

/// Moves a single damaged file, or whatever is in its place, and returns where it is now.
pub(crate) fn move_file(path: &Path, extension: &str) -> io::Result<PathBuf> {
    let dir = path.parent().unwrap_or(Path::new("."));
    let to = dir.join(free_name(dir, extension)?);
    fs::rename(path, &to)?;
    sync_dir(dir)?;
    Ok(to)
}

/// Moves the files of the database at `path` that are still there.
pub(crate) fn move_database(path: &Path, quarantine: &Quarantine) -> io::Result<()> {
    for part in PARTS {
        let (from, to) = (beside(path, part), beside(&quarantine.path, part));
        if exists(&from) {
            if exists(&to) {
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, to.display().to_string()));
            }
            fs::rename(from, to)?;
        }
    }
    path.parent().map_or(Ok(()), sync_dir)
}

/// What an earlier start began: None if nothing, or if it had not yet moved anything.
pub(crate) fn unfinished(dir: &Path, path: &Path) -> io::Result<Option<Unfinished>> {
    let Some(quarantine) = read_marker(dir)? else { return Ok(None) };
    if PARTS.iter().all(|part| !exists(&beside(&quarantine.path, part))) {
        end(dir)?;
        return Ok(None);
    }
    // The database file is moved first and put in place last: if one is there now, it is the new
    // one.
    Ok(Some(if exists(path) { Unfinished::Report(quarantine) } else { Unfinished::Rebuild(quarantine) }))
}

pub(crate) fn end(dir: &Path) -> io::Result<()> {
    fs::remove_file(dir.join(MARKER))
}

fn read_marker(dir: &Path) -> io::Result<Option<Quarantine>> {
    let marker = match fs::read(dir.join(MARKER)) {
        Ok(marker) => String::from_utf8_lossy(&marker).into_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let (name, why) = marker.split_once('\n').unwrap_or_default();
    // A marker that was cut off was written before anything was moved.
    if !name.starts_with(PREFIX) || name.contains('/') {
        end(dir)?;
        return Ok(None);
    }
    Ok(Some(Quarantine { path: dir.join(name), why: why.trim_end().to_owned() }))
}

/// Makes renames in `dir` durable.
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// True also for a dangling link, which must not be overwritten.
fn exists(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}
