//! The task's output, two pipes or one terminal, and the log it runs into. Reading never waits.

use std::io;
use std::os::fd::OwnedFd;

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
    /// The first stream is a terminal, whose end is told as an error.
    is_terminal: bool,
    log: LogWriter,
    /// A pipe that could not be read: part of the outcome.
    read_fault: Option<String>,
}

const STREAMS: [Stream; 2] = [Stream::Stdout, Stream::Stderr];

impl Output {
    pub(crate) const fn pipes(stdout: OwnedFd, stderr: OwnedFd, log: LogWriter) -> Self {
        Self { streams: [Some(stdout), Some(stderr)], is_terminal: false, log, read_fault: None }
    }

    pub(crate) const fn terminal(master: OwnedFd, log: LogWriter) -> Self {
        Self { streams: [Some(master), None], is_terminal: true, log, read_fault: None }
    }

    pub(crate) fn streams(&self) -> impl Iterator<Item = (usize, &OwnedFd)> {
        self.streams.iter().enumerate().filter_map(|(place, fd)| Some((place, fd.as_ref()?)))
    }

    pub(crate) fn is_open(&self, place: usize) -> bool {
        self.streams.get(place).is_some_and(Option::is_some)
    }

    /// Every stream has come to its end: nobody can write any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.streams.iter().all(Option::is_none)
    }

    pub(crate) const fn bytes(&self) -> u64 {
        self.log.bytes()
    }

    /// Reads what one stream has. True if there was something.
    pub(crate) fn read(&mut self, place: usize, buffer: &mut [u8], at_ms: i64) -> bool {
        let mut any = false;
        for _ in 0..READS_IN_A_ROW {
            let Some(fd) = &self.streams[place] else { break };
            match rustix::io::read(fd, &mut *buffer) {
                Ok(0) => self.streams[place] = None,
                Ok(length) => {
                    any = true;
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
        any
    }

    /// Reads everything that is still there. A pipe or terminal that somebody outside the tree holds open does not keep us.
    pub(crate) fn drain(&mut self, buffer: &mut [u8], at_ms: i64) -> bool {
        let mut any = false;
        for place in 0..self.streams.len() {
            while self.read(place, buffer, at_ms) {
                any = true;
            }
        }
        any
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
        self.log.finish();
    }

    pub(crate) fn info(&self) -> OutputInfo {
        let gaps = self.log.gaps().to_vec();
        let first = gaps.first().filter(|gap| gap[0] == 0).map_or(0, |gap| gap[1]);
        let on_disk = self.log.bytes() > 0 && self.log.memory().is_none();
        OutputInfo { bytes: self.log.bytes(), on_disk, gaps, first }
    }

    pub(crate) fn fault(&self) -> Option<CaptureFault> {
        if let Some(fault) = self.log.fault() {
            return Some(CaptureFault { message: fault.message.clone(), lost_bytes: fault.lost_bytes });
        }
        self.read_fault.clone().map(|message| CaptureFault { message, lost_bytes: 0 })
    }
}
