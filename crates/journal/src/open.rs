//! Opening the journal: checking the database, rebuilding a damaged one, and starting the buffer,
//! the store and the reader.
//!
//! The whole database is checked at every start, also after a clean end: closed files can be
//! damaged too, and a start is rare. Nothing is written to a database before it is known to be
//! sound. A new database is built under another name and renamed into place, so that an incomplete
//! one is never mistaken for a damaged one.

use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use crate::buffer_file::{self, BufferFile, Scanned};
use crate::error::is_damage;
use crate::files::Files;
use crate::quarantine::{self, Quarantine, Unfinished};
use crate::recover::{self, Recovered};
use crate::row::Unsigned;
use crate::salvage::{self, FromBuffer, Kept};
use crate::store::event_bounds;
use crate::write_buffer::Start;
use crate::{Error, FILE_NAME, Loaded, Reader, Store, WriteBuffer, apply, load, meta, schema, wal};

/// How long a flush waits for another process that locks the database.
const BUSY: Duration = Duration::from_millis(250);
/// A new database before it gets its name, and the copy of a damaged database that is read instead
/// of the original.
const NEW_NAME: &str = "journal.new.db";
const COPY_NAME: &str = "journal.copy.db";
/// "Bely": lets tools such as `file` recognise the database.
const APPLICATION_ID: i64 = 0x4265_6c79;
/// The log file is truncated to this size after it was moved into the database.
const LOG_LIMIT_BYTES: i64 = 16 * 1024 * 1024;

/// A freshly opened journal, and what happened to it on the way.
#[derive(Debug)]
pub struct Opened {
    pub buffer: WriteBuffer,
    /// Declared before the store: the connection that is closed last moves the log into the
    /// database.
    pub reader: Reader,
    pub store: Store,
    pub loaded: Loaded,
    /// Empty if the journal was intact.
    pub notices: Vec<Notice>,
}

/// A fact about the journal that the daemon reports to users.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// What was wrong, what was kept and what was lost, as a sentence.
    pub what: String,
    /// Where the damaged file is now.
    pub path: Option<PathBuf>,
}

/// What was found in the place of the database.
enum Found {
    Nothing,
    Sound(Connection),
    Damaged(String),
}

/// Opens the journal in `dir`, which must exist, or creates one.
///
/// The whole database is checked each time. A damaged one is quarantined, never changed, and what
/// can still be read of it is copied into a new one; the notice names it. Only one process may have
/// the journal open for writing: the caller ensures that.
pub fn open(dir: &Path) -> Result<Opened, Error> {
    // An absolute path cannot be taken for a URI, whatever characters it has.
    let dir = std::path::absolute(dir).map_err(|error| Error::io(dir, error))?;
    rustix::fs::access(&dir, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK)
        .map_err(|error| Error::io(&dir, error.into()))?;
    let path = dir.join(FILE_NAME);
    let files = buffer_file::scan_dir(&dir).map_err(|error| Error::io(&dir, error))?;
    let mut notices = Vec::new();
    let conn = open_database(&dir, &path, &files, &mut notices)?;
    let conn = prepare(conn, &path)?;
    let mut recovered = recover::recover(&conn, &path, files, !notices.is_empty())?;
    notices.append(&mut recovered.notices);
    let loaded = load::load(&conn, &recovered.pending).map_err(|error| Error::sql(&path, error))?;
    let buffer = start_buffer(&conn, &dir, &path, recovered)?;
    let reader = connect(&path).and_then(|conn| {
        conn.pragma_update(None, "query_only", true)?;
        conn.set_prepared_statement_cache_capacity(64);
        Ok(Reader::new(conn, &path))
    });
    let reader = reader.map_err(|error| Error::sql(&path, error))?;
    let store = Store::new(conn, &path)?;
    Ok(Opened { buffer, reader, store, loaded, notices })
}

/// A connection to a sound database, which is created, or rebuilt from a damaged one, if it has to
/// be.
fn open_database(
    dir: &Path,
    path: &Path,
    files: &[Scanned],
    notices: &mut Vec<Notice>,
) -> Result<Connection, Error> {
    let buffer = from_buffer(files);
    match quarantine::unfinished(dir, path).map_err(|error| Error::io(dir, error))? {
        Some(Unfinished::Rebuild(quarantine)) => notices.push(rebuild(dir, path, &quarantine, buffer)?),
        Some(Unfinished::Report(quarantine)) => {
            quarantine::end(dir).map_err(|error| Error::io(dir, error))?;
            notices.push(notice(&quarantine, None));
        }
        None => {}
    }
    match inspect(path)? {
        Found::Sound(conn) => return Ok(conn),
        Found::Nothing => make(dir, path, |_| Ok(()))?,
        Found::Damaged(why) => {
            let quarantine = quarantine::begin(dir, why).map_err(|error| Error::io(dir, error))?;
            notices.push(rebuild(dir, path, &quarantine, buffer)?);
        }
    }
    connect(path).map_err(|error| Error::sql(path, error))
}

/// What the buffer files say about the journal, for a database that no longer can.
fn from_buffer(files: &[Scanned]) -> FromBuffer {
    let newest =
        files.iter().filter_map(|file| file.header.map(|header| (header, file.max_event))).next_back();
    newest.map_or_else(FromBuffer::default, |(header, last_event)| FromBuffer {
        journal: header.journal,
        last_event,
    })
}

