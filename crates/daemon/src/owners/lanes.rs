//! Lanes: which task holds each lane, which tasks are queued for it, and which owners are fenced
//! from it. The model decides which task gets a lane next; this module starts and stops the tasks
//! accordingly.

mod fences;
mod handlers;
mod stored;

pub(crate) use stored::SeatDoc;

use std::collections::BTreeSet;

use belay_journal::Loaded;
use belay_model::lane::{Claim, Holding, Lane, Mode, Seat};
use belay_model::{Level, StopOrder};
use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::event::Event;
use belay_protocol::lane::{LaneMode, LaneParams};

use super::STANDING;
use crate::config::bounds;
use crate::host::Host;
use crate::requests::{Caller, Scope};
use crate::runtime::{Core, Table};
use crate::tasks::{StoredTask, Task, TaskEnded};
use belay_protocol::task::StopFence;
use fences::refused;
use stored::LaneDoc;

/// The kind of a lane's document in the journal.
const DOC_KIND: &str = "lane";

/// The owner of a lane's seat: the session, which is one agent's conversation; in the standing
/// session the outermost task, or else the person. Everything started below an owner is started for
/// that owner.
fn owner_of(session: &str, lineage: &[String]) -> String {
    if session == STANDING {
        return lineage.first().map_or_else(|| STANDING.to_owned(), Clone::clone);
    }
    session.to_owned()
}

/// The change that a start makes to its lane, before it is durable.
#[derive(Debug)]
pub(crate) struct Entering {
    name: String,
    lane: Lane,
    seat: Seat,
}

impl Entering {
    /// Whether the task is queued: its shim holds it until it is admitted.
    pub(crate) fn waits(&self) -> bool {
        self.seat != Seat::Free
    }
}

/// Lanes with a holder, a queue or a fence, and the most recent idle lanes.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    all: Table<String, Lane>,
    /// Idle lanes by generation: the oldest are removed first.
    idle: BTreeSet<(u64, String)>,
}

impl Lanes {
    /// The position of a task in the queue: 1 is next.
    pub(crate) fn place_of(&self, stored: &StoredTask) -> Option<u64> {
        let lane = self.all.get(&stored.doc.lane.as_ref()?.name)?;
        let at = lane.queue.iter().position(|waiting| waiting.claim.task == stored.id)?;
        Some(at as u64 + 1)
    }

    fn set(&mut self, name: String, lane: Lane) {
        if let Some(old) = self.all.insert(name.clone(), lane) {
            self.idle.remove(&(old.generation, name.clone()));
        }
        self.reindex(&name);
    }

    /// Changes a lane and updates the index of idle lanes.
    fn update<R>(&mut self, name: &str, change: impl FnOnce(&mut Lane) -> R) -> Option<R> {
        let lane = self.all.get_mut(name)?;
        self.idle.remove(&(lane.generation, name.to_owned()));
        let result = change(lane);
        self.reindex(name);
        Some(result)
    }

    fn reindex(&mut self, name: &str) {
        if let Some(lane) = self.all.get(name).filter(|lane| lane.is_idle()) {
            self.idle.insert((lane.generation, name.to_owned()));
        }
    }
}

impl<H: Host> Core<H> {
    pub(crate) fn load_lanes(&mut self, loaded: &mut Loaded) {
        for (name, body) in loaded.docs.remove(DOC_KIND).unwrap_or_default() {
            match serde_json::from_str::<LaneDoc>(&body) {
                Ok(doc) => self.load_lane(name, doc),
                Err(error) => self.ctx.notice(
                    format!("the record of lane {name} cannot be read: {error}"),
                    "the lane is treated as free",
                ),
            }
        }
    }

    fn load_lane(&mut self, name: String, doc: LaneDoc) {
        let restarted = !doc.boot.is_empty() && !self.ctx.boot.is_empty() && doc.boot != self.ctx.boot;
        let mut lane = doc.read();
        let unblocked = lane.holder.take_if(|holding| restarted && holding.blocked.is_some());
        self.lanes.set(name.clone(), lane);
        if let Some(Holding { claim, .. }) = unblocked {
            let released = Event::LaneReleased {
                lane: name.clone(),
                owners: Vec::new(),
                unblocked: Some(claim.task),
                by: "daemon".to_owned(),
                reason: Some("the machine was restarted".to_owned()),
            };
            self.ctx.record(released, String::new());
            self.store_lane(&name);
        }
    }

