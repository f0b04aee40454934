//! Completions: ends of tasks that a session's client has not acknowledged yet, and leftovers,
//! which are tasks that did not end cleanly. A completion is reported once, and again after a crash
//! if it was not acknowledged. It is not reported to a client that waited for the task or stopped
//! it.

use belay_journal::{Loaded, Query, Rows};
use belay_protocol::error::RpcError;
use belay_protocol::session::{
    SessionNotice, SessionNoticesParams, SessionNoticesResult, SessionState, UnfinishedStatus, UnfinishedTask,
};
use belay_protocol::task::TaskStatus;

use super::STANDING;
use super::handlers::gone;
use crate::config::bounds;
use crate::host::Host;
use crate::input::ClientId;
use crate::requests::check::at_most;
use crate::requests::{Answer, Caller, Client, Reply, Scope, Waiter};
use crate::runtime::{Core, Timer, TimerKey};
use crate::tasks::{StoredTask, TaskEnded, ended_info};

/// The kind of a completion's document in the journal.
const DOC_KIND: &str = "notice";

/// Completions that were just reported: they are deleted from the journal later, after the reply
/// was sent.
#[derive(Debug, Default)]
pub(super) struct Acknowledged {
    completions: Vec<Completion>,
    timer: Option<TimerKey>,
}

#[derive(Debug)]
struct Completion {
    session: String,
    event: u64,
}

/// `session/notices` that waits for a completion.
#[derive(Debug)]
pub(crate) struct CompletionsReply {
    session: String,
    max: usize,
}

impl Reply for CompletionsReply {
    fn session(&self) -> Option<&str> {
        Some(&self.session)
    }

    fn give_now<H: Host>(self, core: &mut Core<H>, waiter: Waiter) {
        core.reply_completions(&waiter.caller, &self.session, self.max);
    }
}

impl<H: Host> Core<H> {
    pub(super) fn load_completions(&mut self, loaded: &mut Loaded) {
        for (key, task) in loaded.docs.remove(DOC_KIND).unwrap_or_default() {
            let Some((id, event)) = key.split_once('/') else { continue };
            if let Ok(event) = event.parse() {
                self.sessions.update(id, |session| session.completions.insert(event, task));
            }
        }
    }

    // --- at the end of a task ---

    /// A task of these sessions has ended: records a leftover if it did not end cleanly, and a
    /// completion for the client of its session, unless that client ended the task. In the same
    /// commit as the end.
    pub(crate) fn record_completion(&mut self, ended: &TaskEnded) {
        if let Some(left) = leftover(ended) {
            let owners: Vec<String> = ended.stored().owners().map(str::to_owned).collect();
            for id in owners.iter().filter(|id| *id != STANDING) {
                let added = self.sessions.update(id, |session| {
                    session.doc.left.push(left.clone());
                    let surplus = session.doc.left.len().saturating_sub(bounds::LEFTOVERS);
                    session.doc.left.drain(..surplus);
                });
                if added.is_some() {
                    self.store_session(id);
                }
            }
        }
        let session = &ended.stored().session;
        if session != STANDING && !is_known_to_session(ended) {
            self.add_completion(session, ended.event(), ended.id());
        }
    }

    fn add_completion(&mut self, id: &str, event: u64, task: &str) {
        if self.sessions.get(id).is_none_or(|session| session.doc.state == SessionState::Ended) {
            return;
        }
        let oldest = self.sessions.update(id, |session| {
            session.completions.insert(event, task.to_owned());
            let is_full = session.completions.len() > bounds::COMPLETIONS_PER_SESSION;
            is_full.then(|| session.completions.pop_first()).flatten()
        });
        self.ctx.journal.put_doc(DOC_KIND, &doc_key(id, event), Some(task.to_owned()));
        if let Some(Some((oldest, _))) = oldest {
            self.ctx.journal.put_doc(DOC_KIND, &doc_key(id, oldest), None);
        }
    }

    // --- acknowledging ---

    /// Whether a reply to this client reaches the session: the client has the session's scope, or
    /// holds the session.
    pub(crate) fn acts_for_session(&self, client: ClientId, session: &str) -> bool {
        let scope = self.requests.client(client).map(Client::scope);
        matches!(scope, Some(Scope::Session(id)) if id == session)
    }

    /// The reply to a wait reports the end of a task, and so acknowledges its completion. The
    /// completion stays in the journal until the reply was sent: if the daemon dies before that, it
    /// is reported again.
    pub(crate) fn acknowledge_by_reply(&mut self, caller: &Caller, stored: &StoredTask) {
        let session = &stored.session;
        if session == STANDING || !self.acts_for_session(caller.client, session) {
            return;
        }
        let found = self.sessions.get(session).and_then(|session| {
            session.completions.iter().find(|(_, task)| **task == stored.id).map(|(event, _)| *event)
        });
        let Some(event) = found else { return };
        self.sessions.update(session, |session| session.completions.remove(&event));
        let acknowledged = &mut self.sessions.acknowledged;
        acknowledged.completions.push(Completion { session: session.clone(), event });
        if acknowledged.timer.is_none() {
            acknowledged.timer = Some(self.ctx.schedule(bounds::FLUSH_MS, Timer::DropAcknowledged));
        }
    }

