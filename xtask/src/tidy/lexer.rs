//! Tells code from comments and literals in Rust source, line by line. It knows no grammar beyond that.

/// One source text taken apart: both have the lines of the original, and only what is theirs in them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Parts {
    /// Code, with the insides of literals left out.
    pub(crate) code: String,
    /// Comments, with their marks.
    pub(crate) comments: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum In {
    Code,
    LineComment,
    BlockComment(u32),
    Text,
    RawText(usize),
}

pub(crate) fn split(source: &str) -> Parts {
    let chars: Vec<char> = source.chars().collect();
    let mut parts = Parts { code: String::new(), comments: String::new() };
    let mut state = In::Code;
    let mut at = 0;
    while at < chars.len() {
        let rest = &chars[at..];
        if rest[0] == '\n' {
            if state == In::LineComment {
                state = In::Code;
            }
            parts.code.push('\n');
            parts.comments.push('\n');
            at += 1;
            continue;
        }
        let (next, length) = advance(state, rest, chars[..at].last().copied());
        for c in rest.iter().take(length).filter(|c| **c != '\n') {
            match (state, next) {
                (In::LineComment | In::BlockComment(_), _) | (_, In::LineComment | In::BlockComment(_)) => {
                    parts.comments.push(*c);
                }
                (In::Code, _) => parts.code.push(*c),
                // The closing quote is code, the inside is nothing.
                (_, In::Code) if *c == '"' => parts.code.push('"'),
                _ => {}
            }
        }
        let skipped = rest.iter().take(length).filter(|c| **c == '\n').count();
        parts.code.extend(std::iter::repeat_n('\n', skipped));
        parts.comments.extend(std::iter::repeat_n('\n', skipped));
        state = next;
        at += length;
    }
    parts
}

/// The state after the next few characters, and how many they are.
fn advance(state: In, rest: &[char], before: Option<char>) -> (In, usize) {
    let starts = |text: &str| text.chars().enumerate().all(|(at, c)| rest.get(at) == Some(&c));
    match state {
        In::Code if starts("//") => (In::LineComment, 2),
        In::Code if starts("/*") => (In::BlockComment(1), 2),
        In::Code if starts("\"") => (In::Text, 1),
        In::Code if starts("r") && !before.is_some_and(|c| c.is_alphanumeric() && c != 'b' && c != 'c') => {
            raw_start(rest).map_or((In::Code, 1), |(hashes, length)| (In::RawText(hashes), length))
        }
        In::Code if starts("'") => (In::Code, char_length(rest)),
        In::BlockComment(depth) if starts("/*") => (In::BlockComment(depth + 1), 2),
        In::BlockComment(1) if starts("*/") => (In::Code, 2),
        In::BlockComment(depth) if starts("*/") => (In::BlockComment(depth - 1), 2),
        In::Text if starts("\\") => (In::Text, 2.min(rest.len())),
        In::Text if starts("\"") => (In::Code, 1),
        In::RawText(hashes)
            if starts("\"") && rest[1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes =>
        {
            (In::Code, 1 + hashes)
        }
        In::Code | In::LineComment | In::BlockComment(_) | In::Text | In::RawText(_) => (state, 1),
    }
}

/// `r"` or `r#"`: how many hashes, and how long the beginning is.
fn raw_start(rest: &[char]) -> Option<(usize, usize)> {
    let hashes = rest[1..].iter().take_while(|c| **c == '#').count();
    (rest.get(1 + hashes) == Some(&'"')).then_some((hashes, 2 + hashes))
}

/// The length of a character literal, or 1 for the mark of a lifetime.
fn char_length(rest: &[char]) -> usize {
    if rest.get(1) == Some(&'\\') {
        return rest.iter().skip(3).position(|c| *c == '\'').map_or(1, |found| found + 4);
    }
    if rest.get(2) == Some(&'\'') { 3 } else { 1 }
}

/// The code without what is only compiled for tests: items after `#[cfg(test)]`, blanked line by line.
pub(crate) fn without_tests(code: &str) -> String {
    let mut kept = String::new();
    let mut lines = code.lines();
    while let Some(line) = lines.next() {
        if !line.trim_start().starts_with("#[cfg(test)]") {
            kept.push_str(line);
            kept.push('\n');
            continue;
        }
        kept.push('\n');
        let mut depth = 0_usize;
        let mut opened = false;
        for line in lines.by_ref() {
            kept.push('\n');
            for c in line.chars() {
                match c {
                    '{' => (depth, opened) = (depth + 1, true),
                    '}' => depth = depth.saturating_sub(1),
                    _ => {}
                }
            }
            if depth == 0 && (opened || line.trim_end().ends_with(';')) {
                break;
            }
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn comments_and_literals_are_no_code() {
        let parts =
            split("let a = \"unsafe // no\"; // unsafe\nlet b = 'x'; let c: &'static str = r#\"todo!\"#;\n");
        assert_eq!(parts.code.lines().next(), Some("let a = \"\"; "));
        assert_eq!(parts.comments.lines().next(), Some("// unsafe"));
        assert!(!parts.code.contains("todo") && parts.code.contains("&'static str"));
    }

    #[test]
    fn quotes_and_braces_as_characters_confuse_nobody() {
        let parts = split("match c { '\"' => 1, '\\'' => 2, '\\u{7f}' => 3 } // end");
        assert!(parts.code.ends_with("=> 3 } "), "{}", parts.code);
        assert_eq!(parts.comments, "// end");
    }

    #[test]
    fn what_is_for_tests_is_left_out_and_the_lines_stay() {
        let code = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() { x.unwrap() }\n}\nfn c() {}\n#[cfg(test)]\nmod more;\nfn d() {}\n";
        assert_eq!(without_tests(code), "fn a() {}\n\n\n\n\nfn c() {}\n\n\nfn d() {}\n");
    }

    proptest! {
        #[test]
        fn no_line_is_lost(source in "[a-z\"'/*\\\\#r\n{} ]{0,120}") {
            let parts = split(&source);
            let lines = source.matches('\n').count();
            prop_assert_eq!(parts.code.matches('\n').count(), lines);
            prop_assert_eq!(parts.comments.matches('\n').count(), lines);
        }
    }
}
