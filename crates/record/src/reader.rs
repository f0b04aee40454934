//! Reads a task's output log by absolute offset, while it is being written or long after. It changes nothing.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::layout::{
    INDEX_RECORD_BYTES, RUN_TIME_MS, Run, SMALLEST_SEGMENT_BYTES, Stream, data_path, index_path,
    segment_starts,
};
use crate::memory::MemoryLog;

/// A range of offsets that is not there, `[from, to)`.
pub type Gap = [u64; 2];

/// Bytes of one stream that lie together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    pub stream: Stream,
    pub offset: u64,
    pub at_ms: i64,
    pub data: Vec<u8>,
}

/// What one read found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slice {
    pub pieces: Vec<Piece>,
    pub gaps: Vec<Gap>,
    /// Where to go on.
    pub next: u64,
}

/// A view of the log as it is now. Make a new one to see what has been written since.
#[derive(Debug)]
pub struct LogReader {
    place: Place,
    segments: Vec<Segment>,
    /// The end of what is kept.
    end: u64,
}

#[derive(Debug)]
enum Place {
    Dir(PathBuf),
    Memory(Arc<MemoryLog>),
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    start: u64,
    end: u64,
}

impl LogReader {
    pub fn open(dir: &Path) -> io::Result<Self> {
        let mut segments = Vec::new();
        for start in segment_starts(dir)? {
            match data_path(dir, start).metadata() {
                Ok(metadata) => segments.push(Segment { start, end: start + metadata.len() }),
                // The writer made room between the listing and this look.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        let end = segments.last().map_or(0, |segment| segment.end);
        Ok(Self { place: Place::Dir(dir.to_owned()), segments, end })
    }

    /// As `open`, for somebody who looks at many logs and reads none: one look or two, where that is enough. Who has written
    /// nothing has no directory; a log whose first segment is not full has no second, but for a disk that failed under the first.
    pub fn glance(dir: &Path) -> io::Result<Self> {
        let first = dir.exists().then(|| data_path(dir, 0).metadata());
        let end = match first {
            None => 0,
            Some(Ok(metadata)) if !may_be_full(dir, metadata.len()) => metadata.len(),
            Some(_) => return Self::open(dir),
        };
        let segments = if end == 0 { Vec::new() } else { vec![Segment { start: 0, end }] };
        Ok(Self { place: Place::Dir(dir.to_owned()), segments, end })
    }

    /// A log that lies in memory only: one segment, from the first byte on.
    pub fn in_memory(log: Arc<MemoryLog>) -> io::Result<Self> {
        let end = log.data.metadata()?.len();
        let segments = if end == 0 { Vec::new() } else { vec![Segment { start: 0, end }] };
        Ok(Self { place: Place::Memory(log), segments, end })
    }

    /// The end of what is kept. A task that lost its last bytes to a full disk has written more.
    pub const fn end(&self) -> u64 {
        self.end
    }

    /// The lowest offset that can be read.
    pub fn first(&self) -> u64 {
        self.segments.first().map_or(self.end, |segment| segment.start)
    }

    /// How much the log takes up.
    pub fn kept_bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.end - segment.start).sum()
    }

    /// When the last byte that is kept had been read from the task, at the latest; none if nothing is kept. Only the end of one
    /// index is read.
    pub fn last_at_ms(&self) -> io::Result<Option<i64>> {
        // A run of bytes is known by when it began, and may have gone on for so long.
        Ok(self.last_run_at_ms()?.map(|at_ms| at_ms + RUN_TIME_MS))
    }

    /// When the last run of bytes that is kept began; none if nothing is kept.
    pub fn last_run_at_ms(&self) -> io::Result<Option<i64>> {
        let Some(last) = self.segments.iter().rfind(|segment| segment.end > segment.start) else {
            return Ok(None);
        };
        let index = match &self.place {
            Place::Dir(dir) => File::open(index_path(dir, last.start))?,
            Place::Memory(log) => log.index.try_clone()?,
        };
        Ok(last_run_before(&index, last.end)?.map(|run| run.at_ms))
    }

    /// Everything below `end` that is not there.
    pub fn gaps(&self) -> Vec<Gap> {
        self.gaps_between(0, self.end)
    }

    fn gaps_between(&self, from: u64, to: u64) -> Vec<Gap> {
        let mut gaps = Vec::new();
        let mut at = from;
        for segment in self.segments.iter().filter(|segment| segment.end > from && segment.start < to) {
            if segment.start > at {
                gaps.push([at, segment.start]);
            }
            at = at.max(segment.end);
        }
        if at < to {
            gaps.push([at, to]);
        }
        gaps
    }

