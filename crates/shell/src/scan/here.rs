//! The scanner at here-documents: their delimiters, and their bodies once the line has ended.

use super::Scan;
use crate::reading::Why;

/// A here-document whose body has not come yet.
#[derive(Debug)]
pub(super) struct Here {
    delimiter: Vec<u8>,
    /// Its body is text and nothing else.
    quoted: bool,
    /// `<<-`: tabs at the beginning of a line do not count.
    tabs: bool,
}

/// Only plain names: everything else is where shells and parsers differ, or where the parser never ends.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.')
}

impl Scan<'_> {
    /// The word after `<<` or `<<-`.
    pub(super) fn here_delimiter(&mut self, tabs: bool) -> Result<Here, Why> {
        // The parser is known to lose its way in here-documents inside of substitutions.
        self.found.unfit |= self.level > 0;
        while matches!(self.peek(), Some(b' ' | b'\t')) {
            self.at += 1;
        }
        let mark = self.peek().filter(|byte| matches!(byte, b'\'' | b'"' | b'\\'));
        self.at += usize::from(mark.is_some());
        let rest = &self.text[self.at..];
        let length = rest.iter().take_while(|&&byte| is_plain(byte)).count();
        let delimiter = rest[..length].to_vec();
        self.at += length;
        if matches!(mark, Some(b'\'' | b'"')) {
            if self.peek() != mark {
                return Err(Why::Unclear);
            }
            self.at += 1;
        }
        let ends = self.peek().is_none_or(|byte| b" \t\n&|;<>()".contains(&byte));
        if delimiter.is_empty() || !ends {
            return Err(Why::Unclear);
        }
        self.waiting += 1;
        Ok(Here { delimiter, quoted: mark.is_some(), tabs })
    }

    /// The bodies of all here-documents of the line that has just ended, in order.
    pub(super) fn here_bodies(&mut self, here: &[Here]) -> Result<(), Why> {
        for document in here {
            let start = self.at;
            let end = self.skip_body(document)?;
            if !document.quoted {
                self.expansions_between(start, end)?;
            }
        }
        Ok(())
    }

    /// Goes to after the delimiter's line, and says where the body ends.
    fn skip_body(&mut self, here: &Here) -> Result<usize, Why> {
        while self.at < self.text.len() {
            let start = self.at;
            let rest = &self.text[start..];
            let length = rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len());
            let line = &rest[..length];
            self.at = (start + length + 1).min(self.text.len());
            let tabs = if here.tabs { line.iter().take_while(|&&byte| byte == b'\t').count() } else { 0 };
            if line[tabs..] == here.delimiter[..] {
                return Ok(start);
            }
            // The line goes on in the next, which then cannot be the delimiter; not every reader knows.
            if !here.quoted && line.ends_with(b"\\") {
                return Err(Why::Unclear);
            }
        }
        Err(Why::Unclear)
    }

    /// Looks through the body alone: nothing in it may reach beyond its end.
    fn expansions_between(&mut self, start: usize, end: usize) -> Result<(), Why> {
        let (text, after) = (self.text, self.at);
        self.text = &text[..end];
        self.at = start;
        while let Some(byte) = self.peek() {
            self.quoted_text(byte)?;
        }
        self.text = text;
        self.at = after;
        Ok(())
    }
}
