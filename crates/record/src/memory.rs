//! A log that lies in memory: two anonymous files of the shim that writes them, which others of the same user can open
//! through `/proc`. It has one segment, from the first byte on, laid out as on disk.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use rustix::fs::{MemfdFlags, memfd_create};

/// The two files of a log in memory, open. They last as long as anybody has them open.
#[derive(Debug)]
pub struct MemoryLog {
    pub(crate) data: File,
    pub(crate) index: File,
}

impl MemoryLog {
    /// How many descriptors whoever keeps one has open for it.
    pub const DESCRIPTORS: u64 = 2;

    pub(crate) fn create() -> io::Result<Self> {
        let make = |name: &str| memfd_create(name, MemfdFlags::CLOEXEC).map(File::from);
        Ok(Self { data: make("belay-output")?, index: make("belay-index")? })
    }

    /// Opens the log of another process. The caller knows that the process lives and is the one that is meant.
    pub fn open(pid: i32, numbers: [i32; 2]) -> io::Result<Self> {
        let files = Path::new("/proc").join(pid.to_string()).join("fd");
        let [data, index] = numbers.map(|number| File::open(files.join(number.to_string())));
        Ok(Self { data: data?, index: index? })
    }

    pub(crate) fn read_index(&self) -> io::Result<Vec<u8>> {
        read_all(&self.index)
    }

    /// Writes both to disk, under names that appear only when they are whole.
    pub(crate) fn copy_to(&self, data: &Path, index: &Path) -> io::Result<()> {
        let written = copy(&self.index, index).and_then(|()| copy(&self.data, data));
        if written.is_err() {
            // Half a log must not look like one.
            let _ = fs::remove_file(data);
            let _ = fs::remove_file(index);
        }
        written
    }
}

fn read_all(file: &File) -> io::Result<Vec<u8>> {
    let length = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

fn copy(from: &File, to: &Path) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let new = to.with_extension("new");
    let written = (|| {
        let mut options = fs::OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all_at(&read_all(from)?, 0)?;
        fs::rename(&new, to)
    })();
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written
}
