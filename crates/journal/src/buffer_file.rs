//! One file of the write buffer: its format, appending to it, and reading what a file on disk still
//! holds.
//!
//! A file is a header and then one frame for each batch, closed by an end marker that the next
//! frame overwrites. The header names the journal, the file's generation (a different value for
//! each use of a file), the first batch and the next event; each frame carries its own number, the
//! last event up to and including it, and checksums that depend on the generation. So a file that
//! was cut off or damaged is distinguished from one that ends, and bytes of an earlier use are
//! never taken for frames. A cleared file has a marker of its own.
//!
//! A process that is killed during an append may leave a part of the frame. The kernel stops such a
//! write only between two pages, which distinguishes it from most other cuts; the batch was not
//! acknowledged, and it is ignored.
//!
//! This module does not know what the database has.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use crate::files;
use crate::row::Batch;

/// File names are this and a decimal number.
pub(crate) const NAME_PREFIX: &str = "journal.buffer-";

const MAGIC: &[u8; 8] = b"belaybf1";
/// The content of a cleared file. An empty file was cut off.
const CLEARED: &[u8; 8] = b"belaybf0";
/// Magic; journal, generation, first batch, next event; checksum.
const HEADER_BYTES: usize = 44;
/// Payload length, head checksum; batch number, last event; payload checksum.
const FRAME_HEAD_BYTES: usize = 28;
/// The smallest page that a kernel uses; larger ones are multiples of it.
const PAGE_BYTES: usize = 4096;
/// A frame without length: nothing follows.
const END: [u8; 8] = [0; 8];
/// The encoding of an event is not shorter: seven fields of at least one byte.
const MIN_EVENT_BYTES: u64 = 7;

/// The name of a file that is not ready yet.
const NEW_NAME: &str = "journal.buffer.new";

/// Far more files than are ever in use; a bound for the search of a free name.
const MAX_FILES: u32 = 1000;

/// What a file says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Header {
    /// The journal that the batches belong to.
    pub(crate) journal: u64,
    pub(crate) generation: u64,
    pub(crate) first_batch: u64,
    /// The number that the first event of the file has, or would have.
    pub(crate) next_event: u64,
}

impl Header {
    fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        let words = [self.journal, self.generation, self.first_batch, self.next_event];
        for (place, word) in bytes[8..40].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let sum = crc32fast::hash(&bytes[..40]);
        bytes[40..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (bytes, _) = bytes.split_first_chunk::<HEADER_BYTES>()?;
        let sum = crc32fast::hash(&bytes[..40]).to_le_bytes();
        if !bytes.starts_with(MAGIC) || bytes[40..] != sum {
            return None;
        }
        let word = |at| word(bytes, at);
        Some(Self { journal: word(8)?, generation: word(16)?, first_batch: word(24)?, next_event: word(32)? })
    }
}

/// A batch with its place in the order of all batches.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) number: u64,
    /// The last event number up to and including this batch.
    pub(crate) last_event: u64,
    /// The size of its frame.
    pub(crate) bytes: u64,
    pub(crate) batch: Batch,
}

/// A file of the buffer that is open for appending, sealed, or cleared for reuse.
#[derive(Debug)]
pub(crate) struct BufferFile {
    file: File,
    pub(crate) path: PathBuf,
    generation: u64,
    /// Where the next frame goes; 0 in a cleared file.
    end: u64,
    /// The number of the last batch in it.
    pub(crate) last_batch: u64,
}

