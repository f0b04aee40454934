//! Assembles the lines of a log, separately for each stream. Patterns, context and pages are not
//! handled here.

use std::io;
use std::ops::ControlFlow;

use belay_record::{LogReader, Piece, Stream};

/// How many bytes of a UTF-8 character can follow its first byte: a long line is not cut inside a
/// character.
const CHARACTER_REST: usize = 3;

/// A position between two lines from which a search can continue. A line is located by its end, so
/// every line of a log is on one side of the position, including lines that are unfinished there.
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
    /// The position directly after the line.
    pub(super) behind: Place,
}

/// The unfinished line of each stream.
#[derive(Debug)]
pub(super) struct Lines {
    held: [Option<Held>; 2],
    /// A longer line is emitted in parts.
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
    /// Restores the unfinished lines at a position. Only their bytes are read, however far back
    /// they begin.
    pub(super) fn at(place: Place, log: &LogReader, line_bytes: usize) -> io::Result<Self> {
        let mut held = [None, None];
        for stream in STREAMS {
            if let Some(offset) = place.open[side(stream)] {
                held[side(stream)] = read_held(log, stream, offset, place.at, line_bytes)?;
            }
        }
        Ok(Self { held, line_bytes })
    }

    /// The position after everything before `at`.
    pub(super) fn place(&self, at: u64) -> Place {
        Place { at, open: self.held.each_ref().map(|held| held.as_ref().map(|held| held.offset)) }
    }

    /// Adds the next piece of the log, and emits each line that ends within it.
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

    /// Ends the unfinished lines, because no bytes follow. The line that began first is emitted
    /// first.
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

    /// Returns how much of `rest` belongs to the line, and whether the line ends there.
    fn step(&mut self, stream: Stream, at: u64, rest: &[u8]) -> (usize, bool) {
        let held = self.held[side(stream)].get_or_insert_with(|| Held { offset: at, text: Vec::new() });
        let room = self.line_bytes.saturating_sub(held.text.len());
        if room == 0 {
            // Only the next byte shows whether the line is complete: a cut before that byte could
            // leave an empty line in front of its newline.
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

/// Reads the part of an unfinished line that is before `to`.
fn read_held(
    log: &LogReader,
    stream: Stream,
    offset: u64,
    to: u64,
    line_bytes: usize,
) -> io::Result<Option<Held>> {
    let slice = log.read(offset, line_bytes + CHARACTER_REST, Some(stream))?;
    // If the beginning of the line was removed meanwhile, the line begins after the gap.
    let from = slice.gaps.iter().map(|gap| gap[1]).filter(|end| *end <= to).max().unwrap_or(offset);
    let mut held: Option<Held> = None;
    for mut piece in slice.pieces.into_iter().filter(|piece| (from..to).contains(&piece.offset)) {
        piece.data.truncate(usize::try_from(to - piece.offset).unwrap_or(usize::MAX));
        let held = held.get_or_insert_with(|| Held { offset: piece.offset, text: Vec::new() });
        held.text.append(&mut piece.data);
    }
    Ok(held)
}
