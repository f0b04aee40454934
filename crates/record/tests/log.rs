//! Properties of the output log: what goes in comes out, at its offset, under its stream, or is a gap and says so.

use belay_record::reader::keep_characters_whole;
use belay_record::writer::SMALLEST_LIMIT_BYTES;
use belay_record::{LogReader, LogWriter, MemoryLog, Piece, Slice, Stream};
use proptest::prelude::*;

#[derive(Clone, Debug)]
struct Write {
    stream: Stream,
    after_ms: i64,
    data: Vec<u8>,
}

fn writes(max_bytes: usize, count: usize) -> impl Strategy<Value = Vec<Write>> {
    let one = (any::<bool>(), 0..300i64, prop::collection::vec(any::<u8>(), 1..max_bytes)).prop_map(
        |(err, after_ms, data)| Write {
            stream: if err { Stream::Stderr } else { Stream::Stdout },
            after_ms,
            data,
        },
    );
    prop::collection::vec(one, 0..count)
}

fn write_all(log: &mut LogWriter, writes: &[Write]) {
    let mut at_ms = 1_000;
    for write in writes {
        at_ms += write.after_ms;
        log.append(write.stream, at_ms, &write.data);
    }
}

/// Every byte with its stream, as it was written.
fn expected(writes: &[Write]) -> Vec<(Stream, u8)> {
    writes.iter().flat_map(|write| write.data.iter().map(|byte| (write.stream, *byte))).collect()
}

fn flat(pieces: &[Piece]) -> Vec<(u64, Stream, u8)> {
    let bytes = |piece: &Piece| {
        let (offset, stream) = (piece.offset, piece.stream);
        piece
            .data
            .iter()
            .enumerate()
            .map(move |(i, byte)| (offset + i as u64, stream, *byte))
            .collect::<Vec<_>>()
    };
    pieces.iter().flat_map(bytes).collect()
}