    pub(crate) fn drop_acknowledged_completions(&mut self) {
        self.sessions.acknowledged.timer = None;
        for Completion { session, event } in std::mem::take(&mut self.sessions.acknowledged.completions) {
            self.ctx.journal.put_doc(DOC_KIND, &doc_key(&session, event), None);
        }
    }

    pub(super) fn remove_completions(&mut self, id: &str, is_known: impl Fn(u64) -> bool) {
        let removed = self.sessions.update(id, |session| {
            let known: Vec<u64> =
                session.completions.keys().copied().filter(|event| is_known(*event)).collect();
            for event in &known {
                session.completions.remove(event);
            }
            known
        });
        for event in removed.unwrap_or_default() {
            self.ctx.journal.put_doc(DOC_KIND, &doc_key(id, event), None);
        }
    }

    // --- session/notices ---

    pub(crate) fn session_notices(
        &mut self,
        caller: &Caller,
        params: &SessionNoticesParams,
    ) -> Result<Answer, RpcError> {
        let max = at_most("max", params.max, bounds::COMPLETIONS_AT_ONCE)?;
        let id = self.find_own_session(caller, &params.id)?;
        if let Some(ack) = params.ack {
            self.remove_completions(&id, |event| event <= ack);
        }
        let within = params.wait_ms.min(bounds::EVENT_WAIT_MS);
        self.defer_reply(caller.clone(), CompletionsReply { session: id.clone(), max }, Some(within));
        self.serve_session_waiters(&id);
        Ok(Answer::Later)
    }

    fn reply_completions(&mut self, caller: &Caller, id: &str, max: usize) {
        let Some(session) = self.sessions.get(id) else { return self.fail(caller, gone(id)) };
        let reported: Vec<(u64, String)> =
            session.completions.iter().take(max).map(|(event, task)| (*event, task.clone())).collect();
        let more = (session.completions.len() - reported.len()) as u64;
        if reported.is_empty() {
            return self.reply(caller, &SessionNoticesResult { notices: Vec::new(), more });
        }
        let query = Query::Tasks(reported.iter().map(|(_, task)| task.clone()).collect());
        self.await_worker(caller, |core, finish| {
            core.read_journal(query, move |core, rows| {
                let make = move |core: &mut Self, caller: &Caller| {
                    let rows = match rows? {
                        Rows::Tasks(rows) => rows,
                        _ => Vec::new(),
                    };
                    let stored: Vec<StoredTask> = rows
                        .into_iter()
                        .chain(core.ctx.journal.unwritten_ends().cloned())
                        .filter_map(|row| StoredTask::from_row(row).ok())
                        .collect();
                    // A task that was removed meanwhile has nothing to report.
                    let known = |(seq, id): (u64, String)| {
                        let task = stored.iter().rev().find(|stored| stored.id == id)?;
                        Some(SessionNotice { seq, task: ended_info(task) })
                    };
                    let mut notices = Vec::new();
                    let (mut bytes, mut cut) = (0, 0);
                    for notice in reported.into_iter().filter_map(known) {
                        if bytes > bounds::LIST_BYTES {
                            cut += 1;
                            continue;
                        }
                        bytes += notice.task.command.len() * 2;
                        notices.push(notice);
                    }
                    Ok(caller.answer(&SessionNoticesResult { notices, more: more + cut }))
                };
                finish(core, Box::new(make));
            });
        });
    }

    // --- waiters ---

    /// A stalled task does not keep its sessions from being drained.
    pub(crate) fn serve_sessions_of_stalled(&mut self, id: &str) {
        let stalled = self.tasks.get(id).filter(|task| task.stored().doc.stalled.is_some());
        if let Some(stored) = stalled.map(|task| task.stored().clone()) {
            self.serve_sessions_of(&stored);
        }
    }

    /// A task has ended or stalled: calls that wait for one of its sessions may be answered.
    pub(crate) fn serve_sessions_of(&mut self, stored: &StoredTask) {
        for id in stored.owners() {
            self.end_session_if_drained(id);
            self.serve_session_waiters(id);
        }
    }
}

/// Whether the client of the task's session ended the task itself, or the task is the run of a
/// hook, which is a report itself. (A client that waits for the task learns of its end from the
/// reply.)
fn is_known_to_session(ended: &TaskEnded) -> bool {
    let own = format!("session:{}", ended.stored().session);
    let actor = ended.info().outcome.as_ref().and_then(|outcome| outcome.actor());
    let is_own =
        |actor: &str| actor.strip_prefix(&own).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '));
    ended.stored().doc.hook.is_some() || actor.is_some_and(is_own)
}

/// The leftover of a task that did not end cleanly.
fn leftover(ended: &TaskEnded) -> Option<UnfinishedTask> {
    let info = ended.info();
    let outcome = info.outcome.as_ref();
    let (status, why) = match info.status {
        TaskStatus::StopFailed => {
            let survivors = outcome.map_or(0, |outcome| outcome.survivors().len());
            (UnfinishedStatus::StopFailed, format!("{survivors} of its processes are alive after SIGKILL"))
        }
        TaskStatus::Lost => {
            let known = outcome.and_then(|outcome| outcome.reason()).map(str::to_owned);
            (UnfinishedStatus::Lost, known.unwrap_or_else(|| "how it ended is not known".to_owned()))
        }
        _ => return None,
    };
    Some(UnfinishedTask { id: info.id.clone(), status, why })
}

fn doc_key(session: &str, event: u64) -> String {
    format!("{session}/{event}")
}
