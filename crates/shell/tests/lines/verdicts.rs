//! Every line of the table, in every dialect, with the shell of that dialect asked.

use belay_shell::{Reader, Reading, Shell, Verdict};

use crate::real::{BASH, DASH, Real};
use crate::table::{Expect, Row, rows};

fn kind(verdict: &Verdict) -> Expect {
    match verdict {
        Verdict::Plain => Expect::Plain,
        Verdict::Detach { .. } => Expect::Detach,
        Verdict::Held { why } => Expect::Held(*why),
        Verdict::SyntaxError { .. } => Expect::SyntaxError,
    }
}

/// What is wrong with a reading, if anything is.
fn fault(row: &Row, dialect: &str, reading: &Reading, expect: Expect) -> Option<String> {
    let line = row.line();
    let said = kind(&reading.verdict);
    if said != expect {
        return Some(format!("{dialect}: {line:?}: {said:?}, not {expect:?}"));
    }
    if let Verdict::Detach { command } = &reading.verdict
        && command != row.command().as_bytes()
    {
        return Some(format!("{dialect}: {line:?} became {:?}", String::from_utf8_lossy(command)));
    }
    let lone = |range: &std::ops::Range<usize>| line.as_bytes()[range.clone()] == *b"&";
    (!reading.ampersands.iter().all(lone))
        .then(|| format!("{dialect}: {line:?}: no `&` at {:?}", reading.ampersands))
}

fn faults(program: &str, expect: impl Fn(&Row) -> Expect) -> Vec<String> {
    let (reader, shell) = (Reader::default(), Shell::new(program));
    let read = |row: &Row| reader.read(row.line().as_bytes(), &shell, &Real);
    rows().iter().filter_map(|row| fault(row, program, &read(row), expect(row))).collect()
}

// proves A1, A2
#[test]
fn bash_reads_the_table_as_written() {
    let faults = faults(BASH, |row| row.bash);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

// proves A1, A2
#[test]
fn a_posix_shell_reads_the_table_as_written() {
    let faults = faults(DASH, |row| row.posix);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn an_unknown_shell_detaches_what_both_detach_and_nothing_else() {
    let (reader, shell) = (Reader::default(), Shell::new("sh"));
    for row in rows() {
        let verdict = reader.read(row.line().as_bytes(), &shell, &Real).verdict;
        let both = |expect| row.bash == expect && row.posix == expect;
        let line = row.line();
        assert_eq!(kind(&verdict) == Expect::Detach, both(Expect::Detach), "{line:?}: {verdict:?}");
        assert_eq!(kind(&verdict) == Expect::Plain, both(Expect::Plain), "{line:?}: {verdict:?}");
    }
}

#[test]
fn sh_is_read_as_what_it_is() {
    let reader = Reader::default();
    let read = |shell: &Shell, line: &str| kind(&reader.read(line.as_bytes(), shell, &accept).verdict);
    let (bash, dash) = (Shell::new("/bin/sh").resolved("/bin/bash"), Shell::new("/bin/sh").resolved("dash"));
    assert_eq!(read(&bash, "x &> f"), Expect::Plain);
    assert_eq!(read(&dash, "x &> f"), Expect::Held(belay_shell::Why::AmongOthers));
    assert_eq!(read(&Shell::new("/bin/sh"), "x &> f"), Expect::Held(belay_shell::Why::DialectsDisagree));
}

fn accept(_: &Shell, _: &[u8]) -> belay_shell::Answer {
    belay_shell::Answer::Accepts
}

#[test]
fn the_table_is_large_and_without_repeats() {
    let lines: std::collections::BTreeSet<String> = rows().iter().map(Row::line).collect();
    assert_eq!(lines.len(), rows().len());
    assert!(lines.len() >= 300, "{}", lines.len());
}
