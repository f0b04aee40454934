//! The scanner among commands: operators, words, comments, newlines.

use super::here::Here;
use super::{Ends, MAX_TRIES, Scan};
use crate::glance::without_continuations;
use crate::reading::Why;
use crate::shell::Grammar;

/// Longest first, so that the first that fits is the right one.
const BASH_OPERATORS: &[&str] = &[
    "&>>", ";;&", "<<<", "<<-", "&&", "&>", "||", "|&", ";;", ";&", "<<", "<&", "<>", ">>", ">|", ">&", "&",
    "|", ";", "<", ">", "(", ")",
];
const POSIX_OPERATORS: &[&str] =
    &["<<-", "&&", "||", ";;", "<<", "<&", "<>", ">>", ">|", ">&", "&", "|", ";", "<", ">", "(", ")"];

/// Words that may open a level of nesting where a command can stand. Where they stand does not matter here: more
/// are counted than there are, never fewer.
const OPENERS: &[&[u8]] = &[
    b"{",
    b"if",
    b"case",
    b"while",
    b"until",
    b"for",
    b"select",
    b"[[",
    b"!",
    b"function",
    b"coproc",
    b"elif",
    b"=~",
];

/// Words for which the parser may take twice as long, each inside another. So it may for parentheses in arithmetic.
const HEAVY: &[&[u8]] = &[b"case", b"function", b"=~"];

/// The length of the numbers that the parser can read for certain.
const MAX_DIGITS: usize = 9;

fn starts_operator(byte: u8) -> bool {
    matches!(byte, b'&' | b'|' | b';' | b'<' | b'>' | b'(' | b')')
}

