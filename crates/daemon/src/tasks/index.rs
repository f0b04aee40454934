//! The table of live tasks with its indexes: one method for each question. Changing a task goes through `update`, which keeps
//! the indexes right; no method looks at all tasks because one of them changed.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use belay_model::{Event, SessionId, step};
use belay_protocol::session::SessionCounts;
use belay_protocol::shim::Start;
use belay_protocol::task::{TaskKind, TaskStatus};
use belay_record::convert::status;

use super::live::LiveTasks;
use super::output_memory::KeptMemory;
use super::unsent_output::UnsentOutput;
use super::{StoredTask, Task, Tasks};
use crate::config::bounds;
use crate::input::{ClientId, ShimId};
use crate::runtime::{Index, Table};

/// What the live tasks in a session, or below a task, add up to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) counts: SessionCounts,
    /// Tasks that end with their session.
    pub(crate) bound: u64,
    pub(crate) total: u64,
}

/// What one task adds to a tally.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Contribution {
    kind: TaskKind,
    place: Ground,
    stalled: bool,
    bound: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ground {
    Queued,
    Foreground,
    Detached,
}

impl Contribution {
    fn of(task: &Task) -> Self {
        let doc = &task.stored.doc;
        let place = match (doc.status, task.state.detached()) {
            (TaskStatus::Queued, _) => Ground::Queued,
            (_, true) => Ground::Detached,
            (_, false) => Ground::Foreground,
        };
        Self {
            kind: doc.spec.kind(),
            place,
            stalled: doc.stalled.is_some(),
            bound: task.stored.ends_with_session(),
        }
    }
}

/// Remembers a session that was drained or became busy. The standing session and tasks are not remembered.
fn note_level(changed: &mut BTreeSet<String>, owner: &str, was_drained: bool, tally: &Tally) {
    if was_drained != tally.is_drained() && SessionId::is_prefix(owner) {
        changed.insert(owner.to_owned());
    }
}

impl Tally {
    /// Whether nothing works. A stalled task does not count as work.
    pub(crate) const fn is_drained(&self) -> bool {
        self.counts.agents + self.counts.shells == self.counts.stalled
    }

    fn apply(&mut self, part: Contribution, change: impl Fn(&mut u64)) {
        change(&mut self.total);
        change(match part.kind {
            TaskKind::Shell => &mut self.counts.shells,
            TaskKind::Agent => &mut self.counts.agents,
        });
        change(match part.place {
            Ground::Queued => &mut self.counts.queued,
            Ground::Foreground => &mut self.counts.foreground,
            Ground::Detached => &mut self.counts.detached,
        });
        if part.stalled {
            change(&mut self.counts.stalled);
        }
        if part.bound {
            change(&mut self.bound);
        }
    }
}

