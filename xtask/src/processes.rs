//! Knowing that nothing was left behind: this process becomes the one to which everything orphaned below it comes
//! back, so that what lives on after the tests is found whatever it did to get away.

use std::collections::BTreeSet;
use std::time::Duration;

use belay_os::{Identity, ProcessInfo, Tree};

use crate::run::{Outcome, wait_until};

/// How long what is on its way out may take.
const LEAVING: Duration = Duration::from_secs(5);

/// Everything below this process that was there before.
#[derive(Debug)]
pub(crate) struct Watch {
    before: BTreeSet<Identity>,
}

impl Watch {
    pub(crate) fn begin() -> Outcome<Self> {
        belay_os::tree::become_subreaper()?;
        let before = Tree::new(None).members().iter().map(|info| info.identity).collect();
        Ok(Self { before })
    }

    /// Fails with their names if processes are left; and ends them, for the next run must not find them.
    pub(crate) fn end(&self) -> Outcome {
        let mut left = Vec::new();
        let gone = wait_until(LEAVING, || {
            left = self.left()?;
            Ok(left.is_empty())
        })?;
        if gone {
            return Ok(());
        }
        let names: Vec<String> =
            left.iter().map(|info| format!("  {} {}", info.identity.pid, info.command)).collect();
        if self.before.is_empty() {
            Tree::new(None).kill_until_empty(5_000)?;
        }
        Err(format!("the tests left {} processes behind:\n{}", left.len(), names.join("\n")).into())
    }

    fn left(&self) -> Outcome<Vec<ProcessInfo>> {
        let mut tree = Tree::new(None);
        tree.reap(&mut Vec::new())?;
        let mut left = tree.members();
        left.retain(|info| !self.before.contains(&info.identity));
        Ok(left)
    }
}
