//! Clients, their access rights, and the replies they are owed. What a call does is decided by the subsystem that owns the
//! noun; `dispatch` is the table that finds it.

pub(crate) mod access;
mod cancel;
pub(crate) mod check;
mod client;
mod dispatch;
mod lookup;
mod parts;
mod pending;
mod worker;

pub(crate) use access::{Origin, Scope, make_token};
pub(crate) use client::{Answer, Caller, Client, loggable_cause, notification_line};
pub(crate) use lookup::shown;
pub(crate) use pending::{DetachAnswer, PendingReply, Progress, Reply, ReplyId, Waiter, shim_unanswered};
pub(crate) use worker::{Finish, internal};

use std::collections::{BTreeSet, HashMap};

use crate::config::bounds;
use crate::input::ClientId;
use crate::runtime::{Index, Table, TimerKey};

/// Connections and the replies owed to them.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    clients: Table<ClientId, Client>,
    /// Clients that send no more and stay until they have every reply.
    half_closed: BTreeSet<ClientId>,
    replies: Table<ReplyId, Pending>,
    by_client: Index<ClientId, ReplyId>,
    by_task: Index<String, ReplyId>,
    by_session: Index<String, ReplyId>,
    /// How many shell lines are being parsed.
    parsing: usize,
    /// How many calls of each client wait for a worker.
    at_workers: HashMap<ClientId, usize>,
    /// Clients that had a reply from a worker since the loop last asked: they may be read from again.
    relieved: Vec<ClientId>,
}

/// A reply that is owed and cannot be given yet.
#[derive(Debug)]
struct Pending {
    caller: Caller,
    reply: PendingReply,
    deadline: Option<TimerKey>,
}

impl Requests {
    pub(crate) fn client(&self, client: ClientId) -> Option<&Client> {
        self.clients.get(&client)
    }

    pub(crate) fn client_mut(&mut self, client: ClientId) -> Option<&mut Client> {
        self.clients.get_mut(&client)
    }

    pub(crate) fn client_count(&self) -> usize {
        self.clients.len()
    }

    /// Whether no reply is owed.
    pub(crate) fn is_empty(&self) -> bool {
        self.replies.is_empty()
    }

    pub(crate) fn reply_count(&self) -> usize {
        self.replies.len()
    }

    pub(crate) fn half_closed(&mut self, client: ClientId) {
        self.half_closed.insert(client);
    }

    pub(crate) fn of_task(&self, task: &str) -> Vec<ReplyId> {
        self.by_task.of(task).copied().collect()
    }

    pub(crate) fn of_session(&self, session: &str) -> Vec<ReplyId> {
        self.by_session.of(session).copied().collect()
    }

    pub(crate) fn has_session_waiters(&self, session: &str) -> bool {
        self.by_session.count(session) > 0
    }

    fn of_client(&self, client: ClientId) -> Vec<ReplyId> {
        self.by_client.of(&client).copied().collect()
    }

    /// Whether so many calls of a client wait for workers that it is not read from.
    pub(crate) fn is_saturated(&self, client: ClientId) -> bool {
        self.at_workers.get(&client).is_some_and(|calls| *calls >= bounds::WORKER_CALLS_PER_CLIENT)
    }

    pub(crate) fn take_relieved(&mut self) -> Vec<ClientId> {
        std::mem::take(&mut self.relieved)
    }

    fn count_of_client(&self, client: ClientId) -> usize {
        self.by_client.count(&client)
    }
}
