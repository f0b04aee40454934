//! Starting one process exactly as asked: program, environment, directory, limits, streams, group
//! and cgroup, with an error that names the step that failed. It does not close descriptors in the
//! child: every descriptor of the caller must be close-on-exec, as everything is that this crate
//! and the standard library open. If the caller has reserved slots ([`crate::slots`]), the child
//! gets its three streams and no other descriptor.

use std::error::Error;
use std::ffi::{CStr, CString, OsStr, c_char};
use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr;

use crate::born;
use crate::child::{self, Orders, Report, SHELL, Table};
use crate::clone::{self, Child, CloneError, Descriptors};
use crate::process::Identity;
use crate::signal;
use crate::slots::{self, Attempt};

/// Where programs are looked for when the environment has no PATH.
const DEFAULT_PATH: &[u8] = b"/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin";

/// One resource limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rlimit {
    /// The number of `RLIMIT_…`.
    pub resource: u32,
    /// The limit in force; `u64::MAX` is none.
    pub soft: u64,
    /// How far it may be raised; `u64::MAX` is without bound.
    pub hard: u64,
}

/// Where a new process stands among the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Session {
    /// A process group of its own in the session of the caller.
    NewGroup,
    /// A session of its own, without a terminal.
    NewSession,
    /// A session of its own, with standard input as its controlling terminal.
    Terminal,
}

/// What to start.
#[derive(Clone, Copy)]
pub struct SpawnSpec<'a> {
    /// The program and its arguments. A program without `/` is looked for in the PATH of `envp`.
    pub argv: &'a [CString],
    /// The whole environment, `NAME=value` each.
    pub envp: &'a [CString],
    /// Where to start; the caller's directory if none.
    pub cwd: Option<&'a CStr>,
    /// The file mode mask; the caller's if none.
    pub umask: Option<u32>,
    /// Limits to set; the others are the caller's.
    pub rlimits: &'a [Rlimit],
    /// Standard input.
    pub stdin: BorrowedFd<'a>,
    /// Standard output.
    pub stdout: BorrowedFd<'a>,
    /// Standard error.
    pub stderr: BorrowedFd<'a>,
    /// The directory of a cgroup (v2) to be born in.
    pub cgroup: Option<BorrowedFd<'a>>,
    /// Group or session.
    pub session: Session,
}

/// Shows no environment and no arguments: they may be secrets.
impl fmt::Debug for SpawnSpec<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpawnSpec")
            .field("program", &self.argv.first())
            .field("arguments", &self.argv.len())
            .field("variables", &self.envp.len())
            .field("cwd", &self.cwd)
            .field("session", &self.session)
            .finish_non_exhaustive()
    }
}

/// A process that has been started.
#[derive(Debug)]
pub struct Spawned {
    /// Which process.
    pub identity: Identity,
    /// Polls readable when it has ended.
    pub pidfd: OwnedFd,
}

/// The step at which a start failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// The process itself could not be made: too many processes, no memory, no descriptors.
    Resources,
    /// It could not be made in this cgroup. Without the cgroup it may work.
    Cgroup,
    /// The group or session, or its terminal.
    Session,
    /// Standard input, output or error.
    Stdio,
    /// A resource limit.
    Limits,
    /// The directory.
    Cwd,
    /// The program: missing, not executable, too many arguments.
    Program,
    /// The program is there; the interpreter or loader that it asks for is not.
    Interpreter,
    /// It was started, and `/proc` did not say who it is. It has been killed; whoever it had started meanwhile has not.
    Proc,
}

/// Why a process could not be started.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpawnError {
    /// The step that failed.
    pub stage: Stage,
    /// How.
    pub errno: i32,
    /// The file or directory that it is about.
    pub path: Option<PathBuf>,
}

