//! Looking tasks up, live ones in memory and ended ones in the journal, by id or by an unambiguous beginning of it.

use belay_model::TaskId;
use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::shim::Now;
use belay_protocol::task::TaskInfo;

use crate::core::{Core, Task};
use crate::doc::Entry;
use crate::info::{Live, task_info};
use crate::rights::Scope;
use crate::world::World;

impl<W: World> Core<W> {
    /// The full id for what somebody typed.
    pub(crate) fn resolve(&self, scope: &Scope, text: &str) -> Result<String, RpcError> {
        if TaskId::parse(text).is_ok() {
            return Ok(text.to_owned());
        }
        if !TaskId::is_prefix(text) {
            let hint = "an id looks like sh-3kq7w0x2m9d4c8ab; belay ps -a lists them";
            return Err(RpcError::new(ErrorKind::NotFound, "that is no task id").field("id").hint(hint));
        }
        let mut ids = self.journal.resolve(text, 10).map_err(|error| journal_error(&error))?;
        if *scope != Scope::Person {
            ids.retain(|id| self.entry(id).is_ok_and(|entry| scope.covers_task(&entry)));
        }
        match ids.as_slice() {
            [id] => Ok(id.clone()),
            [] => Err(not_found(text)),
            _ => Err(RpcError::new(ErrorKind::Ambiguous, format!("{} tasks begin with {text}", ids.len()))
                .field("id")
                .hint(format!("one of: {}", ids.join(", ")))
                .ids(ids)),
        }
    }

    /// The task, live or ended.
    pub(crate) fn entry(&self, id: &str) -> Result<Entry, RpcError> {
        if let Some(task) = self.tasks.get(id) {
            return Ok(task.entry.clone());
        }
        if self.batch.removed.iter().any(|removed| removed == id) {
            // Gone for everybody; only its record is still in the way.
            return Err(not_found(id));
        }
        // An end that could not be written to the journal yet.
        let waiting = self.batch.put.iter().find(|row| row.id == id).cloned();
        let row = match waiting {
            Some(row) => Some(row),
            None => self.journal.task(id).map_err(|error| journal_error(&error))?,
        };
        let row = row.ok_or_else(|| not_found(id))?;
        Entry::from_row(row).map_err(|error| {
            RpcError::new(ErrorKind::Internal, format!("the record of task {id} cannot be read: {error}"))
        })
    }

    /// How a live task looks now. Walking its processes is done only when asked for.
    pub(crate) fn live_info(&self, id: &str, with_processes: bool, now: Option<&Now>) -> Option<TaskInfo> {
        Some(self.info_of(self.tasks.get(id)?, with_processes, now))
    }

    pub(crate) fn info_of(&self, task: &Task, with_processes: bool, now: Option<&Now>) -> TaskInfo {
        // Whose leader has left others behind is told with how many there are.
        let with_processes =
            with_processes || task.state.leader().is_some_and(|leader| leader.exit().is_some());
        let shim = task.entry.doc.shim.as_ref().filter(|_| with_processes);
        let processes = shim.map(|shim| {
            let cgroup = shim.cgroup.as_ref().map(|path| std::path::Path::new(path.as_os_str()));
            self.world.processes(shim.process.pid, cgroup)
        });
        let processes = processes.or_else(|| with_processes.then(Vec::new));
        let live = Live {
            state: Some(&task.state),
            now,
            processes: processes.as_ref(),
            // A shim that was asked knows better.
            output: now.is_none().then(|| self.output_of(task)),
            place: self.place_in_lane(&task.entry),
        };
        task_info(&task.entry, live)
    }

    /// How an ended task looks.
    pub(crate) fn ended_info(entry: &Entry) -> TaskInfo {
        task_info(entry, Live::default())
    }
}

pub(crate) fn not_found(id: &str) -> RpcError {
    RpcError::new(ErrorKind::NotFound, format!("there is no task {id}"))
        .field("id")
        .hint("belay ps -a lists them; ended ones are removed by the rules of retention")
}

pub(crate) fn journal_error(error: &belay_journal::Error) -> RpcError {
    let kind = match error {
        belay_journal::Error::Full { .. } => ErrorKind::DiskFull,
        _ => ErrorKind::Internal,
    };
    let hint = match kind {
        ErrorKind::DiskFull => "free some disk space, or run belay gc",
        _ => "belay doctor says more",
    };
    RpcError::new(kind, format!("the journal failed: {error}")).hint(hint)
}
