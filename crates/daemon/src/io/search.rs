//! `output/search` on a worker thread: searches a task's log line by line, one bounded page for
//! each call. A page ends between two lines, and its cursor is the position of the next page: all
//! pages together show the same lines, however they are divided.

mod lines;
mod page;
#[cfg(test)]
mod tests;

use std::io;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::Arc;

use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::output::{OutputSearchCursor, OutputSearchLine, OutputSearchResult, StreamName};
use belay_record::convert::Wire as _;
use belay_record::{Gap, LogReader, Slice, Stream};

use self::lines::{Lines, Place};
use self::page::Page;
use super::hub::Hub;
use crate::effect::{Search, Searched};
use crate::input::{Input, JobId};

/// The bounds of one call.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// How many bytes one page searches. It must be more than the longest lines of a whole context,
    /// or a page would end where it began.
    scan_bytes: u64,
    block_bytes: usize,
    matches: usize,
    /// A line longer than this is searched and shown in parts (documented in `logs --help`).
    line_bytes: usize,
    /// The largest page in bytes, if it has more than one line.
    answer_bytes: usize,
}

const LIMITS: Limits = Limits {
    scan_bytes: 64 * 1024 * 1024,
    block_bytes: 256 * 1024,
    matches: 1_000,
    line_bytes: 1024 * 1024,
    answer_bytes: 1024 * 1024,
};

pub(crate) fn run(hub: &Rc<Hub>, job: JobId, search: Search) {
    let hub = Rc::clone(hub);
    tokio::task::spawn_local(async move {
        let is_wanted = || hub.is_owed(job);
        let Some(done) = hub.workers.searches.run(is_wanted, move || open(&search)).await else { return };
        let result = match done {
            Ok(result) => Ok(result),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                Err(RpcError::invalid("pattern", format!("invalid regular expression: {error}")))
            }
            Err(error) => {
                Err(RpcError::new(ErrorKind::Internal, format!("the output cannot be read: {error}")))
            }
        };
        hub.dispatch(Input::Searched { job, result: Box::new(result) });
    });
}

fn open(search: &Search) -> io::Result<Searched> {
    let log = match &search.memory {
        Some(memory) => LogReader::in_memory(Arc::clone(memory))?,
        None => LogReader::open(&search.dir)?,
    };
    search_page(&log, search, &LIMITS)
}

fn search_page(log: &LogReader, search: &Search, limits: &Limits) -> io::Result<Searched> {
    let params = &search.params;
    let invalid = |error: &str| io::Error::new(io::ErrorKind::InvalidInput, error);
    let pattern = search.pattern.get().map_err(invalid)?;
    let mut begin =
        params.cursor.unwrap_or(OutputSearchCursor { at: params.after, ..OutputSearchCursor::default() });
    // Only the output that exists when the search begins: otherwise the search of a task that
    // writes without pause would never end, and a line that is unfinished on one page would be
    // finished on the next.
    let until = begin.until.unwrap_or(u64::MAX).min(log.end());
    begin.until = Some(until);
    let bytes = search.ended_bytes.unwrap_or_else(|| log.end());
    let has_ended = search.ended_bytes.is_some() && until == log.end();
    let place = Place { at: begin.at, open: [begin.stdout, begin.stderr] };
    let mut lines = Lines::at(place, log, limits.line_bytes)?;
    let mut page = Page::new(params, pattern, limits, begin);
    let mut flow = scan(log, search, limits, &mut lines, &mut page)?;
    let mut resume = OutputSearchCursor { until: None, ..page.settled };
    let finished = page.lines.len();
    if flow.is_continue() {
        // An unfinished line may still match when more of it is written.
        [resume.stdout, resume.stderr] = lines.place(until).open;
        resume.at = until;
        flow = lines.cut(until, |whole| page.line(whole, !has_ended));
    }
    let complete = flow.is_continue();
    if complete && has_ended && until < bytes {
        // The last bytes were lost to a full disk.
        page.gaps.push([until, bytes]);
    }
    let next = (!complete).then_some(page.settled);
    let Page { lines, gaps, .. } = page;
    for found in lines.iter().skip(finished).filter(|found| found.line.matched) {
        match found.line.stream {
            StreamName::Stdout => resume.stdout = None,
            StreamName::Stderr => resume.stderr = None,
        }
    }
    let lines = if params.text { lines.into_iter().map(as_text).collect() } else { lines };
    let result = OutputSearchResult { id: params.id.clone(), lines, gaps, next, bytes, complete };
    Ok(Searched { result, resume })
}

/// Searches every line that ends before the end of the search, or as many lines as fit into one
/// page.
fn scan(
    log: &LogReader,
    search: &Search,
    limits: &Limits,
    lines: &mut Lines,
    page: &mut Page<'_>,
) -> io::Result<ControlFlow<()>> {
    let only = search.params.stream.map(Stream::from_wire);
    let begin = page.settled;
    let until = begin.until.unwrap_or(0);
    let (mut at, mut scanned) = (begin.at, 0);
    while at < until {
        if scanned >= limits.scan_bytes && page.settled != begin {
            return Ok(ControlFlow::Break(()));
        }
        let slice = log.read(at, limits.block_bytes, only)?;
        if slice.next <= at {
            break;
        }
        at = slice.next;
        scanned += slice.pieces.iter().map(|piece| piece.data.len() as u64).sum::<u64>();
        if scan_slice(slice, until, lines, page).is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}

fn scan_slice(slice: Slice, until: u64, lines: &mut Lines, page: &mut Page<'_>) -> ControlFlow<()> {
    let mut gaps = slice.gaps.into_iter().filter(|gap| gap[0] < until).peekable();
    for mut piece in slice.pieces.into_iter().filter(|piece| piece.offset < until) {
        while let Some(gap) = gaps.next_if(|gap| gap[0] < piece.offset) {
            cross(gap, until, lines, page)?;
        }
        piece.data.truncate(usize::try_from(until - piece.offset).unwrap_or(usize::MAX));
        lines.take(&piece, |whole| page.line(whole, false))?;
    }
    gaps.try_for_each(|gap| cross(gap, until, lines, page))
}

/// A gap ends a line: the bytes after the gap may belong to another line.
fn cross([from, to]: Gap, until: u64, lines: &mut Lines, page: &mut Page<'_>) -> ControlFlow<()> {
    lines.cut(from, |whole| page.line(whole, false))?;
    page.gap([from, to.min(until)]);
    ControlFlow::Continue(())
}

/// The same line with text instead of bytes.
fn as_text(found: OutputSearchLine) -> OutputSearchLine {
    OutputSearchLine { line: found.line.into_text(), ..found }
}