impl Tasks {
    pub(crate) fn new(kept_outputs: usize) -> Self {
        Self {
            live: LiveTasks::default(),
            by_name: Index::default(),
            by_caller: Index::default(),
            members: Index::default(),
            children: Index::default(),
            tallies: HashMap::new(),
            with_budget: BTreeSet::new(),
            tokens: HashMap::new(),
            token_of: HashMap::new(),
            recent: VecDeque::new(),
            changed: BTreeSet::new(),
            levels_changed: BTreeSet::new(),
            progressed: Vec::new(),
            detached: Vec::new(),
            awaiting_shim: VecDeque::new(),
            closing: BTreeMap::new(),
            kept_memory: KeptMemory::new(kept_outputs),
            unsent_output: UnsentOutput::default(),
            follows: Table::default(),
            active_follows: BTreeSet::new(),
            budget_timer: None,
            budget_sample_running: false,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.live.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    pub(crate) fn get(&self, id: &str) -> Option<&Task> {
        self.live.get(id)
    }

    pub(crate) fn contains(&self, id: &str) -> bool {
        self.live.contains(id)
    }

    /// All of them, for what concerns all of them.
    pub(crate) fn ids(&self) -> impl Iterator<Item = &String> {
        self.live.ids()
    }

    /// Live tasks with a smaller number, newest first.
    pub(super) fn newest_first(&self, before: Option<u64>) -> impl Iterator<Item = &Task> {
        self.live.newest_first(before)
    }

    /// Live tasks with this name.
    pub(crate) fn named(&self, name: &str) -> impl Iterator<Item = &Task> {
        self.by_name.of(name).filter_map(|id| self.live.get(id))
    }

    /// The task that has this idempotency token, live or ended.
    pub(crate) fn by_token(&self, token: &str) -> Option<&str> {
        self.tokens.get(token).map(String::as_str)
    }

    /// The live tasks in this session or below this task. Runs of hooks are not among them: a cascade does not stop them.
    pub(crate) fn below(&self, id: &str) -> Vec<String> {
        let members = self.members.of(id);
        members
            .filter(|id| self.live.get(id).is_some_and(|task| task.stored.doc.hook.is_none()))
            .cloned()
            .collect()
    }

    /// The live tasks in this session or below it, all of them.
    pub(crate) fn of_session(&self, id: &str) -> impl Iterator<Item = &Task> {
        self.members.of(id).filter_map(|id| self.live.get(id))
    }

    pub(crate) fn tally(&self, id: &str) -> Tally {
        self.tallies.get(id).copied().unwrap_or_default()
    }

    pub(crate) fn has_children(&self, id: &str) -> bool {
        self.children.count(id) > 0
    }

    /// The tasks whose callers wait on this connection.
    pub(super) fn of_caller(&self, client: ClientId) -> Vec<String> {
        self.by_caller.of(&client).cloned().collect()
    }

    // --- changing ---

    /// Adds a live task. Its token is known from now on.
    pub(crate) fn insert(&mut self, task: Task) {
        let id = task.stored.id.clone();
        if let Some(name) = &task.stored.name {
            self.by_name.add(name.clone(), id.clone());
        }
        if let Some(token) = &task.stored.token {
            self.add_token(token.clone(), id.clone());
        }
        for owner in task.stored.owners() {
            self.members.add(owner.to_owned(), id.clone());
        }
        if let Some(parent) = &task.stored.parent {
            self.children.add(parent.clone(), id.clone());
        }
        if !task.stored.doc.budgets.is_empty() {
            self.with_budget.insert(id.clone());
        }
        self.live.insert(task);
        self.recount(&id);
    }

    /// Takes a task out because it has ended; it stays readable among the recent ones.
    pub(super) fn remove(&mut self, id: &str) -> Option<Task> {
        let task = self.live.remove(id)?;
        if let Some(name) = &task.stored.name {
            self.by_name.remove(name, id);
        }
        if let Some(caller) = task.caller {
            self.by_caller.remove(&caller, id);
        }
        for owner in task.stored.owners() {
            self.members.remove(owner, id);
            if let (Some(tally), Some(part)) = (self.tallies.get_mut(owner), task.counted) {
                let was_drained = tally.is_drained();
                tally.apply(part, |count| *count -= 1);
                note_level(&mut self.levels_changed, owner, was_drained, tally);
                if tally.total == 0 {
                    self.tallies.remove(owner);
                }
            }
        }
        if let Some(parent) = &task.stored.parent {
            self.children.remove(parent, id);
        }
        self.with_budget.remove(id);
        self.changed.remove(id);
        if !self.awaiting_shim.is_empty() {
            self.awaiting_shim.retain(|waiting| waiting != id);
        }
        Some(task)
    }

    /// Changes a task and brings the indexes up to date.
    pub(super) fn update<R>(&mut self, id: &str, change: impl FnOnce(&mut Task) -> R) -> Option<R> {
        let task = self.live.get_mut(id)?;
        let before = task.caller;
        let result = change(task);
        let after = task.caller;
        if before != after {
            if let Some(client) = before {
                self.by_caller.remove(&client, id);
            }
            if let Some(client) = after {
                self.by_caller.add(client, id.to_owned());
            }
        }
        self.recount(id);
        Some(result)
    }

    fn recount(&mut self, id: &str) {
        let Some(task) = self.live.get_mut(id) else { return };
        let now = Contribution::of(task);
        let before = task.counted.replace(now);
        if before == Some(now) {
            return;
        }
        for owner in task.stored.owners() {
            let tally = self.tallies.entry(owner.to_owned()).or_default();
            let was_drained = tally.is_drained();
            if let Some(before) = before {
                tally.apply(before, |count| *count -= 1);
            }
            tally.apply(now, |count| *count += 1);
            note_level(&mut self.levels_changed, owner, was_drained, tally);
        }
    }

    pub(super) fn add_token(&mut self, token: String, id: String) {
        self.token_of.insert(id.clone(), token.clone());
        self.tokens.insert(token, id);
    }

    /// A task was removed from the journal: nothing of it is remembered.
    pub(crate) fn forget(&mut self, id: &str) {
        if let Some(token) = self.token_of.remove(id) {
            self.tokens.remove(&token);
        }
        self.recent.retain(|stored| stored.id != id);
        self.kept_memory.forget(id);
    }

    // --- recording ---

    /// The task has to be recorded again with the next commit.
    pub(crate) fn mark_changed(&mut self, id: &str) {
        if self.live.contains(id) {
            self.changed.insert(id.to_owned());
        }
    }

    /// An event about a live task was recorded: it is stored with the task.
    pub(crate) fn note_event(&mut self, id: &str, event: u64) {
        let Some(task) = self.live.get_mut(id) else { return };
        if task.stored.doc.last_event < event {
            task.stored.doc.last_event = event;
            self.changed.insert(id.to_owned());
        }
    }

    pub(crate) fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    pub(crate) fn take_changed(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.changed)
    }

    pub(crate) fn has_changed_levels(&self) -> bool {
        !self.levels_changed.is_empty()
    }

    pub(crate) fn take_changed_levels(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.levels_changed)
    }

