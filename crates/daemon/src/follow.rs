//! Followers of output: each has its own offset, reads from disk at its own pace, and is never sent more than it reads.

use std::sync::Arc;

use belay_protocol::methods::notify;
use belay_protocol::output::{Chunk, ChunkNotification, EndNotification};
use belay_protocol::shim::ToShim;
use belay_protocol::task::TaskInfo;
use belay_protocol::{Bytes, Timestamp};
use belay_record::convert::Wire as _;
use belay_record::{LogReader, MemoryLog, Piece, Slice, Stream};

use crate::answer::{Caller, Pending, What};
use crate::config::bounds;
use crate::core::{Core, Task};
use crate::event::{Action, ClientId, ShimId};
use crate::world::World;

#[derive(Debug)]
pub(crate) struct Follow {
    pub(crate) client: ClientId,
    /// The start that wanted the output; it is answered after the last byte.
    pub(crate) caller: Option<Caller>,
    pub(crate) task: String,
    /// Of a task that has ended in the foreground: its log, which others may have forgotten before this one has read it.
    pub(crate) memory: Option<Arc<MemoryLog>>,
    pub(crate) stream: Option<Stream>,
    pub(crate) next: u64,
    /// How many bytes there are in all, once the task has ended.
    pub(crate) total: Option<u64>,
    pub(crate) answer: Option<(Caller, Box<TaskInfo>)>,
}

impl Follow {
    pub(crate) fn answers(&self, caller: &Caller) -> bool {
        self.caller.as_ref().is_some_and(|own| own.client == caller.client && own.request == caller.request)
    }
}

pub(crate) fn chunk(piece: Piece) -> Chunk {
    let Piece { stream, offset, at_ms, data } = piece;
    Chunk { stream: stream.to_wire(), offset, at: Timestamp(at_ms), data: Bytes(data) }
}

impl<W: World> Core<W> {
    pub(crate) fn add_follow(&mut self, follow: Follow) -> u64 {
        let id = self.next_number();
        if let Some(client) = self.clients.get_mut(&follow.client) {
            client.follows.push(id);
        }
        let task = follow.task.clone();
        self.follows.insert(id, follow);
        if let Some(live) = self.tasks.get_mut(&task) {
            live.follows.push(id);
            self.watch_output(&task);
        }
        id
    }

    pub(crate) fn drop_follow(&mut self, id: u64) {
        let Some(follow) = self.follows.remove(&id) else { return };
        if let Some(client) = self.clients.get_mut(&follow.client) {
            client.follows.retain(|other| *other != id);
        }
        if let Some(task) = self.tasks.get_mut(&follow.task) {
            task.follows.retain(|other| *other != id);
            self.unwatch_output(&follow.task);
        }
    }

    /// Whether somebody wants to know of every new output of the task.
    pub(crate) fn is_watched(&self, task: &Task) -> bool {
        let looks = |id: &u64| {
            matches!(self.pending.get(id), Some(Pending { what: What::Wait { until: Some(_), .. }, .. }))
        };
        !task.follows.is_empty() || task.pending.iter().any(looks)
    }

    /// The shim need not say so any more, if nobody else wants to know.
    pub(crate) fn unwatch_output(&mut self, task: &str) {
        let Some(task) = self.tasks.get(task).filter(|task| !self.is_watched(task)) else { return };
        let Some(id) = task.shim else { return };
        if let Some(shim) = self.shims.get_mut(&id).filter(|shim| shim.watched) {
            shim.watched = false;
            self.actions.push(Action::ToShim { shim: id, message: ToShim::Watch { on: false } });
        }
    }

    /// Asks the shim to say when there is more.
    pub(crate) fn watch_output(&mut self, task: &str) {
        let Some(id) = self.tasks.get(task).and_then(|task| task.shim) else { return };
        let Some(shim) = self.shims.get_mut(&id).filter(|shim| !shim.watched) else { return };
        shim.watched = true;
        self.actions.push(Action::ToShim { shim: id, message: ToShim::Watch { on: true } });
    }

    pub(crate) fn output_grew(&mut self, shim: ShimId, bytes: u64) {
        let Some(task) = self.shims.get(&shim).and_then(|shim| shim.task.clone()) else { return };
        let Some(task) = self.tasks.get_mut(&task) else { return };
        task.silent = false;
        let (follows, waits) = (task.follows.clone(), task.pending.clone());
        for follow in follows {
            self.pump(follow);
        }
        for wait in waits {
            self.wait_saw_output(wait, bytes);
        }
    }

    /// The task has ended: what is left goes out, then the end.
    pub(crate) fn end_follow(&mut self, id: u64, total: u64) {
        let Some(task) = self.follows.get(&id).map(|follow| follow.task.clone()) else { return };
        let memory = self.memory_of(&task);
        if let Some(follow) = self.follows.get_mut(&id) {
            follow.total = Some(total);
            follow.memory = memory;
            self.pump(id);
        }
    }

    pub(crate) fn answer_after_follow(&mut self, id: u64, caller: Caller, info: TaskInfo) {
        if let Some(follow) = self.follows.get_mut(&id) {
            follow.answer = Some((caller, Box::new(info)));
        }
    }

    /// Sends a follower what there is, as far as it keeps up. Its reading calls this again.
    pub(crate) fn pump(&mut self, id: u64) {
        while let Some(follow) = self.follows.get(&id) {
            let Some(client) = self.clients.get(&follow.client) else { return };
            if client.queued_bytes >= bounds::CLIENT_QUEUE_BYTES {
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

    /// One notification. False if there is nothing to send now.
    fn send_piece(&mut self, id: u64) -> bool {
        let Some(follow) = self.follows.get(&id) else { return false };
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
                self.notice(message, "");
                Slice { next, ..Slice::default() }
            }
        };
        if slice.next == next {
            // Nothing to be had: either nothing yet, or its last bytes were lost to a full disk, or cannot be read. Whoever waits
            // for the end gets it all the same.
            let Some(total) = total else { return false };
            slice.gaps.push([next, total]);
            slice.next = total;
        }
        let Some(follow) = self.follows.get_mut(&id) else { return false };
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
        let Some(follow) = self.follows.get_mut(&id) else { return };
        let (client, bytes, answer) = (follow.client, follow.next, follow.answer.take());
        let end = EndNotification { id: follow.task.clone(), follow: id, bytes };
        self.notify(client, notify::OUTPUT_END, &end);
        self.drop_follow(id);
        if let Some((caller, info)) = answer {
            self.reply(&caller, &*info);
        }
    }
}
