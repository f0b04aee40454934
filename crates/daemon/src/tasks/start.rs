//! `task/start`: checks what was asked for, records it, and only then hands it to a shim. The reply comes when the task has
//! started or ended, as the caller asked.

use belay_journal::{Query, Rows};
use belay_model::State;
use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::event::Event;
use belay_protocol::methods::notifications::{TaskQueued, TaskStarted};
use belay_protocol::shell::{LineVerdict, ShellReadResult};
use belay_protocol::shim::Start;
use belay_protocol::task::{AnswerWhen, TaskInfo, TaskStartNotification, TaskStartParams};
use belay_record::Stream;
use belay_record::convert::{Wire as _, policy_from_wire};

use super::output_subscription::Follow;
use super::process_view::task_info_reply;
use super::shell_line;
use super::{StoredTask, Task, TaskEnded, TaskRef, ended_info};
use crate::config::bounds;
use crate::host::{CrashPoint, Host};
use crate::input::ShimId;
use crate::keyed_hash;
use crate::owners::Entering;
use crate::requests::check::check;
use crate::requests::{Answer, Caller, Client, DetachAnswer, Reply, Scope, Waiter, internal, loggable_cause};
use crate::runtime::Core;

/// A start whose caller waits for the task to start, or to end.
#[derive(Debug)]
pub(crate) struct StartReply {
    task: String,
    when: AnswerWhen,
    /// The last notification to a caller that waits for the end: that the task is queued, or has started.
    announced: Option<Announced>,
}

/// The last notification to a caller that waits for the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Announced {
    Queued,
    Started,
}

impl StartReply {
    /// The task that its caller waits for in the foreground.
    pub(crate) fn foreground_task(&self) -> Option<&str> {
        (self.when == AnswerWhen::Ended).then_some(self.task.as_str())
    }
}

impl Reply for StartReply {
    fn tasks(&self) -> Vec<&str> {
        vec![&self.task]
    }

    fn awaits_end(&self) -> bool {
        true
    }

    fn answered_by_detach(&self) -> Option<DetachAnswer> {
        (self.when == AnswerWhen::Ended).then_some(DetachAnswer::Task)
    }

    /// `task/started` first, if it was not sent; then the caller's output to the last byte, if it follows it.
    fn complete<H: Host>(self, core: &mut Core<H>, waiter: Waiter, ended: &TaskEnded) {
        if self.when == AnswerWhen::Ended && self.announced != Some(Announced::Started) {
            core.notify_start(&waiter.caller, Announced::Started, ended.info().clone());
        }
        match core.tasks.follow_of(ended.follows(), &waiter.caller) {
            Some(follow) if self.when == AnswerWhen::Ended => {
                core.tasks.reply_after_follow(follow, waiter.caller, ended.info().clone());
            }
            _ => core.reply(&waiter.caller, ended.info()),
        }
    }

    /// The caller always gets the id, however slow the start is.
    fn give_now<H: Host>(self, core: &mut Core<H>, waiter: Waiter) {
        core.reply_live(&waiter.caller, &self.task, true, None, task_info_reply());
    }
}

impl<H: Host> Core<H> {
    pub(crate) fn task_start(
        &mut self,
        caller: &Caller,
        mut params: TaskStartParams,
    ) -> Result<Answer, RpcError> {
        check(&params)?;
        self.inherit_environment(caller, &mut params)?;
        match self.parse_first(caller, params) {
            Some(params) => self.start_parsed(caller, params, None),
            None => Ok(Answer::Later),
        }
    }

    /// Starts what was asked for, now that it is known what its line means.
    pub(super) fn start_parsed(
        &mut self,
        caller: &Caller,
        mut params: TaskStartParams,
        parsed: Option<ShellReadResult>,
    ) -> Result<Answer, RpcError> {
        self.refuse_when_leaving()?;

        params.token = params.token.map(|token| scoped_token(&self.scope(caller), token));
        let fingerprint = params.token.is_some().then(|| keyed_hash::of_start(&self.ctx.key, &params));
        let known = params.token.as_deref().and_then(|token| self.tasks.by_token(token)).map(str::to_owned);
        match (known, fingerprint) {
            (Some(known), Some(fingerprint)) => self.start_known(caller, params, parsed, &known, fingerprint),
            _ if params.resume => Err(removed_meanwhile()),
            (_, fingerprint) => self.start_new(caller, params, parsed, fingerprint),
        }
    }