impl BufferFile {
    /// Creates a cleared file under the first free name.
    pub(crate) fn create(dir: &Path) -> io::Result<Self> {
        let is_free = |path: &PathBuf| fs::symlink_metadata(path).is_err();
        let mut paths = (0..MAX_FILES).map(|slot| dir.join(format!("{NAME_PREFIX}{slot}")));
        let path = paths.find(is_free).ok_or_else(|| io::Error::from(io::ErrorKind::AlreadyExists))?;
        // Under another name until it has its marker: a crash must not leave a file that seems to
        // be cut off.
        let new = dir.join(NEW_NAME);
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&new)?;
        let mut created = Self { file, path, generation: 0, end: 0, last_batch: 0 };
        match created.clear().and_then(|()| fs::rename(&new, &created.path)) {
            Ok(()) => Ok(created),
            Err(error) => {
                let _ = fs::remove_file(&new);
                Err(error)
            }
        }
    }

    /// Opens a file that a scan has found.
    pub(crate) fn reopen(scanned: &Scanned) -> io::Result<Self> {
        let nofollow = i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or(0);
        let file = OpenOptions::new().read(true).write(true).custom_flags(nofollow).open(&scanned.path)?;
        file.set_permissions(Permissions::from_mode(0o600))?;
        let generation = scanned.header.map_or(0, |header| header.generation);
        let &Scanned { end, last_batch, .. } = scanned;
        Ok(Self { file, path: scanned.path.clone(), generation, end, last_batch })
    }

    /// Appends one batch with one write. On an error the file is as it was. Returns the size of the
    /// frame.
    ///
    /// `header` is written in front of the first frame; `scratch` is reused between calls.
    pub(crate) fn append(
        &mut self,
        header: &Header,
        number: u64,
        last_event: u64,
        batch: &Batch,
        scratch: &mut Vec<u8>,
    ) -> io::Result<u64> {
        let mut bytes = std::mem::take(scratch);
        bytes.clear();
        if self.end == 0 {
            self.generation = header.generation;
            bytes.extend_from_slice(&header.encode());
        }
        let start = bytes.len();
        let mut bytes = encode_frame(bytes, self.generation, number, last_event, batch)?;
        let length = bytes.len() as u64;
        bytes.extend_from_slice(&END);
        if let Err(error) = self.file.write_all_at(&bytes, self.end) {
            self.undo_append();
            return Err(error);
        }
        self.end += length;
        self.last_batch = number;
        *scratch = bytes;
        Ok(length - start as u64)
    }

    /// Ends the file where it ended before: a full disk may have taken a part of the frame.
    fn undo_append(&mut self) {
        if self.end == 0 {
            let _ = self.clear();
        } else {
            let _ = self.file.write_all_at(&END, self.end);
            let _ = self.file.set_len(self.end + END.len() as u64);
        }
    }

    /// Empties the file for reuse.
    pub(crate) fn clear(&mut self) -> io::Result<()> {
        // In this order: whatever follows the marker is ignored.
        self.file.write_all_at(CLEARED, 0)?;
        self.end = 0;
        self.file.set_len(CLEARED.len() as u64)
    }

    /// Whether the file is still where it was opened.
    pub(crate) fn is_in_place(&self) -> bool {
        files::is_same(&self.file, &self.path)
    }

    pub(crate) fn len(&self) -> u64 {
        self.file.metadata().map_or(0, |found| found.len())
    }
}

fn encode_frame(
    mut bytes: Vec<u8>,
    generation: u64,
    number: u64,
    last_event: u64,
    batch: &Batch,
) -> io::Result<Vec<u8>> {
    let start = bytes.len();
    bytes.extend_from_slice(&[0; 8]);
    bytes.extend_from_slice(&number.to_le_bytes());
    bytes.extend_from_slice(&last_event.to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    let mut bytes = postcard::to_extend(batch, bytes).map_err(io::Error::other)?;
    let (head, payload) = bytes[start..].split_at_mut(FRAME_HEAD_BYTES);
    let length = u32::try_from(payload.len()).map_err(io::Error::other)?;
    head[..4].copy_from_slice(&length.to_le_bytes());
    head[24..].copy_from_slice(&crc32fast::hash(payload).to_le_bytes());
    let sum = head_sum(generation, head);
    head[4..8].copy_from_slice(&sum.to_le_bytes());
    Ok(bytes)
}

/// The checksum of a frame's head, without the checksum itself.
fn head_sum(generation: u64, head: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&generation.to_le_bytes());
    hasher.update(&head[..4]);
    hasher.update(&head[8..FRAME_HEAD_BYTES]);
    hasher.finalize()
}

/// What a file on disk holds.
#[derive(Debug, Default)]
pub(crate) struct Scanned {
    pub(crate) path: PathBuf,
    pub(crate) kind: Kind,
    /// None if it cannot be read.
    pub(crate) header: Option<Header>,
    /// The frames from the first on, up to the first that cannot be read.
    pub(crate) entries: Vec<Entry>,
    /// The number of the last of them.
    last_batch: u64,
    /// No event beyond this number can have been in the file; only of use if the file is damaged.
    pub(crate) max_event: u64,
    /// Where the last readable frame ends.
    end: u64,
    pub(crate) length: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Kind {
    /// A cleared file.
    #[default]
    Empty,
    Sound,
    /// It does not end as it should: it was cut off, or it is damaged.
    Damaged,
    /// A directory, a link or another object that is not a regular file.
    NotAFile,
}

impl Scanned {
    /// How many events a file without a readable header can have held.
    pub(crate) const fn most_events(&self) -> u64 {
        self.length / MIN_EVENT_BYTES
    }
}

/// Reads every buffer file in `dir`, in the order of their batches; those without a readable header
/// come last.
pub(crate) fn scan_dir(dir: &Path) -> io::Result<Vec<Scanned>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let slot = name.to_str().and_then(|name| name.strip_prefix(NAME_PREFIX));
        if slot.is_some_and(|slot| !slot.is_empty() && slot.bytes().all(|byte| byte.is_ascii_digit())) {
            files.push(scan(&entry.path())?);
        }
    }
    files.sort_by_key(|file| {
        let header = file.header.unwrap_or(Header { first_batch: u64::MAX, ..Header::default() });
        (header.first_batch, header.generation, file.path.clone())
    });
    Ok(files)
}