fn sums(log: &LogReader) -> (u64, u64, Vec<[u64; 2]>) {
    (log.end(), log.first(), log.gaps())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn last_time_is_that_of_the_last_byte(writes in writes(400, 300)) {
        let dir = tempfile::tempdir().unwrap();
        let mut log = LogWriter::new(dir.path(), SMALLEST_LIMIT_BYTES, 0);
        write_all(&mut log, &writes);
        let reader = LogReader::open(dir.path()).unwrap();
        let last = reader.read(reader.end().saturating_sub(1), 1, None).unwrap().pieces.pop();
        prop_assert_eq!(reader.last_at_ms().unwrap(), last.map(|piece| piece.at_ms + 100));
    }

    // proves O1, O2: any window, any stream, again and again
    #[test]
    fn every_byte_is_at_its_offset_under_its_stream(writes in writes(3_000, 40), windows in prop::collection::vec((0..60_000u64, 1..20_000usize), 1..10)) {
        let dir = tempfile::tempdir().unwrap();
        let mut log = LogWriter::new(dir.path(), 1 << 30, 0);
        write_all(&mut log, &writes);
        let all = expected(&writes);
        prop_assert_eq!(log.bytes(), all.len() as u64);
        let reader = LogReader::open(dir.path()).unwrap();
        prop_assert_eq!(reader.end(), all.len() as u64);
        for (from, max) in windows {
            let from = from.min(reader.end());
            let slice = reader.read(from, max, None).unwrap();
            let want: Vec<_> = all.iter().enumerate().skip(usize::try_from(from).unwrap()).take(max)
                .map(|(i, (stream, byte))| (i as u64, *stream, *byte)).collect();
            prop_assert_eq!(flat(&slice.pieces), want);
            prop_assert_eq!(&slice.gaps, &Vec::<[u64; 2]>::new());
            for only in [Stream::Stdout, Stream::Stderr] {
                let slice = reader.read(from, max, Some(only)).unwrap();
                let want: Vec<_> = all.iter().enumerate().skip(usize::try_from(from).unwrap())
                    .filter(|(_, (stream, _))| *stream == only).take(max)
                    .map(|(i, (stream, byte))| (i as u64, *stream, *byte)).collect();
                prop_assert_eq!(flat(&slice.pieces), want);
            }
        }
    }

    // proves O1, O2: page after page, with any page size, a reader of one stream misses nothing and sees nothing twice
    #[test]
    fn pages_follow_each_other_without_loss(writes in writes(3_000, 40), max in 1..9_000usize) {
        let dir = tempfile::tempdir().unwrap();
        let mut log = LogWriter::new(dir.path(), 1 << 30, 0);
        write_all(&mut log, &writes);
        let all = expected(&writes);
        let reader = LogReader::open(dir.path()).unwrap();
        for only in [None, Some(Stream::Stdout), Some(Stream::Stderr)] {
            let mut read = Vec::new();
            let mut at = 0;
            while at < reader.end() {
                let slice = reader.read(at, max, only).unwrap();
                prop_assert!(slice.next > at);
                read.extend(flat(&slice.pieces));
                at = slice.next;
            }
            let want: Vec<_> = all.iter().enumerate().filter(|(_, (stream, _))| only.is_none_or(|only| only == *stream))
                .map(|(i, (stream, byte))| (i as u64, *stream, *byte)).collect();
            prop_assert_eq!(&read, &want);
        }
    }

    // proves F8, F3: nothing is on disk while there is room in memory; and whenever it is asked for, or has to be, all of it
    // is there, in order, with nothing lost or twice
    #[test]
    fn what_lies_in_memory_can_be_read_and_goes_to_disk_whole(before in writes(3_000, 20), after in writes(3_000, 20), bound in 1..60_000u64) {
        let dir = tempfile::tempdir().unwrap();
        let task = dir.path().join("task");
        let mut log = LogWriter::new(&task, 1 << 30, bound);
        write_all(&mut log, &before);
        let written = expected(&before);
        let fits = written.len() as u64 <= bound;
        if let Some(numbers) = log.memory() {
            prop_assert!(fits && !task.exists());
            let memory = MemoryLog::open(i32::try_from(std::process::id()).unwrap(), numbers).unwrap();
            let reader = LogReader::in_memory(std::sync::Arc::new(memory)).unwrap();
            let read: Vec<_> = flat(&reader.read(0, usize::MAX, None).unwrap().pieces).into_iter().map(|(_, stream, byte)| (stream, byte)).collect();
            prop_assert_eq!(&read, &written);
        } else {
            prop_assert!(written.is_empty() || !fits);
        }
        log.leave_memory();
        prop_assert_eq!(log.memory(), None);
        write_all(&mut log, &after);
        log.finish();
        prop_assert_eq!(log.fault(), None);
        let all: Vec<_> = written.into_iter().chain(expected(&after)).collect();
        let read = LogReader::open(&task).unwrap().read(0, usize::MAX, None).unwrap();
        let read: Vec<_> = flat(&read.pieces).into_iter().map(|(_, stream, byte)| (stream, byte)).collect();
        prop_assert_eq!(read, all);
    }

    // proves O4: what is within the limit is kept whole
    #[test]
    fn nothing_within_the_limit_is_dropped(sizes in prop::collection::vec(1..20_000usize, 1..40)) {
        let dir = tempfile::tempdir().unwrap();
        let mut log = LogWriter::new(dir.path(), SMALLEST_LIMIT_BYTES, 0);
        let mut left = usize::try_from(SMALLEST_LIMIT_BYTES).unwrap();
        for size in sizes {
            let size = size.min(left);
            log.append(Stream::Stdout, 0, &vec![b'x'; size]);
            left -= size;
        }
        log.append(Stream::Stdout, 0, &vec![b'x'; left]);
        prop_assert_eq!(log.gaps(), &[] as &[[u64; 2]]);
    }

    // proves O4: head and tail are kept, the gap is exact, and what lies on disk stays within the limit
    #[test]
    fn a_limit_keeps_head_and_tail_and_marks_the_gap(writes in writes(40_000, 60)) {
        let dir = tempfile::tempdir().unwrap();
        let mut log = LogWriter::new(dir.path(), SMALLEST_LIMIT_BYTES, 0);
        write_all(&mut log, &writes);
        let all = expected(&writes);
        let reader = LogReader::open(dir.path()).unwrap();
        prop_assert_eq!(reader.end(), all.len() as u64);
        prop_assert_eq!(reader.gaps(), log.gaps());
        prop_assert_eq!(sums(&LogReader::glance(dir.path()).unwrap()), sums(&reader));
        let slice = reader.read(0, usize::MAX, None).unwrap();
        prop_assert_eq!(&slice.gaps, &reader.gaps());
        let gap_bytes: u64 = slice.gaps.iter().map(|gap| gap[1] - gap[0]).sum();
        let kept = flat(&slice.pieces);
        prop_assert_eq!(kept.len() as u64 + gap_bytes, all.len() as u64);
        for (offset, stream, byte) in kept {
            prop_assert_eq!((stream, byte), all[usize::try_from(offset).unwrap()]);
        }
        let on_disk: u64 = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
        prop_assert!(on_disk <= SMALLEST_LIMIT_BYTES + 64 * 1024, "{on_disk} bytes on disk");
        if !slice.gaps.is_empty() {
            prop_assert!(slice.gaps[0][0] > 0, "the head is kept");
            prop_assert!(slice.gaps.last().unwrap()[1] < all.len() as u64, "the tail is kept");
        }
    }

    #[test]
    fn the_last_lines_are_found(text in "[ab\n]{0,400}", lines in 0..12u64, err_every in 1..7usize) {
        let dir = tempfile::tempdir().unwrap();
        let mut log = LogWriter::new(dir.path(), 1 << 30, 0);
        for (i, byte) in text.bytes().enumerate() {
            let stream = if i % err_every == 0 { Stream::Stderr } else { Stream::Stdout };
            log.append(stream, 0, &[byte]);
        }
        let reader = LogReader::open(dir.path()).unwrap();
        let from = usize::try_from(reader.tail_offset(lines, None).unwrap()).unwrap();
        let kept: Vec<&str> = text.split_inclusive('\n').collect();
        let want: String = kept[kept.len().saturating_sub(usize::try_from(lines).unwrap())..].concat();
        prop_assert_eq!(&text[from..], want);
    }

    // proves O3: a text cut never splits a character, always goes on, and loses nothing
    #[test]
    fn text_is_cut_between_characters(text in "[a-zäß€😀]{1,80}", max in 4..12usize) {
        let bytes = text.as_bytes();
        let mut at = 0;
        let mut whole = String::new();
        while at < bytes.len() {
            let data = bytes[at..bytes.len().min(at + max)].to_vec();
            let next = (at + data.len()) as u64;
            let piece = Piece { stream: Stream::Stdout, offset: at as u64, at_ms: 0, data };
            let mut slice = Slice { pieces: vec![piece], gaps: Vec::new(), next };
            let is_last = next == bytes.len() as u64;
            keep_characters_whole(&mut slice, is_last, bytes.len() as u64);
            prop_assert!(slice.next > at as u64);
            whole.push_str(std::str::from_utf8(&slice.pieces[0].data).unwrap());
            at = usize::try_from(slice.next).unwrap();
        }
        prop_assert_eq!(whole, text);
    }

    // proves O3: however the streams are interleaved and cut, each is the text that was written to it
    #[test]
    fn interleaved_text_is_whole(
        texts in ("[a-zäß€😀]{0,30}", "[a-zäß€😀]{0,30}"),
        cuts in prop::collection::vec((any::<bool>(), 1..5usize), 60),
        page in 1..40usize,
    ) {
        let mut left = [texts.0.as_bytes(), texts.1.as_bytes()];
        let mut log: Vec<(Stream, u8)> = Vec::new();
        for (second, length) in cuts {
            let (taken, rest) = left[usize::from(second)].split_at(length.min(left[usize::from(second)].len()));
            left[usize::from(second)] = rest;
            let stream = if second { Stream::Stderr } else { Stream::Stdout };
            log.extend(taken.iter().map(|byte| (stream, *byte)));
        }
        let written = |wanted: Stream| -> Vec<u8> {
            log.iter().filter(|(stream, _)| *stream == wanted).map(|(_, byte)| *byte).collect()
        };
        let mut read = [Vec::new(), Vec::new()];
        let (mut at, mut split) = (0, 0);
        while at < log.len() {
            let to = log.len().min(at + page);
            let mut pieces: Vec<Piece> = Vec::new();
            for (place, (stream, byte)) in log[at..to].iter().enumerate() {
                match pieces.last_mut() {
                    Some(last) if last.stream == *stream => last.data.push(*byte),
                    _ => pieces.push(Piece { stream: *stream, offset: (at + place) as u64, at_ms: 0, data: vec![*byte] }),
                }
            }
            let mut slice = Slice { pieces, gaps: Vec::new(), next: to as u64 };
            keep_characters_whole(&mut slice, to == log.len(), log.len() as u64);
            prop_assert!(slice.next > at as u64, "it goes on");
            for piece in slice.pieces {
                split += usize::from(std::str::from_utf8(&piece.data).is_err());
                read[usize::from(piece.stream == Stream::Stderr)].extend(piece.data);
            }
            at = usize::try_from(slice.next).unwrap();
        }
        prop_assert_eq!(read, [written(Stream::Stdout), written(Stream::Stderr)]);
        // With both streams whole and pages as long as the log, nothing is split.
        let is_whole = left.iter().all(|left| left.is_empty());
        prop_assert!(split == 0 || page < log.len() || !is_whole, "{split} characters are split");
    }

    #[test]
    fn bytes_that_are_no_text_are_never_held_back_for_ever(data in prop::collection::vec(any::<u8>(), 1..50)) {
        let next = data.len() as u64;
        let piece = Piece { stream: Stream::Stdout, offset: 0, at_ms: 0, data };
        let mut slice = Slice { pieces: vec![piece], gaps: Vec::new(), next };
        // More is there that was not read.
        keep_characters_whole(&mut slice, false, next + 1);
        prop_assert!(slice.next > 0 && next - slice.next <= 3);
    }

    #[test]
    fn unfinished_character_waits_for_its_rest(begun in prop::sample::select(vec!["ä", "€", "😀"])) {
        let data = begun.as_bytes()[..begun.len() - 1].to_vec();
        let next = data.len() as u64;
        let piece = Piece { stream: Stream::Stdout, offset: 0, at_ms: 0, data };
        let mut slice = Slice { pieces: vec![piece], gaps: Vec::new(), next };
        keep_characters_whole(&mut slice, false, next);
        prop_assert_eq!(slice, Slice::default());
    }
}

