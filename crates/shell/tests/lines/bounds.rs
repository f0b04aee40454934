//! Texts that are known to be hard on parsers. No shell protects the reader here: it is told that all are accepted.

use std::time::{Duration, Instant};

use belay_shell::{Answer, Limits, Reader, Shell, Verdict, Why};

/// Long, so that a slow machine makes no difference; what is hard on the parser would take longer still.
pub(crate) const PATIENCE: Duration = Duration::from_secs(8);

pub(crate) fn patient() -> Reader {
    Reader::new(Limits { parse_time: PATIENCE, ..Limits::default() })
}

pub(crate) fn accept(_: &Shell, _: &[u8]) -> Answer {
    Answer::Accepts
}

/// Reads with a shell that accepts everything, and fails if the parser was late or broke.
pub(crate) fn read_calmly(reader: &Reader, line: &[u8], program: &str) -> Verdict {
    let begun = Instant::now();
    let verdict = reader.read(line, &Shell::new(program), &accept).verdict;
    let took = begun.elapsed();
    let calm = !matches!(verdict, Verdict::Held { why: Why::TookTooLong | Why::Busy | Why::ReaderFailed });
    assert!(calm && took < PATIENCE, "{verdict:?} after {took:?}: {:?}", String::from_utf8_lossy(line));
    verdict
}

/// Pieces that nest, each with what closes it.
const NESTS: &[(&str, &str)] = &[
    ("(", ")"),
    ("( ", " )"),
    ("((", "))"),
    ("{ ", "; }"),
    ("if a; then ", "; fi"),
    ("if ", "; then a; fi"),
    ("while ", "; do a; done"),
    ("for i in a; do ", "; done"),
    ("for ((;;)); do ", "; done"),
    ("case a in b) ", " esac"),
    ("case a in b) ", ";; esac"),
    ("case a in (b) ", ";; esac"),
    ("f() { ", "; }"),
    ("function f { ", "; }"),
    ("f() (", ")"),
    ("[[ ( ", " ) ]]"),
    ("[[ a =~ (", ") ]]"),
    ("! ", ""),
    ("[[ ! ", " ]]"),
    ("coproc ", ""),
    ("coproc N { ", "; }"),
    ("time ", ""),
    ("echo $(", ")"),
    ("echo $((", "))"),
    ("echo ${x:-", "}"),
    ("echo \"$(", ")\""),
    ("echo `", "`"),
    ("cat <(", ")"),
    ("a=(", ")"),
    ("a[", "]=1"),
    ("a[$((", "))]=1"),
    ("$[", "]"),
    ("<<E$[", "]"),
    ("<<E$(", ")"),
    ("x <<E\n", "\nE\n"),
    ("x && ", ""),
    ("x | ", ""),
    ("elif ", ""),
    ("A=1 ", ""),
    ("\"", "\""),
    ("'", "'"),
    ("\\\n", ""),
];

#[test]
fn nesting_of_any_depth_closed_or_not_is_read_in_time() {
    let reader = patient();
    for (open, close) in NESTS {
        for depth in [2, 5, 24, 48, 400] {
            for line in [
                format!("{}x{} &", open.repeat(depth), close.repeat(depth)),
                format!("{}x &{}", open.repeat(depth), close.repeat(depth)),
                format!("{}x &", open.repeat(depth)),
                format!("x & {}", open.repeat(depth)),
                format!("{}x &{}", open.repeat(depth), close.repeat(depth / 2)),
            ] {
                read_calmly(&reader, line.as_bytes(), "bash");
                read_calmly(&reader, line.as_bytes(), "dash");
            }
        }
    }
}

#[test]
fn two_kinds_of_nesting_in_turn_are_read_in_time() {
    let reader = patient();
    for (open, close) in NESTS {
        for (other, end) in NESTS {
            for depth in [4, 20] {
                let both = format!("{open}{other}").repeat(depth);
                let ends = format!("{end}{close}").repeat(depth);
                read_calmly(&reader, format!("{both}x & {ends}").as_bytes(), "bash");
                read_calmly(&reader, format!("{both}x &").as_bytes(), "sh");
            }
        }
    }
}

#[test]
fn long_texts_are_read_in_time() {
    let reader = patient();
    let pieces = [
        "x ", "x & ", "x && ", "'&' ", "$(x) ", "`x` ", "${x} ", "(x); ", "((", "#", "\\\n", "é", "<<E ",
        "a[", "\n", ";", "\t\\",
    ];
    for piece in pieces {
        for bytes in [15 << 10, 120 << 10] {
            let line = format!("x {} &", piece.repeat(bytes / piece.len()));
            read_calmly(&reader, line.as_bytes(), "bash");
            read_calmly(&reader, line.as_bytes(), "dash");
        }
    }
}
