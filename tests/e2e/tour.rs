//! The README keeps its word: every command that it shows is run, in order and in one shell, and prints what it shows.

use std::collections::VecDeque;
use std::fmt::Write as _;

use belay_testkit::World;
use regex::Regex;

use crate::support::{BELAY, world};

const README: &str = include_str!("../../README.md");

/// A task that has only just been started is not yet what a person sees who types the next command: what to wait for
/// after a command that contains these words.
const SETTLED: &[(&str, &str)] = &[
    (
        "nohup sleep 1000",
        r#"[ "$(belay inspect --json $(belay ps --json | grep -o 'sh-[0-9a-z]*') | grep -o '"ppid"' | wc -l)" = 4 ]"#,
    ),
    (
        "--name counter",
        r#"[ "$(belay inspect --json $ID | grep -o '"ppid"' | wc -l)" = 3 ] && [ "$(belay logs $ID | wc -l)" = 3 ]"#,
    ),
];

/// Between the output of two commands.
const MARK: &str = "=== next ===\n";

/// The blocks of the README that begin with this line.
fn blocks(fence: &str) -> VecDeque<Vec<&'static str>> {
    let mut found = VecDeque::new();
    let mut lines = README.lines();
    while let Some(line) = lines.next() {
        if line == fence {
            found.push_back(lines.by_ref().take_while(|line| *line != "```").collect());
        }
    }
    found
}

/// Commands, each with the lines that it prints.
fn commands(block: &[&'static str]) -> Vec<(&'static str, String)> {
    let mut all: Vec<(&str, String)> = Vec::new();
    for line in block {
        match (line.strip_prefix("$ "), all.last_mut()) {
            (Some(command), _) => all.push((command, String::new())),
            (None, Some((_, shown))) => {
                shown.push_str(line);
                shown.push('\n');
            }
            (None, None) => panic!("a block begins with a command, not with {line:?}"),
        }
    }
    all
}

/// What differs from one run to the next.
fn normal(text: &str) -> String {
    let mut text = text.to_owned();
    for (pattern, word) in [
        (r"sh-[0-9a-z]{16}", "sh-ID"),
        (r"[0-9]+(\.[0-9]+)? ?(ms|s)\b", "TIME"),
        (r"user:[^\x22 ]+", "user:ME"),
        (r"(?m)(running +TIME +)[0-9]+", "${1}PID"),
        (r"[ \t]+", " "),
    ] {
        text = Regex::new(pattern).unwrap().replace_all(&text, word).into_owned();
    }
    text
}

/// One script of all the commands. An id that the README shows stands for the first one that was printed.
fn script(world: &World, commands: &[(&str, String)]) -> String {
    let program = std::path::Path::new(BELAY).parent().unwrap().display();
    let place = world.dir().display();
    let mut script = format!("exec 2>&1; cd {place}; export PATH=\"{program}:$PATH\"\n");
    let shown_id = Regex::new(r"sh-4f0w[0-9a-z]*").unwrap();
    for (command, _) in commands {
        let command = shown_id.replace_all(command, "$(cut -c 1-7 ids | head -n 1)");
        let _ = writeln!(
            script,
            "{{ {command}\n}} >shown; cat shown; printf '%s' '{MARK}'; grep -o 'sh-[0-9a-z]*' shown >>ids"
        );
        for (words, settled) in SETTLED {
            if command.contains(words) {
                let _ = writeln!(script, "for _ in $(seq 1000); do {settled} && break; sleep 0.01; done");
            }
        }
    }
    script
}

#[track_caller]
fn assert_kept(block: &[&'static str]) {
    let world = world();
    let commands = commands(block);
    let file = world.dir().join("tour.sh");
    std::fs::write(&file, script(&world, &commands)).unwrap();
    let ran = world.shell(&format!("exec bash {}", file.display()));
    let printed = String::from_utf8(ran.stdout).unwrap();
    let mut parts = printed.split(MARK);
    for (command, shown) in &commands {
        assert_eq!(
            normal(parts.next().unwrap_or("")),
            normal(shown),
            "what `{command}` prints; all of it:\n{printed}"
        );
    }
    assert_eq!(parts.next(), Some(""), "{printed}");
}

// proves K2, K4, K6, S2, O2, D1
#[test]
fn the_tour_goes_as_it_is_told() {
    let mut tours = blocks("```console tour");
    assert_eq!(tours.len(), 1);
    assert_kept(&tours.pop_front().unwrap());
}

// proves K2, K4
#[test]
fn the_first_example_goes_as_it_is_told() {
    assert_kept(&blocks("```console").pop_front().unwrap());
}