fn scan(path: &Path) -> io::Result<Scanned> {
    if !fs::symlink_metadata(path)?.is_file() {
        return Ok(Scanned { path: path.to_owned(), kind: Kind::NotAFile, ..Scanned::default() });
    }
    Ok(Scanned { path: path.to_owned(), ..decode(&fs::read(path)?) })
}

fn decode(bytes: &[u8]) -> Scanned {
    let length = bytes.len() as u64;
    if bytes.starts_with(CLEARED) {
        return Scanned::default();
    }
    let Some(header) = Header::decode(bytes) else {
        return Scanned { kind: Kind::Damaged, length, ..Scanned::default() };
    };
    let mut entries = Vec::new();
    let mut at = HEADER_BYTES;
    while let Some(entry) = decode_frame(&bytes[at..], header.generation) {
        at += usize::try_from(entry.bytes).unwrap_or(usize::MAX);
        entries.push(entry);
    }
    let (last_batch, known) = match entries.last() {
        Some(Entry { number, last_event, .. }) => (*number, *last_event),
        None => (0, header.next_event.saturating_sub(1)),
    };
    let (kind, max_event) = if bytes[at..].starts_with(&END) || is_torn_append(bytes, at, header.generation) {
        (Kind::Sound, known)
    } else {
        (Kind::Damaged, max_event(&bytes[at..], header.generation, known))
    };
    let header = Some(header);
    Scanned { kind, header, entries, last_batch, max_event, end: at as u64, length, ..Scanned::default() }
}

/// Whether the file ends, at the end of a page, inside the frame or the end marker that begins at
/// `at`.
fn is_torn_append(bytes: &[u8], at: usize, generation: u64) -> bool {
    let rest = &bytes[at..];
    let is_incomplete = match FrameHead::decode(rest, generation) {
        Some(head) => rest.len() < FRAME_HEAD_BYTES + head.length,
        None => rest.len() < FRAME_HEAD_BYTES,
    };
    is_incomplete && bytes.len().is_multiple_of(PAGE_BYTES)
}

/// The head of a frame that is intact, whatever its payload.
struct FrameHead {
    length: usize,
    number: u64,
    last_event: u64,
    payload_sum: u32,
}

impl FrameHead {
    fn decode(bytes: &[u8], generation: u64) -> Option<Self> {
        let (head, _) = bytes.split_first_chunk::<FRAME_HEAD_BYTES>()?;
        let half = |at: usize| Some(u32::from_le_bytes(head.get(at..at + 4)?.try_into().ok()?));
        if half(4)? != head_sum(generation, head) {
            return None;
        }
        Some(Self {
            length: usize::try_from(half(0)?).ok()?,
            number: word(head, 8)?,
            last_event: word(head, 16)?,
            payload_sum: half(24)?,
        })
    }
}

fn decode_frame(bytes: &[u8], generation: u64) -> Option<Entry> {
    let FrameHead { length, number, last_event, payload_sum } = FrameHead::decode(bytes, generation)?;
    let payload = bytes[FRAME_HEAD_BYTES..].get(..length)?;
    if crc32fast::hash(payload) != payload_sum {
        return None;
    }
    let batch = postcard::from_bytes(payload).ok()?;
    Some(Entry { number, last_event, bytes: (FRAME_HEAD_BYTES + length) as u64, batch })
}

/// The highest event number that the unreadable rest of a file can have held: that of the last
/// intact frame head, and what fits into the bytes behind it.
fn max_event(rest: &[u8], generation: u64, known: u64) -> u64 {
    let (mut known, mut at, mut behind) = (known, 0, 0);
    while at < rest.len() {
        match FrameHead::decode(&rest[at..], generation) {
            Some(head) => {
                known = known.max(head.last_event);
                at += FRAME_HEAD_BYTES + head.length;
                behind = at;
            }
            None => at += 1,
        }
    }
    known.saturating_add(rest.len().saturating_sub(behind) as u64 / MIN_EVENT_BYTES)
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests;
