//! Output that is in memory instead of on disk: while a caller waits for the task it is in the shim's memory, and the output of
//! the last foreground tasks that ended is kept in the daemon's.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use belay_protocol::Timestamp;
use belay_protocol::life::OutputInfo;
use belay_record::{LogReader, MemoryLog};

use super::{Task, Tasks};
use crate::config::bounds;
use crate::host::Host;
use crate::input::ShimId;
use crate::runtime::Core;

/// The output of tasks that ended in the foreground: the last ones, while there is room.
#[derive(Debug)]
pub(super) struct KeptMemory {
    order: VecDeque<String>,
    logs: HashMap<String, Kept>,
    bytes: u64,
    most: usize,
}

#[derive(Debug)]
struct Kept {
    bytes: u64,
    log: Arc<MemoryLog>,
}

impl KeptMemory {
    /// Room for the output of so many tasks.
    pub(super) fn new(most: usize) -> Self {
        Self { order: VecDeque::new(), logs: HashMap::new(), bytes: 0, most }
    }

    fn keep(&mut self, task: &str, bytes: u64, log: Arc<MemoryLog>) {
        self.order.push_back(task.to_owned());
        self.logs.insert(task.to_owned(), Kept { bytes, log });
        self.bytes += bytes;
        while self.bytes > bounds::KEPT_MEMORY_BYTES || self.logs.len() > self.most {
            let Some(oldest) = self.order.pop_front() else { return };
            self.drop_log(&oldest);
        }
    }

    fn get(&self, task: &str) -> Option<Arc<MemoryLog>> {
        self.logs.get(task).map(|kept| Arc::clone(&kept.log))
    }

    pub(super) fn forget(&mut self, task: &str) {
        if self.drop_log(task) {
            self.order.retain(|kept| kept != task);
        }
    }

    fn drop_log(&mut self, task: &str) -> bool {
        let Some(kept) = self.logs.remove(task) else { return false };
        self.bytes -= kept.bytes;
        true
    }
}

/// The sums of a log, as far as it is kept.
pub(crate) fn output_info(log: &LogReader, on_disk: bool) -> OutputInfo {
    let (bytes, first) = (log.end(), log.first());
    let last_at = log.last_run_at_ms().ok().flatten().map(Timestamp);
    OutputInfo { bytes, gaps: log.gaps(), first, on_disk: on_disk && bytes > 0, last_at }
}

impl Task {
    /// Whether the sums of its output have to be looked up on disk.
    pub(super) const fn has_log_on_disk(&self) -> bool {
        self.memory.is_none() && !self.no_disk_output
    }
}

impl Tasks {
    /// A task has ended in the foreground: its output is kept while there is room, so that it can be read once more.
    pub(super) fn keep_memory(&mut self, id: &str, bytes: u64, memory: Option<Arc<MemoryLog>>) {
        if let Some(log) = memory.filter(|_| bytes > 0) {
            self.kept_memory.keep(id, bytes, log);
        }
    }

    /// The log of a task, if it is in memory.
    pub(crate) fn memory_of(&self, id: &str) -> Option<Arc<MemoryLog>> {
        match self.live.get(id) {
            Some(task) => task.memory.clone(),
            None => self.kept_memory.get(id),
        }
    }
}

impl<H: Host> Core<H> {
    /// A shim has said where the output of its task is.
    pub(crate) fn set_output_location(&mut self, shim: ShimId, numbers: Option<[i32; 2]>) {
        let Some((task, process)) = self.shims.task_and_process(shim) else { return };
        let opened = numbers.map(|numbers| self.ctx.host.memory_log(process, numbers));
        self.tasks.update(&task, |task| {
            // A log that cannot be opened stays with the shim, which writes it to disk at a detach.
            task.memory = opened.and_then(Result::ok).map(Arc::new);
            task.no_disk_output &= numbers.is_some();
        });
    }

    /// The sums of a live task's output, looked up where it is. What cannot be read counts as nothing.
    pub(super) fn output_sums(&self, task: &Task) -> OutputInfo {
        let log = match &task.memory {
            Some(log) => LogReader::in_memory(Arc::clone(log)),
            None if task.no_disk_output => return OutputInfo::default(),
            None => self.ctx.host.log_sums(&self.ctx.config.task_dir(task.id())),
        };
        let on_disk = task.memory.is_none();
        log.map_or_else(|_| OutputInfo::default(), |log| output_info(&log, on_disk))
    }

    /// A live task's description; the sums of a log on disk are left out, for a sample to fill in.
    pub(super) fn info_without_log(&self, task: &Task) -> belay_protocol::task::TaskInfo {
        let output = if task.has_log_on_disk() { OutputInfo::default() } else { self.output_sums(task) };
        self.info_with_output(task, output)
    }

    /// The log of a task, wherever it is.
    pub(crate) fn log_of(&self, id: &str) -> std::io::Result<LogReader> {
        match self.tasks.memory_of(id) {
            Some(log) => LogReader::in_memory(log),
            None => self.ctx.host.log(&self.ctx.config.task_dir(id)),
        }
    }

    /// The sums of a lost task's output: on disk, or in what was its shim's memory and is the daemon's now.
    pub(super) fn output_of_lost(&self, id: &str) -> OutputInfo {
        let on_disk = self.tasks.memory_of(id).is_none();
        self.log_of(id).map_or_else(|_| OutputInfo::default(), |log| output_info(&log, on_disk))
    }
}
