//! Rules for single source files: heads, length, what must not stand in them.

use std::path::{Path, PathBuf};

use super::Findings;
use super::lexer::{Parts, split, without_tests};
use crate::run::shown;

const MAX_LINES: usize = 500;

/// How far above an `unsafe` its reason may begin.
const SAFETY_WITHIN: usize = 8;

/// How far above a sleep the deadline of its loop may be looked at.
const DEADLINE_WITHIN: usize = 15;

/// Places that exist on one machine only. In two pieces, or this line would be a finding.
const PRIVATE_PATHS: &[&str] = &[concat!("/wo", "rk/"), concat!("/ro", "ot/")];

/// The files whose every match names every case.
const NO_WILDCARD: &str = "crates/model/src/";

/// The files whose every event and reply is a named type of the protocol.
const NO_JSON_LITERAL: &str = "crates/daemon/src/";

/// A source file, taken apart once for all rules.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) path: PathBuf,
    text: String,
    pub(crate) parts: Parts,
    /// The code without tests; empty if the whole file is for tests.
    product: String,
}

impl Source {
    pub(crate) fn new(path: PathBuf, text: String) -> Self {
        let parts = split(&text);
        let product = if is_test_file(&path) { String::new() } else { without_tests(&parts.code) };
        Self { path, text, parts, product }
    }

    pub(crate) fn check(&self, findings: &mut Findings) {
        self.check_head(findings);
        self.check_unsafe(findings);
        self.check_unfinished(findings);
        self.check_unwrap(findings);
        self.check_sleep(findings);
        self.check_wildcard(findings);
        self.check_json(findings);
    }

    fn check_head(&self, findings: &mut Findings) {
        if !self.text.starts_with("//!") {
            findings.at(&self.path, 1, "begin the file with a `//!` sentence that says what it is for");
        }
        let count = self.text.lines().count();
        let mut head = self.text.lines().take_while(|line| line.starts_with("//!"));
        if count > MAX_LINES && !head.any(|line| line.starts_with("//! Long because")) {
            let what = format!(
                "{count} lines: split it at {MAX_LINES}, or say `//! Long because …` in its head comment"
            );
            findings.at(&self.path, count, &what);
        }
    }

    fn check_unsafe(&self, findings: &mut Findings) {
        let allowed = shown(&self.path).starts_with("crates/os/");
        let comments: Vec<&str> = self.parts.comments.lines().collect();
        for (at, line) in self.parts.code.lines().enumerate().filter(|(_, line)| has_word(line, "unsafe")) {
            if !allowed {
                findings.at(
                    &self.path,
                    at + 1,
                    "`unsafe` lives in crates/os only: give that crate a safe function",
                );
            } else if !line.contains("unsafe fn") && !line.contains("unsafe extern") {
                let near = comments.iter().take(at + 1).skip(at.saturating_sub(SAFETY_WITHIN));
                if !near.into_iter().any(|comment| comment.contains("SAFETY:")) {
                    findings.at(
                        &self.path,
                        at + 1,
                        "say above this `unsafe` why it is sound: `// SAFETY: …`",
                    );
                }
            }
        }
    }

    fn check_unfinished(&self, findings: &mut Findings) {
        for (at, line) in self.parts.code.lines().enumerate() {
            for mark in ["todo!", "unimplemented!"] {
                if line.contains(mark) {
                    findings.at(
                        &self.path,
                        at + 1,
                        &format!("`{mark}` is not finished: build it or leave it out"),
                    );
                }
            }
            if line.contains("#[ignore") {
                findings.at(&self.path, at + 1, "no test is ignored: mend it, or make it part of `--long`");
            }
        }
        for (at, line) in self.parts.comments.lines().enumerate() {
            for mark in ["FIXME", "XXX"] {
                if has_word(line, mark) {
                    findings.at(
                        &self.path,
                        at + 1,
                        &format!("{mark}: mend it now, or write down why it is so"),
                    );
                }
            }
        }
    }

    fn check_unwrap(&self, findings: &mut Findings) {
        for (at, line) in self.product.lines().enumerate() {
            if line.contains(".unwrap()") || line.contains(".expect(") {
                findings.at(&self.path, at + 1, "only tests may panic: hand the error on, or handle it");
            }
        }
    }

    /// In tests nobody sleeps and hopes: a sleep belongs to a wait that looks again until a deadline, or says why.
    fn check_sleep(&self, findings: &mut Findings) {
        if shown(&self.path).contains("/examples/") {
            return;
        }
        let product: Vec<&str> = self.product.lines().collect();
        let code: Vec<&str> = self.parts.code.lines().collect();
        let comments: Vec<&str> = self.parts.comments.lines().collect();
        for (at, _) in code.iter().enumerate().filter(|(_, line)| line.contains("thread::sleep")) {
            let in_product = product.get(at).is_some_and(|kept| !kept.is_empty());
            let near = at.saturating_sub(DEADLINE_WITHIN)..=at;
            let waits = code[near.clone()].iter().any(|line| line.contains("Instant::now()"));
            let named = code[near].iter().any(|line| line.contains("fn wait_until"));
            let says = comments[..=at].iter().rev().take(3).any(|line| line.contains("Sleeps because"));
            if !in_product && !waits && !named && !says {
                let what = "no sleeping in tests: wait for what you mean with `wait_until`, or say `// Sleeps because …`";
                findings.at(&self.path, at + 1, what);
            }
        }
    }

