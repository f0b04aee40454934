//! The task's output, two pipes or one terminal, and the log it runs into. Reading never waits. A task that is run again
//! has other pipes each time, and one log.

use std::io;
use std::os::fd::OwnedFd;

use belay_protocol::Timestamp;
use belay_protocol::life::{CaptureFault, OutputInfo};
use belay_record::{LogWriter, Stream};

/// As large as an ordinary user may have it: the command does not wait for us while we are busy.
pub(crate) const PIPE_BYTES: usize = 1024 * 1024;

/// Larger copies are slower: they fall out of the cache.
pub(crate) const READ_BYTES: usize = 64 * 1024;

/// How many reads of one stream may follow each other before something else is looked at.
const READS_IN_A_ROW: usize = 32;

#[derive(Debug)]
pub(crate) struct Output {
    streams: [Option<OwnedFd>; 2],
    /// Pipes that have come to their end. They are closed with the rest, when nobody waits for the news of the end.
    ended: [Option<OwnedFd>; 2],
    /// The first stream is a terminal, whose end is told as an error.
    is_terminal: bool,
    log: LogWriter,
    /// When the last bytes were read.
    last_at_ms: Option<i64>,
    /// A pipe that could not be read: part of the outcome.
    read_fault: Option<String>,
    /// The sums are told: whatever somebody outside the tree still writes is not the task's.
    over: bool,
}

const STREAMS: [Stream; 2] = [Stream::Stdout, Stream::Stderr];

/// Where a command writes to: our ends.
#[derive(Debug)]
pub(crate) enum Source {
    Pipes { stdout: OwnedFd, stderr: OwnedFd },
    Terminal { master: OwnedFd },
}

impl Output {
    pub(crate) const fn new(log: LogWriter) -> Self {
        let (streams, ended) = ([None, None], [None, None]);
        Self { streams, ended, is_terminal: false, log, last_at_ms: None, read_fault: None, over: false }
    }

    pub(crate) fn read_from(&mut self, source: Source) {
        self.rest();
        (self.streams, self.is_terminal) = match source {
            Source::Pipes { stdout, stderr } => ([Some(stdout), Some(stderr)], false),
            Source::Terminal { master } => ([Some(master), None], true),
        };
    }

    /// What the command had is nobody's any more: whoever outside its tree still writes there writes to nobody.
    pub(crate) fn rest(&mut self) {
        (self.streams, self.ended) = ([None, None], [None, None]);
    }

    pub(crate) fn streams(&self) -> impl Iterator<Item = (usize, &OwnedFd)> {
        let open = self.streams.iter().filter(|_| !self.over).enumerate();
        open.filter_map(|(place, fd)| Some((place, fd.as_ref()?)))
    }

    pub(crate) fn is_open(&self, place: usize) -> bool {
        self.streams.get(place).is_some_and(Option::is_some)
    }

    /// Whether every stream has come to its end: nobody can write any more. What somebody has written since the sums were told
    /// is dropped.
    pub(crate) fn is_closed(&mut self) -> bool {
        for stream in &mut self.streams {
            let Some(fd) = stream else { continue };
            match rustix::io::read(fd, &mut [0; 1]) {
                Ok(0) | Err(rustix::io::Errno::IO) => *stream = None,
                Ok(_) | Err(_) => return false,
            }
        }
        true
    }

    pub(crate) const fn bytes(&self) -> u64 {
        self.log.bytes()
    }

    /// Reads what one stream has, and says how much.
    pub(crate) fn read(&mut self, place: usize, buffer: &mut [u8], at_ms: i64) -> usize {
        let mut bytes = 0;
        for _ in 0..READS_IN_A_ROW {
            let Some(fd) = &self.streams[place] else { break };
            match rustix::io::read(fd, &mut *buffer) {
                Ok(0) => self.ended[place] = self.streams[place].take(),
                Ok(length) => {
                    bytes += length;
                    self.last_at_ms = Some(at_ms);
                    self.log.append(STREAMS[place], at_ms, &buffer[..length]);
                }
                Err(rustix::io::Errno::AGAIN) => break,
                Err(rustix::io::Errno::INTR) => {}
                // Nobody has the terminal open any more, and what was printed has been read.
                Err(rustix::io::Errno::IO) if self.is_terminal => self.streams[place] = None,
                Err(errno) => {
                    self.streams[place] = None;
                    self.read_fault = Some(io::Error::from(errno).to_string());
                }
            }
        }
        bytes
    }

