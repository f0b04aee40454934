//! Shell lines before their start: which of them have to be read, and what a reading changes about a start. Reading is
//! done elsewhere; a line that cannot be read runs as written.

use belay_protocol::Bytes;
use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::shell::{LineInfo, LineVerdict, ReadParams, ReadResult};
use belay_protocol::task::{AnswerWhen, Command, StartParams};

use crate::answer::{Caller, Pending, What};
use crate::config::bounds;
use crate::core::Core;
use crate::event::Action;
use crate::handlers::check::{check_line, no_zero_bytes};
use crate::world::World;

/// Where a shell is looked for when the caller's environment has no PATH.
const DEFAULT_PATH: &[u8] = b"/usr/local/bin:/usr/bin:/bin";

/// What is said of a line that could not be read.
const UNREAD: &str = "Runs as written, because it could not be read in time; what it leaves behind is held under the \
                      task, listed and stoppable.";

/// The PATH of an environment, or the usual one.
pub(crate) fn path_of(env: &[Bytes]) -> &[u8] {
    env.iter().rev().find_map(|entry| entry.0.strip_prefix(b"PATH=")).unwrap_or(DEFAULT_PATH)
}

/// An environment with some of its variables set anew.
pub(crate) fn with_set(env: &[Bytes], set: &[(&[u8], &[u8])]) -> Vec<Bytes> {
    let is_set = |entry: &Bytes| {
        let name = entry.0.split(|byte| *byte == b'=').next().unwrap_or_default();
        set.iter().any(|(other, _)| *other == name)
    };
    let inherited = env.iter().filter(|entry| !is_set(entry)).cloned();
    let added = set.iter().map(|(name, value)| Bytes([*name, b"=", *value].concat()));
    inherited.chain(added).collect()
}

/// What was made of a line, for whoever looks at its task. Of most lines there is nothing to tell.
pub(crate) fn told(reading: &ReadResult) -> Option<LineInfo> {
    let ReadResult { verdict, explanation, .. } = reading;
    (*verdict != LineVerdict::Plain).then(|| LineInfo { verdict: *verdict, explanation: explanation.clone() })
}

/// The start of the one command that the line runs in the background. It is the same whether or not background was asked
/// for: nobody waits for it, its limit for the foreground does not apply, and it reads nothing, as behind an `&`.
fn detached(params: StartParams, command: Bytes) -> StartParams {
    let shell = match params.command {
        Command::Line { shell, .. } => shell,
        Command::Argv(_) => None,
    };
    StartParams {
        command: Command::Line { line: command, shell },
        timeout_ms: params.timeout_ms.filter(|_| params.detached),
        detached: true,
        stdin: false,
        stdin_from: None,
        answer: AnswerWhen::Started,
        follow: false,
        ..params
    }
}

/// The start as it is meant: of the command that its line runs in the background, if that is all it does.
pub(crate) fn meant(params: StartParams, command: Option<Bytes>) -> StartParams {
    match command {
        Some(command) => detached(params, command),
        None => params,
    }
}

impl<W: World> Core<W> {
    /// Reads the line of a start first, if it may have something asynchronous in it. Gives the parameters back if not.
    pub(crate) fn read_first(&mut self, caller: &Caller, params: StartParams) -> Option<StartParams> {
        let Command::Line { line, shell } = &params.command else { return Some(params) };
        if !belay_shell::may_be_asynchronous(&line.0) {
            return Some(params);
        }
        if self.too_many_readings() {
            self.go_on_unread(caller, Some(Box::new(params)));
            return None;
        }
        let set: Vec<(&[u8], &[u8])> =
            params.set_env.iter().map(|(name, value)| (name.as_bytes(), value.0.as_slice())).collect();
        let read = ReadParams {
            line: line.clone(),
            shell: Some(shell.clone().unwrap_or_else(|| self.default_shell(&params.env))),
            cwd: Some(params.cwd.clone()),
            env: with_set(&params.env, &set),
        };
        self.have_read(caller, read, Some(params));
        None
    }

    /// Each is a process of its own.
    fn too_many_readings(&self) -> bool {
        let is_reading = |pending: &&Pending| matches!(pending.what, What::Reading { .. });
        self.pending.values().filter(is_reading).count() >= bounds::READINGS
    }

    fn have_read(&mut self, caller: &Caller, params: ReadParams, start: Option<StartParams>) {
        let what = What::Reading { start: start.map(Box::new) };
        let reading = self.promise(caller.clone(), what, Some(bounds::READING_MS));
        self.actions.push(Action::ReadLine { reading, params: Box::new(params) });
    }

    /// `shell/read`.
    pub(crate) fn shell_read(&mut self, caller: &Caller, params: ReadParams) {
        let checked =
            check_line(&params.line, params.shell.as_ref()).and_then(|()| no_zero_bytes("env", &params.env));
        if let Err(error) = checked {
            return self.fail(caller, error);
        }
        if self.too_many_readings() {
            let error = RpcError::new(ErrorKind::Busy, "too many lines are being read at this moment");
            return self.fail(caller, error.hint("try again when some have been answered"));
        }
        let shell = Some(params.shell.unwrap_or_else(|| self.default_shell(&params.env)));
        self.have_read(caller, ReadParams { shell, ..params }, None);
    }

    /// A line was read. If its caller has gone meanwhile, nobody knows of it and nothing is started.
    pub(crate) fn line_read(&mut self, reading: u64, result: Option<Box<ReadResult>>) {
        let Some(Pending { caller, what: What::Reading { start }, .. }) = self.take_pending(reading) else {
            return;
        };
        match (start, result) {
            (start, None) => self.go_on_unread(&caller, start),
            (None, Some(result)) => self.reply(&caller, &*result),
            (Some(params), Some(result)) => self.start_read(&caller, *params, Some(*result)),
        }
    }

    /// The line could not be read, or not in time.
    pub(crate) fn go_on_unread(&mut self, caller: &Caller, start: Option<Box<StartParams>>) {
        let Some(params) = start else {
            let error = RpcError::new(ErrorKind::Internal, "the line could not be read in time");
            return self.fail(caller, error.hint("a task with it runs it as written, and holds all of it"));
        };
        let held = ReadResult {
            verdict: LineVerdict::Held,
            explanation: UNREAD.to_owned(),
            command: None,
            shell: Bytes::default(),
            ampersands: Vec::new(),
        };
        self.start_read(caller, *params, Some(held));
    }

    /// Models write bash; a machine without it has sh.
    pub(crate) fn default_shell(&self, env: &[Bytes]) -> Bytes {
        let bash = self.world.find_program("bash".as_ref(), path_of(env));
        bash.map_or_else(|| Bytes::from("/bin/sh"), |path| Bytes::from(path.into_os_string()))
    }
}
