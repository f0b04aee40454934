//! Checks of the directories of a daemon before they are used: each error names the path, what is wrong with it, and what to do.
//! Nothing is created.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use belay_protocol::vars;

use crate::error::ClientError;

const HOME: &str = "the home";
const RUNTIME_DIR: &str = "the runtime directory";

/// Whether this is a directory, or can become one when a daemon is started.
pub fn check_home(dir: &Path) -> Result<(), ClientError> {
    in_the_way(dir).map_or(Ok(()), |found| Err(found.refuse(HOME, dir, vars::HOME)))
}

/// Whether sockets in this directory can be trusted: a directory and no link, ours, and closed to everybody else.
/// A directory that does not exist is `Unreachable`.
pub fn check_runtime_dir(dir: &Path) -> Result<(), ClientError> {
    let refuse = |problem: &str, hint: String| {
        Err(ClientError::Refused {
            what: RUNTIME_DIR,
            dir: dir.to_owned(),
            problem: problem.to_owned(),
            hint,
        })
    };
    let elsewhere = || way_out("it", vars::RUNTIME_DIR);
    if let Some(found) = in_the_way(dir).filter(|found| found.path != dir) {
        return Err(found.refuse(RUNTIME_DIR, dir, vars::RUNTIME_DIR));
    }
    let meta = match dir.symlink_metadata() {
        Ok(meta) => meta,
        Err(source) if source.kind() == io::ErrorKind::NotFound => {
            return Err(ClientError::Unreachable { socket: dir.join("daemon.sock"), source });
        }
        Err(source) => {
            let hint = "is BELAY_HOME yours? Name another one, or set BELAY_RUNTIME_DIR";
            return refuse(&format!("cannot be looked at: {}", source.kind()), hint.to_owned());
        }
    };
    if meta.is_symlink() {
        return refuse("is a symbolic link", elsewhere());
    }
    if !meta.is_dir() {
        return refuse("is not a directory", elsewhere());
    }
    if meta.uid() != rustix::process::getuid().as_raw() {
        return refuse(&format!("belongs to another user (uid {})", meta.uid()), elsewhere());
    }
    if meta.mode() & 0o077 != 0 {
        let mode = meta.mode() & 0o7777;
        // One with the sticky bit is everybody's on purpose, like /tmp: it must stay so.
        let hint = if mode & 0o1000 != 0 {
            format!(
                "set BELAY_RUNTIME_DIR to a directory of its own, for instance {}",
                dir.join("belay").display()
            )
        } else {
            format!("chmod 700 {}", dir.display())
        };
        return refuse(&format!("is open to others (mode {mode:04o})"), hint);
    }
    Ok(())
}

/// What keeps a path from being a directory, or from becoming one.
struct Obstacle {
    path: PathBuf,
    problem: &'static str,
}

impl Obstacle {
    fn refuse(self, what: &'static str, dir: &Path, variable: &str) -> ClientError {
        let Self { path, problem } = self;
        let shown = path.display();
        let (problem, culprit) = if path == dir {
            (problem.to_owned(), "it".to_owned())
        } else {
            (format!("cannot be made: {shown} {problem}"), shown.to_string())
        };
        ClientError::Refused { what, dir: dir.to_owned(), problem, hint: way_out(&culprit, variable) }
    }
}

fn way_out(culprit: &str, variable: &str) -> String {
    format!("remove {culprit}, or set {variable} to a directory of yours")
}

/// Looks from the directory upwards for the first that is there. What may not be looked at is for whoever uses it to say.
fn in_the_way(dir: &Path) -> Option<Obstacle> {
    use io::ErrorKind::{NotADirectory, NotFound};
    let is_missing = |error: &io::Error| matches!(error.kind(), NotFound | NotADirectory);
    let there = |path: &Path| path.symlink_metadata().map_or_else(|error| !is_missing(&error), |_| true);
    let path = dir.ancestors().find(|path| there(path))?;
    let problem = match path.metadata() {
        Ok(meta) if !meta.is_dir() => "is not a directory",
        Err(error) if is_missing(&error) => "is a symbolic link to nothing",
        _ => return None,
    };
    Some(Obstacle { path: path.to_owned(), problem })
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_runtime_dir_that_others_may_enter_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o750)).unwrap();
        let error = check_runtime_dir(dir.path()).unwrap_err();
        assert!(error.to_string().ends_with("is open to others (mode 0750)"), "{error}");
        assert_eq!(error.hint().unwrap(), format!("chmod 700 {}", dir.path().display()));
        fs::set_permissions(dir.path(), Permissions::from_mode(0o1777)).unwrap();
        let hint = check_runtime_dir(dir.path()).unwrap_err().hint().unwrap();
        assert!(hint.starts_with("set BELAY_RUNTIME_DIR to a directory of its own"), "{hint}");
        fs::set_permissions(dir.path(), Permissions::from_mode(0o700)).unwrap();
        check_runtime_dir(dir.path()).unwrap();
    }

    #[test]
    fn links_and_files_are_refused_and_a_missing_one_is_absent() {
        let dir = tempfile::tempdir().unwrap();
        let (link, file) = (dir.path().join("link"), dir.path().join("file"));
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        fs::write(&file, "").unwrap();
        assert!(check_runtime_dir(&link).unwrap_err().to_string().ends_with("is a symbolic link"));
        assert!(check_runtime_dir(&file).unwrap_err().to_string().ends_with("is not a directory"));
        assert!(check_runtime_dir(&dir.path().join("none")).unwrap_err().is_absent());
    }
}
