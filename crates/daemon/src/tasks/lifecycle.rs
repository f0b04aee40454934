//! The life of a task as its shim reports it: each life event is applied once and recorded once. A task whose shim is gone is
//! ended here, with what is known of it.

use belay_model::{Cause, Event, Leader, Outcome, State, StopOrder, step};
use belay_protocol::Timestamp;
use belay_protocol::life::{
    CaptureFault, OutputInfo, SignalSent, StopCause, StopLevel, StopReceipt, SurvivorInfo, TaskEnd,
};
use belay_protocol::shim::{EndRecord, LifeEvent, LifeItem};
use belay_protocol::task::TaskStatus;
use belay_record::EndFile;
use belay_record::convert::{Wire as _, event_from_wire, stall_from_wire, status};

use super::{StopRequest, task_events};
use crate::effect::{Effect, LostTask, LostTree, Reaped, WithoutEndFile};
use crate::host::{CrashPoint, Host};
use crate::input::ShimId;
use crate::runtime::{Core, Stage};

/// What becomes of the output of a task whose shim was ended with it.
const UNREAD: &str = "its shim did not answer and was ended with it: what the shim had not read is missing, how much is not known";

/// Without a cgroup, a process that left its session, its parents and its environment cannot be found.
const MAYBE_OTHERS: &str = "; without a cgroup there may be others that left no trace";

impl<H: Host> Core<H> {
    /// One life event. It is ignored until the shim has said hello to this daemon: then it reports the whole life from its
    /// beginning.
    pub(crate) fn life_event(&mut self, shim: ShimId, item: LifeItem) {
        if let Some(id) = self.shims.reporting_task(shim).filter(|task| *task == item.task).map(str::to_owned)
        {
            self.apply_life_event(&id, item);
        }
    }

    fn apply_life_event(&mut self, id: &str, item: LifeItem) {
        if self.tasks.get(id).is_none_or(|task| item.number <= task.applied) {
            return;
        }
        let applied = self.tasks.update(id, |task| {
            task.applied = item.number;
            let doc = &mut task.stored.doc;
            let before = task.state.clone();
            let was_detached = before.detached();
            if let LifeEvent::StallSet { stall } = &item.event {
                task.policy.stall = stall.map(stall_from_wire);
            }
            task.state = step(&task.policy, before, event_from_wire(item.event.clone())).state;
            doc.apply(&item.event, &task.state, Timestamp(item.at_ms));
            if let Some(end) = &item.end {
                // The shim was there: its verdict counts, also if this daemon would decide otherwise.
                task.state = State::Ended(Outcome::from_wire(end.end.clone()));
                doc.end = Some((**end).clone());
            }
            let ended = task.state.is_ended();
            let newly_detached = task.state.detached() && !was_detached && !ended;
            if newly_detached {
                doc.detached_by = Some(task_events::detached_by(&item.event));
            }
            doc.status = status(&task.state);
            let is_new = item.number > doc.seen;
            doc.seen = doc.seen.max(item.number);
            Applied { ended, newly_detached, is_new }
        });
        let Some(Applied { ended, newly_detached, is_new }) = applied else { return };
        if newly_detached {
            self.tasks.detached.push(id.to_owned());
        }
        if is_new {
            self.ctx.crash_point(if ended { CrashPoint::BeforeEnd } else { CrashPoint::BeforeLife });
            self.record_life_event(id, &item.event, Timestamp(item.at_ms), ended);
        }
        if let LifeEvent::StallSet { .. } = item.event {
            self.stall_was_set(id);
        }
        if ended {
            self.task_ended(id);
        } else {
            self.tasks.progressed.push(id.to_owned());
        }
    }

    fn record_life_event(&mut self, id: &str, event: &LifeEvent, at: Timestamp, ended: bool) {
        let Some(task) = self.tasks.get(id) else { return };
        let stored = &task.stored;
        if let LifeEvent::Stalled { evidence } = event {
            tracing::info!(task = id, "stalled");
            let stalled = belay_protocol::event::Event::TaskStalled {
                task: stored.id.clone(),
                session: stored.session.clone(),
                since: at,
                evidence: (**evidence).clone(),
                policy: stored.doc.stall().map(|stall| stall.policy),
            };
            self.ctx.journal.record(self.ctx.now, &stalled, stored.tags());
        }
        let event = if ended {
            Some(task_events::ended(stored))
        } else {
            task_events::of_life(stored, event, &task.state, &task.policy)
        };
        if let Some(event) = event {
            log_stop_at_limit(&event);
            self.ctx.journal.record(self.ctx.now, &event, stored.tags());
        }
        if !ended {
            self.tasks.mark_changed(id);
            self.ctx.effects.push(Stage::AfterCommit, Effect::CrashPoint(CrashPoint::AfterLife));
        }
    }

