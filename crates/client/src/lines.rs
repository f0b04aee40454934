//! Cutting what arrives on a socket into lines. It knows nothing of JSON.

use std::os::fd::AsFd;

use rustix::buffer::spare_capacity;
use rustix::io::Errno;

/// The longest line that is taken from a daemon: far above anything it sends, so that only a broken one meets it.
pub(crate) const MAX_LINE_BYTES: usize = 256 * 1024 * 1024;

/// How much is asked for in one read.
const READ_BYTES: usize = 128 * 1024;

/// What has been read and not yet been taken.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    buffer: Vec<u8>,
    /// Where the first line that was not taken begins.
    start: usize,
    /// Up to here there is no line end after `start`.
    scanned: usize,
}

/// What one read did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filled {
    Some,
    /// The other side is gone.
    End,
    /// A line is longer than any line may be.
    TooLong,
}

impl Lines {
    /// Whether a whole line is there.
    pub(crate) fn has_line(&self) -> bool {
        memchr::memchr(b'\n', &self.buffer[self.scanned..]).is_some()
    }

    /// The next whole line, without its end, which stays where it is.
    pub(crate) fn peek_line(&mut self) -> Option<&[u8]> {
        let Some(found) = memchr::memchr(b'\n', &self.buffer[self.scanned..]) else {
            self.scanned = self.buffer.len();
            return None;
        };
        self.scanned += found;
        Some(&self.buffer[self.start..self.scanned])
    }

    /// The next whole line, without its end.
    pub(crate) fn next_line(&mut self) -> Option<&[u8]> {
        let length = self.peek_line()?.len();
        let line = self.start..self.start + length;
        self.start = line.end + 1;
        self.scanned = self.start;
        Some(&self.buffer[line])
    }

    /// One read, which waits if there is nothing.
    pub(crate) fn fill(&mut self, from: impl AsFd) -> Result<Filled, Errno> {
        self.compact();
        if self.buffer.len() >= MAX_LINE_BYTES {
            return Ok(Filled::TooLong);
        }
        self.buffer.reserve(READ_BYTES);
        loop {
            match rustix::io::read(from.as_fd(), spare_capacity(&mut self.buffer)) {
                Ok(0) => return Ok(Filled::End),
                Ok(_) => return Ok(Filled::Some),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Drops what was taken, so that the buffer holds no more than the lines that wait.
    fn compact(&mut self) {
        if self.start == 0 {
            return;
        }
        self.buffer.drain(..self.start);
        self.scanned -= self.start;
        self.start = 0;
        if self.buffer.is_empty() && self.buffer.capacity() > 8 * READ_BYTES {
            self.buffer = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;

    use proptest::prelude::*;

    use super::{Filled, Lines};

    proptest! {
        #[test]
        fn lines_come_out_as_they_went_in_however_they_were_cut(
            lines in prop::collection::vec("[^\n]{0,40}", 0..20),
            cuts in prop::collection::vec(1_usize..30, 1..20),
        ) {
            let text: Vec<u8> = lines.iter().flat_map(|line| format!("{line}\n").into_bytes()).collect();
            let (mut near, far) = UnixStream::pair().unwrap();
            let mut reader = Lines::default();
            let mut seen = Vec::new();
            let mut rest = text.as_slice();
            for cut in cuts.iter().cycle() {
                let (now, later) = rest.split_at((*cut).min(rest.len()));
                if now.is_empty() { break; }
                near.write_all(now).unwrap();
                rest = later;
                prop_assert_eq!(reader.fill(&far).unwrap(), Filled::Some);
                let ready = reader.has_line();
                let before = seen.len();
                while let Some(line) = reader.next_line() {
                    seen.push(String::from_utf8(line.to_vec()).unwrap());
                }
                prop_assert_eq!(ready, seen.len() > before);
            }
            prop_assert_eq!(seen, lines);
        }
    }
}
