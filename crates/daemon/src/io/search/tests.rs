//! Tests of the search: pages over logs on disk, compared with a search in memory without pages.

use std::collections::BTreeSet;
use std::path::Path;

use crate::effect::Pattern;
use belay_protocol::output::{
    OutputSearchCursor, OutputSearchLine, OutputSearchParams, OutputSearchResult, StreamName,
};
use belay_record::convert::Wire as _;
use belay_record::{LogReader, LogWriter, Stream};
use proptest::prelude::*;
use tempfile::TempDir;

use super::{LIMITS, Limits, search_page};
use crate::effect::Search;

type Write = (Stream, Vec<u8>);

/// The fields of a shown line that the tests compare.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shown {
    stream: StreamName,
    offset: u64,
    text: String,
    matched: bool,
    number: u64,
    open: bool,
}

impl Shown {
    fn of(found: OutputSearchLine) -> Self {
        let OutputSearchLine { line, number, open } = found;
        let text = line.data.0.escape_ascii().to_string();
        Self { stream: line.stream, offset: line.offset, text, matched: line.matched, number, open }
    }
}

fn written(writes: &[Write]) -> (TempDir, u64) {
    let dir = TempDir::new().unwrap();
    let bytes = append(&mut LogWriter::new(dir.path(), u64::MAX, 0), writes);
    (dir, bytes)
}

fn append(log: &mut LogWriter, writes: &[Write]) -> u64 {
    for (stream, data) in writes {
        log.append(*stream, 0, data);
    }
    log.bytes()
}

fn search(pattern: &str, context: u32, stream: Option<Stream>) -> Search {
    let params = OutputSearchParams {
        id: "sh-1".to_owned(),
        pattern: pattern.to_owned(),
        after: 0,
        stream: stream.map(|stream| stream.to_wire()),
        context,
        max_matches: None,
        cursor: None,
        text: false,
    };
    let pattern = Pattern::new(pattern);
    Search { params, pattern, dir: "/".into(), memory: None, ended_bytes: Some(0) }
}

/// Every page of a search, each requested with the cursor of the page before it.
fn pages(dir: &Path, search: &mut Search, limits: &Limits) -> Vec<OutputSearchResult> {
    let mut pages = Vec::new();
    search.params.cursor = None;
    loop {
        let page = search_page(&LogReader::open(dir).unwrap(), search, limits).unwrap().result;
        let next = page.next;
        assert_eq!(page.complete, next.is_none());
        pages.push(page);
        let Some(next) = next else { return pages };
        let before = search.params.cursor.map_or((search.params.after, 0), |last| (last.at, last.number));
        assert!((next.at, next.number) > before, "no progress: {next:?}");
        search.params.cursor = Some(next);
    }
}

fn joined(pages: Vec<OutputSearchResult>) -> Vec<Shown> {
    pages.into_iter().flat_map(|page| page.lines).map(Shown::of).collect()
}

/// The expected result, computed byte by byte in memory: the lines in the order in which they end,
/// filtered to matches and their context.
fn expected(writes: &[Write], search: &Search, line_bytes: usize) -> Vec<Shown> {
    let mut lines: Vec<(Stream, u64, Vec<u8>)> = Vec::new();
    let mut held: Vec<(Stream, u64, Vec<u8>)> = Vec::new();
    let bytes = writes.iter().flat_map(|(stream, data)| data.iter().map(|byte| (*stream, *byte)));
    for (offset, (stream, byte)) in (0_u64..).zip(bytes) {
        let is_wanted = search.params.stream.is_none_or(|only| only == stream.to_wire());
        if offset < search.params.after || !is_wanted {
            continue;
        }
        let place = held.iter().position(|line| line.0 == stream);
        let length = place.map_or(0, |place| held[place].2.len());
        let is_rest = (0x80..=0xbf).contains(&byte) && length < line_bytes + 3;
        match place {
            Some(place) if byte == b'\n' => lines.push(held.remove(place)),
            None if byte == b'\n' => lines.push((stream, offset, Vec::new())),
            Some(place) if length >= line_bytes && !is_rest => {
                lines.push(held.remove(place));
                held.push((stream, offset, vec![byte]));
            }
            Some(place) => held[place].2.push(byte),
            None => held.push((stream, offset, vec![byte])),
        }
    }
    let finished = lines.len();
    lines.extend(held);
    let pattern = search.pattern.get().unwrap();
    let is_match = |text: &[u8]| {
        pattern.is_match(text) || text.strip_suffix(b"\r").is_some_and(|bare| pattern.is_match(bare))
    };
    let matched: Vec<bool> = lines.iter().map(|line| is_match(&line.2)).collect();
    let context = search.params.context as usize;
    let is_shown = |place: usize| {
        let around = place.saturating_sub(context)..(place + context + 1).min(lines.len());
        matched[around].contains(&true)
    };
    let shown = (0..lines.len()).filter(|place| is_shown(*place));
    shown
        .map(|place| Shown {
            stream: lines[place].0.to_wire(),
            offset: lines[place].1,
            text: lines[place].2.escape_ascii().to_string(),
            matched: matched[place],
            number: place as u64 + 1,
            open: place >= finished && search.ended_bytes.is_none(),
        })
        .collect()
}

