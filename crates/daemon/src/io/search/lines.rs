//! Puts the lines of a log together again, stream by stream. It knows nothing of patterns, context or pages.

use std::io;
use std::ops::ControlFlow;

use belay_record::{LogReader, Piece, Stream};

/// What a character of UTF-8 can have left when a line that is too long is cut.
const CHARACTER_REST: usize = 3;

/// A point between two lines: all that is needed to go on from there. A line belongs to where it ends, so every line of
/// a log lies on one side of it, also those that are not finished there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) at: u64,
    /// Where the unfinished line of each stream begins.
    pub(super) open: [Option<u64>; 2],
}

/// A line without its newline.
#[derive(Debug)]
pub(super) struct Whole {
    pub(super) stream: Stream,
    pub(super) offset: u64,
    pub(super) text: Vec<u8>,
    /// Right behind it.
    pub(super) behind: Place,
}

/// The lines that are not finished yet, one of each stream.
#[derive(Debug)]
pub(super) struct Lines {
    held: [Option<Held>; 2],
    /// What is longer is handed on in parts.
    line_bytes: usize,
}

#[derive(Debug)]
struct Held {
    offset: u64,
    text: Vec<u8>,
}

const STREAMS: [Stream; 2] = [Stream::Stdout, Stream::Stderr];

const fn side(stream: Stream) -> usize {
    match stream {
        Stream::Stdout => 0,
        Stream::Stderr => 1,
    }
}

impl Lines {
    /// As they were at this place. Only the bytes of the unfinished lines are read, however far back they begin.
    pub(super) fn at(place: Place, log: &LogReader, line_bytes: usize) -> io::Result<Self> {
        let mut held = [None, None];
        for stream in STREAMS {
            if let Some(offset) = place.open[side(stream)] {
                held[side(stream)] = read_held(log, stream, offset, place.at, line_bytes)?;
            }
        }
        Ok(Self { held, line_bytes })
    }

    /// Where these lines are, having seen everything before `at`.
    pub(super) fn place(&self, at: u64) -> Place {
        Place { at, open: self.held.each_ref().map(|held| held.as_ref().map(|held| held.offset)) }
    }

    /// Takes what comes next, and hands on each line that ends within it.
    pub(super) fn take(
        &mut self,
        piece: &Piece,
        mut each: impl FnMut(Whole) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut rest = piece.data.as_slice();
        let mut at = piece.offset;
        while !rest.is_empty() {
            let (taken, is_end) = self.step(piece.stream, at, rest);
            rest = &rest[taken..];
            at += taken as u64;
            if is_end && let Some(whole) = self.end(piece.stream, at) {
                each(whole)?;
            }
        }
        ControlFlow::Continue(())
    }

    /// Ends what is not finished, because nothing follows it here. Whichever began first is first.
    pub(super) fn cut(&mut self, at: u64, mut each: impl FnMut(Whole) -> ControlFlow<()>) -> ControlFlow<()> {
        let mut streams = STREAMS;
        streams.sort_by_key(|stream| self.held[side(*stream)].as_ref().map(|held| held.offset));
        for stream in streams {
            if let Some(whole) = self.end(stream, at) {
                each(whole)?;
            }
        }
        ControlFlow::Continue(())
    }

    /// How much of `rest` belongs to the line, and whether the line ends there.
    fn step(&mut self, stream: Stream, at: u64, rest: &[u8]) -> (usize, bool) {
        let held = self.held[side(stream)].get_or_insert_with(|| Held { offset: at, text: Vec::new() });
        let room = self.line_bytes.saturating_sub(held.text.len());
        if room == 0 {
            // Whether this is a part or all of the line is known with the byte that follows, not before: what is cut
            // at once would leave an empty line in front of its newline.
            return match rest[0] {
                b'\n' => (1, true),
                byte @ 0x80..=0xbf if held.text.len() < self.line_bytes + CHARACTER_REST => {
                    held.text.push(byte);
                    (1, false)
                }
                _ => (0, true),
            };
        }
        let window = &rest[..rest.len().min(room)];
        let newline = window.iter().position(|byte| *byte == b'\n');
        held.text.extend_from_slice(&window[..newline.unwrap_or(window.len())]);
        newline.map_or((window.len(), false), |place| (place + 1, true))
    }

    fn end(&mut self, stream: Stream, at: u64) -> Option<Whole> {
        let Held { offset, text } = self.held[side(stream)].take()?;
        Some(Whole { stream, offset, text, behind: self.place(at) })
    }
}

/// What of an unfinished line lies before `to`.
fn read_held(
    log: &LogReader,
    stream: Stream,
    offset: u64,
    to: u64,
    line_bytes: usize,
) -> io::Result<Option<Held>> {
    let slice = log.read(offset, line_bytes + CHARACTER_REST, Some(stream))?;
    // What was not kept meanwhile took the head of the line with it.
    let from = slice.gaps.iter().map(|gap| gap[1]).filter(|end| *end <= to).max().unwrap_or(offset);
    let mut held: Option<Held> = None;
    for mut piece in slice.pieces.into_iter().filter(|piece| (from..to).contains(&piece.offset)) {
        piece.data.truncate(usize::try_from(to - piece.offset).unwrap_or(usize::MAX));
        let held = held.get_or_insert_with(|| Held { offset: piece.offset, text: Vec::new() });
        held.text.append(&mut piece.data);
    }
    Ok(held)
}
