//! Starting processes: that they are what was ordered, and that failures say where and why.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;

use belay_os::process::{info, own_identity};
use belay_os::spawn::{Rlimit, SpawnError, Stage};
use belay_os::{Signal, fds};

use crate::support::{Order, example, finish, not_run, output, start};

const PATH: &str = "PATH=/usr/bin:/bin";

#[test]
fn output_arguments_environment_and_code_come_through() {
    let script = "printf '%s|' \"$0\" \"$@\" \"$KEY\" \"${OTHER-unset}\"; exit 7";
    let argv = ["sh", "-c", script, "zero", "a b", ""];
    assert_eq!(
        output(start(&argv, &[PATH, "KEY=value"], &Order::default())),
        ("zero|a b||value|unset|".to_owned(), 7)
    );
}

#[test]
fn directory_mask_and_limits_are_those_ordered() {
    let dir = tempfile::tempdir().unwrap();
    let cwd = std::ffi::CString::new(dir.path().to_str().unwrap()).unwrap();
    let limits = [
        Rlimit { resource: libc::RLIMIT_NOFILE, soft: 77, hard: 88 },
        Rlimit { resource: libc::RLIMIT_CORE, soft: 0, hard: 0 },
    ];
    let script = "pwd; umask; ulimit -Sn; ulimit -Hn; ulimit -c";
    let order = Order { cwd: Some(&cwd), umask: Some(0o027), rlimits: &limits, ..Order::default() };
    let (text, code) = output(start(&["sh", "-c", script], &[PATH], &order));
    assert_eq!(code, 0);
    assert_eq!(text, format!("{}\n0027\n77\n88\n0\n", dir.path().display()));
}

#[test]
fn signals_are_as_new() {
    // The test harness, like every Rust program, ignores SIGPIPE; and this thread blocks something besides.
    let _blocked = belay_os::SignalFd::new(&[Signal::USR2]).unwrap();
    let (text, _) = output(start(&["cat", "/proc/self/status"], &[PATH], &Order::default()));
    for name in ["SigBlk", "SigIgn", "SigCgt", "SigPnd", "ShdPnd"] {
        assert!(text.contains(&format!("{name}:\t0000000000000000\n")), "{name} in {text}");
    }
}

#[test]
fn groups_and_sessions_are_those_ordered() {
    let own = info(own_identity().pid).unwrap();
    for new_session in [false, true] {
        let order = Order { new_session, ..Order::default() };
        let (spawned, _output) = start(&["sleep", "30"], &[PATH], &order).unwrap();
        let child = info(spawned.identity.pid).unwrap();
        assert_eq!(child.identity, spawned.identity);
        assert_eq!((child.ppid, child.pgid), (own.identity.pid, child.identity.pid));
        let sid = if new_session { child.identity.pid } else { own.sid };
        assert_eq!(child.sid, sid);
        belay_os::signal::send(spawned.pidfd.as_fd(), Signal::KILL).unwrap();
        assert_eq!(finish(spawned.pidfd.as_fd()).terminating_signal(), Some(libc::SIGKILL));
    }
}

#[test]
fn a_terminal_is_that_of_its_session() {
    let terminal = belay_os::pty::open(12, 34).unwrap();
    let order = Order { stdin: Some(terminal.slave.as_fd()), terminal: true, ..Order::default() };
    let script =
        "echo typed </dev/tty && stty size && ps -o sid=,tpgid= -p $$ | tr -s ' ' '\\n' | grep -c \"^$$\\$\"";
    let (text, code) = output(start(&["sh", "-c", script], &[PATH], &order));
    assert_eq!(
        (text.as_str(), code),
        ("typed\n12 34\n2\n", 0),
        "it leads the session and is in the foreground"
    );
}

#[test]
fn what_is_no_terminal_cannot_be_one() {
    let error = start(&["true"], &[PATH], &Order { terminal: true, ..Order::default() }).err().unwrap();
    assert_eq!((error.stage, error.errno), (Stage::Session, libc::ENOTTY));
}