impl fmt::Display for SpawnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.stage {
            Stage::Resources => "no new process could be made",
            Stage::Cgroup => "no process could be made in the cgroup",
            Stage::Session => "the process group, session or terminal could not be set up",
            Stage::Stdio => "the standard streams could not be set up",
            Stage::Limits => "a resource limit could not be set",
            Stage::Cwd => "the directory could not be entered",
            Stage::Program => "the program could not be executed",
            Stage::Interpreter => "the interpreter of the program is missing",
            Stage::Proc => "/proc does not show the new process",
        };
        f.write_str(what)?;
        if let Some(path) = &self.path {
            write!(f, " ({})", path.display())?;
        }
        write!(f, ": {}", std::io::Error::from_raw_os_error(self.errno))
    }
}

impl Error for SpawnError {}

/// Starts a process. It is a direct child of the caller, who has to reap it.
pub fn spawn(spec: &SpawnSpec<'_>) -> Result<Spawned, SpawnError> {
    let program = spec.argv.first().map(CString::as_bytes).unwrap_or_default();
    if program.is_empty() {
        return Err(SpawnError { stage: Stage::Program, errno: libc::ENOENT, path: None });
    }
    let candidates = candidates(program, spec.envp);
    // Reading `/proc` needs a descriptor. Once the child runs, it is too late to find that there is
    // none.
    let spare = rustix::io::fcntl_dupfd_cloexec(spec.stdin, 0);
    let spare = spare.map_err(|errno| resources(errno.raw_os_error()))?;
    let before = born::ticks();
    let child = start(spec, &candidates, make)?;
    drop(spare);
    // Our child, and not reaped: the number is its own, even if it has ended by now.
    if let Some(identity) = born::child(child.pid, before, born::ticks()) {
        return Ok(Spawned { identity, pidfd: child.pidfd });
    }
    clone::abandon(child.pid);
    Err(SpawnError { stage: Stage::Proc, errno: libc::ENOENT, path: Some("/proc".into()) })
}

fn resources(errno: i32) -> SpawnError {
    SpawnError { stage: Stage::Resources, errno, path: None }
}

/// The paths to try, in order: the program as it stands if it has a `/`, or its name in each directory of PATH.
fn candidates(program: &[u8], envp: &[CString]) -> Vec<CString> {
    if program.contains(&b'/') {
        return CString::new(program).into_iter().collect();
    }
    let path = envp.iter().find_map(|entry| entry.as_bytes().strip_prefix(b"PATH=")).unwrap_or(DEFAULT_PATH);
    path.split(|&byte| byte == b':')
        // An empty entry has always meant the current directory.
        .map(|directory| if directory.is_empty() { &b"."[..] } else { directory })
        .filter_map(|directory| CString::new([directory, b"/", program].concat()).ok())
        .collect()
}

/// The addresses of the strings and a null at the end, as `execve` takes them.
fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
}

