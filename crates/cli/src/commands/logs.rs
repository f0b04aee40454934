//! `belay logs`: what a task wrote, read by absolute offset, followed, or searched.

mod brief;
mod head;

use belay_client::{Message, OutputCursor, OutputPiece};
use belay_protocol::methods::{Notification, OutputFollow, OutputRead, OutputSearch};
use belay_protocol::output::{
    OutputFollowParams, OutputFrom as Begin, OutputReadParams, OutputSearchLine, OutputSearchParams,
    OutputSearchResult, StreamName,
};

use self::head::Head;
use crate::args::{LogsArgs, Stream};
use crate::context::Context;
use crate::error::{CliError, Kind};
use crate::ui::filter::Filter;

pub(crate) fn run(mut args: LogsArgs, context: &mut Context) -> Result<u8, CliError> {
    args.id = context.task_id(&args.id)?;
    let args = &args;
    if let Some(budget) = args.brief {
        return brief::run(args, budget, context);
    }
    if let Some(pattern) = &args.grep {
        return grep(args, pattern, context);
    }
    let mut show = Show::new(args, context);
    if args.follow {
        follow(args, &mut show, context)?;
    } else {
        read(args, &mut show, context)?;
    }
    show.finish(context)?;
    Ok(0)
}

/// How pieces of output are shown.
struct Show {
    json: bool,
    /// One filter for each stream where a terminal must be kept safe: what is cut in two is cut within a stream.
    filters: Option<[Filter; 2]>,
}

impl Show {
    fn new(args: &LogsArgs, context: &Context) -> Self {
        let safe = context.term.stdout && !args.raw && !args.json;
        Self { json: args.json, filters: safe.then(<[Filter; 2]>::default) }
    }

    fn pieces(&mut self, pieces: Vec<OutputPiece>, context: &mut Context) -> Result<(), CliError> {
        for piece in pieces {
            match (piece, &mut self.filters) {
                (OutputPiece::Gap { from, to }, _) => note_gap([from, to], context)?,
                (OutputPiece::Chunk(chunk), _) if self.json => context.out.json(&chunk)?,
                (OutputPiece::Chunk(chunk), None) => context.out.bytes(&chunk.data.0)?,
                (OutputPiece::Chunk(chunk), Some(filters)) => {
                    let filter = &mut filters[usize::from(chunk.stream == StreamName::Stderr)];
                    context.out.bytes(&filter.feed(&chunk.data.0))?;
                }
            }
        }
        Ok(())
    }

    fn finish(self, context: &mut Context) -> Result<(), CliError> {
        for mut filter in self.filters.into_iter().flatten() {
            context.out.bytes(&filter.finish())?;
        }
        Ok(())
    }
}

fn begin(args: &LogsArgs) -> Begin {
    args.tail
        .map_or_else(|| Begin::Offset { offset: args.after.unwrap_or(0) }, |lines| Begin::TailLines { lines })
}

fn stream(args: &LogsArgs) -> Option<StreamName> {
    args.stream.map(|stream| match stream {
        Stream::Stdout => StreamName::Stdout,
        Stream::Stderr => StreamName::Stderr,
    })
}

fn read(args: &LogsArgs, show: &mut Show, context: &mut Context) -> Result<(), CliError> {
    let mut client = context.connect()?;
    let mut cursor = OutputCursor::at(args.after.unwrap_or(0));
    let mut params = OutputReadParams {
        id: args.id.clone(),
        from: begin(args),
        max_bytes: None,
        stream: stream(args),
        text: args.json && !args.raw,
    };
    let (mut head, mut end) = (Head::new(args.head), None);
    loop {
        let page = client.call::<OutputRead>(&params)?;
        show.pieces(head.cut(cursor.take(page.chunks, &page.gaps, page.next)), context)?;
        // What was there when we began; a noisy task would never let us end otherwise.
        let end = *end.get_or_insert(page.bytes);
        let stuck = params.from == Begin::Offset { offset: page.next };
        if page.eof || page.next >= end || stuck || head.is_over() {
            return Ok(());
        }
        params.from = Begin::Offset { offset: page.next };
    }
}

