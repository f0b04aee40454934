//! `belay shell` in the place of a real one: whoever calls it sees what the real one would have shown, and a person sees a
//! task.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use belay_os::signal::Signal;
use belay_protocol::task::{OutcomeKind, TaskInfo, TaskStatus};
use belay_testkit::{LONG, Output, World, finish, look_at, wait_until};

use crate::support::{FOREVER, running, stop_of, world};

/// Belay under the name of a shell, as an agent is given it.
fn link(world: &World, name: &str) -> PathBuf {
    let dir = world.dir().join("bin");
    std::fs::create_dir_all(&dir).unwrap();
    let link = dir.join(name);
    let _ = std::os::unix::fs::symlink(world.program(), &link);
    link
}

fn tasks(world: &World) -> Vec<TaskInfo> {
    world.belay(["ps", "-a", "--json"]).ok().json_lines()
}

/// The same call of a real shell and of ours, in a directory of its own each.
fn both(world: &World, name: &str, change: impl Fn(&mut Command)) -> (Output, Output) {
    let run = |program: PathBuf, dir: &str| {
        let dir = world.dir().join(dir);
        std::fs::create_dir_all(&dir).unwrap();
        let mut command = world.command(program);
        command.current_dir(&dir).stdin(Stdio::null());
        change(&mut command);
        finish(command)
    };
    (run(PathBuf::from(format!("/bin/{name}")), "x"), run(link(world, name), "x"))
}

#[track_caller]
fn same(world: &World, name: &str, args: &[&str]) {
    let (real, ours) = both(world, name, |command| {
        command.args(args);
    });
    // A shell speaks of itself by its path.
    let text = |bytes: &[u8]| {
        String::from_utf8_lossy(bytes).replace(&format!("/usr/bin/{name}"), &format!("/bin/{name}"))
    };
    assert_eq!(ours.code, real.code, "{args:?}: {ours} against {real}");
    assert_eq!(text(&ours.stdout), text(&real.stdout), "{args:?}");
    assert_eq!(text(&ours.stderr), text(&real.stderr), "{args:?}");
}

// proves S6, F3
#[test]
fn it_does_what_the_real_shell_does() {
    let world = world();
    std::fs::write(world.dir().join("script"), "echo $# \"$@\"; exit 6").unwrap();
    let script = world.dir().join("script").to_string_lossy().into_owned();
    let calls: &[&[&str]] = &[
        &["-c", "echo out; echo err >&2; exit 3"],
        &["-c", "pwd; umask; ulimit -n; echo \"$0 $# $*\"", "name", "a b", "c"],
        &["-lc", "echo $-"],
        &["-c", "-l", "echo after"],
        &["--norc", "--noprofile", "-c", "echo plain"],
        &["-e", "-u", "-c", "false; echo no"],
        &["-c", "no-such-command"],
        &["-c", "if"],
        &["-c", "trap 'echo bye' EXIT; exit 200"],
        &["-c", "printf 'no line end'; printf '\\377\\0x' >&2"],
        &["-c", "seq 1 100000; echo last"],
        &[&script, "one", "two words"],
        &["/no/such/script"],
        &["-c", "cat; echo read $?"],
        &["--version"],
        &["-c", "echo $SHLVL; cd /tmp && pwd"],
        &["-Z"],
    ];
    for args in calls {
        same(&world, "bash", args);
    }
    for args in [&["-c", "echo out; exit 3"][..], &["-c", "echo $0"], &["-c", "if"], &[&script, "x"]] {
        same(&world, "dash", args);
    }
}

// proves F3, W6
#[test]
fn standard_input_arrives_whole_and_ends() {
    let world = world();
    let shell = link(&world, "bash");
    let text: Vec<u8> = (0..200_000_u32).flat_map(|i| format!("{i}\n").into_bytes()).collect();
    let file = world.dir().join("input");
    std::fs::write(&file, &text).unwrap();
    let line = format!("cat {0} | {1} -c 'cat; echo end'", file.display(), shell.display());
    let said = world.shell(&line).ok();
    assert_eq!(said.stdout, [text.as_slice(), b"end\n"].concat());
    let said = world.shell(&format!("printf 'echo from %s\\nexit 4\\n' input | {}", shell.display()));
    assert_eq!((said.code, said.stdout.as_slice()), (Some(4), &b"from input\n"[..]));
}