    /// Called once the tasks of the earlier daemon are adopted: frees the seats of tasks that are
    /// gone, and starts the next task in each queue.
    pub(crate) fn resume_lanes(&mut self) {
        let busy = self.lanes.all.iter().filter(|(_, lane)| !lane.is_idle());
        let names: Vec<String> = busy.map(|(name, _)| name.clone()).collect();
        for name in names {
            let tasks = &self.tasks;
            let waits = |task: &str| tasks.get(task).is_some_and(Task::is_queued);
            let admitted = self.lanes.update(&name, |lane| {
                lane.queue.retain(|waiting| waits(&waiting.claim.task));
                let Some(Holding { claim, blocked: None }) = lane.holder.clone() else { return None };
                if waits(&claim.task) {
                    // It was granted the seat, but its shim has not received the admission.
                    return Some(claim.task);
                }
                if !tasks.contains(&claim.task) {
                    lane.leave(&claim.task, None);
                }
                None
            });
            if let Some(Some(task)) = admitted {
                self.admit(&task);
            }
            self.grant_lane(&name);
        }
    }

    fn store_lane(&mut self, name: &str) {
        if self.lanes.all.get(name).is_some_and(Lane::is_idle) {
            // The last generation of an idle lane is kept, for callers that claim with a
            // generation.
            self.forget_idle_lanes();
        }
        let Some(lane) = self.lanes.all.get(name) else { return };
        if let Ok(body) = serde_json::to_string(&LaneDoc::new(name, lane, &self.ctx.boot)) {
            self.ctx.journal.put_doc(DOC_KIND, name, Some(body));
        }
    }

    fn forget_idle_lanes(&mut self) {
        while self.lanes.idle.len() > bounds::LANES_IDLE {
            let Some((_, name)) = self.lanes.idle.pop_first() else { return };
            self.lanes.all.remove(&name);
            self.ctx.journal.put_doc(DOC_KIND, &name, None);
        }
    }

    // --- entering ---

    /// Claims a seat for a task that is about to be recorded.
    pub(crate) fn enter_lane(
        &self,
        caller: &Caller,
        stored: &mut StoredTask,
        params: &LaneParams,
    ) -> Result<Entering, RpcError> {
        let mut lane = self.lanes.all.get(&params.name).cloned().unwrap_or_default();
        let owner = owner_of(&stored.session, &stored.doc.lineage);
        let mut names: Vec<&str> = stored.doc.lineage.iter().map(String::as_str).collect();
        names.push(&owner);
        let mode = match params.mode {
            LaneMode::Reject => Mode::Reject,
            LaneMode::Queue => Mode::Queue,
            LaneMode::Replace => Mode::Replace,
        };
        let scope = self.scope(caller);
        let covers = |task: &str| self.covers_holder(&scope, task);
        let visible = lane.holder.as_ref().is_none_or(|holding| covers(&holding.claim.task))
            && lane.queue.first().is_none_or(|next| covers(&next.claim.task));
        lane.check(&names, mode, params.generation)
            .map_err(|refusal| refused(&params.name, refusal, visible))?;
        if mode == Mode::Replace {
            self.check_may_replace(&scope, &params.name, &lane)?;
        }
        let bound = bounds::LANE_QUEUE;
        if lane.queue.len() >= bound {
            let message = format!("{bound} tasks are queued for lane {}, which is the limit", params.name);
            return Err(RpcError::new(ErrorKind::Busy, message).field("lane"));
        }
        let claim = Claim { task: stored.id.clone(), owner: owner.clone(), since_ms: self.ctx.now.wall_ms };
        let seat = lane.enter(claim, mode);
        stored.doc.lane = Some(SeatDoc { name: params.name.clone(), owner, generation: None });
        Ok(Entering { name: params.name.clone(), lane, seat })
    }

    /// Whether a scope may see the task that holds a lane or is queued for it. A holder that has
    /// ended and blocks its lane is always shown to people, and to other callers as long as the
    /// task is in memory.
    fn covers_holder(&self, scope: &Scope, task: &str) -> bool {
        let stored = self.tasks.get(task).map(Task::stored).or_else(|| self.tasks.recent(task));
        stored.map_or(*scope == Scope::Person, |stored| scope.covers_task(stored))
    }

    /// Replacing is stopping: a caller that may not stop a task may not replace it either.
    fn check_may_replace(&self, scope: &Scope, name: &str, lane: &Lane) -> Result<(), RpcError> {
        let replaced =
            lane.queue.iter().filter(|waiting| waiting.replaces).map(|waiting| &waiting.claim.task);
        let holder = lane.holder.as_ref().filter(|holding| holding.blocked.is_none());
        let mut replaced = replaced.chain(holder.map(|holding| &holding.claim.task));
        let is_foreign =
            |task: &String| self.tasks.get(task).is_some_and(|task| !scope.covers_task(task.stored()));
        if replaced.any(is_foreign) {
            let message = format!("lane {name} is held by a task that is not yours to stop");
            return Err(RpcError::new(ErrorKind::NotPermitted, message)
                .field("lane")
                .hint(format!("queue for it: {name}:queue")));
        }
        Ok(())
    }