    /// Reads from an offset on, at most so many bytes of the stream asked for (or of both).
    pub fn read(&self, from: u64, max_bytes: usize, only: Option<Stream>) -> io::Result<Slice> {
        let mut slice = Slice { next: from, ..Slice::default() };
        let mut left = max_bytes;
        for segment in self.segments.iter().filter(|segment| segment.end > from) {
            if left == 0 {
                break;
            }
            if segment.start > slice.next {
                slice.gaps.push([slice.next, segment.start]);
                slice.next = segment.start;
            }
            if !self.read_segment(*segment, &mut slice, &mut left, only)? {
                // Removed under our hands: what it held is a gap now.
                slice.gaps.push([slice.next, segment.end]);
                slice.next = segment.end;
            }
        }
        Ok(slice)
    }

    /// False if the segment is gone.
    fn read_segment(
        &self,
        segment: Segment,
        slice: &mut Slice,
        left: &mut usize,
        only: Option<Stream>,
    ) -> io::Result<bool> {
        let (data, runs) = match self.open_segment(segment) {
            Ok(opened) => opened,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        let first = runs.partition_point(|run| run.offset <= slice.next).saturating_sub(1);
        for (place, run) in runs.iter().enumerate().skip(first) {
            let run_end = runs.get(place + 1).map_or(segment.end, |next| next.offset.min(segment.end));
            if run_end <= slice.next {
                continue;
            }
            // Before anything is passed over: what is left of a run that was cut off must not be.
            if *left == 0 {
                break;
            }
            if only.is_some_and(|stream| stream != run.stream) {
                slice.next = run_end;
                continue;
            }
            let wanted = usize::try_from(run_end - slice.next).unwrap_or(usize::MAX).min(*left);
            let mut bytes = vec![0; wanted];
            data.read_exact_at(&mut bytes, slice.next - segment.start)?;
            push(
                &mut slice.pieces,
                Piece { stream: run.stream, offset: slice.next, at_ms: run.at_ms, data: bytes },
            );
            slice.next += wanted as u64;
            *left -= wanted;
        }
        Ok(true)
    }

    fn open_segment(&self, segment: Segment) -> io::Result<(File, Vec<Run>)> {
        let (data, index) = match &self.place {
            Place::Dir(dir) => {
                let data = File::open(data_path(dir, segment.start))?;
                (data, std::fs::read(index_path(dir, segment.start))?)
            }
            Place::Memory(log) => (log.data.try_clone()?, log.read_index()?),
        };
        let mut runs: Vec<Run> = index.chunks_exact(INDEX_RECORD_BYTES).filter_map(Run::decode).collect();
        if runs.first().is_none_or(|run| run.offset != segment.start) {
            // A damaged index costs the stream of these bytes, not the bytes.
            runs.insert(0, Run { offset: segment.start, stream: Stream::Stdout, at_ms: 0 });
        }
        runs.retain(|run| run.offset >= segment.start && run.offset <= segment.end);
        Ok((data, runs))
    }

    /// The offset at which the last `lines` lines begin. A last line without a newline counts as one.
    pub fn tail_offset(&self, lines: u64, only: Option<Stream>) -> io::Result<u64> {
        const BLOCK: u64 = 64 * 1024;
        if lines == 0 {
            return Ok(self.end);
        }
        let mut found = 0;
        let mut at_the_very_end = true;
        let mut to = self.end;
        while to > self.first() {
            let from = to.saturating_sub(BLOCK);
            let slice = self.read(from, usize::try_from(to - from).unwrap_or(usize::MAX), only)?;
            for piece in slice.pieces.iter().rev() {
                for (place, byte) in piece.data.iter().enumerate().rev() {
                    let offset = piece.offset + place as u64;
                    if offset >= to {
                        continue;
                    }
                    if *byte == b'\n' && !at_the_very_end {
                        found += 1;
                        if found == lines {
                            return Ok(offset + 1);
                        }
                    }
                    at_the_very_end = false;
                }
            }
            to = from;
        }
        Ok(self.first())
    }
}

/// The last run that begins before `end`. The runs after it speak of bytes that are not written yet: they are few.
fn last_run_before(index: &File, end: u64) -> io::Result<Option<Run>> {
    const RECORDS: u64 = 64;
    const RECORD: u64 = INDEX_RECORD_BYTES as u64;
    let mut to = index.metadata()?.len() / RECORD;
    while to > 0 {
        let from = to.saturating_sub(RECORDS);
        let mut block = vec![0; INDEX_RECORD_BYTES * usize::try_from(to - from).unwrap_or(0)];
        index.read_exact_at(&mut block, from * RECORD)?;
        let runs = block.chunks_exact(INDEX_RECORD_BYTES).rev().filter_map(Run::decode);
        if let Some(run) = { runs }.find(|run| run.offset < end) {
            return Ok(Some(run));
        }
        to = from;
    }
    Ok(None)
}

/// Whether a first segment with so many bytes may have another behind it. It is full by its bytes, or by its index when the
/// streams alternate; that has at most a record for every byte.
fn may_be_full(dir: &Path, data_bytes: u64) -> bool {
    let index_bytes = || index_path(dir, 0).metadata().map_or(u64::MAX, |metadata| metadata.len());
    data_bytes >= SMALLEST_SEGMENT_BYTES
        || (data_bytes >= SMALLEST_SEGMENT_BYTES / INDEX_RECORD_BYTES as u64
            && index_bytes() >= SMALLEST_SEGMENT_BYTES)
}

/// Adds a piece, joining it to the one before when they lie together and say the same.
fn push(pieces: &mut Vec<Piece>, piece: Piece) {
    if let Some(last) = pieces.last_mut()
        && last.stream == piece.stream
        && last.offset + last.data.len() as u64 == piece.offset
        && last.at_ms == piece.at_ms
    {
        last.data.extend_from_slice(&piece.data);
        return;
    }
    pieces.push(piece);
}

/// Changes a slice so that no UTF-8 character is split between two pieces of a stream, or between this slice and the next.
/// `is_last`: nothing more will come. `end`: the end of what there is now.
pub fn keep_characters_whole(slice: &mut Slice, is_last: bool, end: u64) {
    if !is_last && let Some(limit) = first_unfinished(&slice.pieces) {
        let is_before = slice.gaps.iter().any(|gap| gap[1] <= limit);
        let is_start = !is_before && slice.pieces.first().is_some_and(|piece| piece.offset == limit);
        // If nothing would be left of the slice, waiting helps only if nothing else is there: neither output of the other
        // stream nor more than the reader asked for.
        let is_one_stream = slice.pieces.windows(2).all(|pair| pair[0].stream == pair[1].stream);
        let is_alone = is_one_stream && slice.next >= end;
        if !is_start || is_alone {
            cut_at(slice, limit);
        }
    }
    join_characters(&mut slice.pieces);
}

/// The offset of the first character that is not finished in these pieces, and of those that are not without what comes behind
/// it.
fn first_unfinished(pieces: &[Piece]) -> Option<u64> {
    let mut limit = None;
    while let Some(found) = unfinished_before(pieces, limit.unwrap_or(u64::MAX)) {
        limit = Some(found);
    }
    limit
}

/// The offset of a character that is not finished in what lies before the limit.
fn unfinished_before(pieces: &[Piece], limit: u64) -> Option<u64> {
    let within = |piece: &'_ Piece| -> usize {
        usize::try_from(limit.saturating_sub(piece.offset)).unwrap_or(usize::MAX).min(piece.data.len())
    };
    for (place, piece) in pieces.iter().enumerate() {
        let data = &piece.data[..within(piece)];
        let tail = incomplete_tail(data);
        if tail == 0 {
            continue;
        }
        let missing = missing_bytes(data, tail);
        let later = pieces[place + 1..].iter().filter(|later| later.stream == piece.stream);
        let mut rest = later.flat_map(|later| &later.data[..within(later)]).take(missing);
        let mut found = 0;
        let is_text = rest.by_ref().all(|byte| {
            found += 1;
            matches!(*byte, 0x80..=0xbf)
        });
        if is_text && found < missing {
            return Some(piece.offset + (data.len() - tail) as u64);
        }
    }
    None
}

