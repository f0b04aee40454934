//! Output subscriptions (`output/follow unfollow`, `follow` in a start): one read position per follower, flow-controlled by the
//! client's socket. The bytes are read from the log at the follower's pace.

use std::sync::Arc;

use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::methods::notify;
use belay_protocol::output::{
    Chunk, ChunkNotification, EndNotification, FollowParams, FollowResult, UnfollowParams, UnfollowResult,
};
use belay_protocol::shim::ToShim;
use belay_protocol::task::TaskInfo;
use belay_protocol::{Bytes, Timestamp};
use belay_record::convert::Wire as _;
use belay_record::{LogReader, MemoryLog, Piece, Slice, Stream};

use super::output::begin;
use super::{Task, Tasks, WaitReply};
use crate::config::bounds;
use crate::host::Host;
use crate::input::{ClientId, ShimId};
use crate::requests::{Answer, Caller};
use crate::runtime::Core;

/// One subscription.
#[derive(Debug)]
pub(super) struct Follow {
    client: ClientId,
    /// The start that asked for the output; it is answered after the last byte.
    start: Option<Caller>,
    task: String,
    /// Of a task that ended in the foreground: its log, which may be dropped elsewhere before this follower has read it.
    memory: Option<Arc<MemoryLog>>,
    stream: Option<Stream>,
    next: u64,
    /// How many bytes there are in all, once the task has ended.
    total: Option<u64>,
    /// The reply that is given after the last byte.
    reply: Option<ReplyAfterEnd>,
}

#[derive(Debug)]
struct ReplyAfterEnd {
    caller: Caller,
    info: Box<TaskInfo>,
}

impl Follow {
    /// The subscription of a start, from the first byte on.
    pub(super) fn of_start(caller: &Caller, task: &str, memory: Option<Arc<MemoryLog>>) -> Self {
        Self {
            client: caller.client,
            start: Some(caller.clone()),
            task: task.to_owned(),
            memory,
            stream: None,
            next: 0,
            total: None,
            reply: None,
        }
    }
}

pub(super) fn chunk(piece: Piece) -> Chunk {
    let Piece { stream, offset, at_ms, data } = piece;
    Chunk { stream: stream.to_wire(), offset, at: Timestamp(at_ms), data: Bytes(data) }
}

impl Tasks {
    /// Whether a client waits for the end of a subscription.
    pub(crate) fn follow_owes_reply(&self, follow: u64) -> bool {
        self.follows.get(&follow).is_some_and(|follow| follow.reply.is_some())
    }

    /// Which of these subscriptions belongs to this start.
    pub(super) fn follow_of(&self, follows: &[u64], caller: &Caller) -> Option<u64> {
        let is_own = |follow: &u64| {
            self.follows.get(follow).is_some_and(|follow| follow.start.as_ref() == Some(caller))
        };
        follows.iter().copied().find(is_own)
    }

    /// The reply to this caller is given after the last byte of its output.
    pub(super) fn reply_after_follow(&mut self, follow: u64, caller: Caller, info: TaskInfo) {
        if let Some(follow) = self.follows.get_mut(&follow) {
            follow.reply = Some(ReplyAfterEnd { caller, info: Box::new(info) });
        }
    }
}

impl<H: Host> Core<H> {
    pub(crate) fn output_follow(
        &mut self,
        caller: &Caller,
        params: FollowParams,
    ) -> Result<Answer, RpcError> {
        let client = self.requests.client(caller.client);
        if client.is_some_and(|client| client.follows().len() >= bounds::FOLLOWS_PER_CLIENT) {
            let message = format!("this connection follows {} tasks already", bounds::FOLLOWS_PER_CLIENT);
            return Err(RpcError::new(ErrorKind::Busy, message).hint("open another connection"));
        }
        let id = params.id.clone();
        self.with_task(caller, &id, move |core, caller, task| {
            let stream = params.stream.map(Stream::from_wire);
            let now = core.output_now(&task)?;
            let from = begin(&now.log, now.bytes, params.from, stream)?;
            let id = task.id().to_owned();
            let follow = core.add_follow(Follow {
                client: caller.client,
                start: None,
                task: id.clone(),
                memory: core.tasks.memory_of(&id),
                stream,
                next: from,
                total: now.ended.then_some(now.bytes),
                reply: None,
            });
            // The reply comes before the first chunk.
            core.reply(caller, &FollowResult { id, follow, from });
            core.send_available(follow);
            Ok(Answer::Sent)
        })
    }

    pub(crate) fn output_unfollow(
        &mut self,
        caller: &Caller,
        params: UnfollowParams,
    ) -> Result<Answer, RpcError> {
        self.with_task(caller, &params.id, |core, caller, task| {
            let id = task.id().to_owned();
            let client = core.requests.client(caller.client);
            let follows = client.map(|client| client.follows().to_vec()).unwrap_or_default();
            let is_of_task =
                |follow: &u64| core.tasks.follows.get(follow).is_some_and(|follow| follow.task == id);
            let own: Vec<u64> = follows.into_iter().filter(is_of_task).collect();
            for follow in &own {
                let reply = core.tasks.follows.get_mut(follow).and_then(|follow| follow.reply.take());
                core.drop_follow(*follow);
                if let Some(ReplyAfterEnd { caller, info }) = reply {
                    core.reply(&caller, &*info);
                }
            }
            Ok(caller.answer(&UnfollowResult { id, ended: own.len() as u64 }))
        })
    }