// proves O1: also where the index is larger than what it speaks of
#[test]
fn a_glance_finds_the_sums_that_a_look_finds() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = LogWriter::new(dir.path(), SMALLEST_LIMIT_BYTES, 0);
    let compare = || {
        let [glance, look] =
            [LogReader::glance, LogReader::open].map(|open| sums(&open(dir.path()).unwrap()));
        assert_eq!(glance, look);
        look.0
    };
    assert_eq!(compare(), 0);
    for written in 1..=10_000 {
        let stream = if written % 2 == 0 { Stream::Stderr } else { Stream::Stdout };
        log.append(stream, 0, b"x");
        // Around the end of the first segment and of the second, and now and then.
        if written % 4_096 <= 2 || written % 500 == 0 {
            assert_eq!(compare(), written);
        }
    }
    std::fs::remove_file(dir.path().join("0000000000000000.out")).unwrap();
    assert_eq!(compare(), 10_000);
}

#[test]
fn nothing_is_on_disk_before_the_first_byte() {
    let dir = tempfile::tempdir().unwrap();
    let task = dir.path().join("task");
    let mut log = LogWriter::new(&task, 1 << 20, 0);
    assert!(!task.exists());
    log.append(Stream::Stdout, 0, b"");
    assert!(!task.exists());
    log.append(Stream::Stdout, 0, b"x");
    assert!(task.exists());
}