/// Makes the child, once all is prepared.
type Make = fn(&mut Orders, &SpawnSpec<'_>) -> Result<Child, SpawnError>;

fn start(spec: &SpawnSpec<'_>, candidates: &[CString], make: Make) -> Result<Child, SpawnError> {
    let (paths, argv, envp) = (pointers(candidates), pointers(spec.argv), pointers(spec.envp));
    let mut shell_argv = vec![SHELL.as_ptr(), ptr::null()];
    shell_argv.extend(pointers(spec.argv.get(1..).unwrap_or_default()));
    let mut orders = Orders {
        candidates: paths.as_ptr(),
        argv: argv.as_ptr(),
        shell_argv: shell_argv.as_mut_ptr(),
        envp: envp.as_ptr(),
        cwd: spec.cwd.map_or(ptr::null(), CStr::as_ptr),
        rlimits: spec.rlimits.as_ptr(),
        rlimit_count: spec.rlimits.len(),
        umask: spec.umask,
        ignored: signal::ignored(),
        stdio: [spec.stdin.as_raw_fd(), spec.stdout.as_raw_fd(), spec.stderr.as_raw_fd()],
        table: Table::Copied,
        session: spec.session,
        report: Report::NOTHING,
        report_pipe: -1,
    };
    let child = make(&mut orders, spec)?;
    // SAFETY: the child has executed or exited and writes no more. Volatile, because the compiler saw nobody write.
    let report = unsafe { ptr::read_volatile(&raw const orders.report) };
    if report.errno == 0 {
        return Ok(child);
    }
    clone::reap(child.pid);
    Err(explain(spec, candidates, report))
}

/// Makes the child through the reserved slots if there are any, otherwise with a copy of the
/// descriptor table.
fn make(orders: &mut Orders, spec: &SpawnSpec<'_>) -> Result<Child, SpawnError> {
    let streams = [spec.stdin, spec.stdout, spec.stderr];
    let made = slots::with_streams(streams, |slots| make_sharing(orders, spec, slots));
    made.unwrap_or_else(|| make_copying(orders, spec))
}

fn make_copying(orders: &mut Orders, spec: &SpawnSpec<'_>) -> Result<Child, SpawnError> {
    let blocked = AllBlocked::new();
    match vfork(orders, spec, Descriptors::Copied, &blocked) {
        Err(CloneError::Unsupported) if spec.cgroup.is_none() => fork(orders),
        result => result.map_err(|error| clone_failed(error, spec)),
    }
}

/// Makes a child that shares the descriptor table and unshares what it needs of it: the slots.
/// Leaves the orders as they were if the child could not, for the next attempt.
fn make_sharing(
    orders: &mut Orders,
    spec: &SpawnSpec<'_>,
    slots: [RawFd; 3],
) -> Attempt<Result<Child, SpawnError>> {
    let blocked = AllBlocked::new();
    let streams = std::mem::replace(&mut orders.stdio, slots);
    let top = slots.into_iter().max().unwrap_or_default();
    orders.table = Table::Shared { end: top.unsigned_abs() + 1 };
    let result = vfork(orders, spec, Descriptors::Shared, &blocked);
    // SAFETY: the child, if there is one, has executed or exited. Volatile, as for the report.
    let table = unsafe { ptr::read_volatile(&raw const orders.table) };
    match (result, table) {
        (Ok(child), Table::Refused { errno }) => {
            clone::reap(child.pid);
            (orders.stdio, orders.table) = (streams, Table::Copied);
            // Out of memory for now; any other reason is permanent.
            if matches!(errno, libc::ENOMEM | libc::EMFILE) { Attempt::Failed } else { Attempt::Unsupported }
        }
        // A child that was killed before it unshared the table was started and has ended, as at any
        // other time.
        (Ok(child), _) => Attempt::Finished(Ok(child)),
        (Err(CloneError::Unsupported), _) if spec.cgroup.is_none() => {
            (orders.stdio, orders.table) = (streams, Table::Copied);
            Attempt::Unsupported
        }
        (Err(error), _) => Attempt::Finished(Err(clone_failed(error, spec))),
    }
}

fn vfork(
    orders: &mut Orders,
    spec: &SpawnSpec<'_>,
    descriptors: Descriptors,
    _blocked: &AllBlocked,
) -> Result<Child, CloneError> {
    // SAFETY: signals are blocked, and `child::run` finds the orders that it expects, alive until it
    // has executed. They tell it to unshare the descriptor table first if it is shared.
    unsafe { clone::vfork(descriptors, spec.cgroup, child::run, ptr::from_mut(orders).cast()) }
}

fn clone_failed(error: CloneError, spec: &SpawnSpec<'_>) -> SpawnError {
    let errno = match error {
        CloneError::Unsupported => libc::ENOSYS,
        CloneError::Failed(errno) => errno,
    };
    match errno {
        libc::EAGAIN | libc::ENOMEM | libc::EMFILE | libc::ENFILE => resources(errno),
        _ if spec.cgroup.is_some() => SpawnError { stage: Stage::Cgroup, errno, path: None },
        _ => resources(errno),
    }
}

/// The slow road: a copy of the caller, whose report comes through a pipe that closes as it executes.
fn fork(orders: &mut Orders) -> Result<Child, SpawnError> {
    let (reader, writer) =
        crate::fds::pipe_above_stdio().map_err(|error| resources(error.raw_os_error().unwrap_or(0)))?;
    orders.report_pipe = writer.as_raw_fd();
    // SAFETY: as in `vfork`; the table of the child is a copy.
    let child = match unsafe { clone::fork(child::run, ptr::from_mut(orders).cast()) } {
        Ok(child) => child,
        Err(CloneError::Failed(errno)) => return Err(resources(errno)),
        Err(CloneError::Unsupported) => return Err(resources(libc::ENOSYS)),
    };
    drop(writer);
    let mut bytes = [0_u8; Report::SIZE];
    let mut filled = 0;
    while let Some(space) = bytes.get_mut(filled..).filter(|space| !space.is_empty()) {
        match rustix::io::read(&reader, space) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => break,
        }
    }
    if filled == Report::SIZE {
        orders.report = Report::from_bytes(&bytes);
    }
    Ok(child)
}