    /// Tasks that moved on in this step: their callers are notified, after everything that one read brought. A caller that waits
    /// for the end of a short task need not be notified first that it began.
    pub(crate) fn announce_progress(&mut self) {
        for task in std::mem::take(&mut self.tasks.progressed) {
            self.announce_start(&task);
            self.serve_sessions_of_stalled(&task);
        }
    }

    // --- tasks whose shim is gone ---

    /// It is known now how a task ended whose shim is gone, or that nothing is left of it.
    pub(crate) fn lost_reaped(&mut self, lost: &LostTask, result: Reaped) {
        self.shims.cleanup_done();
        let id = lost.task.as_str();
        if let Reaped::Nothing { error: Some(error) } | Reaped::Killed { error: Some(error), .. } = &result {
            self.ctx
                .notice(format!("the end file of task {id} cannot be read: {error}"), "it is left as it is");
        }
        match (result, &lost.without_end_file) {
            (Reaped::EndFile(file), _) => self.end_from_file(lost, *file),
            (Reaped::Killed { found, survivors, .. }, WithoutEndFile::Kill(tree)) => {
                self.end_killed(id, tree, found, survivors);
            }
            (Reaped::Nothing { .. } | Reaped::Killed { .. }, _) => self.resubmit_or_lose(id),
        }
        self.start_serving_when_adopted();
    }

    /// Replays the end file that a shim wrote because no daemon was there.
    fn end_from_file(&mut self, lost: &LostTask, file: EndFile) {
        tracing::info!(task = lost.task, "ended while no daemon was running: its end file is taken over");
        self.tasks.update(&lost.task, |task| {
            task.shim = None;
            task.reset(false);
        });
        // With the commit of the end.
        self.ctx.effects.push(Stage::AfterReplies, Effect::RemoveEndFile { dir: lost.dir.clone() });
        for item in file.life {
            self.apply_life_event(&lost.task, item);
        }
        if self.tasks.contains(&lost.task) {
            // The file does not say how it ended.
            self.lose_task(&lost.task, "its shim was killed".to_owned(), Vec::new());
        }
    }

    /// The shim never received the task, which may be resubmitted; or the machine was restarted since, and it is lost.
    fn resubmit_or_lose(&mut self, id: &str) {
        let Some(task) = self.tasks.get(id) else { return };
        if task.stored.doc.boot == self.ctx.boot {
            return self.await_resubmit(id);
        }
        let queued = task.stored.doc.status == TaskStatus::Queued;
        let meanwhile = if queued { "waited for its turn" } else { "ran" };
        self.lose_task(id, format!("the machine was restarted while it {meanwhile}"), Vec::new());
    }

    /// What was left of the tree has been killed: that is the task's end.
    fn end_killed(&mut self, id: &str, tree: &LostTree, found: u64, survivors: Vec<SurvivorInfo>) {
        let Some(task) = self.tasks.get(id) else { return };
        tracing::warn!(task = id, found, survivors = survivors.len(), "tree of a lost shim killed");
        let mut known = format!("its shim was killed; {}", found_and_killed(found, survivors.len() as u64));
        let was_begun = task.stored.doc.status != TaskStatus::Queued;
        if was_begun && tree.adopted && tree.cgroup.is_none() {
            known.push_str(MAYBE_OTHERS);
        }
        // Only when the end is durable: a missing socket says that the shim exited by itself.
        if let Some(shim) = &task.stored.doc.shim {
            let remove = Effect::RemoveSocket { name: shim.name.clone() };
            self.ctx.effects.push(Stage::AfterCommit, remove);
        }
        match task.stop.clone() {
            // Asked for, done, and proved by the cgroup: it was a stop. If nothing was left to be killed, it is not known
            // how the task ended.
            Some(stop) if tree.cgroup.is_some() && found > 0 => self.end_stopped(id, stop, found, survivors),
            // What is known of the stop is not lost with the proof of it.
            Some(StopRequest { order: StopOrder { actor, reason, .. }, .. }) => {
                let why = reason.map(|reason| format!(", for: {reason}")).unwrap_or_default();
                self.lose_task(id, format!("{known}; {actor} had asked for its stop{why}"), survivors);
            }
            None => self.lose_task(id, known, survivors),
        }
    }

