//! Shell lines through the product, run for real under bash and sh: what is told of each, what is held, and that nothing
//! about what it prints and ends with differs from the same line typed without Belay.

use std::collections::VecDeque;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::{Mutex, PoisonError};

use belay_protocol::Bytes;
use belay_protocol::methods::{ShellRead, TaskStart};
use belay_protocol::shell::{LineVerdict, ShellReadParams};
use belay_protocol::task::{
    AnswerWhen, DetachedBy, Outcome, ShellCommand, TaskInfo, TaskStartParams, TaskStatus,
};
use belay_testkit::{Output, World, finish};

use crate::support::{FOREVER, refused, world};

/// What is to become of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// Nothing is told, and nothing is left when the shell has exited.
    Plain,
    /// Nothing can be told by reading it; what it leaves behind is held.
    PlainLeft,
    /// It becomes a task of its own, which ends with this code.
    Detach(i32),
    /// It runs as written.
    Held,
    /// It runs as written, and leaves somebody behind.
    Left,
    /// The shell refuses it.
    Syntax,
    /// Not for this shell: what it would do there is left to chance.
    Skip,
}

use Told::{Detach, Held, Left, Plain, PlainLeft, Skip, Syntax};

/// A line, what bash makes of it, and what a POSIX shell makes of it.
type Row = (&'static [u8], Told, Told);

const ROWS: &[Row] = &[
    // Nothing asynchronous: operators, quotes, comments, here-documents, arithmetic, patterns.
    (b"echo a", Plain, Plain),
    (b"echo a && echo b", Plain, Plain),
    (b"false || echo b; echo c", Plain, Plain),
    (b"echo a 2>&1 1>&2", Plain, Plain),
    (b"echo 'a & b'", Plain, Plain),
    (b"echo \"a & b\"", Plain, Plain),
    (b"echo a \\& b", Plain, Plain),
    (b"echo a # & b", Plain, Plain),
    (b"cat <<E\na & b\nE", Plain, Plain),
    (b"cat <<'E'\n$(x &)\nE\n", Plain, Plain),
    (b"cat <<-E\n\ta & b\n\tE\n", Plain, Plain),
    (b"echo $((6 & 3))", Plain, Plain),
    (b"case 'a&b' in 'a&b') echo yes;; esac", Plain, Plain),
    (b"f() { echo '&'; }; f", Plain, Plain),
    (b"echo a \\\n  b", Plain, Plain),
    (b"echo a\r\n", Plain, Plain),
    (b"echo \xff\xfe", Plain, Plain),
    (b"wait", Plain, Plain),
    (b"((x = 6 & 3)); echo $x", Plain, Skip),
    (b"echo a &> f; cat f", Plain, Held),
    (b"echo a |& cat", Plain, Syntax),
    (b"cat <<< 'a & b'", Plain, Syntax),
    (b"case a in a) echo 1;& b) echo 2;; esac", Plain, Syntax),
    (b"cat <(echo a)", Plain, Syntax),
    // Ends of their own: codes, signals, traps, `exec`, `set -e`.
    (b"exit 7", Plain, Plain),
    (b"sh -c 'echo a; exit 3'", Plain, Plain),
    (b"exec echo a", Plain, Plain),
    (b"trap 'echo bye' EXIT; echo hi", Plain, Plain),
    (b"trap 'echo bye; exit 9' EXIT; echo hi; false", Plain, Plain),
    (b"set -e; false; echo no", Plain, Plain),
    (b"kill -9 $$", Plain, Plain),
    (b"no-such-command-here", Plain, Plain),
    // One asynchronous command and nothing else.
    (b"echo a &", Detach(0), Detach(0)),
    (b"echo a&", Detach(0), Detach(0)),
    (b"echo a & \t ", Detach(0), Detach(0)),
    (b"\n echo a &\n\n", Detach(0), Detach(0)),
    (b"echo a & # comment", Detach(0), Detach(0)),
    (b"echo a&# comment", Detach(0), Detach(0)),
    (b"exit 3 &", Detach(3), Detach(3)),
    (b"false &", Detach(1), Detach(1)),
    (b"echo a && exit 4 &", Detach(4), Detach(4)),
    (b"false || exit 5 &", Detach(5), Detach(5)),
    (b"echo a | cat &", Detach(0), Detach(0)),
    (b"{ echo a; echo b; } &", Detach(0), Detach(0)),
    (b"( echo a; exit 6 ) &", Detach(6), Detach(6)),
    (b"cat <<E &\na & b\nE\n", Detach(0), Detach(0)),
    (b"if true; then echo a; fi &", Detach(0), Detach(0)),
    (b"for i in 1 2; do echo $i; done &", Detach(0), Detach(0)),
    (b"case a in a) echo b;; esac &", Detach(0), Detach(0)),
    (b"! false &", Detach(0), Detach(0)),
    (b"echo a 2>&1 &", Detach(0), Detach(0)),
    (b"echo a >&2 &", Detach(0), Detach(0)),
    (b"A='x & y' sh -c 'echo $A' &", Detach(0), Detach(0)),
    (b"nohup echo a &", Detach(0), Detach(0)),
    (b"setsid echo a &", Detach(0), Detach(0)),
    (b"exec echo a &", Detach(0), Detach(0)),
    (b"echo a \\\n b &", Detach(0), Detach(0)),
    ("echo 'é € 𝄞' &".as_bytes(), Detach(0), Detach(0)),
    (b"no-such-command-here &", Detach(127), Detach(127)),
    (b"trap 'echo bye' EXIT; echo hi & wait", Held, Held),
    (b"cat &", Detach(0), Detach(0)),
    (b"{ set -e; false; echo no; } &", Detach(1), Detach(1)),
    (b"echo a &> f &", Detach(0), Held),
    (b"echo a |& cat &", Detach(0), Syntax),
    (b"cat <<< 'a & b' &", Detach(0), Syntax),
    (b"[[ a == a ]] && echo yes &", Detach(0), Detach(127)),
    // Something asynchronous among others, or inside of something.
    (b"echo a & wait", Held, Held),
    (b"echo a & wait $!; echo b", Held, Held),
    (b"(echo a &); sleep 0.3; echo b", Held, Held),
    (b"{ echo a & }; wait", Held, Held),
    (b"if true; then echo a & fi; wait", Held, Held),
    (b"for i in 1; do echo $i & done; wait", Held, Held),
    (b"while :; do echo a & break; done; wait", Held, Held),
    (b"f() { echo a & wait; }; f", Held, Held),
    (b"case a in a) echo a & wait;; esac", Held, Held),
    (b"x=$(echo a & wait); echo $x", Held, Held),
    (b"echo `echo a & wait`", Held, Held),
    (b"cat <(echo a & wait)", Held, Syntax),
    (b"coproc { echo a; }; cat <&${COPROC[0]}; wait", Held, Skip),
    (b"set -e; (exit 3) & wait $!; echo no", Held, Held),
    (b"exec sleep 0 & wait", Held, Held),
    (b"exit 2 & wait $!", Held, Held),
    (b"echo a &\r\n", Held, Held),
    (b"echo \xff\xfe &", Held, Held),
    // Somebody is left behind, and is held.
    (b"(sleep 1; echo late) & echo now", Left, Left),
    (b"sleep 1 & exit 5", Left, Left),
    (b"sleep 1 & false", Left, Left),
    (b"(sleep 1 &)", Left, Left),
    (b"{ sleep 1 & }", Left, Left),
    (b"sleep 1 & sleep 1 &", Left, Left),
    (b"nohup sleep 1 >/dev/null 2>&1 & echo now", Left, Left),
    (b"setsid sleep 1 & echo now", Left, Left),
    (b"sleep 1 & disown; echo now", Left, Left),
    (b"trap 'echo bye' EXIT; sleep 1 & echo hi", Left, Left),
    (b"sh -c 'sleep 1 &'; echo now", PlainLeft, PlainLeft),
    (b"eval 'sleep 1 &'; echo now", PlainLeft, PlainLeft),
    (b"trap 'sleep 1 & echo bye' EXIT; echo hi", PlainLeft, PlainLeft),
    // What the shell refuses, it refuses itself.
    (b"if", Syntax, Syntax),
    (b"echo a &&& echo b", Syntax, Syntax),
    (b"(echo a &", Syntax, Syntax),
    (b"echo a & ;", Syntax, Syntax),
    (b"& echo a", Syntax, Syntax),
    (b"echo 'never closed &", Syntax, Syntax),
    (b"case a in a) echo a &", Syntax, Syntax),
    (b"done &", Syntax, Syntax),
];

fn start(world: &World, line: &[u8], shell: &str, dir: &std::path::Path) -> TaskStartParams {
    TaskStartParams {
        spec: ShellCommand::Line { line: Bytes(line.to_vec()), shell: Some(shell.into()) }.into(),
        cwd: Bytes(dir.as_os_str().as_bytes().to_vec()),
        detached: false,
        answer: AnswerWhen::Ended,
        ..world.start_params(&[])
    }
}

/// The same line with no Belay around it: everything it and its children print, and its end.
fn bare(world: &World, line: &[u8], shell: &str, dir: &std::path::Path) -> Output {
    let mut command = world.command(shell);
    command.arg("-c").arg(std::ffi::OsStr::from_bytes(line)).current_dir(dir);
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap());
    finish(command)
}