/// Its standard input is the caller's own: what it does not read is there for whoever comes next, and it is what it is.
// proves F3
#[test]
fn standard_input_is_the_callers_own() {
    let world = world();
    let shell = link(&world, "bash");
    let file = world.dir().join("lines");
    std::fs::write(&file, "one\ntwo\nthree\n").unwrap();
    let (ours, lines) = (shell.display(), file.display());
    for (line, expected) in [
        (format!("printf 'one\\ntwo\\n' | {{ {ours} -c 'read x; echo got $x'; cat; }}"), "got one\ntwo\n"),
        (format!("{{ {ours} -c 'read x; echo got $x'; cat; }} < {lines}"), "got one\ntwo\nthree\n"),
        (format!("while read x; do {ours} -c 'echo \"$1\"' sh \"$x\"; done < {lines}"), "one\ntwo\nthree\n"),
        (format!("{ours} -c 'readlink /proc/self/fd/0' < {lines}"), &format!("{lines}\n")),
        (format!("{ours} -c 'readlink /proc/self/fd/0' < /dev/null"), "/dev/null\n"),
        (format!("{ours} -c 'cat; echo end' <&-"), "end\n"),
        (
            format!("exec 5<>{lines}; {ours} -c 'head -c 4 >/dev/null; echo x >&0' <&5; cat {lines}"),
            "one\nx\no\nthree\n",
        ),
    ] {
        let said = world.shell(&line);
        assert_eq!(String::from_utf8_lossy(&said.stdout), expected, "{line}: {said}");
    }
    let refused = world.belay(["send", &tasks(&world)[0].id, "x"]);
    assert_eq!(refused.code, Some(1), "{refused}");
}

// proves F3
#[test]
fn two_streams_in_one_place_keep_their_order() {
    let world = world();
    let shell = link(&world, "bash");
    let script = "for i in $(seq 1 2000); do echo out $i; echo err $i >&2; done";
    let said = world.shell(&format!("{} -c '{script}' 2>&1", shell.display())).ok();
    let expected: Vec<String> =
        (1..=2000).flat_map(|i| [format!("out {i}\n"), format!("err {i}\n")]).collect();
    assert_eq!(String::from_utf8(said.stdout).unwrap(), expected.concat());
}

// proves K1, K6
#[expect(clippy::disallowed_methods, reason = "how a child ended is known to its parent only")]
#[test]
fn signals_come_through_and_ends_by_signal_are_the_same() {
    let world = world();
    let shell = link(&world, "bash");
    for (line, signal) in [("kill -9 $$", 9), ("kill -TERM $$", 15), ("kill -SEGV $$", 11)] {
        let mut command = world.command(&shell);
        let mut child = command.args(["-c", line]).stderr(Stdio::null()).spawn().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(signal), "{line}");
    }
    // One that is sent to us is the command's to answer, and nothing follows it.
    let script = "trap 'echo got USR1' USR1; trap 'echo got INT; exit 7' INT; echo ready; while :; do sleep 0.02; done";
    let mut command = world.command(&shell);
    command.args(["-c", script]);
    let running = belay_testkit::Running::start(command, false);
    running.wait_for_stdout("ready", |said| said == b"ready\n");
    running.signal(Signal::USR1);
    running.wait_for_stdout("its answer", |said| said == b"ready\ngot USR1\n");
    running.signal(Signal::INT);
    let said = running.finish();
    assert_eq!((said.code, said.stdout.as_slice()), (Some(7), &b"ready\ngot USR1\ngot INT\n"[..]), "{said}");
    let task = tasks(&world).into_iter().next().unwrap();
    assert_eq!(task.outcome.unwrap().kind(), OutcomeKind::Exited, "a signal that is passed on is no stop");
}

