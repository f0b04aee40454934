//! Shims that the journal does not know: after a journal was damaged, or when an end could not be acknowledged. What they
//! hold is asked of them, so that nothing that runs is forgotten.

use std::collections::HashSet;

use belay_journal::EventRow;
use belay_model::{State, TaskId};
use belay_protocol::event::{Event, EventKind};
use belay_protocol::shim::{Spec, ToShim};
use belay_protocol::task::{Status, TaskKind};
use belay_record::convert::policy_from_wire;

use crate::commit::is_kind;
use crate::config::bounds;
use crate::core::{Core, Shim, ShimStage, Task};
use crate::doc::{Entry, ShimDoc, TaskDoc};
use crate::event::{Action, ShimId};
use crate::info::typed;
use crate::sessions::STANDING;
use crate::telling::{self, About};
use crate::world::World;

impl<W: World> Core<W> {
    /// Reaches for every shim that has a socket and is not in the journal.
    pub(crate) fn reach_for_strays(&mut self) {
        let known: HashSet<String> = self.shims.values().map(|shim| shim.name.clone()).collect();
        let names = self.world.shim_names(&self.config.runtime_dir);
        for name in names.into_iter().filter(|name| !known.contains(name)) {
            let shim = ShimId(self.next_number());
            let state = Shim { stray: true, adopted: true, ..Shim::coming(name.clone()) };
            self.shims.insert(shim, state);
            self.actions.push(Action::ConnectShim { shim, name });
        }
    }

    /// Nobody is there: only the socket was left.
    pub(crate) fn forget_stray(&mut self, id: ShimId) {
        if let Some(shim) = self.shims.remove(&id) {
            self.actions.push(Action::RemoveSocket { name: shim.name });
        }
    }

    /// A stray has answered. An idle one is let go; one whose end is in the journal, or was, may forget it; any other
    /// holds a task that is taken into the journal now.
    pub(crate) fn stray_found(
        &mut self,
        id: ShimId,
        task: Option<String>,
        spec: Option<Box<Spec>>,
        queued: bool,
    ) {
        let Some(shim) = self.shims.get_mut(&id) else { return };
        shim.stray = false;
        shim.stage = ShimStage::Holding;
        match (task.filter(|task| TaskId::parse(task).is_ok()), spec) {
            (Some(task), _) if self.entry(&task).is_ok() || self.was_removed(&task) => {
                self.actions.push(Action::ToShim { shim: id, message: ToShim::Ack { task } });
            }
            (Some(task), Some(spec)) => {
                self.take_in(id, &task, *spec, queued);
                // Nobody knows any more what it waited for: it waits no longer.
                self.admit(&task);
            }
            _ => {
                self.shims.remove(&id);
                self.actions.push(Action::DropShim { shim: id });
            }
        }
        self.open_doors_when_done();
    }

    /// Whether somebody removed the task before its shim heard that its end is in the journal. It does not come back.
    fn was_removed(&self, task: &str) -> bool {
        let after = self.journal.last_event().saturating_sub(bounds::LIST_ITEMS as u64);
        let page = self.journal.events(after, bounds::LIST_ITEMS);
        let is_it =
            |event: &EventRow| is_kind(event, EventKind::TaskRemoved) && event.task.as_deref() == Some(task);
        page.is_ok_and(|page| page.events.iter().any(is_it))
    }

    fn take_in(&mut self, shim_id: ShimId, task_id: &str, spec: Spec, queued: bool) {
        let Some(shim) = self.shims.get_mut(&shim_id) else { return };
        let Some(process) = shim.process else { return };
        shim.task = Some(task_id.to_owned());
        let command = match (spec.is_shell, spec.argv.get(2)) {
            (true, Some(line)) => line.to_text_lossy().into_owned(),
            _ => typed(&spec.argv),
        };
        let doc = TaskDoc {
            kind: TaskKind::Shell,
            command,
            line: None,
            argv: spec.argv,
            cwd: spec.cwd,
            detached: spec.detached,
            detached_by: None,
            on_disconnect: belay_protocol::task::OnDisconnect::default(),
            clocks: spec.clocks,
            lineage: Vec::new(),
            keep: false,
            lane: None,
            budgets: spec.budgets,
            written_below: None,
            notify: None,
            hook: None,
            pty: spec.pty,
            fingerprint: None,
            proof: String::new(),
            boot: self.boot.clone(),
            shim: Some(ShimDoc { name: shim.name.clone(), process, cgroup: shim.cgroup.clone() }),
            started_ms: None,
            leader: None,
            leader_exit: None,
            attempt: TaskDoc::no_attempt_yet(&spec.clocks),
            stalled: None,
            seen: 0,
            status: if queued { Status::Queued } else { Status::Starting },
            end: None,
        };
        let entry = Entry {
            id: task_id.to_owned(),
            number: self.next_task_number(),
            token: None,
            session: STANDING.to_owned(),
            parent: None,
            name: None,
            created_ms: spec.started_ms,
            doc,
        };
        let policy = policy_from_wire(&entry.doc.clocks, entry.doc.detached);
        let state = State::new(entry.doc.detached);
        self.put(&entry);
        self.emit(&telling::created(&entry, Some("its shim was running and the journal did not list it")));
        let About { task, session } = About::new(&entry);
        self.emit(&Event::TaskAdopted { task, session });
        self.notice(format!("task {task_id} was running and not in the journal: taken in"), "");
        let mut task = Task { shim: Some(shim_id), ..Task::new(entry, state, policy) };
        task.begin_again(queued);
        self.tasks.insert(task_id.to_owned(), task);
    }
}
