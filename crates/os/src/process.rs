//! What `/proc` says about processes: who they are, whether they live, who descends from whom. It reads and never
//! changes anything, except [`signal_identity`], which signals one process that it has made sure of.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::process::PidfdFlags;

pub use crate::lost::{find_lost, variable};
use crate::signal::{Delivery, Signal};
pub use crate::walk::descendants;

/// A process number. It means nothing by itself once its process has been reaped: see [`Identity`].
pub type Pid = i32;

/// How much of a command line is kept.
const COMMAND_LIMIT: usize = 4096;

/// In the kernel's flags of a thread that has begun to exit.
const PF_EXITING: u64 = 0x4;

/// A process, once and for all: numbers are used again, but never with the same start time in one boot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Identity {
    /// The process number.
    pub pid: Pid,
    /// When it started, in clock ticks since boot (field 22 of `/proc/PID/stat`).
    pub start_ticks: u64,
}

/// One process as seen at one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessInfo {
    /// Which process.
    pub identity: Identity,
    /// Its parent.
    pub ppid: Pid,
    /// Its process group.
    pub pgid: Pid,
    /// Its session.
    pub sid: Pid,
    /// The state letter of its first thread: `R`, `S`, `D`, `T`, `t`, `Z`, `X`, `I`.
    pub state: char,
    /// How many threads it has.
    pub threads: u32,
    /// The user that it really is.
    pub uid: u32,
    /// Its command line, made printable and cut at 4 KiB, or `[name]` if it has none.
    pub command: String,
    /// Resident memory.
    pub rss_bytes: u64,
    /// Processor time used so far, in user and kernel mode.
    pub cpu_ms: u64,
}

impl ProcessInfo {
    /// Whether it runs no more. A zombie with threads left is a live process whose first thread has exited.
    pub fn is_dead(&self) -> bool {
        is_dead(self.state, self.threads)
    }
}

pub(crate) fn is_dead(state: char, threads: u32) -> bool {
    matches!(state, 'Z' | 'X' | 'x') && threads <= 1
}

/// The numbers of `/proc/PID/stat`: all that walking and killing need, without a heap allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) identity: Identity,
    pub(crate) state: char,
    pub(crate) ppid: Pid,
    pub(crate) pgid: Pid,
    pub(crate) sid: Pid,
    /// Its first thread is on its way out.
    pub(crate) exiting: bool,
    pub(crate) cpu_ticks: u64,
    /// Of the children that it has waited for, and theirs.
    pub(crate) waited_ticks: u64,
    pub(crate) threads: u32,
    pub(crate) rss_pages: u64,
}

impl Stat {
    pub(crate) fn is_dead(&self) -> bool {
        is_dead(self.state, self.threads)
    }
}

