//! Behaviours and their proofs: every number in docs/behaviours.md is named by a test (`proves S1, S2`), or is
//! marked `(later)`, in its own text or in the heading above it.

use std::collections::{BTreeMap, BTreeSet};

use super::Findings;
use super::source::Source;
use crate::run::{root, shown};

const LIST: &str = "docs/behaviours.md";
const LATER: &str = "(later)";
const PROVES: &str = "proves ";
const TEST: &str = "#[test]";

/// The letters that numbers begin with.
const LETTERS: &str = "SAFTKOWERDLGX";

pub(crate) fn check(sources: &[Source], findings: &mut Findings) {
    let Ok(text) = std::fs::read_to_string(root().join(LIST)) else {
        findings.say(format!(
            "{LIST} is missing: write down what must hold, a number each, and mark what is not built {LATER}"
        ));
        return;
    };
    let listed = listed(&text);
    if listed.is_empty() {
        findings.say(format!("{LIST} lists no behaviour: a line begins with its number, such as `S1`"));
    }
    let mut proved = BTreeSet::new();
    // This tool speaks of numbers without proving any.
    for source in sources.iter().filter(|source| !shown(&source.path).starts_with("xtask/")) {
        for (at, line) in source.parts.comments.lines().enumerate() {
            let numbers = named(line);
            if !numbers.is_empty() && !is_above_a_test(&source.parts.code, at) {
                findings.at(&source.path, at + 1, "only a test proves something: say it right above one");
                continue;
            }
            for number in numbers {
                if !listed.contains_key(&number) {
                    findings.at(
                        &source.path,
                        at + 1,
                        &format!("{number} is not in {LIST}: correct the number or list it"),
                    );
                }
                proved.insert(number);
            }
        }
    }
    let open: Vec<&str> = listed
        .iter()
        .filter(|(number, later)| !**later && !proved.contains(*number))
        .map(|(number, _)| number.as_str())
        .collect();
    if !open.is_empty() {
        findings.say(format!(
            "{LIST}: no test names {}: write one that `{PROVES}` it, or mark it {LATER}",
            open.join(", ")
        ));
    }
    let later = listed.values().filter(|later| **later).count();
    println!("{} behaviours, {} named by tests, {later} for later", listed.len(), proved.len());
}

/// Whether the first code behind this line makes what follows a test.
fn is_above_a_test(code: &str, line: usize) -> bool {
    let mut behind = code.lines().skip(line + 1).map(str::trim).filter(|code| !code.is_empty());
    behind.find(|code| *code == TEST || !code.starts_with("#[")) == Some(TEST)
}

/// The numbers in the list, and whether each is for later.
fn listed(text: &str) -> BTreeMap<String, bool> {
    let mut listed = BTreeMap::new();
    let mut section_later = false;
    let mut last: Option<String> = None;
    for line in text.lines() {
        if line.starts_with('#') {
            section_later = line.to_lowercase().contains("later");
            last = None;
            continue;
        }
        let start = line.trim_start_matches(['-', '*', '|', ' ']);
        if let Some(number) = leading_number(start) {
            listed.insert(number.clone(), section_later);
            last = Some(number);
        }
        if line.trim().is_empty() {
            last = None;
        }
        if let Some(number) = last.as_ref().filter(|_| line.contains(LATER)) {
            listed.insert(number.clone(), true);
        }
    }
    listed
}

/// The numbers that a comment says to be proved: after the word, one after another.
fn named(comment: &str) -> Vec<String> {
    let Some((_, rest)) = comment.split_once(PROVES) else { return Vec::new() };
    let words = rest.split([',', ' ', ';']).map(|word| word.trim_end_matches(['.', ':', ')']));
    words
        .filter(|word| !word.is_empty() && *word != "and")
        .map_while(|word| leading_number(word).filter(|number| number.len() == word.len()))
        .collect()
}

fn leading_number(text: &str) -> Option<String> {
    let letter = text.chars().next().filter(|letter| LETTERS.contains(*letter))?;
    let digits: String = text[1..].chars().take_while(char::is_ascii_digit).collect();
    let ends = !text[1 + digits.len()..].starts_with(char::is_alphanumeric);
    (!digits.is_empty() && ends).then(|| format!("{letter}{digits}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_at_the_beginning_of_a_line() {
        let text = "# All\nS1 One.\n- **K10** Ten, long,\n  and more (later).\n| O2 | Two |\nS3x no\n\n## Later\nG1 One.\n## Now\nD1 (later) One.\n";
        let found: Vec<(String, bool)> = listed(text).into_iter().collect();
        let expected = [("D1", true), ("G1", true), ("K10", true), ("O2", false), ("S1", false)];
        assert_eq!(found, expected.map(|(number, later)| (number.to_owned(), later)));
    }

    #[test]
    fn only_a_test_proves() {
        assert!(is_above_a_test("\n\n    #[cfg(a)]\n    #[test]\nfn a() {}", 0));
        assert!(!is_above_a_test("\nfn a() {}\n#[test]", 0));
        assert!(!is_above_a_test("#[test]\n", 0));
    }

    #[test]
    fn a_comment_names_what_it_proves() {
        assert_eq!(named("// proves S1, K3 and O2."), ["S1", "K3", "O2"]);
        assert_eq!(named("/// One test (proves S1): more S9"), ["S1"]);
        assert!(named("// this proves nothing").is_empty());
        assert!(named("// S1").is_empty());
    }
}
