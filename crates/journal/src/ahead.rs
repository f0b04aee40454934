//! The notes ahead of the database: a batch is one write here, at once, and goes into the database with others a little
//! later. What is here and not there yet is taken over when the record is opened next.
//!
//! The file is written from its beginning again and again: a head that names the record and the round, then the batches of
//! that round, each with a checksum, then an end. Clearing the head forgets them all. Rounds are numbered from a random
//! number on, so that what lies behind the end, left over from longer rounds, is never taken for part of this one. It does
//! not know what a batch means.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use crate::row::Batch;
use crate::{Error, FILE_NAME};

/// The name of the notes, beside the record.
pub(crate) const AHEAD_NAME: &str = "journal.ahead";

/// More than this is not noted before it goes into the database.
const MOST_BYTES: u64 = 1024 * 1024;

const MAGIC: &[u8; 8] = b"belayah2";
/// The magic, the record's number, the round.
const HEAD_BYTES: usize = 24;
/// Length and checksum of what follows, which begins with the round.
const FRAME_BYTES: usize = 8;
/// A frame of no length: nothing follows.
const END: [u8; FRAME_BYTES] = [0; FRAME_BYTES];

#[derive(Debug)]
pub(crate) struct Ahead {
    file: File,
    /// What people know the record by, for errors.
    path: PathBuf,
    /// The number of the record that these are the notes of.
    record: u64,
    round: u64,
    /// Where the next batch goes; 0 while nothing is noted.
    at: u64,
    buffer: Vec<u8>,
}

impl Ahead {
    /// Opens the notes of the record with this number, or makes a new file for them.
    pub(crate) fn open(dir: &Path, record: u64) -> Result<Self, Error> {
        let path = dir.join(FILE_NAME);
        let failed = |error| Error::io(&path, error);
        let nofollow = i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or(0);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(nofollow);
        let file = options.open(dir.join(AHEAD_NAME)).map_err(failed)?;
        file.set_permissions(Permissions::from_mode(0o600)).map_err(failed)?;
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|error| failed(io::Error::other(error)))?;
        let round = u64::from_le_bytes(random);
        Ok(Self { file, path, record, round, at: 0, buffer: Vec::new() })
    }

    pub(crate) const fn holds_notes(&self) -> bool {
        self.at > 0
    }

    pub(crate) const fn is_full(&self) -> bool {
        self.at >= MOST_BYTES
    }

    /// Goes on behind what was found, which cannot go into the database yet.
    pub(crate) const fn resume(&mut self, found: &Noted) {
        (self.round, self.at) = (found.round, found.end);
    }

    /// Writes one batch behind the others. Nothing of it counts if this fails.
    pub(crate) fn note(&mut self, batch: &Batch) -> Result<(), Error> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        if self.at == 0 {
            self.round = self.round.wrapping_add(1);
            buffer.extend_from_slice(MAGIC);
            buffer.extend_from_slice(&self.record.to_le_bytes());
            buffer.extend_from_slice(&self.round.to_le_bytes());
        }
        let mut buffer = encode(buffer, self.round, batch).map_err(|error| Error::io(&self.path, error))?;
        let length = buffer.len() as u64;
        buffer.extend_from_slice(&END);
        if let Err(error) = self.file.write_all_at(&buffer, self.at) {
            // A full disk may have taken a part of it: what was noted before must end where it did.
            let end = if self.at == 0 { &[0; HEAD_BYTES][..] } else { &END[..] };
            let _ = self.file.write_all_at(end, self.at);
            return Err(Error::io(&self.path, error));
        }
        self.at += length;
        self.buffer = buffer;
        Ok(())
    }

    /// Everything noted is in the database.
    pub(crate) fn clear(&mut self) -> Result<(), Error> {
        self.file.write_all_at(&[0; HEAD_BYTES], 0).map_err(|error| Error::io(&self.path, error))?;
        self.at = 0;
        Ok(())
    }
}

/// Adds one frame.
fn encode(mut buffer: Vec<u8>, round: u64, batch: &Batch) -> io::Result<Vec<u8>> {
    let start = buffer.len();
    buffer.extend_from_slice(&END);
    buffer.extend_from_slice(&round.to_le_bytes());
    let mut buffer = postcard::to_extend(batch, buffer).map_err(io::Error::other)?;
    let content = &buffer[start + FRAME_BYTES..];
    let length = u32::try_from(content.len()).map_err(io::Error::other)?;
    let sum = crc32fast::hash(content);
    buffer[start..start + 4].copy_from_slice(&length.to_le_bytes());
    buffer[start + 4..start + FRAME_BYTES].copy_from_slice(&sum.to_le_bytes());
    Ok(buffer)
}

