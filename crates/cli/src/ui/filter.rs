//! Output of a command on its way to a terminal: colours go through, everything that could move, erase, retitle or
//! answer does not. It works on a stream, however that is cut into pieces.

use super::text::{is_active, picture};

/// A colour sequence is shorter than this; what is longer is no colour.
const MAX_SEQUENCE_BYTES: usize = 64;

/// The filter of one stream, with the beginning of what has not arrived whole yet.
#[derive(Debug, Default)]
pub(crate) struct Filter {
    held: Vec<u8>,
    coloured: bool,
}

/// What stands at the front of the bytes at hand.
enum Front {
    /// So many bytes may go through as they are.
    Pass(usize),
    /// A colour sequence of so many bytes.
    Colour(usize),
    /// So many bytes are shown as this instead.
    Show(char, usize),
    /// It cannot be told before more is there.
    Partial,
}

impl Filter {
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.held.extend_from_slice(bytes);
        let held = std::mem::take(&mut self.held);
        let mut shown = Vec::with_capacity(held.len());
        let rest = self.run(&held, false, &mut shown);
        self.held = held[held.len() - rest..].to_vec();
        shown
    }

    /// The end of the stream: what was held back, and the terminal's own colours again.
    pub(crate) fn finish(&mut self) -> Vec<u8> {
        let held = std::mem::take(&mut self.held);
        let mut shown = Vec::new();
        self.run(&held, true, &mut shown);
        if std::mem::take(&mut self.coloured) {
            shown.extend_from_slice(b"\x1b[0m");
        }
        shown
    }

    /// Shows what can be shown; returns how many bytes are left.
    fn run(&mut self, mut bytes: &[u8], last: bool, shown: &mut Vec<u8>) -> usize {
        while !bytes.is_empty() {
            let taken = match front(bytes) {
                Front::Pass(length) => {
                    shown.extend_from_slice(&bytes[..length]);
                    length
                }
                Front::Colour(length) => {
                    self.coloured = true;
                    shown.extend_from_slice(&bytes[..length]);
                    length
                }
                Front::Show(instead, length) => {
                    show(instead, shown);
                    length
                }
                Front::Partial if last => {
                    show(if bytes[0] == 0x1b { picture('\x1b') } else { '\u{fffd}' }, shown);
                    1
                }
                Front::Partial => return bytes.len(),
            };
            bytes = &bytes[taken..];
        }
        0
    }
}

fn show(c: char, shown: &mut Vec<u8>) {
    shown.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
}

fn front(bytes: &[u8]) -> Front {
    let plain = bytes.iter().take_while(|byte| matches!(byte, b' '..=b'~' | b'\n' | b'\t' | b'\r')).count();
    if plain > 0 {
        return Front::Pass(plain);
    }
    match bytes[0] {
        0x1b => escape(bytes),
        control @ (..0x20 | 0x7f) => Front::Show(picture(char::from(control)), 1),
        _ => character(bytes),
    }
}

/// `ESC [ numbers m` and nothing else is a colour.
fn escape(bytes: &[u8]) -> Front {
    let hidden = Front::Show(picture('\x1b'), 1);
    match bytes.get(1) {
        None => return Front::Partial,
        Some(b'[') => {}
        Some(_) => return hidden,
    }
    let numbers = bytes[2..].iter().take_while(|byte| matches!(byte, b'0'..=b'9' | b';' | b':')).count();
    match bytes.get(2 + numbers) {
        _ if numbers > MAX_SEQUENCE_BYTES => hidden,
        Some(b'm') => Front::Colour(3 + numbers),
        None => Front::Partial,
        Some(_) => hidden,
    }
}

/// One character that is not ASCII.
fn character(bytes: &[u8]) -> Front {
    let window = &bytes[..bytes.len().min(4)];
    let (valid, unfinished) = match std::str::from_utf8(window) {
        Ok(text) => (text, false),
        Err(error) => {
            let text = std::str::from_utf8(&window[..error.valid_up_to()]).unwrap_or("");
            (text, error.error_len().is_none())
        }
    };
    match valid.chars().next() {
        Some(c) if is_active(c) => Front::Show(picture(c), c.len_utf8()),
        Some(c) => Front::Pass(c.len_utf8()),
        None if unfinished && bytes.len() < 4 => Front::Partial,
        None => Front::Show('\u{fffd}', 1),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn filtered(pieces: &[&[u8]]) -> String {
        let mut filter = Filter::default();
        let mut shown: Vec<u8> = pieces.iter().flat_map(|piece| filter.feed(piece)).collect();
        shown.extend(filter.finish());
        String::from_utf8(shown).unwrap()
    }

    #[test]
    fn colours_go_through_and_everything_else_is_shown() {
        assert_eq!(filtered(&[b"\x1b[1;31mred\x1b[0m\n"]), "\x1b[1;31mred\x1b[0m\n\x1b[0m");
        assert_eq!(filtered(&[b"\x1b]0;title\x07x"]), "␛]0;title␇x");
        assert_eq!(filtered(&[b"\x1b[2Jx"]), "␛[2Jx");
        assert_eq!(filtered(&["\u{9b}2Jx".as_bytes()]), "\u{fffd}2Jx");
        assert_eq!(filtered(&[b"\x9b2J"]), "\u{fffd}2J");
        assert_eq!(filtered(&[b"a\tb\r\nc"]), "a\tb\r\nc");
    }

    #[test]
    fn pieces_make_no_difference() {
        assert_eq!(filtered(&[b"\x1b", b"[3", b"1mx"]), "\x1b[31mx\x1b[0m");
        assert_eq!(filtered(&[b"\xe2", b"\x82", b"\xac"]), "€");
        assert_eq!(filtered(&[b"\xe2\x82"]), "\u{fffd}\u{fffd}");
        assert_eq!(filtered(&[b"\x1b["]), "␛[");
    }

    /// No escape but a colour, and no control character but those of plain text.
    fn harmless(text: &str) -> bool {
        let mut rest = text;
        while let Some(at) = rest.find('\x1b') {
            let after = &rest[at + 1..];
            let Some(end) = after.find('m') else { return false };
            let numbers = after[..end].strip_prefix('[');
            if !numbers.is_some_and(|n| n.chars().all(|c| matches!(c, '0'..='9' | ';' | ':'))) {
                return false;
            }
            rest = &after[end..];
        }
        text.chars().all(|c| !is_active(c) || matches!(c, '\n' | '\t' | '\r' | '\x1b'))
    }

    proptest! {
        #[test]
        fn nothing_harmful_goes_through(
            pieces in prop::collection::vec(
                prop_oneof![
                    prop::collection::vec(any::<u8>(), 0..12),
                    "\x1b[\\[\\]Pc]?[0-9;?:]{0,3}[mJHhlq\x07]?".prop_map(String::into_bytes),
                ],
                0..12,
            ),
        ) {
            let borrowed: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
            let shown = filtered(&borrowed);
            prop_assert!(harmless(&shown), "{shown:?}");
            let whole = pieces.concat();
            prop_assert_eq!(shown, filtered(&[&whole]));
        }
    }
}
