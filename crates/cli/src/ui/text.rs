//! Text of unknown origin made fit for one line of a terminal: nothing in it moves the cursor, changes the colour,
//! or turns the reading direction. Whole output with its line ends is the business of `filter`.

use std::borrow::Cow;

use unicode_width::UnicodeWidthChar as _;

/// A character that does something instead of showing something.
pub(crate) const fn is_active(c: char) -> bool {
    matches!(c,
        '\0'..='\x1f' | '\x7f'..='\u{9f}'
        // Marks and overrides of direction, which can make a line read as another one; line ends of Unicode.
        | '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        | '\u{2028}' | '\u{2029}')
}

/// What stands in its place: the picture of a control character, or the sign for something unreadable.
pub(crate) fn picture(c: char) -> char {
    match u32::from(c) {
        code @ 0..=0x1f => char::from_u32(0x2400 + code).unwrap_or('\u{fffd}'),
        0x7f => '\u{2421}',
        _ => '\u{fffd}',
    }
}

/// The text on one line, with nothing active left in it.
pub(crate) fn one_line(text: &str) -> Cow<'_, str> {
    if !text.contains(is_active) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.chars().map(|c| if is_active(c) { picture(c) } else { c }).collect())
}

/// How many columns a text takes. Never too few: a variation selector can widen what it follows.
pub(crate) fn width(text: &str) -> usize {
    text.chars().map(char_width).sum()
}

fn char_width(c: char) -> usize {
    if c == '\u{fe0f}' { 1 } else { c.width().unwrap_or(0) }
}

/// The text cut to so many columns, with `…` where something is missing.
pub(crate) fn cut(text: &str, columns: usize) -> Cow<'_, str> {
    if width(text) <= columns {
        return Cow::Borrowed(text);
    }
    if columns == 0 {
        return Cow::Borrowed("");
    }
    let mut kept = String::new();
    let mut used = 0;
    for c in text.chars() {
        used += char_width(c);
        if used > columns - 1 {
            break;
        }
        kept.push(c);
    }
    kept.push('…');
    Cow::Owned(kept)
}

/// The text in lines of so many columns, broken between words where it can be. Without a limit it is one line.
pub(crate) fn wrap(text: &str, columns: Option<usize>) -> Vec<String> {
    let Some(columns) = columns else { return vec![text.to_owned()] };
    let (mut lines, mut line, mut used) = (Vec::new(), String::new(), 0);
    for word in text.split(' ') {
        if used > 0 && used + 1 + width(word) > columns {
            lines.push(std::mem::take(&mut line));
            used = 0;
        } else if used > 0 {
            line.push(' ');
            used += 1;
        }
        for c in word.chars() {
            // A word that is longer than a line is broken anywhere.
            if used > 0 && used + char_width(c) > columns {
                lines.push(std::mem::take(&mut line));
                used = 0;
            }
            line.push(c);
            used += char_width(c);
        }
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use unicode_width::UnicodeWidthStr as _;

    use super::*;

    #[test]
    fn control_characters_become_their_pictures() {
        assert_eq!(one_line("a\x1b[31mb\nc\u{9b}d\u{202e}e"), "a␛[31mb␊c\u{fffd}d\u{fffd}e");
        assert_eq!(one_line("plain"), "plain");
    }

    #[test]
    fn lines_are_broken_between_words_and_long_words_anywhere() {
        assert_eq!(wrap("one two three", None), ["one two three"]);
        assert_eq!(wrap("one two three", Some(7)), ["one two", "three"]);
        assert_eq!(wrap("a /very/long/path b", Some(6)), ["a", "/very/", "long/p", "ath b"]);
    }

    proptest! {
        #[test]
        // The widest characters take three columns.
        fn a_wrapped_text_fits_and_loses_nothing(text in any::<String>(), columns in 3_usize..40) {
            let line = one_line(&text).into_owned();
            let lines = wrap(&line, Some(columns));
            prop_assert!(lines.iter().all(|line| width(line) <= columns), "{lines:?}");
            let without = |text: &str| text.replace(' ', "");
            prop_assert_eq!(without(&lines.concat()), without(&line));
        }

        #[test]
        fn a_cut_text_fits(text in any::<String>(), columns in 0_usize..40) {
            let line = one_line(&text).into_owned();
            let short = cut(&line, columns);
            prop_assert!(width(&short) <= columns);
            prop_assert!(short.width() <= columns, "{short:?}");
            prop_assert!(!short.contains(is_active));
        }
    }
}
