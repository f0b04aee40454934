//! Cutting the bytes that arrive into lines, one message each. It reads no socket and knows nothing of JSON.

/// The longest line that is accepted: far above anything a daemon sends, so that only a broken one reaches it.
pub(crate) const MAX_LINE_BYTES: usize = 256 * 1024 * 1024;

/// How much is asked for in one read.
const READ_BYTES: usize = 128 * 1024;

/// Bytes that have arrived and have not been taken as lines.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    buffer: Vec<u8>,
    /// Where the first line that was not taken begins.
    start: usize,
    /// Up to here there is no line end after `start`.
    scanned: usize,
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

    /// Room for the next read, behind the bytes that wait. None: a line is longer than any line may be.
    pub(crate) fn room(&mut self) -> Option<&mut Vec<u8>> {
        self.compact();
        if self.buffer.len() >= MAX_LINE_BYTES {
            return None;
        }
        self.buffer.reserve(READ_BYTES);
        Some(&mut self.buffer)
    }

    /// Drops everything: the rest of a connection that is lost.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Drops the lines that were taken, so that the buffer holds only those that wait.
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
    use proptest::prelude::*;

    use super::Lines;

    proptest! {
        #[test]
        fn lines_are_independent_of_read_boundaries(
            lines in prop::collection::vec("[^\n]{0,40}", 0..20),
            cuts in prop::collection::vec(1_usize..30, 1..20),
        ) {
            let text: Vec<u8> = lines.iter().flat_map(|line| format!("{line}\n").into_bytes()).collect();
            let mut reader = Lines::default();
            let mut seen = Vec::new();
            let mut rest = text.as_slice();
            for cut in cuts.iter().cycle() {
                let (now, later) = rest.split_at((*cut).min(rest.len()));
                if now.is_empty() { break; }
                reader.room().unwrap().extend_from_slice(now);
                rest = later;
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
