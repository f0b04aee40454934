//! Output subscriptions (`output/follow unfollow`, `follow` in a start): one read position per follower, flow-controlled by the
//! client's socket. The bytes are read from the log at the follower's pace, one piece at a time.

use std::sync::Arc;

use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::methods::notifications::OutputEnd;
use belay_protocol::output::{OutputEndNotification, OutputFollowParams, OutputFollowResult, OutputFrom};
use belay_protocol::rpc::RequestId;
use belay_protocol::shim::ToShim;
use belay_protocol::task::TaskInfo;
use belay_record::convert::Wire as _;
use belay_record::{MemoryLog, Slice, Stream};

use super::output_read::{OutputPage, OutputRead, ReadMessage, chunk_line};
use super::process_view::task_info_reply;
use super::{Task, Tasks};
use crate::config::bounds;
use crate::host::Host;
use crate::input::{ClientId, ShimId};
use crate::requests::{Answer, Caller};
use crate::runtime::{Core, Work};

/// One subscription.
#[derive(Debug)]
pub(super) struct Follow {
    client: ClientId,
    /// The call that asked for the output.
    request: RequestId,
    /// That call is a start: it is answered after the last byte.
    is_start: bool,
    hold: Hold,
    task: String,
    /// Of a task that ended in the foreground: its log, which may be dropped elsewhere before this follower has read it.
    memory: Option<Arc<MemoryLog>>,
    stream: Option<Stream>,
    /// Text is sent instead of base64.
    text: bool,
    next: u64,
    /// How many bytes there are in all, once the task has ended.
    total: Option<u64>,
    activity: Activity,
    /// The reply that is given when the subscription ends.
    reply: Option<ReplyAfterFollow>,
}

/// Whether the output waits for the announcement of the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    No,
    /// It does. So far there may be none.
    Yes {
        has_output: bool,
    },
}

/// What is being done for a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Activity {
    /// Nothing, until there is more output or the client has read.
    None,
    /// Its next piece is being read.
    Reading {
        /// Since the read began, there may be more than it finds.
        more: bool,
    },
    /// Its next piece is read in a later step.
    Queued,
}

/// The reply to a start with `follow`.
#[derive(Debug)]
enum ReplyAfterFollow {
    /// The task has ended: after the last byte of its output.
    Ended { caller: Caller, info: Box<TaskInfo> },
    /// The task was detached: after the output up to this offset, which was written before.
    Detached { caller: Caller, until: u64 },
}

impl Follow {
    /// The subscription of a start, from the first byte on.
    pub(super) fn of_start(
        client: ClientId,
        request: RequestId,
        task: &str,
        memory: Option<Arc<MemoryLog>>,
    ) -> Self {
        Self {
            client,
            request,
            is_start: true,
            hold: Hold::No,
            task: task.to_owned(),
            memory,
            stream: None,
            text: false,
            next: 0,
            total: None,
            activity: Activity::None,
            reply: None,
        }
    }

    pub(super) fn starting_at(self, next: u64, stream: Option<Stream>, text: bool) -> Self {
        Self { stream, text, next, ..self }
    }

    /// Nothing is sent before the start is announced.
    pub(super) fn held_if(self, held: bool) -> Self {
        let hold = if held { Hold::Yes { has_output: false } } else { Hold::No };
        Self { hold, ..self }
    }

    pub(super) const fn client(&self) -> ClientId {
        self.client
    }

    pub(super) fn task(&self) -> &str {
        &self.task
    }

    fn is_complete(&self) -> bool {
        self.total.is_some_and(|total| self.next >= total)
    }
}

impl Task {
    fn is_watched(&self) -> bool {
        !self.follows.is_empty() || self.output_waits > 0
    }
}

impl Tasks {
    /// Whether a client waits for the end of a subscription.
    pub(crate) fn follow_owes_reply(&self, follow: u64) -> bool {
        self.follows.get(&follow).is_some_and(|follow| follow.reply.is_some())
    }

