//! A zoo of escape artists: small process trees that try, each in its own way, to outlive whoever started them. It is for
//! tests. `zoo --list` names them; `zoo NAME [N] [--marker TEXT]` becomes one, and says `ready` when its tree is up.
//! Every process in it ends by itself after ten minutes at most, and shows the marker in its command line.

use std::ffi::{CString, c_int};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use belay_os::fds;
use belay_os::process::{Pid, monotonic_us};

const LIFE_US: u64 = 600_000_000;
const CHAIN_LIFE_US: u64 = 300_000_000;
const CHAIN_LIMIT: u64 = 20_000;

/// When every process here ends by itself; inherited by fork.
static END_US: AtomicU64 = AtomicU64::new(0);

type Artist = fn(u64) -> io::Result<()>;

/// Name, whether it needs root, the number it takes if none is given, and what it does.
const ARTISTS: &[(&str, &str, u64, Artist)] = &[
    ("pipeline", "", 3, pipeline),
    ("setsid", "", 1, setsid),
    ("double-fork", "", 1, double_fork),
    ("nohup", "", 1, nohup),
    ("own-group", "", 2, own_group),
    ("own-session", "", 2, own_session),
    ("ignore-term", "", 2, ignore_term),
    ("stopped", "", 2, stopped),
    ("closed-fds", "", 1, closed_fds),
    ("cleared-env", "", 1, cleared_env),
    ("fork-chain", "", CHAIN_LIMIT, fork_chain),
    ("setsid-chain", "", CHAIN_LIMIT, setsid_chain),
    ("stubborn-chain", "", 3_000, stubborn_chain),
    ("nested-subreaper", "", 3, nested_subreaper),
    ("many", "", 300, many),
    ("zombies", "", 5, zombies),
    ("leader-thread-exited", "", 1, leader_thread_exited),
    ("vfork", "", 1, vfork),
    ("renamed", "", 1, renamed),
    ("tracer", "", 1, tracer),
    ("holds-stdout", "", 1, holds_stdout),
    ("cgroup-escape", "root", 1, cgroup_escape),
    ("pid-namespace", "root", 2, pid_namespace),
    ("other-user", "root", 65_534, other_user),
];

fn main() -> io::Result<()> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(at) = arguments.iter().position(|argument| argument == "--marker") {
        arguments.drain(at..(at + 2).min(arguments.len()));
    }
    let name = arguments.first().map(String::as_str).unwrap_or_default();
    let number = arguments.get(1).and_then(|number| number.parse().ok());
    END_US.store(monotonic_us() + LIFE_US, Ordering::Relaxed);
    if name == "--list" {
        let lines =
            ARTISTS.iter().map(|(name, flags, ..)| format!("{name} {flags}").trim().to_owned() + "\n");
        return say(&lines.collect::<String>());
    }
    if name == "live" {
        END_US.store(number.unwrap_or(0), Ordering::Relaxed);
        live();
    }
    let Some((_, _, usual, artist)) = ARTISTS.iter().find(|(known, ..)| *known == name) else {
        return Err(io::Error::other("usage: zoo --list | zoo NAME [N] [--marker TEXT]"));
    };
    artist(number.unwrap_or(*usual))
}

