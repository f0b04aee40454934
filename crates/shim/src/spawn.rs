//! Turns a start message into a process: the pipes or the terminal, the program, and an error in people's words if it
//! fails.

use std::ffi::{CString, OsStr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;

use belay_model::{SpawnFailure, SpawnStage};
use belay_os::fds;
use belay_os::pty::{self, Pty};
use belay_os::spawn::{Rlimit, Session, SpawnError, SpawnSpec, Spawned, Stage, spawn};
use belay_protocol::Bytes;
use belay_protocol::shim::Start;
use belay_protocol::task::TerminalSize;

use crate::handed;
use crate::output::PIPE_BYTES;

/// Pipes made ahead of time, so that a start does not wait for them.
#[derive(Debug)]
pub(crate) struct Pipes {
    pub(crate) stdout: (OwnedFd, OwnedFd),
    pub(crate) stderr: (OwnedFd, OwnedFd),
}

impl Pipes {
    pub(crate) fn new() -> std::io::Result<Self> {
        let stdout = fds::pipe(PIPE_BYTES)?;
        let stderr = fds::pipe(PIPE_BYTES)?;
        fds::set_nonblocking(&stdout.0, true)?;
        fds::set_nonblocking(&stderr.0, true)?;
        Ok(Self { stdout, stderr })
    }
}

/// What the shim keeps of a started task.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) spawned: Spawned,
    pub(crate) stdin: Option<OwnedFd>,
}

/// Starts the command on pipes.
pub(crate) fn start(
    start: &Start,
    pipes: &Pipes,
    null: BorrowedFd<'_>,
    cgroup: Option<BorrowedFd<'_>>,
) -> Result<Held, SpawnFailure> {
    let stdin = if start.stdin { Some(stdin_pipe()?) } else { None };
    let handed = start.stdin_from.as_deref().map(handed::take).transpose()?;
    let given = stdin.as_ref().map(|(read, _)| read.as_fd()).or(handed.as_ref().map(AsFd::as_fd));
    let reader = given.unwrap_or(null);
    let stderr = if start.merge { &pipes.stdout.1 } else { &pipes.stderr.1 };
    let stdio = [reader, pipes.stdout.1.as_fd(), stderr.as_fd()];
    let spawned = start_on(start, stdio, Session::NewGroup, cgroup)?;
    Ok(Held { spawned, stdin: stdin.map(|(_, write)| write) })
}

/// Starts the command at a terminal, which is that of its session. Both roads to the master are the same open file.
pub(crate) fn start_at(
    start: &Start,
    terminal: &Pty,
    cgroup: Option<BorrowedFd<'_>>,
) -> Result<Held, SpawnFailure> {
    let stdin = terminal.master.try_clone().map_err(|error| no_terminal(&error))?;
    let stdio = [terminal.slave.as_fd(); 3];
    let spawned = start_on(start, stdio, Session::Terminal, cgroup)?;
    Ok(Held { spawned, stdin: Some(stdin) })
}

/// A terminal is made when a task wants one: few do, and an idle one would cost each shim of the pool.
pub(crate) fn terminal(size: TerminalSize) -> Result<Pty, SpawnFailure> {
    pty::open(size.rows, size.cols).map_err(|error| no_terminal(&error))
}

fn no_terminal(error: &std::io::Error) -> SpawnFailure {
    SpawnFailure {
        stage: SpawnStage::Resources,
        errno: error.raw_os_error().unwrap_or(0),
        message: format!("no terminal could be made: {error}"),
    }
}

/// With a cgroup if it can be, without if the kernel refuses: the tree is held either way.
fn start_on(
    start: &Start,
    [stdin, stdout, stderr]: [BorrowedFd<'_>; 3],
    session: Session,
    cgroup: Option<BorrowedFd<'_>>,
) -> Result<Spawned, SpawnFailure> {
    let argv = c_strings(&start.argv, "argument")?;
    let envp = c_strings(&start.env, "environment variable")?;
    let cwd = c_strings(std::slice::from_ref(&start.cwd), "cwd")?;
    let rlimits: Vec<Rlimit> = start
        .rlimits
        .iter()
        .map(|limit| Rlimit { resource: limit.resource, soft: limit.soft, hard: limit.hard })
        .collect();
    let spec = SpawnSpec {
        argv: &argv,
        envp: &envp,
        cwd: cwd.first().map(CString::as_c_str),
        umask: start.umask,
        rlimits: &rlimits,
        stdin,
        stdout,
        stderr,
        cgroup,
        session,
    };
    let spawned = match spawn(&spec) {
        Err(error) if error.stage == Stage::Cgroup => spawn(&SpawnSpec { cgroup: None, ..spec }),
        other => other,
    };
    spawned.map_err(|error| explain(start, &error))
}

fn stdin_pipe() -> Result<(OwnedFd, OwnedFd), SpawnFailure> {
    let made = fds::pipe(0).and_then(|(read, write)| {
        fds::set_nonblocking(&write, true)?;
        Ok((read, write))
    });
    made.map_err(|error| SpawnFailure {
        stage: SpawnStage::Resources,
        errno: error.raw_os_error().unwrap_or(0),
        message: format!("no pipe could be made for standard input: {error}"),
    })
}

fn c_strings(texts: &[Bytes], what: &str) -> Result<Vec<CString>, SpawnFailure> {
    let coded = texts.iter().map(|text| CString::new(text.0.as_slice()));
    coded.collect::<Result<_, _>>().map_err(|_| SpawnFailure {
        stage: SpawnStage::Arguments,
        errno: 0,
        message: format!("an {what} has a zero byte in it"),
    })
}

fn explain(start: &Start, error: &SpawnError) -> SpawnFailure {
    const E2BIG: i32 = 7;
    let program = start.argv.first().map(|name| name.to_text_lossy().into_owned()).unwrap_or_default();
    let system = std::io::Error::from_raw_os_error(error.errno);
    let kind = system.kind();
    let (stage, message) = match error.stage {
        Stage::Cwd => {
            let cwd = start.cwd.to_text_lossy();
            (SpawnStage::Cwd, format!("the working directory {cwd:?} cannot be entered: {system}"))
        }
        Stage::Program if error.errno == E2BIG => (
            SpawnStage::Arguments,
            "arguments and environment are too long for the system: argument list too long".to_owned(),
        ),
        Stage::Program | Stage::Interpreter => {
            let stage = if start.is_shell { SpawnStage::Shell } else { SpawnStage::Program };
            let what = if start.is_shell { "shell" } else { "program" };
            let message = match kind {
                std::io::ErrorKind::NotFound if error.stage == Stage::Interpreter => {
                    format!("the {what} {program:?} asks for an interpreter that is not there")
                }
                std::io::ErrorKind::NotFound
                    if OsStr::from_bytes(program.as_bytes()).as_bytes().contains(&b'/') =>
                {
                    format!("the {what} {program:?} does not exist")
                }
                std::io::ErrorKind::NotFound => format!("the {what} {program:?} was not found in PATH"),
                _ => format!("the {what} {program:?} cannot be executed: {system}"),
            };
            (stage, message)
        }
        Stage::Limits => (SpawnStage::Limits, format!("a resource limit cannot be set: {system}")),
        Stage::Resources => (SpawnStage::Resources, format!("no new process could be made: {system}")),
        Stage::Cgroup | Stage::Session | Stage::Stdio | Stage::Proc => {
            (SpawnStage::Holder, error.to_string())
        }
    };
    SpawnFailure { stage, errno: error.errno, message }
}
