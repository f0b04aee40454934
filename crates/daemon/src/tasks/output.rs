//! `output/read search`: the bytes of a task, by absolute offset. The log is read, never changed; searches run on workers.

use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::output::{From, ReadParams, ReadResult, SearchParams};
use belay_record::convert::Wire as _;
use belay_record::reader::cut_at_character;
use belay_record::{LogReader, Stream};

use super::output_subscription::chunk;
use super::{TaskRef, WaitReply};
use crate::config::bounds;
use crate::effect::{Effect, Pattern, Search, Searched};
use crate::host::Host;
use crate::input::JobId;
use crate::requests::check::at_most;
use crate::requests::{Answer, Caller, Reply, ReplyId, Waiter};
use crate::runtime::{Core, Stage};

/// The output of one task as it is now.
pub(super) struct OutputNow {
    pub(super) log: LogReader,
    pub(super) bytes: u64,
    pub(super) ended: bool,
}

/// A search that is running.
#[derive(Debug)]
pub(crate) struct SearchReply;

impl Reply for SearchReply {
    fn give_now<H: Host>(self, _: &mut Core<H>, _: Waiter) {}

    fn delays_exit(&self) -> bool {
        true
    }
}

impl<H: Host> Core<H> {
    pub(crate) fn output_read(&mut self, caller: &Caller, params: ReadParams) -> Result<Answer, RpcError> {
        let id = params.id.clone();
        self.with_task(caller, &id, move |core, caller, task| {
            core.read_output(&task, &params).map(|result| caller.answer(&result))
        })
    }

    pub(super) fn output_now(&self, task: &TaskRef) -> Result<OutputNow, RpcError> {
        let log = self.log_of(task.id()).map_err(|error| {
            let message = format!("the output of task {} cannot be read: {error}", task.id());
            RpcError::new(ErrorKind::Internal, message)
        })?;
        let end = match task {
            TaskRef::Live(_) => None,
            TaskRef::Ended(stored) => stored.doc.end.as_ref(),
        };
        let bytes = end.map_or_else(|| log.end(), |end| end.output.bytes);
        Ok(OutputNow { log, bytes, ended: end.is_some() })
    }

    fn read_output(&self, task: &TaskRef, params: &ReadParams) -> Result<ReadResult, RpcError> {
        let max_bytes = at_most("max_bytes", params.max_bytes, bounds::READ_BYTES)?;
        let now = self.output_now(task)?;
        let stream = params.stream.map(Stream::from_wire);
        let from = begin(&now.log, now.bytes, params.from, stream)?;
        let mut slice = now.log.read(from, max_bytes, stream).map_err(unreadable)?;
        let is_cut = slice.next < now.bytes || !now.ended;
        if params.text && is_cut {
            cut_at_character(&mut slice);
        }
        if now.ended && slice.next == now.log.end() && slice.next < now.bytes {
            // The last bytes were lost to a full disk.
            slice.gaps.push([slice.next, now.bytes]);
            slice.next = now.bytes;
        }
        Ok(ReadResult {
            id: task.id().to_owned(),
            chunks: slice.pieces.into_iter().map(chunk).collect(),
            gaps: slice.gaps,
            next: slice.next,
            bytes: now.bytes,
            eof: now.ended && slice.next >= now.bytes,
        })
    }

    pub(crate) fn output_search(
        &mut self,
        caller: &Caller,
        params: SearchParams,
    ) -> Result<Answer, RpcError> {
        if params.context > SearchParams::MAX_CONTEXT {
            let message = format!("at most {} lines of context can be shown", SearchParams::MAX_CONTEXT);
            return Err(RpcError::invalid("context", message));
        }
        let pattern = pattern(&params.pattern)?;
        at_most("max_matches", params.max_matches, usize::MAX)?;
        let id = params.id.clone();
        self.with_task(caller, &id, move |core, caller, task| {
            let ended_bytes = match &task {
                TaskRef::Live(_) => None,
                TaskRef::Ended(stored) => stored.doc.end.as_ref().map(|end| end.output.bytes),
            };
            let params = SearchParams { id: task.id().to_owned(), ..params };
            let search = core.prepare_search(params, pattern, ended_bytes)?;
            let reply = core.defer_reply(caller.clone(), SearchReply, None);
            let effect = Effect::Search { job: JobId(reply.0), search: Box::new(search) };
            core.ctx.effects.push(Stage::Unconditional, effect);
            Ok(Answer::Later)
        })
    }

    /// A search over the output of a task; `ended_bytes` says how much an ended one has written.
    pub(super) fn prepare_search(
        &self,
        params: SearchParams,
        pattern: Pattern,
        ended_bytes: Option<u64>,
    ) -> Result<Search, RpcError> {
        let memory = self.tasks.memory_of(&params.id);
        let bytes = match ended_bytes {
            Some(bytes) => bytes,
            None => self.output_now(&TaskRef::Live(params.id.clone()))?.bytes,
        };
        let dir = self.ctx.config.task_dir(&params.id);
        Ok(Search { params, pattern, dir, memory, bytes, ended: ended_bytes.is_some() })
    }

    pub(crate) fn searched(&mut self, job: JobId, result: Result<Searched, RpcError>) {
        let reply = ReplyId(job.0);
        if self.requests.reply::<WaitReply>(reply).is_some() {
            return self.match_searched(reply, result);
        }
        let Some((waiter, SearchReply)) = self.take_reply(reply) else { return };
        match result {
            Ok(found) => self.reply(&waiter.caller, &found.result),
            Err(error) => self.fail(&waiter.caller, error),
        }
    }
}

/// Checks of a pattern what can be checked at once.
pub(super) fn pattern(pattern: &str) -> Result<Pattern, RpcError> {
    const PATTERN_BYTES: usize = 10_000;
    if pattern.len() > PATTERN_BYTES {
        return Err(RpcError::invalid("pattern", "the pattern is longer than 10 000 bytes"));
    }
    Ok(Pattern::new(pattern))
}

fn unreadable(error: std::io::Error) -> RpcError {
    RpcError::new(ErrorKind::Internal, format!("the output cannot be read: {error}"))
}

/// The offset at which a read or a subscription begins.
pub(super) fn begin(
    log: &LogReader,
    bytes: u64,
    from: From,
    stream: Option<Stream>,
) -> Result<u64, RpcError> {
    match from {
        From::Offset(offset) if offset > bytes => {
            let message = format!("offset {offset} is beyond the end: the task has written {bytes} bytes");
            Err(RpcError::invalid("from", message).from_position(bytes))
        }
        From::Offset(offset) => Ok(offset),
        From::TailLines(lines) => log.tail_offset(lines, stream).map_err(unreadable),
    }
}