    /// Puts the environment of the caller's process before the variables of the start, if that is asked for.
    fn inherit_environment(&self, caller: &Caller, params: &mut TaskStartParams) -> Result<(), RpcError> {
        if !std::mem::take(&mut params.inherit_env) {
            return Ok(());
        }
        let process = self.requests.client(caller.client).map_or((0, 0), Client::process);
        let inherited = self.ctx.host.environment_of(process.0, process.1).map_err(|error| {
            let message = format!("the environment of process {} cannot be read: {error}", process.0);
            RpcError::new(ErrorKind::WrongState, message)
                .field("inherit_env")
                .hint("send the whole environment in env instead")
        })?;
        params.env = shell_line::inherited_first(inherited, std::mem::take(&mut params.env));
        Ok(())
    }

    fn start_new(
        &mut self,
        caller: &Caller,
        params: TaskStartParams,
        parsed: Option<ShellReadResult>,
        fingerprint: Option<String>,
    ) -> Result<Answer, RpcError> {
        let started = self.try_start(caller, params, parsed, fingerprint);
        if let Err(error) = &started {
            let (actor, kind, cause) = (self.actor(caller, None), error.data.kind, loggable_cause(error));
            tracing::info!(actor, ?kind, cause, "start refused");
        }
        started
    }

    fn try_start(
        &mut self,
        caller: &Caller,
        params: TaskStartParams,
        parsed: Option<ShellReadResult>,
        fingerprint: Option<String>,
    ) -> Result<Answer, RpcError> {
        let line = parsed.as_ref().and_then(shell_line::line_info);
        let params = shell_line::apply_verdict(params, parsed.and_then(|parsed| parsed.command));
        self.refresh_settings();
        let place = self.check_admission(caller, &params)?;
        let command = self.prepare_command(&params);
        let (mut stored, mut start) =
            self.compose(&params, command, place, self.starter(caller), fingerprint)?;
        if let Some(shell) = stored.doc.spec.shell_mut() {
            shell.line = line;
        }
        let id = stored.id.clone();
        let mut entering = None;
        if let Some(lane) = &params.lane {
            let enters = self.enter_lane(caller, &mut stored, lane)?;
            start.held = enters.waits();
            entering = Some(enters);
        }
        let shim = self.take_ready_shim(&mut stored, start.held);
        if let Err(error) = self.record_start(stored, start, entering.as_mut()) {
            self.shims.put_back_ready(shim);
            return Err(error);
        }
        self.begin_recorded_start(caller, &params, &id, shim);
        if let Some(entering) = entering {
            self.entered_lane(caller, &id, entering);
        }
        self.announce_start(&id);
        Ok(Answer::Later)
    }

    /// The start is durable: it goes to its shim, or waits for one, and its caller waits for the reply.
    pub(super) fn begin_recorded_start(
        &mut self,
        caller: &Caller,
        params: &TaskStartParams,
        id: &str,
        shim: Option<ShimId>,
    ) {
        self.send_start_or_wait(id, shim);
        self.follow_start(caller, params, id);
        self.attach_caller(id, caller.client);
        self.await_start(caller, id, params.answer);
    }

    fn await_start(&mut self, caller: &Caller, id: &str, when: AnswerWhen) {
        let within = (when == AnswerWhen::Started).then_some(bounds::START_ANSWER_MS);
        let reply = StartReply { task: id.to_owned(), when, announced: None };
        self.defer_reply(caller.clone(), reply, within);
    }

    /// Gives a recorded start to its shim, or puts it in line for the next one.
    pub(crate) fn send_start_or_wait(&mut self, id: &str, shim: Option<ShimId>) {
        match shim {
            Some(shim) => self.send_start(id, shim),
            None => self.tasks.awaiting_shim.push_back(id.to_owned()),
        }
    }

