//! `output/read search`: the bytes of a task, by absolute offset. The log is read, never changed; reads from disk and searches run
//! on workers.

use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::output::{OutputFrom, OutputReadParams, OutputSearchParams};
use belay_record::convert::Wire as _;
use belay_record::{LogReader, Stream};

use super::output_read::{OutputRead, ReadMessage};
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

    fn is_at_worker(&self) -> bool {
        true
    }
}

impl<H: Host> Core<H> {
    pub(crate) fn output_read(
        &mut self,
        caller: &Caller,
        params: OutputReadParams,
    ) -> Result<Answer, RpcError> {
        let max_bytes = at_most("max_bytes", params.max_bytes, bounds::READ_BYTES)?;
        let id = params.id.clone();
        self.with_task(caller, &id, move |core, caller, task| {
            let read = OutputRead {
                from: params.from,
                max_bytes,
                stream: params.stream.map(Stream::from_wire),
                message: ReadMessage::Reply { caller: caller.clone(), text: params.text },
                ..core.read_of(task.id(), task.ended_bytes())
            };
            core.await_worker(caller, |core, finish| {
                core.read_output(read, move |core, page| {
                    finish(core, Box::new(|_, _| Ok(Answer::Now(page?.line))));
                });
            });
            Ok(Answer::Later)
        })
    }

    /// A read of this task's output, for the caller to complete.
    pub(super) fn read_of(&self, task: &str, ended_bytes: Option<u64>) -> OutputRead {
        OutputRead {
            task: task.to_owned(),
            dir: self.ctx.config.task_dir(task),
            memory: self.tasks.memory_of(task),
            from: OutputFrom::Offset { offset: 0 },
            max_bytes: 0,
            stream: None,
            ended_bytes,
            message: ReadMessage::None,
        }
    }

    /// The log of one task as it is now, of which only the size and the end are to be read.
    pub(super) fn output_now(&self, task: &TaskRef) -> Result<OutputNow, RpcError> {
        let log = self.log_of(task.id()).map_err(|error| {
            let message = format!("the output of task {} cannot be read: {error}", task.id());
            RpcError::new(ErrorKind::Internal, message)
        })?;
        let bytes = task.ended_bytes().unwrap_or_else(|| log.end());
        Ok(OutputNow { log, bytes, ended: task.ended_bytes().is_some() })
    }

    pub(crate) fn output_search(
        &mut self,
        caller: &Caller,
        params: OutputSearchParams,
    ) -> Result<Answer, RpcError> {
        if params.context > OutputSearchParams::MAX_CONTEXT {
            let message =
                format!("at most {} lines of context can be shown", OutputSearchParams::MAX_CONTEXT);
            return Err(RpcError::invalid("context", message));
        }
        let pattern = pattern(&params.pattern)?;
        at_most("max_matches", params.max_matches, usize::MAX)?;
        let id = params.id.clone();
        self.with_task(caller, &id, move |core, caller, task| {
            let ended_bytes = task.ended_bytes();
            let params = OutputSearchParams { id: task.id().to_owned(), ..params };
            let reply = core.defer_reply(caller.clone(), SearchReply, None);
            core.begin_search(reply, params, pattern, ended_bytes);
            Ok(Answer::Later)
        })
    }

    /// A search over the output of a task; `ended_bytes` says how much an ended one has written.
    pub(super) fn begin_search(
        &mut self,
        reply: ReplyId,
        params: OutputSearchParams,
        pattern: Pattern,
        ended_bytes: Option<u64>,
    ) {
        let memory = self.tasks.memory_of(&params.id);
        let dir = self.ctx.config.task_dir(&params.id);
        let search = Box::new(Search { params, pattern, dir, memory, ended_bytes });
        self.ctx.effects.push(Stage::Unconditional, Effect::Search { job: JobId(reply.0), search });
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
