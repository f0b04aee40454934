//! `task/start`: checks what was asked for, records it, and only then hands it to a shim.

use std::os::unix::ffi::OsStrExt as _;

use belay_model::{Kind, Policy, State, TaskId};
use belay_protocol::Bytes;
use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::shell::{LineVerdict, ReadResult};
use belay_protocol::shim::{Clocks, Rlimit, Start};
use belay_protocol::task::{AnswerWhen, Command, StartParams, Status, TaskKind};
use belay_protocol::vars;
use belay_record::convert::policy_from_wire;

use super::check::check;
use super::terminal::TERM;
use crate::admission::Place;
use crate::answer::{Caller, What};
use crate::config::bounds;
use crate::core::{Core, Task};
use crate::defaults::{self, Defaults, Limits};
use crate::doc::{Entry, TaskDoc};
use crate::event::ShimId;
use crate::fingerprint;
use crate::follow::Follow;
use crate::info::typed;
use crate::lanes::Entering;
use crate::lines;
use crate::record::journal_error;
use crate::rights::{Scope, make_token};
use crate::telling;
use crate::world::{CrashPoint, World};

/// A command made ready to be executed, and as one would type it.
pub(crate) struct Ready {
    argv: Vec<Bytes>,
    typed: String,
    is_shell: bool,
}

impl<W: World> Core<W> {
    pub(crate) fn task_start(&mut self, caller: &Caller, params: StartParams) {
        if let Err(error) = check(&params) {
            return self.fail(caller, error);
        }
        if let Some(params) = self.read_first(caller, params) {
            self.start_read(caller, params, None);
        }
    }

    /// Starts what was asked for, now that it is known what its line means.
    pub(crate) fn start_read(&mut self, caller: &Caller, params: StartParams, reading: Option<ReadResult>) {
        if self.refuse_when_leaving(caller) {
            return;
        }
        if let Err(error) = self.try_start(caller, params, reading) {
            self.fail(caller, error);
        }
    }

    fn try_start(
        &mut self,
        caller: &Caller,
        params: StartParams,
        reading: Option<ReadResult>,
    ) -> Result<(), RpcError> {
        let mut params = params;
        params.token = params.token.map(|token| token_of(&self.scope(caller), token));
        let fingerprint = params.token.is_some().then(|| fingerprint::of_start(&self.key, &params));
        if let (Some(token), Some(fingerprint)) = (&params.token, &fingerprint)
            && let Some(known) = self.started_before(token)?
        {
            self.check_same(caller, &known, fingerprint)?;
            if self.tasks.get(&known.id).is_some_and(|task| task.unsaid.is_some()) {
                let command = reading.and_then(|reading| reading.command);
                return self.start_again(caller, lines::meant(params, command), known);
            }
            self.same_again(caller, &params, &known);
            return Ok(());
        }
        let line = reading.as_ref().and_then(lines::told);
        let params = lines::meant(params, reading.and_then(|reading| reading.command));
        self.refresh_settings();
        let place = self.admission(caller, &params)?;
        let ready = self.make_ready(&params);
        let (mut entry, mut start) = self.compose(&params, ready, place, fingerprint)?;
        entry.doc.line = line;
        let id = entry.id.clone();
        let mut entering = None;
        if let Some(lane) = &params.lane {
            let (enters, waits) = self.enter_lane(caller, &mut entry, lane)?;
            (entering, start.held) = (Some(enters), waits);
        }
        let held = start.held;
        let shim = self.take_ready(&mut entry, held);
        if let Err(error) = self.record_start(entry, start, entering.as_mut()) {
            self.ready.extend(shim);
            return Err(error);
        }
        self.hand_out(caller, &params, &id, shim);
        if let Some(entering) = entering {
            self.entered(caller, &id, entering);
        }
        self.answer_started(&id);
        Ok(())
    }

    /// The start is durable: it goes to its shim, or waits for one, and its caller is promised an answer.
    pub(crate) fn hand_out(&mut self, caller: &Caller, params: &StartParams, id: &str, shim: Option<ShimId>) {
        match shim {
            Some(shim) => self.begin(id, shim),
            None => self.waiting.push_back(id.to_owned()),
        }
        self.follow_start(caller, params, id);
        self.called_by(id, caller.client);
        let within = (params.answer == AnswerWhen::Started).then_some(bounds::START_ANSWER_MS);
        let what = What::Start { task: id.to_owned(), when: params.answer, told: None };
        self.promise(caller.clone(), what, within);
    }

