//! What a new process does between its making and its `execve`. It runs on the memory of its parent: only raw system
//! calls, nothing that allocates, locks or panics; everything it needs was computed beforehand.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::os::fd::RawFd;
use std::ptr;

use crate::signal::{self, LAST_SIGNAL};
use crate::slots::FIRST_SLOT;
use crate::spawn::{Rlimit, Session, Stage};

/// What runs a file that the kernel cannot execute, as `execvp` has always done it.
pub(crate) const SHELL: &CStr = c"/bin/sh";

/// The size of the kernel's signal set, which is not that of the C library.
const KERNEL_SET_SIZE: usize = 8;

/// The exit code of a child that could not execute. The caller learns the reason from the report.
const EXIT_NOT_EXECUTED: c_int = 127;
/// The exit code of a child that could not unshare the descriptor table. The caller learns it from
/// [`Table`].
const EXIT_NOT_UNSHARED: c_int = 126;

/// What the child has to do. The pointers are valid until it has executed.
pub(crate) struct Orders {
    /// Paths to try, ended by a null.
    pub(crate) candidates: *const *const c_char,
    pub(crate) argv: *const *const c_char,
    /// `/bin/sh`, a place for the path, and the arguments.
    pub(crate) shell_argv: *mut *const c_char,
    pub(crate) envp: *const *const c_char,
    /// Null to stay.
    pub(crate) cwd: *const c_char,
    pub(crate) rlimits: *const Rlimit,
    pub(crate) rlimit_count: usize,
    pub(crate) umask: Option<u32>,
    /// Signals that the parent ignores, bit `n - 1` for signal `n`.
    pub(crate) ignored: u64,
    pub(crate) stdio: [RawFd; 3],
    pub(crate) table: Table,
    pub(crate) session: Session,
    pub(crate) report: Report,
    /// Where the report goes too if the child has only a copy of our memory, or -1.
    pub(crate) report_pipe: RawFd,
}

/// The child's descriptor table. The child changes [`Table::Shared`] to one of the two states below
/// it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Table {
    /// A copy of the caller's table from the beginning.
    Copied,
    /// The caller's table, to be unshared before anything else. The child keeps the numbers below
    /// `end`.
    Shared { end: c_uint },
    /// A table of the child's own, with what it kept.
    Unshared,
    /// Unsharing failed, and the child has exited without changing any descriptor.
    Refused { errno: i32 },
}

/// What went wrong in the child; nothing if `errno` is 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Report {
    pub(crate) errno: i32,
    pub(crate) stage: Stage,
    /// The index of the path that it is about; -1 for none of them.
    pub(crate) candidate: i32,
}

impl Report {
    pub(crate) const NOTHING: Self = Self { errno: 0, stage: Stage::Program, candidate: -1 };
    pub(crate) const SIZE: usize = 12;
    /// Those that a child can fail at, for the way through a pipe.
    const STAGES: [Stage; 6] =
        [Stage::Session, Stage::Stdio, Stage::Limits, Stage::Cwd, Stage::Program, Stage::Interpreter];

    fn to_numbers(self) -> [i32; 3] {
        let mut number = 0;
        for stage in Self::STAGES {
            if stage == self.stage {
                break;
            }
            number += 1;
        }
        [self.errno, number, self.candidate]
    }

    pub(crate) fn from_bytes(bytes: &[u8; Self::SIZE]) -> Self {
        let mut numbers =
            bytes.chunks_exact(4).map(|word| word.first_chunk().map_or(0, |b| i32::from_ne_bytes(*b)));
        let mut next = || numbers.next().unwrap_or(0);
        let (errno, number, candidate) = (next(), next(), next());
        let stage = usize::try_from(number).ok().and_then(|at| Self::STAGES.get(at));
        Self { errno, stage: stage.copied().unwrap_or(Stage::Program), candidate }
    }
}

type Step = Result<(), Report>;

fn errno() -> i32 {
    // SAFETY: the C library always has an errno for the calling thread; a child on shared memory uses its parent's,
    // and the parent is not running.
    unsafe { *libc::__errno_location() }
}

fn failed(stage: Stage) -> Report {
    Report { errno: errno(), stage, candidate: -1 }
}

fn checked(result: c_int, stage: Stage) -> Step {
    if result < 0 { Err(failed(stage)) } else { Ok(()) }
}

