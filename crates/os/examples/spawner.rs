//! A process with many descriptors that spawns children, for the tests of descriptor slots: they
//! need a descriptor table that no other test changes. It checks only what its caller cannot see,
//! and prints the rest.
//!
//! `spawner inherit|errors|cgroup|churn [--reserve] [--deny ERRNO]`: reserve slots first; make
//! `close_range` fail with ERRNO.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "an example that only tests run")]

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use belay_os::cgroup::{Cgroup, probe};
use belay_os::fds;
use belay_os::slots::{self, Reservation};
use belay_os::spawn::{Rlimit, Session, SpawnError, SpawnSpec, Spawned, spawn};
use rustix::process::{WaitId, WaitIdOptions};

const MANY: usize = 5_000;
/// Every descriptor with a number that this divides is not close-on-exec.
const INHERITABLE_EVERY: usize = 500;

const SPAWNERS: usize = 2;
const SPAWNS_EACH: usize = 1_000;
const CHURNERS: usize = 3;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let after = |name: &str| words.iter().position(|word| word == name).map(|at| at + 1);
    fds::close_from(3).unwrap();
    fds::raise_nofile().unwrap();
    // Occupies the number below the slots, where the child's first `close_range` does not reach.
    let low = fds::null().unwrap();
    fds::set_inheritable(&low, true).unwrap();
    let reservation = after("--reserve").map(|_| slots::reserve().unwrap());
    if let Some(at) = after("--deny") {
        deny_close_range(words[at].parse().unwrap());
    }
    match words[0].as_str() {
        "inherit" => inherit(reservation.as_ref()),
        "errors" => errors(),
        "cgroup" => cgroup(),
        "churn" => churn(),
        other => panic!("unknown mode: {other}"),
    }
}

/// Prints what a child sees in its descriptor table, twice, and whether the reservation is active
/// before and after.
fn inherit(reservation: Option<&Reservation>) {
    let _many = many_descriptors();
    let active = || reservation.is_some_and(Reservation::is_active);
    println!("active {}", active());
    let before = table();
    // The shell stays, so that `ls` lists the shell's descriptors and not its own.
    let script = "readlink /proc/$$/fd/0 /proc/$$/fd/1 /proc/$$/fd/2; ls /proc/$$/fd; :";
    for _ in 0..2 {
        let (input, output, errors) = (pipe(), pipe(), pipe());
        let names = [&input.0, &output.0, &errors.0].map(|end| link(end.as_fd()));
        let (_, text) = run(&["sh", "-c", script], &input.0, output, errors.1);
        let named = names.iter().zip(["STDIN", "STDOUT", "STDERR"]);
        let text = named.fold(text, |text, (name, word)| text.replace(name, word));
        println!("{}", text.split_whitespace().collect::<Vec<_>>().join(" "));
        drop((input, errors.0));
    }
    println!("active {}", active());
    println!("changed {:?}", changed(&before));
}

/// Prints how spawns fail that cannot succeed.
fn errors() {
    let _many = many_descriptors();
    let before = table();
    let plain_directory = File::open("/").unwrap();
    let limits = [Rlimit { resource: libc::RLIMIT_NOFILE, soft: 9, hard: 8 }];
    let null = fds::null().unwrap();
    let envp = strings(&["PATH=/usr/bin:/bin"]);
    let attempt = |program: &str, change: fn(&mut SpawnSpec<'_>)| {
        let argv = strings(&[program]);
        let mut spec = spec(&argv, &envp, [null.as_fd(); 3]);
        change(&mut spec);
        spawn(&spec).unwrap_err()
    };
    print_error(&attempt("no-such", |_| {}));
    print_error(&attempt("/no/such", |_| {}));
    print_error(&attempt("/", |_| {}));
    print_error(&attempt("true", |spec| spec.cwd = Some(c"/no/dir")));
    print_error(&attempt("true", |spec| spec.session = Session::Terminal));
    let argv = strings(&["true"]);
    let spec = spec(&argv, &envp, [null.as_fd(); 3]);
    print_error(&spawn(&SpawnSpec { rlimits: &limits, ..spec }).unwrap_err());
    print_error(&spawn(&SpawnSpec { cgroup: Some(plain_directory.as_fd()), ..spec }).unwrap_err());
    let children = rustix::process::waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
    println!("unreaped {}", children.is_ok());
    drop((null, plain_directory));
    println!("changed {:?}", changed(&before));
}

