//! The end file: a task's life from start to end, written by a shim whose daemon is gone, read by the next one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use belay_protocol::shim::LifeItem;
use serde::{Deserialize, Serialize};

/// Everything the shim saw, in order; the last item carries the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndFile {
    pub task: String,
    pub life: Vec<LifeItem>,
}

impl EndFile {
    fn path(dir: &Path) -> PathBuf {
        dir.join("end.json")
    }

    /// Writes it so that a power cut leaves the whole file or none.
    pub fn write(&self, dir: &Path) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let half = dir.join("end.json.new");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&half)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        file.sync_all()?;
        fs::rename(&half, Self::path(dir))?;
        File::open(dir)?.sync_all()
    }

    /// None if there is no such file; an error if there is one that cannot be read or understood.
    pub fn read(dir: &Path) -> io::Result<Option<Self>> {
        match fs::read(Self::path(dir)) {
            Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes it once its content is in the journal.
    pub fn remove(dir: &Path) -> io::Result<()> {
        match fs::remove_file(Self::path(dir)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}