    /// Which of these subscriptions belongs to this start.
    pub(super) fn follow_of(&self, follows: &[u64], caller: &Caller) -> Option<u64> {
        let is_own = |follow: &u64| {
            self.follows.get(follow).is_some_and(|follow| {
                follow.is_start
                    && follow.client == caller.client
                    && Some(&follow.request) == caller.request.as_ref()
            })
        };
        follows.iter().copied().find(is_own)
    }

    /// The reply to this caller is given after the last byte of its output.
    pub(super) fn reply_after_follow(&mut self, follow: u64, caller: Caller, info: TaskInfo) {
        if let Some(follow) = self.follows.get_mut(&follow) {
            follow.reply = Some(ReplyAfterFollow::Ended { caller, info: Box::new(info) });
        }
    }

    /// Whether output is being read that a leaving daemon still sends: of a start that is owed its reply.
    pub(crate) fn is_sending_last_output(&self) -> bool {
        self.active_follows.iter().any(|follow| self.follow_owes_reply(*follow))
    }

    fn set_activity(&mut self, id: u64, activity: Activity) {
        let Some(follow) = self.follows.get_mut(&id) else { return };
        follow.activity = activity;
        if activity == Activity::None {
            self.active_follows.remove(&id);
        } else {
            self.active_follows.insert(id);
        }
    }
}

impl<H: Host> Core<H> {
    pub(crate) fn output_follow(
        &mut self,
        caller: &Caller,
        params: OutputFollowParams,
    ) -> Result<Answer, RpcError> {
        let client = self.requests.client(caller.client);
        if client.is_some_and(|client| client.follows().len() >= bounds::FOLLOWS_PER_CLIENT) {
            let message = format!("this connection follows {} tasks already", bounds::FOLLOWS_PER_CLIENT);
            return Err(RpcError::new(ErrorKind::Busy, message).hint("open another connection"));
        }
        // A call without an id gets no answer, and so no notifications that name it.
        let Some(request) = caller.request.clone() else { return Ok(Answer::Now(None)) };
        let id = params.id.clone();
        self.with_task(caller, &id, move |core, caller, task| {
            let id = task.id().to_owned();
            let stream = params.stream.map(Stream::from_wire);
            let read = OutputRead { from: params.from, stream, ..core.read_of(&id, task.ended_bytes()) };
            // The task may end while the first position is looked up: the subscription has to hear of it.
            let follow = core.add_follow(Follow {
                client: caller.client,
                request,
                is_start: false,
                hold: Hold::No,
                memory: core.tasks.memory_of(&id),
                task: id,
                stream,
                text: params.text,
                next: 0,
                total: task.ended_bytes(),
                activity: Activity::None,
                reply: None,
            });
            core.tasks.set_activity(follow, Activity::Reading { more: false });
            core.await_worker(caller, |core, finish| {
                core.read_output(read, move |core, page| {
                    finish(core, Box::new(move |core, caller| core.begin_follow(caller, follow, page)));
                });
            });
            Ok(Answer::Later)
        })
    }

    /// The first position is known. The reply comes before the first chunk.
    fn begin_follow(
        &mut self,
        caller: &Caller,
        id: u64,
        page: Result<OutputPage, RpcError>,
    ) -> Result<Answer, RpcError> {
        let from = match page {
            Ok(page) => page.from,
            Err(error) => {
                self.drop_follow(id);
                return Err(error);
            }
        };
        let Some(follow) = self.tasks.follows.get_mut(&id) else {
            let message = "the subscription was ended by output/unfollow before it began";
            return Err(RpcError::new(ErrorKind::WrongState, message));
        };
        follow.next = from;
        let result = OutputFollowResult { id: follow.task.clone(), follow: id, from };
        self.tasks.set_activity(id, Activity::None);
        self.reply(caller, &result);
        self.send_available(id);
        Ok(Answer::Sent)
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
        self.tasks.active_follows.remove(&id);
        if let Some(client) = self.requests.client_mut(follow.client) {
            client.drop_follow(id);
        }
        let of_live = self.tasks.update(&follow.task, |task| task.follows.retain(|other| *other != id));
        if of_live.is_some() {
            self.unwatch_output(&follow.task);
        }
    }