fn any_writes() -> impl Strategy<Value = Vec<Write>> {
    let stream = prop_oneof![Just(Stream::Stdout), Just(Stream::Stderr)];
    let byte = prop_oneof![
        4 => Just(b'a'), 3 => Just(b'\n'), 1 => Just(b'b'), 1 => Just(b'\r'), 1 => Just(0), 1 => Just(0xff),
        1 => Just(0xc3), 1 => Just(0xa9)
    ];
    prop::collection::vec((stream, prop::collection::vec(byte, 1..12)), 0..30)
}

fn any_limits() -> impl Strategy<Value = Limits> {
    (1..40_u64, 1..20_usize, 1..5_usize, 1..9_usize, 1..400_usize).prop_map(
        |(scan_bytes, block_bytes, matches, line_bytes, answer_bytes)| Limits {
            scan_bytes,
            block_bytes,
            matches,
            line_bytes,
            answer_bytes,
        },
    )
}

fn any_search() -> impl Strategy<Value = Search> {
    let stream = prop_oneof![Just(None), Just(Some(Stream::Stdout)), Just(Some(Stream::Stderr))];
    let pattern = prop::sample::select(vec!["b", "^$", "", "^a", "a$", "nowhere", "(?-u:\\xff)", "é"]);
    (pattern, 0..4_u32, stream, any::<bool>(), 0..20_u64).prop_map(
        |(pattern, context, stream, ended, after)| {
            let mut search = search(pattern, context, stream);
            search.params.after = after.saturating_sub(10);
            search.ended_bytes = ended.then_some(0);
            search
        },
    )
}

proptest! {
    // proves O2, O3
    #[test]
    fn joined_pages_equal_one_search(
        writes in any_writes(), limits in any_limits(), mut search in any_search(),
    ) {
        let (dir, _) = written(&writes);
        let found = joined(pages(dir.path(), &mut search, &limits));
        prop_assert_eq!(found, expected(&writes, &search, limits.line_bytes));
    }

    // proves O2
    #[test]
    fn page_respects_limits(
        writes in any_writes(), limits in any_limits(), mut search in any_search(),
    ) {
        let (dir, _) = written(&writes);
        for page in pages(dir.path(), &mut search, &limits) {
            let bytes: usize = page.lines.iter().map(|found| found.line.data.0.len() + 64).sum();
            prop_assert!(bytes <= limits.answer_bytes || page.lines.len() == 1);
            prop_assert!(page.lines.iter().filter(|found| found.line.matched).count() <= limits.matches);
        }
    }

    // proves O2
    #[test]
    fn output_during_paging_changes_nothing(
        writes in any_writes(), more in any_writes(), limits in any_limits(), mut search in any_search(),
    ) {
        search.ended_bytes = None;
        let dir = TempDir::new().unwrap();
        let mut log = LogWriter::new(dir.path(), u64::MAX, 0);
        append(&mut log, &writes);
        let mut found = Vec::new();
        for (stream, data) in more.iter().chain(std::iter::repeat(&(Stream::Stdout, b"b\n".to_vec()))) {
            let page = search_page(&LogReader::open(dir.path()).unwrap(), &search, &limits).unwrap().result;
            search.params.cursor = page.next;
            found.extend(page.lines.into_iter().map(Shown::of));
            if page.complete {
                break;
            }
            append(&mut log, &[(*stream, data.clone())]);
        }
        prop_assert_eq!(found, expected(&writes, &search, limits.line_bytes));
    }
}

// proves O2
#[test]
fn long_unfinished_line_is_restored_across_pages() {
    let mut writes = vec![(Stream::Stdout, b"prompt ".to_vec())];
    writes.extend((0..40_000).map(|i| (Stream::Stderr, format!("err {i}\n").into_bytes())));
    writes.push((Stream::Stdout, b"end\n".to_vec()));
    let (dir, _) = written(&writes);
    let mut search = search("^err|end$", 0, None);
    let found = joined(pages(dir.path(), &mut search, &LIMITS));
    assert_eq!(found.len(), 40_001);
    assert_eq!((found[40_000].offset, found[40_000].text.as_str()), (0, "prompt end"));
    assert!(found.iter().zip(1..).all(|(line, number)| line.number == number));
}