// proves O8, O5: a directory that cannot be written costs the bytes, is told, and ends when it can be written again
#[test]
fn what_cannot_be_written_is_a_gap_and_a_fault() {
    let dir = tempfile::tempdir().unwrap();
    let task = dir.path().join("task");
    // A file where the directory should be: fails for root too.
    std::fs::write(&task, "in the way").unwrap();
    let mut log = LogWriter::new(&task, 1 << 20, 0);
    log.append(Stream::Stdout, 0, b"lost");
    assert_eq!(log.gaps(), [[0, 4]]);
    assert_eq!(log.fault().map(|fault| fault.lost_bytes), Some(4));
    std::fs::remove_file(&task).unwrap();
    log.append(Stream::Stderr, 0, b"kept");
    let reader = LogReader::open(&task).unwrap();
    let slice = reader.read(0, 100, None).unwrap();
    assert_eq!(slice.gaps, [[0, 4]]);
    assert_eq!(
        flat(&slice.pieces),
        [
            (4, Stream::Stderr, b'k'),
            (5, Stream::Stderr, b'e'),
            (6, Stream::Stderr, b'p'),
            (7, Stream::Stderr, b't')
        ]
    );
    assert_eq!((reader.first(), reader.end(), slice.next), (4, 8, 8));
}