fn checked(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn exit() -> ! {
    // SAFETY: ends this process without running what its parent left for its own end.
    unsafe { libc::_exit(0) }
}

fn pause_us(length_us: u64) {
    std::thread::sleep(std::time::Duration::from_micros(length_us));
}

/// Does nothing for the rest of the ten minutes.
fn live() -> ! {
    loop {
        let left_us = END_US.load(Ordering::Relaxed).saturating_sub(monotonic_us());
        if left_us == 0 {
            exit();
        }
        pause_us(left_us);
    }
}

fn say(text: &str) -> io::Result<()> {
    rustix::io::write(rustix::stdio::stdout(), text.as_bytes())?;
    Ok(())
}

fn ready_and_live() -> io::Result<()> {
    say("ready\n")?;
    live()
}

/// A child that does its work and exits, or lives on if the work says so.
fn child(work: impl FnOnce() -> io::Result<()>) -> io::Result<Pid> {
    // SAFETY: this program has one thread wherever it forks.
    match checked(unsafe { libc::fork() })? {
        0 => {
            let _ = work();
            exit()
        }
        pid => Ok(pid),
    }
}

fn wait_for(pid: Pid, options: c_int) -> io::Result<()> {
    // SAFETY: no status is asked for.
    checked(unsafe { libc::waitpid(pid, std::ptr::null_mut(), options) }).map(drop)
}

fn set_signal(number: c_int, handler: libc::sighandler_t) {
    // SAFETY: the handler is SIG_IGN; what cannot be ignored is refused.
    unsafe { libc::signal(number, handler) };
}

/// Everybody who has come up writes a byte; the first process waits for all of them.
struct Gate(OwnedFd, OwnedFd);

impl Gate {
    fn new() -> io::Result<Self> {
        let (reader, writer) = fds::pipe(0)?;
        Ok(Self(reader, writer))
    }

    fn arrive(&self) -> io::Result<()> {
        rustix::io::write(&self.1, b".")?;
        Ok(())
    }

    fn arrive_and_live(&self) -> io::Result<()> {
        self.arrive()?;
        live()
    }

    fn wait(&self, count: u64) -> io::Result<()> {
        for _ in 0..count {
            rustix::io::read(&self.0, &mut [0_u8; 1])?;
        }
        Ok(())
    }
}

/// Processes joined by pipes, in one group of their own.
fn pipeline(count: u64) -> io::Result<()> {
    let gate = Gate::new()?;
    let mut input: Option<OwnedFd> = None;
    for _ in 0..count {
        let (reader, writer) = fds::pipe(0)?;
        child(|| {
            let _held = (input.as_ref().map(AsFd::as_fd), writer.as_fd());
            gate.arrive_and_live()
        })?;
        input = Some(reader);
    }
    gate.wait(count)?;
    ready_and_live()
}

fn with_children(count: u64, each: impl Fn() -> io::Result<()>) -> io::Result<()> {
    let gate = Gate::new()?;
    for _ in 0..count {
        child(|| {
            each()?;
            gate.arrive_and_live()
        })?;
    }
    gate.wait(count)?;
    ready_and_live()
}

fn new_session() -> io::Result<()> {
    Ok(rustix::process::setsid().map(drop)?)
}

fn new_group() -> io::Result<()> {
    Ok(rustix::process::setpgid(None, None)?)
}

fn setsid(count: u64) -> io::Result<()> {
    with_children(count, new_session)
}

fn own_group(count: u64) -> io::Result<()> {
    with_children(count, new_group)
}

/// Sessions with a child in yet another group of the new session.
fn own_session(count: u64) -> io::Result<()> {
    let inner = Gate::new()?;
    with_children(count, || {
        new_session()?;
        child(|| {
            new_group()?;
            inner.arrive_and_live()
        })?;
        inner.wait(1)
    })
}

fn ignore_term(count: u64) -> io::Result<()> {
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT] {
        set_signal(signal, libc::SIG_IGN);
    }
    with_children(count, || Ok(()))
}

/// An orphan in a session of its own; the first process exits.
fn double_fork(count: u64) -> io::Result<()> {
    let gate = Gate::new()?;
    orphans(&gate, count)?;
    gate.wait(count)?;
    say("ready\n")
}

fn orphans(gate: &Gate, count: u64) -> io::Result<()> {
    let middle = child(|| {
        new_session()?;
        for _ in 0..count {
            child(|| gate.arrive_and_live())?;
        }
        Ok(())
    })?;
    wait_for(middle, 0)
}

