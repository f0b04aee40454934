//! Opening the record: what is there, whether it is sound, and what to do when it is not.
//!
//! The whole file is checked at every start, clean end or not, because bits rot in closed files too and a start is rare.
//! Until the record is known to be sound nothing in it is written. New records are built under another name and
//! renamed into place, so that a half-made one is never mistaken for a damaged one.

use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use crate::ahead::{self, Noted};
use crate::aside::{self, Aside, Unfinished};
use crate::error::is_damage;
use crate::journal::{Journal, Notice, Opened};
use crate::salvage::{self, Kept};
use crate::{Error, FILE_NAME, schema, wal};

/// How long a write waits for somebody who reads or copies the file with a tool of their own.
const BUSY: Duration = Duration::from_millis(250);
/// What is made here before it gets its name, and the copy of a damaged record that is read instead of the original.
const NEW_NAME: &str = "journal.new.db";
const COPY_NAME: &str = "journal.copy.db";
/// "Bely": lets `file` and others tell what this is.
const APPLICATION_ID: i64 = 0x4265_6c79;
/// The log file is cut back to this after it was moved into the database.
const LOG_LIMIT_BYTES: i64 = 16 * 1024 * 1024;

/// What was found in the place of the record.
enum Found {
    Nothing,
    Sound(Connection),
    Damaged(String),
}

pub(crate) fn open(dir: &Path) -> Result<Opened, Error> {
    // An absolute path cannot be taken for a URI, whatever is in it.
    let dir = std::path::absolute(dir).map_err(|error| Error::io(dir, error))?;
    rustix::fs::access(&dir, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK)
        .map_err(|error| Error::io(&dir, error.into()))?;
    let path = dir.join(FILE_NAME);
    let mut notices = Vec::new();
    match aside::unfinished(&dir, &path).map_err(|error| Error::io(&dir, error))? {
        Some(Unfinished::Rebuild(aside)) => notices.push(rebuild(&dir, &path, &aside)?),
        Some(Unfinished::Tell(aside)) => {
            aside::end(&dir).map_err(|error| Error::io(&dir, error))?;
            notices.push(notice(&aside, None));
        }
        None => {}
    }
    let conn = match inspect(&path)? {
        Found::Sound(conn) => conn,
        Found::Nothing => {
            make(&dir, &path, |_| Ok(()))?;
            connect(&path).map_err(|error| Error::sql(&path, error))?
        }
        Found::Damaged(why) => {
            let aside = aside::begin(&dir, why).map_err(|error| Error::io(&dir, error))?;
            notices.push(rebuild(&dir, &path, &aside)?);
            connect(&path).map_err(|error| Error::sql(&path, error))?
        }
    };
    let conn = prepare(conn, &path)?;
    let (mut noted, odd) = read_notes(&dir)?;
    let journal = Journal::start(conn, &dir, path)?;
    if !notices.is_empty() {
        // What is left of a damaged record may not remember the number of its notes; they are what is newest of it.
        noted.record = journal.record;
    }
    notices.extend(odd);
    notices.extend(take_over(&journal, &dir, noted)?);
    Ok(Opened { journal, notices })
}

/// Brings in what was noted last. What is damaged, does not fit or is not ours is set aside and told.
fn take_over(journal: &Journal, dir: &Path, noted: Noted) -> Result<Option<Notice>, Error> {
    let path = dir.join(ahead::AHEAD_NAME);
    let damaged = noted.damaged;
    let is_foreign = !noted.batches.is_empty() && noted.record != journal.record;
    if noted.batches.is_empty() && !damaged {
        return Ok(None);
    }
    let taken = if is_foreign { Ok(1) } else { journal.take_over(noted) };
    let left = match taken {
        Err(Error::Duplicate { .. }) => 1,
        other => other?,
    };
    let why = match left {
        0 if !damaged => {
            return if journal.is_settled() { journal.forget_notes().map(|()| None) } else { Ok(None) };
        }
        0 => "are damaged, or were cut off",
        _ if is_foreign => "are those of another journal",
        _ => "do not fit what is in it, as after a power cut",
    };
    let aside = dir.join(aside::free_name(dir, "ahead").map_err(|error| Error::io(&path, error))?);
    if fs::symlink_metadata(&path).is_ok_and(|found| found.is_file()) {
        fs::copy(&path, &aside).map_err(|error| Error::io(&path, error))?;
    }
    journal.forget_notes()?;
    journal.give_up_numbers()?;
    let what = format!("the last notes of the journal {why}; they were set aside");
    Ok(Some(Notice { what, path: Some(aside) }))
}

