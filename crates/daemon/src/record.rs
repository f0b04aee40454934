//! Looking tasks up, live ones in memory and ended ones in the journal, by id, by an unambiguous beginning of it, or by name.

use belay_model::TaskId;
use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::shim::Now;
use belay_protocol::task::TaskInfo;

use crate::config::bounds;
use crate::core::{Core, Task};
use crate::doc::Entry;
use crate::info::{Live, task_info};
use crate::rights::Scope;
use crate::world::World;

/// So many of those that may be meant are named.
const AMBIGUOUS_IDS: usize = 10;

/// Among so many that begin alike somebody's own are looked for.
const SEARCHED_IDS: usize = 10_000;

impl<W: World> Core<W> {
    /// The full id for what somebody typed. What is an id, or begins one, is taken as that before it is taken as a name.
    pub(crate) fn resolve(&self, scope: &Scope, text: &str) -> Result<String, RpcError> {
        if TaskId::parse(text).is_ok() {
            return Ok(text.to_owned());
        }
        let begins = if TaskId::is_prefix(text) { self.beginning_with(scope, text)? } else { Vec::new() };
        match begins.as_slice() {
            [] => self.resolve_name(scope, text),
            // Whoever left out the rest meant one of them, also if there is only one.
            _ if text.ends_with('-') => {
                Err(ambiguous(format!("{text} alone is too short for the beginning of an id"), begins))
            }
            [id] => Ok(id.clone()),
            _ => Err(ambiguous(format!("{} tasks begin with {text}", counted(&begins)), begins)),
        }
    }

    fn beginning_with(&self, scope: &Scope, text: &str) -> Result<Vec<String>, RpcError> {
        // Who may see only some of them is not told of one because others come before it.
        let most = if *scope == Scope::Person { AMBIGUOUS_IDS + 1 } else { SEARCHED_IDS };
        let ids = self.journal.resolve(text, most).map_err(|error| journal_error(&error))?;
        let seen = |id: &String| {
            *scope == Scope::Person || self.entry(id).is_ok_and(|entry| scope.covers_task(&entry))
        };
        Ok(ids.into_iter().filter(seen).take(AMBIGUOUS_IDS + 1).collect())
    }

    /// The one live task with this name, or else the one with it that was started last.
    fn resolve_name(&self, scope: &Scope, name: &str) -> Result<String, RpcError> {
        if name.is_empty() || name.len() > bounds::NAME_BYTES {
            return Err(not_found(name));
        }
        let is_meant = |entry: &Entry| entry.name.as_deref() == Some(name) && scope.covers_task(entry);
        let live = self.tasks.values().map(|task| &task.entry).filter(|entry| is_meant(entry));
        let mut live: Vec<String> = live.map(|entry| entry.id.clone()).collect();
        match live.len() {
            0 => {}
            1 => return Ok(live.remove(0)),
            many => {
                return Err(ambiguous(format!("{many} live tasks have the name {}", shown(name)), live));
            }
        }
        let filter = belay_journal::TaskFilter {
            ended: Some(true),
            name: Some(name.to_owned()),
            limit: bounds::LIST_ITEMS,
            ..Default::default()
        };
        let rows = self.journal.tasks(&filter).map_err(|error| journal_error(&error))?;
        let kept = rows.into_iter().filter(|row| !self.batch.removed.contains(&row.id));
        // Ends that the disk has no room for yet.
        let waiting = self.batch.put.iter().filter(|row| row.ended_ms.is_some()).cloned();
        let ended = waiting.chain(kept).filter_map(|row| Entry::from_row(row).ok()).filter(is_meant);
        ended.max_by_key(|entry| entry.number).map(|entry| entry.id).ok_or_else(|| not_found(name))
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

/// Whatever was typed, as far as it can be repeated. What cannot be seen is shown, or it would pass for something else.
fn shown(text: &str) -> String {
    let mut shown = String::new();
    for c in text.chars().take(40) {
        if c.is_control() { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    shown
}

pub(crate) fn not_found(text: &str) -> RpcError {
    let message = match shown(text) {
        empty if empty.is_empty() => "an empty id names no task".to_owned(),
        shown => format!("there is no task {shown}"),
    };
    RpcError::new(ErrorKind::NotFound, message)
        .field("id")
        .hint("belay ps -a lists them; ended ones are removed by the rules of retention")
}

fn counted(ids: &[String]) -> String {
    if ids.len() > AMBIGUOUS_IDS { format!("more than {AMBIGUOUS_IDS}") } else { ids.len().to_string() }
}

fn ambiguous(message: String, mut ids: Vec<String>) -> RpcError {
    ids.truncate(AMBIGUOUS_IDS);
    RpcError::new(ErrorKind::Ambiguous, message)
        .field("id")
        .hint(format!("one of: {}", ids.join(", ")))
        .ids(ids)
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