/// What `nohup … & disown` leaves behind.
fn nohup(_: u64) -> io::Result<()> {
    let gate = Gate::new()?;
    child(|| {
        set_signal(libc::SIGHUP, libc::SIG_IGN);
        gate.arrive_and_live()
    })?;
    gate.wait(1)?;
    say("ready\n")
}

fn stopped(count: u64) -> io::Result<()> {
    for _ in 0..count {
        let pid = child(|| {
            // A stopped process cannot end by itself: it goes with its parent.
            // SAFETY: integers only.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            // SAFETY: stops this process only.
            checked(unsafe { libc::raise(libc::SIGSTOP) })?;
            live()
        })?;
        wait_for(pid, libc::WUNTRACED)?;
    }
    ready_and_live()
}

fn closed_fds(_: u64) -> io::Result<()> {
    let gate = Gate::new()?;
    child(|| {
        gate.arrive()?;
        fds::close_from(0)?;
        live()
    })?;
    gate.wait(1)?;
    ready_and_live()
}

/// Executes this program again without an environment.
fn cleared_env(_: u64) -> io::Result<()> {
    let gate = Gate::new()?;
    let end = END_US.load(Ordering::Relaxed).to_string();
    let mut words = vec!["zoo".to_owned(), "live".to_owned(), end];
    words.extend(std::env::args().skip_while(|word| word != "--marker"));
    let words: Vec<CString> = words.into_iter().filter_map(|word| CString::new(word).ok()).collect();
    let mut argv: Vec<_> = words.iter().map(|word| word.as_ptr()).collect();
    argv.push(std::ptr::null());
    child(|| {
        new_session()?;
        // SAFETY: C strings and null-ended lists.
        unsafe { libc::execve(c"/proc/self/exe".as_ptr(), argv.as_ptr(), [std::ptr::null()].as_ptr()) };
        Err(io::Error::last_os_error())
    })?;
    // The pipe closes as the child executes.
    let Gate(reader, writer) = gate;
    drop(writer);
    rustix::io::read(&reader, &mut [0_u8; 1])?;
    ready_and_live()
}

/// Each generation makes the next and exits.
fn chain(limit: u64, pace_us: u64, each: impl Fn() -> io::Result<()>) -> io::Result<()> {
    let end_us = monotonic_us() + CHAIN_LIFE_US;
    for generation in 0..limit {
        if monotonic_us() > end_us {
            break;
        }
        if generation == 3 {
            say("ready\n")?;
        }
        // SAFETY: this program has one thread.
        if checked(unsafe { libc::fork() })? > 0 {
            exit();
        }
        each()?;
        if pace_us > 0 {
            pause_us(pace_us);
        }
    }
    Ok(())
}

fn fork_chain(limit: u64) -> io::Result<()> {
    chain(limit, 0, || Ok(()))
}

fn setsid_chain(limit: u64) -> io::Result<()> {
    chain(limit, 0, new_session)
}

/// A slow chain that ignores every signal that can be ignored.
fn stubborn_chain(limit: u64) -> io::Result<()> {
    (1..=64).for_each(|number| set_signal(number, libc::SIG_IGN));
    chain(limit, 20_000, new_session)
}

/// A child that adopts its own orphans.
fn nested_subreaper(count: u64) -> io::Result<()> {
    let gate = Gate::new()?;
    child(|| {
        belay_os::tree::become_subreaper()?;
        orphans(&gate, count)?;
        gate.arrive_and_live()
    })?;
    gate.wait(count + 1)?;
    ready_and_live()
}

/// A bushy tree.
fn many(count: u64) -> io::Result<()> {
    let gate = Gate::new()?;
    grow(&gate, count)?;
    gate.wait(count)?;
    ready_and_live()
}

fn grow(gate: &Gate, below: u64) -> io::Result<()> {
    let branches = below.min(3);
    for branch in 0..branches {
        let share = below / branches + u64::from(branch < below % branches);
        child(|| {
            grow(gate, share - 1)?;
            gate.arrive_and_live()
        })?;
    }
    Ok(())
}