#[test]
fn no_other_descriptor_is_passed_on() {
    let ours = (fds::pipe(0).unwrap(), fds::pipe(0).unwrap());
    // Whoever started the tests may have left descriptors open for everybody.
    let inherited = |fd: &i32| {
        // SAFETY: the number is only used to ask for its flags.
        let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(*fd) };
        rustix::io::fcntl_getfd(fd).is_ok_and(|flags| !flags.contains(rustix::io::FdFlags::CLOEXEC))
    };
    let (text, _) = output(start(&["ls", "/proc/self/fd"], &[PATH], &Order::default()));
    let passed: Vec<i32> = text.lines().map(|line| line.parse().unwrap()).collect();
    assert!([0, 1, 2].iter().all(|fd| passed.contains(fd)), "{text}");
    // One is the directory that `ls` reads.
    let strays: Vec<&i32> = passed.iter().filter(|fd| **fd > 2 && !inherited(fd)).collect();
    assert!(strays.len() <= 1, "{strays:?}");
    drop(ours);
}

#[test]
fn streams_may_be_crossed() {
    let target = |fd: i32| fs::read_link(format!("/proc/self/fd/{fd}")).unwrap().display().to_string();
    let script = "readlink /proc/self/fd/0; readlink /proc/self/fd/2";
    let order = Order {
        stdin: Some(rustix::stdio::stderr()),
        stderr: Some(rustix::stdio::stdin()),
        ..Order::default()
    };
    let (text, _) = output(start(&["sh", "-c", script], &[PATH], &order));
    assert_eq!(text, format!("{}\n{}\n", target(2), target(0)));
}

fn error(argv: &[&str], order: &Order<'_>) -> SpawnError {
    start(argv, &[PATH], order).map(|(spawned, _)| spawned.identity).unwrap_err()
}

#[test]
fn failures_say_where_and_why() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str, mode: u32| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let plain = file("plain", "", 0o644);
    let orphan = file("orphan", "#!/no/such/interpreter\n", 0o755);
    let below_file = format!("{plain}/x");

    let told =
        |error: SpawnError| (error.stage, error.errno, error.path.map(|path| path.display().to_string()));
    let program = |errno, path: &str| (Stage::Program, errno, Some(path.to_owned()));
    assert_eq!(told(error(&[], &Order::default())), (Stage::Program, libc::ENOENT, None));
    assert_eq!(told(error(&[""], &Order::default())), (Stage::Program, libc::ENOENT, None));
    assert_eq!(told(error(&["no-such"], &Order::default())), program(libc::ENOENT, "no-such"));
    assert_eq!(told(error(&["/no/such"], &Order::default())), program(libc::ENOENT, "/no/such"));
    assert_eq!(told(error(&[&below_file], &Order::default())), program(libc::ENOTDIR, &below_file));
    assert_eq!(told(error(&[&plain], &Order::default())), program(libc::EACCES, &plain));
    assert_eq!(told(error(&["/tmp"], &Order::default())), program(libc::EACCES, "/tmp"));
    assert_eq!(
        told(error(&[&orphan], &Order::default())),
        (Stage::Interpreter, libc::ENOENT, Some(orphan.clone()))
    );
    assert_eq!(
        told(error(&["true"], &Order { cwd: Some(c"/no/dir"), ..Order::default() })),
        (Stage::Cwd, libc::ENOENT, Some("/no/dir".to_owned()))
    );
    let senseless = &[Rlimit { resource: libc::RLIMIT_NOFILE, soft: 9, hard: 8 }];
    assert_eq!(
        told(error(&["true"], &Order { rlimits: senseless, ..Order::default() })),
        (Stage::Limits, libc::EINVAL, None)
    );
    let text = error(&[&orphan], &Order::default()).to_string();
    assert_eq!(
        text,
        format!(
            "the interpreter of the program is missing ({orphan}): No such file or directory (os error 2)"
        )
    );
}

/// Whoever holds tasks may have given up more than whoever asks: then it is as much as there is.
#[test]
fn a_limit_beyond_ones_own_is_ones_own() {
    let own = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum.unwrap();
    let beyond = &[Rlimit { resource: libc::RLIMIT_NOFILE, soft: u64::MAX, hard: u64::MAX }];
    let order = Order { rlimits: beyond, ..Order::default() };
    let (text, _) = output(start(&["sh", "-c", "ulimit -Sn; ulimit -Hn"], &[PATH], &order));
    assert_eq!(text, format!("{own}\n{own}\n"));
}

