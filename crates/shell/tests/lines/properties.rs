//! The reader against chance: broken lines, lines of a known structure, quoted lines.
//!
//! The seed is fixed, so that every run is the same run; `BELAY_SHELL_SEED` and `BELAY_SHELL_CASES` ask for others.

use std::cell::Cell;

use belay_shell::{Reader, Shell, Verdict, Why};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};

use crate::bounds::{accept, patient, read_calmly};
use crate::real::{BASH, Real};
use crate::table::rows;
use crate::truth::bash_agrees;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn config(cases: u32) -> Config {
    let seed = number("BELAY_SHELL_SEED").unwrap_or(7);
    let cases = number("BELAY_SHELL_CASES").and_then(|cases| u32::try_from(cases).ok()).unwrap_or(cases);
    println!("seed {seed}, {cases} cases");
    Config { cases, rng_seed: RngSeed::Fixed(seed), failure_persistence: None, ..Config::default() }
}

/// Pieces that mean something to a shell, and so do more harm than any byte.
const PIECES: &[&str] = &[
    "&",
    "&&",
    "|&",
    "&>",
    ">&",
    ";",
    ";;",
    ";&",
    "\n",
    "\\\n",
    "\\",
    "'",
    "\"",
    "`",
    "$",
    "$$",
    "$(",
    "$((",
    "))",
    "${",
    "}",
    "{ ",
    "(",
    ")",
    "((",
    "[[",
    "]]",
    "$[",
    "]",
    "a[",
    "<<E",
    "<<-E",
    "<<'E'",
    "\nE\n",
    "<<<",
    "<(",
    ">(",
    "#",
    " # ",
    "\r",
    "é",
    "\u{1d11e}",
    "!",
    "!(",
    "@(",
    "coproc ",
    "case ",
    " in ",
    "esac",
    "if ",
    "then ",
    "fi",
    "for ",
    "do ",
    "done",
    "function ",
    "f() ",
    "time ",
    "=(",
    "=",
    "$'",
    "$\"",
    "\0",
    "\t",
    "=~ ",
];

