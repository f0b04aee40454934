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
use belay_record::writer::SMALLEST_LIMIT_BYTES;
use serde_json::json;

use super::terminal::{TERM, check_size};
use crate::answer::{Caller, What};
use crate::config::bounds;
use crate::core::{Core, Task};
use crate::defaults;
use crate::doc::{Entry, TaskDoc};
use crate::fingerprint;
use crate::follow::Follow;
use crate::hooks;
use crate::info::typed;
use crate::life::object;
use crate::lines;
use crate::record::journal_error;
use crate::world::{CrashPoint, World};

/// The standing session of a person at the command line.
const PERSON: &str = "user";

/// A command made ready to be executed, and as one would type it.
pub(crate) struct Ready {
    argv: Vec<Bytes>,
    typed: String,
    is_shell: bool,
}

impl<W: World> Core<W> {
    pub(crate) const STANDING_SESSION: &str = PERSON;

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
        let fingerprint = params.token.is_some().then(|| fingerprint::of_start(&self.key, &params));
        if let (Some(token), Some(fingerprint)) = (&params.token, &fingerprint)
            && let Some(known) = self.started_before(token)?
        {
            return self.same_again(caller, &params, &known, fingerprint);
        }
        let line = reading.as_ref().and_then(lines::told);
        let params = match reading.and_then(|reading| reading.command) {
            Some(command) => lines::detached(params, command),
            None => params,
        };
        self.refresh_settings();
        if self.tasks.len() >= self.config.max_tasks {
            let message =
                format!("as many tasks are live as daemon.max_tasks allows: {}", self.config.max_tasks);
            return Err(RpcError::new(ErrorKind::Busy, message).hint("stop some, or wait for some to end"));
        }
        let parent = self.proven_parent(&params)?;
        let ready = self.make_ready(&params);
        let (mut entry, start) = self.compose(&params, ready, parent, fingerprint)?;
        entry.doc.line = line;
        let id = entry.id.clone();
        let shim = self.take_ready(&mut entry, start.held);
        if let Err(error) = self.record_start(entry, start) {
            self.ready.extend(shim);
            return Err(error);
        }
        match shim {
            Some(shim) => self.begin(&id, shim),
            None => self.waiting.push_back(id.clone()),
        }
        self.follow_start(caller, &params, &id);
        self.called_by(&id, caller.client);
        let within = (params.answer == AnswerWhen::Started).then_some(bounds::START_ANSWER_MS);
        self.promise(caller.clone(), What::Start { task: id, when: params.answer, told: false }, within);
        Ok(())
    }

    /// The task is in the journal before anything is started: there is never a process without a record.
    pub(crate) fn record_start(&mut self, entry: Entry, start: Box<Start>) -> Result<(), RpcError> {
        self.put(&entry);
        let told = json!({ "command": entry.doc.command, "name": entry.name, "parent": entry.parent });
        self.emit("task.created", Some((&entry.id, &entry.session)), object(told));
        let id = entry.id.clone();
        let policy = policy_from_wire(&entry.doc.clocks, entry.doc.detached);
        let state = State::new(entry.doc.detached);
        let task = Task { start: Some(start), ..Task::new(entry, state, policy) };
        self.world.reach(CrashPoint::BeforeCreate);
        if let Err(error) = self.commit() {
            // Nothing was started, so nothing of it stays; what else is in the batch is tried again.
            self.batch.put.retain(|row| row.id != id);
            self.batch.events.pop();
            return Err(journal_error(&error));
        }
        self.world.reach(CrashPoint::AfterCreate);
        self.tasks.insert(id, task);
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
    fn same_again(
        &mut self,
        caller: &Caller,
        params: &StartParams,
        known: &Entry,
        fingerprint: &str,
    ) -> Result<(), RpcError> {
        if known.doc.fingerprint.as_deref() != Some(fingerprint) {
            let message = format!("the token was used before, with other parameters, for task {}", known.id);
            return Err(RpcError::new(ErrorKind::Conflict, message)
                .field("token")
                .hint("use a new token for a new task, or the same parameters to get the same one")
                .ids(vec![known.id.clone()]));
        }
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
            Some(State::Running(_) | State::Stopping(_)) if params.answer == AnswerWhen::Started => {
                if let Some(info) = self.live_info(&id, false, None) {
                    self.reply(caller, &info);
                }
            }
            Some(_) => {
                let within = (params.answer == AnswerWhen::Started).then_some(bounds::START_ANSWER_MS);
                let what = What::Start { task: id.clone(), when: params.answer, told: false };
                self.promise(caller.clone(), what, within);
                self.answer_started(&id);
            }
        }
        Ok(())
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

    /// A caller that runs inside a task proves it with the token it was given. One that names a task of another home,
    /// or one that is long gone, simply has no parent here.
    fn proven_parent(&self, params: &StartParams) -> Result<Option<String>, RpcError> {
        let Some(parent) = params.parent.as_deref().and_then(|parent| self.tasks.get(parent)) else {
            return Ok(None);
        };
        let proof =
            params.parent_token.as_deref().map(|token| fingerprint::keyed(&self.key, token.as_bytes()));
        if proof.as_deref() == Some(parent.entry.doc.proof.as_str()) {
            return Ok(Some(parent.entry.id.clone()));
        }
        Err(RpcError::new(ErrorKind::NotPermitted, "the token does not belong to the task named as parent")
            .field("parent_token")
            .hint(format!("{} and {} come together, from a task's environment", vars::TASK, vars::TOKEN)))
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
        parent: Option<String>,
        fingerprint: Option<String>,
    ) -> Result<(Entry, Box<Start>), RpcError> {
        let id = TaskId::from_random(Kind::Shell, self.random()?);
        let secret: [u8; 16] = self.random()?;
        let secret = fingerprint::hex(&secret);
        let limits = defaults::resolve(params, &[&self.config.defaults]);
        let clocks = Clocks {
            timeout_ms: limits.timeout_ms,
            on_timeout: limits.on_timeout,
            ttl_ms: limits.ttl_ms,
            silence_ms: limits.silence_ms,
            grace_ms: limits.grace_ms,
            kill_ms: Policy::DEFAULT_KILL_MS,
        };
        let doc = TaskDoc {
            kind: TaskKind::Shell,
            command: ready.typed,
            line: None,
            argv: ready.argv.clone(),
            cwd: params.cwd.clone(),
            detached: params.detached,
            detached_by: None,
            on_disconnect: params.on_disconnect,
            clocks,
            budgets: params.budgets,
            notify: params.notify.clone(),
            hook: self.hook_above(parent.as_deref()),
            pty: params.pty,
            fingerprint,
            proof: fingerprint::keyed(&self.key, secret.as_bytes()),
            boot: self.boot.clone(),
            shim: None,
            leader: None,
            leader_exit: None,
            seen: 0,
            status: Status::Queued,
            end: None,
        };
        let entry = Entry {
            id: id.to_string(),
            number: self.next_task_number(),
            token: params.token.clone(),
            session: PERSON.to_owned(),
            parent,
            name: params.name.clone(),
            started_ms: self.now.wall_ms,
            doc,
        };
        let start = Start {
            task: id.to_string(),
            dir: Bytes::from(self.config.task_dir(id.as_str()).into_os_string()),
            argv: ready.argv,
            is_shell: ready.is_shell,
            env: environment(params, id.as_str(), &secret, self.config.home.as_os_str().as_bytes()),
            cwd: params.cwd.clone(),
            umask: params.umask,
            rlimits: params.rlimits.iter().map(rlimit).collect::<Result<_, _>>()?,
            stdin: params.stdin || params.pty.is_some(),
            stdin_from: params.stdin_from.clone(),
            merge: params.merge,
            pty: params.pty,
            detached: params.detached,
            clocks,
            output_limit_bytes: limits.output_limit_bytes,
            budgets: params.budgets,
            memory_bytes: if params.detached { 0 } else { bounds::MEMORY_BYTES },
            hurry: params.answer == AnswerWhen::Started,
            stop: None,
            held: false,
        };
        Ok((entry, Box::new(start)))
    }

    /// Above every task in the journal and every one that is on its way there.
    pub(crate) fn next_task_number(&self) -> u64 {
        let waiting = self.batch.put.iter().map(|row| row.number + 1).max().unwrap_or(0);
        self.journal.next_number().max(waiting)
    }

    fn random<const N: usize>(&mut self) -> Result<[u8; N], RpcError> {
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
fn environment(params: &StartParams, id: &str, secret: &str, home: &[u8]) -> Vec<Bytes> {
    let own = [
        (vars::TASK, id.as_bytes()),
        (vars::TASK_HOME, home),
        (vars::SESSION, PERSON.as_bytes()),
        (vars::TOKEN, secret.as_bytes()),
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

/// Everything that can be wrong with a start before anything is done about it.
fn check(params: &StartParams) -> Result<(), RpcError> {
    match &params.command {
        Command::Argv(argv) if argv.first().is_none_or(|program| program.0.is_empty()) => {
            return Err(RpcError::invalid("command", "there is no command to run"));
        }
        Command::Argv(argv) => no_zero_bytes("command", argv)?,
        Command::Line { line, shell } => check_line(line, shell.as_ref())?,
    }
    no_zero_bytes("cwd", std::slice::from_ref(&params.cwd))?;
    if !params.cwd.0.starts_with(b"/") {
        return Err(RpcError::invalid("cwd", "the working directory must be an absolute path"));
    }
    no_zero_bytes("env", &params.env)?;
    if params.env.iter().any(|entry| !entry.0.contains(&b'=') || entry.0.starts_with(b"=")) {
        return Err(RpcError::invalid("env", "every variable is written NAME=value"));
    }
    for (name, value) in &params.set_env {
        if name.is_empty() || name.contains(['=', '\0']) || value.0.contains(&0) {
            return Err(RpcError::invalid(
                "set_env",
                "a name is empty or has = in it, or a zero byte is in there",
            ));
        }
    }
    check_text("stdin_from", params.stdin_from.as_deref(), bounds::SOCKET_NAME_BYTES)?;
    if params.stdin_from.is_some() && (params.stdin || params.pty.is_some()) {
        let message =
            "a standard input that is handed over cannot be written to besides, nor be a terminal's";
        return Err(RpcError::invalid("stdin_from", message).hint("leave out stdin and pty, or stdin_from"));
    }
    check_text("name", params.name.as_deref(), bounds::NAME_BYTES)?;
    check_text("token", params.token.as_deref(), bounds::TOKEN_BYTES)?;
    let clocks = [
        ("timeout_ms", params.timeout_ms),
        ("ttl_ms", params.ttl_ms),
        ("silence_ms", params.silence_ms),
        ("grace_ms", params.grace_ms),
    ];
    for (field, limit) in clocks {
        check_clock(field, limit)?;
    }
    defaults::check(params)?;
    hooks::check(params.notify.as_deref())?;
    if let Some(size) = params.pty {
        check_size("pty", size)?;
    }
    if params.umask.is_some_and(|umask| umask > 0o777) {
        return Err(RpcError::invalid("umask", "a mask is at most 0777"));
    }
    if params.output_limit_bytes.is_some_and(|limit| limit < SMALLEST_LIMIT_BYTES) {
        let message =
            format!("less than {SMALLEST_LIMIT_BYTES} bytes of output cannot be kept head and tail");
        return Err(RpcError::invalid("output_limit_bytes", message));
    }
    Ok(())
}

pub(crate) fn check_line(line: &Bytes, shell: Option<&Bytes>) -> Result<(), RpcError> {
    if shell.is_some_and(|shell| shell.0.is_empty()) {
        return Err(RpcError::invalid("shell", "the shell has no name"));
    }
    no_zero_bytes("command", std::slice::from_ref(line))?;
    no_zero_bytes("shell", shell.map(std::slice::from_ref).unwrap_or_default())
}

pub(crate) fn check_clock(field: &str, limit_ms: Option<u64>) -> Result<(), RpcError> {
    match limit_ms {
        Some(0) if field != "grace_ms" => {
            Err(RpcError::invalid(field, "a limit of nothing ends the task at once"))
                .map_err(|error| error.hint("leave it out for no limit"))
        }
        Some(ms) if ms > bounds::CLOCK_MS => {
            Err(RpcError::invalid(field, "a limit of more than a year is a mistake"))
        }
        _ => Ok(()),
    }
}

pub(crate) fn check_text(field: &str, text: Option<&str>, max_bytes: usize) -> Result<(), RpcError> {
    let Some(text) = text else { return Ok(()) };
    if text.trim().is_empty() {
        return Err(RpcError::invalid(field, format!("the {field} is empty")));
    }
    if text.len() > max_bytes {
        return Err(RpcError::invalid(field, format!("the {field} is longer than {max_bytes} bytes")));
    }
    if text.chars().any(char::is_control) {
        return Err(RpcError::invalid(field, format!("the {field} has a control character in it")));
    }
    Ok(())
}

pub(crate) fn no_zero_bytes(field: &str, texts: &[Bytes]) -> Result<(), RpcError> {
    if texts.iter().any(|text| text.0.contains(&0)) {
        return Err(RpcError::invalid(field, "there is a zero byte in it, which no program can be given"));
    }
    Ok(())
}
