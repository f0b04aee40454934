//! Replies that are owed and cannot be given yet: one table with a line for each kind, what happens to each at the end of a
//! task, at its deadline and when the daemon leaves, and the indexes that find them. The kinds live with their methods.

use belay_protocol::error::{ErrorKind, RpcError};

use super::{Caller, Pending, Requests};
use crate::host::Host;
use crate::runtime::{Core, Timer};
use crate::tasks::TaskEnded;

/// Names a reply that is owed, for the life of this daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ReplyId(pub(crate) u64);

/// A reply that was taken out of the table in order to be given: its id and who gets it.
#[derive(Clone, Debug)]
pub(crate) struct Waiter {
    pub(crate) id: ReplyId,
    pub(crate) caller: Caller,
}

/// What the end of a task means for a pending reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// It goes on waiting.
    Keep,
    /// It can be given now.
    Complete,
}

/// How a detach answers a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DetachAnswer {
    Task,
    Wait,
}

/// One kind of pending reply.
pub(crate) trait Reply: Sized {
    /// The tasks it is about: their ends are reported to it.
    fn tasks(&self) -> Vec<&str> {
        Vec::new()
    }

    /// The session it is about.
    fn session(&self) -> Option<&str> {
        None
    }

    /// One of its tasks has ended.
    fn task_ended(&mut self, _: &TaskEnded) -> Progress {
        Progress::Complete
    }

    /// Whether the end of the task is what it waits for: then the reply reports the end to the task's session.
    fn awaits_end(&self) -> bool {
        false
    }

    /// Its deadline has come. True if it has to wait for something that is under way, and is given after that.
    fn hold_deadline(&mut self) -> bool {
        false
    }

    /// Gives the reply because its task has ended. Only called for a reply that is about a task.
    fn complete<H: Host>(self, core: &mut Core<H>, waiter: Waiter, _: &TaskEnded) {
        core.fail(&waiter.caller, super::internal());
    }

    /// Gives the reply now, with what is known: its deadline has come, or what it waited for is there.
    fn give_now<H: Host>(self, core: &mut Core<H>, waiter: Waiter);

    /// It is completed after all other replies about the same task, and after the task's sessions know of its end.
    fn completes_last(&self) -> bool {
        false
    }

    /// A detach of its task answers it: with the task, or as a wait that was met.
    fn answered_by_detach(&self) -> Option<DetachAnswer> {
        None
    }

    /// Gives the reply because the daemon leaves before it is there.
    fn daemon_leaves<H: Host>(self, core: &mut Core<H>, waiter: Waiter) {
        let error = RpcError::new(ErrorKind::ShuttingDown, "the daemon is leaving; the task goes on")
            .hint("ask again: the next call starts a daemon that adopts it");
        core.fail(&waiter.caller, error);
    }

    /// A leaving daemon waits until this reply is given.
    fn delays_exit(&self) -> bool {
        false
    }

    /// It goes on without the client that asked for it.
    fn survives_client(&self) -> bool {
        false
    }

    /// It waits for a worker: a client with too many of these is not read from.
    fn is_at_worker(&self) -> bool {
        false
    }

    /// It is out of the table, whatever becomes of it: timers and subscriptions of its own end here.
    fn removed<H: Host>(&self, _: &mut Core<H>, _: ReplyId) {}
}

/// A kind that stands in the table.
pub(crate) trait Kind: Sized {
    fn get(reply: &PendingReply) -> Option<&Self>;
    fn get_mut(reply: &mut PendingReply) -> Option<&mut Self>;
    fn take(reply: PendingReply) -> Option<Self>;
}

