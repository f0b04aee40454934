//! Writes a task's output log: appends, keeps within its limit, and goes on when the disk is full. It reads nothing.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::layout::{
    INDEX_RECORD_BYTES, RUN_TIME_MS, Run, SMALLEST_SEGMENT_BYTES, Stream, data_path, index_path,
};
use crate::memory::MemoryLog;

/// After so many gaps nothing more is written: the list of gaps is bounded too.
const MAX_GAPS: usize = 1_000;

const LARGEST_SEGMENT_BYTES: u64 = 16 * 1024 * 1024;

/// The smallest limit that still keeps a head and a tail.
pub const SMALLEST_LIMIT_BYTES: u64 = 4 * SMALLEST_SEGMENT_BYTES;

/// The log of one task, open for appending. Nothing is on disk before the first byte, and with room in memory not before
/// that is full.
#[derive(Debug)]
pub struct LogWriter {
    dir: PathBuf,
    /// So many bytes may stay off the disk.
    memory_bytes: u64,
    segment_bytes: u64,
    half_bytes: u64,
    open: Option<Segment>,
    /// The segment in memory, when the disk did not take it. It is tried once more at the end.
    stuck: Option<Segment>,
    /// Segments that stay whatever comes; they are few.
    head: Vec<Kept>,
    /// Segments behind the head, oldest first: the ones that make room.
    tail: VecDeque<Kept>,
    head_bytes: u64,
    tail_bytes: u64,
    /// The next absolute offset.
    bytes: u64,
    gaps: Vec<[u64; 2]>,
    fault: Option<Fault>,
}

/// What could not be written, in the words of the system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub message: String,
    pub lost_bytes: u64,
}

#[derive(Debug)]
struct Segment {
    data: File,
    index: File,
    kept: Kept,
    run: Run,
    in_head: bool,
    in_memory: bool,
}

#[derive(Clone, Copy, Debug)]
struct Kept {
    start: u64,
    data_bytes: u64,
    index_bytes: u64,
}

impl Kept {
    /// What it counts against the limit. The index is far smaller than the data unless the streams alternate with
    /// every few bytes; then it counts instead.
    fn charge(self) -> u64 {
        self.data_bytes.max(self.index_bytes)
    }

    const fn end(self) -> u64 {
        self.start + self.data_bytes
    }
}

impl LogWriter {
    /// `limit_bytes` is what may lie on disk, half of it for the head and half for the tail; `memory_bytes` is what may
    /// stay in memory until somebody asks for it to be on disk.
    pub fn new(dir: &Path, limit_bytes: u64, memory_bytes: u64) -> Self {
        let limit = limit_bytes.max(SMALLEST_LIMIT_BYTES);
        let segment_bytes = (limit / 16).clamp(SMALLEST_SEGMENT_BYTES, LARGEST_SEGMENT_BYTES);
        Self {
            dir: dir.to_owned(),
            memory_bytes: memory_bytes.min(segment_bytes),
            segment_bytes,
            half_bytes: limit / 2,
            open: None,
            stuck: None,
            head: Vec::new(),
            tail: VecDeque::new(),
            head_bytes: 0,
            tail_bytes: 0,
            bytes: 0,
            gaps: Vec::new(),
            fault: None,
        }
    }

    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Ranges that are not on disk, in order, merged.
    pub fn gaps(&self) -> &[[u64; 2]] {
        &self.gaps
    }

    pub const fn fault(&self) -> Option<&Fault> {
        self.fault.as_ref()
    }

    /// Takes what the task wrote. It cannot fail: what the disk does not take becomes a gap and a fault.
    pub fn append(&mut self, stream: Stream, at_ms: i64, mut data: &[u8]) {
        while !data.is_empty() {
            match self.write_some(stream, at_ms, data) {
                Ok(written) => data = &data[written..],
                Err(error) => {
                    self.lose(data.len() as u64, &error);
                    return;
                }
            }
        }
    }