/// What an agent does to a command that it gives up.
// proves K2, K3, F7
#[test]
fn whoever_gives_the_shell_up_ends_all_of_it() {
    let world = world();
    let shell = link(&world, "bash");
    for signal in [Signal::TERM, Signal::HUP, Signal::KILL] {
        let mut command = world.command(&shell);
        command.args([
            "-c",
            &format!("setsid sleep {FOREVER} & nohup sleep {FOREVER} & echo ready; sleep {FOREVER}"),
        ]);
        let called = belay_testkit::Running::start(command, false);
        called.wait_for_stdout("ready", |said| said == b"ready\n");
        let task = running(&world);
        let tree = wait_until("all three", LONG, || {
            let processes = world.inspect(&task.id).processes.unwrap_or_default();
            let tree: Vec<i32> = processes.iter().map(|process| process.pid).collect();
            if tree.len() >= 3 { Ok(tree) } else { Err(format!("{processes:?}")) }
        });
        called.signal(signal);
        let ended = world.wait_ended(&task.id);
        assert_eq!(ended.status, TaskStatus::Cancelled, "{signal:?}: {ended:?}");
        assert_eq!(ended.outcome.unwrap().survivors(), []);
        for pid in tree {
            assert!(!look_at(pid).is_some_and(|seen| world.everybody().contains(&seen)), "{pid} lives");
        }
        drop(called);
    }
}

/// A caller that is killed takes its ends of the streams with it, and the command may be one that never writes.
// proves K2, F7
#[expect(clippy::disallowed_methods, reason = "nobody else may hold the reading ends")]
#[test]
fn when_nobody_is_left_to_read_all_of_it_ends() {
    let world = world();
    let shell = link(&world, "bash");
    let pipe = || {
        let (reader, writer) = std::io::pipe().unwrap();
        (OwnedFd::from(reader), OwnedFd::from(writer))
    };
    let socket = || {
        let (reader, writer) = UnixStream::pair().unwrap();
        (OwnedFd::from(reader), OwnedFd::from(writer))
    };
    for (of_output, of_errors) in [(pipe(), pipe()), (socket(), socket())] {
        let script = format!(
            "trap 'echo heard >&2' USR1; echo ready; setsid sleep {FOREVER} & while :; do wait; done"
        );
        let mut command = world.command(&shell);
        command.args(["-c", &script]).stdin(Stdio::null()).stdout(of_output.1).stderr(of_errors.1);
        let mut child = command.spawn().unwrap();
        drop(command);
        let read = |from: &OwnedFd, length: usize| {
            let mut text = vec![0; length];
            File::from(from.try_clone().unwrap()).read_exact(&mut text).unwrap();
            String::from_utf8(text).unwrap()
        };
        assert_eq!(read(&of_output.0, 6), "ready\n");
        let task = running(&world);
        // One that is left is somebody.
        drop(of_output.0);
        world.belay(["signal", "USR1", &task.id]).ok();
        assert_eq!(read(&of_errors.0, 6), "heard\n");
        assert_eq!(world.inspect(&task.id).status, TaskStatus::Running);
        drop(of_errors.0);
        let ended = world.wait_ended(&task.id);
        assert_eq!(ended.status, TaskStatus::Cancelled, "{ended:?}");
        assert_eq!(ended.outcome.unwrap().survivors(), []);
        assert_eq!(child.wait().unwrap().code(), Some(141), "as of SIGPIPE");
    }
}

// proves K1, K2
#[test]
fn stopped_from_outside_it_ends_with_the_code_and_not_of_the_signal() {
    let world = world();
    let mut command = world.command(link(&world, "bash"));
    command.args(["-c", &format!("echo ready; sleep {FOREVER}")]);
    let called = belay_testkit::Running::start(command, false);
    called.wait_for_stdout("ready", |said| said == b"ready\n");
    let task = running(&world);
    assert_eq!(world.stop(&stop_of(&task.id)).receipt.unwrap().survivors, []);
    let said = called.finish();
    assert_eq!((said.code, said.stdout.as_slice()), (Some(143), &b"ready\n"[..]), "{said}");
    let told = String::from_utf8(said.stderr).unwrap();
    assert!(told.starts_with(&format!("belay: {} cancelled by ", task.id)), "{told}");
    assert_eq!(told.lines().count(), 1, "{told}");
}

