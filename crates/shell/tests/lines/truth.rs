//! The verdicts against the truth: the lines are run as written and as changed, in real shells, and bash is asked to
//! print how it understood them.

use std::collections::BTreeMap;
use std::path::Path;

use belay_shell::{Answer, Checker, Reader, Shell, Verdict};

use crate::real::{BASH, DASH, Real, run};
use crate::table::{Expect, rows};

/// Runs `$1 -c $2`, and notes which files there are at the moment when it has exited. Descriptor 9 is held by
/// everything that the line starts, so that the end of the output is the end of it all.
const WATCHED: &str = r#"exec 9>&1; cd work && "$1" -c "$2"; ls -A > ../at_exit"#;

/// Lines that end by themselves and touch nothing but their directory. Each makes `done` as its last act.
const DETACHED: &[&str] = &[
    "sleep 0.02; : > done",
    "echo a > f && sleep 0.02 && : > done &",
    "{ echo out; echo err >&2; sleep 0.02; : > done; } &",
    "( echo a; sleep 0.02; : > done ) &",
    "(sleep 0.02; echo a > done)&# & echo no",
    "{ sleep 0.02; echo a; } > done 2>&1 &",
    "echo 'a & b' | { cat; sleep 0.02; : > done; } &",
    "! { sleep 0.02; : > done; } &",
    "A='x & y' sh -c 'sleep 0.02; echo $A > done' &",
    "for i in 1 2 3; do echo $i; done | { cat; sleep 0.02; : > done; } &\n",
    "if sleep 0.02; then echo yes > done; else echo no; fi &",
    "while [ ! -e done ]; do sleep 0.02; echo \\& > done; done &",
    "case \"a & b\" in *'&'*) sleep 0.02; : > done;; esac &",
    "\n\n# first\n{ sleep 0.02; echo a \\\n b > done; } & # last &\n",
    "{ cat; sleep 0.02; : > done; } <<E &\n$((6 & 3)) & $(echo b)\nE\n",
    "{ cat; sleep 0.02; : > done; } <<'E' &\n$(echo b) & `c`\nE",
    "{ cat; sleep 0.02; : > done; } <<-E &\n\ta & b\n\tE\n",
    "{ cat; cat <&3; sleep 0.02; : > done; } <<A 3<<B &\na\nA\nb &\nB\n",
    "nohup sh -c 'sleep 0.02; : > done' &",
    "exec sh -c 'sleep 0.02; echo a; : > done' &",
    "eval 'sleep 0.02; : > done' &",
    "f() { sleep 0.02; : > done; } && f &",
    "echo ä€𝄞 ${x:-&} && sleep 0.02 && : > done &",
    "{ sleep 0.01 & wait; sleep 0.02; : > done; } &",
    "false || { sleep 0.02; : > done; } &",
    "sh -c 'sleep 0.02; echo a >&2; : > done' 2>&1 &",
    "missing_command_here & # 1",
];

/// The same, for bash alone.
const DETACHED_IN_BASH: &[&str] = &[
    "{ echo out; echo err >&2; sleep 0.02; : > done; } &> both &",
    "echo a |& { cat; sleep 0.02; : > done; } &",
    "{ cat; sleep 0.02; : > done; } <<< 'a & b' &",
    "((1 & 3)) && { sleep 0.02; : > done; } &",
    "[[ a && b ]] && { sleep 0.02; : > done; } &",
    "cat <(echo a) && { sleep 0.02; : > done; } &",
    "a=(1 '&' 2); echo ${a[1]} $'it\\'s' > f",
    "echo $'it\\'s &' && sleep 0.02 && : > done &",
    "for ((i=0; i<2; i++)); do echo $i; done | { cat; sleep 0.02; : > done; } &",
    "case a in a) echo 1;& b) sleep 0.02; : > done;; esac &",
];

/// Everything that a run leaves behind.
#[derive(Debug, PartialEq, Eq)]
struct Left {
    stdout: String,
    stderr: String,
    files: BTreeMap<String, Vec<u8>>,
}