fn print_error(error: &SpawnError) {
    let path = error.path.as_ref().map(|path| path.display().to_string());
    println!("{:?} {} {}", error.stage, error.errno, path.unwrap_or_default());
}

/// Prints whether a child is in the cgroup that its spawn named, or that no cgroup is usable here.
fn cgroup() {
    let Some(base) = probe(&format!("belay-os-spawner-{}", std::process::id())).usable else {
        println!("no usable cgroup");
        return;
    };
    let cgroup = Cgroup::create(&base, "task").unwrap();
    let (argv, envp) = (strings(&["cat", "/proc/self/cgroup"]), strings(&["PATH=/usr/bin:/bin"]));
    let (null, output) = (fds::null().unwrap(), pipe());
    let streams = [null.as_fd(), output.1.as_fd(), null.as_fd()];
    let spec = SpawnSpec { cgroup: Some(cgroup.dir()), ..spec(&argv, &envp, streams) };
    let (_, text) = collect(&spawn(&spec).unwrap(), output);
    cgroup.remove().unwrap();
    rustix::fs::rmdir(&base).unwrap();
    println!("inside {}", text.trim_end().ends_with(&format!("-spawner-{}/task", std::process::id())));
}

/// Spawns from several threads while others open and close pipes, and prints what went wrong.
fn churn() {
    let _many = many_descriptors();
    let before = table();
    let (done, pipes, wrong_pipes) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let wrong_children = std::thread::scope(|scope| {
        for _ in 0..CHURNERS {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    pipes.fetch_add(1, Ordering::Relaxed);
                    wrong_pipes.fetch_add(u64::from(!pipe_is_intact()), Ordering::Relaxed);
                }
            });
        }
        let spawners: Vec<_> = (0..SPAWNERS)
            .map(|spawner| {
                scope.spawn(move || (0..SPAWNS_EACH).filter(|round| !echoes(spawner, *round)).count())
            })
            .collect();
        let wrong: usize = spawners.into_iter().map(|spawner| spawner.join().unwrap_or(SPAWNS_EACH)).sum();
        done.store(true, Ordering::Relaxed);
        wrong
    });
    println!("wrong children {wrong_children}");
    println!("wrong pipes {}", wrong_pipes.into_inner());
    println!("enough pipes {}", pipes.into_inner() > 1_000);
    println!("changed {:?}", changed(&before));
}

/// Whether a new pipe stays the same pipe, and its bytes its own, until it is closed.
fn pipe_is_intact() -> bool {
    let Ok((mut reader, mut writer)) = fds::pipe(0).map(|(r, w)| (File::from(r), File::from(w))) else {
        return false;
    };
    let identity = |file: &File| rustix::fs::fstat(file).map(|stat| stat.st_ino);
    let before = identity(&reader);
    let mut byte = [0];
    let passed = writer.write_all(b"x").is_ok() && reader.read_exact(&mut byte).is_ok() && byte == *b"x";
    passed && before.is_ok() && identity(&reader) == before && identity(&writer) == before
}

/// Whether a child copies its own input to its own output, and its streams end with it.
fn echoes(spawner: usize, round: usize) -> bool {
    let token = format!("{spawner}-{round}");
    let (input, output, errors) = (pipe(), pipe(), pipe());
    let mut writer = File::from(input.1);
    writer.write_all(token.as_bytes()).unwrap();
    drop(writer);
    let mut complaints = File::from(errors.0);
    let (code, text) = run(&["cat"], &input.0, output, errors.1);
    let mut complaint = String::new();
    complaints.read_to_string(&mut complaint).unwrap();
    (code, text, complaint) == (Some(0), token, String::new())
}

