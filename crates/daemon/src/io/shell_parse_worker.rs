//! `belay reader`: parses one shell line in a separate process with resource limits, and writes the
//! verdict. A line that crashes the parser, or the shell that checks it, ends only this process. It
//! never runs the line.

use std::ffi::CString;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use belay_os::spawn::{Session, SpawnSpec, spawn};
use belay_os::tree::{self, Exit, Tree};
use belay_os::{Spawned, fds};
use belay_protocol::Bytes;
use belay_protocol::shell::{LineVerdict, ShellReadParams, ShellReadResult};
use belay_shell::{Answer, Reader, Reading, Shell, UNSET_FOR_CHECK, Verdict, explain};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::linux_host::find_program;
use crate::tasks::path_of;

/// How long a shell may take to check one line.
const SHELL_LIMIT: Duration = Duration::from_secs(1);

/// How much of the shell's error output is read.
const STDERR_BYTES: usize = 4096;

/// Reads a request from standard input, and writes the result to standard output. Started by a
/// daemon only.
pub fn main() -> ExitCode {
    let answer = || -> io::Result<()> {
        let mut request = Vec::new();
        io::stdin().read_to_end(&mut request)?;
        tree::become_subreaper()?;
        let params: ShellReadParams = serde_json::from_slice(&request)?;
        serde_json::to_writer(io::stdout(), &read(&params))?;
        io::stdout().flush()
    };
    if answer().is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn read(params: &ShellReadParams) -> ShellReadResult {
    let named = params.shell.clone().unwrap_or_else(|| Bytes::from("sh"));
    let shell = shell(&named, params.cwd.as_ref(), &params.env);
    let envp = environment(&params.env);
    let ask = |shell: &Shell, line: &[u8]| ask(shell, line, &envp).unwrap_or(Answer::Unasked);
    let mut reading = Reader::default().read(&params.line.0, &shell, &ask);
    // The parser does not check a plain line with the shell, but the caller needs to know about
    // syntax errors.
    if reading.verdict == Verdict::Plain
        && let Answer::Refuses { message } = ask(&shell, &params.line.0)
    {
        reading.verdict = Verdict::SyntaxError { message };
    }
    result(&reading, named)
}

fn result(reading: &Reading, shell: Bytes) -> ShellReadResult {
    let (verdict, command) = match &reading.verdict {
        Verdict::Plain => (LineVerdict::Plain, None),
        Verdict::Detach { command } => (LineVerdict::Detach, Some(Bytes(command.clone()))),
        Verdict::Held { .. } => (LineVerdict::Held, None),
        Verdict::SyntaxError { .. } => (LineVerdict::SyntaxError, None),
    };
    let ampersands = reading.ampersands.iter().map(|place| [place.start as u64, place.end as u64]).collect();
    ShellReadResult { verdict, explanation: explain(reading), command, shell, ampersands }
}

/// The shell by its name, with the program that the name resolves to.
fn shell(named: &Bytes, cwd: Option<&Bytes>, env: &[Bytes]) -> Shell {
    let path = Path::new(named.as_os_str());
    let program = if named.0.contains(&b'/') {
        cwd.map_or_else(|| path.to_path_buf(), |cwd| Path::new(cwd.as_os_str()).join(path))
    } else {
        find_program(named.as_os_str(), path_of(env)).unwrap_or_else(|| PathBuf::from(path))
    };
    let target = program.canonicalize();
    let shell = Shell::new(program);
    match target {
        Ok(target) => shell.resolved(target),
        Err(_) => shell,
    }
}

/// The environment of the line, without the variables that make a shell run startup files.
fn environment(env: &[Bytes]) -> Vec<CString> {
    let name = |entry: &Bytes| entry.0.split(|byte| *byte == b'=').next().unwrap_or_default().to_vec();
    let unset = |entry: &&Bytes| !UNSET_FOR_CHECK.iter().any(|unset| unset.as_bytes() == name(entry));
    env.iter().filter(unset).filter_map(|entry| CString::new(entry.0.clone()).ok()).collect()
}

/// Whether a program is an ELF binary. A script could do anything with its arguments.
fn is_binary(program: &Path) -> bool {
    let mut magic = [0; 4];
    let read = std::fs::File::open(program).and_then(|mut file| file.read_exact(&mut magic));
    read.is_ok() && magic == *b"\x7fELF"
}

/// Asks the shell whether it accepts a line. None if there is no answer, or if the shell might run
/// the line.
fn ask(shell: &Shell, line: &[u8], envp: &[CString]) -> Option<Answer> {
    if !shell.program().is_absolute() || !is_binary(shell.program()) {
        return None;
    }
    let words = shell.arguments_to_read()?.iter().map(|word| word.as_bytes());
    let program = shell.program().as_os_str().as_bytes();
    let argv = std::iter::once(program).chain(words).chain([line]);
    let argv: Vec<CString> = argv.map(CString::new).collect::<Result<_, _>>().ok()?;
    let null = fds::null().ok()?;
    let (errors, stderr) = fds::pipe(STDERR_BYTES).ok()?;
    let spec = SpawnSpec {
        argv: &argv,
        envp,
        cwd: Some(c"/"),
        umask: None,
        rlimits: &[],
        stdin: null.as_fd(),
        stdout: null.as_fd(),
        stderr: stderr.as_fd(),
        cgroup: None,
        session: Session::NewSession,
    };
    let spawned = spawn(&spec).ok()?;
    drop(stderr);
    let answer = read_answer(&spawned, errors.as_fd());
    // No process of the shell may remain.
    Tree::new(None).kill_until_empty(100).ok()?;
    answer
}

/// The error output and exit status of the shell. None if they do not arrive in time.
fn read_answer(spawned: &Spawned, errors: std::os::fd::BorrowedFd<'_>) -> Option<Answer> {
    let until = Instant::now() + SHELL_LIMIT;
    let mut text = Vec::new();
    let mut buffer = [0; STDERR_BYTES];
    while text.len() < STDERR_BYTES {
        wait_for(errors, until)?;
        match rustix::io::read(errors, &mut buffer) {
            Ok(0) => break,
            Ok(length) => text.extend_from_slice(&buffer[..length]),
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
            Err(_) => return None,
        }
    }
    wait_for(spawned.pidfd.as_fd(), until)?;
    let mut reaped = Vec::new();
    Tree::new(None).reap(&mut reaped).ok()?;
    match reaped.iter().find(|dead| dead.pid == spawned.identity.pid)?.exit {
        Exit::Code(code) => Some(Answer::from_run(code == 0, &text)),
        Exit::Signal { .. } => None,
    }
}

fn wait_for(fd: std::os::fd::BorrowedFd<'_>, until: Instant) -> Option<()> {
    let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).ok()?;
    let ready = rustix::event::poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&left)).ok()?;
    (ready > 0).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(line: &str, shell: &str) -> ShellReadParams {
        let path = std::env::var("PATH").unwrap_or_default();
        ShellReadParams {
            line: Bytes::from(line),
            shell: Some(Bytes::from(shell)),
            cwd: None,
            env: vec![Bytes::from(format!("PATH={path}").as_str()), Bytes::from("BASH_ENV=/dev/full")],
        }
    }

    #[test]
    fn shell_dialect_follows_symlink_target() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("sh");
        std::os::unix::fs::symlink("/bin/bash", &link).unwrap();
        let by = |path: &Path| shell(&Bytes::from(path.as_os_str().to_owned()), None, &[]).dialect();
        assert_eq!(by(&link), belay_shell::Dialect::Bash);
        assert_eq!(by(Path::new("/no/such/dash")), belay_shell::Dialect::Posix);
        let found = shell(&Bytes::from("bash"), None, &params("", "bash").env);
        assert!(found.program().is_absolute(), "{found:?}");
        // A relative path is resolved against the working directory of the task.
        let cwd = Bytes::from(dir.path().as_os_str().to_owned());
        assert_eq!(shell(&Bytes::from("./sh"), Some(&cwd), &[]).dialect(), belay_shell::Dialect::Bash);
        assert!(is_binary(Path::new("/bin/bash")) && !is_binary(Path::new("/no/such")));
        std::fs::write(dir.path().join("bash"), "#!/bin/sh\n").unwrap();
        assert!(!is_binary(&dir.path().join("bash")));
    }

    #[test]
    fn startup_file_variables_are_removed() {
        let kept = environment(&params("", "bash").env);
        assert_eq!(kept.len(), 1);
        assert!(kept[0].as_bytes().starts_with(b"PATH="), "{kept:?}");
    }
}