fn end_of(task: &TaskInfo) -> Option<i32> {
    match task.outcome.as_ref().unwrap() {
        Outcome::Exited { exit_code, .. } => Some(*exit_code),
        Outcome::Signaled { .. } => None,
        other => panic!("it did not end by itself: {other:?}"),
    }
}

/// What is wrong with what became of a line.
fn faults(world: &World, line: &[u8], shell: &str, told: Told) -> Vec<String> {
    let dir = |name: &str| {
        let place = std::thread::current().id();
        let dir = world.dir().join(format!("{name}-{place:?}"));
        std::fs::create_dir_all(&dir).unwrap();
        dir
    };
    let mut wrong = Vec::new();
    let mut expect = |what: &str, right: bool, seen: String| {
        if !right {
            wrong.push(format!("{shell}: {:?}: {what}: {seen}", String::from_utf8_lossy(line)));
        }
    };
    let reference = bare(world, line, shell, &dir("bare"));
    let params = start(world, line, shell, &dir("held"));
    let read = world.client().call::<ShellRead>(&ShellReadParams {
        line: Bytes(line.to_vec()),
        shell: Some(shell.into()),
        cwd: None,
        env: params.env.clone(),
    });
    let verdict = read.unwrap().verdict;
    let answer = world.client().call::<TaskStart>(&params).unwrap();
    let last = world.wait_ended(&answer.id);
    let expected = match told {
        Plain | PlainLeft | Skip => LineVerdict::Plain,
        Detach(_) => LineVerdict::Detach,
        Held | Left => LineVerdict::Held,
        Syntax => LineVerdict::SyntaxError,
    };
    expect("explained", verdict == expected, format!("{verdict:?}"));
    let told_verdict = answer.spec.line().map(|line| line.verdict);
    // A refused line with nothing asynchronous in it is not read before it runs.
    let as_told = told_verdict == Some(expected).filter(|verdict| *verdict != LineVerdict::Plain);
    expect("told", as_told || (told == Syntax && told_verdict.is_none()), format!("{told_verdict:?}"));
    expect("told at the end", last.spec == answer.spec, format!("{:?}", last.spec));
    let left = answer.leader.as_ref().is_some_and(|leader| leader.exit_code.is_some());
    match told {
        Left | PlainLeft => {
            expect("left behind", left && answer.status == TaskStatus::Running, format!("{answer:?}"));
            let by = &answer.detached_by;
            expect("detached by", *by == Some(DetachedBy::Leader), format!("{by:?}"));
        }
        Plain | Syntax => expect("ended", answer.status.is_ended(), format!("{answer:?}")),
        Detach(_) => expect("detached", answer.detached, format!("{answer:?}")),
        Held | Skip => {}
    }
    match told {
        Detach(code) => {
            expect("code", end_of(&last) == Some(code), format!("{last:?}"));
            expect("bare code", reference.code == Some(0), format!("{reference}"));
        }
        _ => expect("code", end_of(&last) == reference.code, format!("{last:?} against {reference}")),
    }
    let stream = |name: &str| world.belay(["logs", "--raw", "--stream", name, &answer.id]).ok().stdout;
    let (stdout, stderr) = (stream("stdout"), stream("stderr"));
    expect("stdout", stdout == reference.stdout, format!("{stdout:?} against {:?}", reference.stdout));
    expect("stderr", stderr == reference.stderr, format!("{stderr:?} against {:?}", reference.stderr));
    wrong
}

