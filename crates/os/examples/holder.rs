//! A bare shim for tests: becomes a subreaper, starts one command with or without a cgroup, waits until it says
//! `ready`, kills all of it, and prints what came of it in one line of `key=value`. Captures and serves nothing.
//!
//! `holder [--cgroup] [--uid N] [--delegate] [--drop-late] [--within MS] -- COMMAND…`, or `holder --daemonize`, which
//! goes into the background and prints what the one there said.

use std::ffi::CString;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;

use belay_os::cgroup::{Cgroup, probe};
use belay_os::daemonize::Forked;
use belay_os::process::{monotonic_ms, own_identity};
use belay_os::spawn::{Session, SpawnSpec, spawn};
use belay_os::{Signal, SignalFd, Tree, fds};
use rustix::event::{PollFd, PollFlags, Timespec};

const READY_MS: u64 = 30_000;

#[derive(Default)]
struct Options {
    cgroup: bool,
    uid: Option<u32>,
    /// Make a cgroup for the user and go into it, as a service manager would.
    delegate: bool,
    /// Become the user only after the command has been started.
    drop_late: bool,
    within_ms: u64,
    command: Vec<CString>,
}

fn main() -> io::Result<()> {
    if std::env::args().nth(1).as_deref() == Some("--daemonize") {
        return daemonize();
    }
    let options = read_options()?;
    if options.delegate {
        delegate(options.uid.unwrap_or(0))?;
    }
    if !options.drop_late {
        become_user(options.uid)?;
    }
    belay_os::tree::become_subreaper()?;
    let signals = SignalFd::new(&[Signal::CHLD])?;
    let base = format!("belay-os-holder-{}", own_identity().pid);
    let usable = if options.cgroup { probe(&base).usable } else { None };
    let cgroup = match &usable {
        Some(base) => Some(Cgroup::create(base, "task")?),
        None => None,
    };
    let mut tree = Tree::new(cgroup);
    let output = start(&options.command, &tree)?;
    wait_ready(&mut tree, &signals, output)?;
    if options.drop_late {
        become_user(options.uid)?;
    }
    let members = tree.members().len();
    let result = tree.kill_until_empty(options.within_ms)?;
    let removed = match tree.into_cgroup() {
        Some(cgroup) => cgroup.remove().is_ok(),
        None => true,
    };
    if let Some(base) = &usable {
        rustix::fs::rmdir(base)?;
    }
    let survivors: Vec<String> = result.survivors.iter().map(|info| info.identity.pid.to_string()).collect();
    writeln!(
        io::stdout(),
        "empty={} survivors={} cgroup={} removed={removed} members={members} reaped={} rounds={} took_us={}",
        result.empty,
        survivors.join(","),
        usable.is_some(),
        result.reaped.len(),
        result.rounds,
        result.took_us,
    )
}

fn daemonize() -> io::Result<()> {
    belay_os::daemonize::forget_env("SECRET");
    match belay_os::daemonize::daemonize()? {
        Forked::Parent(readiness) => writeln!(io::stdout(), "{}", readiness.wait(READY_MS)?),
        Forked::Child(ready) => {
            let own = own_identity().pid;
            let sid = belay_os::process::info(own).map_or(0, |info| info.sid);
            let cwd = std::env::current_dir()?;
            let output = std::fs::read_link("/proc/self/fd/1")?;
            let environ = String::from_utf8_lossy(&std::fs::read("/proc/self/environ")?).into_owned();
            let secret = environ.contains("hush") || std::env::var_os("SECRET").is_some();
            ready.tell(&format!("{own} {} {} {} {secret}", sid == own, cwd.display(), output.display()))
        }
    }
}

fn read_options() -> io::Result<Options> {
    let mut options = Options { within_ms: 20_000, ..Options::default() };
    let mut words = std::env::args_os().skip(1);
    while let Some(word) = words.next() {
        let mut number = || words.next().and_then(|word| word.to_str()?.parse::<u32>().ok());
        match word.to_str() {
            Some("--cgroup") => options.cgroup = true,
            Some("--delegate") => options.delegate = true,
            Some("--drop-late") => options.drop_late = true,
            Some("--uid") => options.uid = number(),
            Some("--within") => options.within_ms = number().map_or(0, u64::from),
            Some("--") => break,
            _ => return Err(io::Error::other(format!("not understood: {}", word.display()))),
        }
    }
    options.command = words.filter_map(|word| CString::new(word.into_vec()).ok()).collect();
    Ok(options)
}

/// What a service manager does for a user: a cgroup that is theirs, with them in it.
fn delegate(uid: u32) -> io::Result<()> {
    let own = probe("unused-probe");
    if let Some(base) = own.usable {
        rustix::fs::rmdir(base)?;
    }
    let Some(own) = own.own else { return Err(io::Error::other(own.why)) };
    let path = own.join(format!("belay-os-delegated-{}", own_identity().pid));
    std::fs::create_dir(&path)?;
    for name in ["", "cgroup.procs", "cgroup.subtree_control"] {
        std::os::unix::fs::chown(path.join(name), Some(uid), Some(uid))?;
    }
    std::fs::write(path.join("cgroup.procs"), "0")
}

fn become_user(uid: Option<u32>) -> io::Result<()> {
    let Some(uid) = uid else { return Ok(()) };
    // SAFETY: integers and an empty list; this process has one thread.
    let results = unsafe {
        [libc::setgroups(0, std::ptr::null()), libc::setresgid(uid, uid, uid), libc::setresuid(uid, uid, uid)]
    };
    if results.contains(&-1) { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn start(command: &[CString], tree: &Tree) -> io::Result<OwnedFd> {
    let null = fds::null()?;
    let (reader, writer) = fds::pipe(0)?;
    let envp: Vec<CString> = std::env::vars_os()
        .filter_map(|(name, value)| CString::new([name.into_vec(), value.into_vec()].join(&b'=')).ok())
        .collect();
    let spec = SpawnSpec {
        argv: command,
        envp: &envp,
        cwd: None,
        umask: None,
        rlimits: &[],
        stdin: null.as_fd(),
        stdout: writer.as_fd(),
        stderr: rustix::stdio::stderr(),
        cgroup: tree.cgroup().map(Cgroup::dir),
        session: Session::NewGroup,
    };
    spawn(&spec).map_err(io::Error::other)?;
    Ok(reader)
}

/// Reads until the command says that it is ready, and reaps meanwhile, for the command may be a chain of forks.
fn wait_ready(tree: &mut Tree, signals: &SignalFd, output: OwnedFd) -> io::Result<()> {
    let until_ms = monotonic_ms() + READY_MS;
    let mut text = Vec::new();
    let mut reaped = Vec::new();
    let second = Timespec { tv_sec: 1, tv_nsec: 0 };
    while !text.ends_with(b"ready\n") {
        if monotonic_ms() > until_ms {
            return Err(io::Error::other("the command is not ready"));
        }
        let mut fds = [PollFd::new(&output, PollFlags::IN), PollFd::new(signals, PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&second))?;
        let readable = !fds[0].revents().is_empty();
        signals.drain()?;
        tree.reap(&mut reaped)?;
        let mut byte = [0_u8; 64];
        if readable {
            match rustix::io::read(&output, &mut byte)? {
                0 => return Err(io::Error::other("the command closed its output before it was ready")),
                filled => text.extend_from_slice(byte.get(..filled).unwrap_or_default()),
            }
        }
    }
    // Kept open: a writer that is ended by SIGPIPE would prove nothing.
    std::mem::forget(output);
    Ok(())
}
