//! Making a child that borrows the caller's memory until it has executed: `clone3` with `CLONE_VM | CLONE_VFORK` on a
//! stack of its own, or a plain fork where that cannot be had. It decides nothing about what the child does.

use std::ffi::{c_long, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::Mutex;

use crate::process::Pid;

/// Generous: the child makes a handful of system calls and no deep call.
const STACK_SIZE: usize = 64 * 1024;
/// Below the stack, so that an overflow is a fault and not a corruption.
const GUARD_SIZE: usize = 64 * 1024;

const CLONE_CLEAR_SIGHAND: u64 = 0x1_0000_0000;
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// What the child runs. It must not return, allocate, lock or panic.
pub(crate) type Entry = unsafe extern "C" fn(*mut c_void) -> !;

/// The kernel's `struct clone_args`, as of `CLONE_ARGS_SIZE_VER2`.
#[repr(C, align(8))]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// A child, made but perhaps not yet executed.
pub(crate) struct Child {
    pub(crate) pid: Pid,
    pub(crate) pidfd: OwnedFd,
}

/// Why there is no child.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CloneError {
    /// This kernel, or the sandbox around us, has no such clone.
    Unsupported,
    Failed(i32),
}

/// What the child has of the caller's descriptor table when it begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Descriptors {
    /// A copy of the table.
    Copied,
    /// The table itself. Every change that the child makes is a change in the caller until the
    /// child unshares it.
    Shared,
}

struct Stack(*mut c_void);

// SAFETY: a stack is plain memory that belongs to whoever holds the value; nothing ties it to a thread.
unsafe impl Send for Stack {}

/// One stack is kept, so that starting a process maps no memory. Whoever finds none makes one.
static SPARE: Mutex<Option<Stack>> = Mutex::new(None);

impl Stack {
    fn take() -> io::Result<Self> {
        match SPARE.try_lock().ok().and_then(|mut spare| spare.take()) {
            Some(stack) => Ok(stack),
            None => Self::map(),
        }
    }

    fn map() -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK;
        let size = GUARD_SIZE + STACK_SIZE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice; it overlaps nothing.
        let base = unsafe { libc::mmap(ptr::null_mut(), size, libc::PROT_NONE, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let stack = Self(base);
        // SAFETY: the range lies within the mapping just made.
        match unsafe { libc::mprotect(stack.low(), STACK_SIZE, libc::PROT_READ | libc::PROT_WRITE) } {
            0 => Ok(stack),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn low(&self) -> *mut c_void {
        self.0.wrapping_byte_add(GUARD_SIZE)
    }

    fn give_back(self) {
        if let Ok(mut spare) = SPARE.try_lock()
            && spare.is_none()
        {
            *spare = Some(self);
        }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: the whole mapping made by `map`, which nothing refers to once its child has executed or exited.
        unsafe { libc::munmap(self.0, GUARD_SIZE + STACK_SIZE) };
    }
}

/// Makes a child that shares our memory, and waits until it has executed or exited. In the child no signal handler of
/// ours can run: the kernel puts them back to default as it makes it.
///
/// # Safety
/// All signals must be blocked; `entry` must keep the promises of [`Entry`] and find in `argument` what it expects.
/// With [`Descriptors::Shared`], `entry` must unshare the table before it changes any descriptor.
pub(crate) unsafe fn vfork(
    descriptors: Descriptors,
    cgroup: Option<BorrowedFd<'_>>,
    entry: Entry,
    argument: *mut c_void,
) -> Result<Child, CloneError> {
    if !cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
        return Err(CloneError::Unsupported);
    }
    let stack = Stack::take().map_err(|error| failed(&error))?;
    let mut pidfd: RawFd = -1;
    let mut args = CloneArgs {
        flags: (libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD).unsigned_abs().into(),
        pidfd: (&raw mut pidfd).addr() as u64,
        exit_signal: libc::SIGCHLD.unsigned_abs().into(),
        stack: stack.low().addr() as u64,
        stack_size: STACK_SIZE as u64,
        ..CloneArgs::default()
    };
    args.flags |= CLONE_CLEAR_SIGHAND;
    if descriptors == Descriptors::Shared {
        args.flags |= u64::from(libc::CLONE_FILES.unsigned_abs());
    }
    if let Some(cgroup) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = u64::try_from(cgroup.as_raw_fd()).unwrap_or(u64::MAX);
    }
    // SAFETY: the arguments describe a stack that outlives the child's use of it, as the call returns only after the
    // child has left our memory; the rest is promised by our caller.
    let result = unsafe { clone3(&mut args, entry, argument) };
    stack.give_back();
    match Pid::try_from(result) {
        // SAFETY: the kernel has just stored this descriptor, and nobody else has it.
        Ok(pid) if pid > 0 => Ok(Child { pid, pidfd: unsafe { OwnedFd::from_raw_fd(pidfd) } }),
        _ => Err(match i32::try_from(-result).unwrap_or(libc::EINVAL) {
            libc::ENOSYS => CloneError::Unsupported,
            // Before 5.5 there is no CLONE_CLEAR_SIGHAND. With a cgroup the reason may as well be the cgroup.
            libc::EINVAL if cgroup.is_none() => CloneError::Unsupported,
            errno => CloneError::Failed(errno),
        }),
    }
}

fn failed(error: &io::Error) -> CloneError {
    CloneError::Failed(error.raw_os_error().unwrap_or(libc::ENOMEM))
}

#[cfg(target_arch = "x86_64")]
unsafe fn clone3(args: &mut CloneArgs, entry: Entry, argument: *mut c_void) -> c_long {
    let result: c_long;
    // SAFETY: the parent comes out behind the label with only the clobbered registers changed. The child starts at
    // the top of its own stack, which is 16-byte aligned as the ABI wants it before a call, and never comes back.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r13",
            "call r12",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone3 => result,
            in("rdi") ptr::from_mut(args),
            in("rsi") size_of::<CloneArgs>(),
            in("r12") entry,
            in("r13") argument,
            out("rcx") _,
            out("r11") _,
        );
    }
    result
}

