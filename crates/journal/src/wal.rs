//! A check of the write-ahead log before `SQLite` opens it.
//!
//! `SQLite` treats a log with an invalid header as empty, and a bad frame silently ends it:
//! committed batches would be lost without a notice. This only reads the log. Format:
//! <https://sqlite.org/fileformat2.html>.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

const HEAD_BYTES: usize = 32;
const FRAME_HEAD_BYTES: usize = 24;
const MAGIC_LITTLE: u32 = 0x377f_0682;
const MAGIC_BIG: u32 = 0x377f_0683;

/// What is wrong with the log, or None. A log that ends in the middle of a frame is not a fault: a
/// kill leaves that.
pub(crate) fn fault(path: &Path) -> io::Result<Option<String>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut reader = BufReader::with_capacity(64 * 1024, file);
    let mut head = [0; HEAD_BYTES];
    if !filled(&mut reader, &mut head)? {
        return Ok(None);
    }
    let Some(mut log) = Log::from_head(&head) else {
        return Ok(Some("its log has an invalid header".to_owned()));
    };
    let mut frame = vec![0; FRAME_HEAD_BYTES + log.page_bytes];
    let mut broken_at = None;
    for index in 1u64.. {
        if !filled(&mut reader, &mut frame)? {
            break;
        }
        match broken_at {
            None if !log.continues(&frame) => broken_at = Some(index),
            Some(at) if log.is_commit(&frame) => {
                return Ok(Some(format!(
                    "its log is damaged at frame {at}, before the commit in frame {index}"
                )));
            }
            _ => {}
        }
    }
    Ok(None)
}

/// The most frames a log of this size can hold: a bound on what was lost with it.
pub(crate) fn frames(bytes: u64) -> u64 {
    bytes / 4096
}

struct Log {
    big: bool,
    page_bytes: usize,
    salt: [u8; 8],
    sum: (u32, u32),
}

impl Log {
    fn from_head(head: &[u8; HEAD_BYTES]) -> Option<Self> {
        let big = match word(head, 0) {
            MAGIC_LITTLE => false,
            MAGIC_BIG => true,
            _ => return None,
        };
        let page_bytes = usize::try_from(word(head, 8)).ok()?;
        let sum = checksum(big, (0, 0), &head[..24]);
        let sound =
            page_bytes.is_power_of_two() && (512..=65536).contains(&page_bytes) && sum == pair(head, 24);
        let salt = head[16..24].try_into().ok()?;
        sound.then_some(Self { big, page_bytes, salt, sum })
    }

    /// Whether this frame's checksum continues that of the frames before; if so it becomes the last
    /// of them.
    fn continues(&mut self, frame: &[u8]) -> bool {
        let sum = checksum(self.big, self.sum, &frame[..8]);
        let sum = checksum(self.big, sum, &frame[FRAME_HEAD_BYTES..]);
        let follows = frame[8..16] == self.salt && sum == pair(frame, 16);
        if follows {
            self.sum = sum;
        }
        follows
    }

    /// Whether this frame belongs to this log (not to an overwritten one) and ends a transaction.
    fn is_commit(&self, frame: &[u8]) -> bool {
        frame[8..16] == self.salt && word(frame, 4) != 0
    }
}

fn checksum(big: bool, (mut a, mut b): (u32, u32), bytes: &[u8]) -> (u32, u32) {
    let read = |at: &[u8]| {
        let four = [at[0], at[1], at[2], at[3]];
        if big { u32::from_be_bytes(four) } else { u32::from_le_bytes(four) }
    };
    for eight in bytes.chunks_exact(8) {
        a = a.wrapping_add(read(&eight[..4])).wrapping_add(b);
        b = b.wrapping_add(read(&eight[4..])).wrapping_add(a);
    }
    (a, b)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn pair(bytes: &[u8], at: usize) -> (u32, u32) {
    (word(bytes, at), word(bytes, at + 4))
}

/// Fills the buffer; false if the file ended first.
fn filled(reader: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    match reader.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}