fn start_buffer(
    conn: &Connection,
    dir: &Path,
    path: &Path,
    recovered: Recovered,
) -> Result<WriteBuffer, Error> {
    let failed = |error| Error::sql(path, error);
    let Recovered { pending, sealed, mut spare, .. } = recovered;
    if spare.is_empty() {
        // If this fails, the first append tries again and reports why.
        spare.extend(BufferFile::create(dir).ok());
    }
    let events = event_bounds(conn).map_err(failed)?;
    Ok(WriteBuffer::new(Start {
        dir: dir.to_owned(),
        database: Files::opened([path.to_owned(), beside(path, "-wal")]),
        journal: meta::number(conn, meta::JOURNAL).map_err(failed)?,
        generation: random_number().map_err(|error| Error::io(path, error))?,
        flushed: meta::number(conn, meta::BATCH_LAST).map_err(failed)?,
        pending,
        sealed,
        spare,
        first_event: events.first,
        last_event: events.last,
        last_number: apply::last_number(conn).map_err(failed)?,
    }))
}

/// A random number that also JSON can represent; never 0.
fn random_number() -> io::Result<u64> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok((u64::from_le_bytes(bytes) >> 12) | 1)
}

/// Settings for the life of the connection, migrations, and the values that a journal has from its
/// beginning.
fn prepare(mut conn: Connection, path: &Path) -> Result<Connection, Error> {
    let failed = |error| Error::sql(path, error);
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false).map_err(failed)?;
    let mode: String =
        conn.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0)).map_err(failed)?;
    if !mode.eq_ignore_ascii_case("wal") {
        let source = io::Error::other("this file system does not support a write-ahead log");
        return Err(Error::Io { path: path.to_owned(), source });
    }
    conn.pragma_update(None, "wal_autocheckpoint", 0).map_err(failed)?;
    conn.pragma_update(None, "journal_size_limit", LOG_LIMIT_BYTES).map_err(failed)?;
    conn.set_prepared_statement_cache_capacity(64);
    schema::migrate(&mut conn, schema::MIGRATIONS).map_err(failed)?;
    if meta::number(&conn, meta::JOURNAL).map_err(failed)? == 0 {
        let number = random_number().map_err(|error| Error::io(path, error))?;
        meta::set(&conn, meta::JOURNAL, Unsigned(number)).map_err(failed)?;
    }
    if meta::get::<[u8; 32]>(&conn, meta::SECRET).map_err(failed)?.is_none() {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(|error| Error::io(path, io::Error::other(error)))?;
        meta::set(&conn, meta::SECRET, secret).map_err(failed)?;
    }
    // Without this write, which a full disk refuses, the journal works too.
    let _ = event_bounds(&conn).and_then(|events| apply::raise_event_mark(&conn, events.last));
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

/// Checks the database without changing a byte of it or its log.
fn inspect(path: &Path) -> Result<Found, Error> {
    let failed = |error| Error::io(path, error);
    let log = beside(path, "-wal");
    let damaged = |why: &str| Ok(Found::Damaged(why.to_owned()));
    let kind = match fs::metadata(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let orphan = fs::metadata(&log).is_ok_and(|log| log.len() > 0);
            return if orphan { damaged("only its log exists") } else { Ok(Found::Nothing) };
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
    // The check has created an empty log and its index, which are not part of what was found.
    if !had_log && fs::metadata(&log).is_ok_and(|file| file.len() == 0) {
        for made in [log, beside(path, "-shm")] {
            fs::remove_file(&made).map_err(|error| Error::io(&made, error))?;
        }
    }
    verdict
}

/// Lets only the owner read. Files that `SQLite` creates beside the database get its mode.
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

/// Builds a database under another name, fills it, and renames it into place, which must be free.
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
    quarantine::sync_dir(dir).map_err(io_failed)?;
    Ok(filled)
}

/// Quarantines the damaged database and puts what can be read of it in its place.
fn rebuild(dir: &Path, path: &Path, quarantine: &Quarantine, buffer: FromBuffer) -> Result<Notice, Error> {
    quarantine::move_database(path, quarantine).map_err(|error| Error::io(path, error))?;
    let copy = dir.join(COPY_NAME);
    discard(&copy)?;
    for part in ["", "-wal"] {
        let from = beside(&quarantine.path, part);
        if fs::metadata(&from).is_ok_and(|file| file.is_file()) {
            fs::copy(&from, beside(&copy, part)).map_err(|error| Error::io(&from, error))?;
        }
    }
    let kept = make(dir, path, |new| salvage::salvage(&copy, new, buffer))?;
    discard(&copy)?;
    quarantine::end(dir).map_err(|error| Error::io(dir, error))?;
    Ok(notice(quarantine, Some(kept)))
}

fn notice(quarantine: &Quarantine, kept: Option<Kept>) -> Notice {
    let kept =
        kept.map_or_else(|| "an earlier start kept what could be read".to_owned(), |kept| kept.to_string());
    let what = format!("the journal was damaged ({}) and was quarantined; {kept}", quarantine.why);
    Notice { what, path: Some(quarantine.path.clone()) }
}

/// Removes a temporary database with the files that `SQLite` created beside it.
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

/// The path with a suffix appended to its file name.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}