macro_rules! pending_replies {
    ($( $kind:ident($reply:ty), )*) => {
        #[derive(Debug)]
        pub(crate) enum PendingReply {
            $( $kind($reply), )*
        }

        $(
            impl From<$reply> for PendingReply {
                fn from(reply: $reply) -> Self {
                    Self::$kind(reply)
                }
            }

            impl Kind for $reply {
                fn get(reply: &PendingReply) -> Option<&Self> {
                    if let PendingReply::$kind(reply) = reply { Some(reply) } else { None }
                }
                fn get_mut(reply: &mut PendingReply) -> Option<&mut Self> {
                    if let PendingReply::$kind(reply) = reply { Some(reply) } else { None }
                }
                fn take(reply: PendingReply) -> Option<Self> {
                    if let PendingReply::$kind(reply) = reply { Some(reply) } else { None }
                }
            }
        )*

        impl Reply for PendingReply {
            fn tasks(&self) -> Vec<&str> {
                match self { $( Self::$kind(reply) => reply.tasks(), )* }
            }
            fn session(&self) -> Option<&str> {
                match self { $( Self::$kind(reply) => reply.session(), )* }
            }
            fn task_ended(&mut self, ended: &TaskEnded) -> Progress {
                match self { $( Self::$kind(reply) => reply.task_ended(ended), )* }
            }
            fn awaits_end(&self) -> bool {
                match self { $( Self::$kind(reply) => reply.awaits_end(), )* }
            }
            fn hold_deadline(&mut self) -> bool {
                match self { $( Self::$kind(reply) => reply.hold_deadline(), )* }
            }
            fn complete<H: Host>(self, core: &mut Core<H>, waiter: Waiter, ended: &TaskEnded) {
                match self { $( Self::$kind(reply) => reply.complete(core, waiter, ended), )* }
            }
            fn give_now<H: Host>(self, core: &mut Core<H>, waiter: Waiter) {
                match self { $( Self::$kind(reply) => reply.give_now(core, waiter), )* }
            }
            fn completes_last(&self) -> bool {
                match self { $( Self::$kind(reply) => reply.completes_last(), )* }
            }
            fn answered_by_detach(&self) -> Option<DetachAnswer> {
                match self { $( Self::$kind(reply) => reply.answered_by_detach(), )* }
            }
            fn daemon_leaves<H: Host>(self, core: &mut Core<H>, waiter: Waiter) {
                match self { $( Self::$kind(reply) => reply.daemon_leaves(core, waiter), )* }
            }
            fn delays_exit(&self) -> bool {
                match self { $( Self::$kind(reply) => reply.delays_exit(), )* }
            }
            fn survives_client(&self) -> bool {
                match self { $( Self::$kind(reply) => reply.survives_client(), )* }
            }
            fn is_at_worker(&self) -> bool {
                match self { $( Self::$kind(reply) => reply.is_at_worker(), )* }
            }
            fn removed<H: Host>(&self, core: &mut Core<H>, id: ReplyId) {
                match self { $( Self::$kind(reply) => reply.removed(core, id), )* }
            }
        }
    };
}

// The table: one line for each kind of reply.
pending_replies! {
    Start(crate::tasks::StartReply),
    Wait(crate::tasks::WaitReply),
    Stop(crate::tasks::StopReply),
    StopMany(crate::tasks::StopManyReply),
    Detach(crate::tasks::DetachReply),
    Inspect(crate::tasks::InspectReply),
    Write(crate::tasks::WriteReply),
    Writable(crate::tasks::WritableWait),
    Signal(crate::tasks::SignalReply),
    Resize(crate::tasks::ResizeReply),
    SetStall(crate::tasks::SetStallReply),
    Search(crate::tasks::SearchReply),
    Parse(crate::tasks::ParseReply),
    Events(crate::events::EventsReply),
    Drained(crate::owners::DrainedReply),
    Completions(crate::owners::CompletionsReply),
    Collect(crate::owners::CollectReply),
    Worker(super::worker::WorkerReply),
}

impl Requests {
    pub(crate) fn reply<K: Kind>(&self, id: ReplyId) -> Option<&K> {
        K::get(&self.replies.get(&id)?.reply)
    }

