//! `belay logs --grep` against what was written and against GNU grep: page by page, and nothing lost or twice.

use std::fmt::Write as _;

use belay_protocol::ErrorKind;
use belay_protocol::methods::OutputSearch;
use belay_protocol::output::{OutputSearchLine, OutputSearchParams};
use belay_testkit::World;

use crate::support::{FOREVER, refused, world};

const MIB: usize = 1024 * 1024;

fn file(world: &World, name: &str, bytes: &[u8]) -> String {
    let path = world.dir().join(name);
    std::fs::write(&path, bytes).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A task that has written this to its standard output, and has ended.
fn wrote(world: &World, bytes: &[u8]) -> String {
    let path = file(world, "wrote", bytes);
    let id = world.run_detached(["cat", &path]);
    world.wait_ended(&id);
    id
}

/// A pipe with a name, at whose other end a task waits to be let go on.
fn gate(world: &World, name: &str) -> String {
    let path = world.dir().join(name).to_str().unwrap().to_owned();
    world.shell(&format!("mkfifo {path}")).ok();
    path
}

fn open(gate: &str) {
    std::fs::write(gate, "go\n").unwrap();
}

#[track_caller]
fn grep(world: &World, id: &str, args: &[&str]) -> String {
    let said = world.belay([&["logs", id, "--grep"], args].concat()).ok();
    assert_eq!(said.stderr, b"", "{said}");
    String::from_utf8(said.stdout).unwrap()
}

/// Compared by hand, because megabytes that differ are no message.
#[track_caller]
fn assert_same(found: &[u8], expected: &[u8], what: &str) {
    if found != expected {
        let place = found.iter().zip(expected).position(|(one, other)| one != other);
        let place = place.unwrap_or(found.len().min(expected.len()));
        let near =
            |bytes: &[u8]| bytes[place.saturating_sub(40)..].iter().take(120).copied().collect::<Vec<_>>();
        panic!(
            "{what}: {} bytes, not {}; at {place} {:?}, not {:?}",
            found.len(),
            expected.len(),
            String::from_utf8_lossy(&near(found)),
            String::from_utf8_lossy(&near(expected)),
        );
    }
}

// proves O2
#[test]
fn many_matches_are_each_shown_once() {
    let world = world();
    let id = world.run_detached(["seq", "1", "2500"]);
    world.wait_ended(&id);
    let all: String = (1..=2500).map(|i| format!("{i}\n")).collect();
    assert_same(grep(&world, &id, &["."]).as_bytes(), all.as_bytes(), "every line");
    assert_same(grep(&world, &id, &[".", "--context", "3"]).as_bytes(), all.as_bytes(), "with context");
    let lines: Vec<OutputSearchLine> = world.belay(["logs", &id, "--json", "--grep", "."]).ok().json_lines();
    assert!(lines.iter().zip(1..).all(|(found, number)| found.number == number && found.line.matched));
    // More bytes than one answer takes.
    let long: String = (0..300).map(|i| format!("{i} {}\n", "z".repeat(20_000))).collect();
    let id = wrote(&world, long.as_bytes());
    assert_same(grep(&world, &id, &["z"]).as_bytes(), long.as_bytes(), "long lines");
    assert_same(
        grep(&world, &id, &["^[0-9]*0 ", "--context", "9"]).as_bytes(),
        long.as_bytes(),
        "around them",
    );
}

// proves O2
#[test]
fn a_line_that_stays_open_hides_nothing_of_the_other_stream() {
    let world = world();
    let [flood, end] = ["flood", "end"].map(|name| gate(&world, name));
    let script =
        r#"printf 'prompt '; read -r _ < "$0"; seq -f 'err %.0f' 40000 >&2; read -r _ < "$1"; echo end"#;
    let id = world.run_detached(["sh", "-c", script, &flood, &end]);
    world.wait_for_output(&id, "the open line", |said| said == b"prompt ");
    open(&flood);
    world.wait_for_output(&id, "all of the other stream", |said| said.ends_with(b"err 40000\n"));
    open(&end);
    world.wait_ended(&id);
    let errors: String = (1..=40_000).map(|i| format!("err {i}\n")).collect();
    assert_same(grep(&world, &id, &["^err"]).as_bytes(), errors.as_bytes(), "stderr");
    // Shown where it ends, with the head that it began with long before.
    let both = format!("{errors}prompt end\n");
    assert_same(grep(&world, &id, &["err|end"]).as_bytes(), both.as_bytes(), "both");
    assert_eq!(grep(&world, &id, &["^prompt", "--context", "1"]), "err 40000\nprompt end\n");
}

// proves O2
#[test]
fn lines_of_one_stream_are_neighbours_whatever_the_other_wrote_between() {
    let world = world();
    let script =
        "i=0; while [ $i -lt 30 ]; do echo out $i; sleep 0.01; echo err >&2; sleep 0.01; i=$((i+1)); done";
    let id = world.run_detached(["sh", "-c", script]);
    world.wait_ended(&id);
    let found = grep(&world, &id, &["out (5|7|20)$", "--stream", "stdout", "--context", "1"]);
    assert_eq!(found, "out 4\nout 5\nout 6\nout 7\nout 8\n--\nout 19\nout 20\nout 21\n");
}

// proves O2, O3
#[test]
fn an_unfinished_line_of_a_running_task_is_found() {
    let world = world();
    let gate = gate(&world, "answer");
    let script =
        r#"printf 'one\nPassword: '; printf 'Passphrase: ' >&2; read -r _ < "$0"; echo given; sleep "$1""#;
    let id = world.run_detached(["sh", "-c", script, &gate, FOREVER]);
    world.wait_for_output(&id, "both questions", |said| said.len() == 26);
    assert_eq!(grep(&world, &id, &["Password", "--stream", "stdout"]), "Password: ");
    assert_eq!(grep(&world, &id, &["word", "--context", "1", "--stream", "stdout"]), "one\nPassword: ");
    let both = grep(&world, &id, &["Pass"]);
    assert!(["Password: \nPassphrase: ", "Passphrase: \nPassword: "].contains(&both.as_str()), "{both:?}");
    let lines: Vec<OutputSearchLine> =
        world.belay(["logs", &id, "--json", "--grep", "one|word"]).ok().json_lines();
    assert_eq!(lines.iter().map(|found| found.open).collect::<Vec<_>>(), [false, true]);
    open(&gate);
    world.wait_for_output(&id, "the answer", |said| said.ends_with(b"given\n"));
    assert_eq!(grep(&world, &id, &["Password"]), "Password: given\n");
}

// proves O2
#[test]
fn a_long_line_has_no_empty_line_behind_it() {
    let world = world();
    let text = [vec![b'x'; MIB], b"\n".to_vec(), vec![b'y'; 2 * MIB], b"\nshort\n".to_vec()].concat();
    let id = wrote(&world, &text);
    let none = world.belay(["logs", &id, "--grep", "^$"]);
    assert_eq!((none.code, none.stdout.as_slice()), (Some(1), &b""[..]), "{none}");
    let expected = [&text[..=MIB], &[vec![b'y'; MIB], b"\n".to_vec()].concat().repeat(2)].concat();
    assert_same(grep(&world, &id, &["^[xy]*$"]).as_bytes(), &expected, "long lines");
    let around = grep(&world, &id, &["short", "--context", "1"]);
    assert_same(around.as_bytes(), format!("{}\nshort\n", "y".repeat(MIB)).as_bytes(), "a long neighbour");
}

// proves O2
#[test]
fn more_context_than_can_be_given_is_refused() {
    let world = world();
    let id = wrote(&world, &(0..200).map(|i| format!("{i}\n")).collect::<String>().into_bytes());
    let most: String = (50..=150).map(|i| format!("{i}\n")).collect();
    assert_eq!(grep(&world, &id, &["^100$", "--context", "50"]), most);
    let said = world.belay(["logs", &id, "--grep", "^100$", "--context", "51"]);
    let text = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.code == Some(2) && text.contains("--context") && text.contains("50"), "{said}");
    let params = OutputSearchParams {
        id,
        pattern: ".".to_owned(),
        after: 0,
        stream: None,
        context: 51,
        max_matches: None,
        cursor: None,
        text: false,
    };
    let error = refused(world.client().call::<OutputSearch>(&params));
    assert_eq!((error.data.kind, error.data.field.as_deref()), (ErrorKind::Invalid, Some("context")));
    assert_eq!(error.message, "at most 50 lines of context can be shown");
}

