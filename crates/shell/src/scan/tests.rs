//! What the scanner sees, and what it refuses to have seen.

use super::*;

fn found(line: &str, grammar: Grammar) -> Found {
    scan(line.as_bytes(), grammar).unwrap_or_else(|why| panic!("{line:?}: {why:?}"))
}

fn bash(line: &str) -> Found {
    found(line, Grammar::Bash)
}

fn refused(line: &str, grammar: Grammar) -> Why {
    scan(line.as_bytes(), grammar).expect_err(line)
}

#[test]
fn only_an_ampersand_of_its_own_counts() {
    assert_eq!(bash("a && b & c 2>&1 &> f |& d & e").ampersands, [7, 26]);
    assert_eq!(found("a &> f", Grammar::Posix).ampersands, [2]);
    assert!(bash("'&' \"&\" \\& $'&\\'&' ${x:-&} $((1&2)) ((a&b)) # &").is_quiet());
    assert!(bash("case a in b) c;& d) e;;& esac").is_quiet());
}

#[test]
fn the_last_token_is_known_behind_comments_and_here_documents() {
    assert_eq!(bash("x & # c\n\n").last_ampersand, Some(2));
    assert_eq!(bash("x <<E &\n& y\nE\n# &\n").last_ampersand, Some(6));
    assert_eq!(bash("x & y").last_ampersand, None);
    assert_eq!(bash("(x &)").last_ampersand, None);
    assert_eq!(bash("x & $(y &)").last_ampersand, None);
}

#[test]
fn substitutions_are_a_place_of_their_own() {
    let nested = bash("a $(b & c) `d &` <(e &) \"$(f `g &`)\"");
    assert!(nested.nested && nested.ampersands.is_empty());
    assert_eq!(nested.nested_ampersands, [6, 21]);
    assert!(!bash("a $(b '&' \"&\" # &\n)").nested);
    assert!(bash("cat <<E\n`x &`\nE\n").nested);
    assert!(bash("cat <<'E'\n`x &`\nE\n").is_quiet());
    assert!(bash("$(coproc x)").nested && bash("coproc x").coproc);
    assert!(found("coproc x; $(coproc x)", Grammar::Posix).is_quiet());
}

#[test]
fn double_parentheses_are_arithmetic_if_they_close_like_it() {
    let arithmetic = bash("((a & (b) & c)) & x");
    assert_eq!((arithmetic.arithmetic.first(), arithmetic.ampersands), (Some(&(0..15)), vec![16]));
    let subshells = bash("((a & b) & c)");
    assert_eq!((subshells.arithmetic, subshells.ampersands, subshells.unfit), (vec![], vec![4, 9], true));
    assert!(bash("( (a & b) )").unfit && !bash("(a); (b)").unfit);
    assert_eq!(refused("echo $((a) & (b))", Grammar::Bash), Why::Unclear);
}

#[test]
fn what_does_not_close_is_refused() {
    for line in [
        "'x",
        "\"x",
        "`x",
        "$(x",
        "${x",
        "$((x",
        "$((x)",
        "x \\",
        "cat <<E",
        "cat <<E\nx",
        "<(x",
        "$'x\\'",
        "\"$(x\"",
    ] {
        assert_eq!(refused(line, Grammar::Bash), Why::Unclear, "{line}");
    }
}

#[test]
fn what_is_more_than_the_parser_can_take_is_marked() {
    for line in [
        "x $(cat <<E\nE\n)",
        "x <<E $(y)\nE\n",
        "x <<E ${y}\nE\n",
        "x ${y:-<<E}",
        "x ${y:-(}",
        "x $((1 << 2))",
        "x $(( # ))",
        "a[$x]=1",
        "x 5555555555>&1",
    ] {
        assert!(bash(line).unfit, "{line}");
    }
    assert!(!bash("x 5555555555 2>&1 $(y) ${z:-w} $((1 < 2)) a[1]=2 <<E\n$(x) ${y}\nE\n").unfit);
}

#[test]
fn depth_has_an_end() {
    for (open, close) in [("$(", ")"), ("${x:-", "}"), ("\"$(", ")\""), ("$((", "))"), ("<(", ")")] {
        let nested = |depth: usize| format!("x {}{}", open.repeat(depth), close.repeat(depth));
        assert_eq!(refused(&nested(2_000), Grammar::Bash), Why::TooDeep, "{open}");
        assert!(scan(nested(10).as_bytes(), Grammar::Bash).is_ok(), "{open}");
    }
    assert_eq!(refused(&"((".repeat(2_000), Grammar::Bash), Why::TooDeep);
}