#[cfg(target_arch = "aarch64")]
unsafe fn clone3(args: &mut CloneArgs, entry: Entry, argument: *mut c_void) -> c_long {
    let result: c_long;
    // SAFETY: as on x86_64. The kernel changes no register but x0.
    unsafe {
        std::arch::asm!(
            "svc #0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x30, xzr",
            "mov x0, x10",
            "blr x9",
            "brk #1",
            "2:",
            inlateout("x0") ptr::from_mut(args) => result,
            in("x1") size_of::<CloneArgs>(),
            in("x8") libc::SYS_clone3,
            in("x9") entry,
            in("x10") argument,
            out("x30") _,
        );
    }
    result
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe fn clone3(_args: &mut CloneArgs, _entry: Entry, _argument: *mut c_void) -> c_long {
    -c_long::from(libc::ENOSYS)
}

/// Makes a child with a copy of our memory. It shows nothing of what it writes there: the caller needs a mapping that
/// is shared, and something to wait for.
///
/// # Safety
/// As for [`vfork`].
pub(crate) unsafe fn fork(entry: Entry, argument: *mut c_void) -> Result<Child, CloneError> {
    // SAFETY: the child only runs `entry`, which makes nothing but async-signal-safe calls.
    let pid = unsafe { libc::fork() };
    match pid {
        // SAFETY: the promise of our caller; `argument` is as valid in the copy as it is here.
        0 => unsafe { entry(argument) },
        pid if pid < 0 => Err(failed(&io::Error::last_os_error())),
        pid => {
            // SAFETY: plain integers; the child is not reaped, so the number is still its own.
            let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
            match RawFd::try_from(pidfd) {
                // SAFETY: the kernel has just given us this descriptor, and nobody else has it.
                Ok(fd) if fd >= 0 => Ok(Child { pid, pidfd: unsafe { OwnedFd::from_raw_fd(fd) } }),
                _ => {
                    let error = io::Error::last_os_error();
                    abandon(pid);
                    Err(failed(&error))
                }
            }
        }
    }
}

/// Kills and reaps a direct child that nobody is going to hear of.
pub(crate) fn abandon(child: Pid) {
    // SAFETY: a direct child that has not been reaped, so the number is its own.
    unsafe { libc::kill(child, libc::SIGKILL) };
    reap(child);
}

/// Waits for a direct child that has exited or is about to.
pub(crate) fn reap(child: Pid) {
    let mut status = 0;
    // SAFETY: `status` is an int of ours.
    while unsafe { libc::waitpid(child, &raw mut status, libc::__WALL) } < 0 {
        if io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            return;
        }
    }
}
