//! The guards, one by one: what keeps a line from being changed wrongly.

use std::cell::RefCell;

use belay_shell::{Answer, Limits, Reader, Shell, Verdict, Why};

fn accept(_: &Shell, _: &[u8]) -> Answer {
    Answer::Accepts
}

fn verdict(line: &[u8], program: &str) -> Verdict {
    Reader::default().read(line, &Shell::new(program), &accept).verdict
}

fn held(why: Why) -> Verdict {
    Verdict::Held { why }
}

fn detach(command: &str) -> Verdict {
    Verdict::Detach { command: command.as_bytes().to_vec() }
}

// Guard 1: a space stands where the `&` was.
#[test]
fn a_comment_does_not_become_a_word() {
    assert_eq!(verdict(b"x&# c", "bash"), detach("x # c"));
    assert_eq!(verdict(b"x&#", "dash"), detach("x #"));
}

// Guard 2: nothing asynchronous in sight, nothing parsed and nobody asked.
#[test]
fn lines_without_an_ampersand_of_their_own_cost_nothing() {
    let nobody = |_: &Shell, _: &[u8]| -> Answer { panic!("no shell is to be asked") };
    let reader = Reader::new(Limits { parsed_bytes: 0, ..Limits::default() });
    for line in [
        "ls",
        "make 2>&1 | tail && x",
        "echo 'a & b'",
        "git commit -m \"$(cat <<'E'\n&\nE\n)\"",
        "cat <<E$[ <<F$(",
    ] {
        assert_eq!(
            reader.read(line.as_bytes(), &Shell::new("bash"), &nobody).verdict,
            Verdict::Plain,
            "{line}"
        );
    }
    let long = "x".repeat(1 << 20);
    assert_eq!(reader.read(long.as_bytes(), &Shell::new("bash"), &nobody).verdict, Verdict::Plain);
}

// Guard 2: the caps.
#[test]
fn long_and_deep_lines_are_held() {
    let cap = Limits::default();
    let quoted = |length: usize| format!("x '{}' &", "y".repeat(length));
    assert_eq!(verdict(quoted(cap.line_bytes).as_bytes(), "bash"), held(Why::TooLong));
    assert_eq!(verdict(quoted(cap.parsed_bytes).as_bytes(), "bash"), held(Why::TooLong));
    assert!(matches!(verdict(quoted(cap.parsed_bytes - 100).as_bytes(), "bash"), Verdict::Detach { .. }));
    let groups = |depth: usize| format!("{}x; {}&", "{ ".repeat(depth), "}; ".repeat(depth - 1) + "} ");
    assert_eq!(verdict(groups(cap.openers + 1).as_bytes(), "bash"), held(Why::TooDeep));
    assert!(matches!(verdict(groups(cap.openers).as_bytes(), "bash"), Verdict::Detach { .. }));
    let cases = |depth: usize| format!("{}x{} &", "case a in b) ".repeat(depth), "; esac".repeat(depth));
    assert_eq!(verdict(cases(cap.heavy + 1).as_bytes(), "dash"), held(Why::TooDeep));
    assert!(matches!(verdict(cases(cap.heavy).as_bytes(), "dash"), Verdict::Detach { .. }));
    let quotes = format!("echo {}x{} &", "$(".repeat(99), ")".repeat(99));
    assert_eq!(verdict(quotes.as_bytes(), "bash"), held(Why::TooDeep));
}

// Guard 2: the real shell is asked first, and a line that it refuses never reaches the parser.
#[test]
fn a_refusal_is_the_verdict_in_the_shells_own_words() {
    let refuse = |_: &Shell, _: &[u8]| Answer::Refuses { message: Some("line 1: no".to_owned()) };
    let reading = Reader::default().read(b"x & (", &Shell::new("bash"), &refuse);
    assert_eq!(reading.verdict, Verdict::SyntaxError { message: Some("line 1: no".to_owned()) });
    assert_eq!(reading.ampersands, vec![2..3]);
}

#[test]
fn a_shell_that_cannot_be_asked_detaches_nothing() {
    let unasked = |_: &Shell, _: &[u8]| Answer::Unasked;
    let read = |line: &[u8]| Reader::default().read(line, &Shell::new("bash"), &unasked).verdict;
    assert_eq!(read(b"x &"), held(Why::ShellNotAsked));
    assert_eq!(read(b"echo $(x &)"), held(Why::InSubstitution));
    assert_eq!(read(b"echo '&'"), Verdict::Plain);
}

// Guard 2: what the parser does not finish in time is held, and so is what comes while too much is unfinished.
#[test]
fn a_parser_that_is_late_is_not_waited_for() {
    let reader = Reader::new(Limits { parse_time: std::time::Duration::ZERO, ..Limits::default() });
    let verdict = reader.read(b"x &", &Shell::new("bash"), &accept).verdict;
    assert!([held(Why::TookTooLong), detach("x  ")].contains(&verdict), "{verdict:?}");
}

// Guard 3.
#[test]
fn what_the_parser_misreads_is_left_alone() {
    for after in ["{x}", "(x)", "[x]", "$x", "'x'", "\"x\""] {
        for program in ["bash", "dash", "sh"] {
            assert_eq!(verdict(format!("x $${after} &").as_bytes(), program), held(Why::Unclear), "{after}");
        }
    }
    for posix in ["$[1]", "$'x'", "$\"x\""] {
        assert_eq!(verdict(format!("x {posix} &").as_bytes(), "dash"), held(Why::Unclear), "{posix}");
        assert_eq!(verdict(format!("x {posix} &").as_bytes(), "sh"), held(Why::Unclear), "{posix}");
    }
}