/// Runs a program to its end, and returns its exit code and its output.
fn run(argv: &[&str], stdin: &OwnedFd, stdout: (OwnedFd, OwnedFd), stderr: OwnedFd) -> (Option<i32>, String) {
    let (argv, envp) = (strings(argv), strings(&["PATH=/usr/bin:/bin"]));
    let streams = [stdin.as_fd(), stdout.1.as_fd(), stderr.as_fd()];
    let spawned = spawn(&spec(&argv, &envp, streams)).unwrap();
    drop(stderr);
    collect(&spawned, stdout)
}

/// Reads the output of a child to its end, and waits for the child.
fn collect(spawned: &Spawned, (reader, writer): (OwnedFd, OwnedFd)) -> (Option<i32>, String) {
    drop(writer);
    let mut text = String::new();
    File::from(reader).read_to_string(&mut text).unwrap();
    let child = WaitId::PidFd(spawned.pidfd.as_fd());
    let status = rustix::process::waitid(child, WaitIdOptions::EXITED).unwrap();
    (status.unwrap().exit_status(), text)
}

fn spec<'a>(argv: &'a [CString], envp: &'a [CString], streams: [BorrowedFd<'a>; 3]) -> SpawnSpec<'a> {
    let [stdin, stdout, stderr] = streams;
    let cwd: Option<&CStr> = None;
    let session = Session::NewGroup;
    SpawnSpec { argv, envp, cwd, umask: None, rlimits: &[], stdin, stdout, stderr, cgroup: None, session }
}

fn strings(words: &[&str]) -> Vec<CString> {
    words.iter().map(|word| CString::new(*word).unwrap()).collect()
}

fn pipe() -> (OwnedFd, OwnedFd) {
    fds::pipe(0).unwrap()
}

/// Pipes, so that each descriptor has an identity that only one other shares.
fn many_descriptors() -> Vec<OwnedFd> {
    let all: Vec<OwnedFd> = (0..MANY / 2).flat_map(|_| <[OwnedFd; 2]>::from(pipe())).collect();
    for fd in all.iter().step_by(INHERITABLE_EVERY) {
        fds::set_inheritable(fd, true).unwrap();
    }
    all
}

fn link(fd: BorrowedFd<'_>) -> String {
    entry(std::os::fd::AsRawFd::as_raw_fd(&fd)).unwrap().1
}

/// A descriptor's flags and what it refers to; nothing if it is closed.
fn entry(number: i32) -> Option<(u32, String)> {
    // SAFETY: the number is only used to ask for its flags.
    let flags = rustix::io::fcntl_getfd(unsafe { BorrowedFd::borrow_raw(number) }).ok()?;
    let target = std::fs::read_link(format!("/proc/self/fd/{number}")).ok()?;
    Some((flags.bits(), target.display().to_string()))
}

/// The descriptor table, by number.
fn table() -> Vec<Option<(u32, String)>> {
    (0..i32::try_from(MANY).unwrap() + 100).map(entry).collect()
}

/// The numbers whose entries are no longer the same.
fn changed(before: &[Option<(u32, String)>]) -> Vec<usize> {
    let now = table();
    before.iter().zip(&now).enumerate().filter(|(_, (old, new))| old != new).map(|(at, _)| at).collect()
}

/// Makes `close_range` fail in this process and its children, as an old kernel or a container's
/// seccomp filter does.
fn deny_close_range(errno: u32) {
    let call = u32::try_from(libc::SYS_close_range).unwrap();
    let statement = |code: u32, k: u32, jf: u8| {
        let code = u16::try_from(code).unwrap();
        libc::sock_filter { code, jt: 0, jf, k }
    };
    let mut filter = [
        // The number of the call is the first field of the data that the filter sees.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, call, 1),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | errno, 0),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0),
    ];
    let len = u16::try_from(filter.len()).unwrap();
    let program = libc::sock_fprog { len, filter: filter.as_mut_ptr() };
    // SAFETY: the program points to `len` statements that live until the call returns; the kernel
    // copies them.
    let results = unsafe {
        [
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program),
        ]
    };
    assert_eq!(results, [0, 0], "{}", std::io::Error::last_os_error());
}