    /// The task is in the journal before anything is started: there is never a process without a record.
    pub(crate) fn record_start(
        &mut self,
        mut entry: Entry,
        start: Box<Start>,
        entering: Option<&mut Entering>,
    ) -> Result<(), RpcError> {
        let mark = self.mark();
        self.emit(&telling::created(&entry, None));
        if let Some(entering) = entering {
            self.record_entering(&mut entry, entering);
        }
        self.put(&entry);
        let id = entry.id.clone();
        let policy = policy_from_wire(&entry.doc.clocks, entry.doc.detached);
        let state = State::new(entry.doc.detached);
        let task = Task { start: Some(start), silent: true, ..Task::new(entry, state, policy) };
        self.world.reach(CrashPoint::BeforeCreate);
        if let Err(error) = self.commit() {
            // Nothing was started, so nothing of it stays; what else is in the batch is tried again.
            self.batch.put.retain(|row| row.id != id);
            self.take_back(mark);
            return Err(journal_error(&error));
        }
        self.world.reach(CrashPoint::AfterCreate);
        let (parent, lineage) = (task.entry.parent.clone(), task.entry.doc.lineage.clone());
        self.tasks.insert(id, task);
        self.excuse(parent.as_deref());
        self.count_together(&lineage);
        Ok(())
    }

    pub(crate) fn started_before(&self, token: &str) -> Result<Option<Entry>, RpcError> {
        let live = self.tasks.values().find(|task| task.entry.token.as_deref() == Some(token));
        if let Some(task) = live {
            return Ok(Some(task.entry.clone()));
        }
        let row = self.journal.task_by_token(token).map_err(|error| journal_error(&error))?;
        Ok(row.and_then(|row| Entry::from_row(row).ok()))
    }