/// Reads one line of `/proc/PID/stat`. The name in it is free text that may hold spaces, parentheses and newlines, so
/// the numbers are looked for behind the last `)`.
pub(crate) fn parse_stat(text: &[u8]) -> Option<Stat> {
    let open = text.iter().position(|&byte| byte == b'(')?;
    let close = text.iter().rposition(|&byte| byte == b')')?;
    let pid = std::str::from_utf8(text.get(..open)?).ok()?.trim().parse().ok()?;
    let rest = std::str::from_utf8(text.get(close + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    // `nth` counts from where the last call stopped; the comments give the field's number in proc(5).
    let state = fields.next()?.chars().next()?; // 3
    let ppid = fields.next()?.parse().ok()?; // 4
    let pgid = fields.next()?.parse().ok()?; // 5
    let sid = fields.next()?.parse().ok()?; // 6
    let flags: u64 = fields.nth(2)?.parse().ok()?; // 9
    let user: u64 = fields.nth(4)?.parse().ok()?; // 14
    let system: u64 = fields.next()?.parse().ok()?; // 15
    let waited_user: u64 = fields.next()?.parse().ok()?; // 16
    let waited_system: u64 = fields.next()?.parse().ok()?; // 17
    let threads: i64 = fields.nth(2)?.parse().ok()?; // 20
    let start_ticks = fields.nth(1)?.parse().ok()?; // 22
    let rss: i64 = fields.nth(1)?.parse().ok()?; // 24
    Some(Stat {
        identity: Identity { pid, start_ticks },
        state,
        ppid,
        pgid,
        sid,
        exiting: flags & PF_EXITING != 0,
        cpu_ticks: user.saturating_add(system),
        waited_ticks: waited_user.saturating_add(waited_system),
        threads: u32::try_from(threads).unwrap_or(0),
        rss_pages: u64::try_from(rss).unwrap_or(0),
    })
}

/// Reads a file below `dir` into `buffer` until it is full or the file ends, and says how much there was.
pub(crate) fn read_at(dir: BorrowedFd<'_>, name: &str, buffer: &mut [u8]) -> Option<usize> {
    let file = rustix::fs::openat(dir, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut filled = 0;
    while let Some(space) = buffer.get_mut(filled..).filter(|space| !space.is_empty()) {
        match rustix::io::read(&file, space) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    Some(filled)
}

pub(crate) fn stat(pid: Pid) -> Option<Stat> {
    let mut buffer = [0_u8; 1024];
    let filled = read_at(CWD, &format!("/proc/{pid}/stat"), &mut buffer)?;
    parse_stat(buffer.get(..filled)?)
}

/// Who has this number now, dead or alive, as long as it has not been reaped.
pub fn identity(pid: Pid) -> Option<Identity> {
    stat(pid).map(|stat| stat.identity)
}

/// All that is known about a process; `None` if there is none with this number.
pub fn info(pid: Pid) -> Option<ProcessInfo> {
    // An open /proc/PID stays with its process: if the number goes to another one, these reads fail
    // instead of mixing two processes.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(format!("/proc/{pid}"), flags, Mode::empty()).ok()?;
    let mut buffer = [0_u8; COMMAND_LIMIT];
    let filled = read_at(dir.as_fd(), "stat", &mut buffer)?;
    let line = buffer.get(..filled)?.to_vec();
    let stat = parse_stat(&line)?;
    let filled = read_at(dir.as_fd(), "status", &mut buffer)?;
    let status = buffer.get(..filled)?;
    let uid = status_field(status, b"Uid:")?;
    // The number of a thread opens the same door; but a thread is not a process.
    if status_field(status, b"Tgid:") != u32::try_from(stat.identity.pid).ok() {
        return None;
    }
    let filled = read_at(dir.as_fd(), "cmdline", &mut buffer).unwrap_or(0);
    let command = printable_command(buffer.get(..filled)?, &line);
    Some(ProcessInfo {
        identity: stat.identity,
        ppid: stat.ppid,
        pgid: stat.pgid,
        sid: stat.sid,
        state: stat.state,
        threads: stat.threads,
        uid,
        command,
        rss_bytes: stat.rss_pages.saturating_mul(rustix::param::page_size() as u64),
        cpu_ms: ticks_to_ms(stat.cpu_ticks),
    })
}

pub(crate) fn ticks_to_ms(ticks: u64) -> u64 {
    ticks.saturating_mul(1000) / rustix::param::clock_ticks_per_second().max(1)
}

/// The first number of a line in `/proc/PID/status`. Of `Uid:` that is the real user. (The owner of `/proc/PID` is root
/// for every process that may not be dumped, whoever it runs as.)
fn status_field(status: &[u8], name: &[u8]) -> Option<u32> {
    let line = status.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(name))?;
    std::str::from_utf8(line).ok()?.split_ascii_whitespace().next()?.parse().ok()
}

/// Whether this is the number of a thread other than the first of its process.
pub(crate) fn is_thread(number: Pid) -> bool {
    let mut buffer = [0_u8; 4096];
    let filled = read_at(CWD, &format!("/proc/{number}/status"), &mut buffer).unwrap_or(0);
    let process = status_field(buffer.get(..filled).unwrap_or_default(), b"Tgid:");
    process.is_some_and(|process| u32::try_from(number) != Ok(process))
}

/// A command line that can be shown anywhere: no control characters, so that a process cannot move a terminal's cursor.
fn printable_command(cmdline: &[u8], stat_line: &[u8]) -> String {
    let end = cmdline.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    let named = || {
        let open = stat_line.iter().position(|&byte| byte == b'(')?;
        let close = stat_line.iter().rposition(|&byte| byte == b')')?;
        stat_line.get(open + 1..close)
    };
    let text = match cmdline.get(..end) {
        Some(words) if !words.is_empty() => String::from_utf8_lossy(words).into_owned(),
        _ => format!("[{}]", String::from_utf8_lossy(named().unwrap_or_default())),
    };
    text.chars()
        .map(|letter| match letter {
            '\0' | '\t' | '\n' | '\r' => ' ',
            letter if letter.is_control() => char::REPLACEMENT_CHARACTER,
            letter => letter,
        })
        .collect()
}

/// Where a process is in the hierarchy of cgroups (v2), as the kernel writes it. None if it is gone, or there is none.
pub fn cgroup_of(pid: Pid) -> Option<String> {
    let mut buffer = [0_u8; 4096];
    let filled = read_at(CWD, &format!("/proc/{pid}/cgroup"), &mut buffer)?;
    let text = String::from_utf8_lossy(&buffer[..filled]);
    text.lines().find_map(|line| line.strip_prefix("0::").map(str::to_owned))
}

/// The time since boot in the kernel's ticks, in which start times are counted.
pub fn boot_ticks() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let (seconds, nanos) = (u64::try_from(now.tv_sec).unwrap_or(0), u64::try_from(now.tv_nsec).unwrap_or(0));
    let per_second = rustix::param::clock_ticks_per_second();
    seconds * per_second + nanos * per_second / 1_000_000_000
}

/// The process and everybody above it, from the inside out. None if it is gone, an error if there is no descriptor to look with.
///
/// A parent that ends while this looks gives its children to somebody else: then it is begun anew, so that nobody is taken for
/// an outsider who is not.
pub fn ancestors(pid: Pid) -> io::Result<Option<Vec<Pid>>> {
    const TRIES: usize = 50;
    for _ in 0..TRIES {
        let mut found = vec![pid];
        let Some(own) = stat(pid) else { break };
        let mut next = own.ppid;
        loop {
            if next <= 0 {
                return Ok(Some(found));
            }
            found.push(next);
            match stat(next) {
                Some(above) => next = above.ppid,
                // Another user's, whom `/proc` does not show here (hidepid): nothing can be seen beyond it.
                None if is_hidden(next) => return Ok(Some(found)),
                None => break,
            }
        }
    }
    // One whose parents die faster than they can be looked at is nobody that can be trusted.
    if rustix::fs::access(format!("/proc/{pid}/stat"), rustix::fs::Access::EXISTS).is_ok() {
        return Err(io::Error::from_raw_os_error(libc::EMFILE));
    }
    Ok(None)
}

/// Whether there is a process with this number that is not ours to look at.
fn is_hidden(pid: Pid) -> bool {
    let pid = rustix::process::Pid::from_raw(pid.max(0));
    pid.is_some_and(|pid| rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::PERM))
}

/// Whether exactly this process still runs: the same number, the same start time, and not dead.
pub fn is_alive(id: Identity) -> bool {
    stat(id.pid).is_some_and(|stat| stat.identity == id && !stat.is_dead())
}

/// Whether exactly this process is gone or past everything but its end: it does nothing more, and what `/proc` shows of it is no longer
/// to be relied on.
pub fn is_leaving(id: Identity) -> bool {
    let stays = |stat: Stat| stat.identity == id && !stat.is_dead() && !(stat.exiting && stat.threads <= 1);
    !stat(id.pid).is_some_and(stays)
}

/// The calling process. (With `/proc` missing the start time is 0, which no other process has.)
pub fn own_identity() -> Identity {
    let pid = own_pid();
    identity(pid).unwrap_or(Identity { pid, start_ticks: 0 })
}

pub(crate) fn own_pid() -> Pid {
    rustix::process::getpid().as_raw_pid()
}

/// The name of this boot of the machine: process identities are comparable only within one. Empty if unknown.
pub fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|text| text.trim().to_owned())
        .unwrap_or_default()
}

