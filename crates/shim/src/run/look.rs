//! Looking at a task: how much it has written and worked so far, and who is there. What to make of it is the core's.

use belay_model::Evidence;
use belay_os::process;
use belay_protocol::task::ProcessInfo;

use super::Shim;
use crate::core::Look;

/// How many processes are named.
const NAMED: usize = 20;

impl Shim {
    pub(super) fn look(&self) -> Look {
        let members = self.tree.members();
        let more = members.len().saturating_sub(NAMED) as u64;
        let output_bytes = self.task.as_ref().map_or(0, |task| task.output.bytes());
        Look {
            evidence: Evidence { output_bytes, cpu_ms: self.tree.cpu_ms() },
            processes: members.into_iter().take(NAMED).map(told).collect(),
            more,
        }
    }
}

fn told(process: process::ProcessInfo) -> ProcessInfo {
    let process::ProcessInfo { identity, ppid, state, command, rss_bytes, cpu_ms, .. } = process;
    ProcessInfo { pid: identity.pid, ppid, state: state.to_string(), command, rss_bytes, cpu_ms }
}
