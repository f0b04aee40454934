//! The strict scanner: takes a line apart into words and operators, down into quotes, substitutions and here-documents,
//! in one pass without backtracking worth the name. It knows tokens and no sentences; that is the parser's part.
//!
//! It serves three ends. A line in which it finds no `&` of its own needs no parser and no shell. What it cannot take
//! apart for certain never reaches the parser, which may hang or grow without bound on such text. And where both find
//! an `&`, they must have found the same ones.

mod commands;
mod expand;
mod here;

use std::ops::Range;

use crate::reading::Why;
use crate::shell::Grammar;

/// How deep quotes and substitutions may stand in each other.
const MAX_DEPTH: usize = 32;

/// How often `((` may begin something that turns out not to be arithmetic: each costs another look at the rest.
const MAX_TRIES: usize = 32;

/// What was found in a line.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    /// Where `&` is an operator of its own, outside of substitutions.
    pub(crate) ampersands: Vec<usize>,
    /// The same inside of `$(…)`, `<(…)` and `>(…)`.
    pub(crate) nested_ampersands: Vec<usize>,
    /// Something asynchronous inside of a substitution of any kind, backquotes included.
    pub(crate) nested: bool,
    /// The word `coproc`, in a shell that knows it.
    pub(crate) coproc: bool,
    /// The last token of the line, newlines and comments apart, if it is an `&`.
    pub(crate) last_ampersand: Option<usize>,
    /// `((…))` as a command, where `&` is arithmetic.
    pub(crate) arithmetic: Vec<Range<usize>>,
    /// Words and parentheses that may open a level of nesting.
    pub(crate) openers: usize,
    /// Those of them for which the parser takes twice as long, each inside another.
    pub(crate) heavy: usize,
    /// Well understood here, but known to be more than the parser can take.
    pub(crate) unfit: bool,
}

impl Found {
    /// Whether nothing asynchronous was found.
    pub(crate) fn is_quiet(&self) -> bool {
        self.ampersands.is_empty() && !self.nested && !self.coproc
    }

    /// All the operators whose place in the line is known, in order.
    pub(crate) fn all_ampersands(&self) -> Vec<Range<usize>> {
        let mut all: Vec<usize> = self.ampersands.iter().chain(&self.nested_ampersands).copied().collect();
        all.sort_unstable();
        all.into_iter().map(|at| at..at + 1).collect()
    }
}

/// Takes a line apart, or says why it cannot: [`Why::Unclear`] or [`Why::TooDeep`].
pub(crate) fn scan(line: &[u8], grammar: Grammar) -> Result<Found, Why> {
    let mut scan = Scan::new(line, grammar);
    scan.commands(Ends::WithText)?;
    Ok(scan.found)
}

/// Where a list of commands ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    WithText,
    AtParenthesis,
}

#[derive(Clone, Debug)]
struct Scan<'a> {
    text: &'a [u8],
    at: usize,
    grammar: Grammar,
    /// How many quotes and substitutions are open.
    depth: usize,
    /// How many of them are substitutions, whose commands are not the line's own.
    level: usize,
    /// How many here-documents wait for the end of their line, in all open lists of commands.
    waiting: usize,
    /// Whether the last token was an opening parenthesis.
    after_parenthesis: bool,
    /// How often `((` was tried as arithmetic in vain.
    tries: usize,
    found: Found,
}

impl<'a> Scan<'a> {
    fn new(text: &'a [u8], grammar: Grammar) -> Self {
        Self {
            text,
            at: 0,
            grammar,
            depth: 0,
            level: 0,
            waiting: 0,
            after_parenthesis: false,
            tries: 0,
            found: Found::default(),
        }
    }

    fn peek(&self) -> Option<u8> {
        self.peek_at(0)
    }

    fn peek_at(&self, ahead: usize) -> Option<u8> {
        self.text.get(self.at + ahead).copied()
    }

    fn is_continuation(&self) -> bool {
        self.peek() == Some(b'\\') && self.peek_at(1) == Some(b'\n')
    }

    fn deeper(&mut self, inside: impl FnOnce(&mut Self) -> Result<(), Why>) -> Result<(), Why> {
        if self.depth == MAX_DEPTH {
            return Err(Why::TooDeep);
        }
        self.depth += 1;
        inside(self)?;
        self.depth -= 1;
        Ok(())
    }

    /// A newline that ends no command. Shells differ on where a here-document begins that waits for one.
    fn newline_inside(&self) -> Result<(), Why> {
        if self.waiting > 0 { Err(Why::Unclear) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests;
