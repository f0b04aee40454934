//! Composing a task from the parameters of its start: the stored task, and the start message for
//! its shim. It records and sends nothing.

use std::os::unix::ffi::OsStrExt as _;

use belay_model::{Kind, Policy, TaskId};
use belay_protocol::daemon::ClientInfo;
use belay_protocol::error::RpcError;
use belay_protocol::shim::{Clocks, Rlimit, Start};
use belay_protocol::task::{
    AgentInfo, AgentSpec, AnswerWhen, ShellCommand, ShellInfo, ShellSpec, TaskKind, TaskSpec, TaskSpecInfo,
    TaskStartParams, TaskStatus,
};
use belay_protocol::{Bytes, vars};

use super::terminal::TERM;
use super::{Place, StoredTask, TaskDoc, shell_line, typed};
use crate::config::bounds;
use crate::defaults::{self, Defaults, Limits};
use crate::host::Host;
use crate::keyed_hash;
use crate::requests::make_token;
use crate::runtime::Core;

/// Who starts a task.
#[derive(Clone, Debug)]
pub(crate) struct Starter {
    pub(crate) actor: String,
    pub(crate) client: Option<ClientInfo>,
}

impl Starter {
    /// The daemon itself, when it runs a hook.
    pub(crate) fn hook() -> Self {
        Self { actor: "hook".to_owned(), client: None }
    }
}

/// A command ready to be executed, and its text as typed in a shell.
#[derive(Debug)]
pub(crate) struct PreparedCommand {
    argv: Vec<Bytes>,
    typed: String,
    is_shell: bool,
    /// What is stored of the specification of its task.
    spec: TaskSpecInfo,
}

impl<H: Host> Core<H> {
    pub(crate) fn prepare_command(&self, params: &TaskStartParams) -> PreparedCommand {
        let (argv, typed, is_shell) = match &params.spec {
            TaskSpec::Shell(ShellSpec { command: ShellCommand::Argv { argv }, .. }) => {
                (argv.clone(), typed(argv), false)
            }
            TaskSpec::Shell(ShellSpec { command: ShellCommand::Line { line, shell }, .. }) => {
                let shell = shell.clone().unwrap_or_else(|| self.default_shell(&params.env));
                let argv = vec![shell, Bytes::from("-c"), line.clone()];
                (argv, line.to_text_lossy().trim_end().to_owned(), true)
            }
            TaskSpec::Agent(agent) => (agent.argv.clone(), typed(&agent.argv), false),
        };
        let spec = match &params.spec {
            TaskSpec::Shell(shell) => {
                TaskSpecInfo::Shell(ShellInfo { argv: argv.clone(), line: None, pty: shell.pty })
            }
            TaskSpec::Agent(AgentSpec { agent, stay, .. }) => {
                TaskSpecInfo::Agent(AgentInfo { agent: agent.clone(), argv: argv.clone(), stay: *stay })
            }
        };
        PreparedCommand { argv, typed, is_shell, spec }
    }

    /// The task as it will be stored, and the message that starts it.
    pub(crate) fn compose(
        &mut self,
        params: &TaskStartParams,
        command: PreparedCommand,
        place: Place,
        starter: Starter,
        fingerprint: Option<String>,
    ) -> Result<(StoredTask, Box<Start>), RpcError> {
        let kind = match params.spec.kind() {
            TaskKind::Shell => Kind::Shell,
            TaskKind::Agent => Kind::Agent,
        };
        let id = TaskId::from_random(kind, self.ctx.random()?);
        let token = make_token(id.as_str(), &self.ctx.random::<16>()?);
        let Place { session, parent, lineage } = place;
        let clocks = clocks(params, self.limits(params, &session));
        let doc = TaskDoc {
            command: command.typed.clone(),
            spec: command.spec.clone(),
            cwd: params.cwd.clone(),
            detached: params.detached,
            detached_by: None,
            on_disconnect: params.on_disconnect,
            clocks,
            budgets: params.budgets,
            written_below: None,
            notify: params.notify.clone(),
            hook: self.hook_part_below(parent.as_deref()),
            fingerprint,
            proof: keyed_hash::keyed(&self.ctx.key, token.as_bytes()),
            lineage,
            labels: params.labels.clone(),
            started_by: starter.actor,
            client: starter.client,
            keep: params.keep,
            lane: None,
            boot: self.ctx.boot.clone(),
            shim: None,
            started_ms: None,
            leader: None,
            leader_exit: None,
            attempt: TaskDoc::no_attempt_yet(&clocks),
            stall_set: None,
            stalled: None,
            seen: 0,
            last_event: 0,
            status: TaskStatus::Queued,
            end: None,
        };
        let stored = StoredTask {
            id: id.to_string(),
            number: self.ctx.journal.next_task_number(),
            token: params.token.clone(),
            session,
            parent,
            name: params.name.clone(),
            created_ms: self.ctx.now.wall_ms,
            doc,
        };
        let start = self.start_message(params, command, &stored, &token)?;
        Ok((stored, start))
    }

