//! The notes ahead of the database: a batch is one write here, at once, and goes into the database with others a little
//! later. What is here and not there yet is taken over when the record is opened next.
//!
//! The file is written from its beginning again and again: a head with the number of the round, then the batches of that
//! round. Clearing the head forgets them all. It does not know what a batch means.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use crate::row::Batch;
use crate::{Error, FILE_NAME};

/// The name of the notes, beside the record.
pub(crate) const AHEAD_NAME: &str = "journal.ahead";

/// More than this is not noted before it goes into the database.
const MOST_BYTES: u64 = 1024 * 1024;

const MAGIC: &[u8; 8] = b"belayah1";
const HEAD_BYTES: usize = 16;
/// Length and checksum of what follows, which begins with the number of the round.
const FRAME_BYTES: usize = 8;

#[derive(Debug)]
pub(crate) struct Ahead {
    file: File,
    /// What people know the record by, for errors.
    record: PathBuf,
    round: u64,
    /// Where the next batch goes; 0 while nothing is noted.
    at: u64,
    buffer: Vec<u8>,
}

impl Ahead {
    pub(crate) fn open(dir: &Path) -> Result<Self, Error> {
        let path = dir.join(AHEAD_NAME);
        let mut options = OpenOptions::new();
        let opened = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = opened.map_err(|error| Error::io(&path, error))?;
        file.set_permissions(Permissions::from_mode(0o600)).map_err(|error| Error::io(&path, error))?;
        let round = read_head(&file).map_err(|error| Error::io(&path, error))?.unwrap_or(0);
        Ok(Self { file, record: dir.join(FILE_NAME), round, at: 0, buffer: Vec::new() })
    }

    pub(crate) const fn holds_notes(&self) -> bool {
        self.at > 0
    }

    pub(crate) const fn is_full(&self) -> bool {
        self.at >= MOST_BYTES
    }

    /// Writes one batch behind the others. Nothing of it counts if this fails.
    pub(crate) fn note(&mut self, batch: &Batch) -> Result<(), Error> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        if self.at == 0 {
            self.round += 1;
            buffer.extend_from_slice(MAGIC);
            buffer.extend_from_slice(&self.round.to_le_bytes());
        }
        let start = buffer.len();
        buffer.extend_from_slice(&[0; FRAME_BYTES]);
        buffer.extend_from_slice(&self.round.to_le_bytes());
        let coded = postcard::to_extend(batch, buffer).map_err(io::Error::other);
        let mut buffer = coded.map_err(|error| Error::io(&self.record, error))?;
        let content = &buffer[start + FRAME_BYTES..];
        let length =
            u32::try_from(content.len()).map_err(|error| Error::io(&self.record, io::Error::other(error)))?;
        let sum = crc32fast::hash(content);
        buffer[start..start + 4].copy_from_slice(&length.to_le_bytes());
        buffer[start + 4..start + FRAME_BYTES].copy_from_slice(&sum.to_le_bytes());
        self.file.write_all_at(&buffer, self.at).map_err(|error| Error::io(&self.record, error))?;
        self.at += buffer.len() as u64;
        self.buffer = buffer;
        Ok(())
    }

    /// Everything noted is in the database.
    pub(crate) fn clear(&mut self) -> Result<(), Error> {
        self.file.write_all_at(&[0; HEAD_BYTES], 0).map_err(|error| Error::io(&self.record, error))?;
        self.at = 0;
        Ok(())
    }
}

fn read_head(file: &File) -> io::Result<Option<u64>> {
    let mut head = [0; HEAD_BYTES];
    match file.read_exact_at(&mut head, 0) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let (magic, round) = head.split_at(MAGIC.len());
    Ok(round.try_into().ok().map(u64::from_le_bytes).filter(|_| magic == MAGIC))
}

/// The batches noted in `dir` that may not be in the database yet, in order. A batch that was not written to its end was
/// never acknowledged, and ends them.
pub fn noted(dir: &Path) -> io::Result<Vec<Batch>> {
    let bytes = match std::fs::read(dir.join(AHEAD_NAME)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let Some((head, mut rest)) = bytes.split_at_checked(HEAD_BYTES) else { return Ok(Vec::new()) };
    let Some(round) = head.strip_prefix(MAGIC) else { return Ok(Vec::new()) };
    let mut batches = Vec::new();
    while let Some((batch, after)) = take(rest, round) {
        batches.push(batch);
        rest = after;
    }
    Ok(batches)
}

fn take<'a>(bytes: &'a [u8], round: &[u8]) -> Option<(Batch, &'a [u8])> {
    let (length, bytes) = bytes.split_first_chunk::<4>()?;
    let (sum, bytes) = bytes.split_first_chunk::<4>()?;
    let (content, after) = bytes.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)?;
    if crc32fast::hash(content) != u32::from_le_bytes(*sum) {
        return None;
    }
    let batch = postcard::from_bytes(content.strip_prefix(round)?).ok()?;
    Some((batch, after))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::row::{EventRow, TaskRow};

    fn batch(number: u64, body: String) -> Batch {
        Batch {
            put: vec![TaskRow { id: format!("sh-{number}"), number, body, ..TaskRow::default() }],
            events: vec![EventRow { seq: number, ..EventRow::default() }],
            removed: Vec::new(),
        }
    }

    proptest! {
        /// Whatever was noted and cleared before, and wherever the file is cut: a beginning of the last round.
        #[test]
        fn what_is_read_is_a_beginning_of_the_last_round(
            rounds in prop::collection::vec(prop::collection::vec(".{0,40}", 1..5), 1..4),
            cleared in any::<bool>(),
            cut in any::<prop::sample::Index>(),
        ) {
            let dir = tempfile::tempdir().unwrap();
            let mut ahead = Ahead::open(dir.path()).unwrap();
            let mut last = Vec::new();
            for round in rounds {
                ahead.clear().unwrap();
                last = (1..).zip(round).map(|(number, body)| batch(number, body)).collect();
                for batch in &last {
                    ahead.note(batch).unwrap();
                }
            }
            if cleared {
                ahead.clear().unwrap();
                last.clear();
            }
            prop_assert_eq!(&noted(dir.path()).unwrap(), &last);
            let length = ahead.file.metadata().unwrap().len();
            ahead.file.set_len(cut.index(usize::try_from(length).unwrap() + 1) as u64).unwrap();
            prop_assert!(last.starts_with(&noted(dir.path()).unwrap()));
        }
    }

    #[test]
    fn no_file_and_a_strange_file_hold_nothing() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(noted(dir.path()).unwrap(), []);
        std::fs::write(dir.path().join(AHEAD_NAME), "something else that is long enough").unwrap();
        assert_eq!(noted(dir.path()).unwrap(), []);
        let mut ahead = Ahead::open(dir.path()).unwrap();
        ahead.note(&batch(1, "b".to_owned())).unwrap();
        assert_eq!(noted(dir.path()).unwrap(), [batch(1, "b".to_owned())]);
    }
}
