//! Fences: an owner whose task was stopped in a lane cannot use the lane until the fence is removed.
//! Also the errors for refused claims.

use belay_model::lane::{Claim, Fence, Holding, Refusal};
use belay_model::{Level, StopOrder};
use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::event::Event;
use belay_protocol::lane::LaneFenceInfo;
use belay_protocol::task::{LanePreview, StopFence};

use super::owner_of;
use super::stored::{SeatDoc, fence_info};
use crate::config::bounds;
use crate::host::Host;
use crate::owners::STANDING;
use crate::requests::{Caller, Scope};
use crate::runtime::Core;
use crate::tasks::{Task, TaskRef};

impl<H: Host> Core<H> {
    /// A task is stopped. If it holds a lane for an owner other than the caller, or the caller asks
    /// for it, that owner is fenced from the lane, and the owner's tasks in the queue are stopped,
    /// too.
    pub(crate) fn fence_owner(
        &mut self,
        caller: &Caller,
        id: &str,
        order: &StopOrder,
        fence: StopFence,
    ) -> Option<LaneFenceInfo> {
        let stored = self.tasks.get(id)?.stored();
        let seat = stored.doc.lane.clone()?;
        let (session, tags) = (stored.session.clone(), stored.tags());
        if !self.would_fence(caller, id, &seat, fence) {
            return None;
        }
        let lane = self.lanes.all.get(&seat.name)?;
        let fence = Fence {
            owner: seat.owner,
            generation: seat.generation.unwrap_or(lane.generation),
            task: id.to_owned(),
            by: order.actor.clone(),
            at_ms: self.ctx.now.wall_ms,
            reason: order.reason.clone(),
        };
        let info = fence_info(&seat.name, &fence);
        let queued = self.lanes.update(&seat.name, |lane| lane.fence(fence))?;
        self.store_lane(&seat.name);
        tracing::info!(lane = seat.name, owner = info.owner, task = id, by = info.by, "owner fenced");
        let LaneFenceInfo { lane, owner, generation, by, reason, .. } = info.clone();
        let event = Event::LaneFenced { lane, task: id.to_owned(), session, owner, generation, by, reason };
        self.ctx.record(event, tags);
        for task in queued {
            let reason = format!("{} is fenced from lane {}: {}", info.owner, info.lane, cause(&info));
            self.order_stop(&task, StopOrder::new(Level::Terminate, order.actor.clone(), Some(&reason)));
        }
        Some(info)
    }

    /// Whether a stop of this task fences the owner of its seat.
    fn would_fence(&self, caller: &Caller, id: &str, seat: &SeatDoc, fence: StopFence) -> bool {
        let is_asked = match fence {
            StopFence::No => false,
            StopFence::Auto => !self.owner_names(caller).contains(&seat.owner),
            StopFence::Yes => true,
        };
        let holder = self.lanes.all.get(&seat.name).and_then(|lane| lane.holder.as_ref());
        is_asked && holder.is_some_and(|holding| holding.claim.task == id)
    }

    /// What a stop of this task would do to its lane.
    pub(crate) fn lane_preview(&self, caller: &Caller, id: &str, fence: StopFence) -> Option<LanePreview> {
        let seat = self.tasks.get(id)?.stored().doc.lane.clone()?;
        let lane = self.lanes.all.get(&seat.name)?;
        let is_holder = lane.holder.as_ref().is_some_and(|holding| holding.claim.task == id);
        let fences = self.would_fence(caller, id, &seat, fence);
        // An agent is not told of tasks that it may not see.
        let scope = self.scope(caller);
        let sees = |task: &str| self.tasks.get(task).is_some_and(|task| scope.covers_task(task.stored()));
        let waiting = lane.queue.iter().map(|waiting| &waiting.claim).filter(|claim| claim.task != id);
        let is_stopped = |claim: &&Claim| fences && claim.owner == seat.owner;
        let stopped = waiting.clone().filter(is_stopped).map(|claim| claim.task.clone());
        let stopped = stopped.filter(|task| sees(task));
        let next = waiting.clone().find(|claim| is_holder && !is_stopped(claim));
        let next = next.filter(|claim| sees(&claim.task));
        Some(LanePreview {
            is_holder,
            stopped: stopped.take(bounds::LANE_ROWS).collect(),
            next: next.map(|claim| claim.task.clone()),
            fenced: fences.then_some(seat.owner),
            lane: seat.name,
        })
    }

