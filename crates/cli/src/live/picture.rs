//! The screen of a task as it is now, made from what it printed last, for one who comes later. A terminal is imitated here;
//! what it would show is put on ours.

use std::num::NonZeroU16;
use std::panic::{AssertUnwindSafe, catch_unwind};

use belay_protocol::task::TerminalSize;

use super::modes::Modes;

/// How far back a screen is looked for. A program that has not drawn itself anew since then does when it gets our size.
pub(crate) const RECENT_BYTES: u64 = 1024 * 1024;

/// Within so much a place is looked for at which no sequence is cut in two.
const WHOLE_WITHIN: usize = 4096;

/// A terminal of the task's size that has got its recent output.
pub(crate) struct Recent {
    parser: vt100::Parser,
    modes: Modes,
    /// The first bytes may be the end of something.
    cut: bool,
}

impl Recent {
    /// `cut`: what it gets does not begin where the task began.
    pub(crate) fn new(size: TerminalSize, cut: bool) -> Self {
        Self {
            parser: vt100::Parser::new(at_least_one(size.rows), at_least_one(size.cols), 0),
            modes: Modes::default(),
            cut,
        }
    }

    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        let skipped = if std::mem::take(&mut self.cut) { whole_from(bytes) } else { 0 };
        self.modes.feed(&bytes[skipped..]);
        // It reads what any program may print: a fault of its own must not be the end of us.
        let fed = catch_unwind(AssertUnwindSafe(|| self.parser.process(&bytes[skipped..])));
        if fed.is_err() {
            self.parser = vt100::Parser::default();
        }
    }

    /// What brings a terminal of our size to the same picture, in the same modes, in the middle of the same sequence.
    pub(crate) fn picture(mut self, ours: TerminalSize) -> Vec<u8> {
        let drawn = catch_unwind(AssertUnwindSafe(|| {
            self.parser.set_size(at_least_one(ours.rows), at_least_one(ours.cols));
            let screen = self.parser.screen();
            let mut text = String::new();
            text.push_str(if self.modes.in_alternate_screen() { "\x1b[?1049h" } else { "" });
            text.push_str(&screen.contents_formatted());
            text.push_str(&self.modes.redo());
            text.push_str(&screen.attributes_formatted());
            text.push_str(&screen.cursor_state_formatted());
            text
        }));
        let mut bytes = drawn.map_or_else(|_| b"\x1b[H\x1b[2J".to_vec(), String::into_bytes);
        bytes.extend_from_slice(self.modes.open());
        bytes
    }
}

impl std::fmt::Debug for Recent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recent").field("modes", &self.modes).finish_non_exhaustive()
    }
}

fn at_least_one(number: u16) -> NonZeroU16 {
    NonZeroU16::new(number).unwrap_or(NonZeroU16::MIN)
}

/// Where in the middle of an output something begins for certain.
fn whole_from(bytes: &[u8]) -> usize {
    let near = &bytes[..bytes.len().min(WHOLE_WITHIN)];
    near.iter().position(|byte| matches!(byte, 0x1b | b'\n')).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: TerminalSize = TerminalSize { rows: 5, cols: 20 };

    fn shown_again(output: &[u8]) -> vt100::Parser {
        let mut recent = Recent::new(SIZE, false);
        recent.feed(output);
        let mut other = vt100::Parser::new(at_least_one(5), at_least_one(20), 0);
        other.process(b"what was there before\x1b[5;1Hand here");
        other.process(&recent.picture(SIZE));
        other
    }

    #[test]
    fn whoever_comes_later_sees_the_same() {
        for output in [
            b"one\r\ntwo\r\n$ ".as_slice(),
            b"\x1b[?1049h\x1b[2J\x1b[3;7H\x1b[7mhello\x1b[m\x1b[?25l\x1b[?2004h",
            b"1\r\n2\r\n3\r\n4\r\n5\r\n6\r\n7",
            "\u{20ac}\u{4e2d}\u{6587}\x1b[31mred".as_bytes(),
        ] {
            let mut first = vt100::Parser::new(at_least_one(5), at_least_one(20), 0);
            first.process(output);
            let again = shown_again(output);
            assert_eq!(again.screen().contents_formatted(), first.screen().contents_formatted());
            assert_eq!(again.screen().cursor_position(), first.screen().cursor_position());
            assert_eq!(again.screen().alternate_screen(), first.screen().alternate_screen());
            assert_eq!(again.screen().hide_cursor(), first.screen().hide_cursor());
            assert_eq!(again.screen().bracketed_paste(), first.screen().bracketed_paste());
        }
    }

    #[test]
    fn a_sequence_that_is_cut_goes_on_where_it_was() {
        let mut again = shown_again(b"ab\x1b[3");
        again.process(b"1mc\xe2\x82");
        assert_eq!(again.screen().contents(), "abc");
        assert_eq!(again.screen().cell(0, 2).unwrap().fgcolor(), vt100::Color::Idx(1));
        let mut again = shown_again(b"\xe2\x82");
        again.process(b"\xac");
        assert_eq!(again.screen().contents(), "\u{20ac}");
    }

    #[test]
    fn from_the_middle_on_nothing_begins_with_half_a_sequence() {
        let mut recent = Recent::new(SIZE, true);
        recent.feed(b"31;1mrest of it\r\nnext");
        let mut other = vt100::Parser::new(at_least_one(5), at_least_one(20), 0);
        other.process(&recent.picture(SIZE));
        assert_eq!(other.screen().contents().trim(), "next");
    }
}