    /// Ends a task whose tree was killed on request, without its shim.
    fn end_stopped(&mut self, id: &str, stop: StopRequest, killed: u64, survivors: Vec<SurvivorInfo>) {
        let StopRequest { order, first_asked } = stop;
        let now = Timestamp(self.ctx.now.wall_ms);
        let receipt = StopReceipt {
            // Whatever was asked for, this is what ended it.
            level: StopLevel::Kill,
            actor: order.actor.clone(),
            reason: order.reason.clone(),
            signals: vec![SignalSent {
                signal: "SIGKILL".to_owned(),
                processes: killed,
                refused: survivors.len() as u64,
                at: now,
            }],
            requested_at: Timestamp(first_asked.wall_ms),
            empty_at: survivors.is_empty().then_some(now),
            took_ms: self.ctx.now.mono_ms.saturating_sub(first_asked.mono_ms),
            survivors: survivors.clone(),
        };
        let Some(task) = self.tasks.get(id) else { return };
        let exit = task.state.leader().and_then(Leader::exit);
        if !matches!(task.state, State::Stopping(_)) {
            let cause = Cause::Asked(order.clone());
            let stopping = task_events::stopping(&task.stored, order.level, &cause);
            self.ctx.journal.record(self.ctx.now, &stopping, task.stored.tags());
        }
        let outcome = if survivors.is_empty() {
            Outcome::Cancelled { order, exit }
        } else {
            Outcome::StopFailed { cause: Cause::Asked(order), survivors: Vec::from_wire(survivors), exit }
        };
        let record = EndRecord {
            end: outcome.to_wire(),
            ended_at_ms: self.ctx.now.wall_ms,
            receipt: Some(receipt),
            output: self.output_of_lost(id),
            capture: Some(CaptureFault { message: UNREAD.to_owned(), lost_bytes: 0 }),
        };
        self.end_here(id, record);
    }

    /// Ends a task whose end is not known.
    fn lose_task(&mut self, id: &str, known: String, survivors: Vec<SurvivorInfo>) {
        let output = self.output_of_lost(id);
        let event = Event::ShimLost { known: known.clone(), survivors: Vec::from_wire(survivors) };
        let end = self.tasks.update(id, |task| {
            task.state = step(&task.policy, task.state.clone(), event).state;
            task.state.outcome().map(Outcome::to_wire)
        });
        let Some(Some(end)) = end else { return };
        let ended_at_ms = self.ctx.now.wall_ms;
        self.end_here(id, EndRecord { end, ended_at_ms, receipt: None, output, capture: None });
        self.ctx.notice(format!("task {id} was lost: {known}"), "inspect it for what is known");
    }

    /// Ends a task whose start no shim received.
    pub(crate) fn end_unstarted(&mut self, id: &str, end: TaskEnd) {
        let (output, ended_at_ms) = (OutputInfo::default(), self.ctx.now.wall_ms);
        self.end_here(id, EndRecord { end, ended_at_ms, receipt: None, output, capture: None });
    }

    /// Ends a task without its shim: it never had one, or has none any more.
    pub(super) fn end_here(&mut self, id: &str, record: EndRecord) {
        self.tasks.update(id, |task| {
            task.shim = None;
            task.state = State::Ended(Outcome::from_wire(record.end.clone()));
            task.stored.doc.status = status(&task.state);
            task.stored.doc.end = Some(record);
        });
        let Some(task) = self.tasks.get(id) else { return };
        self.ctx.journal.record(self.ctx.now, &task_events::ended(&task.stored), task.stored.tags());
        self.task_ended(id);
    }
}

struct Applied {
    ended: bool,
    newly_detached: bool,
    /// The journal does not have it yet.
    is_new: bool,
}

/// A shim stops its task by itself at a limit. A stop that was asked for is in the log already.
fn log_stop_at_limit(event: &belay_protocol::event::Event) {
    let belay_protocol::event::Event::TaskStopping { task, cause, .. } = event else { return };
    match cause {
        StopCause::Asked { .. } => {}
        StopCause::Clock { clock, limit_ms, .. } => {
            tracing::info!(task, clock = clock.name(), limit_ms, "stopped by its clock");
        }
        StopCause::Budget { budget, limit, used } => {
            tracing::info!(task, budget = budget.name(), limit, used, "stopped by its budget");
        }
    }
}

/// What became of the processes that were found of a tree without its shim.
fn found_and_killed(found: u64, survivors: u64) -> String {
    match (found, survivors) {
        (0, 0) => "no process of its tree was found alive".to_owned(),
        (1, 0) => "1 process of its tree was found and killed".to_owned(),
        (_, 0) => format!("{found} processes of its tree were found and killed"),
        (0 | 1, _) => "1 process of its tree was found and could not be killed".to_owned(),
        _ => format!("{found} processes of its tree were found, of whom {survivors} could not be killed"),
    }
}