    // --- tasks that have just ended ---

    pub(super) fn remember(&mut self, stored: StoredTask) {
        if stored.stored_bytes() > bounds::RECENT_TASK_BYTES {
            return;
        }
        if self.recent.len() == bounds::RECENT_TASKS {
            self.recent.pop_front();
        }
        self.recent.push_back(stored);
    }

    /// One of the tasks that ended last.
    pub(crate) fn recent(&self, id: &str) -> Option<&StoredTask> {
        self.recent.iter().rev().find(|stored| stored.id == id)
    }
}

/// What the shim pool and adoption change about a task.
impl Tasks {
    pub(crate) fn awaiting_shim_count(&self) -> usize {
        self.awaiting_shim.len()
    }

    pub(crate) fn next_awaiting_shim(&mut self) -> Option<String> {
        self.awaiting_shim.pop_front()
    }

    pub(crate) fn take_awaiting_shim(&mut self) -> VecDeque<String> {
        std::mem::take(&mut self.awaiting_shim)
    }

    /// A task that waits for a shim, and whether the shim has to hold it until it is admitted.
    pub(crate) fn start_awaiting_shim(&self, id: &str) -> Option<(StoredTask, bool)> {
        let task = self.live.get(id)?;
        let held = task.start.as_ref().is_some_and(|start| start.held);
        Some((task.stored.clone(), held))
    }

    pub(crate) fn replace_stored(&mut self, id: &str, stored: StoredTask) {
        self.update(id, |task| task.stored = stored);
    }

    /// The task goes to this shim: the message that starts it.
    pub(crate) fn take_start(&mut self, id: &str, shim: ShimId) -> Option<Box<Start>> {
        self.update(id, |task| {
            let start = task.start.take()?;
            task.shim = Some(shim);
            if !start.held {
                task.state = step(&task.policy, task.state.clone(), Event::Admitted).state;
            }
            Some(start)
        })?
    }

    /// The shim of a queued task.
    pub(crate) fn queued_shim(&self, id: &str) -> Option<ShimId> {
        self.live.get(id).filter(|task| task.is_queued())?.shim
    }

    /// A queued task starts.
    pub(crate) fn admitted(&mut self, id: &str) {
        self.update(id, |task| {
            task.state = step(&task.policy, task.state.clone(), Event::Admitted).state;
            task.stored.doc.status = status(&task.state);
        });
        self.mark_changed(id);
    }

    /// An adopted task is queued, whatever was recorded last.
    pub(crate) fn adopted_queued(&mut self, id: &str) {
        self.update(id, |task| {
            task.reset(true);
            task.stored.doc.status = TaskStatus::Queued;
        });
        self.mark_changed(id);
    }

    /// A task has been given the seat that it waited for.
    pub(crate) fn seat_granted(&mut self, id: &str, generation: u64) {
        self.update(id, |task| {
            if let Some(seat) = &mut task.stored.doc.lane {
                seat.generation = Some(generation);
            }
            if let Some(start) = &mut task.start {
                // No shim has it yet: it starts when one does.
                start.held = false;
            }
        });
        self.mark_changed(id);
    }

    pub(crate) fn set_shim(&mut self, id: &str, shim: Option<ShimId>) {
        self.update(id, |task| task.shim = shim);
    }

    pub(crate) fn reset(&mut self, id: &str, queued: bool) {
        self.update(id, |task| task.reset(queued));
    }

    pub(crate) fn load_tokens(&mut self, tokens: Vec<(String, String)>) {
        for (token, id) in tokens {
            self.add_token(token, id);
        }
    }
}

impl Task {
    /// It has been given the seat of its lane.
    pub(crate) fn has_seat(&self) -> bool {
        self.stored.doc.lane.as_ref().is_some_and(|seat| seat.generation.is_some())
    }
}