    /// The message that starts a task. The environment is only in this message: it is not stored.
    pub(super) fn start_message(
        &self,
        params: &TaskStartParams,
        command: PreparedCommand,
        stored: &StoredTask,
        token: &str,
    ) -> Result<Box<Start>, RpcError> {
        let home = self.ctx.config.home.as_os_str().as_bytes();
        let shell = params.spec.shell();
        Ok(Box::new(Start {
            task: stored.id.clone(),
            dir: Bytes::from(self.ctx.config.task_dir(&stored.id).into_os_string()),
            argv: command.argv,
            is_shell: command.is_shell,
            env: environment(params, &stored.id, (&stored.session, token), home),
            cwd: params.cwd.clone(),
            umask: params.umask,
            rlimits: params.rlimits.iter().map(rlimit).collect::<Result<_, _>>()?,
            stdin: shell.is_none_or(|shell| shell.stdin || shell.pty.is_some()),
            stdin_from: shell.and_then(|shell| shell.stdin_from.clone()),
            merge: shell.is_some_and(|shell| shell.merge),
            pty: params.spec.pty(),
            detached: params.detached,
            clocks: stored.doc.clocks,
            output_limit_bytes: self.limits(params, &stored.session).output_limit_bytes,
            budgets: params.budgets,
            memory_bytes: if params.detached { 0 } else { bounds::MEMORY_BYTES },
            hurry: params.answer == AnswerWhen::Started,
            held: false,
        }))
    }

    /// The limits of a start: its own, else those of its session or of a session above it, else
    /// those of the settings.
    fn limits(&self, params: &TaskStartParams, session: &str) -> Limits {
        let mut layers: Vec<Defaults> = self.sessions.defaults_of(session);
        layers.push(self.ctx.config.defaults);
        defaults::resolve(params, &layers.iter().collect::<Vec<_>>())
    }
}

fn clocks(params: &TaskStartParams, limits: Limits) -> Clocks {
    Clocks {
        timeout_ms: limits.timeout_ms,
        on_timeout: limits.on_timeout,
        ttl_ms: limits.ttl_ms,
        silence_ms: limits.silence_ms,
        grace_ms: limits.grace_ms,
        stall: limits.stall,
        kill_ms: Policy::DEFAULT_KILL_MS,
        retries: params.retries,
        retry_delay_ms: params.retry_delay_ms.unwrap_or(Policy::DEFAULT_RETRY_DELAY_MS),
    }
}

fn rlimit(limit: &[u64; 3]) -> Result<Rlimit, RpcError> {
    let [resource, soft, hard] = *limit;
    let resource = u32::try_from(resource).ok().filter(|resource| *resource < 64);
    let resource = resource.ok_or_else(|| RpcError::invalid("rlimits", "unknown resource number"))?;
    if soft > hard {
        return Err(RpcError::invalid("rlimits", "a soft limit is above its hard limit"));
    }
    Ok(Rlimit { resource, soft, hard })
}

/// The caller's environment, the variables of `set_env`, and those that identify the task.
fn environment(
    params: &TaskStartParams,
    id: &str,
    (session, token): (&str, &str),
    home: &[u8],
) -> Vec<Bytes> {
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
    let term = Some(Bytes::from(TERM)).filter(|_| params.spec.pty().is_some() && !named);
    shell_line::with_set(&params.env, &set).into_iter().chain(term).collect()
}
