//! Where the record's files were when they were opened, to notice when somebody has taken them away. It does not look by itself.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Each file with its device and number, as they were once everything was open.
#[derive(Debug)]
pub(crate) struct Files(Vec<(PathBuf, (u64, u64))>);

impl Files {
    /// `SQLite` does not lend its files, so that they are looked at by name, once they are open.
    pub(crate) fn opened(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        Self(paths.into_iter().filter_map(|path| number(&path).map(|number| (path, number))).collect())
    }

    /// Those that are no longer there: removed, moved away, or with another in their place.
    pub(crate) fn missing(&self) -> Vec<PathBuf> {
        let gone = self.0.iter().filter(|(path, known)| number(path) != Some(*known));
        gone.map(|(path, _)| path.clone()).collect()
    }
}

fn number(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}