// Guard 4.
#[test]
fn a_carriage_return_is_held() {
    assert_eq!(verdict(b"x &\r\n", "bash"), held(Why::CarriageReturn));
    assert_eq!(verdict(b"x &\r\n", "dash"), held(Why::CarriageReturn));
    assert_eq!(verdict(b"x && y\r\n", "bash"), Verdict::Plain);
}

// Guard 5: what stands inside of words is found at any depth, in every kind of word.
#[test]
fn substitutions_are_looked_into() {
    for kind in ["$(y &)", "`y &`", "<(y &)", ">(y &)"] {
        for place in [
            "x @",
            "A=@ x",
            "x \"@\"",
            "x ${a:-@}",
            "x ${a:-\"@\"}",
            "x $((@))",
            "x $(echo @)",
            "a=(1 @)",
            "a[@]=1",
            "case @ in a) b;; esac",
            "for i in @; do x; done",
            "[[ @ == 1 ]]",
            "x < @",
            "x <<< @",
            "f() { x @; }",
            "x <<E\n@\nE\n",
        ] {
            let is_text = kind.contains("(y")
                && !kind.starts_with('$')
                && (place.contains('"') || place.contains('\n'));
            let is_odd = ["${a:-@}", "$((@))", "a[@]"].iter().any(|odd| place.contains(odd))
                && !kind.starts_with(['$', '`']);
            if is_text || is_odd {
                continue;
            }
            let line = place.replace('@', kind);
            assert_eq!(verdict(line.as_bytes(), "bash"), held(Why::InSubstitution), "{line:?}");
        }
    }
}

// Guard 6.
#[test]
fn what_a_shell_will_read_later_is_text() {
    for line in ["bash -c \"x &\"", "eval 'x &'", "trap \"x &\" EXIT", "alias a='x &'", "ssh h 'x &'"] {
        assert_eq!(verdict(line.as_bytes(), "bash"), Verdict::Plain, "{line}");
        let line = format!("{line} &");
        assert!(matches!(verdict(line.as_bytes(), "bash"), Verdict::Detach { .. }), "{line}");
    }
}

// Guard 7.
#[test]
fn shells_of_another_family_detach_nothing() {
    for program in ["fish", "tcsh", "nu", "pwsh", "python3"] {
        assert_eq!(verdict(b"x &", program), held(Why::ForeignShell), "{program}");
        assert_eq!(verdict(b"x && y", program), Verdict::Plain, "{program}");
    }
}

#[test]
fn an_unknown_shell_is_read_by_both_grammars() {
    assert_eq!(verdict(b"x &", "zsh"), detach("x  "));
    assert_eq!(verdict(b"x &> f", "zsh"), held(Why::DialectsDisagree));
    assert_eq!(verdict(b"coproc x &", "ksh"), held(Why::DialectsDisagree));
    assert_eq!(verdict(b"x & y", "zsh"), held(Why::AmongOthers));
    assert_eq!(verdict(b"x |&", "ksh"), held(Why::DialectsDisagree));
    assert_eq!(verdict(b"x &!", "zsh"), held(Why::AmongOthers));
    assert_eq!(verdict(b"x &|", "zsh"), held(Why::ReaderRefused));
}

// Guard 8.
#[test]
fn bytes_that_are_no_text_are_held() {
    assert_eq!(verdict(b"x \xff &", "bash"), held(Why::NotUtf8));
    assert_eq!(verdict(b"x '\xc3' &", "dash"), held(Why::NotUtf8));
    assert_eq!(verdict(b"x \xff && y", "bash"), Verdict::Plain);
    assert_eq!(verdict(b"x \0 &", "bash"), held(Why::NulByte));
}

// Guard 9: the shell must accept the changed line too.
#[test]
fn the_changed_line_is_put_to_the_shell_as_well() {
    let asked = RefCell::new(Vec::new());
    let answers = |answer: Answer| {
        let asked = &asked;
        move |_: &Shell, line: &[u8]| {
            asked.borrow_mut().push(String::from_utf8_lossy(line).into_owned());
            if line.contains(&b'&') { Answer::Accepts } else { answer.clone() }
        }
    };
    let read = |answer| Reader::default().read(b"x &", &Shell::new("bash"), &answers(answer)).verdict;
    assert_eq!(read(Answer::Accepts), detach("x  "));
    assert_eq!(read(Answer::Refuses { message: None }), held(Why::ShellDisagrees));
    assert_eq!(read(Answer::Unasked), held(Why::ShellDisagrees));
    assert_eq!(*asked.borrow(), ["x &", "x  ", "x &", "x  ", "x &", "x  "]);
}

#[test]
fn every_ampersand_of_its_own_is_told_in_bytes() {
    let at = |line: &str| {
        let ranges = Reader::default().read(line.as_bytes(), &Shell::new("bash"), &accept).ampersands;
        ranges.into_iter().map(|range| range.start).collect::<Vec<_>>()
    };
    assert_eq!(at("é & y && z 2>&1 & '&' # &"), [3, 17]);
    assert_eq!(at("a $(b & c) & d"), [6, 11]);
    assert_eq!(at("((a & b)) & c"), [10]);
    assert_eq!(at("x &> f &"), [7]);
    assert_eq!(at("cat <<E &\n& $(x &)\nE"), [8, 16]);
}
