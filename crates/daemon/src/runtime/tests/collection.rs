//! Collections of ended tasks: the directories of one slice are removed while the next slices are looked up, but not of any
//! number of slices, and the reply comes when all are gone.

use belay_protocol::daemon::DaemonGcParams;
use belay_protocol::methods::DaemonGc;

use super::{CLIENT, Fixture};
use crate::config::bounds;
use crate::effect::Effect;
use crate::input::{Input, JobId};

const SLICES: usize = 10;

impl Fixture {
    /// The removals that wait for their worker, and how many directories each removes.
    fn take_removals(&mut self) -> Vec<(JobId, usize)> {
        let hanging = std::mem::take(&mut self.hanging).into_iter();
        let removals = hanging.filter_map(|effect| match effect {
            Effect::RemoveDirs { job, dirs } => Some((job, dirs.len())),
            _ => None,
        });
        removals.collect()
    }
}

// proves X3
#[test]
fn collection_overlaps_removals_up_to_a_bound() {
    let mut fixture = Fixture::new();
    for _ in 0..SLICES * bounds::GC_ITEMS {
        let task = fixture.start(|_| ());
        fixture.exit(&task);
    }
    fixture.take_removals();
    let gc = fixture.send::<DaemonGc>(CLIENT, &DaemonGcParams { all: true, dry_run: false });
    fixture.pass_time();
    let mut waiting = fixture.take_removals();
    assert_eq!(waiting, waiting.iter().map(|(job, _)| (*job, bounds::GC_ITEMS)).collect::<Vec<_>>());
    assert_eq!(waiting.len(), 8);
    let mut removed = 0;
    while let Some((job, dirs)) = waiting.pop() {
        assert!(fixture.reply::<DaemonGc>(gc).is_none(), "{removed} directories are removed");
        removed += dirs;
        fixture.tell(Input::DirsRemoved { job, freed_bytes: 3 });
        fixture.pass_time();
        waiting.extend(fixture.take_removals());
    }
    let result = fixture.reply::<DaemonGc>(gc).expect("the collection has ended");
    let counted = usize::try_from(result.removed).unwrap();
    assert_eq!((counted, removed), (SLICES * bounds::GC_ITEMS, SLICES * bounds::GC_ITEMS));
    assert_eq!(result.freed_bytes, 3 * SLICES as u64);
}
