//! The daemon's directories and its claim on them: made private, refused when they are somebody else's, locked so that
//! two daemons never own one home.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use belay_protocol::vars::SERVING;
use rustix::fs::FlockOperation;

#[derive(Debug, thiserror::Error)]
pub(crate) enum DirError {
    #[error("{what} {} cannot be used: {source}", path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },
    #[error("{what} {} belongs to user {owner}, not to user {own}; name another one with {variable}", path.display())]
    Owner { what: &'static str, path: PathBuf, owner: u32, own: u32, variable: &'static str },
    #[error("{what} {} is open to others (mode {mode:04o}); name one of its own, or close it with chmod 700", path.display())]
    Open { what: &'static str, path: PathBuf, mode: u32 },
    #[error("{what} {} is not a directory", path.display())]
    NotDir { what: &'static str, path: PathBuf },
    #[error("the runtime directory {} is used by the daemon of another home; name another one with BELAY_RUNTIME_DIR", path.display())]
    Shared { path: PathBuf },
}

/// A lock that lasts as long as the process, however it ends.
#[derive(Debug)]
pub(crate) struct Claim {
    home: File,
    _runtime: File,
}

impl Claim {
    /// Says beside the lock whether clients are to find a socket: one who finds none knows from it whether to wait.
    pub(crate) fn says_serving(&self, serving: bool) {
        let more = if serving { SERVING } else { "" };
        let text = format!("{}\n{more}", std::process::id());
        // In this order it is never empty. Where it cannot be written, clients are as patient as with one that starts.
        let _ =
            self.home.write_all_at(text.as_bytes(), 0).and_then(|()| self.home.set_len(text.len() as u64));
    }
}

/// Makes the directories and claims them. None if another daemon has the home.
pub(crate) fn claim(home: &Path, runtime_dir: &Path) -> Result<Option<Claim>, DirError> {
    make_private("the home", home, belay_protocol::vars::HOME, false)?;
    let Some(home_lock) = lock("the home", &home.join("daemon.lock"))? else { return Ok(None) };
    make_private("the runtime directory", runtime_dir, belay_protocol::vars::RUNTIME_DIR, true)?;
    check_above(runtime_dir)?;
    let runtime_lock = lock("the runtime directory", &runtime_dir.join("daemon.lock"))?;
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

/// Whoever owns the directory above could put another one in the place of ours.
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

fn lock(what: &'static str, path: &Path) -> Result<Option<File>, DirError> {
    let failed = |source| DirError::Io { what, path: path.to_owned(), source };
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(failed)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
        Err(errno) => return Err(failed(errno.into())),
    }
    // For people who look; the lock itself is the truth.
    let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
    Ok(Some(file))
}