/// Runs a line; says what it left, and which files there were when its shell had exited.
fn watch(program: &str, line: &str) -> (Left, Vec<String>) {
    let home = tempfile::tempdir().expect("a directory for the line");
    let work = home.path().join("work");
    std::fs::create_dir(&work).expect("a directory for the line");
    let output = run(BASH, &["-c", WATCHED, "watch", program, line], home.path());
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let at_exit = std::fs::read_to_string(home.path().join("at_exit")).expect("the list of files");
    let left = Left { stdout: text(&output.stdout), stderr: text(&output.stderr), files: files(&work) };
    (left, at_exit.lines().map(str::to_owned).collect())
}

fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(dir).expect("the directory of the line");
    let read = |entry: std::fs::DirEntry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        (name, std::fs::read(entry.path()).expect("a file that the line made"))
    };
    entries.map(|entry| read(entry.expect("an entry"))).collect()
}

fn read(program: &str, line: &str) -> Verdict {
    Reader::default().read(line.as_bytes(), &Shell::new(program), &Real).verdict
}

fn same_and_awaited(program: &str, line: &str) {
    let verdict = read(program, line);
    let Verdict::Detach { command } = verdict else {
        // Two lines without an `&` of their own keep the test honest.
        assert_eq!(verdict, Verdict::Plain, "{program}: {line:?}");
        return;
    };
    let command = String::from_utf8(command).expect("a line that was text");
    let (written, _) = watch(program, line);
    let (changed, at_exit) = watch(program, &command);
    assert_eq!(changed, written, "{program}: {line:?}");
    let all: Vec<String> = changed.files.keys().cloned().collect();
    assert_eq!(at_exit, all, "{program}: {command:?} was not awaited");
    assert!(all.contains(&"done".to_owned()) || line.starts_with("missing"), "{program}: {line:?}: {all:?}");
}

// proves A1
#[test]
fn a_detached_line_does_the_same_and_is_awaited() {
    for line in DETACHED {
        same_and_awaited(BASH, line);
        same_and_awaited(DASH, line);
    }
    for line in DETACHED_IN_BASH {
        same_and_awaited(BASH, line);
    }
}

/// A line that was not awaited would show: what is written late is not there when the shell has exited.
#[test]
fn the_watch_tells_the_difference() {
    let (left, at_exit) = watch(BASH, "{ sleep 1; : > done; } &");
    assert!(left.files.contains_key("done") && at_exit.is_empty(), "{left:?} {at_exit:?}");
}

/// How bash itself prints a line, with its own spaces and none of its comments.
fn printed(line: &str) -> String {
    let nowhere = tempfile::tempdir().expect("a directory in which nothing can be broken");
    let script = format!("f() {{\n{line}\n}}\ndeclare -f f");
    let output = run(BASH, &["-c", &script], nowhere.path());
    assert!(output.status.success(), "{line:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Whether bash understands the line as the command with one ` &` more. It prints both, and runs neither.
pub(crate) fn bash_agrees(line: &str, command: &[u8]) -> bool {
    one_ampersand_more(&printed(line), &printed(&String::from_utf8_lossy(command)))
}

fn one_ampersand_more(line: &str, command: &str) -> bool {
    let without = |at: usize| format!("{}{}", &line[..at], &line[at + " &".len()..]);
    line.match_indices(" &").any(|(at, _)| full_lines(&without(at)).eq(full_lines(command)))
}

/// After a here-document bash prints odd spaces and empty lines, which do not count.
fn full_lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.trim().is_empty())
}

// proves A2
#[test]
fn bash_prints_the_changed_line_as_the_line_without_its_ampersand() {
    let from_table = rows().into_iter().filter(|row| row.bash == Expect::Detach).map(|row| row.line());
    let lines = DETACHED.iter().chain(DETACHED_IN_BASH).map(|line| (*line).to_owned());
    let mut compared = 0;
    for line in from_table.chain(lines) {
        let Verdict::Detach { command } = read(BASH, &line) else { continue };
        assert!(bash_agrees(&line, &command), "{line:?}: {}", printed(&line));
        compared += 1;
    }
    assert!(compared > 120, "{compared}");
}

/// What is plain or held is never touched, so there is nothing to compare; but a refusal must be one.
#[test]
fn what_is_called_a_syntax_error_does_not_run() {
    for row in rows() {
        for (program, expect) in [(BASH, row.bash), (DASH, row.posix)] {
            if expect == Expect::SyntaxError {
                let answer = Real.ask(&Shell::new(program), row.line().as_bytes());
                assert!(matches!(answer, Answer::Refuses { .. }), "{program}: {:?}", row.line());
            }
        }
    }
}
