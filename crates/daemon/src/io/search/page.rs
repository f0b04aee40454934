//! One page of search results: which lines are shown, when the page is full, and where the next
//! page begins.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use belay_protocol::Base64Bytes;
use belay_protocol::output::{OutputLine, OutputSearchCursor, OutputSearchLine, OutputSearchParams};
use belay_record::Gap;
use belay_record::convert::Wire as _;
use regex::bytes::Regex;

use super::Limits;
use super::lines::{Place, Whole};

/// The size of a line in a page in addition to its text.
const LINE_COST_BYTES: usize = 64;

/// A page that is being filled.
pub(super) struct Page<'a> {
    pattern: &'a Regex,
    context: usize,
    max_matches: usize,
    answer_bytes: usize,
    /// Context lines that are shown if a match follows soon enough.
    before: VecDeque<(OutputSearchLine, Place)>,
    /// How many of the next lines are shown as the context of an earlier match.
    owed: usize,
    /// The number of the last line that was examined.
    number: u64,
    matches: usize,
    bytes: usize,
    pub(super) lines: Vec<OutputSearchLine>,
    pub(super) gaps: Vec<Gap>,
    /// The position after the last line that is shown or can no longer be shown as context. The
    /// next page begins here and examines the lines of `before` again, so the cursor need not
    /// contain them.
    pub(super) settled: OutputSearchCursor,
}

impl<'a> Page<'a> {
    pub(super) fn new(
        params: &OutputSearchParams,
        pattern: &'a Regex,
        limits: &Limits,
        begin: OutputSearchCursor,
    ) -> Self {
        let context = params.context.min(OutputSearchParams::MAX_CONTEXT);
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
            settled: OutputSearchCursor { owed, ..begin },
        }
    }

    /// Examines the next line. Breaks when the page is full; then the line may belong to the next
    /// page.
    pub(super) fn line(&mut self, whole: Whole, open: bool) -> ControlFlow<()> {
        let Whole { stream, offset, text, behind } = whole;
        // On a terminal every line ends with a carriage return, and `$` must match before it.
        let bare = text.strip_suffix(b"\r");
        let matched = self.pattern.is_match(&text) || bare.is_some_and(|bare| self.pattern.is_match(bare));
        if matched && self.matches == self.max_matches {
            return ControlFlow::Break(());
        }
        self.number = self.number.saturating_add(1);
        let line =
            OutputLine { stream: stream.to_wire(), offset, data: Base64Bytes(text), text: None, matched };
        let line = OutputSearchLine { line, number: self.number, open };
        if matched {
            for (line, behind) in std::mem::take(&mut self.before) {
                self.show(line, behind, 0)?;
            }
            self.show(line, behind, self.context)?;
            self.matches += 1;
        } else if self.owed > 0 {
            self.show(line, behind, self.owed - 1)?;
        } else {
            self.skip(line, behind);
        }
        // The page includes the context after its last match, up to the next match.
        let is_full = self.matches == self.max_matches && self.owed == 0;
        if is_full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Records a gap. Lines on its two sides are not context of each other.
    pub(super) fn gap(&mut self, gap: Gap) {
        self.gaps.push(gap);
        self.before.clear();
        if self.number > 0 {
            self.number = self.number.saturating_add(1);
        }
        self.settle(self.number, Place { at: gap[1], open: [None, None] }, 0);
    }

    fn show(&mut self, line: OutputSearchLine, behind: Place, owed: usize) -> ControlFlow<()> {
        let cost = line.line.data.0.len() + LINE_COST_BYTES;
        // A page has at least one line, however long: otherwise the search would not progress.
        if !self.lines.is_empty() && self.bytes + cost > self.answer_bytes {
            return ControlFlow::Break(());
        }
        self.bytes += cost;
        self.settle(line.number, behind, owed);
        self.lines.push(line);
        ControlFlow::Continue(())
    }

    fn skip(&mut self, line: OutputSearchLine, behind: Place) {
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
        self.settled = OutputSearchCursor {
            at: behind.at,
            until: self.settled.until,
            stdout,
            stderr,
            number,
            // At most the context, which fits.
            owed: u32::try_from(owed).unwrap_or(u32::MAX),
        };
    }
}
