//! How far a reader of output has come. Whatever arrives twice after a reconnect is handed on once, in order, with
//! the gaps where they belong.

use belay_protocol::Bytes;
use belay_protocol::output::OutputChunk;

/// One thing to show.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Chunk(OutputChunk),
    /// Bytes from here to there were not kept.
    Gap(u64, u64),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    /// The next absolute offset.
    pub(crate) next: u64,
}

impl Cursor {
    pub(crate) const fn at(next: u64) -> Self {
        Self { next }
    }

    /// What is new in a read or a notification. The cursor moves to `next`, and never back.
    pub(crate) fn take(&mut self, chunks: Vec<OutputChunk>, gaps: &[[u64; 2]], next: u64) -> Vec<Piece> {
        let seen = self.next;
        let chunks = chunks.into_iter().filter_map(|chunk| unseen(chunk, seen)).map(Piece::Chunk);
        let gaps = gaps.iter().filter(|gap| gap[1] > seen).map(|gap| Piece::Gap(gap[0].max(seen), gap[1]));
        let mut pieces: Vec<Piece> = chunks.chain(gaps).collect();
        pieces.sort_by_key(Piece::offset);
        let end = pieces.iter().map(Piece::end).max().unwrap_or(0);
        self.next = seen.max(next).max(end);
        pieces
    }
}

impl Piece {
    const fn offset(&self) -> u64 {
        match self {
            Self::Chunk(chunk) => chunk.offset,
            Self::Gap(from, _) => *from,
        }
    }

    fn end(&self) -> u64 {
        match self {
            Self::Chunk(chunk) => chunk.offset + length(&chunk.data),
            Self::Gap(_, to) => *to,
        }
    }
}

/// The part of a chunk that lies at or after this offset.
fn unseen(mut chunk: OutputChunk, seen: u64) -> Option<OutputChunk> {
    let known = seen.saturating_sub(chunk.offset);
    if known == 0 {
        return Some(chunk);
    }
    if known >= length(&chunk.data) {
        return None;
    }
    chunk.data.0.drain(..usize::try_from(known).unwrap_or(usize::MAX));
    chunk.offset += known;
    Some(chunk)
}

fn length(bytes: &Bytes) -> u64 {
    u64::try_from(bytes.0.len()).unwrap_or(u64::MAX)
}

/// How a gap is told.
pub(crate) fn gap_text(from: u64, to: u64) -> String {
    format!("[… {} bytes not kept: offsets {from}–{to} …]", to.saturating_sub(from))
}

#[cfg(test)]
mod tests {
    use belay_protocol::Timestamp;
    use belay_protocol::output::StreamName;
    use proptest::prelude::*;

    use super::*;

    fn chunk(offset: u64, text: &str) -> OutputChunk {
        OutputChunk { stream: StreamName::Stdout, offset, at: Timestamp(0), data: text.into() }
    }

    #[test]
    fn what_was_seen_is_not_shown_again() {
        let mut cursor = Cursor::default();
        assert_eq!(cursor.take(vec![chunk(0, "hello")], &[], 5), [Piece::Chunk(chunk(0, "hello"))]);
        assert_eq!(cursor.take(vec![chunk(3, "lo wor")], &[], 9), [Piece::Chunk(chunk(5, " wor"))]);
        assert_eq!(cursor.take(vec![chunk(0, "hello")], &[], 5), []);
        assert_eq!(cursor.next, 9);
    }

    #[test]
    fn gaps_stand_where_they_belong() {
        let mut cursor = Cursor::at(2);
        let pieces = cursor.take(vec![chunk(10, "x")], &[[0, 10], [11, 20]], 20);
        assert_eq!(pieces, [Piece::Gap(2, 10), Piece::Chunk(chunk(10, "x")), Piece::Gap(11, 20)]);
        assert_eq!(gap_text(100, 4196), "[… 4096 bytes not kept: offsets 100–4196 …]");
    }

    proptest! {
        /// However often and from wherever it is sent again, every byte comes out once and in order.
        #[test]
        fn no_byte_is_lost_and_none_comes_twice(
            text in "[a-z]{1,60}",
            resends in prop::collection::vec((0_usize..60, 1_usize..20), 0..20),
        ) {
            let mut cursor = Cursor::default();
            let mut shown = String::new();
            let whole = [(0, text.len())];
            for (back, length) in resends.iter().chain(&whole) {
                // A sender begins at or before what the reader has.
                let reached = usize::try_from(cursor.next).unwrap();
                let from = reached.saturating_sub(*back);
                let to = (from + length).min(text.len());
                let sent = chunk(u64::try_from(from).unwrap(), &text[from..to]);
                for piece in cursor.take(vec![sent], &[], u64::try_from(to).unwrap()) {
                    if let Piece::Chunk(chunk) = piece { shown.push_str(&chunk.data.to_text_lossy()); }
                }
                prop_assert_eq!(&shown, &text[..shown.len()]);
            }
            let rest = chunk(0, &text);
            for piece in cursor.take(vec![rest], &[], u64::try_from(text.len()).unwrap()) {
                if let Piece::Chunk(chunk) = piece { shown.push_str(&chunk.data.to_text_lossy()); }
            }
            prop_assert_eq!(shown, text);
        }
    }
}
