//! The excerpt of a task for a model: its id, its state and the next step, always whole; then the head and the tail of the
//! output within a budget, with the rest marked as left out.

use std::fmt::Write as _;

use belay_client::{Client, ClientError};
use belay_protocol::methods::OutputRead;
use belay_protocol::output::{OutputFrom as Begin, OutputReadParams, OutputReadResult};
use belay_protocol::task::TaskInfo;

/// A stretch of output, in the order in which it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Text {
        offset: u64,
        data: Vec<u8>,
    },
    /// Not shown, for want of room; it can be read.
    LeftOut {
        from: u64,
        to: u64,
    },
    /// Gone: the task wrote more than is kept.
    NotKept {
        from: u64,
        to: u64,
    },
}

/// Part of what a task has written: what lies between two offsets, the middle of it perhaps left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Excerpt {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) parts: Vec<Part>,
}

impl Excerpt {
    /// The output of a task from an offset to its present end, cut to at most `budget` bytes.
    pub(crate) fn read(client: &mut Client, id: &str, from: u64, budget: usize) -> Result<Self, ClientError> {
        let mut page = |from: u64| {
            let max_bytes = Some(budget.max(1) as u64);
            let params = OutputReadParams {
                id: id.to_owned(),
                from: Begin::Offset { offset: from },
                max_bytes,
                stream: None,
                text: false,
            };
            client.call::<OutputRead>(&params)
        };
        let head = page(from)?;
        let to = head.bytes;
        let mut parts = parts_of(head, to);
        let seen = end_of(&parts, from);
        if seen < to {
            let tail_from = seen.max(to.saturating_sub(budget as u64));
            if tail_from > seen {
                parts.push(Part::LeftOut { from: seen, to: tail_from });
            }
            parts.extend(parts_of(page(tail_from)?, to));
        }
        Ok(Self { from, to, parts }.capped(budget))
    }

    /// The same with at most `budget` bytes of text, half of them from its beginning and the others from its end. It is cut
    /// between lines where that is possible, and never inside of a character.
    #[must_use]
    pub(crate) fn capped(self, budget: usize) -> Self {
        let total: usize = self.parts.iter().map(length).sum();
        let mut parts = Vec::new();
        let head = if total > budget { budget / 2 } else { total };
        let tail_at = total - (budget - budget / 2).min(total - head);
        let mut at = 0;
        for part in self.parts {
            let (begin, end) = (at, at + length(&part));
            at = end;
            let (offset, data) = match part {
                Part::Text { offset, data } => (offset, data),
                Part::LeftOut { from, to } => {
                    push_left_out(&mut parts, from, to);
                    continue;
                }
                gone @ Part::NotKept { .. } => {
                    parts.push(gone);
                    continue;
                }
            };
            let kept_head = cut_end(&data, head.clamp(begin, end) - begin);
            let kept_tail = cut_begin(&data, tail_at.clamp(begin, end) - begin).max(kept_head);
            push_text(&mut parts, offset, &data[..kept_head]);
            push_left_out(&mut parts, offset + kept_head as u64, offset + kept_tail as u64);
            push_text(&mut parts, offset + kept_tail as u64, &data[kept_tail..]);
        }
        Self { parts, ..self }
    }
}

/// The text for a model. `next` is what it can do now, in the words of whatever it talks to. What comes first is never cut,
/// whatever the budget.
pub(crate) fn report(task: &TaskInfo, status: &str, next: &str, excerpt: &Excerpt) -> String {
    let mut text = format!("task {}: {status}\n", task.id);
    if let Some(line) = task.spec.line() {
        let _ = writeln!(text, "shell line: {}", line.explanation);
    }
    let _ = writeln!(text, "output: bytes {} to {} of {}", excerpt.from, excerpt.to, excerpt.to);
    let _ = writeln!(text, "next: {next}");
    if excerpt.from == excerpt.to {
        return text;
    }
    text.push_str("---\n");
    for part in &excerpt.parts {
        match part {
            Part::Text { data, .. } => text.push_str(&String::from_utf8_lossy(data)),
            Part::LeftOut { from, to } => {
                mark(&mut text, &format!("{} bytes left out, {from} to {to}", to - from));
            }
            Part::NotKept { from, to } => {
                mark(&mut text, &format!("{} bytes not kept, {from} to {to}", to - from));
            }
        }
    }
    text
}

/// On a line of its own, whatever stands around it.
fn mark(text: &mut String, words: &str) {
    if !text.ends_with('\n') {
        text.push('\n');
    }
    let _ = writeln!(text, "[… {words} …]");
}

const fn length(part: &Part) -> usize {
    match part {
        Part::Text { data, .. } => data.len(),
        Part::LeftOut { .. } | Part::NotKept { .. } => 0,
    }
}

fn end_of(parts: &[Part], from: u64) -> u64 {
    match parts.last() {
        None => from,
        Some(Part::Text { offset, data }) => offset + data.len() as u64,
        Some(Part::LeftOut { to, .. } | Part::NotKept { to, .. }) => *to,
    }
}

fn push_text(parts: &mut Vec<Part>, offset: u64, data: &[u8]) {
    if let Some(Part::Text { offset: before, data: text }) = parts.last_mut()
        && *before + text.len() as u64 == offset
    {
        text.extend_from_slice(data);
    } else if !data.is_empty() {
        parts.push(Part::Text { offset, data: data.to_vec() });
    }
}

