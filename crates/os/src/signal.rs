//! Signals by name, sending them through a pidfd, receiving them through a file descriptor, and the mask and
//! dispositions of a process that must not die of them. It installs no handler, ever.

use std::fmt;
use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// The highest signal number that Linux has.
pub(crate) const LAST_SIGNAL: i32 = 64;

/// `PIDFD_SIGNAL_PROCESS_GROUP`, Linux 6.9.
const TO_PROCESS_GROUP: libc::c_uint = 1 << 2;

/// A signal's number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Signal(i32);

macro_rules! signals {
    ($($name:ident = $number:expr),* $(,)?) => {
        impl Signal {
            $(#[doc = concat!("`SIG", stringify!($name), "`")] pub const $name: Self = Self($number);)*

            const NAMED: &'static [(Self, &'static str)] = &[$((Self::$name, concat!("SIG", stringify!($name)))),*];
        }
    };
}

signals! {
    HUP = libc::SIGHUP, INT = libc::SIGINT, QUIT = libc::SIGQUIT, ILL = libc::SIGILL, TRAP = libc::SIGTRAP,
    ABRT = libc::SIGABRT, BUS = libc::SIGBUS, FPE = libc::SIGFPE, KILL = libc::SIGKILL, USR1 = libc::SIGUSR1,
    SEGV = libc::SIGSEGV, USR2 = libc::SIGUSR2, PIPE = libc::SIGPIPE, ALRM = libc::SIGALRM, TERM = libc::SIGTERM,
    STKFLT = libc::SIGSTKFLT, CHLD = libc::SIGCHLD, CONT = libc::SIGCONT, STOP = libc::SIGSTOP,
    TSTP = libc::SIGTSTP, TTIN = libc::SIGTTIN, TTOU = libc::SIGTTOU, URG = libc::SIGURG, XCPU = libc::SIGXCPU,
    XFSZ = libc::SIGXFSZ, VTALRM = libc::SIGVTALRM, PROF = libc::SIGPROF, WINCH = libc::SIGWINCH,
    IO = libc::SIGIO, PWR = libc::SIGPWR, SYS = libc::SIGSYS,
}

/// The first of the signals that have only a number.
const FIRST_NUMBERED: i32 = 32;

#[rustfmt::skip]
const NUMBERED: [&str; 33] = [
    "SIG32", "SIG33", "SIG34", "SIG35", "SIG36", "SIG37", "SIG38", "SIG39", "SIG40", "SIG41", "SIG42",
    "SIG43", "SIG44", "SIG45", "SIG46", "SIG47", "SIG48", "SIG49", "SIG50", "SIG51", "SIG52", "SIG53",
    "SIG54", "SIG55", "SIG56", "SIG57", "SIG58", "SIG59", "SIG60", "SIG61", "SIG62", "SIG63", "SIG64",
];

impl Signal {
    /// The signal with this number, if Linux has it.
    pub const fn from_raw(number: i32) -> Option<Self> {
        if number >= 1 && number <= LAST_SIGNAL { Some(Self(number)) } else { None }
    }

    /// Its number.
    pub const fn as_raw(self) -> i32 {
        self.0
    }

    /// Its name: `SIGTERM`; `SIG40` for one that has only a number.
    pub fn name(self) -> &'static str {
        if let Some((_, name)) = Self::NAMED.iter().find(|(signal, _)| *signal == self) {
            return name;
        }
        let index = usize::try_from(self.0 - FIRST_NUMBERED).unwrap_or(usize::MAX);
        NUMBERED.get(index).copied().unwrap_or("SIG?")
    }

    /// Reads `TERM`, `SIGTERM`, `sigterm`, `15` or `SIG40`.
    pub fn from_name(text: &str) -> Option<Self> {
        let upper = text.trim().to_ascii_uppercase();
        let short = upper.strip_prefix("SIG").unwrap_or(&upper);
        if short.bytes().all(|byte| byte.is_ascii_digit()) {
            return Self::from_raw(short.parse().ok()?);
        }
        Self::NAMED
            .iter()
            .find(|(_, name)| name.strip_prefix("SIG") == Some(short))
            .map(|(signal, _)| *signal)
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What became of a signal.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Delivery {
    /// The kernel took it for the process.
    Sent,
    /// There is no such process any more.
    Gone,
    /// The process belongs to somebody whom we may not signal.
    Refused,
}

impl Delivery {
    pub(crate) fn from_result(result: libc::c_long) -> io::Result<Self> {
        if result == 0 {
            return Ok(Self::Sent);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::ESRCH) => Ok(Self::Gone),
            Some(libc::EPERM) => Ok(Self::Refused),
            _ => Err(error),
        }
    }
}

