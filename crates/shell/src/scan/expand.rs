//! The scanner inside words: quotes, escapes, and all that begins with `$` or a backquote.

use super::{Ends, Scan};
use crate::reading::Why;
use crate::shell::Grammar;

impl Scan<'_> {
    pub(super) fn escape(&mut self) -> Result<(), Why> {
        match (self.peek_at(1), self.peek_at(2)) {
            // Nothing to escape; or `\$'`, which the parser takes for the beginning of `$'…'`.
            (None, _) | (Some(b'$'), Some(b'\'')) => Err(Why::Unclear),
            (Some(b'\n'), _) => {
                self.newline_inside()?;
                self.at += 2;
                Ok(())
            }
            (Some(_), _) => {
                self.at += 2;
                Ok(())
            }
        }
    }

    pub(super) fn single_quotes(&mut self) -> Result<(), Why> {
        self.at += 1;
        while let Some(byte) = self.peek() {
            self.at += 1;
            match byte {
                b'\'' => return Ok(()),
                b'\n' => self.newline_inside()?,
                _ => {}
            }
        }
        Err(Why::Unclear)
    }

    /// `$'…'`, from its `$`.
    fn ansi_quotes(&mut self) -> Result<(), Why> {
        self.at += 2;
        while let Some(byte) = self.peek() {
            self.at += 1;
            match byte {
                b'\'' => return Ok(()),
                b'\\' => self.at += 1,
                b'\n' => self.newline_inside()?,
                _ => {}
            }
        }
        Err(Why::Unclear)
    }

    pub(super) fn double_quotes(&mut self) -> Result<(), Why> {
        self.at += 1;
        self.deeper(|scan| {
            while let Some(byte) = scan.peek() {
                if byte == b'"' {
                    scan.at += 1;
                    return Ok(());
                }
                scan.quoted_text(byte)?;
            }
            Err(Why::Unclear)
        })
    }

    /// One step through text in which only `$`, backquote and backslash mean something.
    pub(super) fn quoted_text(&mut self, byte: u8) -> Result<(), Why> {
        match byte {
            b'$' => self.dollar(true),
            b'`' => self.backquotes(true),
            b'\\' => {
                self.at += if self.peek_at(1).is_some() { 2 } else { 1 };
                Ok(())
            }
            b'\n' => {
                self.at += 1;
                self.newline_inside()
            }
            _ => {
                self.at += 1;
                Ok(())
            }
        }
    }

    pub(super) fn dollar(&mut self, quoted: bool) -> Result<(), Why> {
        if self.is_misread(quoted) {
            return Err(Why::Unclear);
        }
        match (self.peek_at(1), self.peek_at(2)) {
            (Some(b'('), Some(b'(')) => {
                self.expansion_begins(3);
                self.deeper(Self::arithmetic)
            }
            (Some(b'('), _) => {
                self.expansion_begins(2);
                self.substitution()
            }
            (Some(b'{'), _) => {
                self.expansion_begins(2);
                self.deeper(|scan| scan.braces(quoted))
            }
            (Some(b'\''), _) if !quoted => self.ansi_quotes(),
            (Some(b'"'), _) if !quoted => {
                self.at += 1;
                self.double_quotes()
            }
            (Some(b'$'), _) => {
                self.at += 2;
                Ok(())
            }
            _ => {
                self.at += 1;
                Ok(())
            }
        }
    }

    /// What begins with this `$` is one thing to some shells and another to others, or to the parser.
    fn is_misread(&self, quoted: bool) -> bool {
        let unquoted_in_posix = !quoted && self.grammar == Grammar::Posix;
        match (self.peek_at(1), self.peek_at(2)) {
            // `$[` is arithmetic in bash, text in other shells, and hard on the parser in any case. Of `$$` before an
            // opening the parser takes the second `$` for the beginning. A `$` may be continued on the next line.
            (Some(b'['), _) | (Some(b'$'), Some(b'{' | b'(' | b'[' | b'$')) | (Some(b'\\'), Some(b'\n')) => {
                true
            }
            (Some(b'$'), Some(b'\'' | b'"')) => !quoted,
            // Quotes of a kind of their own in bash, a `$` before quoted text in other shells.
            (Some(b'\'' | b'"'), _) => unquoted_in_posix,
            _ => false,
        }
    }

    /// On a line with a here-document still to come the parser loses what stands inside expansions.
    fn expansion_begins(&mut self, length: usize) {
        self.at += length;
        self.found.unfit |= self.waiting > 0;
    }

    /// From after `${` to after its `}`.
    fn braces(&mut self, quoted: bool) -> Result<(), Why> {
        // `${ x; }` and `${|x; }` are command substitutions in some shells.
        if matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'|')) {
            return Err(Why::Unclear);
        }
        while let Some(byte) = self.peek() {
            match byte {
                b'}' => {
                    self.at += 1;
                    return Ok(());
                }
                // Inside double quotes shells differ on what a quote means here.
                b'\'' | b'"' if quoted => return Err(Why::Unclear),
                b'\'' => self.single_quotes()?,
                b'"' => self.double_quotes()?,
                b'\\' => self.escape()?,
                b'$' => self.dollar(quoted)?,
                b'`' => self.backquotes(quoted)?,
                // The parser looks for operators and here-documents in here.
                b'<' | b'>' | b'(' | b')' | b'\n' => {
                    self.found.unfit = true;
                    self.newline_inside()?;
                    self.at += 1;
                }
                _ => self.at += 1,
            }
        }
        Err(Why::Unclear)
    }

    /// From after `((` to after its `))`. Anything that closes otherwise is no arithmetic.
    pub(super) fn arithmetic(&mut self) -> Result<(), Why> {
        let mut open = 0_usize;
        while let Some(byte) = self.peek() {
            match byte {
                b'(' => open += 1,
                b')' if open > 0 => open -= 1,
                b')' if self.peek_at(1) == Some(b')') => {
                    self.at += 2;
                    return Ok(());
                }
                b')' | b'\'' | b'"' | b'\\' => return Err(Why::Unclear),
                b'$' => {
                    self.dollar(true)?;
                    continue;
                }
                b'`' => {
                    self.backquotes(true)?;
                    continue;
                }
                b'\n' => self.newline_inside()?,
                // The parser would look for a comment or a here-document.
                b'#' | b'<' => self.found.unfit |= byte == b'#' || self.peek_at(1) == Some(b'<'),
                _ => {}
            }
            self.at += 1;
        }
        Err(Why::Unclear)
    }

    /// Backquotes end at the first one without a backslash; what is between them is a text of its own.
    pub(super) fn backquotes(&mut self, quoted: bool) -> Result<(), Why> {
        self.at += 1;
        let mut body = Vec::new();
        while let Some(byte) = self.peek() {
            match (byte, self.peek_at(1)) {
                (b'`', _) => {
                    self.at += 1;
                    return self.deeper(|scan| scan.text_of_its_own(&body));
                }
                (b'\\', Some(b'"')) if quoted => return Err(Why::Unclear),
                (b'\\', Some(next @ (b'`' | b'\\' | b'$'))) => {
                    body.push(next);
                    self.at += 2;
                }
                (b'\n', _) => {
                    self.newline_inside()?;
                    body.push(byte);
                    self.at += 1;
                }
                _ => {
                    body.push(byte);
                    self.at += 1;
                }
            }
        }
        Err(Why::Unclear)
    }

    fn text_of_its_own(&mut self, body: &[u8]) -> Result<(), Why> {
        let mut inner = Scan::new(body, self.grammar);
        (inner.depth, inner.level, inner.tries) = (self.depth, self.level + 1, self.tries);
        inner.commands(Ends::WithText)?;
        self.tries = inner.tries;
        self.found.nested |= inner.found.nested;
        self.found.openers += inner.found.openers;
        self.found.unfit |= inner.found.unfit;
        Ok(())
    }
}
