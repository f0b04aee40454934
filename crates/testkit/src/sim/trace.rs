//! The last steps of a run, for whoever has to find out why it failed, and a digest of all of them.

use std::collections::VecDeque;
use std::collections::hash_map::DefaultHasher;
use std::fmt::Write as _;
use std::hash::Hasher as _;

const KEPT: usize = 60;
const LINE_CHARS: usize = 260;

#[derive(Debug, Default)]
pub(crate) struct Trace {
    lines: VecDeque<(u64, u64, String)>,
    digest: DefaultHasher,
    count: u64,
}

impl Trace {
    pub(crate) fn add(&mut self, at_ms: u64, line: String) {
        self.count += 1;
        self.digest.write_u64(at_ms);
        self.digest.write(line.as_bytes());
        if self.lines.len() == KEPT {
            self.lines.pop_front();
        }
        self.lines.push_back((self.count, at_ms, line));
    }

    pub(crate) fn digest(&self) -> u64 {
        self.digest.finish()
    }

    pub(crate) fn text(&self) -> String {
        self.lines.iter().fold(String::new(), |mut text, (count, at_ms, line)| {
            let line: String = line.trim_end().chars().take(LINE_CHARS).collect();
            let _ = writeln!(text, "{count:>6} {at_ms:>8} ms  {line}");
            text
        })
    }
}