/// Leaves of a slice what lies before the limit.
fn cut_at(slice: &mut Slice, limit: u64) {
    slice.pieces.retain(|piece| piece.offset < limit);
    if let Some(last) = slice.pieces.last_mut() {
        last.data.truncate(usize::try_from(limit - last.offset).unwrap_or(usize::MAX));
    }
    slice.gaps.retain(|gap| gap[1] <= limit);
    slice.next = limit;
}

/// Moves the rest of a character to the piece in which it begins, also across output of the other stream.
fn join_characters(pieces: &mut Vec<Piece>) {
    for place in 0..pieces.len() {
        let (before, later) = pieces.split_at_mut(place + 1);
        let piece = &mut before[place];
        for next in later.iter_mut().filter(|next| next.stream == piece.stream) {
            let tail = incomplete_tail(&piece.data);
            if tail == 0 {
                break;
            }
            let missing = missing_bytes(&piece.data, tail);
            let rest = next.data.iter().take(missing);
            let rest = rest.take_while(|byte| matches!(**byte, 0x80..=0xbf)).count();
            piece.data.extend(next.data.drain(..rest));
            next.offset += rest as u64;
        }
    }
    pieces.retain(|piece| !piece.data.is_empty());
}

/// How many bytes are missing of the character whose first `tail` bytes are at the end.
fn missing_bytes(data: &[u8], tail: usize) -> usize {
    let length = match data[data.len() - tail] {
        0xc2..=0xdf => 2,
        0xe0..=0xef => 3,
        _ => 4,
    };
    length - tail
}

/// How many bytes at the end begin a character that is not finished. Bytes that are no UTF-8 at all begin none.
fn incomplete_tail(data: &[u8]) -> usize {
    for back in 1..=data.len().min(3) {
        let byte = data[data.len() - back];
        let length = match byte {
            0xc2..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xf4 => 4,
            0x80..=0xbf => continue,
            _ => return 0,
        };
        return if length > back { back } else { 0 };
    }
    0
}