/// Some MiB of lines of every sort, the same every time.
fn mixed(mut seed: u64, bytes: usize) -> Vec<u8> {
    let mut text = Vec::new();
    let mut number = 0_u32;
    while text.len() < bytes {
        // A step of a linear congruential generator: its high bits are good enough.
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        number += 1;
        let word = ["apple", "pear", "fig", "plum"][(seed >> 60) as usize % 4];
        let mut line = String::new();
        write!(line, "{number} {word}").unwrap();
        match (seed >> 40) % 4_000 {
            0..800 => line.clear(),
            800..1_200 => line.push('\r'),
            1_200..1_600 => line.push_str(" \0 zero \0"),
            1_600..2_000 => line.push_str(" été 漢字"),
            2_000..2_020 => line.push_str(&"long ".repeat(2_000)),
            2_020 => line.push_str(&"x".repeat(MIB - line.len())),
            _ => {}
        }
        text.extend_from_slice(line.as_bytes());
        if (seed >> 40) % 4_000 > 3_800 {
            text.extend_from_slice(b" \xff\xfe\x80");
        }
        text.push(b'\n');
    }
    text.extend_from_slice(b"the last plum");
    text
}

// proves O2, O3
#[test]
fn it_finds_what_grep_finds() {
    let world = world();
    let texts = [mixed(1, 3 * MIB), mixed(2, 2 * MIB)];
    let [out, err] = [file(&world, "out", &texts[0]), file(&world, "err", &texts[1])];
    let id = world.run_detached(["sh", "-c", r#"cat "$0" & cat "$1" >&2; wait"#, &out, &err]);
    world.wait_ended(&id);
    let patterns =
        ["plum", "^$", "apple\r$", "^[0-9]*7 fig", "^12[0-9]* ", "zero", "été", "[0-9]", "x$", "nowhere"];
    for (stream, path) in [("stdout", &out), ("stderr", &err)] {
        for (pattern, context) in
            patterns.iter().flat_map(|pattern| ["0", "1", "3"].map(|context| (pattern, context)))
        {
            let ours =
                world.belay(["logs", &id, "--stream", stream, "--grep", pattern, "--context", context]);
            // `-C 0` puts `--` between matches, which nobody asked for who did not ask for context.
            let around = if context == "0" { String::new() } else { format!("-C {context}") };
            let line = format!("LC_ALL=C grep -a -E {around} -e '{pattern}' {path}");
            let theirs = world.shell(&line);
            assert_eq!(ours.code, theirs.code, "{line}");
            assert_same(&ours.stdout, &theirs.stdout, &line);
        }
    }
}