/// Reads the notes. What is no file is put out of the way, so that there can be one.
fn read_notes(dir: &Path) -> Result<(Noted, Option<Notice>), Error> {
    let path = dir.join(ahead::AHEAD_NAME);
    let failed = |error| Error::io(&path, error);
    let is_odd = fs::symlink_metadata(&path).is_ok_and(|found| !found.is_file());
    if !is_odd {
        return ahead::read(dir).map(|noted| (noted, None)).map_err(failed);
    }
    let aside = dir.join(aside::free_name(dir, "ahead").map_err(failed)?);
    fs::rename(&path, &aside).map_err(failed)?;
    let what =
        "something that is no file was in the place of the journal's notes; it was set aside".to_owned();
    Ok((Noted::default(), Some(Notice { what, path: Some(aside) })))
}

/// Settings for the life of the connection, and migrations.
fn prepare(mut conn: Connection, path: &Path) -> Result<Connection, Error> {
    let failed = |error| Error::sql(path, error);
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false).map_err(failed)?;
    let mode: String =
        conn.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0)).map_err(failed)?;
    if !mode.eq_ignore_ascii_case("wal") {
        let source = io::Error::other("this file system cannot hold a write-ahead log");
        return Err(Error::Io { path: path.to_owned(), source });
    }
    conn.pragma_update(None, "wal_autocheckpoint", 0).map_err(failed)?;
    conn.pragma_update(None, "journal_size_limit", LOG_LIMIT_BYTES).map_err(failed)?;
    conn.set_prepared_statement_cache_capacity(64);
    schema::migrate(&mut conn, schema::MIGRATIONS).map_err(failed)?;
    Ok(conn)
}

/// A connection to a file that exists.
pub(crate) fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags)?;
    conn.busy_timeout(BUSY)?;
    conn.pragma_update(None, "synchronous", "NORMAL")?;
    Ok(conn)
}

/// Looks without changing a byte of the database or its log.
fn inspect(path: &Path) -> Result<Found, Error> {
    let failed = |error| Error::io(path, error);
    let log = beside(path, "-wal");
    let damaged = |why: &str| Ok(Found::Damaged(why.to_owned()));
    let kind = match fs::metadata(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let orphan = fs::metadata(&log).is_ok_and(|log| log.len() > 0);
            return if orphan { damaged("only its log is there") } else { Ok(Found::Nothing) };
        }
        Err(error) => return Err(failed(error)),
    };
    if !kind.is_file() {
        return damaged("it is not a file");
    }
    if kind.len() == 0 {
        return damaged("the file is empty");
    }
    let head = head(path).map_err(failed)?;
    if !head.starts_with(b"SQLite format 3\0") || head.len() < 100 {
        return damaged("the file is not a database");
    }
    not_newer(i64::from(i32::from_be_bytes([head[60], head[61], head[62], head[63]])))?;
    if let Some(why) = wal::fault(&log).map_err(|error| Error::io(&log, error))? {
        return Ok(Found::Damaged(why));
    }
    close_to_others(path).map_err(failed)?;
    look_inside(path)
}