    /// Reads everything that the tree has left there. Somebody outside the tree who holds it open does not keep us, nor one
    /// who goes on writing: no more is read than was there when the tree was empty.
    pub(crate) fn drain(&mut self, buffer: &mut [u8], at_ms: i64) -> usize {
        let mut bytes = 0;
        for place in 0..self.streams.len() {
            let mut left = self.left(place);
            while left > 0 {
                let length = self.read(place, buffer, at_ms);
                bytes += length;
                left = if length == 0 { 0 } else { left.saturating_sub(length) };
            }
        }
        bytes
    }

    /// No less than what is in a stream now. A terminal does not count what is on its way through it, which is far less.
    fn left(&self, place: usize) -> usize {
        let there = self.streams[place].as_ref().and_then(|fd| rustix::io::ioctl_fionread(fd).ok());
        there.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(0).max(PIPE_BYTES)
    }

    /// Nobody waits any more: what came before and what comes belongs on disk.
    pub(crate) fn leave_memory(&mut self) {
        self.log.leave_memory();
    }

    /// Where the output lies while it is in memory.
    pub(crate) fn memory(&self) -> Option<[i32; 2]> {
        self.log.memory()
    }

    /// Nothing more will come.
    pub(crate) fn finish(&mut self) {
        self.over = true;
        self.log.finish();
    }

    pub(crate) fn info(&self) -> OutputInfo {
        let gaps = self.log.gaps().to_vec();
        let first = gaps.first().filter(|gap| gap[0] == 0).map_or(0, |gap| gap[1]);
        let on_disk = self.log.bytes() > 0 && self.log.memory().is_none();
        OutputInfo { bytes: self.log.bytes(), on_disk, gaps, first, last_at: self.last_at_ms.map(Timestamp) }
    }

    pub(crate) fn fault(&self) -> Option<CaptureFault> {
        if let Some(fault) = self.log.fault() {
            return Some(CaptureFault { message: fault.message.clone(), lost_bytes: fault.lost_bytes });
        }
        self.read_fault.clone().map(|message| CaptureFault { message, lost_bytes: 0 })
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use belay_os::{fds, pty};

    use super::*;

    fn log(dir: &std::path::Path) -> LogWriter {
        LogWriter::new(dir, 64 * 1024 * 1024, 0)
    }

    #[test]
    fn a_stream_without_an_end_is_drained_all_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let endless = OwnedFd::from(std::fs::File::open("/dev/zero").unwrap());
        let (reader, writer) = fds::pipe(0).unwrap();
        rustix::io::write(&writer, b"the other").unwrap();
        drop(writer);
        let mut output = Output::new(log(dir.path()));
        output.read_from(Source::Pipes { stdout: endless, stderr: reader });
        let bytes = output.drain(&mut vec![0; READ_BYTES], 0);
        assert!((PIPE_BYTES + 9..16 * PIPE_BYTES).contains(&bytes), "{bytes}");
        output.finish();
        assert_eq!(output.streams().count(), 0, "what comes now is not the task's");
        assert!(!output.is_closed());
        assert_eq!(output.info().bytes, bytes as u64);
    }

    #[test]
    fn a_terminal_ends_without_a_fault_when_nobody_has_it() {
        let dir = tempfile::tempdir().unwrap();
        let pty::Pty { master, slave } = pty::open(24, 80).unwrap();
        let mut output = Output::new(log(dir.path()));
        output.read_from(Source::Terminal { master });
        rustix::io::write(&slave, b"words").unwrap();
        assert_eq!(output.drain(&mut vec![0; READ_BYTES], 0), 5);
        assert!(!output.is_closed(), "somebody has it still");
        rustix::io::write(&slave, b" and more").unwrap();
        drop(slave);
        assert_eq!(output.drain(&mut vec![0; READ_BYTES], 0), 9);
        assert!(output.is_closed());
        assert_eq!(output.fault(), None);
    }
}