    /// Records the change of the lane, after `task.created`.
    pub(crate) fn record_entering(&mut self, stored: &mut StoredTask, entering: &mut Entering) {
        let Entering { name, lane, seat } = entering;
        let generation = self.ctx.journal.next_event();
        let (task, session) = (stored.id.clone(), stored.session.clone());
        let (lane_name, owner) = (name.clone(), owner_in(stored));
        let event = if *seat == Seat::Free {
            lane.grant(generation);
            if let Some(seat) = &mut stored.doc.lane {
                seat.generation = Some(generation);
            }
            Event::LaneGranted { lane: lane_name, task, session, generation, owner }
        } else {
            let at = lane.queue.iter().position(|waiting| waiting.claim.task == task);
            let place = at.map(|at| at as u64 + 1);
            Event::LaneQueued { lane: lane_name, task, session, place, owner }
        };
        self.ctx.record(event, stored.tags());
        if let Ok(body) = serde_json::to_string(&LaneDoc::new(name, lane, &self.ctx.boot)) {
            self.ctx.journal.put_doc(DOC_KIND, name, Some(body));
        }
    }

    /// The start is durable: applies the recorded change to the lane, and stops the tasks that are
    /// replaced.
    pub(crate) fn entered_lane(&mut self, caller: &Caller, id: &str, entering: Entering) {
        let Entering { name, lane, seat } = entering;
        self.lanes.set(name.clone(), lane);
        let Seat::Waits { stop, gives_way } = seat else { return };
        let own = self.tasks.get(id).and_then(|task| owner_in(task.stored()));
        let reason = format!("replaced in lane {name} by {id}");
        for task in gives_way.into_iter().chain(stop) {
            let order = StopOrder::new(Level::Terminate, self.actor(caller, None), Some(&reason));
            // An owner that replaces its own task is not fenced.
            if self.tasks.get(&task).and_then(|task| owner_in(task.stored())) != own {
                self.fence_owner(caller, &task, &order, StopFence::Auto);
            }
            self.order_stop(&task, order);
        }
    }

    // --- leaving ---

    /// A task has ended: frees its seat, unless some of its processes survived, and starts the next
    /// task in the queue. In the same commit as the end.
    pub(crate) fn leave_lane(&mut self, ended: &TaskEnded) {
        let stored = ended.stored();
        let Some(seat) = &stored.doc.lane else { return };
        let survivors = ended.info().outcome.as_ref().map_or(0, |outcome| outcome.survivors().len());
        let blocked = (survivors > 0).then(|| format!("{survivors} of its processes could not be stopped"));
        let held = self.lanes.update(&seat.name, |lane| {
            let held = lane.holder.as_ref().is_some_and(|holding| holding.claim.task == stored.id);
            lane.leave(&stored.id, blocked.clone());
            held
        });
        let Some(held) = held else { return };
        if held {
            let left = Event::LaneLeft {
                lane: seat.name.clone(),
                task: stored.id.clone(),
                session: stored.session.clone(),
                generation: seat.generation,
                blocked,
            };
            self.ctx.record(left, stored.tags());
        }
        self.grant_lane(&seat.name);
    }

    /// Grants a free lane to the next task in the queue. Stores the lane in any case.
    fn grant_lane(&mut self, name: &str) {
        let generation = self.ctx.journal.next_event();
        let granted = self.lanes.update(name, |lane| lane.grant(generation));
        let Some(granted) = granted else { return };
        if let Some(id) = granted.filter(|id| self.tasks.contains(id)) {
            self.tasks.seat_granted(&id, generation);
            if let Some(stored) = self.tasks.get(&id).map(Task::stored) {
                let event = Event::LaneGranted {
                    lane: name.to_owned(),
                    task: id.clone(),
                    session: stored.session.clone(),
                    generation,
                    owner: owner_in(stored),
                };
                let tags = stored.tags();
                self.ctx.record(event, tags);
            }
            tracing::debug!(lane = name, task = id, "lane granted");
            self.admit(&id);
        }
        self.store_lane(name);
    }
}

fn owner_in(stored: &StoredTask) -> Option<String> {
    stored.doc.lane.as_ref().map(|seat| seat.owner.clone())
}