/// Dead children that nobody reaps, beside live ones.
fn zombies(count: u64) -> io::Result<()> {
    for _ in 0..count {
        child(|| Ok(()))?;
    }
    with_children(2, || Ok(()))
}

/// The first thread exits; the process lives in another, which has a child.
fn leader_thread_exited(_: u64) -> io::Result<()> {
    let gate = Gate::new()?;
    std::thread::spawn(move || -> io::Result<()> {
        // SAFETY: the other thread only exits; the child makes plain system calls.
        if checked(unsafe { libc::fork() })? == 0 {
            gate.arrive_and_live()?;
        }
        gate.wait(1)?;
        let own = belay_os::process::own_identity().pid;
        while belay_os::process::info(own).is_some_and(|info| info.state != 'Z') {
            pause_us(1000);
        }
        ready_and_live()
    });
    // SAFETY: ends this thread and nothing else; the rest of the process goes on.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
    Ok(())
}

/// A parent that waits in the kernel for a child that never executes.
fn vfork(_: u64) -> io::Result<()> {
    // SAFETY: without CLONE_VM this is a fork whose parent waits; the child has its own copy of everything.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::CLONE_VFORK | libc::SIGCHLD, 0, 0, 0, 0) };
    if pid == 0 { ready_and_live() } else { live() }
}

/// A name that is hard to read in `/proc`.
fn renamed(count: u64) -> io::Result<()> {
    with_children(count, || {
        // SAFETY: a C string.
        checked(unsafe { libc::prctl(libc::PR_SET_NAME, c"x) Z 1 (\n1".as_ptr()) }).map(drop)
    })
}

/// A process that traces its sibling.
fn tracer(_: u64) -> io::Result<()> {
    let gate = Gate::new()?;
    let traced = child(|| {
        // SAFETY: integers only; lets the sibling trace us where that is restricted.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::c_ulong::MAX) };
        gate.arrive_and_live()
    })?;
    gate.wait(1)?;
    child(|| {
        let none = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: seizing takes no addresses.
        if unsafe { libc::ptrace(libc::PTRACE_SEIZE, traced, none, none) } < 0 {
            return Err(io::Error::last_os_error());
        }
        gate.arrive_and_live()
    })?;
    gate.wait(1)?;
    ready_and_live()
}

/// An orphan that keeps the standard output open.
fn holds_stdout(_: u64) -> io::Result<()> {
    let gate = Gate::new()?;
    child(|| {
        child(|| gate.arrive_and_live())?;
        Ok(())
    })?;
    gate.wait(1)?;
    say("ready\n")
}

/// A child that moves itself to the top of the hierarchy.
fn cgroup_escape(count: u64) -> io::Result<()> {
    with_children(count, || match belay_os::cgroup::mount_point() {
        Some(top) => std::fs::write(top.join("cgroup.procs"), "0"),
        None => Ok(()),
    })
}

/// A process that is number 1 to those below it, one of which has left its session.
fn pid_namespace(count: u64) -> io::Result<()> {
    // SAFETY: integers only; concerns the children that this process makes from now on.
    checked(unsafe { libc::unshare(libc::CLONE_NEWPID) })?;
    let gate = Gate::new()?;
    child(|| {
        orphans(&gate, count)?;
        gate.arrive_and_live()
    })?;
    gate.wait(count + 1)?;
    ready_and_live()
}

fn other_user(uid: u64) -> io::Result<()> {
    let uid = libc::uid_t::try_from(uid).map_err(io::Error::other)?;
    with_children(1, || {
        // SAFETY: integers and an empty list.
        unsafe {
            checked(libc::setgroups(0, std::ptr::null()))?;
            checked(libc::setresgid(uid, uid, uid))?;
            checked(libc::setresuid(uid, uid, uid)).map(drop)
        }
    })
}