/// Sets the signal mask of the calling thread with nothing left out, as the C library would.
pub(crate) fn set_mask(mask: u64, old: Option<&mut u64>) {
    let old = old.map_or(ptr::null_mut(), ptr::from_mut);
    // SAFETY: both pointers are null or to eight bytes, which is the size that is passed.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, old, KERNEL_SET_SIZE);
    }
}

/// Does what the orders say, and executes. Comes to an end only by exiting.
///
/// # Safety
/// `orders` must point to [`Orders`] that nobody else touches until this process has executed or exited.
pub(crate) unsafe extern "C" fn run(orders: *mut c_void) -> ! {
    // SAFETY: promised by the caller.
    let orders = unsafe { &mut *orders.cast::<Orders>() };
    if let Table::Shared { end } = orders.table {
        orders.table = unshare(end);
        if orders.table != Table::Unshared {
            // SAFETY: exits without running the caller's exit handlers. The table is shared, so
            // nothing is closed.
            unsafe { libc::_exit(EXIT_NOT_UNSHARED) }
        }
    }
    let report = match prepare(orders) {
        Ok(()) => execute(orders),
        Err(report) => report,
    };
    orders.report = report;
    let numbers = report.to_numbers();
    // SAFETY: writes twelve bytes that are ours, and leaves without running anything of the parent's at exit. A pipe
    // that cannot be written is one that nobody reads.
    unsafe {
        if orders.report_pipe >= 0 {
            libc::write(orders.report_pipe, numbers.as_ptr().cast(), Report::SIZE);
        }
        libc::_exit(EXIT_NOT_EXECUTED)
    }
}

/// Replaces the shared descriptor table by a copy of its entries below `end`. The kernel skips the
/// rest: copying and closing thousands of entries is what this avoids.
fn unshare(end: c_uint) -> Table {
    match close_from(end, libc::CLOSE_RANGE_UNSHARE) {
        0 => Table::Unshared,
        _ => Table::Refused { errno: errno() },
    }
}

fn close_from(first: c_uint, flags: c_uint) -> c_int {
    // SAFETY: integers only. The table is this process's own, or becomes so before anything is
    // closed (`flags`).
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, c_uint::MAX, flags) };
    if result < 0 { -1 } else { 0 }
}

fn prepare(orders: &Orders) -> Step {
    for number in 1..=LAST_SIGNAL {
        if orders.ignored & 1 << (number - 1) != 0 {
            // SIGKILL and the like cannot be ignored, so there is nothing that this could fail at.
            let _ = signal::set_default(number);
        }
    }
    // SAFETY: these calls take integers only, and concern this process only.
    unsafe {
        match orders.session {
            Session::NewGroup => checked(libc::setpgid(0, 0), Stage::Session)?,
            Session::NewSession | Session::Terminal => checked(libc::setsid(), Stage::Session)?,
        }
        redirect(orders.stdio)?;
        if orders.table == Table::Unshared {
            // Without this, a descriptor that is not close-on-exec would be passed on if its number
            // is low.
            checked(close_from(FIRST_SLOT.unsigned_abs(), 0), Stage::Stdio)?;
        }
        if orders.session == Session::Terminal {
            checked(libc::ioctl(0, libc::TIOCSCTTY, 0), Stage::Session)?;
        }
        if let Some(umask) = orders.umask {
            libc::umask(umask);
        }
    }
    for index in 0..orders.rlimit_count {
        // SAFETY: `rlimits` points to `rlimit_count` limits.
        let limit = unsafe { *orders.rlimits.add(index) };
        limit_resource(limit)?;
    }
    if orders.cwd.is_null() {
        return Ok(());
    }
    // SAFETY: a C string, as the orders promise.
    checked(unsafe { libc::chdir(orders.cwd) }, Stage::Cwd)
}