/// What a file of notes holds.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Noted {
    /// The number of the record that it was written for.
    pub(crate) record: u64,
    pub(crate) batches: Vec<Batch>,
    /// It does not end as it should: it was cut off, or it is damaged.
    pub(crate) damaged: bool,
    round: u64,
    end: u64,
}

/// The batches noted in `dir` that may not be in the database yet, in order.
pub fn noted(dir: &Path) -> io::Result<Vec<Batch>> {
    read(dir).map(|noted| noted.batches)
}

pub(crate) fn read(dir: &Path) -> io::Result<Noted> {
    let path = dir.join(AHEAD_NAME);
    match fs::symlink_metadata(&path) {
        Ok(found) if !found.is_file() => return Ok(Noted { damaged: true, ..Noted::default() }),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Noted::default()),
        Err(error) => return Err(error),
    }
    Ok(decode(&fs::read(path)?))
}

fn decode(bytes: &[u8]) -> Noted {
    let head = bytes.get(..HEAD_BYTES).unwrap_or(bytes);
    if head.iter().all(|byte| *byte == 0) {
        return Noted::default();
    }
    let number = |at: usize| {
        let word = head.get(at..at + 8).and_then(|word| word.try_into().ok());
        word.map_or(0, u64::from_le_bytes)
    };
    if !head.starts_with(MAGIC) || head.len() < HEAD_BYTES {
        return Noted { damaged: true, ..Noted::default() };
    }
    let (record, round) = (number(8), number(16));
    let mut noted = Noted { record, round, end: HEAD_BYTES as u64, ..Noted::default() };
    let mut rest = bytes.get(HEAD_BYTES..).unwrap_or_default();
    while let Some((batch, after)) = take(rest, round) {
        noted.batches.push(batch);
        noted.end += (rest.len() - after.len()) as u64;
        rest = after;
    }
    noted.damaged = !rest.starts_with(&END);
    noted
}

fn take(bytes: &[u8], round: u64) -> Option<(Batch, &[u8])> {
    let (length, bytes) = bytes.split_first_chunk::<4>()?;
    let (sum, bytes) = bytes.split_first_chunk::<4>()?;
    let (content, after) = bytes.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)?;
    if crc32fast::hash(content) != u32::from_le_bytes(*sum) {
        return None;
    }
    let batch = postcard::from_bytes(content.strip_prefix(&round.to_le_bytes())?).ok()?;
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
            ..Batch::default()
        }
    }

    proptest! {
        /// Whatever was noted and cleared before, and wherever the file is cut: a beginning of the last round.
        #[test]
        fn what_is_read_is_a_beginning_of_the_last_round(
            rounds in prop::collection::vec((any::<bool>(), prop::collection::vec("[ab]{0,2}", 1..5)), 1..5),
            cleared in any::<bool>(),
            cut in any::<prop::sample::Index>(),
        ) {
            let dir = tempfile::tempdir().unwrap();
            let mut ahead = Ahead::open(dir.path(), 7).unwrap();
            let mut last = Vec::new();
            for (reopen, round) in rounds {
                ahead.clear().unwrap();
                if reopen {
                    // Another program, which knows nothing of what lies behind the end.
                    ahead = Ahead::open(dir.path(), 7).unwrap();
                }
                last = (1..).zip(round).map(|(number, body)| batch(number, body)).collect();
                for batch in &last {
                    ahead.note(batch).unwrap();
                }
            }
            if cleared {
                ahead.clear().unwrap();
                last.clear();
            }
            let found = read(dir.path()).unwrap();
            prop_assert_eq!(&found.batches, &last);
            prop_assert!(!found.damaged);
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
        assert_eq!(read(dir.path()).unwrap(), Noted { damaged: true, ..Noted::default() });
        let mut ahead = Ahead::open(dir.path(), 7).unwrap();
        ahead.note(&batch(1, "b".to_owned())).unwrap();
        assert_eq!(noted(dir.path()).unwrap(), [batch(1, "b".to_owned())]);
    }

    /// One byte anywhere: what comes before it is read, and that something is wrong is known.
    #[test]
    fn damage_is_told_from_an_end() {
        let dir = tempfile::tempdir().unwrap();
        let mut ahead = Ahead::open(dir.path(), 7).unwrap();
        let whole: Vec<Batch> = (1..4).map(|number| batch(number, "body".to_owned())).collect();
        for batch in &whole {
            ahead.note(batch).unwrap();
        }
        let bytes = std::fs::read(dir.path().join(AHEAD_NAME)).unwrap();
        for place in 0..bytes.len() {
            let mut broken = bytes.clone();
            broken[place] ^= 0x40;
            let found = decode(&broken);
            assert!(whole.starts_with(&found.batches), "{place}");
            let is_foreign = found.record != 7;
            assert!(found.damaged || is_foreign, "{place}: {found:?}");
        }
    }
}
