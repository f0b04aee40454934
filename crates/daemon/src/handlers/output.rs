//! `output/read search follow`: the bytes of a task, by absolute offset. The files are read, never changed.

use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::output::{
    FollowParams, FollowResult, From, ReadParams, ReadResult, SearchParams, SearchResult,
};
use belay_protocol::rpc::RequestId;
use belay_record::convert::Wire as _;
use belay_record::reader::cut_at_character;
use belay_record::{LogReader, Stream};

use crate::answer::{Caller, What};
use crate::config::bounds;
use crate::core::Core;
use crate::event::{Action, ClientId, Search};
use crate::follow::{Follow, chunk};
use crate::world::World;

/// The output of one task as it is now.
struct Now {
    id: String,
    log: LogReader,
    bytes: u64,
    ended: bool,
}

impl<W: World> Core<W> {
    pub(crate) fn output_read(&mut self, caller: &Caller, params: &ReadParams) {
        match self.read_output(params) {
            Ok(result) => self.reply(caller, &result),
            Err(error) => self.fail(caller, error),
        }
    }

    fn output_now(&self, id: &str) -> Result<Now, RpcError> {
        let entry = self.entry(&self.resolve(id)?)?;
        let log = self.log_of(&entry.id).map_err(|error| {
            RpcError::new(
                ErrorKind::Internal,
                format!("the output of task {} cannot be read: {error}", entry.id),
            )
        })?;
        let (bytes, ended) = match &entry.doc.end {
            Some(end) => (end.output.bytes, true),
            None => (log.end(), false),
        };
        Ok(Now { id: entry.id, log, bytes, ended })
    }

    fn read_output(&self, params: &ReadParams) -> Result<ReadResult, RpcError> {
        let now = self.output_now(&params.id)?;
        let stream = params.stream.map(Stream::from_wire);
        let from = begin(&now.log, now.bytes, params.from, stream)?;
        let asked = params.max_bytes.and_then(|max| usize::try_from(max).ok()).unwrap_or(bounds::READ_BYTES);
        let max_bytes = asked.clamp(1, bounds::READ_BYTES);
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
            id: now.id,
            chunks: slice.pieces.into_iter().map(chunk).collect(),
            gaps: slice.gaps,
            next: slice.next,
            bytes: now.bytes,
            eof: now.ended && slice.next >= now.bytes,
        })
    }

    pub(crate) fn output_search(&mut self, caller: &Caller, params: SearchParams) {
        const PATTERN_BYTES: usize = 10_000;
        const COMPILED_BYTES: usize = 4 * 1024 * 1024;
        if params.pattern.len() > PATTERN_BYTES {
            return self
                .fail(caller, RpcError::invalid("pattern", "the pattern is longer than 10 000 bytes"));
        }
        if params.context > SearchParams::MAX_CONTEXT {
            let message = format!("at most {} lines of context can be shown", SearchParams::MAX_CONTEXT);
            return self.fail(caller, RpcError::invalid("context", message));
        }
        let built = regex::bytes::RegexBuilder::new(&params.pattern).size_limit(COMPILED_BYTES).build();
        let pattern = match built {
            Ok(pattern) => pattern,
            Err(error) => {
                let message = format!("that is no regular expression: {error}");
                return self.fail(caller, RpcError::invalid("pattern", message));
            }
        };
        match self.output_now(&params.id) {
            Err(error) => self.fail(caller, error),
            Ok(now) => {
                let dir = self.config.task_dir(&now.id);
                let params = SearchParams { id: now.id, ..params };
                let memory = self.memory_of(&params.id);
                let search = Search { params, pattern, dir, memory, bytes: now.bytes, ended: now.ended };
                let Caller { client, request } = caller.clone();
                self.promise(caller.clone(), What::Search, None);
                self.actions.push(Action::Search { client, request, search: Box::new(search) });
            }
        }
    }

    pub(crate) fn searched(
        &mut self,
        client: ClientId,
        request: Option<RequestId>,
        result: Result<SearchResult, RpcError>,
    ) {
        let is_this = |caller: &Caller| caller.client == client && caller.request == request;
        let found = self
            .pending
            .iter()
            .find(|(_, pending)| matches!(pending.what, What::Search) && is_this(&pending.caller));
        let Some(id) = found.map(|(id, _)| *id) else { return };
        let Some(pending) = self.take_pending(id) else { return };
        match result {
            Ok(result) => self.reply(&pending.caller, &result),
            Err(error) => self.fail(&pending.caller, error),
        }
    }

    pub(crate) fn output_follow(&mut self, caller: &Caller, params: &FollowParams) {
        let too_many = self
            .clients
            .get(&caller.client)
            .is_some_and(|client| client.follows.len() >= bounds::FOLLOWS_PER_CLIENT);
        if too_many {
            let message = format!("this connection follows {} tasks already", bounds::FOLLOWS_PER_CLIENT);
            return self
                .fail(caller, RpcError::new(ErrorKind::Busy, message).hint("open another connection"));
        }
        let stream = params.stream.map(Stream::from_wire);
        let begun = self.output_now(&params.id).and_then(|now| {
            let from = begin(&now.log, now.bytes, params.from, stream)?;
            Ok((now, from))
        });
        match begun {
            Err(error) => self.fail(caller, error),
            Ok((now, from)) => {
                let follow = Follow {
                    client: caller.client,
                    caller: None,
                    task: now.id.clone(),
                    memory: self.memory_of(&now.id),
                    stream,
                    next: from,
                    total: now.ended.then_some(now.bytes),
                    answer: None,
                };
                let follow = self.add_follow(follow);
                self.reply(caller, &FollowResult { id: now.id, follow, from });
                self.pump(follow);
            }
        }
    }
}

fn unreadable(error: std::io::Error) -> RpcError {
    RpcError::new(ErrorKind::Internal, format!("the output cannot be read: {error}"))
}

fn begin(log: &LogReader, bytes: u64, from: From, stream: Option<Stream>) -> Result<u64, RpcError> {
    match from {
        From::Offset(offset) if offset > bytes => {
            let message = format!("offset {offset} is beyond the end: the task has written {bytes} bytes");
            Err(RpcError::invalid("from", message).from_position(bytes))
        }
        From::Offset(offset) => Ok(offset),
        From::TailLines(lines) => log.tail_offset(lines, stream).map_err(unreadable),
    }
}
