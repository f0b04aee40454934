//! What a program has changed about a terminal, read from what it prints: to be undone when we leave, and done again where
//! somebody else looks on. It follows the stream, however that is cut into pieces, and changes nothing in it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// A sequence that is longer is no longer followed; of a string only its beginning is kept.
const MAX_SEQUENCE_BYTES: usize = 256;

/// Terminals keep no more either.
const MAX_KEYBOARDS: usize = 8;

/// The private modes that outlive their program and disturb the next one: keys, mouse, pasting, focus, colours, wrapping.
const MODES: &[u16] = &[
    1, 5, 6, 7, 9, 25, 66, 1000, 1001, 1002, 1003, 1004, 1005, 1006, 1007, 1015, 1016, 2004, 2026, 2031, 2048,
];
/// Of those, the ones that are on by themselves.
const USUALLY_ON: &[u16] = &[7, 25];
/// Three ways to the other screen.
const ALTERNATE: &[u16] = &[47, 1047, 1049];

#[derive(Clone, Debug, Default)]
pub(super) struct Modes {
    /// The ones that are not as they are by themselves.
    changed: BTreeMap<u16, bool>,
    alternate: Option<u16>,
    keypad: bool,
    /// `rows;rows`, between which the screen scrolls.
    region: Option<String>,
    cursor_style: Option<String>,
    /// The sets of flags that lie on the keyboard's stack.
    keyboard: Vec<String>,
    other_keys: Option<String>,
    stage: Stage,
    /// What has come of a sequence or a character that is not whole yet.
    open: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Text,
    /// Some bytes of a character are still to come.
    Character(u8),
    Escape,
    Control,
    /// A title, a link, a picture: until its terminator.
    String,
    StringEscape,
}

