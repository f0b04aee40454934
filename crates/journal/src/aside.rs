//! Moving a damaged record aside: names, order of steps, and going on after a crash between two of them.
//!
//! Nothing here opens a database or looks at bytes. The damaged files are renamed, never copied over or removed.
//!
//! A note (`journal.salvage`) says which name is in use while the steps run, so that a start that dies between them is
//! finished by the next: note, rename, rebuild elsewhere, put in place, remove the note.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::open::beside;

const NOTE: &str = "journal.salvage";
const PREFIX: &str = "journal.damaged-";
/// So many in one second, and somebody has to look.
const MAX_NAMES: u32 = 1000;
/// What makes up one database on disk.
const PARTS: [&str; 3] = ["", "-wal", "-shm"];

/// A damaged record that has, or is about to get, a name of its own.
#[derive(Debug)]
pub(crate) struct Aside {
    /// Where the database file goes; its log goes beside it.
    pub(crate) path: PathBuf,
    pub(crate) why: String,
}

/// What an earlier start left unfinished.
#[derive(Debug)]
pub(crate) enum Unfinished {
    /// The new record is not yet in place.
    Rebuild(Aside),
    /// Only the note is left to remove, and the notice to be told.
    Tell(Aside),
}

/// Chooses a name that nothing has, and writes it down.
pub(crate) fn begin(dir: &Path, why: String) -> io::Result<Aside> {
    let name = free_name(dir, "db")?;
    let mut note = File::create(dir.join(NOTE))?;
    note.write_all(format!("{name}\n{why}\n").as_bytes())?;
    note.sync_all()?;
    sync_dir(dir)?;
    Ok(Aside { path: dir.join(name), why })
}

/// A name for something damaged that nothing in `dir` has.
pub(crate) fn free_name(dir: &Path, extension: &str) -> io::Result<String> {
    let stamp = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ").to_string();
    (0..MAX_NAMES)
        .map(|n| if n == 0 { stamp.clone() } else { format!("{stamp}-{n}") })
        .map(|stamp| format!("{PREFIX}{stamp}.{extension}"))
        .find(|name| PARTS.iter().all(|part| !exists(&beside(&dir.join(name), part))))
        .ok_or_else(|| io::Error::from(io::ErrorKind::AlreadyExists))
}

/// Moves whatever is still at `path` to its new name.
pub(crate) fn move_all(path: &Path, aside: &Aside) -> io::Result<()> {
    for part in PARTS {
        let (from, to) = (beside(path, part), beside(&aside.path, part));
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
    let Some(aside) = read_note(dir)? else { return Ok(None) };
    if PARTS.iter().all(|part| !exists(&beside(&aside.path, part))) {
        end(dir)?;
        return Ok(None);
    }
    // The database file is moved first and put in place last: if one is there now, it is the new one.
    Ok(Some(if exists(path) { Unfinished::Tell(aside) } else { Unfinished::Rebuild(aside) }))
}

pub(crate) fn end(dir: &Path) -> io::Result<()> {
    fs::remove_file(dir.join(NOTE))
}

fn read_note(dir: &Path) -> io::Result<Option<Aside>> {
    let note = match fs::read(dir.join(NOTE)) {
        Ok(note) => String::from_utf8_lossy(&note).into_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let (name, why) = note.split_once('\n').unwrap_or_default();
    // A note cut short was written before anything was moved.
    if !name.starts_with(PREFIX) || name.contains('/') {
        end(dir)?;
        return Ok(None);
    }
    Ok(Some(Aside { path: dir.join(name), why: why.trim_end().to_owned() }))
}

/// Makes renames in `dir` durable.
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Also for a dangling link, which is something that must not be overwritten.
fn exists(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}