/// A change at a place given as a fraction of the line.
#[derive(Clone, Debug)]
enum Change {
    Remove { at: u16, count: usize },
    Insert { at: u16, piece: &'static str },
    Byte { at: u16, byte: u8 },
    Double { at: u16, count: usize },
    Join { row: usize },
}

fn changes() -> impl Strategy<Value = Change> {
    prop_oneof![
        2 => (any::<u16>(), 1..4usize).prop_map(|(at, count)| Change::Remove { at, count }),
        6 => (any::<u16>(), prop::sample::select(PIECES)).prop_map(|(at, piece)| Change::Insert { at, piece }),
        1 => (any::<u16>(), any::<u8>()).prop_map(|(at, byte)| Change::Byte { at, byte }),
        1 => (any::<u16>(), 1..40usize).prop_map(|(at, count)| Change::Double { at, count }),
        1 => (0..rows().len()).prop_map(|row| Change::Join { row }),
    ]
}

impl Change {
    fn apply(&self, line: &mut Vec<u8>) {
        let place = |at: u16| usize::from(at) * line.len() / (usize::from(u16::MAX) + 1);
        match *self {
            Self::Remove { at, count } => {
                let (from, to) = (place(at), (place(at) + count).min(line.len()));
                line.drain(from..to);
            }
            Self::Insert { at, piece } => {
                let at = place(at);
                line.splice(at..at, piece.bytes());
            }
            Self::Byte { at, byte } => {
                let at = place(at);
                line.splice(at..at, [byte]);
            }
            Self::Double { at, count } => {
                let (from, to) = (place(at), (place(at) + count).min(line.len()));
                line.extend_from_within(from..to);
            }
            Self::Join { row } => line.extend_from_slice(rows()[row].line().as_bytes()),
        }
    }
}

fn broken_lines() -> impl Strategy<Value = Vec<u8>> {
    (0..rows().len(), prop::collection::vec(changes(), 1..8)).prop_map(|(row, changes)| {
        let mut line = rows()[row].line().into_bytes();
        for change in &changes {
            change.apply(&mut line);
        }
        line
    })
}

#[test]
fn broken_lines_are_read_in_time_and_changed_in_one_byte_at_most() {
    let reader = patient();
    let programs = prop::sample::select(vec!["bash", "dash", "sh", "fish"]);
    proptest!(config(4_000), |(line in broken_lines(), program in programs)| {
        if let Verdict::Detach { command } = read_calmly(&reader, &line, program) {
            prop_assert_eq!(command.len(), line.len());
            let changed: Vec<_> = line.iter().zip(&command).filter(|(before, after)| before != after).collect();
            prop_assert_eq!(changed, vec![(&b'&', &b' ')]);
            prop_assert_ne!(program, "fish");
        }
    });
}

/// The scanner and the parser may both be wrong about a line in the same way; bash is not.
#[test]
fn bash_agrees_on_broken_lines_that_are_detached() {
    let (reader, bash) = (Reader::default(), Shell::new(BASH));
    let detached = Cell::new(0_u32);
    proptest!(config(300), |(line in broken_lines())| {
        let Ok(text) = String::from_utf8(line) else { return Ok(()) };
        if let Verdict::Detach { command } = reader.read(text.as_bytes(), &bash, &Real).verdict {
            detached.set(detached.get() + 1);
            prop_assert!(bash_agrees(&text, &command), "{:?}", text);
        }
    });
    println!("{} of them were detached", detached.get());
    assert!(detached.get() > 0);
}

/// What a piece of a line has in it.
#[derive(Clone, Debug)]
struct Piece {
    text: String,
    /// Something asynchronous inside, but not in a substitution.
    inside: bool,
    /// Something asynchronous in a substitution.
    substituted: bool,
}

fn words() -> impl Strategy<Value = Piece> {
    let plain = prop::sample::select(vec![
        "x",
        "'a & b'",
        "\"a & b\"",
        "a\\&b",
        "${x:-&}",
        "$((1 & 2))",
        "$(a; b)",
        "`a`",
        "\"$(a '&')\"",
        "é",
        "2>&1",
        ">f",
        "<&3",
        "$x",
        "\"it's &\"",
        "-n",
        "{}",
        "a=b",
    ]);
    let substituted = prop::sample::select(vec!["$(a & b)", "`a &`", "\"$(a &)\"", "${x:-$(a &)}"]);
    prop_oneof![
        20 => plain.prop_map(|text| Piece { text: text.to_owned(), inside: false, substituted: false }),
        1 => substituted.prop_map(|text| Piece { text: text.to_owned(), inside: false, substituted: true }),
    ]
}

fn join(pieces: Vec<Piece>, between: &str) -> Piece {
    Piece {
        text: pieces.iter().map(|piece| piece.text.as_str()).collect::<Vec<_>>().join(between),
        inside: pieces.iter().any(|piece| piece.inside),
        substituted: pieces.iter().any(|piece| piece.substituted),
    }
}

fn simple_commands() -> impl Strategy<Value = Piece> {
    prop::collection::vec(words(), 0..4).prop_map(|words| {
        let piece = join(words, " ");
        Piece { text: format!("cmd {}", piece.text), ..piece }
    })
}

fn ended(piece: &Piece, asynchronous: bool) -> String {
    format!("{}{}", piece.text, if asynchronous { " &" } else { ";" })
}

/// Commands in groups and loops, joined by operators; `true` among the separators is an `&`.
fn commands() -> impl Strategy<Value = Piece> {
    simple_commands().prop_recursive(3, 12, 3, |inner| {
        let list = prop::collection::vec((inner.clone(), any::<bool>()), 1..3);
        let shapes = prop::sample::select(vec![
            ("{ ", " }"),
            ("(", ")"),
            ("if true; then ", " fi"),
            ("for i in 1; do ", " done"),
            ("while false; do ", " done"),
        ]);
        let group = (list, shapes).prop_map(|(list, (open, close))| {
            let asynchronous = list.iter().any(|(_, asynchronous)| *asynchronous);
            let body: Vec<String> = list.iter().map(|(piece, is)| ended(piece, *is)).collect();
            let mut piece = join(list.into_iter().map(|(piece, _)| piece).collect(), "");
            piece.text = format!("{open}{}{close}", body.join(" "));
            piece.inside |= asynchronous;
            piece
        });
        let operators = prop::sample::select(vec![" && ", " || ", " | ", " &&\n"]);
        let joined = (prop::collection::vec(inner, 2..4), operators)
            .prop_map(|(pieces, operator)| join(pieces, operator));
        prop_oneof![group, joined]
    })
}

fn expected(items: &[(Piece, bool)]) -> Expected {
    let asynchronous = items.iter().any(|(_, is)| *is);
    if items.iter().any(|(piece, _)| piece.substituted) {
        Expected::Held(Some(Why::InSubstitution))
    } else if asynchronous && items.len() == 1 {
        Expected::Detach
    } else if asynchronous {
        Expected::Held(Some(Why::AmongOthers))
    } else if items.iter().any(|(piece, _)| piece.inside) {
        Expected::Held(None)
    } else {
        Expected::Plain
    }
}

#[derive(Debug)]
enum Expected {
    Plain,
    Detach,
    Held(Option<Why>),
}

#[test]
fn lines_of_a_known_structure_get_the_verdict_that_belongs_to_it() {
    let reader = patient();
    let items = prop::collection::vec((commands(), any::<bool>()), 1..3);
    let ends = prop::sample::select(vec!["", " ", "\n", " # & x", "\n\n# &\n"]);
    let programs = prop::sample::select(vec!["bash", "dash", "sh"]);
    proptest!(config(1_500), |(items in items, end in ends, program in programs)| {
        let last = items.len() - 1;
        let text: Vec<String> = items.iter().enumerate().map(|(at, (piece, asynchronous))| {
            let separator = if *asynchronous { " & " } else if at < last { "; " } else { "" };
            format!("{}{separator}", piece.text)
        }).collect();
        let line = text.concat() + end;
        let verdict = read_calmly(&reader, line.as_bytes(), program);
        let right = match (expected(&items), &verdict) {
            (Expected::Plain, Verdict::Plain) | (Expected::Detach, Verdict::Detach { .. }) => true,
            (Expected::Held(Some(why)), Verdict::Held { why: said }) => why == *said,
            (Expected::Held(None), Verdict::Held { why }) => matches!(why, Why::InGroup | Why::InCompound),
            _ => false,
        };
        // Two parentheses in a row are held as unclear, which is always allowed.
        let allowed = matches!(verdict, Verdict::Held { why: Why::Unclear }) && line.replace(' ', "").contains("((");
        prop_assert!(right || allowed, "{:?}: {:?}, not {:?}", line, verdict, expected(&items));
    });
}

#[test]
fn a_quoted_line_is_plain_text() {
    let reader = Reader::default();
    proptest!(config(1_000), |(line in broken_lines())| {
        let Ok(line) = String::from_utf8(line) else { return Ok(()) };
        let quoted = format!("x '{}'", line.replace('\0', "").replace('\'', "'\\''"));
        prop_assert_eq!(reader.read(quoted.as_bytes(), &Shell::new("bash"), &accept).verdict, Verdict::Plain);
        let detached = reader.read(format!("{quoted} &").as_bytes(), &Shell::new("bash"), &accept).verdict;
        let expected = Verdict::Detach { command: format!("{quoted}  ").into_bytes() };
        let held = Verdict::Held { why: Why::CarriageReturn };
        prop_assert_eq!(detached, if quoted.contains('\r') { held } else { expected });
    });
}
