//! The parser, behind one door: a line in, its commands and the places of its `&` out. It decides nothing.
//!
//! brush-parser can overflow the stack, take exponential time or never end on some texts, so nothing comes here that
//! the scanner did not take apart and the real shell did not accept, and only [`crate::bounded`] calls it.

use brush_parser::ast::Program;
use brush_parser::{ParserOptions, Token, parse_tokens, uncached_tokenize_str};

use crate::shell::Grammar;

#[derive(Debug)]
pub(crate) struct Parsed {
    pub(crate) program: Program,
    /// Where the parser saw `&` as an operator of its own, in bytes.
    pub(crate) ampersands: Vec<usize>,
}

/// `None` if the parser refuses the line.
pub(crate) fn parse(line: &str, grammar: Grammar) -> Option<Parsed> {
    let options = options(grammar);
    let tokens = uncached_tokenize_str(line, &options.tokenizer_options()).ok()?;
    let program = parse_tokens(&tokens, &options).ok()?;
    Some(Parsed { program, ampersands: ampersands(line, &tokens)? })
}

fn options(grammar: Grammar) -> ParserOptions {
    let posix = grammar == Grammar::Posix;
    ParserOptions {
        // Off, as it is in a bash that runs a line with `-c`.
        enable_extended_globbing: false,
        posix_mode: posix,
        sh_mode: posix,
        ..ParserOptions::default()
    }
}

/// The parser counts characters. It knows where a token ends; where one begins it gets wrong after comments and
/// line continuations.
fn ampersands(line: &str, tokens: &[Token]) -> Option<Vec<usize>> {
    let starts: Vec<usize> = line.char_indices().map(|(at, _)| at).collect();
    tokens
        .iter()
        .filter_map(|token| match token {
            Token::Operator(text, place) if text == "&" => Some(place.end.index),
            Token::Operator(..) | Token::Word(..) => None,
        })
        .map(|end| {
            let at = *starts.get(end.checked_sub(1)?)?;
            line[at..].starts_with('&').then_some(at)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_bytes_whatever_comes_before() {
        let at = |line: &str| parse(line, Grammar::Bash).map(|parsed| parsed.ampersands);
        assert_eq!(at("x &"), Some(vec![2]));
        assert_eq!(at("echo äöü€𝄞 & y"), Some(vec!["echo äöü€𝄞 ".len()]));
        assert_eq!(at("x \\\n  &"), Some(vec![6]));
        assert_eq!(at("# c\nx & # d\ny &"), Some(vec![6, 14]));
        assert_eq!(at("cat <<E &\n&\nE\n"), Some(vec![8]));
        assert_eq!(at("a && b 2>&1 | c; '&'"), Some(vec![]));
        assert_eq!(at("a &&& b"), None);
    }
}
