//! Sampling of tasks: walks over their process trees and the sums of their logs. It runs on a worker, because a walk over
//! thousands of processes takes long.

use std::path::Path;

use belay_os::cgroup::Cgroup;
use belay_os::limits::Usage;
use belay_os::process;
use belay_protocol::task::ProcessInfo;
use belay_record::LogReader;

use crate::effect::{Sample, SampleItem, TreeRoot};
use crate::tasks::output_info;

pub(super) fn sample(items: Vec<SampleItem>) -> Sample {
    let mut sample = Sample::default();
    for SampleItem { task, tree, log_dir } in items {
        if let Some(tree) = tree {
            let found = processes(&tree);
            sample.usage.insert(task.clone(), usage(&found));
            sample.processes.insert(task.clone(), found.into_iter().map(process_info).collect());
        }
        if let Some(log) = log_dir.and_then(|dir| LogReader::glance(&dir).ok()) {
            sample.output.insert(task, output_info(&log, true));
        }
    }
    sample
}

/// The processes below a shim, and those that are only in its cgroup.
fn processes(tree: &TreeRoot) -> Vec<process::ProcessInfo> {
    let mut found = process::descendants(tree.shim.pid);
    let known: std::collections::HashSet<i32> = found.iter().map(|info| info.identity.pid).collect();
    let others = pids_in(tree.cgroup.as_deref()).into_iter().filter(|pid| !known.contains(pid));
    found.extend(others.filter_map(process::info).filter(|info| !info.is_dead()));
    found
}

fn pids_in(cgroup: Option<&Path>) -> Vec<i32> {
    cgroup.and_then(|path| Cgroup::open(path).ok()?.pids().ok()).unwrap_or_default()
}

fn usage(found: &[process::ProcessInfo]) -> Usage {
    found.iter().fold(Usage::default(), |sum, one| Usage {
        memory_bytes: sum.memory_bytes.saturating_add(one.rss_bytes),
        processes: sum.processes.saturating_add(u64::from(one.threads.max(1))),
    })
}

fn process_info(info: process::ProcessInfo) -> ProcessInfo {
    let process::ProcessInfo { identity, ppid, state, command, rss_bytes, cpu_ms, .. } = info;
    ProcessInfo { pid: identity.pid, ppid, state: state.to_string(), command, rss_bytes, cpu_ms }
}
