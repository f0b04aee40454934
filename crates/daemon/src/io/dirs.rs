//! The daemon's directories: created with private permissions, refused if another user owns them,
//! and locked so that two daemons never use the same home.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use belay_os::process;
use belay_protocol::vars::SERVING;
use rustix::fs::FlockOperation;
use rustix::io::Errno;

/// How long the locks of a dead daemon may stay, and how often they are tried meanwhile.
const DEAD_HOLDER: Duration = Duration::from_secs(2);
const DEAD_HOLDER_PAUSE: Duration = Duration::from_millis(2);

#[derive(Debug, thiserror::Error)]
pub(crate) enum DirError {
    #[error("{what} {} cannot be used: {source}", path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },
    #[error("{what} {} belongs to user {owner}, not to user {own}; set {variable} to another directory", path.display())]
    Owner { what: &'static str, path: PathBuf, owner: u32, own: u32, variable: &'static str },
    #[error("{what} {} is open to others (mode {mode:04o}); use another directory, or run chmod 700 on it", path.display())]
    Open { what: &'static str, path: PathBuf, mode: u32 },
    #[error("{what} {} is not a directory", path.display())]
    NotDir { what: &'static str, path: PathBuf },
    #[error("the runtime directory {} is used by the daemon of another home; set BELAY_RUNTIME_DIR to another directory", path.display())]
    Shared { path: PathBuf },
}

/// The locks on the home and the runtime directory. The kernel releases them when the process ends.
#[derive(Debug)]
pub(crate) struct Claim {
    home: File,
    _runtime: File,
}

impl Claim {
    /// Writes into the lock file whether the daemon serves. A client that finds no socket reads
    /// there whether to wait.
    pub(crate) fn set_serving(&self, serving: bool) {
        let state = if serving { SERVING } else { "" };
        let text = format!("{}\n{state}", std::process::id());
        // In this order the file is never empty. If it cannot be written, clients wait as for a
        // daemon that is starting.
        let _ =
            self.home.write_all_at(text.as_bytes(), 0).and_then(|()| self.home.set_len(text.len() as u64));
    }
}

/// Creates the directories and locks them. None if another daemon has the home.
pub(crate) fn claim(home: &Path, runtime_dir: &Path) -> Result<Option<Claim>, DirError> {
    make_private("the home", home, belay_protocol::vars::HOME, false)?;
    let home_lock = lock("the home", &home.join("daemon.lock"), is_holder_dead)?;
    let Some(home_lock) = home_lock else { return Ok(None) };
    make_private("the runtime directory", runtime_dir, belay_protocol::vars::RUNTIME_DIR, true)?;
    check_above(runtime_dir)?;
    // A daemon that exits releases the home first: the last daemon of this home may still have this lock for a moment.
    let runtime_lock = lock("the runtime directory", &runtime_dir.join("daemon.lock"), |_| true)?;
    let Some(runtime_lock) = runtime_lock else {
        return Err(DirError::Shared { path: runtime_dir.to_owned() });
    };
    make_private("the directory of tasks", &home.join("tasks"), belay_protocol::vars::HOME, true)?;
    make_private("the directory of shims", &runtime_dir.join("s"), belay_protocol::vars::RUNTIME_DIR, true)?;
    Ok(Some(Claim { home: home_lock, _runtime: runtime_lock }))
}

fn make_private(
    what: &'static str,
    path: &Path,
    variable: &'static str,
    strict: bool,
) -> Result<(), DirError> {
    let failed = |source| DirError::Io { what, path: path.to_owned(), source };
    match fs::DirBuilder::new().recursive(true).mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            return Err(DirError::NotDir { what, path: path.to_owned() });
        }
        other => other.map_err(failed)?,
    }
    let meta = fs::symlink_metadata(path).map_err(failed)?;
    let meta = if meta.is_symlink() && !strict { fs::metadata(path).map_err(failed)? } else { meta };
    if !meta.is_dir() {
        return Err(DirError::NotDir { what, path: path.to_owned() });
    }
    let own = rustix::process::getuid().as_raw();
    if meta.uid() != own {
        return Err(DirError::Owner { what, path: path.to_owned(), owner: meta.uid(), own, variable });
    }
    let mode = meta.mode() & 0o7777;
    if strict && mode & 0o077 != 0 {
        return Err(DirError::Open { what, path: path.to_owned(), mode });
    }
    Ok(())
}

/// The owner of the parent directory could replace the runtime directory, so it must be this user
/// or root.
fn check_above(runtime_dir: &Path) -> Result<(), DirError> {
    let what = "the directory above the runtime directory,";
    let Some(above) = runtime_dir.parent() else { return Ok(()) };
    let meta = fs::metadata(above).map_err(|source| DirError::Io { what, path: above.to_owned(), source })?;
    let own = rustix::process::getuid().as_raw();
    if meta.uid() == own || meta.uid() == 0 {
        return Ok(());
    }
    let variable = belay_protocol::vars::RUNTIME_DIR;
    Err(DirError::Owner { what, path: above.to_owned(), owner: meta.uid(), own, variable })
}

/// Whether the daemon that the lock file names is dead. Its descriptors outlive it for a moment: the kernel closes them after its
/// last thread, and a child that it was just starting shares them until it has a table of its own.
fn is_holder_dead(file: &File) -> bool {
    let mut text = [0; 32];
    let length = file.read_at(&mut text, 0).unwrap_or(0);
    let text = std::str::from_utf8(&text[..length]).unwrap_or_default();
    let pid = text.lines().next().and_then(|line| line.parse().ok());
    pid.is_some_and(|pid| process::identity(pid).is_none_or(|daemon| !process::is_alive(daemon)))
}

/// Locks a file. None if it is locked, and stays so although `is_worth_waiting` says that it may be released.
fn lock(
    what: &'static str,
    path: &Path,
    is_worth_waiting: impl Fn(&File) -> bool,
) -> Result<Option<File>, DirError> {
    let failed = |source| DirError::Io { what, path: path.to_owned(), source };
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(failed)?;
    let until = Instant::now() + DEAD_HOLDER;
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => break,
            Err(Errno::WOULDBLOCK) if is_worth_waiting(&file) && Instant::now() < until => {
                std::thread::sleep(DEAD_HOLDER_PAUSE);
            }
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(errno) => return Err(failed(errno.into())),
        }
    }
    // Only informative: the lock decides.
    let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
    Ok(Some(file))
}
