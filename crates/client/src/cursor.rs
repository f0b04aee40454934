//! Positions in the output of a task: output that arrives twice after a reconnect is passed on once, in order, with gaps in
//! their places. It reads nothing.

use belay_protocol::output::OutputChunk;

/// A stretch of output: bytes, or a gap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputPiece {
    /// Bytes of one stream.
    Chunk(OutputChunk),
    /// Bytes that were not kept.
    Gap {
        /// The first offset that is missing.
        from: u64,
        /// The first offset behind the gap.
        to: u64,
    },
}

/// A position in the output of one task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputCursor {
    next: u64,
}

impl OutputCursor {
    /// A cursor at an absolute offset.
    pub const fn at(next: u64) -> Self {
        Self { next }
    }

    /// The first offset that has not been passed on.
    pub const fn next(self) -> u64 {
        self.next
    }

    /// Returns the new part of a read or a notification, in order. The cursor moves to `next` and never back.
    pub fn take(&mut self, chunks: Vec<OutputChunk>, gaps: &[[u64; 2]], next: u64) -> Vec<OutputPiece> {
        let seen = self.next;
        let chunks = chunks.into_iter().filter_map(|chunk| unseen(chunk, seen)).map(OutputPiece::Chunk);
        let gaps = gaps.iter().filter(|gap| gap[1] > seen);
        let gaps = gaps.map(|gap| OutputPiece::Gap { from: gap[0].max(seen), to: gap[1] });
        let mut pieces: Vec<OutputPiece> = chunks.chain(gaps).collect();
        pieces.sort_by_key(OutputPiece::offset);
        let end = pieces.iter().map(OutputPiece::end).max().unwrap_or(0);
        self.next = seen.max(next).max(end);
        pieces
    }
}

impl OutputPiece {
    /// Its first offset.
    pub const fn offset(&self) -> u64 {
        match self {
            Self::Chunk(chunk) => chunk.offset,
            Self::Gap { from, .. } => *from,
        }
    }

    /// The first offset behind it.
    pub fn end(&self) -> u64 {
        match self {
            Self::Chunk(chunk) => chunk.end(),
            Self::Gap { to, .. } => *to,
        }
    }
}

/// The part of a chunk at or after this offset.
fn unseen(mut chunk: OutputChunk, seen: u64) -> Option<OutputChunk> {
    let known = seen.saturating_sub(chunk.offset);
    if known == 0 {
        return Some(chunk);
    }
    if known >= chunk.bytes {
        return None;
    }
    // Text is passed on whole: a subscription goes on at the beginning of a chunk.
    if chunk.text.is_none() {
        chunk.data.0.drain(..usize::try_from(known).unwrap_or(usize::MAX));
        (chunk.offset, chunk.bytes) = (chunk.offset + known, chunk.bytes - known);
    }
    Some(chunk)
}

#[cfg(test)]
mod tests {
    use belay_protocol::Timestamp;
    use belay_protocol::output::StreamName;
    use proptest::prelude::*;

    use super::*;

    fn chunk(offset: u64, text: &str) -> OutputChunk {
        OutputChunk::of_bytes(StreamName::Stdout, offset, Timestamp(0), text.as_bytes().to_vec())
    }

    #[test]
    fn repeated_bytes_are_dropped() {
        let mut cursor = OutputCursor::default();
        assert_eq!(cursor.take(vec![chunk(0, "hello")], &[], 5), [OutputPiece::Chunk(chunk(0, "hello"))]);
        assert_eq!(cursor.take(vec![chunk(3, "lo wor")], &[], 9), [OutputPiece::Chunk(chunk(5, " wor"))]);
        assert_eq!(cursor.take(vec![chunk(0, "hello")], &[], 5), []);
        assert_eq!(cursor.next(), 9);
    }

    #[test]
    fn gaps_are_returned_in_order() {
        let mut cursor = OutputCursor::at(2);
        let pieces = cursor.take(vec![chunk(10, "x")], &[[0, 10], [11, 20]], 20);
        assert_eq!(
            pieces,
            [
                OutputPiece::Gap { from: 2, to: 10 },
                OutputPiece::Chunk(chunk(10, "x")),
                OutputPiece::Gap { from: 11, to: 20 }
            ]
        );
    }

    proptest! {
        /// However often and from whichever offset it is sent again, every byte is returned once and in order.
        #[test]
        fn resent_output_is_returned_exactly_once(
            text in "[a-z]{1,60}",
            resends in prop::collection::vec((0_usize..60, 1_usize..20), 0..20),
        ) {
            let mut cursor = OutputCursor::default();
            let mut shown = String::new();
            let whole = [(0, text.len())];
            for (back, length) in resends.iter().chain(&whole) {
                // A sender begins at or before the position of the reader.
                let reached = usize::try_from(cursor.next()).unwrap();
                let from = reached.saturating_sub(*back);
                let to = (from + length).min(text.len());
                let sent = chunk(u64::try_from(from).unwrap(), &text[from..to]);
                for piece in cursor.take(vec![sent], &[], u64::try_from(to).unwrap()) {
                    if let OutputPiece::Chunk(chunk) = piece { shown.push_str(&String::from_utf8_lossy(&chunk.data.0)); }
                }
                prop_assert_eq!(&shown, &text[..shown.len()]);
            }
            let rest = chunk(0, &text);
            for piece in cursor.take(vec![rest], &[], u64::try_from(text.len()).unwrap()) {
                if let OutputPiece::Chunk(chunk) = piece { shown.push_str(&String::from_utf8_lossy(&chunk.data.0)); }
            }
            prop_assert_eq!(shown, text);
        }
    }
}