    fn check_wildcard(&self, findings: &mut Findings) {
        if !shown(&self.path).starts_with(NO_WILDCARD) {
            return;
        }
        for (at, line) in self.product.lines().enumerate() {
            let line = line.trim_start();
            if line.starts_with("_ =>") || line.starts_with("_ if ") || line.contains(", _ =>") {
                findings.at(&self.path, at + 1, "name every case: what decides has no wildcard arm");
            }
        }
    }

    fn check_json(&self, findings: &mut Findings) {
        if !shown(&self.path).starts_with(NO_JSON_LITERAL) {
            return;
        }
        for (at, _) in self.parts.code.lines().enumerate().filter(|(_, line)| line.contains("json!")) {
            let what = "no `json!` in the daemon: what crosses the wire is a type of crates/protocol";
            findings.at(&self.path, at + 1, what);
        }
    }
}

/// What holds for every text file.
pub(crate) fn check_text(path: &Path, text: &str, findings: &mut Findings) {
    for (at, line) in text.lines().enumerate() {
        if let Some(found) = PRIVATE_PATHS.iter().find(|found| names_path(line, found)) {
            let what =
                format!("`{found}` is on one machine only: use a path of the repository or a temporary one");
            findings.at(path, at + 1, &what);
        }
    }
}

/// Whether the path stands there as the beginning of one, not as the middle of another.
fn names_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        !line[..at].ends_with(|before: char| {
            before.is_alphanumeric() || matches!(before, '.' | '_' | '-' | '}' | '*')
        })
    })
}

/// Whether everything in this file is for tests.
fn is_test_file(path: &Path) -> bool {
    let name = shown(path);
    ["/tests/", "/tests.rs", "/examples/"].iter().any(|part| name.contains(part))
        || name.starts_with("tests/")
        || name.starts_with("crates/testkit/")
}

fn has_word(line: &str, word: &str) -> bool {
    let inside = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word)
        .any(|(at, _)| !line[..at].ends_with(inside) && !line[at + word.len()..].starts_with(inside))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::root;

    fn findings(path: &str, text: &str) -> Vec<String> {
        let mut findings = Findings::default();
        Source::new(root().join(path), text.to_owned()).check(&mut findings);
        findings.0
    }

    #[test]
    fn each_rule_finds_what_it_is_for() {
        for (path, text, part) in [
            ("crates/x/src/a.rs", "fn a() {}\n", "a.rs:1: begin the file"),
            ("crates/x/src/a.rs", "//! A.\nfn a() { unsafe { b() } }\n", "a.rs:2: `unsafe` lives in"),
            ("crates/os/src/a.rs", "//! A.\nfn a() { unsafe { b() } }\n", "a.rs:2: say above"),
            ("crates/x/src/a.rs", "//! A.\nfn a() { todo!() }\n", "a.rs:2: `todo!`"),
            ("crates/x/src/a.rs", "//! A.\n// FIXME: b\n", "a.rs:2: FIXME"),
            ("crates/x/src/a.rs", "//! A.\nfn a() { b.unwrap() }\n", "a.rs:2: only tests may panic"),
            ("crates/x/tests/a.rs", "//! A.\nfn a() { thread::sleep(b) }\n", "a.rs:2: no sleeping"),
            ("crates/x/tests/a.rs", "//! A.\n#[ignore]\n", "a.rs:2: no test is ignored"),
            ("crates/model/src/life.rs", "//! A.\nmatch a {\n _ => b\n}\n", "life.rs:3: name every case"),
            ("crates/daemon/src/a.rs", "//! A.\nfn a() { json!({}) }\n", "a.rs:2: no `json!` in the daemon"),
        ] {
            let found = findings(path, text);
            assert!(found.len() == 1 && found[0].contains(part), "{text:?}: {found:?}");
        }
        let long = format!("//! A.\n{}", "\n".repeat(500));
        assert!(findings("crates/x/src/a.rs", &long)[0].contains("501 lines"));
        assert_eq!(
            findings("crates/x/src/a.rs", &long.replace("//! A.", "//! A.\n//! Long because it is.")).len(),
            0
        );
    }

    #[test]
    fn what_is_allowed_is_passed_over() {
        for (path, text) in [
            ("crates/os/src/a.rs", "//! A.\n// SAFETY: a number.\nunsafe { b() }\n"),
            ("crates/x/src/a.rs", "//! A.\nlet a = \"todo! FIXME unsafe .unwrap()\";\n"),
            ("crates/x/src/a.rs", "//! A.\n#[cfg(test)]\nmod tests {\n fn a() { b.unwrap() }\n}\n"),
            ("crates/x/tests/a.rs", "//! A.\nfn wait_until() { thread::sleep(b) }\n"),
            ("crates/x/src/a.rs", "//! A.\nfn a() { thread::sleep(b) }\n"),
            ("crates/x/src/a.rs", "//! A.\nfn a() { json!({}) }\n"),
            ("crates/x/tests/a.rs", "//! A.\nwhile Instant::now() < until {\nthread::sleep(b);\n}\n"),
            ("crates/x/tests/a.rs", "//! A.\n// Sleeps because it rolls dice.\nthread::sleep(b);\n"),
        ] {
            assert_eq!(findings(path, text), Vec::<String>::new(), "{text:?}");
        }
    }

    #[test]
    fn a_private_path_is_one_that_begins_there() {
        let path = PRIVATE_PATHS[0];
        assert!(names_path(&format!("see {path}x"), path) && names_path(&format!("\"{path}\""), path));
        assert!(!names_path(&format!("a/frame{path}x"), path));
    }
}
