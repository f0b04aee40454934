//! One answer to a search: which lines are shown, when it is full, and from where the next one goes on.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use belay_protocol::Bytes;
use belay_protocol::output::{Line, SearchCursor, SearchLine, SearchParams};
use belay_record::Gap;
use belay_record::convert::Wire as _;
use regex::bytes::Regex;

use super::Limits;
use super::lines::{Place, Whole};

/// What a line costs in an answer beside its text.
const LINE_COST_BYTES: usize = 64;

pub(super) struct Page<'a> {
    pattern: &'a Regex,
    context: usize,
    max_matches: usize,
    answer_bytes: usize,
    /// Lines that are shown if a match follows soon.
    before: VecDeque<(SearchLine, Place)>,
    /// How many lines to come are shown because of a match.
    owed: usize,
    /// The number of the last line that was looked at.
    number: u64,
    matches: usize,
    bytes: usize,
    pub(super) lines: Vec<SearchLine>,
    pub(super) gaps: Vec<Gap>,
    /// Behind the last line that is shown, or that no match to come can have shown. The next page goes on here, looks
    /// at the lines of `before` once more, and so needs to be told nothing about them.
    pub(super) settled: SearchCursor,
}

impl<'a> Page<'a> {
    pub(super) fn new(
        params: &SearchParams,
        pattern: &'a Regex,
        limits: &Limits,
        begin: SearchCursor,
    ) -> Self {
        let context = params.context.min(SearchParams::MAX_CONTEXT);
        let asked = params.max_matches.and_then(|max| usize::try_from(max).ok());
        let owed = begin.owed.min(context);
        Self {
            pattern,
            context: context as usize,
            max_matches: asked.unwrap_or(limits.matches).min(limits.matches),
            answer_bytes: limits.answer_bytes,
            before: VecDeque::new(),
            owed: owed as usize,
            number: begin.number,
            matches: 0,
            bytes: 0,
            lines: Vec::new(),
            gaps: Vec::new(),
            settled: SearchCursor { owed, ..begin },
        }
    }

    /// Looks at the next line. Breaks off when the page is full; then this line may be the next page's.
    pub(super) fn line(&mut self, whole: Whole, open: bool) -> ControlFlow<()> {
        let Whole { stream, offset, text, behind } = whole;
        // At a terminal every line ends with a carriage return, which nobody means who writes `$`.
        let bare = text.strip_suffix(b"\r");
        let matched = self.pattern.is_match(&text) || bare.is_some_and(|bare| self.pattern.is_match(bare));
        if matched && self.matches == self.max_matches {
            return ControlFlow::Break(());
        }
        self.number = self.number.saturating_add(1);
        let line = Line { stream: stream.to_wire(), offset, text: Bytes(text), matched };
        let line = SearchLine { line, number: self.number, open };
        if matched {
            for (line, behind) in std::mem::take(&mut self.before) {
                self.show(line, behind, 0)?;
            }
            self.show(line, behind, self.context)?;
            self.matches += 1;
        } else if self.owed > 0 {
            self.show(line, behind, self.owed - 1)?;
        } else {
            self.pass(line, behind);
        }
        // The context of the last match still belongs to it, unless it matches too.
        let is_full = self.matches == self.max_matches && self.owed == 0;
        if is_full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// What follows was not written right behind what was before, and is no context of it.
    pub(super) fn gap(&mut self, gap: Gap) {
        self.gaps.push(gap);
        self.before.clear();
        if self.number > 0 {
            self.number = self.number.saturating_add(1);
        }
        self.settle(self.number, Place { at: gap[1], open: [None, None] }, 0);
    }

    fn show(&mut self, line: SearchLine, behind: Place, owed: usize) -> ControlFlow<()> {
        let cost = line.line.text.0.len() + LINE_COST_BYTES;
        // One line goes into any page: none is too long for all of them.
        if !self.lines.is_empty() && self.bytes + cost > self.answer_bytes {
            return ControlFlow::Break(());
        }
        self.bytes += cost;
        self.settle(line.number, behind, owed);
        self.lines.push(line);
        ControlFlow::Continue(())
    }

    fn pass(&mut self, line: SearchLine, behind: Place) {
        self.before.push_back((line, behind));
        if self.before.len() > self.context
            && let Some((line, behind)) = self.before.pop_front()
        {
            self.settle(line.number, behind, 0);
        }
    }

    fn settle(&mut self, number: u64, behind: Place, owed: usize) {
        self.owed = owed;
        let [stdout, stderr] = behind.open;
        self.settled = SearchCursor {
            at: behind.at,
            until: self.settled.until,
            stdout,
            stderr,
            number,
            // As small as the context.
            owed: u32::try_from(owed).unwrap_or(u32::MAX),
        };
    }
}