/// Sends a signal to the process behind a pidfd.
pub fn send(pidfd: BorrowedFd<'_>, signal: Signal) -> io::Result<Delivery> {
    pidfd_send_signal(pidfd, signal, 0)
}

/// Sends a signal to the whole process group that the process behind a pidfd leads or led. `Err` with `EINVAL` where
/// the kernel cannot (before 6.9).
pub(crate) fn send_to_group(leader: BorrowedFd<'_>, signal: Signal) -> io::Result<Delivery> {
    pidfd_send_signal(leader, signal, TO_PROCESS_GROUP)
}

fn pidfd_send_signal(pidfd: BorrowedFd<'_>, signal: Signal, flags: libc::c_uint) -> io::Result<Delivery> {
    let none = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: the call takes two integers, a null pointer that it accepts, and flags; it touches no memory of ours.
    let result = unsafe {
        libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal.as_raw(), none, flags)
    };
    Delivery::from_result(result)
}

fn signal_set(signals: impl IntoIterator<Item = Signal>) -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigemptyset` initialises the whole set; `sigaddset` refuses numbers that do not exist.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in signals {
            libc::sigaddset(set.as_mut_ptr(), signal.as_raw());
        }
        set.assume_init()
    }
}

fn block(set: &libc::sigset_t) -> io::Result<()> {
    // SAFETY: `set` is an initialised set, and the old mask is not asked for.
    match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, set, std::ptr::null_mut()) } {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// Signals as something that can be polled and read.
#[derive(Debug)]
pub struct SignalFd(OwnedFd);

impl SignalFd {
    /// Blocks these signals in the calling thread, and nothing else, and opens a nonblocking descriptor for them.
    pub fn new(signals: &[Signal]) -> io::Result<Self> {
        let set = signal_set(signals.iter().copied());
        block(&set)?;
        // SAFETY: -1 asks for a new descriptor; `set` is an initialised set.
        let fd = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just given us this descriptor, and nobody else has it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Takes what has arrived, without waiting. Several of one kind count as one, as always with signals.
    pub fn drain(&self) -> io::Result<Vec<Signal>> {
        const RECORD: usize = mem::size_of::<libc::signalfd_siginfo>();
        let mut received = Vec::new();
        let mut buffer = [0_u8; RECORD * 8];
        // At most one of each kind can be waiting, save for real-time signals: the bound keeps a flood of those apart.
        for _ in 0..LAST_SIGNAL {
            let filled = match rustix::io::read(&self.0, &mut buffer) {
                Ok(filled) => filled,
                Err(rustix::io::Errno::AGAIN) => break,
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            for record in buffer.get(..filled).unwrap_or_default().chunks_exact(RECORD) {
                // `ssi_signo` is the first field of the record.
                let number = record.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes));
                received.extend(number.and_then(|number| Signal::from_raw(i32::try_from(number).ok()?)));
            }
            if filled < buffer.len() {
                break;
            }
        }
        Ok(received)
    }
}

impl AsFd for SignalFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Makes the calling thread deaf to every signal that can be blocked, except those that report its own faults. A
/// blocked SIGPIPE leaves `EPIPE`, a blocked SIGTTOU lets the write through. Nothing has to be undone in a child:
/// `spawn` gives it an empty mask. Inherited dispositions are another matter: see [`reset_dispositions`].
pub fn shield() -> io::Result<()> {
    let faults =
        [Signal::SEGV, Signal::BUS, Signal::FPE, Signal::ILL, Signal::ABRT, Signal::TRAP, Signal::SYS];
    let others = (1..=LAST_SIGNAL).filter_map(Signal::from_raw).filter(|signal| !faults.contains(signal));
    block(&signal_set(others))
}

/// Puts every ignored signal back to its default. An ignored signal stays ignored across `execve`, and Rust's runtime
/// ignores SIGPIPE: a process that starts many others does this once, after [`shield`], and spares `spawn` the work.
pub fn reset_dispositions() -> io::Result<()> {
    (1..=LAST_SIGNAL).filter(|&number| is_ignored(number)).try_for_each(set_default)?;
    look_up_ignored();
    Ok(())
}

/// Puts these signals back to their default where they are ignored, as a shell without job control makes whatever it puts in
/// the background ignore those of a terminal.
pub fn heed(signals: &[Signal]) -> io::Result<()> {
    let ignored = signals.iter().map(|signal| signal.as_raw()).filter(|&number| is_ignored(number));
    ignored.into_iter().try_for_each(set_default)?;
    look_up_ignored();
    Ok(())
}

/// Makes a write beyond the limit on the size of files fail with `EFBIG`, instead of ending the process without a word.
pub fn survive_file_limit() -> io::Result<()> {
    block(&signal_set([Signal::XFSZ]))
}

/// The kernel's `sigaction`, of which only the first word, the handler, is of interest; the rest is generous room.
type KernelAction = [libc::sighandler_t; 8];

/// The size of the kernel's signal set, which is not that of the C library.
const KERNEL_SET_SIZE: usize = 8;

/// Whether a signal is ignored. Asked of the kernel: the C library hides the two signals that it uses itself, which may
/// well have been inherited ignored.
pub(crate) fn is_ignored(number: i32) -> bool {
    let mut old: KernelAction = [0; 8];
    let none = std::ptr::null::<KernelAction>();
    // SAFETY: no new action is given; the old one fits into `old` with room to spare.
    let asked =
        unsafe { libc::syscall(libc::SYS_rt_sigaction, number, none, old.as_mut_ptr(), KERNEL_SET_SIZE) };
    asked == 0 && old.first() == Some(&libc::SIG_IGN)
}

/// Sets a signal to its default. Safe in a child between clone and exec.
pub(crate) fn set_default(number: i32) -> io::Result<()> {
    // All zeros, in whatever order a machine has the fields: default, no flags, empty mask.
    let action: KernelAction = [0; 8];
    let none = std::ptr::null_mut::<KernelAction>();
    // SAFETY: `action` is initialised, longer than what the kernel reads, and installs no function.
    match unsafe { libc::syscall(libc::SYS_rt_sigaction, number, action.as_ptr(), none, KERNEL_SET_SIZE) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The ignored signals as last looked up, bit `n - 1` for signal `n`; all ones, which SIGKILL makes impossible, before.
static IGNORED: AtomicU64 = AtomicU64::new(u64::MAX);

/// The signals that are ignored, bit `n - 1` for signal `n`. Looked up once, for 64 system calls at every start would
/// be felt: who changes a disposition calls [`reset_dispositions`].
pub(crate) fn ignored() -> u64 {
    match IGNORED.load(Ordering::Relaxed) {
        u64::MAX => look_up_ignored(),
        known => known,
    }
}

fn look_up_ignored() -> u64 {
    let numbers = (1..=LAST_SIGNAL).filter(|&number| is_ignored(number));
    let set = numbers.fold(0, |set, number| set | 1 << (number - 1));
    IGNORED.store(set, Ordering::Relaxed);
    set
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_there_and_back() {
        for number in 1..=LAST_SIGNAL {
            let signal = Signal::from_raw(number).unwrap();
            assert_eq!(Signal::from_name(signal.name()), Some(signal));
            assert_eq!(Signal::from_name(&number.to_string()), Some(signal));
        }
        assert_eq!(Signal::from_name("term"), Some(Signal::TERM));
        assert_eq!(Signal::from_name("SIGKILL"), Some(Signal::KILL));
        assert_eq!(Signal::TERM.name(), "SIGTERM");
        assert_eq!(Signal::KILL.name(), "SIGKILL");
        for wrong in ["", "0", "65", "SIG", "TERMINATE", "-9"] {
            assert_eq!(Signal::from_name(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_signal_is_read_from_the_descriptor() {
        let signals = SignalFd::new(&[Signal::USR1, Signal::WINCH]).unwrap();
        assert!(signals.drain().unwrap().is_empty());
        // SAFETY: raising a signal that this thread has blocked only makes it pending.
        unsafe { libc::raise(libc::SIGWINCH) };
        assert_eq!(signals.drain().unwrap(), [Signal::WINCH]);
        assert!(signals.drain().unwrap().is_empty());
    }
}