fn follow(args: &LogsArgs, show: &mut Show, context: &mut Context) -> Result<(), CliError> {
    let mut client = context.connect()?;
    let params = OutputFollowParams {
        id: args.id.clone(),
        from: begin(args),
        stream: stream(args),
        text: args.json && !args.raw,
    };
    let mut cursor = OutputCursor::at(client.call::<OutputFollow>(&params)?.from);
    loop {
        match context.next_message(&mut client)? {
            Message::Notification(Notification::OutputChunk(new)) => {
                let new = *new;
                show.pieces(cursor.take(new.chunks, &new.gaps, new.next), context)?;
            }
            Message::Notification(Notification::OutputEnd(_)) => return Ok(()),
            Message::SubscriptionEnded { error, .. } => return Err(error.into()),
            _ => {}
        }
    }
}

fn grep(args: &LogsArgs, pattern: &str, context: &mut Context) -> Result<u8, CliError> {
    let mut client = context.connect()?;
    let mut params = OutputSearchParams {
        id: args.id.clone(),
        pattern: pattern.to_owned(),
        after: args.after.unwrap_or(0),
        stream: stream(args),
        context: args.context,
        max_matches: None,
        cursor: None,
        text: args.json && !args.raw,
    };
    let mut groups = Groups::new(args.context > 0);
    let (mut head, mut matched) = (Head::new(args.head), false);
    loop {
        let mut page = client.call::<OutputSearch>(&params)?;
        let over = head.keep(&mut page.lines, args.context);
        if over {
            let end = page.lines.last().map_or(0, |found| found.line.offset);
            page.gaps.retain(|gap| gap[1] <= end);
        }
        matched |= page.lines.iter().any(|found| found.line.matched);
        show_page(&page, args.json, &mut groups, context)?;
        if page.complete || over {
            return Ok(u8::from(!matched));
        }
        if page.next.is_none() || page.next == params.cursor {
            // To end here would pass for having searched it all.
            return Err(CliError::new(Kind::Unreachable, "the search does not come to its end".to_owned()));
        }
        params.cursor = page.next;
    }
}

/// The lines of one answer, with the gaps where they belong.
fn show_page(
    page: &OutputSearchResult,
    json: bool,
    groups: &mut Groups,
    context: &mut Context,
) -> Result<(), CliError> {
    let mut gaps = page.gaps.iter().peekable();
    for found in &page.lines {
        while let Some(gap) = gaps.next_if(|gap| gap[1] <= found.line.offset) {
            note_gap(*gap, context)?;
        }
        if json {
            context.out.json(found)?;
        } else {
            let text = groups.text(found, context.term.stdout);
            context.out.bytes(&text)?;
        }
    }
    gaps.try_for_each(|gap| note_gap(*gap, context))
}

/// The line that stands for bytes that were not kept.
pub(crate) fn gap_text(from: u64, to: u64) -> String {
    format!("[… {} bytes not kept: offsets {from}–{to} …]", to.saturating_sub(from))
}

fn note_gap([from, to]: [u64; 2], context: &mut Context) -> Result<(), CliError> {
    context.out.flush()?;
    context.note(&gap_text(from, to));
    Ok(())
}

/// Lines as `grep` shows them: `--` where something is left out between lines of context. A line that is not finished
/// has no newline here either, unless another follows.
pub(crate) struct Groups {
    with_context: bool,
    /// The line that was shown last: its number, and whether it is still open.
    last: Option<(u64, bool)>,
}

impl Groups {
    pub(crate) const fn new(with_context: bool) -> Self {
        Self { with_context, last: None }
    }

    pub(crate) fn text(&mut self, found: &OutputSearchLine, safe: bool) -> Vec<u8> {
        let mut text = Vec::new();
        if let Some((number, open)) = self.last.replace((found.number, found.open)) {
            text.extend_from_slice(if open { b"\n" } else { b"" });
            let is_next = number.checked_add(1) == Some(found.number);
            text.extend_from_slice(if self.with_context && !is_next { b"--\n" } else { b"" });
        }
        let bytes = &found.line.data.0;
        if safe {
            let mut filter = Filter::default();
            text.extend(filter.feed(bytes));
            text.extend(filter.finish());
        } else {
            text.extend_from_slice(bytes);
        }
        text.extend_from_slice(if found.open { b"" } else { b"\n" });
        text
    }
}
