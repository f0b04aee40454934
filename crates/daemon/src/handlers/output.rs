//! `output/read search follow`: the bytes of a task, by absolute offset. The files are read, never changed.

use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::output::{
    FollowParams, FollowResult, From, ReadParams, ReadResult, SearchParams, UnfollowParams, UnfollowResult,
};
use belay_record::convert::Wire as _;
use belay_record::reader::cut_at_character;
use belay_record::{LogReader, Stream};

use super::check::at_most;
use crate::answer::{Caller, Pending, What};
use crate::config::bounds;
use crate::core::Core;
use crate::doc::Entry;
use crate::event::{Action, Pattern, Search, Searched};
use crate::follow::{Follow, chunk};
use crate::world::World;

/// The output of one task as it is now.
pub(crate) struct Now {
    pub(crate) id: String,
    pub(crate) log: LogReader,
    pub(crate) bytes: u64,
    pub(crate) ended: bool,
}

impl<W: World> Core<W> {
    pub(crate) fn output_read(&mut self, caller: &Caller, params: &ReadParams) {
        match self.find(caller, &params.id).and_then(|entry| self.read_output(entry, params)) {
            Ok(result) => self.reply(caller, &result),
            Err(error) => self.fail(caller, error),
        }
    }

    pub(crate) fn output_now(&self, entry: Entry) -> Result<Now, RpcError> {
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

    fn read_output(&self, entry: Entry, params: &ReadParams) -> Result<ReadResult, RpcError> {
        let max_bytes = at_most("max_bytes", params.max_bytes, bounds::READ_BYTES)?;
        let now = self.output_now(entry)?;
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
            id: now.id,
            chunks: slice.pieces.into_iter().map(chunk).collect(),
            gaps: slice.gaps,
            next: slice.next,
            bytes: now.bytes,
            eof: now.ended && slice.next >= now.bytes,
        })
    }

    pub(crate) fn output_search(&mut self, caller: &Caller, params: SearchParams) {
        if params.context > SearchParams::MAX_CONTEXT {
            let message = format!("at most {} lines of context can be shown", SearchParams::MAX_CONTEXT);
            return self.fail(caller, RpcError::invalid("context", message));
        }
        let found = pattern(&params.pattern).and_then(|pattern| {
            at_most("max_matches", params.max_matches, usize::MAX)?;
            let entry = self.find(caller, &params.id)?;
            self.prepare_search(entry, params, pattern)
        });
        match found {
            Err(error) => self.fail(caller, error),
            Ok(what) => {
                let search = self.promise(caller.clone(), What::Search, None);
                self.actions.push(Action::Search { search, what: Box::new(what) });
            }
        }
    }

    pub(crate) fn prepare_search(
        &self,
        entry: Entry,
        params: SearchParams,
        pattern: Pattern,
    ) -> Result<Search, RpcError> {
        let now = self.output_now(entry)?;
        let dir = self.config.task_dir(&now.id);
        let memory = self.memory_of(&now.id);
        let params = SearchParams { id: now.id, ..params };
        Ok(Search { params, pattern, dir, memory, bytes: now.bytes, ended: now.ended })
    }

    pub(crate) fn searched(&mut self, search: u64, result: Result<Searched, RpcError>) {
        if let Some(Pending { what: What::Wait { .. }, .. }) = self.pending.get(&search) {
            return self.looked_for_match(search, result);
        }
        let Some(pending) = self.take_pending(search) else { return };
        match result {
            Ok(found) => self.reply(&pending.caller, &found.result),
            Err(error) => self.fail(&pending.caller, error),
        }
    }

    pub(crate) fn output_unfollow(&mut self, caller: &Caller, params: &UnfollowParams) {
        let id = match self.find(caller, &params.id) {
            Ok(entry) => entry.id,
            Err(error) => return self.fail(caller, error),
        };
        let of_task = |follow: &Follow| follow.client == caller.client && follow.task == id;
        let own: Vec<u64> =
            self.follows.iter().filter(|(_, follow)| of_task(follow)).map(|(follow, _)| *follow).collect();
        for follow in &own {
            // Who waited for the last byte does not any more.
            let answer = self.follows.get_mut(follow).and_then(|follow| follow.answer.take());
            self.drop_follow(*follow);
            if let Some((caller, info)) = answer {
                self.reply(&caller, &*info);
            }
        }
        self.reply(caller, &UnfollowResult { id, ended: own.len() as u64 });
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
        let found = self.find(caller, &params.id).and_then(|entry| self.output_now(entry));
        let begun = found.and_then(|now| {
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

/// Checks what can be checked at once.
pub(crate) fn pattern(pattern: &str) -> Result<Pattern, RpcError> {
    const PATTERN_BYTES: usize = 10_000;
    if pattern.len() > PATTERN_BYTES {
        return Err(RpcError::invalid("pattern", "the pattern is longer than 10 000 bytes"));
    }
    Ok(Pattern::new(pattern))
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
