//! Shell lines before their start: which lines have to be parsed, and how the result changes the
//! start. Parsing is done in a separate process; a line that cannot be parsed runs as written.

use std::collections::HashSet;

use belay_protocol::Bytes;
use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::shell::{LineInfo, LineVerdict, ShellReadParams, ShellReadResult};
use belay_protocol::task::{AnswerWhen, ShellCommand, ShellSpec, TaskSpec, TaskStartParams};

use crate::config::bounds;
use crate::effect::Effect;
use crate::host::Host;
use crate::input::JobId;
use crate::requests::check::{check_line, no_zero_bytes};
use crate::requests::{Answer, Caller, Reply, ReplyId, Waiter};
use crate::runtime::{Core, Stage};

/// Where a shell is looked for when the caller's environment has no PATH.
const DEFAULT_PATH: &[u8] = b"/usr/local/bin:/usr/bin:/bin";

/// The explanation of a line that could not be parsed.
const UNPARSED: &str = "Runs as written, because it could not be read in time; what it leaves behind is held under the \
                      task, listed and stoppable.";

/// The PATH of an environment, or the usual one.
pub(crate) fn path_of(env: &[Bytes]) -> &[u8] {
    env.iter().rev().find_map(|entry| entry.0.strip_prefix(b"PATH=")).unwrap_or(DEFAULT_PATH)
}

/// An environment with some of its variables replaced.
pub(super) fn with_set(env: &[Bytes], set: &[(&[u8], &[u8])]) -> Vec<Bytes> {
    let is_set = |entry: &Bytes| {
        let name = entry.0.split(|byte| *byte == b'=').next().unwrap_or_default();
        set.iter().any(|(other, _)| *other == name)
    };
    let inherited = env.iter().filter(|entry| !is_set(entry)).cloned();
    let added = set.iter().map(|(name, value)| Bytes([*name, b"=", *value].concat()));
    inherited.chain(added).collect()
}

/// Inherited variables, then those that replace variables of the same name.
pub(super) fn inherited_first(inherited: Vec<Bytes>, own: Vec<Bytes>) -> Vec<Bytes> {
    let name = |entry: &Bytes| entry.0.split(|byte| *byte == b'=').next().unwrap_or_default().to_vec();
    let replaced: HashSet<Vec<u8>> = own.iter().map(name).collect();
    inherited.into_iter().filter(|entry| !replaced.contains(&name(entry))).chain(own).collect()
}

/// The information about a parsed line that is shown with its task. None for a plain line.
pub(super) fn line_info(parsed: &ShellReadResult) -> Option<LineInfo> {
    let ShellReadResult { verdict, explanation, .. } = parsed;
    (*verdict != LineVerdict::Plain).then(|| LineInfo { verdict: *verdict, explanation: explanation.clone() })
}

/// The start of the only command of a line that ends in `&`. The result does not depend on whether
/// the caller asked for a detached task: no caller waits for it, its foreground timeout does not
/// apply, and it has no standard input.
fn detached(params: TaskStartParams, command: Bytes) -> TaskStartParams {
    let mut spec = params.spec;
    if let Some(shell) = spec.shell_mut() {
        let program = match &shell.command {
            ShellCommand::Line { shell, .. } => shell.clone(),
            ShellCommand::Argv { .. } => None,
        };
        shell.command = ShellCommand::Line { line: command, shell: program };
        (shell.stdin, shell.stdin_from) = (false, None);
    }
    TaskStartParams {
        spec,
        timeout_ms: params.timeout_ms.filter(|_| params.detached),
        detached: true,
        answer: AnswerWhen::Started,
        follow: None,
        ..params
    }
}

/// The start with the background command of its line, if the line is only that command; else the
/// start as it was.
pub(super) fn apply_verdict(params: TaskStartParams, command: Option<Bytes>) -> TaskStartParams {
    match command {
        Some(command) => detached(params, command),
        None => params,
    }
}

/// A line that is being parsed: for a start, or for `shell/read` itself.
#[derive(Debug)]
pub(crate) struct ParseReply {
    start: Option<Box<TaskStartParams>>,
}

impl Reply for ParseReply {
    fn give_now<H: Host>(self, core: &mut Core<H>, waiter: Waiter) {
        let done = core.go_on_unparsed(&waiter.caller, self.start);
        core.finish_call(&waiter.caller, done);
    }

