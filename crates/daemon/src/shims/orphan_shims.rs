//! Orphan shims, which are not in the journal: after the journal was damaged, or when an end could
//! not be acknowledged. The daemon asks each one which task it holds, so that no running task is
//! lost.

use std::collections::HashSet;

use belay_journal::{Query, Rows};
use belay_model::{Kind, State, TaskId};
use belay_protocol::event::Event;
use belay_protocol::shim::{Hello, ProcessId, SHIM_PROTOCOL, Spec, ToShim};
use belay_protocol::task::{AgentInfo, OnDisconnect, ShellInfo, TaskSpecInfo, TaskStatus, TerminalSize};
use belay_protocol::{Bytes, Labels};
use belay_record::convert::policy_from_wire;

use super::{Shim, ShimStage};
use crate::effect::Effect;
use crate::host::Host;
use crate::input::ShimId;
use crate::owners::STANDING;
use crate::runtime::{Core, Stage};
use crate::tasks::{ShimRecord, StoredTask, Task, TaskDoc, typed};

impl<H: Host> Core<H> {
    /// Connects to every shim that has a socket and is not in the journal.
    pub(super) fn connect_orphan_shims(&mut self) {
        let known: HashSet<String> = self.shims.names().map(str::to_owned).collect();
        let names = self.ctx.host.shim_names(&self.ctx.config.runtime_dir);
        for name in names.into_iter().filter(|name| !known.contains(name)) {
            let shim = ShimId(self.ctx.next_number());
            let state = Shim { is_orphan: true, adopted: true, ..Shim::new(name.clone()) };
            self.shims.insert(shim, state);
            self.ctx.effects.push(Stage::Unconditional, Effect::ConnectShim { shim, name });
        }
    }

    /// The shim does not exist any more: removes the socket that it left.
    pub(super) fn forget_orphan_shim(&mut self, id: ShimId) {
        if let Some(shim) = self.shims.remove(id) {
            self.ctx.effects.push(Stage::Unconditional, Effect::RemoveSocket { name: shim.name });
        }
    }

    /// An orphan shim has reported which task it holds. An idle shim is closed. If the end of the
    /// task is or was in the journal, it is acknowledged to the shim; any other task is imported.
    pub(super) fn orphan_hello(&mut self, id: ShimId, hello: Hello) {
        let task = hello.task.filter(|task| TaskId::parse(task).is_ok());
        let Some((task, spec)) = task.zip(hello.spec) else {
            self.shims.remove(id);
            self.ctx.effects.push(Stage::Unconditional, Effect::CloseShim { shim: id });
            return self.start_serving_when_adopted();
        };
        let (queued, process, memory) = (hello.queued, hello.process, hello.memory);
        if self.tasks.contains(&task) || self.retention.is_removed(&task) {
            return self.orphan_is_known(id, task, process, None);
        }
        self.read_journal(Query::Tasks(vec![task.clone()]), move |core, rows| {
            let is_known = core.tasks.contains(&task)
                || core.retention.is_removed(&task)
                || matches!(rows, Ok(Rows::Tasks(rows)) if !rows.is_empty());
            if is_known {
                core.orphan_is_known(id, task, process, memory);
            } else {
                core.import_unknown(id, &task, *spec, queued);
            }
        });
    }

    /// The journal has the task: acknowledges its end to the shim, which ignores that while the
    /// task is live.
    fn orphan_is_known(&mut self, id: ShimId, task: String, process: ProcessId, memory: Option<[i32; 2]>) {
        let known = self.shims.update(id, |shim| {
            shim.is_orphan = false;
            shim.stage = ShimStage::Holding;
        });
        if known.is_some() {
            tracing::info!(task, "shim held a task that is recorded");
            self.end_of_orphan(id, task, process, memory);
        }
        self.start_serving_when_adopted();
    }

    /// Imports a task that only its shim knows, and asks the shim for all of its events.
    fn import_unknown(&mut self, shim_id: ShimId, id: &str, spec: Spec, queued: bool) {
        let found = self.shims.update(shim_id, |shim| {
            shim.is_orphan = false;
            shim.stage = ShimStage::Holding;
            shim.task = Some(id.to_owned());
            let (name, cgroup) = (shim.name.clone(), shim.cgroup.clone());
            shim.process.map(|process| ShimRecord { name, process, cgroup })
        });
        let Some(Some(record)) = found else { return self.start_serving_when_adopted() };
        let stored = self.unknown_task(id, spec, queued, record);
        let created = Event::TaskCreated {
            task: id.to_owned(),
            session: stored.session.clone(),
            command: stored.doc.command.clone(),
            name: None,
            parent: None,
            found: Some("its shim was running and the journal did not know it".to_owned()),
        };
        self.ctx.journal.put_task(&stored);
        self.ctx.record(created, String::new());
        self.ctx.record(
            Event::TaskAdopted { task: id.to_owned(), session: stored.session.clone() },
            String::new(),
        );
        self.ctx.notice(format!("task {id} was running and not in the journal: imported"), "");
        let policy = policy_from_wire(&stored.doc.clocks, stored.doc.detached);
        let state = State::new(stored.doc.detached);
        self.tasks.insert(Task::new(stored, state, policy));
        self.tasks.set_shim(id, Some(shim_id));
        self.tasks.reset(id, queued);
        self.ctx.tell_shim(shim_id, ToShim::Hello { protocol: SHIM_PROTOCOL, seen: 0 });
        // The lane that it was queued for is not known, so it is admitted.
        self.admit(id);
        self.start_serving_when_adopted();
    }

    fn unknown_task(&self, id: &str, spec: Spec, queued: bool, shim: ShimRecord) -> StoredTask {
        let command = match (spec.is_shell, spec.argv.get(2)) {
            (true, Some(line)) => line.to_text_lossy().into_owned(),
            _ => typed(&spec.argv),
        };
        let doc = TaskDoc {
            command,
            spec: spec_of_unknown(id, spec.argv, spec.pty),
            cwd: spec.cwd,
            detached: spec.detached,
            detached_by: None,
            on_disconnect: OnDisconnect::default(),
            clocks: spec.clocks,
            lineage: Vec::new(),
            labels: Labels::new(),
            started_by: String::new(),
            client: None,
            keep: false,
            lane: None,
            budgets: spec.budgets,
            written_below: None,
            notify: None,
            hook: None,
            fingerprint: None,
            proof: String::new(),
            boot: self.ctx.boot.clone(),
            shim: Some(shim),
            started_ms: None,
            leader: None,
            leader_exit: None,
            attempt: TaskDoc::no_attempt_yet(&spec.clocks),
            stall_set: None,
            stalled: None,
            seen: 0,
            last_event: 0,
            status: if queued { TaskStatus::Queued } else { TaskStatus::Starting },
            end: None,
        };
        StoredTask {
            id: id.to_owned(),
            number: self.ctx.journal.next_task_number(),
            token: None,
            session: STANDING.to_owned(),
            parent: None,
            name: None,
            created_ms: spec.started_ms,
            doc,
        }
    }
}

/// What can be said of a task that only its shim knows. Its id says of which kind it is.
fn spec_of_unknown(id: &str, argv: Vec<Bytes>, pty: Option<TerminalSize>) -> TaskSpecInfo {
    if TaskId::parse(id).is_ok_and(|id| id.kind() == Kind::Agent) {
        let agent = argv.first().map(|program| program.to_text_lossy().into_owned()).unwrap_or_default();
        return TaskSpecInfo::Agent(AgentInfo { agent, argv, stay: false });
    }
    TaskSpecInfo::Shell(ShellInfo { argv, line: None, pty })
}