// proves O2
#[test]
fn gap_ends_line_and_context() {
    let dir = TempDir::new().unwrap();
    let mut log = LogWriter::new(dir.path(), 0, 0);
    // Lines do not end at segment boundaries, so a line is cut on each side of the gap.
    let writes: Vec<Write> =
        (0..100_000).map(|i| (Stream::Stdout, format!("line {i:06}\n").into_bytes())).collect();
    let bytes = append(&mut log, &writes);
    let reader = LogReader::open(dir.path()).unwrap();
    let [[from, to]] = reader.gaps()[..] else { panic!("{:?}", reader.gaps()) };
    assert!(from % 12 != 0 && to % 12 != 0, "{from} to {to}");
    let mut search = search(".", 0, None);
    search.ended_bytes = Some(bytes);
    let limits = Limits { matches: 7, ..LIMITS };
    let all = pages(dir.path(), &mut search, &limits);
    let gaps: Vec<_> = all.iter().flat_map(|page| page.gaps.clone()).collect();
    assert_eq!(gaps, [[from, to]]);
    let found = joined(all);
    let whole = reader.read(0, usize::MAX, None).unwrap().pieces;
    let texts: Vec<String> = found.iter().map(|line| line.text.clone()).collect();
    let kept = whole.iter().flat_map(|piece| piece.data.split(|byte| *byte == b'\n'));
    let kept: Vec<String> =
        kept.filter(|line| !line.is_empty()).map(|line| String::from_utf8(line.to_vec()).unwrap()).collect();
    assert_eq!(texts, kept);
    let last = found.iter().position(|line| line.offset > from).unwrap() - 1;
    assert_eq!(found[last].number + 2, found[last + 1].number);
    // A match on one side has no context on the other.
    search.params.context = 3;
    for (place, around) in [(last - 1, last - 4..last + 1), (last + 2, last + 1..last + 6)] {
        search.pattern = Pattern::new(&found[place].text);
        let shown = joined(pages(dir.path(), &mut search, &limits));
        assert_eq!(shown, with_match(&found[around.clone()], place - around.start));
    }
}

fn with_match(lines: &[Shown], place: usize) -> Vec<Shown> {
    let lines = lines.iter().enumerate();
    lines.map(|(at, line)| Shown { matched: at == place, ..line.clone() }).collect()
}

// proves O2
#[test]
fn line_without_removed_head_is_shown() {
    let dir = TempDir::new().unwrap();
    let mut log = LogWriter::new(dir.path(), 0, 0);
    let errors = |many| (0..many).map(|i| (Stream::Stderr, format!("err {i:05}\n").into_bytes()));
    let stdout = |text: &str| (Stream::Stdout, text.as_bytes().to_vec());
    let writes: Vec<Write> =
        std::iter::once(stdout("head ")).chain(errors(15_000)).chain([stdout("middle ")]).collect();
    let behind_middle = append(&mut log, &writes);
    append(&mut log, &errors(8_000).chain([stdout("end\n")]).collect::<Vec<_>>());
    let mut search = search("err|end", 0, None);
    let mut found = Vec::new();
    loop {
        let page = search_page(&LogReader::open(dir.path()).unwrap(), &search, &LIMITS).unwrap().result;
        found.extend(page.lines.into_iter().map(Shown::of));
        search.params.cursor = page.next;
        let Some(next) = page.next else { break };
        if next.at > behind_middle {
            // As if the output limit had been reached: the second segment is removed.
            for name in ["0000000000010000.out", "0000000000010000.idx"] {
                let _ = std::fs::remove_file(dir.path().join(name));
            }
        }
    }
    assert_eq!(found.len(), 23_001);
    assert_eq!(found[23_000].text, "middle end");
}

// proves O2
#[test]
fn long_line_is_cut_between_characters() {
    let limits = Limits { line_bytes: 4, ..LIMITS };
    let texts = |data: &str, pattern: &str| -> Vec<String> {
        let (dir, _) = written(&[(Stream::Stdout, data.as_bytes().to_vec())]);
        let found = joined(pages(dir.path(), &mut search(pattern, 0, None), &limits));
        found.into_iter().map(|line| line.text).collect()
    };
    let none: [&str; 0] = [];
    assert_eq!(texts("abcd\nabcdefgh\nabcdefghi", "^$"), none);
    assert_eq!(texts("abcd\n\nabcd", ""), ["abcd", "", "abcd"]);
    assert_eq!(texts("abcdefgh\ni", ""), ["abcd", "efgh", "i"]);
    let cut = |line: &str| line.as_bytes().escape_ascii().to_string();
    assert_eq!(texts("abc😀é\n", ""), [cut("abc😀"), cut("é")]);
}

// proves O2
#[test]
fn forged_cursor_is_harmless() {
    let (dir, _) = written(&[(Stream::Stdout, b"one\ntwo".to_vec()), (Stream::Stderr, b"three\n".to_vec())]);
    let odd = [0, 1, 5, 13, u64::MAX];
    let tried: BTreeSet<_> = odd.iter().flat_map(|at| odd.map(|other| (*at, other))).collect();
    for (at, other) in tried {
        for (until, open) in [(None, Some(other)), (Some(other), None), (Some(other), Some(at))] {
            let mut search = search(".", 2, None);
            let (number, owed) = (u64::MAX, u32::MAX);
            let cursor = OutputSearchCursor { at, until, stdout: open, stderr: open, number, owed };
            search.params.cursor = Some(cursor);
            let page = search_page(&LogReader::open(dir.path()).unwrap(), &search, &LIMITS).unwrap().result;
            assert!(page.complete && page.lines.len() <= 5, "{page:?}");
        }
    }
}