    pub(crate) fn reply_mut<K: Kind>(&mut self, id: ReplyId) -> Option<&mut K> {
        K::get_mut(&mut self.replies.get_mut(&id)?.reply)
    }

    pub(crate) fn caller(&self, id: ReplyId) -> Option<&Caller> {
        self.replies.get(&id).map(|pending| &pending.caller)
    }

    pub(crate) fn completes_last(&self, id: ReplyId) -> bool {
        self.replies.get(&id).is_some_and(|pending| pending.reply.completes_last())
    }

    pub(crate) fn answered_by_detach(&self, id: ReplyId) -> Option<DetachAnswer> {
        self.replies.get(&id)?.reply.answered_by_detach()
    }

    pub(super) fn survives_client(&self, id: ReplyId) -> bool {
        self.replies.get(&id).is_some_and(|pending| pending.reply.survives_client())
    }

    /// The work behind a reply goes on, and its caller gets nothing more of it.
    pub(super) fn forget_caller(&mut self, id: ReplyId) {
        if let Some(pending) = self.replies.get_mut(&id) {
            pending.caller.request = None;
        }
    }

    /// The end of one of its tasks is reported to a reply. None: there is no such reply.
    pub(crate) fn report_end(&mut self, id: ReplyId, ended: &TaskEnded) -> Option<(Progress, bool)> {
        // A reply about several tasks does not name this one any more once it knows of its end.
        self.by_task.remove(ended.id(), &id);
        let pending = self.replies.get_mut(&id)?;
        Some((pending.reply.task_ended(ended), pending.reply.awaits_end()))
    }

    /// The end of this task is reported to a reply, too.
    pub(crate) fn watch_task(&mut self, task: &str, id: ReplyId) {
        self.by_task.add(task.to_owned(), id);
    }

    fn insert(&mut self, id: ReplyId, pending: Pending) {
        self.by_client.add(pending.caller.client, id);
        for task in pending.reply.tasks() {
            self.by_task.add(task.to_owned(), id);
        }
        if let Some(session) = pending.reply.session() {
            self.by_session.add(session.to_owned(), id);
        }
        self.parsing += usize::from(matches!(pending.reply, PendingReply::Parse(_)));
        if pending.reply.is_at_worker() {
            *self.at_workers.entry(pending.caller.client).or_default() += 1;
        }
        self.replies.insert(id, pending);
    }

    fn remove(&mut self, id: ReplyId) -> Option<Pending> {
        let pending = self.replies.remove(&id)?;
        self.parsing -= usize::from(matches!(pending.reply, PendingReply::Parse(_)));
        if pending.reply.is_at_worker()
            && let Some(calls) = self.at_workers.get_mut(&pending.caller.client)
        {
            *calls -= 1;
            self.relieved.push(pending.caller.client);
            if *calls == 0 {
                self.at_workers.remove(&pending.caller.client);
            }
        }
        self.by_client.remove(&pending.caller.client, &id);
        for task in pending.reply.tasks() {
            self.by_task.remove(task, &id);
        }
        if let Some(session) = pending.reply.session() {
            self.by_session.remove(session, &id);
        }
        Some(pending)
    }

    pub(crate) const fn parsing(&self) -> usize {
        self.parsing
    }
}

impl<H: Host> Core<H> {
    /// Owes a reply, and gives it at its deadline if it cannot be given before.
    pub(crate) fn defer_reply(
        &mut self,
        caller: Caller,
        reply: impl Into<PendingReply>,
        within_ms: Option<u64>,
    ) -> ReplyId {
        let id = ReplyId(self.ctx.next_number());
        self.defer_as(Waiter { id, caller }, reply.into(), within_ms);
        id
    }