    fn write_some(&mut self, stream: Stream, at_ms: i64, data: &[u8]) -> io::Result<usize> {
        if self.gaps.len() >= MAX_GAPS {
            return Err(io::Error::other("too many gaps already"));
        }
        if self.open.as_ref().is_some_and(|open| open.in_memory && open.kept.charge() >= self.memory_bytes) {
            self.leave_memory();
        }
        let mut segment = match self.open.take() {
            Some(segment) if segment.kept.charge() < self.segment_bytes => segment,
            full => {
                if let Some(segment) = full {
                    self.retire(&segment);
                }
                self.create(stream, at_ms)?
            }
        };
        let limit = if segment.in_memory { self.memory_bytes } else { self.segment_bytes };
        let room = limit - segment.kept.charge().min(limit - 1);
        let part = &data[..data.len().min(usize::try_from(room).unwrap_or(usize::MAX))];
        let written = segment.write(self.bytes, stream, at_ms, part);
        match written {
            Ok(written) => {
                self.bytes += written as u64;
                self.open = Some(segment);
                Ok(written)
            }
            // The segment stays as far as it was written; the next one starts behind the gap.
            Err(error) => {
                if segment.in_memory {
                    self.stuck = Some(segment);
                } else {
                    self.retire(&segment);
                }
                Err(error)
            }
        }
    }