fn push_left_out(parts: &mut Vec<Part>, from: u64, to: u64) {
    if let Some(Part::LeftOut { to: end, .. }) = parts.last_mut()
        && *end == from
    {
        *end = to;
    } else if from < to {
        parts.push(Part::LeftOut { from, to });
    }
}

/// One page as parts, up to `to`: a task that writes on would let it never end.
fn parts_of(page: OutputReadResult, to: u64) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut gaps = page.gaps.into_iter().peekable();
    for chunk in page.chunks.into_iter().filter(|chunk| chunk.offset < to) {
        while let Some([from, to]) = gaps.next_if(|gap| gap[0] < chunk.offset) {
            parts.push(Part::NotKept { from, to });
        }
        let room = usize::try_from(to - chunk.offset).unwrap_or(usize::MAX).min(chunk.data.0.len());
        push_text(&mut parts, chunk.offset, &chunk.data.0[..room]);
    }
    parts.extend(gaps.filter(|gap| gap[0] < to).map(|[from, to]| Part::NotKept { from, to }));
    parts
}

/// The largest place at or before `at` where the text can end: behind a line if there is one, or else behind a character.
fn cut_end(data: &[u8], at: usize) -> usize {
    if at >= data.len() {
        return data.len();
    }
    match memchr::memrchr(b'\n', &data[..at]) {
        Some(line) => line + 1,
        None => (0..=at).rev().take(4).find(|place| is_boundary(data, *place)).unwrap_or(at),
    }
}

/// The smallest place at or behind `at` where the text can begin.
fn cut_begin(data: &[u8], at: usize) -> usize {
    if at == 0 || at >= data.len() {
        return at;
    }
    match memchr::memchr(b'\n', &data[at - 1..data.len() - 1]) {
        Some(line) => at + line,
        None => (at..=data.len()).take(4).find(|place| is_boundary(data, *place)).unwrap_or(at),
    }
}

/// Whether no character goes on here.
fn is_boundary(data: &[u8], at: usize) -> bool {
    data.get(at).is_none_or(|byte| !matches!(byte, 0x80..=0xbf))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn whole(text: &str) -> Excerpt {
        let data = text.as_bytes().to_vec();
        Excerpt { from: 0, to: data.len() as u64, parts: vec![Part::Text { offset: 0, data }] }
    }

    fn text_bytes(excerpt: &Excerpt) -> usize {
        excerpt.parts.iter().map(length).sum()
    }

    // proves O7
    #[test]
    fn what_fits_is_whole_and_what_does_not_has_head_and_tail() {
        assert_eq!(whole("a\nb\n").capped(4), whole("a\nb\n"));
        let lines = (0..100).map(|i| format!("line {i:02}\n")).collect::<Vec<_>>().concat();
        let cut = whole(&lines).capped(40);
        assert_eq!(
            cut.parts,
            [
                Part::Text { offset: 0, data: b"line 00\nline 01\n".to_vec() },
                Part::LeftOut { from: 16, to: 784 },
                Part::Text { offset: 784, data: b"line 98\nline 99\n".to_vec() },
            ]
        );
        // One line without an end is cut between characters.
        let cut = whole(&"é".repeat(100)).capped(11);
        assert_eq!(
            cut.parts,
            [
                Part::Text { offset: 0, data: "éé".into() },
                Part::LeftOut { from: 4, to: 194 },
                Part::Text { offset: 194, data: "ééé".into() },
            ]
        );
        assert_eq!(whole("abc").capped(0).parts, [Part::LeftOut { from: 0, to: 3 }]);
    }

    proptest! {
        // proves O7
        #[test]
        fn every_byte_is_shown_or_marked_and_no_character_is_cut(
            texts in prop::collection::vec("[aé漢𝄞\n]{0,30}", 0..5),
            gap in 0_u64..9,
            budget in 0_usize..80,
        ) {
            let (mut parts, mut at) = (Vec::new(), 7);
            for text in &texts {
                parts.push(Part::Text { offset: at, data: text.clone().into_bytes() });
                at += text.len() as u64;
                if gap > 0 {
                    parts.push(Part::NotKept { from: at, to: at + gap });
                    at += gap;
                }
            }
            let total: usize = texts.iter().map(String::len).sum();
            let cut = Excerpt { from: 7, to: at, parts }.capped(budget);
            prop_assert!(text_bytes(&cut) <= budget);
            prop_assert!(total > budget || text_bytes(&cut) == total);
            let mut next = 7;
            for part in &cut.parts {
                let (from, to) = match part {
                    Part::Text { offset, data } => {
                        prop_assert!(std::str::from_utf8(data).is_ok(), "{data:?}");
                        (*offset, offset + data.len() as u64)
                    }
                    Part::LeftOut { from, to } | Part::NotKept { from, to } => (*from, *to),
                };
                prop_assert_eq!(from, next);
                next = to;
            }
            prop_assert_eq!(next, at);
        }

        #[test]
        fn any_bytes_at_all_are_survived(data in prop::collection::vec(any::<u8>(), 0..60), budget in 0_usize..70) {
            let to = data.len() as u64;
            let cut = Excerpt { from: 0, to, parts: vec![Part::Text { offset: 0, data }] }.capped(budget);
            prop_assert!(text_bytes(&cut) <= budget);
        }
    }
}