    fn daemon_leaves<H: Host>(self, core: &mut Core<H>, waiter: Waiter) {
        if let Err(error) = core.refuse_when_leaving() {
            core.fail(&waiter.caller, error);
        }
    }
}

impl<H: Host> Core<H> {
    /// Parses the line of a start first if something in it may be asynchronous. Returns the parameters if not.
    pub(super) fn parse_first(
        &mut self,
        caller: &Caller,
        params: TaskStartParams,
    ) -> Option<TaskStartParams> {
        let TaskSpec::Shell(ShellSpec { command: ShellCommand::Line { line, shell }, .. }) = &params.spec
        else {
            return Some(params);
        };
        if !belay_shell::may_be_asynchronous(&line.0) {
            return Some(params);
        }
        if self.requests.parsing() >= bounds::PARSES {
            let done = self.go_on_unparsed(caller, Some(Box::new(params)));
            self.finish_call(caller, done);
            return None;
        }
        let set: Vec<(&[u8], &[u8])> =
            params.set_env.iter().map(|(name, value)| (name.as_bytes(), value.0.as_slice())).collect();
        let read = ShellReadParams {
            line: line.clone(),
            shell: Some(shell.clone().unwrap_or_else(|| self.default_shell(&params.env))),
            cwd: Some(params.cwd.clone()),
            env: with_set(&params.env, &set),
        };
        self.parse(caller, read, Some(params));
        None
    }

    fn parse(&mut self, caller: &Caller, params: ShellReadParams, start: Option<TaskStartParams>) {
        let reply = ParseReply { start: start.map(Box::new) };
        let reply = self.defer_reply(caller.clone(), reply, Some(bounds::PARSE_MS));
        let params = Box::new(params);
        self.ctx.effects.push(Stage::Unconditional, Effect::ParseLine { job: JobId(reply.0), params });
    }

    pub(crate) fn shell_read(
        &mut self,
        caller: &Caller,
        params: ShellReadParams,
    ) -> Result<Answer, RpcError> {
        check_line(&params.line, params.shell.as_ref())?;
        no_zero_bytes("env", &params.env)?;
        if self.requests.parsing() >= bounds::PARSES {
            return Err(RpcError::new(ErrorKind::Busy, "too many lines are being read at this moment")
                .hint("try again when some have been answered"));
        }
        let shell = Some(params.shell.unwrap_or_else(|| self.default_shell(&params.env)));
        self.parse(caller, ShellReadParams { shell, ..params }, None);
        Ok(Answer::Later)
    }

    /// A line was parsed. If its caller has disconnected meanwhile, nothing is started.
    pub(crate) fn line_parsed(&mut self, job: JobId, result: Option<Box<ShellReadResult>>) {
        let Some((waiter, ParseReply { start })) = self.take_reply(ReplyId(job.0)) else { return };
        let caller = &waiter.caller;
        let done = match (start, result) {
            (start, None) => self.go_on_unparsed(caller, start),
            (None, Some(result)) => Ok(caller.answer(&*result)),
            (Some(params), Some(result)) => self.start_parsed(caller, *params, Some(*result)),
        };
        self.finish_call(caller, done);
    }

    /// Continues without a parse: the line could not be parsed, or not in time.
    fn go_on_unparsed(
        &mut self,
        caller: &Caller,
        start: Option<Box<TaskStartParams>>,
    ) -> Result<Answer, RpcError> {
        let Some(params) = start else {
            return Err(RpcError::new(ErrorKind::Internal, "the line could not be read in time")
                .hint("a task runs the line as written and holds every process of it"));
        };
        let held = ShellReadResult {
            verdict: LineVerdict::Held,
            explanation: UNPARSED.to_owned(),
            command: None,
            shell: Bytes::default(),
            ampersands: Vec::new(),
        };
        self.start_parsed(caller, *params, Some(held))
    }

    /// Models write bash, so bash is the default shell where it is installed, and sh elsewhere.
    pub(super) fn default_shell(&self, env: &[Bytes]) -> Bytes {
        let bash = self.ctx.host.find_program("bash".as_ref(), path_of(env));
        bash.map_or_else(|| Bytes::from("/bin/sh"), |path| Bytes::from(path.into_os_string()))
    }
}