// proves O3: a writer that was killed between index and data, or in the middle of an index record, costs no byte
#[test]
fn a_torn_index_costs_no_byte() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = LogWriter::new(dir.path(), 1 << 20, 0);
    log.append(Stream::Stdout, 0, b"out");
    log.append(Stream::Stderr, 0, b"err");
    drop(log);
    let index = dir.path().join(format!("{:016x}.idx", 0));
    let mut bytes = std::fs::read(&index).unwrap();
    bytes.extend_from_slice(&[1, 2, 3]);
    std::fs::write(&index, &bytes).unwrap();
    let read = || LogReader::open(dir.path()).unwrap().read(0, 100, None).unwrap();
    let streams: Vec<_> = read().pieces.iter().map(|piece| (piece.stream, piece.data.clone())).collect();
    assert_eq!(streams, [(Stream::Stdout, b"out".to_vec()), (Stream::Stderr, b"err".to_vec())]);
    std::fs::write(&index, b"").unwrap();
    let all: Vec<u8> = read().pieces.iter().flat_map(|piece| piece.data.clone()).collect();
    assert_eq!(all, b"outerr");
}

// proves O8, F3: what the disk did not take when it was asked for stays readable, and is there at the end if it does then
#[test]
fn what_the_disk_does_not_take_stays_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    let task = dir.path().join("task");
    std::fs::write(&task, "in the way").unwrap();
    let mut log = LogWriter::new(&task, 1 << 20, 100);
    log.append(Stream::Stdout, 0, b"kept");
    log.leave_memory();
    assert!(log.memory().is_some() && log.gaps().is_empty());
    std::fs::remove_file(&task).unwrap();
    log.append(Stream::Stdout, 0, b" and more");
    log.finish();
    assert_eq!((log.gaps().len(), log.fault()), (0, None));
    let read = LogReader::open(&task).unwrap().read(0, 100, None).unwrap();
    let all: Vec<u8> = read.pieces.iter().flat_map(|piece| piece.data.clone()).collect();
    assert_eq!(all, b"kept and more");
}