// proves A1, A2, A3, A4, A5
#[test]
fn every_line_of_the_table_does_what_it_would_and_is_told() {
    let world = world();
    let sh = std::fs::canonicalize("/bin/sh").unwrap();
    assert!(sh.ends_with("dash"), "these tests know dash as sh, not {}", sh.display());
    let both = |(line, bash, posix): &Row| [(*line, "bash", *bash), (*line, "sh", *posix)];
    let rows: VecDeque<_> = ROWS.iter().flat_map(both).filter(|(_, _, told)| *told != Skip).collect();
    assert!(ROWS.len() >= 100 && rows.len() >= 200, "{} {}", ROWS.len(), rows.len());
    let rows = Mutex::new(rows);
    let next = || rows.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let work = || {
        let mut wrong = Vec::new();
        while let Some((line, shell, told)) = next() {
            wrong.extend(faults(&world, line, shell, told));
        }
        wrong
    };
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

// proves A1, A5
#[test]
fn a_line_that_backgrounds_itself_gives_the_id_and_says_why() {
    let world = world();
    let said =
        world.belay(["run", "--timeout", "100ms", "--stdin", "-c", &format!("sleep {FOREVER} &")]).ok();
    let id = said.line();
    let stderr = String::from_utf8(said.stderr).unwrap();
    assert_eq!(
        stderr,
        format!(
            "belay: {id} runs on: its line put it in the background\n\
             belay: `&` is not needed: the command becomes a detached task of its own, listed, readable and stoppable.\n"
        )
    );
    let task = world.inspect(&id);
    assert_eq!(
        (task.status, task.detached, task.command.as_str()),
        (TaskStatus::Running, true, "sleep 1000")
    );
    // The limit was for whoever waited; and what runs behind an `&` reads nothing.
    assert_eq!(task.clocks.timeout, None);
    let refused = world.belay(["send", &id, "x"]);
    assert_eq!(refused.code, Some(1), "{refused}");
    // The same whether or not background was asked for, and a token means the same task in either.
    let token = |args: &[&str]| {
        let words = [&["run", "--token", "t1"], args, &["-c", "sleep 1000 &"]].concat();
        world.belay(words).ok().line()
    };
    assert_eq!(token(&[]), token(&[]));
    let asked: TaskInfo =
        world.belay(["run", "-d", "--json", "-c", &format!("sleep {FOREVER} &")]).ok().json();
    assert_eq!((asked.spec, asked.command), (task.spec, task.command));
}

// proves A5
#[test]
fn a_line_is_explained_and_not_run() {
    let world = world();
    let told = |line: &str, more: &[&str]| {
        let words = [&["run", "--explain", "--json", "-c", line], more].concat();
        world.belay(words).ok().json::<serde_json::Value>()
    };
    let dir = world.dir().join("made");
    let line = format!("touch {} &", dir.display());
    let detach = told(&line, &[]);
    assert_eq!(detach["verdict"], "detach");
    assert_eq!(detach["command"], line.replace('&', " "));
    let at = line.len() - 1;
    assert_eq!(detach["ampersands"], serde_json::json!([[at, at + 1]]));
    assert_eq!(told("a & b", &[])["verdict"], "held");
    assert_eq!(told("a && b", &[])["verdict"], "plain");
    assert_eq!(told("if", &[])["verdict"], "syntax_error");
    assert_eq!(told("x &> f", &["--shell", "bash"])["verdict"], "plain");
    assert_eq!(told("x &> f", &["--shell", "dash"])["verdict"], "held");
    assert_eq!(told("x &", &["--shell", "fish"])["verdict"], "held");
    assert!(!dir.exists(), "a line that is explained is not run");
    assert_eq!(world.belay(["ps", "-a", "--json"]).ok().stdout, b"", "and no task is made of it");
    let usage = world.belay(["run", "--explain", "--", "true"]);
    assert_eq!(usage.code, Some(2), "{usage}");
}

/// What is asked is what will run: in its directory, with its environment, and no script that is only called like a shell.
// proves A2, A5
#[test]
fn the_shell_that_is_asked_is_the_one_that_runs() {
    let world = world();
    let bin = world.dir().join("bin");
    std::fs::create_dir_all(&bin).unwrap();
    std::os::unix::fs::symlink("/bin/dash", bin.join("bash")).unwrap();
    let explained = |words: &[&str]| {
        let words = [&["run", "--explain", "--json"], words].concat();
        let said = world.belay_with(words, |command| {
            command.current_dir(world.dir());
        });
        said.ok().json::<serde_json::Value>()["verdict"].as_str().unwrap().to_owned()
    };
    // To dash it is a command in the background and a redirection.
    assert_eq!(explained(&["--shell", "bin/bash", "-c", "echo a &> f"]), "held");
    assert_eq!(
        explained(&["--shell", "./bash", "--cwd", bin.to_str().unwrap(), "-c", "echo a &> f"]),
        "held"
    );
    assert_eq!(explained(&["--env", "PATH=/nowhere", "--shell", "bash", "-c", "sleep 1 &"]), "held");
    let noise = world.belay_with(["run", "--explain", "--json", "-c", "sleep 1 &"], |command| {
        command.env("LD_PRELOAD", "/no/such/library.so");
    });
    assert_eq!(noise.ok().json::<serde_json::Value>()["verdict"], "detach");
    // One that forgets what it was asked for would run the line.
    let script = world.dir().join("wrapped").join("bash");
    std::fs::create_dir_all(script.parent().unwrap()).unwrap();
    std::fs::write(&script, "#!/bin/sh\nshift\nexec /bin/bash -c \"$2\" \"$@\"\n").unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let made = world.dir().join("made");
    let line = format!("touch {} &", made.display());
    assert_eq!(explained(&["--shell", script.to_str().unwrap(), "-c", &line]), "held");
    assert!(!made.exists(), "it was run");
}

/// A program that is no shell we know is never asked to read a line: it might run it.
// proves A2
#[test]
fn a_shell_that_is_not_known_is_not_asked() {
    let world = world();
    let shell = world.dir().join("own-shell");
    let log = world.dir().join("log");
    let script = format!("#!/bin/sh\necho called \"$@\" >> {}\nexec sh \"$@\"\n", log.display());
    std::fs::write(&shell, script).unwrap();
    std::fs::set_permissions(&shell, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let shell = shell.to_str().unwrap();
    let said = world.belay(["run", "--json", "--shell", shell, "-c", "echo a & wait"]).ok();
    let task: TaskInfo = said.json();
    assert_eq!(task.spec.line().map(|line| line.verdict), Some(LineVerdict::Held));
    assert_eq!(std::fs::read_to_string(&log).unwrap(), "called -c echo a & wait\n");
}

// proves A2, X2
#[test]
fn lines_that_are_too_much_for_a_reader_run_as_written() {
    let world = world();
    let deep = format!("{}echo deep &{}", "{ ".repeat(300), " }".repeat(300));
    let long = format!("echo {} &", "x".repeat(100_000));
    for (line, shown) in [(deep.as_str(), "deep".to_owned()), (long.as_str(), "x".repeat(100_000))] {
        let said = world.belay(["run", "--json", "-c", line]).ok();
        let task: TaskInfo = said.json();
        assert_eq!(task.spec.line().map(|line| line.verdict), Some(LineVerdict::Held), "{}", &line[..40]);
        world.wait_ended(&task.id);
        assert_eq!(world.stdout_of(&task.id), format!("{shown}\n").into_bytes());
    }
    let mut client = world.client();
    let zero = ShellReadParams { line: Bytes(b"a\0b".to_vec()), shell: None, cwd: None, env: Vec::new() };
    assert_eq!(refused(client.call::<ShellRead>(&zero)).data.field.as_deref(), Some("command"));
    let nameless = ShellReadParams { line: "a &".into(), shell: Some("".into()), cwd: None, env: Vec::new() };
    assert_eq!(refused(client.call::<ShellRead>(&nameless)).data.field.as_deref(), Some("shell"));
}