/// Ends this process at once: nothing is dropped, no handler runs, other threads stop where they are.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: `_exit` takes any value and does not return.
    unsafe { libc::_exit(code) }
}

/// Microseconds on a clock that nobody sets.
pub fn monotonic_us() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000).saturating_add(nanos / 1000)
}

/// Milliseconds on the same clock as [`monotonic_us`].
pub fn monotonic_ms() -> u64 {
    monotonic_us() / 1000
}

/// A pidfd for exactly this process, or `None` if it is gone.
pub fn open_pidfd(id: Identity) -> io::Result<Option<OwnedFd>> {
    // rustix asserts that a number is not negative.
    let Some(pid) = rustix::process::Pid::from_raw(id.pid.max(0)) else { return Ok(None) };
    let pidfd = match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => pidfd,
        Err(rustix::io::Errno::SRCH) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    // Only now, with the number pinned down, does the start time prove anything.
    Ok((identity(id.pid) == Some(id)).then_some(pidfd))
}

/// Sends a signal to exactly this process, and to no other that may have got its number.
pub fn signal_identity(id: Identity, signal: Signal) -> Result<Delivery, io::Error> {
    match open_pidfd(id)? {
        Some(pidfd) => crate::signal::send(pidfd.as_fd(), signal),
        None => Ok(Delivery::Gone),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_name_full_of_parentheses_is_survived() {
        let line = b"42 (a) R 1 (b) (c) S 7 8 9 0 -1 4194304 1 2 3 4 50 60 7 8 20 0 3 0 12345 1000 77 18446744073709551615 1";
        let stat = parse_stat(line).unwrap();
        assert_eq!(stat.identity, Identity { pid: 42, start_ticks: 12345 });
        assert_eq!((stat.state, stat.ppid, stat.pgid, stat.sid), ('S', 7, 8, 9));
        assert_eq!((stat.cpu_ticks, stat.waited_ticks, stat.threads, stat.rss_pages), (110, 15, 3, 77));
        assert!(!stat.exiting);
    }

    #[test]
    fn one_on_its_way_out_is_known_by_its_flags() {
        let line = b"42 (sh) R 7 8 9 0 -1 4194308 1 2 3 4 50 60 7 8 20 0 1 0 12345 1000 77";
        assert!(parse_stat(line).unwrap().exiting);
        assert!(!is_leaving(own_identity()));
        assert!(is_leaving(Identity { start_ticks: 1, ..own_identity() }), "another has that number now");
    }

    #[test]
    fn a_zombie_with_threads_is_alive() {
        assert!(is_dead('Z', 1));
        assert!(is_dead('X', 0));
        assert!(!is_dead('Z', 2));
        assert!(!is_dead('T', 1));
    }

    #[test]
    fn commands_are_printable() {
        let line = b"1 (we\x1b[2Jird) S";
        assert_eq!(printable_command(b"sh\0-c\0a\nb\x1b[2J\xff\0\0", line), "sh -c a b\u{fffd}[2J\u{fffd}");
        assert_eq!(printable_command(b"", line), "[we\u{fffd}[2Jird]");
        assert_eq!(printable_command(b"\0\0", b"1 (x) S"), "[x]");
    }

    #[test]
    fn we_know_ourselves() {
        let own = own_identity();
        let seen = info(own.pid).unwrap();
        assert_eq!(seen.identity, own);
        assert_eq!(seen.uid, rustix::process::getuid().as_raw());
        assert!(seen.rss_bytes > 0 && seen.threads > 0 && !seen.command.is_empty());
        assert!(is_alive(own));
        assert!(!is_alive(Identity { pid: own.pid, start_ticks: own.start_ticks + 1 }));
        assert_eq!(boot_id().len(), 36);
    }

    #[test]
    fn a_thread_is_not_a_process() {
        let own = own_pid();
        let thread = std::thread::spawn(|| rustix::thread::gettid().as_raw_pid()).join().unwrap();
        assert!(info(thread).is_none() && !is_thread(own));
        let alive = rustix::thread::gettid().as_raw_pid();
        // The harness runs each test on a thread of its own, unless it was told not to.
        assert_eq!(is_thread(alive), alive != own);
        assert_eq!(info(alive).is_none(), alive != own);
    }

    #[test]
    fn a_number_with_another_start_time_is_not_signalled() {
        let own = own_identity();
        let other = Identity { pid: own.pid, start_ticks: own.start_ticks + 1 };
        assert_eq!(signal_identity(other, Signal::KILL).unwrap(), Delivery::Gone);
        for pid in [0, -1, i32::MIN, i32::MAX] {
            let nobody = Identity { pid, start_ticks: 1 };
            assert!(!matches!(signal_identity(nobody, Signal::KILL), Ok(Delivery::Sent)));
        }
    }

    proptest! {
        #[test]
        fn any_name_is_read_around(name in proptest::collection::vec(any::<u8>(), 0..64), start in any::<u64>()) {
            let mut line = b"7 (".to_vec();
            line.extend_from_slice(&name);
            line.extend_from_slice(
                format!(") Z 1 2 3 0 -1 0 0 0 0 0 5 6 0 0 20 0 1 0 {start} 0 9 0\n").as_bytes(),
            );
            let stat = parse_stat(&line).unwrap();
            prop_assert_eq!(stat.identity, Identity { pid: 7, start_ticks: start });
            prop_assert_eq!((stat.state, stat.ppid, stat.pgid, stat.sid, stat.cpu_ticks), ('Z', 1, 2, 3, 11));
        }

        #[test]
        fn no_bytes_break_the_parsers(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            let _ = parse_stat(&bytes);
            let _ = status_field(&bytes, b"Uid:");
            prop_assert!(!printable_command(&bytes, &bytes).chars().any(char::is_control));
        }
    }
}