    /// The task is in the journal before anything is started: there is never a process without a record.
    pub(crate) fn record_start(
        &mut self,
        mut stored: StoredTask,
        start: Box<Start>,
        entering: Option<&mut Entering>,
    ) -> Result<(), RpcError> {
        // What this start does not record is not taken back with it.
        self.record_session_levels();
        let mark = self.ctx.journal.mark();
        let created = Event::TaskCreated {
            task: stored.id.clone(),
            session: stored.session.clone(),
            command: stored.doc.command.clone(),
            name: stored.name.clone(),
            parent: stored.parent.clone(),
            found: None,
        };
        stored.doc.last_event = self.ctx.record(created, stored.tags());
        if let Some(entering) = entering {
            self.record_entering(&mut stored, entering);
        }
        self.ctx.journal.put_task(&stored);
        self.ctx.crash_point(CrashPoint::BeforeCreate);
        if let Err(error) = self.commit() {
            // Nothing was started, so nothing of it stays; what else is in the batch is tried again.
            self.ctx.journal.take_back_task(&stored.id);
            self.ctx.journal.take_back(mark);
            return Err(super::journal_error(&error));
        }
        self.ctx.crash_point(CrashPoint::AfterCreate);
        tracing::debug!(task = %stored.id, session = %stored.session, "recorded");
        let (parent, lineage) = (stored.parent.clone(), stored.doc.lineage.clone());
        let policy = policy_from_wire(&stored.doc.clocks, stored.doc.detached);
        let state = State::new(stored.doc.detached);
        self.tasks.insert(Task {
            start: Some(start),
            no_disk_output: true,
            ..Task::new(stored, state, policy)
        });
        self.update_stall_exemption(parent.as_deref());
        self.watch_budgets_above(&lineage);
        Ok(())
    }

    /// A task that a caller waits for has started or is queued: callers that wait for the start get their reply, those that
    /// wait for the end a notification.
    pub(crate) fn announce_start(&mut self, id: &str) {
        self.wake_writers_if_running(id);
        let Some(task) = self.tasks.get(id) else { return };
        let progress = match task.state {
            State::Running(_) | State::Resting(_) | State::Stopping(_) => Announced::Started,
            State::Queued { .. } if task.shim.is_some() => Announced::Queued,
            State::Queued { .. } | State::Starting { .. } | State::Ended(_) => return,
        };
        if progress == Announced::Started {
            self.answer_started_waits(id);
        }
        for reply in self.requests.of_task(id) {
            let Some(start) = self.requests.reply_mut::<StartReply>(reply) else { continue };
            if start.announced.replace(progress) == Some(progress) {
                continue;
            }
            match start.when {
                AnswerWhen::Started => {
                    if let Some((waiter, _)) = self.take_reply::<StartReply>(reply) {
                        self.reply_live(&waiter.caller, id, false, None, task_info_reply());
                    }
                }
                AnswerWhen::Ended => {
                    let caller = self.requests.caller(reply).cloned();
                    if let (Some(info), Some(caller)) = (self.live_info(id), caller) {
                        self.notify_start(&caller, progress, info);
                    }
                }
            }
        }
    }

    /// Notifies a caller that waits for the end. A call without an id gets no notifications.
    fn notify_start(&mut self, caller: &Caller, progress: Announced, task: TaskInfo) {
        let Some(request) = caller.request.clone() else { return };
        let params = TaskStartNotification { request, task };
        match progress {
            Announced::Queued => self.notify::<TaskQueued>(caller.client, &params),
            Announced::Started => {
                self.notify::<TaskStarted>(caller.client, &params);
                self.release_follow(&params.task.id, caller);
            }
        }
    }

    // --- the same token again ---

    /// A start whose token was used before: the same task, or a conflict.
    fn start_known(
        &mut self,
        caller: &Caller,
        params: TaskStartParams,
        parsed: Option<ShellReadResult>,
        known: &str,
        fingerprint: String,
    ) -> Result<Answer, RpcError> {
        let in_memory = match self.task_in_memory(known)? {
            Some(TaskRef::Live(id)) => self.tasks.get(&id).map(|task| task.stored.clone()),
            Some(TaskRef::Ended(stored)) => Some(*stored),
            None => None,
        };
        if let Some(stored) = in_memory {
            return self.start_again(caller, params, parsed, stored, &fingerprint);
        }
        let query = Query::Tasks(vec![known.to_owned()]);
        self.await_worker(caller, |core, finish| {
            core.read_journal(query, move |core, rows| {
                let make = move |core: &mut Self, caller: &Caller| {
                    let Rows::Tasks(rows) = rows? else { return Err(internal()) };
                    match rows.into_iter().next() {
                        Some(row) => {
                            core.start_again(caller, params, parsed, StoredTask::read(row)?, &fingerprint)
                        }
                        // It was removed meanwhile, and its token is free again.
                        None => core.start_freed_token(caller, params, parsed, fingerprint),
                    }
                };
                finish(core, Box::new(make));
            });
        });
        Ok(Answer::Later)
    }