    pub(super) fn add_follow(&mut self, follow: Follow) -> u64 {
        let id = self.ctx.next_number();
        if let Some(client) = self.requests.client_mut(follow.client) {
            client.add_follow(id);
        }
        let task = follow.task.clone();
        self.tasks.follows.insert(id, follow);
        if self.tasks.update(&task, |task| task.follows.push(id)).is_some() {
            self.watch_output(&task);
        }
        id
    }

    pub(crate) fn drop_follow(&mut self, id: u64) {
        let Some(follow) = self.tasks.follows.remove(&id) else { return };
        if let Some(client) = self.requests.client_mut(follow.client) {
            client.drop_follow(id);
        }
        let of_live = self.tasks.update(&follow.task, |task| task.follows.retain(|other| *other != id));
        if of_live.is_some() {
            self.unwatch_output(&follow.task);
        }
    }

    // --- news of output ---

    /// Whether a subscription or a wait has to be told about every new output of the task.
    pub(super) fn is_watched(&self, task: &Task) -> bool {
        let watches = |reply| self.requests.reply::<WaitReply>(reply).is_some_and(WaitReply::watches_output);
        !task.follows.is_empty() || self.requests.of_task(task.id()).into_iter().any(watches)
    }

    pub(crate) fn is_task_watched(&self, id: &str) -> bool {
        self.tasks.get(id).is_some_and(|task| self.is_watched(task))
    }

    /// Asks the shim to report new output.
    pub(crate) fn watch_output(&mut self, task: &str) {
        let Some(shim) = self.tasks.get(task).and_then(Task::shim) else { return };
        if self.shims.set_watched(shim, true) {
            self.ctx.tell_shim(shim, ToShim::Watch { on: true });
        }
    }

    /// The shim need not report new output any more, unless somebody else wants to know.
    pub(super) fn unwatch_output(&mut self, task: &str) {
        let Some(task) = self.tasks.get(task).filter(|task| !self.is_watched(task)) else { return };
        let Some(shim) = task.shim else { return };
        if self.shims.set_watched(shim, false) {
            self.ctx.tell_shim(shim, ToShim::Watch { on: false });
        }
    }

    /// The shim has reported new output.
    pub(crate) fn output_grew(&mut self, shim: ShimId, bytes: u64) {
        let Some(id) = self.shims.task_of(shim).map(str::to_owned) else { return };
        let Some(follows) = self.tasks.update(&id, |task| {
            task.no_disk_output = false;
            task.follows.clone()
        }) else {
            return;
        };
        for follow in follows {
            self.send_available(follow);
        }
        for wait in self.requests.of_task(&id) {
            self.wait_sees_output(wait, bytes);
        }
    }

    // --- sending ---

    /// The task has ended: the rest is sent, then the end.
    pub(super) fn end_follow(&mut self, id: u64, total: u64) {
        let Some(task) = self.tasks.follows.get(&id).map(|follow| follow.task.clone()) else { return };
        let memory = self.tasks.memory_of(&task);
        if let Some(follow) = self.tasks.follows.get_mut(&id) {
            follow.total = Some(total);
            follow.memory = memory;
            self.send_available(id);
        }
    }

    /// Sends a follower what there is, as far as its client keeps up. Called again when the client has read.
    pub(crate) fn send_available(&mut self, id: u64) {
        while let Some(follow) = self.tasks.follows.get(&id) {
            let Some(client) = self.requests.client(follow.client) else { return };
            if client.is_congested() {
                return;
            }
            if follow.total.is_some_and(|total| follow.next >= total) {
                return self.finish_follow(id);
            }
            if !self.send_piece(id) {
                return;
            }
        }
    }

    /// Sends one notification. False if there is nothing to send now.
    fn send_piece(&mut self, id: u64) -> bool {
        let Some(follow) = self.tasks.follows.get(&id) else { return false };
        let log = match &follow.memory {
            Some(memory) if follow.total.is_some() => LogReader::in_memory(Arc::clone(memory)),
            _ => self.log_of(&follow.task),
        };
        let read = log.and_then(|log| log.read(follow.next, bounds::FOLLOW_BYTES, follow.stream));
        let (next, total) = (follow.next, follow.total);
        let mut slice = match read {
            Ok(slice) => slice,
            Err(error) => {
                let message = format!("the output of task {} cannot be read: {error}", follow.task);
                self.ctx.notice(message, "");
                Slice { next, ..Slice::default() }
            }
        };
        if slice.next == next {
            // Nothing to be had: nothing yet; or the last bytes were lost to a full disk, or cannot be read. A follower that
            // waits for the end gets it all the same.
            let Some(total) = total else { return false };
            slice.gaps.push([next, total]);
            slice.next = total;
        }
        let Some(follow) = self.tasks.follows.get_mut(&id) else { return false };
        follow.next = slice.next;
        if slice.pieces.is_empty() && slice.gaps.is_empty() {
            return true;
        }
        let (client, task) = (follow.client, follow.task.clone());
        let chunks = slice.pieces.into_iter().map(chunk).collect();
        let message = ChunkNotification { id: task, follow: id, chunks, gaps: slice.gaps, next: slice.next };
        self.notify(client, notify::OUTPUT_CHUNK, &message);
        true
    }

    fn finish_follow(&mut self, id: u64) {
        let Some(follow) = self.tasks.follows.get_mut(&id) else { return };
        let (client, bytes, reply) = (follow.client, follow.next, follow.reply.take());
        let end = EndNotification { id: follow.task.clone(), follow: id, bytes };
        self.notify(client, notify::OUTPUT_END, &end);
        self.drop_follow(id);
        if let Some(ReplyAfterEnd { caller, info }) = reply {
            self.reply(&caller, &*info);
        }
    }
}
