//! `output/search` beside the core: line by line over a task's log, bounded a call, without splitting what it filters.

use std::collections::VecDeque;
use std::rc::Rc;

use belay_protocol::Bytes;
use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::output::{Line, SearchResult};
use belay_protocol::rpc::RequestId;
use belay_record::convert::Wire as _;
use belay_record::{LogReader, Stream};

use super::run::Hub;
use crate::event::{ClientId, Event, Search};

/// How much of the log one call looks through; the answer says where to go on.
const SCAN_BYTES: u64 = 64 * 1024 * 1024;
const BLOCK_BYTES: usize = 256 * 1024;
const MAX_MATCHES: usize = 1_000;
const MAX_CONTEXT: usize = 50;
/// A line longer than this is searched and shown in parts, which `logs --help` says.
const LINE_BYTES: usize = 1024 * 1024;
/// What one answer carries at most.
const ANSWER_BYTES: usize = 1024 * 1024;

pub(crate) fn run(hub: &Rc<Hub>, client: ClientId, request: Option<RequestId>, search: Search) {
    let hub = Rc::clone(hub);
    tokio::task::spawn_local(async move {
        let done = tokio::task::spawn_blocking(move || look_through(&search)).await;
        let result = match done {
            Ok(Ok(result)) => Ok(result),
            Ok(Err(error)) => {
                Err(RpcError::new(ErrorKind::Internal, format!("the output cannot be read: {error}")))
            }
            Err(_) => Err(RpcError::new(ErrorKind::Internal, "the search broke off")),
        };
        hub.dispatch(Event::Searched { client, request, result: Box::new(result) });
    });
}

/// A line that is being put together.
struct Partial {
    stream: Stream,
    offset: u64,
    bytes: Vec<u8>,
}

struct Looking<'a> {
    search: &'a Search,
    before: VecDeque<Line>,
    after_left: usize,
    lines: Vec<Line>,
    matches: usize,
    answer_bytes: usize,
    /// Behind the last whole line that was looked at.
    done_to: u64,
}

fn look_through(search: &Search) -> std::io::Result<SearchResult> {
    let log = LogReader::open(&search.dir)?;
    let stream = search.params.stream.map(Stream::from_wire);
    let mut looking = Looking {
        search,
        before: VecDeque::new(),
        after_left: 0,
        lines: Vec::new(),
        matches: 0,
        answer_bytes: 0,
        done_to: search.params.after,
    };
    let mut partial: [Option<Partial>; 2] = [None, None];
    let mut at = search.params.after;
    let end = log.end();
    while at < end && at - search.params.after < SCAN_BYTES && !looking.is_full() {
        let slice = log.read(at, BLOCK_BYTES, stream)?;
        if slice.next == at {
            break;
        }
        for piece in slice.pieces {
            let held = &mut partial[usize::from(piece.stream == Stream::Stderr)];
            looking.take(held, piece.stream, piece.offset, &piece.data);
        }
        at = slice.next;
    }
    let reached_end = at >= end && !looking.is_full();
    if reached_end && search.ended {
        for held in partial.iter_mut().filter_map(Option::take) {
            looking.line(held);
        }
        looking.done_to = end;
    } else if let Some(open) = partial.iter().flatten().map(|held| held.offset).min() {
        // A line that is not finished is looked at again, whole.
        looking.done_to = looking.done_to.min(open);
    } else if !looking.is_full() {
        looking.done_to = at;
    }
    let complete = reached_end;
    Ok(SearchResult {
        id: search.params.id.clone(),
        lines: looking.lines,
        next: looking.done_to,
        bytes: search.bytes,
        complete,
    })
}

impl Looking<'_> {
    fn max_matches(&self) -> usize {
        self.search.params.max_matches.map_or(MAX_MATCHES, |max| max as usize).clamp(1, MAX_MATCHES)
    }

    fn is_full(&self) -> bool {
        (self.matches >= self.max_matches() && self.after_left == 0) || self.answer_bytes >= ANSWER_BYTES
    }

    fn take(&mut self, held: &mut Option<Partial>, stream: Stream, offset: u64, data: &[u8]) {
        let mut at = 0;
        while at < data.len() {
            let rest = &data[at..];
            let end = rest.iter().position(|byte| *byte == b'\n').map(|place| place + 1);
            let part = &rest[..end.unwrap_or(rest.len()).min(LINE_BYTES)];
            let line =
                held.get_or_insert_with(|| Partial { stream, offset: offset + at as u64, bytes: Vec::new() });
            line.bytes.extend_from_slice(part);
            at += part.len();
            if (part.ends_with(b"\n") || line.bytes.len() >= LINE_BYTES)
                && let Some(line) = held.take()
            {
                self.line(line);
                if !self.is_full() {
                    self.done_to = offset + at as u64;
                }
            }
        }
    }

    fn line(&mut self, line: Partial) {
        if self.is_full() {
            return;
        }
        let text = line.bytes.strip_suffix(b"\n").unwrap_or(&line.bytes);
        let matched = self.matches < self.max_matches() && self.search.pattern.is_match(text);
        let context = (self.search.params.context as usize).min(MAX_CONTEXT);
        let shown =
            Line { stream: line.stream.to_wire(), offset: line.offset, text: Bytes(text.to_vec()), matched };
        if matched {
            self.matches += 1;
            self.after_left = context;
            for before in std::mem::take(&mut self.before) {
                self.show(before);
            }
            self.show(shown);
        } else if self.after_left > 0 {
            self.after_left -= 1;
            self.show(shown);
        } else if context > 0 {
            if self.before.len() == context {
                self.before.pop_front();
            }
            self.before.push_back(shown);
        }
    }

    fn show(&mut self, line: Line) {
        self.answer_bytes += line.text.0.len() + 64;
        self.lines.push(line);
    }
}