fn explain(spec: &SpawnSpec<'_>, candidates: &[CString], report: Report) -> SpawnError {
    let stage = report.stage;
    let tried = usize::try_from(report.candidate).ok().and_then(|at| candidates.get(at));
    let path = match stage {
        Stage::Cwd => spec.cwd,
        Stage::Program | Stage::Interpreter => tried.or(spec.argv.first()).map(CString::as_c_str),
        _ => None,
    };
    let path = path.map(|path| PathBuf::from(OsStr::from_bytes(path.to_bytes())));
    SpawnError { stage, errno: report.errno, path }
}

/// Every signal blocked in this thread, those of the C library too, until dropped: a handler that ran in a child on
/// our memory would run twice.
struct AllBlocked(u64);

impl AllBlocked {
    fn new() -> Self {
        let mut old = 0;
        child::set_mask(u64::MAX, Some(&mut old));
        Self(old)
    }
}

impl Drop for AllBlocked {
    fn drop(&mut self) {
        child::set_mask(self.0, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::identity;

    fn strings(list: &[&str]) -> Vec<CString> {
        list.iter().map(|text| CString::new(*text).unwrap()).collect()
    }

    #[test]
    fn programs_are_looked_for_in_the_path_of_the_child() {
        let found = candidates(b"ls", &strings(&["A=b", "PATH=/x::/y/"]));
        assert_eq!(found, strings(&["/x/ls", "./ls", "/y//ls"]));
        assert_eq!(candidates(b"./ls", &strings(&["PATH=/x"])), strings(&["./ls"]));
        assert_eq!(candidates(b"ls", &[]).first(), strings(&["/usr/local/bin/ls"]).first());
    }

    fn with_spec<T>(argv: &[&str], cwd: Option<&CStr>, then: impl FnOnce(&SpawnSpec<'_>) -> T) -> T {
        let null = crate::fds::null().unwrap();
        let fd = std::os::fd::AsFd::as_fd(&null);
        let (argv, envp) = (strings(argv), strings(&["KEY=hush"]));
        then(&SpawnSpec {
            argv: &argv,
            envp: &envp,
            cwd,
            umask: None,
            rlimits: &[],
            stdin: fd,
            stdout: fd,
            stderr: fd,
            cgroup: None,
            session: Session::NewGroup,
        })
    }

    #[test]
    fn a_spec_does_not_show_its_secrets() {
        with_spec(&["curl", "--token=hush"], None, |spec| assert!(!format!("{spec:?}").contains("hush")));
    }

    /// The way of older kernels and of other machines must do the same.
    #[test]
    fn the_slow_road_leads_there_too() {
        let slow = |spec: &SpawnSpec<'_>| {
            let candidates = candidates(spec.argv[0].as_bytes(), spec.envp);
            start(spec, &candidates, |orders, _| fork(orders))
        };
        let child = with_spec(&["sh", "-c", "exit 0"], None, slow).unwrap();
        assert_eq!(identity(child.pid).unwrap().pid, child.pid);
        clone::reap(child.pid);
        let error = with_spec(&["no-such-program"], None, slow).err().unwrap();
        assert_eq!((error.stage, error.errno), (Stage::Program, libc::ENOENT));
        assert_eq!(error.path, Some("no-such-program".into()));
        let error = with_spec(&["true"], Some(c"/no/such"), slow).err().unwrap();
        assert_eq!(
            (error.stage, error.errno, error.path),
            (Stage::Cwd, libc::ENOENT, Some("/no/such".into()))
        );
    }
}