impl Modes {
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.stage = self.next(byte);
            if self.stage == Stage::Text {
                self.open.clear();
            } else if self.open.len() < MAX_SEQUENCE_BYTES {
                self.open.push(byte);
            }
        }
    }

    fn next(&mut self, byte: u8) -> Stage {
        match (self.stage, byte) {
            (Stage::String, 0x07) | (Stage::StringEscape, b'\\') | (_, 0x18 | 0x1a) => Stage::Text,
            (Stage::String, 0x1b) => Stage::StringEscape,
            (Stage::String | Stage::StringEscape, _) | (Stage::Escape, b']' | b'P' | b'_' | b'^' | b'X') => {
                Stage::String
            }
            (_, 0x1b) => {
                self.open.clear();
                Stage::Escape
            }
            (Stage::Escape, b'[') => Stage::Control,
            (Stage::Escape, 0x20..=0x2f) => Stage::Escape,
            (Stage::Escape, _) => {
                self.escape(byte);
                Stage::Text
            }
            (Stage::Control, 0x40..=0x7e) => {
                let sequence = std::mem::take(&mut self.open);
                self.control(sequence.get(2..).unwrap_or_default(), byte);
                Stage::Text
            }
            (Stage::Control, _) => Stage::Control,
            (Stage::Character(left @ 2..), 0x80..=0xbf) => Stage::Character(left - 1),
            (_, 0xc2..=0xdf) => self.character(1),
            (_, 0xe0..=0xef) => self.character(2),
            (_, 0xf0..=0xf4) => self.character(3),
            (Stage::Text | Stage::Character(_), _) => Stage::Text,
        }
    }

    fn character(&mut self, left: u8) -> Stage {
        self.open.clear();
        Stage::Character(left)
    }

    fn escape(&mut self, last: u8) {
        match last {
            // With something between, it names a set of characters.
            _ if self.open.len() > 1 => {}
            b'=' => self.keypad = true,
            b'>' => self.keypad = false,
            b'c' => *self = Self::default(),
            _ => {}
        }
    }

    fn control(&mut self, parameters: &[u8], last: u8) {
        let Ok(text) = std::str::from_utf8(parameters) else { return };
        match (text.as_bytes().first(), last) {
            (Some(b'?'), b'h') => self.private(&text[1..], true),
            (Some(b'?'), b'l') => self.private(&text[1..], false),
            (Some(b'>'), b'u') if self.keyboard.len() < MAX_KEYBOARDS => self.keyboard.push(text.to_owned()),
            (Some(b'<'), b'u') => {
                let many = text[1..].parse().unwrap_or(1);
                self.keyboard.truncate(self.keyboard.len().saturating_sub(many));
            }
            (Some(b'>'), b'm') if text.starts_with(">4") => {
                self.other_keys =
                    Some(text.to_owned()).filter(|text| !matches!(text.as_str(), ">4" | ">4;0"));
            }
            (Some(b'!'), b'p') => {
                (self.region, self.keypad) = (None, false);
                self.changed.retain(|mode, _| ![1, 6, 7, 25].contains(mode));
            }
            (first, b'r') if first.is_none_or(u8::is_ascii_digit) => {
                self.region = Some(text.to_owned()).filter(|text| !text.is_empty());
            }
            (_, b'q') if text.ends_with(' ') => {
                self.cursor_style = Some(text.to_owned()).filter(|text| !matches!(text.as_str(), " " | "0 "));
            }
            _ => {}
        }
    }

    fn private(&mut self, list: &str, on: bool) {
        for mode in list.split(';').filter_map(|word| word.parse::<u16>().ok()) {
            if ALTERNATE.contains(&mode) {
                self.alternate = on.then_some(mode);
            } else if MODES.contains(&mode) {
                if on == USUALLY_ON.contains(&mode) {
                    self.changed.remove(&mode);
                } else {
                    self.changed.insert(mode, on);
                }
            }
        }
    }

    pub(super) const fn in_alternate_screen(&self) -> bool {
        self.alternate.is_some()
    }

    /// What puts a terminal back that has got all of it.
    pub(super) fn undo(&self) -> Vec<u8> {
        let mut text = String::new();
        if self.stage != Stage::Text {
            // Ends whatever sequence is open.
            text.push('\x18');
        }
        text.push_str("\x1b[m\x1b(B");
        if !self.keyboard.is_empty() {
            let _ = write!(text, "\x1b[<{}u", self.keyboard.len());
        }
        for (mode, on) in &self.changed {
            let _ = write!(text, "\x1b[?{mode}{}", if *on { 'l' } else { 'h' });
        }
        text.push_str(if self.keypad { "\x1b>" } else { "" });
        text.push_str(if self.other_keys.is_some() { "\x1b[>4m" } else { "" });
        text.push_str(if self.cursor_style.is_some() { "\x1b[0 q" } else { "" });
        match (&self.region, self.alternate) {
            // To change it moves the cursor.
            (Some(_), None) => text.push_str("\x1b7\x1b[r\x1b8"),
            (Some(_), Some(_)) => text.push_str("\x1b[r"),
            (None, _) => {}
        }
        if let Some(mode) = self.alternate {
            let _ = write!(text, "\x1b[?{mode}l");
        }
        text.into_bytes()
    }

    /// What brings a terminal to the same, but for what is on the screen and where.
    pub(super) fn redo(&self) -> String {
        let mut text = String::new();
        for (mode, on) in &self.changed {
            let _ = write!(text, "\x1b[?{mode}{}", if *on { 'h' } else { 'l' });
        }
        text.push_str(if self.keypad { "\x1b=" } else { "" });
        for (parameters, last) in [(&self.other_keys, 'm'), (&self.cursor_style, 'q')] {
            let _ = parameters.as_ref().map(|parameters| write!(text, "\x1b[{parameters}{last}"));
        }
        for flags in &self.keyboard {
            let _ = write!(text, "\x1b[{flags}u");
        }
        if let Some(region) = &self.region {
            let _ = write!(text, "\x1b[{region}r");
        }
        text
    }

    /// The beginning of what is not whole yet: whoever goes on here needs it.
    pub(super) fn open(&self) -> &[u8] {
        &self.open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(pieces: &[&[u8]]) -> Modes {
        let mut modes = Modes::default();
        for piece in pieces {
            modes.feed(piece);
        }
        modes
    }

    fn undone(pieces: &[&[u8]]) -> String {
        String::from_utf8(after(pieces).undo()).unwrap()
    }

    const PLAIN: &str = "\x1b[m\x1b(B";

    #[test]
    fn what_was_switched_on_is_switched_off_again() {
        assert_eq!(undone(&[b"plain \xe2\x82\xac text\r\n\x1b[31m"]), PLAIN);
        assert_eq!(undone(&[b"\x1b[?1049h\x1b[?25l\x1b[2J"]), format!("{PLAIN}\x1b[?25h\x1b[?1049l"));
        assert_eq!(undone(&[b"\x1b[?1049h\x1b[?2004h\x1b[?1049l\x1b[?2004l"]), PLAIN);
        assert_eq!(undone(&[b"\x1b[?1000;1006h"]), format!("{PLAIN}\x1b[?1000l\x1b[?1006l"));
        assert_eq!(undone(&[b"\x1b[2;10r"]), format!("{PLAIN}\x1b7\x1b[r\x1b8"));
        assert_eq!(
            undone(&[b"\x1b[>1u\x1b[>4;2m\x1b[5 q\x1b="]),
            format!("{PLAIN}\x1b[<1u\x1b>\x1b[>4m\x1b[0 q")
        );
        assert_eq!(undone(&[b"\x1b[?2l\x1b[?1048h"]), PLAIN, "what would do harm is left alone");
        assert_eq!(undone(&[b"\x1b[?1049h\x1bc"]), PLAIN);
    }

    #[test]
    fn what_is_done_again_is_undone_the_same() {
        let output = b"\x1b[?2004h\x1b[?25l\x1b[>1u\x1b[>4;2m\x1b[5 q\x1b=\x1b[3;9r";
        let first = after(&[output]);
        assert_eq!(undone(&[first.redo().as_bytes()]).into_bytes(), first.undo());
    }

    #[test]
    fn strings_hide_what_is_in_them_and_pieces_make_no_difference() {
        assert_eq!(undone(&[b"\x1b]0;\x1b[?25l\x07"]), undone(&[b""]));
        assert_eq!(undone(&[b"\x1b", b"[?", b"25", b"l"]), undone(&[b"\x1b[?25l"]));
        assert_eq!(after(&[b"abc\x1b[3"]).open(), b"\x1b[3");
        assert_eq!(after(&[b"abc\xe2\x82"]).open(), b"\xe2\x82");
        assert_eq!(after(&[b"abc\xe2\x82\xac"]).open(), b"");
        assert_eq!(after(&[b"\x1b]0;title"]).open(), b"\x1b]0;title");
        assert_eq!(after(&[b"\x1b(", b"Bx"]).open(), b"");
    }
}