    /// Gives a reply at the latest after this time, instead of at its deadline so far.
    pub(crate) fn set_reply_deadline(&mut self, id: ReplyId, within_ms: u64) {
        let timer = self.ctx.schedule(within_ms, Timer::Reply(id));
        let Some(pending) = self.requests.replies.get_mut(&id) else { return self.ctx.cancel(Some(timer)) };
        let before = pending.deadline.replace(timer);
        self.ctx.cancel(before);
    }

    /// Owes a reply again that was taken out to be given.
    pub(crate) fn defer_as(&mut self, waiter: Waiter, reply: PendingReply, within_ms: Option<u64>) {
        if self.ctx.phase == crate::runtime::Phase::Leaving && !self.may_wait_while_leaving(&reply) {
            return reply.daemon_leaves(self, waiter);
        }
        let Waiter { id, caller } = waiter;
        let deadline = within_ms.map(|ms| self.ctx.schedule(ms, Timer::Reply(id)));
        self.requests.insert(id, Pending { caller, reply, deadline });
    }

    /// A leaving daemon waits for its own jobs, and for tasks that are being stopped.
    fn may_wait_while_leaving(&self, reply: &PendingReply) -> bool {
        let is_stopping = |task: &str| self.tasks.get(task).is_some_and(crate::tasks::Task::is_being_stopped);
        reply.delays_exit() || (reply.awaits_end() && reply.tasks().into_iter().all(is_stopping))
    }

    /// Takes a reply out of the table in order to give it.
    pub(crate) fn take_reply<K: super::pending::Kind>(&mut self, id: ReplyId) -> Option<(Waiter, K)> {
        self.requests.reply::<K>(id)?;
        let (waiter, reply) = self.take_any_reply(id)?;
        Some((waiter, K::take(reply)?))
    }

    pub(crate) fn take_any_reply(&mut self, id: ReplyId) -> Option<(Waiter, PendingReply)> {
        let Pending { caller, reply, deadline } = self.requests.remove(id)?;
        self.ctx.cancel(deadline);
        reply.removed(self, id);
        Some((Waiter { id, caller }, reply))
    }

    /// The deadline of a reply has come, or what it waited for is there.
    pub(crate) fn reply_due(&mut self, id: ReplyId) {
        if self.requests.replies.get_mut(&id).is_some_and(|pending| pending.reply.hold_deadline()) {
            return;
        }
        if let Some((waiter, reply)) = self.take_any_reply(id) {
            reply.give_now(self, waiter);
        }
    }

    /// A leaving daemon refuses every call but those it waits for and those that wait for the end of one of these tasks.
    pub(crate) fn refuse_pending_replies(&mut self, stopped: &[String]) {
        let stopped: std::collections::HashSet<&str> = stopped.iter().map(String::as_str).collect();
        let is_refused = |reply: &PendingReply| {
            let is_awaited = reply.awaits_end() && reply.tasks().iter().any(|task| stopped.contains(task));
            !is_awaited && !reply.delays_exit()
        };
        let refused = self.requests.replies.iter().filter(|(_, pending)| is_refused(&pending.reply));
        let refused: Vec<ReplyId> = refused.map(|(id, _)| *id).collect();
        for id in refused {
            if let Some((waiter, reply)) = self.take_any_reply(id) {
                reply.daemon_leaves(self, waiter);
            }
        }
    }

    /// Refuses to start something new while the daemon leaves.
    pub(crate) fn refuse_when_leaving(&self) -> Result<(), RpcError> {
        if self.ctx.phase == crate::runtime::Phase::Leaving {
            return Err(RpcError::new(
                ErrorKind::ShuttingDown,
                "the daemon is leaving and starts nothing new",
            )
            .hint("try again: the next call starts a new one"));
        }
        Ok(())
    }
}

/// A shim has not answered in time.
pub(crate) fn shim_unanswered(perhaps: &str) -> RpcError {
    RpcError::new(ErrorKind::Deadline, "the holder of the task did not answer in time")
        .hint(format!("look at it with inspect; {perhaps}"))
}