// proves F1, F2, F3
#[test]
fn it_is_detached_from_outside_and_its_caller_is_told_the_id() {
    let world = world();
    let shell = link(&world, "bash");
    let gate = world.dir().join("gate");
    let mut command = world.command(&shell);
    let script = format!("echo before; until [ -e {} ]; do sleep 0.02; done; echo after", gate.display());
    command.args(["-c", &script]);
    let called = belay_testkit::Running::start(command, false);
    called.wait_for_stdout("before", |said| said == b"before\n");
    let task = running(&world);
    world.belay(["detach", &task.id]).ok();
    let said = called.finish();
    assert_eq!((said.code, said.stdout.as_slice()), (Some(0), &b"before\n"[..]), "{said}");
    let told = String::from_utf8(said.stderr).unwrap();
    let id = &task.id;
    assert!(
        told.starts_with("belay: detached by user:") && told.contains(&format!("belay logs {id} ")),
        "{told}"
    );
    assert_eq!(told.lines().count(), 1, "{told}");
    std::fs::write(&gate, "").unwrap();
    assert_eq!(world.wait_ended(id).status, TaskStatus::Completed);
    assert_eq!(world.logs(id), b"before\nafter\n");
}

// proves A3
#[test]
fn what_a_command_leaves_behind_is_held_and_its_code_is_its_own() {
    let world = world();
    let shell = link(&world, "bash");
    let said = world.shell(&format!("{} -c 'sleep {FOREVER} & echo now; exit 5'", shell.display()));
    assert_eq!(
        (said.code, said.stdout.as_slice(), said.stderr.as_slice()),
        (Some(5), &b"now\n"[..], &b""[..])
    );
    let task = running(&world);
    assert_eq!(task.leader.unwrap().exit_code, Some(5));
    let receipt = world.stop(&stop_of(&task.id)).receipt.unwrap();
    assert_eq!(receipt.survivors, []);
}

/// A shell inside of a task's shell belongs to that task, and with no daemon there is still a shell.
// proves S6
#[test]
fn nested_shells_are_one_task_and_a_missing_daemon_is_no_missing_shell() {
    let world = world();
    let shell = link(&world, "bash");
    let nested = format!("{0} -c 'echo one; {0} -c \"echo two; exit 3\"'", shell.display());
    let said = world.shell(&nested);
    assert_eq!((said.code, said.stdout.as_slice()), (Some(3), &b"one\ntwo\n"[..]), "{said}");
    assert_eq!(tasks(&world).len(), 1);
    let said = world
        .shell(&format!("BELAY_HOME=/dev/null/none {} -c 'echo held by nobody; exit 4'", shell.display()));
    assert_eq!((said.code, said.stdout.as_slice()), (Some(4), &b"held by nobody\n"[..]), "{said}");
    assert!(String::from_utf8(said.stderr).unwrap().starts_with("belay: this command is not held: "));
    let gone = world.dir().join("gone");
    let said = world
        .shell(&format!(
            "mkdir {0} && cd {0} && rmdir {0}; {1} -c 'echo here'",
            gone.display(),
            shell.display()
        ))
        .ok();
    assert_eq!(said.stdout, b"here\n", "a directory that is gone is no reason not to run: {said}");
    let said = world.shell(&format!("BELAY_SHELL=/bin/dash {} -c 'echo $0'", shell.display())).ok();
    assert_eq!(said.stdout, b"/bin/dash\n");
    let said = world.shell(&format!("BELAY_SHELL={0} {0} -c true", shell.display()));
    assert_eq!(said.code, Some(2), "it is not its own real shell: {said}");
}

// proves F1
#[test]
fn a_person_types_into_it() {
    let world = world();
    let shell = link(&world, "bash");
    let mut at = world.at_terminal(&format!("exec {} --norc --noprofile -i", shell.display()));
    let shown = |at: &belay_testkit::Running, word: &str| {
        let word = word.as_bytes().to_vec();
        at.wait_for_stdout("the terminal", move |said| said.windows(word.len()).any(|part| part == word));
    };
    shown(&at, "bash-");
    at.write(b"echo $((40+2)); tty; trap 'echo trapped' INT\n");
    shown(&at, "42\r\n/dev/pts/");
    at.write(b"sleep 1000\n");
    wait_until("the sleeper", LONG, || {
        let processes = world.inspect(&running(&world).id).processes.unwrap_or_default();
        let sleeps = processes.iter().any(|process| process.command == "sleep 1000");
        if sleeps { Ok(()) } else { Err(format!("{processes:?}")) }
    });
    at.write(&[3]);
    shown(&at, "trapped");
    at.write(b"exit 9\n");
    let said = at.finish();
    assert_eq!(said.code, Some(9), "{said}");
    let task = tasks(&world).into_iter().next().unwrap();
    assert!(task.spec.pty().is_some());
    assert_eq!(task.outcome.unwrap().exit_code(), Some(9));
}