impl Scan<'_> {
    pub(super) fn commands(&mut self, ends: Ends) -> Result<(), Why> {
        let waiting_outside = self.waiting;
        let mut here: Vec<Here> = Vec::new();
        let mut open = 0_usize;
        while let Some(byte) = self.peek() {
            match byte {
                b' ' | b'\t' => self.at += 1,
                b'\\' if self.is_continuation() => self.at += 2,
                b'#' => self.comment(),
                b'\n' => {
                    if waiting_outside > 0 {
                        return Err(Why::Unclear);
                    }
                    self.at += 1;
                    self.waiting = 0;
                    self.here_bodies(&std::mem::take(&mut here))?;
                }
                b')' if ends == Ends::AtParenthesis && open == 0 => {
                    self.at += 1;
                    return if here.is_empty() { Ok(()) } else { Err(Why::Unclear) };
                }
                _ if starts_operator(byte) => match self.operator()? {
                    "(" => open += 1,
                    ")" => open = open.saturating_sub(1),
                    "<<" => here.push(self.here_delimiter(false)?),
                    "<<-" => here.push(self.here_delimiter(true)?),
                    _ => {}
                },
                _ => self.word()?,
            }
        }
        if ends == Ends::WithText && here.is_empty() { Ok(()) } else { Err(Why::Unclear) }
    }

    fn comment(&mut self) {
        let rest = &self.text[self.at..];
        self.at += rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len());
    }

    fn operator(&mut self) -> Result<&'static str, Why> {
        let known = match self.grammar {
            Grammar::Bash => BASH_OPERATORS,
            Grammar::Posix => POSIX_OPERATORS,
        };
        let rest = &self.text[self.at..];
        let Some(operator) = known.iter().find(|operator| rest.starts_with(operator.as_bytes())) else {
            return Err(Why::Unclear);
        };
        let start = self.at;
        self.at += operator.len();
        self.is_whole()?;
        // To the parser `( (` is arithmetic like `((`, and takes exponential time if it does not close like it.
        let after_parenthesis = self.after_parenthesis;
        self.token_seen();
        match *operator {
            "&" => self.ampersand(start),
            "(" => {
                self.found.openers += 1;
                self.found.unfit |= after_parenthesis;
                self.after_parenthesis = true;
                if self.peek() == Some(b'(') {
                    self.double_parenthesis(start)?;
                }
            }
            "<" | ">" if self.grammar == Grammar::Bash && self.peek() == Some(b'(') => {
                self.at += 1;
                self.found.openers += 1;
                self.after_parenthesis = true;
                self.substitution()?;
            }
            _ => {}
        }
        // `((…))` was taken as a whole: there is no parenthesis left open.
        Ok(if *operator == "(" && self.at > start + 1 { "((" } else { operator })
    }

    /// An operator may go on after a line continuation, which not every reader knows.
    fn is_whole(&self) -> Result<(), Why> {
        let mut rest = &self.text[self.at..];
        let mut continued = false;
        while let Some(after) = rest.strip_prefix(b"\\\n") {
            rest = after;
            continued = true;
        }
        let goes_on = rest.first().is_some_and(|&byte| starts_operator(byte) || byte == b'-');
        if continued && goes_on { Err(Why::Unclear) } else { Ok(()) }
    }

    fn ampersand(&mut self, at: usize) {
        if self.level == 0 {
            self.found.ampersands.push(at);
            self.found.last_ampersand = Some(at);
        } else {
            self.found.nested_ampersands.push(at);
            self.found.nested = true;
        }
    }

    fn token_seen(&mut self) {
        self.after_parenthesis = false;
        if self.level == 0 {
            self.found.last_ampersand = None;
        }
    }

    /// `((`: arithmetic if it closes like arithmetic, else two subshells. The same choice as bash makes.
    fn double_parenthesis(&mut self, start: usize) -> Result<(), Why> {
        let before = self.clone();
        if self.grammar == Grammar::Bash {
            self.at += 1;
            match self.deeper(Self::arithmetic) {
                Ok(()) => {
                    self.after_parenthesis = false;
                    let inside = &self.text[start + 2..self.at];
                    self.found.heavy += inside.iter().map(|&byte| usize::from(byte == b'(')).sum::<usize>();
                    self.found.arithmetic.push(start..self.at);
                    return Ok(());
                }
                Err(Why::Unclear) if self.tries < MAX_TRIES => self.tries += 1,
                Err(_) => return Err(Why::TooDeep),
            }
        }
        *self = Self { tries: self.tries, ..before };
        // The parser takes every `((` for arithmetic while it looks for here-documents.
        self.found.unfit = true;
        Ok(())
    }

    /// From after the opening parenthesis of `$(`, `<(` or `>(` to after the closing one.
    pub(super) fn substitution(&mut self) -> Result<(), Why> {
        self.level += 1;
        self.deeper(|scan| scan.commands(Ends::AtParenthesis))?;
        self.level -= 1;
        Ok(())
    }

    fn word(&mut self) -> Result<(), Why> {
        let start = self.at;
        while let Some(byte) = self.peek() {
            match byte {
                b' ' | b'\t' | b'\n' => break,
                b'\\' => self.escape()?,
                b'\'' => self.single_quotes()?,
                b'"' => self.double_quotes()?,
                b'$' => self.dollar(false)?,
                b'`' => self.backquotes(false)?,
                b'(' if self.follows_pattern_letter(start) => return Err(Why::Unclear),
                _ if starts_operator(byte) => break,
                _ => self.at += 1,
            }
        }
        self.token_seen();
        let word: Vec<u8> = without_continuations(&self.text[start..self.at]);
        self.note_descriptor(&word);
        self.note_subscript(&word)?;
        self.note_word(&word)
    }

    /// `?(`, `*(`, `+(`, `@(`, `!(` begin a pattern or a subshell, depending on options of the shell.
    fn follows_pattern_letter(&self, start: usize) -> bool {
        self.at > start && matches!(self.text[self.at - 1], b'?' | b'*' | b'+' | b'@' | b'!')
    }

    /// The parser panics at the number of a descriptor that is too large for it.
    fn note_descriptor(&mut self, word: &[u8]) {
        let redirected = matches!(self.peek(), Some(b'<' | b'>'));
        let is_large = word.len() > MAX_DIGITS && word.iter().all(u8::is_ascii_digit);
        self.found.unfit |= redirected && is_large;
    }

    /// `name[`: bash reads on to the matching bracket, over blanks and operators; others do not.
    fn note_subscript(&mut self, word: &[u8]) -> Result<(), Why> {
        let name = word.iter().take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_').count();
        if name == 0 || word.get(name) != Some(&b'[') {
            return Ok(());
        }
        if !word.contains(&b']') {
            return Err(Why::Unclear);
        }
        if word.iter().any(|byte| matches!(byte, b'$' | b'`')) {
            self.found.unfit = true;
        }
        Ok(())
    }

    fn note_word(&mut self, word: &[u8]) -> Result<(), Why> {
        if !OPENERS.contains(&word) {
            return Ok(());
        }
        self.found.openers += 1;
        self.found.heavy += usize::from(HEAVY.contains(&word));
        match word {
            // The `)` of its patterns would be taken for the end of the substitution.
            b"case" if self.level > 0 => return Err(Why::Unclear),
            b"coproc" if self.grammar == Grammar::Bash && self.level > 0 => self.found.nested = true,
            b"coproc" if self.grammar == Grammar::Bash => self.found.coproc = true,
            _ => {}
        }
        Ok(())
    }
}
