//! The identity of the journal's files when they were opened, to notice when one was removed or
//! replaced.
//!
//! It checks only when asked.

use std::fs::{self, File, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// A file by its device and inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    fn of(found: &Metadata) -> Self {
        Self { device: found.dev(), inode: found.ino() }
    }
}

/// Each file with its identity once everything was open.
#[derive(Debug)]
pub(crate) struct Files(Vec<(PathBuf, Identity)>);

impl Files {
    /// `SQLite` does not lend its file descriptors, so that files are looked at by name once they
    /// are open.
    pub(crate) fn opened(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        Self(paths.into_iter().filter_map(|path| identity(&path).map(|identity| (path, identity))).collect())
    }

    /// Files that were removed, moved away or replaced.
    pub(crate) fn missing(&self) -> Vec<PathBuf> {
        let gone = self.0.iter().filter(|(path, known)| identity(path) != Some(*known));
        gone.map(|(path, _)| path.clone()).collect()
    }

    /// The size of the files that are there now.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.iter().map(|(path, _)| fs::metadata(path).map_or(0, |file| file.len())).sum()
    }
}

/// Whether this path names this open file.
pub(crate) fn is_same(file: &File, path: &Path) -> bool {
    file.metadata().is_ok_and(|found| identity(path) == Some(Identity::of(&found)))
}

fn identity(path: &Path) -> Option<Identity> {
    fs::symlink_metadata(path).ok().as_ref().map(Identity::of)
}
