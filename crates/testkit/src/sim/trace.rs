//! The last steps of a run, for whoever has to find out why it failed, and a digest of all of them.

use std::collections::VecDeque;
use std::fmt::Write as _;

const KEPT: usize = 60;
const LINE_CHARS: usize = 220;

#[derive(Debug, Default)]
pub(crate) struct Trace {
    lines: VecDeque<String>,
    digest: u64,
    count: u64,
}

impl Trace {
    pub(crate) fn add(&mut self, at_ms: u64, who: &str, what: &str) {
        self.count += 1;
        for byte in who.bytes().chain(what.bytes()).chain(at_ms.to_le_bytes()) {
            self.digest = (self.digest ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        if self.lines.len() == KEPT {
            self.lines.pop_front();
        }
        let mut line = format!("{:>6} {at_ms:>8} ms  {who:<10} ", self.count);
        line.extend(what.chars().take(LINE_CHARS));
        self.lines.push_back(line);
    }

    pub(crate) const fn digest(&self) -> u64 {
        self.digest
    }

    pub(crate) fn text(&self) -> String {
        self.lines.iter().fold(String::new(), |mut text, line| {
            let _ = writeln!(text, "{line}");
            text
        })
    }
}