/// Puts three descriptors on 0, 1 and 2. Those that are in the way of another are first copied above.
fn redirect(mut sources: [RawFd; 3]) -> Step {
    // SAFETY: these calls take integers only; the descriptors of this process are its own copy.
    unsafe {
        for (target, source) in (0..).zip(&mut sources) {
            if (0..3).contains(source) && *source != target {
                *source = libc::fcntl(*source, libc::F_DUPFD_CLOEXEC, 3);
                checked(*source, Stage::Stdio)?;
            }
        }
        for (target, source) in (0..).zip(sources) {
            if source == target {
                // `dup2` onto itself would leave it close-on-exec.
                checked(libc::fcntl(source, libc::F_SETFD, 0), Stage::Stdio)?;
            } else {
                checked(libc::dup2(source, target), Stage::Stdio)?;
            }
        }
    }
    Ok(())
}

fn limit_resource(limit: Rlimit) -> Step {
    match change_limit(limit.resource, [limit.soft, limit.hard]) {
        Err(libc::EPERM) => {
            // Whoever started the daemon has given up more than whoever asks now: what is left of it.
            let mut now = [0_u64; 2];
            let none = ptr::null::<c_void>();
            // SAFETY: the kernel's `rlimit64` is two 64-bit numbers, infinity being all ones; no new limit is given.
            unsafe { libc::syscall(libc::SYS_prlimit64, 0, limit.resource, none, now.as_mut_ptr()) };
            let most = now[1];
            let capped = change_limit(limit.resource, [limit.soft.min(most), limit.hard.min(most)]);
            capped.map_err(|_| failed(Stage::Limits))
        }
        other => other.map_err(|_| failed(Stage::Limits)),
    }
}

fn change_limit(resource: u32, pair: [u64; 2]) -> Result<(), i32> {
    let none = ptr::null_mut::<c_void>();
    // SAFETY: the kernel's `rlimit64` is two 64-bit numbers, infinity being all ones; the old limit is not asked for.
    let result = unsafe { libc::syscall(libc::SYS_prlimit64, 0, resource, pair.as_ptr(), none) };
    if result < 0 { Err(errno()) } else { Ok(()) }
}

/// Tries the candidates as `execvp` does; returns only with what is to be told.
fn execute(orders: &Orders) -> Report {
    set_mask(0, None);
    let (mut count, mut last_errno) = (0, libc::ENOENT);
    let mut first_refusal = Report { errno: libc::ENOENT, stage: Stage::Program, candidate: -1 };
    for candidate in 0.. {
        let Some(path) = path_at(orders, candidate) else { break };
        // SAFETY: C strings and null-ended lists of them, as the orders promise.
        unsafe { libc::execve(path, orders.argv, orders.envp) };
        let here = Report { errno: errno(), stage: Stage::Program, candidate };
        last_errno = here.errno;
        count += 1;
        match here.errno {
            libc::ENOEXEC => return run_by_shell(orders, path, here),
            libc::EACCES if first_refusal.candidate < 0 => first_refusal = here,
            // Not in this directory, or no such directory: look on.
            libc::ENOENT | libc::ENOTDIR | libc::EACCES => {}
            _ => return here,
        }
    }
    if first_refusal.candidate >= 0 {
        return first_refusal;
    }
    // A path that was given says what is wrong with it; a name that was looked for is just not there.
    let errno = if count == 1 { last_errno } else { libc::ENOENT };
    missing(orders, Report { errno, ..first_refusal })
}

/// The path with this index. To be asked in order and no further than the first that is missing.
fn path_at(orders: &Orders, candidate: i32) -> Option<*const c_char> {
    let index = usize::try_from(candidate).ok()?;
    // SAFETY: the list of candidates ends with a null, where every caller stops.
    let path = unsafe { *orders.candidates.add(index) };
    (!path.is_null()).then_some(path)
}

fn run_by_shell(orders: &Orders, path: *const c_char, unexecutable: Report) -> Report {
    // SAFETY: the list has its second place for this path; otherwise as in `execute`.
    unsafe {
        *orders.shell_argv.add(1) = path;
        libc::execve(SHELL.as_ptr(), orders.shell_argv.cast_const(), orders.envp);
    }
    unexecutable
}

/// All candidates were missing, says the kernel. One that is there lacks its interpreter.
fn missing(orders: &Orders, otherwise: Report) -> Report {
    for candidate in 0.. {
        let Some(path) = path_at(orders, candidate) else { break };
        // SAFETY: a C string.
        if unsafe { libc::access(path, libc::F_OK) } == 0 {
            return Report { errno: libc::ENOENT, stage: Stage::Interpreter, candidate };
        }
    }
    otherwise
}