#[test]
fn a_script_without_a_first_line_is_run_by_the_shell() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("script");
    fs::write(&path, "echo \"$1\"; exit 3\n").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let path_variable = format!("PATH=/no/such:{}:/bin", dir.path().display());
    assert_eq!(
        output(start(&["script", "it runs"], &[&path_variable], &Order::default())),
        ("it runs\n".to_owned(), 3)
    );
    // A program in the directory where the process starts, found by a relative path.
    let cwd = std::ffi::CString::new(dir.path().to_str().unwrap()).unwrap();
    let started = start(&["./script", "here"], &[PATH], &Order { cwd: Some(&cwd), ..Order::default() });
    assert_eq!(output(started), ("here\n".to_owned(), 3));
}

#[test]
fn a_directory_that_is_no_cgroup_is_told_as_such() {
    let plain = fs::File::open("/").unwrap();
    let order = Order { cgroup: Some(plain.as_fd()), ..Order::default() };
    assert_eq!(error(&["true"], &order).stage, Stage::Cgroup);
}

#[test]
fn many_threads_may_start_at_once() {
    let threads: Vec<_> = (0..8)
        .map(|_| {
            std::thread::spawn(|| {
                for _ in 0..20 {
                    assert_eq!(
                        output(start(&["echo", "hello"], &[PATH], &Order::default())),
                        ("hello\n".to_owned(), 0)
                    );
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

/// What the `spawner` example prints: a process with 5,000 descriptors, every 500th of them and
/// number 3 inheritable.
fn spawner(words: &[&str]) -> Vec<String> {
    let output = std::process::Command::new(example("spawner")).args(words).output().unwrap();
    let (text, errors) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{words:?}: {text}{errors}");
    text.lines().map(str::to_owned).collect()
}

const ONLY_STREAMS: &str = "STDIN STDOUT STDERR 0 1 2";

#[test]
fn reserving_spawner_passes_only_streams() {
    let seen = spawner(&["inherit", "--reserve"]);
    assert_eq!(seen, ["active true", ONLY_STREAMS, ONLY_STREAMS, "active true", "changed []"]);
}

#[test]
fn plain_spawner_passes_inheritable_descriptors() {
    let all = "STDIN STDOUT STDERR 0 1 1004 1504 2 2004 2504 3 3004 3504 4 4004 4504 504";
    assert_eq!(spawner(&["inherit"]), ["active false", all, all, "active false", "changed []"]);
}

#[test]
fn refused_unshare_falls_back_permanently() {
    let all = "STDIN STDOUT STDERR 0 1 1008 1508 2 2008 2508 3 3008 3508 4008 4508 508 8";
    for errno in [libc::ENOSYS, libc::EINVAL, libc::EPERM] {
        let seen = spawner(&["inherit", "--reserve", "--deny", &errno.to_string()]);
        assert_eq!(seen, ["active true", all, all, "active false", "changed [4, 5, 6, 7]"], "{errno}");
    }
    let seen = spawner(&["inherit", "--reserve", "--deny", &libc::ENOMEM.to_string()]);
    assert_eq!(seen, ["active true", all, all, "active true", "changed []"], "a lack of memory passes");
}

#[test]
fn reserving_spawner_reports_same_errors() {
    let seen = spawner(&["errors", "--reserve"]);
    let errors = [
        "Program 2 no-such",
        "Program 2 /no/such",
        "Program 13 /",
        "Cwd 2 /no/dir",
        "Session 25 ",
        "Limits 22 ",
        "Cgroup 9 ",
        "unreaped false",
        "changed []",
    ];
    assert_eq!(seen, errors);
    assert_eq!(spawner(&["errors"]), errors);
    let refused = spawner(&["errors", "--reserve", "--deny", &libc::ENOSYS.to_string()]);
    assert_eq!(refused[..8], errors[..8]);
}

#[test]
fn reserving_spawner_starts_child_in_cgroup() {
    for words in [&["cgroup", "--reserve"][..], &["cgroup", "--reserve", "--deny", "38"]] {
        let seen = spawner(words);
        if seen == ["no usable cgroup"] {
            return not_run("a child in a cgroup", "no cgroup is usable");
        }
        assert_eq!(seen, ["inside true"], "{words:?}");
    }
}

#[test]
fn concurrent_spawns_leave_descriptor_table_unchanged() {
    let right = ["wrong children 0", "wrong pipes 0", "enough pipes true", "changed []"];
    assert_eq!(spawner(&["churn", "--reserve"]), right);
}