fn look_inside(path: &Path) -> Result<Found, Error> {
    let log = beside(path, "-wal");
    let had_log = log.exists();
    let verdict = match read_through(path) {
        Ok((conn, version, None)) if version <= schema::VERSION => return Ok(Found::Sound(conn)),
        Ok((_, version, why)) => not_newer(version).map(|()| Found::Damaged(why.unwrap_or_default())),
        Err(error) if is_damage(&error) => Ok(Found::Damaged(error.to_string())),
        Err(error) => Err(Error::sql(path, error)),
    };
    // Looking has made an empty log and its index, which are no part of what was found.
    if !had_log && fs::metadata(&log).is_ok_and(|file| file.len() == 0) {
        for made in [log, beside(path, "-shm")] {
            fs::remove_file(&made).map_err(|error| Error::io(&made, error))?;
        }
    }
    verdict
}

/// Only the owner may read. What `SQLite` makes beside the file gets the file's mode.
fn close_to_others(path: &Path) -> io::Result<()> {
    for part in ["", "-wal", "-shm"] {
        match fs::set_permissions(beside(path, part), fs::Permissions::from_mode(0o600)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

fn read_through(path: &Path) -> rusqlite::Result<(Connection, i64, Option<String>)> {
    let conn = connect(path)?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    let version = schema::version(&conn)?;
    let fault = if version > schema::VERSION { None } else { schema::fault(&conn, version)? };
    Ok((conn, version, fault))
}

fn not_newer(found: i64) -> Result<(), Error> {
    if found > schema::VERSION { Err(Error::Newer { found, known: schema::VERSION }) } else { Ok(()) }
}

fn head(path: &Path) -> io::Result<Vec<u8>> {
    let mut head = Vec::with_capacity(100);
    fs::File::open(path)?.take(100).read_to_end(&mut head)?;
    Ok(head)
}

/// Builds a record under another name, fills it, and renames it into place, which must be free.
fn make<T>(
    dir: &Path,
    path: &Path,
    fill: impl FnOnce(&mut Connection) -> rusqlite::Result<T>,
) -> Result<T, Error> {
    let new = dir.join(NEW_NAME);
    discard(&new)?;
    let io_failed = |error| Error::io(&new, error);
    let failed = |error| Error::sql(&new, error);
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new).map_err(io_failed)?;
    let mut conn = connect(&new).map_err(failed)?;
    schema::migrate(&mut conn, schema::MIGRATIONS).map_err(failed)?;
    conn.pragma_update(None, "application_id", APPLICATION_ID).map_err(failed)?;
    let filled = fill(&mut conn).map_err(failed)?;
    conn.close().map_err(|(_, error)| failed(error))?;
    fs::File::open(&new).and_then(|file| file.sync_all()).map_err(io_failed)?;
    fs::rename(&new, path).map_err(io_failed)?;
    aside::sync_dir(dir).map_err(io_failed)?;
    Ok(filled)
}

/// Moves the damaged record aside and puts what can be read of it in its place.
fn rebuild(dir: &Path, path: &Path, aside: &Aside) -> Result<Notice, Error> {
    aside::move_all(path, aside).map_err(|error| Error::io(path, error))?;
    let copy = dir.join(COPY_NAME);
    discard(&copy)?;
    for part in ["", "-wal"] {
        let from = beside(&aside.path, part);
        if fs::metadata(&from).is_ok_and(|file| file.is_file()) {
            fs::copy(&from, beside(&copy, part)).map_err(|error| Error::io(&from, error))?;
        }
    }
    let kept = make(dir, path, |new| salvage::salvage(&copy, new))?;
    discard(&copy)?;
    aside::end(dir).map_err(|error| Error::io(dir, error))?;
    Ok(notice(aside, Some(kept)))
}

fn notice(aside: &Aside, kept: Option<Kept>) -> Notice {
    let kept =
        kept.map_or_else(|| "an earlier start kept what could be read".to_owned(), |kept| kept.to_string());
    let what = format!("the journal was damaged ({}) and was set aside; {kept}", aside.why);
    Notice { what, path: Some(aside.path.clone()) }
}

/// Removes a file of ours that never was the record, with what `SQLite` put beside it.
fn discard(path: &Path) -> Result<(), Error> {
    for part in ["", "-wal", "-shm", "-journal"] {
        let path = beside(path, part);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(Error::io(&path, error)),
            _ => {}
        }
    }
    Ok(())
}

/// The path with something added to its last name.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}