    /// The task that had the token was removed meanwhile. Another start with the same token may have been faster: then this one
    /// repeats it.
    fn start_freed_token(
        &mut self,
        caller: &Caller,
        params: TaskStartParams,
        parsed: Option<ShellReadResult>,
        fingerprint: String,
    ) -> Result<Answer, RpcError> {
        self.refuse_when_leaving()?;
        let known = params.token.as_deref().and_then(|token| self.tasks.by_token(token)).map(str::to_owned);
        match known {
            Some(known) => self.start_known(caller, params, parsed, &known, fingerprint),
            None if params.resume => Err(removed_meanwhile()),
            None => self.start_new(caller, params, parsed, Some(fingerprint)),
        }
    }

    fn start_again(
        &mut self,
        caller: &Caller,
        params: TaskStartParams,
        parsed: Option<ShellReadResult>,
        known: StoredTask,
        fingerprint: &str,
    ) -> Result<Answer, RpcError> {
        self.check_same(caller, &known, fingerprint)?;
        if self.tasks.get(&known.id).is_some_and(|task| task.awaiting_resubmit.is_some()) {
            let command = parsed.and_then(|parsed| parsed.command);
            return self.resubmit_start(caller, shell_line::apply_verdict(params, command), known);
        }
        Ok(self.repeat_start(caller, params, &known))
    }

    fn check_same(&self, caller: &Caller, known: &StoredTask, fingerprint: &str) -> Result<(), RpcError> {
        if !self.scope(caller).covers_task(known) {
            let message = "the token was used before, for a task that is not yours";
            return Err(RpcError::new(ErrorKind::Conflict, message).field("token").hint("use a new token"));
        }
        if known.doc.fingerprint.as_deref() != Some(fingerprint) {
            let message = format!("the token was used before, with other parameters, for task {}", known.id);
            return Err(RpcError::new(ErrorKind::Conflict, message)
                .field("token")
                .hint("use a new token for a new task, or the same parameters to get the same one")
                .ids(vec![known.id.clone()]));
        }
        Ok(())
    }

    /// Answers a repeated start like the first one, or with how far the task has come.
    fn repeat_start(&mut self, caller: &Caller, mut params: TaskStartParams, known: &StoredTask) -> Answer {
        let id = known.id.as_str();
        // No caller waits for a task that its line has put in the background.
        let detached = known.doc.spec.line().is_some_and(|line| line.verdict == LineVerdict::Detach);
        if detached {
            (params.answer, params.follow) = (AnswerWhen::Started, None);
        }
        self.attach_caller(id, caller.client);
        let follow = self.follow_start(caller, &params, id);
        let Some(task) = self.tasks.get(id) else {
            let info = ended_info(known);
            if params.answer == AnswerWhen::Ended {
                self.notify_start(caller, Announced::Started, info.clone());
            }
            return self.reply_ended_start(
                caller,
                follow.filter(|_| params.answer == AnswerWhen::Ended),
                info,
            );
        };
        if task.state.has_begun() && params.answer == AnswerWhen::Started {
            self.reply_live(caller, id, false, None, task_info_reply());
        } else {
            self.await_start(caller, id, params.answer);
            self.announce_start(id);
        }
        Answer::Later
    }

    fn reply_ended_start(&mut self, caller: &Caller, follow: Option<u64>, info: TaskInfo) -> Answer {
        let Some(follow) = follow else { return caller.answer(&info) };
        let bytes = info.output.bytes;
        self.tasks.reply_after_follow(follow, caller.clone(), info);
        self.end_follow(follow, bytes);
        Answer::Later
    }

    fn follow_start(&mut self, caller: &Caller, params: &TaskStartParams, id: &str) -> Option<u64> {
        let (request, wanted) = (caller.request.clone()?, params.follow?);
        let from = match wanted.from {
            0 => 0,
            from => from.min(self.log_of(id).map_or(0, |log| log.end())),
        };
        let memory = self.tasks.memory_of(id);
        let stream = wanted.stream.map(Stream::from_wire);
        Some(
            self.add_follow(
                Follow::of_start(caller.client, request, id, memory)
                    .starting_at(from, stream, wanted.text)
                    .held_if(params.answer == AnswerWhen::Ended),
            ),
        )
    }
}

/// A start that is repeated to go on with its task, of which nothing is known any more.
fn removed_meanwhile() -> RpcError {
    RpcError::new(ErrorKind::NotFound, "the task with this token was removed")
        .field("token")
        .hint("to start it anew, leave out resume")
}

/// A token is valid among the starts of one scope: no caller takes another's start over by guessing its token.
fn scoped_token(scope: &Scope, token: String) -> String {
    match scope.id() {
        Some(id) => format!("{id}/{token}"),
        None => token,
    }
}
