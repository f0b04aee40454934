//! `cargo xtask tidy`: the house rules as checks. Each finding says where it is and what to do.

mod behaviours;
mod crates;
mod lexer;
mod source;

use std::path::{Path, PathBuf};

use crate::run::{Outcome, root, shown};

/// Directories that hold nothing that people wrote.
const SKIPPED: &[&str] = &["target", ".git", "node_modules", "dist", "__pycache__", ".venv"];

/// What was found: one line each.
#[derive(Debug, Default)]
pub(crate) struct Findings(Vec<String>);

impl Findings {
    fn at(&mut self, path: &Path, line: usize, what: &str) {
        self.0.push(format!("{}:{line}: {what}", shown(path)));
    }

    fn say(&mut self, what: String) {
        self.0.push(what);
    }
}

pub(crate) fn run() -> Outcome {
    let mut files = Vec::new();
    collect(&root(), &mut files)?;
    files.sort();
    let mut findings = Findings::default();
    crates::check(&mut findings)?;
    let mut sources = Vec::new();
    for path in files {
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        source::check_text(&path, &text, &mut findings);
        if path.extension().is_some_and(|ext| ext == "rs") {
            let source = source::Source::new(path, text);
            source.check(&mut findings);
            sources.push(source);
        }
    }
    behaviours::check(&sources, &mut findings);
    if findings.0.is_empty() {
        println!("{} source files, no finding", sources.len());
        return Ok(());
    }
    for finding in &findings.0 {
        println!("{finding}");
    }
    Err(format!("{} findings", findings.0.len()).into())
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) -> Outcome {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let kind = entry.file_type()?;
        // In a second work tree `.git` is a file that says where the first one is.
        if SKIPPED.iter().any(|skipped| name == **skipped) {
            continue;
        }
        if kind.is_dir() {
            collect(&entry.path(), files)?;
        } else if kind.is_file() {
            files.push(entry.path());
        }
    }
    Ok(())
}
