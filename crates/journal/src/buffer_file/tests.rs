//! Frames and files of the write buffer: what is read back, and what damage does to it.

use proptest::prelude::*;

use super::*;
use crate::row::{EventRow, TaskRow};

const JOURNAL: u64 = 7;

fn batch(number: u64, body: String) -> Batch {
    Batch {
        put: vec![TaskRow { id: format!("sh-{number}"), number, body, ..TaskRow::default() }],
        events: vec![EventRow { seq: number, ..EventRow::default() }],
        ..Batch::default()
    }
}

/// Appends batches from number 1 on, each with the event of its number.
fn append_all(file: &mut BufferFile, generation: u64, batches: &[Batch]) {
    let header = Header { journal: JOURNAL, generation, first_batch: 1, next_event: 1 };
    for (number, batch) in (1..).zip(batches) {
        file.append(&header, number, number, batch, &mut Vec::new()).unwrap();
    }
}

fn batches(scanned: Scanned) -> Vec<Batch> {
    scanned.entries.into_iter().map(|entry| entry.batch).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the file was used for before, and wherever it is cut: a prefix of its last use.
    #[test]
    fn scan_returns_a_prefix_of_the_last_use(
        uses in prop::collection::vec((any::<bool>(), prop::collection::vec("[ab]{0,2}", 1..5)), 1..5),
        is_cleared in any::<bool>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let mut file = BufferFile::create(dir.path()).unwrap();
        let path = file.path.clone();
        let mut last = Vec::new();
        for (generation, (reopen, bodies)) in (1..).zip(uses) {
            file.clear().unwrap();
            if reopen {
                // Another daemon, and a file whose length was not reset.
                let junk = fs::read(&path).unwrap();
                fs::write(&path, [junk.as_slice(), &[0x55; 100]].concat()).unwrap();
                file = BufferFile::reopen(&scan(&path).unwrap()).unwrap();
                file.clear().unwrap();
            }
            last = (1..).zip(bodies).map(|(number, body)| batch(number, body)).collect();
            append_all(&mut file, generation, &last);
        }
        if is_cleared {
            file.clear().unwrap();
            last.clear();
        }
        let scanned = scan(&path).unwrap();
        prop_assert_eq!(scanned.kind, if is_cleared { Kind::Empty } else { Kind::Sound });
        prop_assert_eq!(&batches(scanned), &last);
        let length = usize::try_from(file.len()).unwrap();
        let cut = cut.index(length + 1);
        file.file.set_len(cut as u64).unwrap();
        let scanned = scan(&path).unwrap();
        prop_assert_eq!(scanned.kind == Kind::Damaged, cut < length, "a cut is noticed at every byte");
        prop_assert!(last.starts_with(&batches(scanned)));
    }
}

#[test]
fn missing_and_unknown_files_hold_nothing() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(scan_dir(dir.path()).unwrap().len(), 0);
    let path = dir.path().join(format!("{NAME_PREFIX}0"));
    fs::write(&path, "something else that is long enough to be a header, and more").unwrap();
    let scanned = scan(&path).unwrap();
    assert_eq!((scanned.kind, scanned.header, scanned.entries), (Kind::Damaged, None, Vec::new()));
    // A name that is taken is not used.
    let mut file = BufferFile::create(dir.path()).unwrap();
    assert_eq!(file.path, dir.path().join(format!("{NAME_PREFIX}1")));
    append_all(&mut file, 1, &[batch(1, "b".to_owned())]);
    assert_eq!(batches(scan(&file.path).unwrap()), [batch(1, "b".to_owned())]);
    // Names of other files are ignored.
    fs::write(dir.path().join(format!("{NAME_PREFIX}x")), "").unwrap();
    fs::write(dir.path().join(NAME_PREFIX), "").unwrap();
    assert_eq!(scan_dir(dir.path()).unwrap().len(), 2);
}

/// One changed byte anywhere: the batches before it are read, the damage is noticed, and its
/// events are bounded.
#[test]
fn every_changed_byte_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = BufferFile::create(dir.path()).unwrap();
    let whole: Vec<Batch> = (1..4).map(|number| batch(number, "body".to_owned())).collect();
    append_all(&mut file, 1, &whole);
    let bytes = fs::read(&file.path).unwrap();
    for place in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[place] ^= 0x40;
        let found = decode(&damaged);
        assert_eq!(found.kind, Kind::Damaged, "{place}");
        let most_events = found.max_event.max(found.most_events());
        assert!(most_events >= 3, "{place}: {most_events}");
        assert!(whole.starts_with(&batches(found)), "{place}");
    }
}

/// What a kill during an append leaves is no damage: the frames before it are complete.
#[test]
fn append_torn_between_pages_is_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = BufferFile::create(dir.path()).unwrap();
    let whole: Vec<Batch> = (1..4).map(|number| batch(number, "x".repeat(3000))).collect();
    append_all(&mut file, 1, &whole);
    let bytes = fs::read(&file.path).unwrap();
    for pages in 1..=2 {
        let found = decode(&bytes[..pages * PAGE_BYTES]);
        assert_eq!(found.kind, Kind::Sound);
        assert_eq!(batches(found), whole[..pages], "the frame before the torn one is complete");
        assert_eq!(decode(&bytes[..pages * PAGE_BYTES - 1]).kind, Kind::Damaged);
        assert_eq!(decode(&bytes[..=pages * PAGE_BYTES]).kind, Kind::Damaged);
    }
    // Damage in front of the torn frame is noticed.
    let mut damaged = bytes[..2 * PAGE_BYTES].to_vec();
    damaged[PAGE_BYTES] ^= 1;
    assert_eq!(decode(&damaged).kind, Kind::Damaged);
}

/// The heads of later frames tell exactly which events a damaged payload cost.
#[test]
fn damaged_payload_bounds_events_exactly() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = BufferFile::create(dir.path()).unwrap();
    let whole: Vec<Batch> = (1..4).map(|number| batch(number, "body".repeat(100))).collect();
    append_all(&mut file, 1, &whole);
    let mut bytes = fs::read(&file.path).unwrap();
    bytes[HEADER_BYTES + FRAME_HEAD_BYTES + 50] ^= 1;
    let found = decode(&bytes);
    // The end marker could hide one more event.
    assert!((3..=4).contains(&found.max_event), "{}", found.max_event);
}

/// The smallest event is as large as the bound says.
#[test]
fn smallest_event_has_the_minimal_size() {
    let bytes = postcard::to_extend(&EventRow::default(), Vec::new()).unwrap();
    assert_eq!(bytes.len() as u64, MIN_EVENT_BYTES);
}
