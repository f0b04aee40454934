//! How a task's output lies on disk. Reader and writer agree here and nowhere else.
//!
//! The log is a row of segments, each named by the absolute offset of its first byte: `HEX.out` holds the bytes of
//! both streams as they arrived, `HEX.idx` says which stream each run of them came from and when. A segment has no
//! holes, so a gap is what lies between the end of one and the start of the next. An index record is written
//! before the bytes it speaks of: after a crash every byte that is there has its stream.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub(crate) const INDEX_RECORD_BYTES: usize = 16;

/// No segment is full before it has so many bytes, of output or of index.
pub(crate) const SMALLEST_SEGMENT_BYTES: u64 = 64 * 1024;

/// A run is given a new time at most this often, so that a stream without pause does not fill the index.
pub(crate) const RUN_TIME_MS: i64 = 100;

/// Where a byte came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// The start of a run: from this offset on, bytes are of this stream, until the next run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) offset: u64,
    pub(crate) stream: Stream,
    pub(crate) at_ms: i64,
}

impl Run {
    pub(crate) fn encode(self) -> [u8; INDEX_RECORD_BYTES] {
        let stream = match self.stream {
            Stream::Stdout => 1,
            Stream::Stderr => 2,
        };
        let mut record = [0; INDEX_RECORD_BYTES];
        record[..8].copy_from_slice(&self.offset.to_le_bytes());
        record[8..].copy_from_slice(&((self.at_ms << 8) | stream).to_le_bytes());
        record
    }

    pub(crate) fn decode(record: &[u8]) -> Option<Self> {
        let (offset, rest) = record.split_first_chunk::<8>()?;
        let packed = i64::from_le_bytes(*rest.first_chunk::<8>()?);
        let stream = match packed & 0xff {
            1 => Stream::Stdout,
            2 => Stream::Stderr,
            _ => return None,
        };
        Some(Self { offset: u64::from_le_bytes(*offset), stream, at_ms: packed >> 8 })
    }
}

pub(crate) fn data_path(dir: &Path, start: u64) -> PathBuf {
    dir.join(format!("{start:016x}.out"))
}

pub(crate) fn index_path(dir: &Path, start: u64) -> PathBuf {
    dir.join(format!("{start:016x}.idx"))
}

/// The starts of the segments that are there, in order. A missing directory has none.
pub(crate) fn segment_starts(dir: &Path) -> io::Result<Vec<u64>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut starts = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        let Some(hex) = name.to_str().and_then(|name| name.strip_suffix(".out")) else { continue };
        if hex.len() == 16
            && let Ok(start) = u64::from_str_radix(hex, 16)
        {
            starts.push(start);
        }
    }
    starts.sort_unstable();
    Ok(starts)
}