    fn create(&mut self, stream: Stream, at_ms: i64) -> io::Result<Segment> {
        let in_head = self.head_bytes < self.half_bytes && self.tail.is_empty() && self.gaps.is_empty();
        let start = self.bytes;
        if start == 0 && self.memory_bytes > 0 {
            return create_in_memory(Run { offset: start, stream, at_ms });
        }
        let open = |path: &Path| OpenOptions::new().append(true).create_new(true).mode(0o600).open(path);
        let index = match open(&index_path(&self.dir, start)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
                open(&index_path(&self.dir, start))?
            }
            other => other?,
        };
        let run = Run { offset: start, stream, at_ms };
        let made = (&index).write_all(&run.encode()).and_then(|()| open(&data_path(&self.dir, start)));
        match made {
            Ok(data) => {
                let kept = Kept { start, data_bytes: 0, index_bytes: INDEX_RECORD_BYTES as u64 };
                Ok(Segment { data, index, kept, run, in_head, in_memory: false })
            }
            Err(error) => {
                // Without its data file the index says nothing; left behind it would block the next try.
                let _ = fs::remove_file(index_path(&self.dir, start));
                Err(error)
            }
        }
    }

    /// From now on everything is on disk, what came before first. What the disk does not take stays readable in memory.
    pub fn leave_memory(&mut self) {
        self.memory_bytes = 0;
        let Some(segment) = self.open.take_if(|open| open.in_memory) else { return };
        match self.move_to_disk(&segment) {
            Ok(segment) => self.open = Some(segment),
            Err(_) => self.stuck = Some(segment),
        }
    }

    fn move_to_disk(&self, segment: &Segment) -> io::Result<Segment> {
        let (data, index) =
            (data_path(&self.dir, segment.kept.start), index_path(&self.dir, segment.kept.start));
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        let memory = MemoryLog { data: segment.data.try_clone()?, index: segment.index.try_clone()? };
        memory.copy_to(&data, &index)?;
        let open = |path: &Path| OpenOptions::new().append(true).open(path);
        Ok(Segment { data: open(&data)?, index: open(&index)?, in_memory: false, ..*segment })
    }

    /// By which numbers this process has the log open, if it lies in memory only.
    pub fn memory(&self) -> Option<[i32; 2]> {
        let segment = self.open.as_ref().filter(|open| open.in_memory).or(self.stuck.as_ref())?;
        Some([segment.data.as_raw_fd(), segment.index.as_raw_fd()])
    }

    /// Puts a full or broken segment away, and makes room if the tail has grown too long.
    fn retire(&mut self, segment: &Segment) {
        if segment.kept.data_bytes == 0 {
            let _ = fs::remove_file(data_path(&self.dir, segment.kept.start));
            let _ = fs::remove_file(index_path(&self.dir, segment.kept.start));
            return;
        }
        if segment.in_head {
            self.head_bytes += segment.kept.charge();
            self.head.push(segment.kept);
            return;
        }
        self.tail_bytes += segment.kept.charge();
        self.tail.push_back(segment.kept);
        // One more segment is about to be opened behind these.
        while self.tail_bytes + self.segment_bytes > self.half_bytes && self.tail.len() > 1 {
            let Some(oldest) = self.tail.pop_front() else { return };
            let _ = fs::remove_file(data_path(&self.dir, oldest.start));
            let _ = fs::remove_file(index_path(&self.dir, oldest.start));
            self.tail_bytes -= oldest.charge();
            self.add_gap(oldest.start, oldest.end());
        }
    }

    fn lose(&mut self, count: u64, error: &io::Error) {
        let from = self.bytes;
        self.bytes += count;
        self.miss(from, self.bytes, error);
    }

    fn miss(&mut self, from: u64, to: u64, error: &io::Error) {
        self.add_gap(from, to);
        let fault = self.fault.get_or_insert_with(|| Fault { message: error.to_string(), lost_bytes: 0 });
        fault.lost_bytes += to - from;
    }

    /// The last look, when nothing more will be written: what somebody has removed under our hands is a gap and a fault.
    pub fn finish(&mut self) {
        if let Some(stuck) = self.stuck.take()
            && let Err(error) = self.move_to_disk(&stuck)
        {
            self.miss(stuck.kept.start, stuck.kept.end(), &error);
        }
        let on_disk = |segment: &&Segment| !segment.in_memory;
        let open = self.open.as_ref().filter(on_disk).map(|segment| segment.kept);
        let kept: Vec<Kept> = self.head.iter().chain(&self.tail).copied().chain(open).collect();
        for kept in kept {
            // Looked at before, and missed then: told once.
            if self.gaps.iter().any(|gap| gap[0] <= kept.start && kept.end() <= gap[1]) {
                continue;
            }
            let is_there = |path: PathBuf| path.try_exists().unwrap_or(true);
            if !is_there(data_path(&self.dir, kept.start)) || !is_there(index_path(&self.dir, kept.start)) {
                self.miss(kept.start, kept.end(), &io::Error::other("its file was removed by somebody else"));
            }
        }
    }

    fn add_gap(&mut self, from: u64, to: u64) {
        let place = self.gaps.partition_point(|gap| gap[1] < from);
        let mut merged = [from, to];
        let mut end = place;
        while let Some(gap) = self.gaps.get(end).filter(|gap| gap[0] <= to) {
            merged = [merged[0].min(gap[0]), merged[1].max(gap[1])];
            end += 1;
        }
        self.gaps.splice(place..end, [merged]);
    }
}

fn create_in_memory(run: Run) -> io::Result<Segment> {
    let MemoryLog { data, mut index } = MemoryLog::create()?;
    index.write_all(&run.encode())?;
    let kept = Kept { start: run.offset, data_bytes: 0, index_bytes: INDEX_RECORD_BYTES as u64 };
    Ok(Segment { data, index, kept, run, in_head: true, in_memory: true })
}

impl Segment {
    fn write(&mut self, offset: u64, stream: Stream, at_ms: i64, data: &[u8]) -> io::Result<usize> {
        if self.run.stream != stream || at_ms - self.run.at_ms >= RUN_TIME_MS {
            let run = Run { offset, stream, at_ms };
            self.index.write_all(&run.encode())?;
            self.kept.index_bytes += INDEX_RECORD_BYTES as u64;
            self.run = run;
        }
        let written = loop {
            match self.data.write(data) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(0) => return Err(io::Error::from(io::ErrorKind::WriteZero)),
                other => break other?,
            }
        };
        self.kept.data_bytes += written as u64;
        Ok(written)
    }
}