    /// The same token again: the same task, or a conflict.
    fn check_same(&self, caller: &Caller, known: &Entry, fingerprint: &str) -> Result<(), RpcError> {
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

    /// Whoever says a start again is answered as the first time, or with how far it has come.
    fn same_again(&mut self, caller: &Caller, params: &StartParams, known: &Entry) {
        let id = known.id.clone();
        // Nobody waits for a task that its line has put in the background, the first time or now.
        let detached = known.doc.line.as_ref().is_some_and(|line| line.verdict == LineVerdict::Detach);
        let mut params = params.clone();
        if detached {
            (params.answer, params.follow) = (AnswerWhen::Started, false);
        }
        self.called_by(&id, caller.client);
        let follow = params.follow.then(|| self.follow_start(caller, &params, &id)).flatten();
        match self.tasks.get(&id).map(|task| &task.state) {
            None => {
                let info = Self::ended_info(known);
                match follow.filter(|_| params.answer == AnswerWhen::Ended) {
                    Some(follow) => {
                        self.answer_after_follow(follow, caller.clone(), info.clone());
                        self.end_follow(follow, info.output.bytes);
                    }
                    None => self.reply(caller, &info),
                }
            }
            Some(state) if state.has_begun() && params.answer == AnswerWhen::Started => {
                if let Some(info) = self.live_info(&id, false, None) {
                    self.reply(caller, &info);
                }
            }
            Some(_) => {
                let within = (params.answer == AnswerWhen::Started).then_some(bounds::START_ANSWER_MS);
                let what = What::Start { task: id.clone(), when: params.answer, told: None };
                self.promise(caller.clone(), what, within);
                self.answer_started(&id);
            }
        }
    }

    fn follow_start(&mut self, caller: &Caller, params: &StartParams, id: &str) -> Option<u64> {
        params.follow.then(|| {
            self.add_follow(Follow {
                client: caller.client,
                caller: Some(caller.clone()),
                task: id.to_owned(),
                memory: self.memory_of(id),
                stream: None,
                next: 0,
                total: None,
                answer: None,
            })
        })
    }

    pub(crate) fn make_ready(&self, params: &StartParams) -> Ready {
        match &params.command {
            Command::Argv(argv) => Ready { typed: typed(argv), argv: argv.clone(), is_shell: false },
            Command::Line { line, shell } => {
                let shell = shell.clone().unwrap_or_else(|| self.default_shell(&params.env));
                let argv = vec![shell, Bytes::from("-c"), line.clone()];
                Ready { typed: line.to_text_lossy().trim_end().to_owned(), argv, is_shell: true }
            }
        }
    }

    pub(crate) fn compose(
        &mut self,
        params: &StartParams,
        ready: Ready,
        place: Place,
        fingerprint: Option<String>,
    ) -> Result<(Entry, Box<Start>), RpcError> {
        let id = TaskId::from_random(Kind::Shell, self.random()?);
        let token = make_token(id.as_str(), &self.random::<16>()?);
        let Place { session, parent, lineage } = place;
        let limits = self.limits(params, &session);
        let clocks = Clocks {
            timeout_ms: limits.timeout_ms,
            on_timeout: limits.on_timeout,
            ttl_ms: limits.ttl_ms,
            silence_ms: limits.silence_ms,
            grace_ms: limits.grace_ms,
            stall: params.stall,
            kill_ms: Policy::DEFAULT_KILL_MS,
            retries: params.retries,
            retry_delay_ms: params.retry_delay_ms.unwrap_or(Policy::DEFAULT_RETRY_DELAY_MS),
        };
        let doc = TaskDoc {
            kind: TaskKind::Shell,
            command: ready.typed.clone(),
            line: None,
            argv: ready.argv.clone(),
            cwd: params.cwd.clone(),
            detached: params.detached,
            detached_by: None,
            on_disconnect: params.on_disconnect,
            clocks,
            budgets: params.budgets,
            written_below: None,
            notify: params.notify.clone(),
            hook: self.hook_above(parent.as_deref()),
            pty: params.pty,
            fingerprint,
            proof: fingerprint::keyed(&self.key, token.as_bytes()),
            lineage,
            keep: params.keep,
            lane: None,
            boot: self.boot.clone(),
            shim: None,
            started_ms: None,
            leader: None,
            leader_exit: None,
            attempt: TaskDoc::no_attempt_yet(&clocks),
            stalled: None,
            seen: 0,
            status: Status::Queued,
            end: None,
        };
        let entry = Entry {
            id: id.to_string(),
            number: self.next_task_number(),
            token: params.token.clone(),
            session,
            parent,
            name: params.name.clone(),
            created_ms: self.now.wall_ms,
            doc,
        };
        let start = self.start_message(params, ready, &entry, &token)?;
        Ok((entry, start))
    }

    /// What the shim of a task is told, with the environment that is written down nowhere.
    pub(crate) fn start_message(
        &self,
        params: &StartParams,
        ready: Ready,
        entry: &Entry,
        token: &str,
    ) -> Result<Box<Start>, RpcError> {
        let home = self.config.home.as_os_str().as_bytes();
        Ok(Box::new(Start {
            task: entry.id.clone(),
            dir: Bytes::from(self.config.task_dir(&entry.id).into_os_string()),
            argv: ready.argv,
            is_shell: ready.is_shell,
            env: environment(params, &entry.id, (&entry.session, token), home),
            cwd: params.cwd.clone(),
            umask: params.umask,
            rlimits: params.rlimits.iter().map(rlimit).collect::<Result<_, _>>()?,
            stdin: params.stdin || params.pty.is_some(),
            stdin_from: params.stdin_from.clone(),
            merge: params.merge,
            pty: params.pty,
            detached: params.detached,
            clocks: entry.doc.clocks,
            output_limit_bytes: self.limits(params, &entry.session).output_limit_bytes,
            budgets: params.budgets,
            memory_bytes: if params.detached { 0 } else { bounds::MEMORY_BYTES },
            hurry: params.answer == AnswerWhen::Started,
            stop: None,
            held: false,
        }))
    }

    /// What a start gets: what it says, else what its session says, or one above it, else the settings.
    fn limits(&self, params: &StartParams, session: &str) -> Limits {
        let own = self.sessions.get(session);
        let above = own
            .into_iter()
            .flat_map(|own| own.doc.lineage.iter().rev())
            .filter_map(|id| self.sessions.get(id));
        let mut layers: Vec<Defaults> =
            own.into_iter().chain(above).map(|session| Defaults::from(session.doc.defaults)).collect();
        layers.push(self.config.defaults);
        defaults::resolve(params, &layers.iter().collect::<Vec<_>>())
    }

    /// Above every task in the journal and every one that is on its way there.
    pub(crate) fn next_task_number(&self) -> u64 {
        let waiting = self.batch.put.iter().map(|row| row.number + 1).max().unwrap_or(0);
        self.journal.next_number().max(waiting)
    }

    pub(crate) fn random<const N: usize>(&mut self) -> Result<[u8; N], RpcError> {
        let mut bytes = [0; N];
        let made = self.world.random(&mut bytes);
        made.map_err(|error| RpcError::new(ErrorKind::Internal, format!("no random numbers: {error}")))?;
        Ok(bytes)
    }
}

fn rlimit(limit: &[u64; 3]) -> Result<Rlimit, RpcError> {
    let [resource, soft, hard] = *limit;
    let resource = u32::try_from(resource).ok().filter(|resource| *resource < 64);
    let resource = resource.ok_or_else(|| RpcError::invalid("rlimits", "there is no such resource"))?;
    if soft > hard {
        return Err(RpcError::invalid("rlimits", "a soft limit is above its hard limit"));
    }
    Ok(Rlimit { resource, soft, hard })
}

/// The caller's environment, what was set on purpose, and the task's own name in it.
fn environment(params: &StartParams, id: &str, (session, token): (&str, &str), home: &[u8]) -> Vec<Bytes> {
    let own = [
        (vars::TASK, id.as_bytes()),
        (vars::TASK_HOME, home),
        (vars::SESSION, session.as_bytes()),
        (vars::TOKEN, token.as_bytes()),
    ];
    let set: Vec<(&[u8], &[u8])> = params
        .set_env
        .iter()
        .map(|(name, value)| (name.as_bytes(), value.0.as_slice()))
        .chain(own.iter().map(|(name, value)| (name.as_bytes(), *value)))
        .collect();
    let named =
        params.env.iter().any(|entry| entry.0.starts_with(b"TERM=")) || params.set_env.contains_key("TERM");
    let term = Some(Bytes::from(TERM)).filter(|_| params.pty.is_some() && !named);
    lines::with_set(&params.env, &set).into_iter().chain(term).collect()
}

/// A token is good among the starts of whoever uses it: nobody takes another's start over by guessing its token.
fn token_of(scope: &Scope, token: String) -> String {
    match scope.id() {
        Some(id) => format!("{id}/{token}"),
        None => token,
    }
}