    // --- news of output ---

    /// Whether a subscription or a wait needs a report of every new output of the task.
    pub(crate) fn is_task_watched(&self, id: &str) -> bool {
        self.tasks.get(id).is_some_and(Task::is_watched)
    }

    /// A wait needs a report of every new output.
    pub(super) fn add_output_wait(&mut self, task: &str) {
        self.tasks.update(task, |task| task.output_waits += 1);
        self.watch_output(task);
    }

    pub(super) fn drop_output_wait(&mut self, task: &str) {
        self.tasks.update(task, |task| task.output_waits = task.output_waits.saturating_sub(1));
        self.unwatch_output(task);
    }

    /// Asks the shim to report new output.
    pub(crate) fn watch_output(&mut self, task: &str) {
        let Some(shim) = self.tasks.get(task).and_then(Task::shim) else { return };
        if self.shims.set_watched(shim, true) {
            self.ctx.tell_shim(shim, ToShim::Watch { on: true });
        }
    }

    /// The shim need not report new output any more, unless another subscription or wait needs it.
    fn unwatch_output(&mut self, task: &str) {
        let Some(task) = self.tasks.get(task).filter(|task| !task.is_watched()) else { return };
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
        self.send_available_to(&follows);
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

    /// Sends these followers what there is: one piece now, all others in later steps.
    pub(crate) fn send_available_to(&mut self, follows: &[u64]) {
        let Some((first, others)) = follows.split_first() else { return };
        self.send_available(*first);
        for follow in others {
            self.queue_follow(*follow);
        }
    }

    /// Sends a follower one piece of what there is, as far as its client keeps up. The next one follows by itself; if the client
    /// does not keep up, when it has read.
    pub(crate) fn send_available(&mut self, id: u64) {
        let Some(follow) = self.tasks.follows.get_mut(&id) else { return };
        if let Hold::Yes { has_output } = &mut follow.hold {
            *has_output = true;
            return;
        }
        match &mut follow.activity {
            Activity::Reading { more } => return *more = true,
            Activity::Queued => return,
            Activity::None => {}
        }
        if self.requests.client(follow.client).is_none_or(crate::requests::Client::is_congested) {
            return;
        }
        if follow.is_complete() {
            return self.finish_follow(id);
        }
        let (task, total) = (follow.task.clone(), follow.total);
        let (from, stream) = (OutputFrom::Offset { offset: follow.next }, follow.stream);
        let kept = follow.memory.clone().filter(|_| total.is_some());
        let read = OutputRead {
            from,
            stream,
            max_bytes: bounds::FOLLOW_BYTES,
            message: ReadMessage::Chunk { follow: id, request: follow.request.clone(), text: follow.text },
            ..self.read_of(&task, total)
        };
        let read = OutputRead { memory: kept.or(read.memory), ..read };
        let is_inline = read.is_in_memory();
        self.tasks.set_activity(id, Activity::Reading { more: false });
        self.read_output(read, move |core, page| core.send_piece(id, page, is_inline));
    }

    /// The start of this caller was announced, or its reply is on its way: its output may follow, in a later step.
    pub(super) fn release_follow(&mut self, task: &str, caller: &Caller) {
        let Some(request) = &caller.request else { return };
        let client = self.requests.client(caller.client);
        let follows = client.map(|client| client.follows().to_vec()).unwrap_or_default();
        for id in follows {
            let Some(follow) = self.tasks.follows.get_mut(&id) else { continue };
            if follow.task != task || follow.request != *request {
                continue;
            }
            if std::mem::replace(&mut follow.hold, Hold::No) == (Hold::Yes { has_output: true }) {
                self.queue_follow(id);
            }
        }
    }

    /// In a later step, [`Core::send_available`].
    fn queue_follow(&mut self, id: u64) {
        match self.tasks.follows.get_mut(&id).map(|follow| &mut follow.activity) {
            Some(Activity::Reading { more }) => *more = true,
            Some(Activity::None) => {
                self.tasks.set_activity(id, Activity::Queued);
                self.do_later(Work::SendOutput(id));
            }
            Some(Activity::Queued) | None => {}
        }
    }

    /// The turn of a follower that had to wait for it has come.
    pub(crate) fn send_queued(&mut self, id: u64) {
        self.tasks.set_activity(id, Activity::None);
        self.send_available(id);
        self.end_detached_follow(id);
    }

    /// A piece was read: sends it, and goes on.
    fn send_piece(&mut self, id: u64, page: Result<OutputPage, RpcError>, is_inline: bool) {
        let Some(follow) = self.tasks.follows.get(&id) else { return };
        let (client, next) = (follow.client, follow.next);
        let is_outdated = follow.activity == Activity::Reading { more: true };
        let mut page = page.unwrap_or_else(|error| {
            self.ctx.notice(error.message, "");
            OutputPage { next, ..OutputPage::default() }
        });
        if page.next == next && !is_outdated {
            // Nothing to be had: nothing yet; or the last bytes were lost to a full disk, or cannot be read. A follower that
            // waits for the end gets it all the same.
            let Some(total) = follow.total else {
                self.tasks.set_activity(id, Activity::None);
                return self.end_detached_follow(id);
            };
            let gap = Slice { gaps: vec![[next, total]], next: total, ..Slice::default() };
            page = OutputPage {
                next: total,
                line: chunk_line(&follow.request, &follow.task, id, gap, follow.text),
                from: next,
            };
        }
        if let Some(line) = page.line {
            self.send_lines(client, line, false);
        }
        self.tasks.set_activity(id, Activity::None);
        let Some(follow) = self.tasks.follows.get_mut(&id) else { return };
        follow.next = page.next;
        if is_inline && !follow.is_complete() {
            self.queue_follow(id);
        } else {
            self.send_available(id);
        }
        self.end_detached_follow(id);
    }

    /// Ends the subscription of a caller whose task was detached, once it was sent what was written before, or nothing more can be
    /// sent for now.
    fn end_detached_follow(&mut self, id: u64) {
        let Some(follow) = self.tasks.follows.get(&id) else { return };
        let Some(ReplyAfterFollow::Detached { until, .. }) = follow.reply else { return };
        if follow.next >= until || follow.activity == Activity::None {
            self.end_subscription(id);
        }
    }

    /// The task was detached: its caller gets what was written before, and then the reply.
    pub(super) fn detach_follow(&mut self, id: u64, caller: Caller) {
        let Some(task) = self.tasks.follows.get(&id).map(|follow| follow.task.clone()) else { return };
        let until = self.log_of(&task).map_or(0, |log| log.end());
        let Some(follow) = self.tasks.follows.get_mut(&id) else { return };
        follow.reply = Some(ReplyAfterFollow::Detached { caller, until });
        // The reply announces the task, if nothing did before.
        if std::mem::replace(&mut follow.hold, Hold::No) == (Hold::Yes { has_output: true }) {
            self.send_available(id);
        }
        self.end_detached_follow(id);
    }

    fn finish_follow(&mut self, id: u64) {
        let Some(follow) = self.tasks.follows.get(&id) else { return };
        let (client, bytes) = (follow.client, follow.next);
        let request = follow.request.clone();
        let end = OutputEndNotification { request, id: follow.task.clone(), follow: id, bytes };
        self.notify::<OutputEnd>(client, &end);
        self.end_subscription(id);
    }

    /// Drops a subscription and gives the reply that waited for it.
    pub(super) fn end_subscription(&mut self, id: u64) {
        let Some(follow) = self.tasks.follows.get_mut(&id) else { return };
        let (task, reply) = (follow.task.clone(), follow.reply.take());
        self.drop_follow(id);
        match reply {
            Some(ReplyAfterFollow::Ended { caller, info }) => self.reply(&caller, &*info),
            Some(ReplyAfterFollow::Detached { caller, .. }) => {
                self.reply_live(&caller, &task, true, None, task_info_reply());
            }
            None => {}
        }
    }
}