    /// The owners that a caller acts for: the owner of tasks that it starts, and everything above
    /// it.
    pub(super) fn owner_names(&self, caller: &Caller) -> Vec<String> {
        let (session, mut names) = match self.scope(caller) {
            Scope::Person => (STANDING.to_owned(), Vec::new()),
            Scope::Session(id) => {
                let above = self.sessions.get(&id).map(|session| session.lineage().to_vec());
                (id, above.unwrap_or_default())
            }
            Scope::Task(id) => match self.tasks.get(&id) {
                Some(task) => {
                    let mut names = task.stored().doc.lineage.clone();
                    names.push(id);
                    (task.session().to_owned(), names)
                }
                None => (STANDING.to_owned(), Vec::new()),
            },
        };
        let owner = owner_of(&session, &names);
        names.push(owner);
        names
    }

    /// Refuses to write to a task, or to signal it, in a lane that the caller is fenced from.
    pub(crate) fn check_fence(&self, caller: &Caller, task: &TaskRef) -> Result<(), RpcError> {
        let stored = match task {
            TaskRef::Live(id) => self.tasks.get(id).map(Task::stored),
            TaskRef::Ended(stored) => Some(&**stored),
        };
        let Some(seat) = stored.and_then(|stored| stored.doc.lane.as_ref()) else { return Ok(()) };
        let Some(lane) = self.lanes.all.get(&seat.name) else { return Ok(()) };
        let names = self.owner_names(caller);
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        match lane.fence_before(&names) {
            Some(fence) => Err(refused(&seat.name, Refusal::Fenced(fence.clone()), true)),
            None => Ok(()),
        }
    }
}

/// The stop that fenced an owner: by which actor, when and why.
fn cause(fence: &LaneFenceInfo) -> String {
    let why = fence.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    format!("{} stopped {} at {}{why}", fence.by, fence.task, fence.at)
}

/// The error for a refused claim. It does not name a task that the caller may not see.
pub(super) fn refused(lane: &str, refusal: Refusal, visible: bool) -> RpcError {
    match refusal {
        Refusal::Held(_) | Refusal::Awaited(_) if !visible => {
            let message = format!("lane {lane} is held by a task that you may not see");
            RpcError::new(ErrorKind::LaneHeld, message).hint(format!("queue for it: {lane}:queue"))
        }
        Refusal::Held(Holding { claim, blocked: None }) => {
            let message = format!("lane {lane} is held by task {} of {}", claim.task, claim.owner);
            RpcError::new(ErrorKind::LaneHeld, message)
                .hint(format!(
                    "wait for it (belay wait {0}), queue with {lane}:queue, or replace it with {lane}:replace",
                    claim.task
                ))
                .ids(vec![claim.task])
        }
        Refusal::Held(Holding { claim, blocked: Some(why) }) => {
            let message = format!("lane {lane} is blocked by ended task {}: {why}", claim.task);
            RpcError::new(ErrorKind::LaneHeld, message)
                .hint(format!("end those processes, then run: belay lanes release {lane}"))
                .ids(vec![claim.task])
        }
        Refusal::Awaited(claim) => {
            let message = format!("task {} of {} is about to start in lane {lane}", claim.task, claim.owner);
            RpcError::new(ErrorKind::LaneHeld, message).ids(vec![claim.task])
        }
        Refusal::Fenced(fence) => {
            let info = fence_info(lane, &fence);
            let message = format!("{} is fenced from lane {lane}: {}", info.owner, cause(&info));
            RpcError::new(ErrorKind::Fenced, message)
                .hint(format!("ask the person who stopped the task; belay lanes release {lane} removes the fence"))
                .fence(info)
        }
        Refusal::Stale { claimed } => {
            let message = format!("generation {claimed} of lane {lane} is outdated: the lane has had another holder since");
            RpcError::new(ErrorKind::Stale, message)
                .hint("belay lanes shows the current generation; leave it out to take part again")
        }
    }
    .field("lane")
}
