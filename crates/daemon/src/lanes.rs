//! Lanes as the daemon keeps them: who sits, who waits, and who is fenced, in memory and in the journal. Who gets a seat is the
//! model's to say; here is what follows from it for tasks.

use belay_model::lane::{Claim, Fence, Holding, Lane, Mode, Refusal, Seat, Waiting};
use belay_model::{Level, State, StopOrder};
use belay_protocol::Timestamp;
use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::event::Event;
use belay_protocol::lane::{FenceInfo, HolderInfo, LaneInfo, LaneMode, LaneParams};
use belay_protocol::task::TaskInfo;
use serde::{Deserialize, Serialize};

use crate::answer::Caller;
use crate::config::bounds;
use crate::core::{Core, Phase};
use crate::doc::Entry;
use crate::rights::Scope;
use crate::sessions::STANDING;
use crate::telling::About;
use crate::world::World;

/// The kind of a lane's document in the journal.
const LANE: &str = "lane";

/// A task's seat, as it stands in its own record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SeatDoc {
    pub name: String,
    pub owner: String,
    /// None while it waits.
    pub generation: Option<u64>,
}

/// A lane as it stands in the journal.
#[derive(Debug, Serialize, Deserialize)]
struct LaneDoc {
    generation: u64,
    holder: Option<(ClaimDoc, Option<String>)>,
    queue: Vec<(ClaimDoc, bool)>,
    fences: Vec<FenceInfo>,
    /// The boot during which it was so: whoever is left of a task does not outlive it. Empty if unknown.
    #[serde(default)]
    boot: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct ClaimDoc {
    task: String,
    owner: String,
    since_ms: i64,
}

impl ClaimDoc {
    fn new(claim: &Claim) -> Self {
        Self { task: claim.task.clone(), owner: claim.owner.clone(), since_ms: claim.since_ms }
    }

    fn read(self) -> Claim {
        Claim { task: self.task, owner: self.owner, since_ms: self.since_ms }
    }
}

impl LaneDoc {
    fn new(name: &str, lane: &Lane, boot: &str) -> Self {
        Self {
            boot: boot.to_owned(),
            generation: lane.generation,
            holder: lane.holder.as_ref().map(|held| (ClaimDoc::new(&held.claim), held.blocked.clone())),
            queue: lane
                .queue
                .iter()
                .map(|waiting| (ClaimDoc::new(&waiting.claim), waiting.replaces))
                .collect(),
            fences: lane.fences.iter().map(|fence| fence_info(name, fence)).collect(),
        }
    }

    fn read(self) -> Lane {
        let fence = |fence: FenceInfo| Fence {
            owner: fence.owner,
            generation: fence.generation,
            task: fence.task,
            by: fence.by,
            at_ms: fence.at.0,
            reason: fence.reason,
        };
        let waiting = |(claim, replaces): (ClaimDoc, bool)| Waiting { claim: claim.read(), replaces };
        Lane {
            generation: self.generation,
            holder: self.holder.map(|(claim, blocked)| Holding { claim: claim.read(), blocked }),
            queue: self.queue.into_iter().map(waiting).collect(),
            fences: self.fences.into_iter().map(fence).collect(),
        }
    }
}

pub(crate) fn fence_info(lane: &str, fence: &Fence) -> FenceInfo {
    let Fence { owner, generation, task, by, at_ms, reason } = fence.clone();
    FenceInfo { lane: lane.to_owned(), owner, generation, task, by, at: Timestamp(at_ms), reason }
}

pub(crate) fn lane_info(name: &str, lane: &Lane) -> LaneInfo {
    let info = |claim: &Claim, blocked: Option<String>| HolderInfo {
        task: claim.task.clone(),
        owner: claim.owner.clone(),
        since: Timestamp(claim.since_ms),
        blocked,
    };
    LaneInfo {
        name: name.to_owned(),
        generation: lane.generation,
        holder: lane.holder.as_ref().map(|held| info(&held.claim, held.blocked.clone())),
        queue: lane.queue.iter().map(|waiting| info(&waiting.claim, None)).collect(),
        fences: lane.fences.iter().map(|fence| fence_info(name, fence)).collect(),
    }
}

/// In whose name a lane is held: the session, which is one agent's conversation; in the standing session the outermost task; or
/// the person. Whatever is started below it is started for it.
pub(crate) fn owner_of(session: &str, lineage: &[String]) -> String {
    if session == STANDING {
        return lineage.first().map_or_else(|| STANDING.to_owned(), Clone::clone);
    }
    session.to_owned()
}

/// What a lane has to change for a start, before that is durable.
pub(crate) struct Entering {
    name: String,
    lane: Lane,
    seat: Seat,
}

impl<W: World> Core<W> {
    pub(crate) fn load_lanes(&mut self) -> Result<(), belay_journal::Error> {
        for (name, body) in self.journal.docs(LANE)? {
            match serde_json::from_str::<LaneDoc>(&body) {
                Ok(doc) => self.load_lane(name, doc),
                Err(error) => {
                    self.notice(
                        format!("the record of lane {name} cannot be read: {error}"),
                        "it is taken as free",
                    );
                }
            }
        }
        Ok(())
    }

    fn load_lane(&mut self, name: String, doc: LaneDoc) {
        let restarted = !doc.boot.is_empty() && !self.boot.is_empty() && doc.boot != self.boot;
        let mut lane = doc.read();
        let unblocked = lane.holder.take_if(|holding| restarted && holding.blocked.is_some());
        self.lanes.insert(name.clone(), lane);
        if let Some(Holding { claim, .. }) = unblocked {
            self.emit(&Event::LaneReleased {
                lane: name.clone(),
                owners: Vec::new(),
                unblocked: Some(claim.task),
                by: "daemon".to_owned(),
                reason: Some("the machine was restarted".to_owned()),
            });
            self.put_lane(&name);
        }
    }

    /// The tasks of the predecessor are known: seats of tasks that are gone are free, and who was next begins.
    pub(crate) fn resume_lanes(&mut self) {
        let names: Vec<String> = self.lanes.keys().cloned().collect();
        for name in names {
            let Some(lane) = self.lanes.get_mut(&name).filter(|lane| !lane.is_idle()) else { continue };
            let waits = |task: &str| {
                self.tasks.get(task).is_some_and(|task| matches!(task.state, State::Queued { .. }))
            };
            lane.queue.retain(|waiting| waits(&waiting.claim.task));
            let holder = lane.holder.clone();
            if let Some(Holding { claim, blocked: None }) = holder {
                if waits(&claim.task) {
                    // It was to begin, and its shim has not heard of it.
                    self.admit(&claim.task);
                } else if !self.tasks.contains_key(&claim.task) {
                    lane.leave(&claim.task, None);
                }
            }
            self.grant(&name);
        }
    }

    /// A shim has answered that holds a task until its turn comes. That may have come while it could not be reached.
    pub(crate) fn begin_if_seated(&mut self, id: &str) {
        let seat = self.tasks.get(id).and_then(|task| task.entry.doc.lane.as_ref());
        if self.phase != Phase::Adopting && seat.is_some_and(|seat| seat.generation.is_some()) {
            self.admit(id);
        }
    }

    fn put_lane(&mut self, name: &str) {
        let Some(lane) = self.lanes.get(name) else { return };
        if lane.is_idle() {
            // Its last generation is remembered, for whoever shows one.
            self.forget_idle_lanes();
        }
        let Some(lane) = self.lanes.get(name) else { return };
        if let Ok(body) = serde_json::to_string(&LaneDoc::new(name, lane, &self.boot)) {
            self.put_doc(LANE, name, Some(body));
        }
    }

    fn forget_idle_lanes(&mut self) {
        let idle = self.lanes.iter().filter(|(_, lane)| lane.is_idle());
        let mut idle: Vec<(u64, String)> = idle.map(|(name, lane)| (lane.generation, name.clone())).collect();
        if idle.len() <= bounds::LANES_IDLE {
            return;
        }
        idle.sort_unstable();
        let surplus = idle.len() - bounds::LANES_IDLE;
        for (_, name) in idle.into_iter().take(surplus) {
            self.lanes.remove(&name);
            self.put_doc(LANE, &name, None);
        }
    }

    // --- entering ---

    /// Asks for a seat for a task that is about to be recorded. The record says what it got; whether it is to be held by its shim
    /// until its turn comes is the answer.
    pub(crate) fn enter_lane(
        &self,
        caller: &Caller,
        entry: &mut Entry,
        params: &LaneParams,
    ) -> Result<(Entering, bool), RpcError> {
        let mut lane = self.lanes.get(&params.name).cloned().unwrap_or_default();
        let owner = owner_of(&entry.session, &entry.doc.lineage);
        let mut names: Vec<&str> = entry.doc.lineage.iter().map(String::as_str).collect();
        names.push(&owner);
        let mode = match params.mode {
            LaneMode::Reject => Mode::Reject,
            LaneMode::Queue => Mode::Queue,
            LaneMode::Replace => Mode::Replace,
        };
        let scope = self.scope(caller);
        let covers = |task: &str| self.entry(task).is_ok_and(|entry| scope.covers_task(&entry));
        let visible = lane.holder.as_ref().is_none_or(|holding| covers(&holding.claim.task))
            && lane.queue.first().is_none_or(|next| covers(&next.claim.task));
        lane.check(&names, mode, params.generation)
            .map_err(|refusal| refused(&params.name, refusal, visible))?;
        if mode == Mode::Replace {
            self.may_replace(&scope, &params.name, &lane)?;
        }
        let bound = bounds::LANE_QUEUE;
        if lane.queue.len() >= bound {
            let message = format!("{bound} tasks wait for lane {} already", params.name);
            return Err(RpcError::new(ErrorKind::Busy, message).field("lane"));
        }
        let claim = Claim { task: entry.id.clone(), owner: owner.clone(), since_ms: self.now.wall_ms };
        let seat = lane.enter(claim, mode);
        entry.doc.lane = Some(SeatDoc { name: params.name.clone(), owner, generation: None });
        let waits = seat != Seat::Free;
        Ok((Entering { name: params.name.clone(), lane, seat }, waits))
    }

    /// Replacing is stopping: who may not stop a task may not replace it either.
    fn may_replace(&self, scope: &Scope, name: &str, lane: &Lane) -> Result<(), RpcError> {
        let goes = lane.queue.iter().filter(|waiting| waiting.replaces).map(|waiting| &waiting.claim.task);
        let holder = lane.holder.as_ref().filter(|holding| holding.blocked.is_none());
        let mut goes = goes.chain(holder.map(|holding| &holding.claim.task));
        let is_foreign =
            |task: &String| self.tasks.get(task).is_some_and(|task| !scope.covers_task(&task.entry));
        if goes.any(is_foreign) {
            let message = format!("lane {name} is held by a task that is not yours to stop");
            return Err(RpcError::new(ErrorKind::NotPermitted, message)
                .field("lane")
                .hint(format!("wait for your turn: {name}:queue")));
        }
        Ok(())
    }

    /// Puts into the batch what the start changes about its lane. Behind `task.created`.
    pub(crate) fn record_entering(&mut self, entry: &mut Entry, entering: &mut Entering) {
        let Entering { name, lane, seat } = entering;
        let generation = self.next_event();
        let About { task, session } = About::new(entry);
        let (owner, lane_name) = (owner_in(entry), name.clone());
        if *seat == Seat::Free {
            lane.grant(generation);
            if let Some(seat) = &mut entry.doc.lane {
                seat.generation = Some(generation);
            }
            self.emit(&Event::LaneGranted { task, session, lane: lane_name, generation, owner });
        } else {
            let place = lane.queue.iter().position(|waiting| waiting.claim.task == task);
            let place = place.map(|at| at as u64 + 1);
            self.emit(&Event::LaneQueued { task, session, lane: lane_name, place, owner });
        }
        if let Ok(body) = serde_json::to_string(&LaneDoc::new(name, lane, &self.boot)) {
            self.put_doc(LANE, name, Some(body));
        }
    }

    /// The start is durable: the lane is as was recorded, and whoever has to go is told to.
    pub(crate) fn entered(&mut self, caller: &Caller, id: &str, entering: Entering) {
        let Entering { name, lane, seat } = entering;
        self.lanes.insert(name.clone(), lane);
        let Seat::Waits { stop, gives_way } = seat else { return };
        let own = self.tasks.get(id).and_then(|task| owner_in(&task.entry));
        let reason = format!("replaced in lane {name} by {id}");
        for task in gives_way.into_iter().chain(stop) {
            let order = StopOrder::new(Level::Terminate, self.actor(caller, None), Some(&reason));
            // Whoever replaces what is its own goes on with it.
            if self.tasks.get(&task).and_then(|task| owner_in(&task.entry)) != own {
                self.fence_owner(caller, &task, &order);
            }
            self.order_stop(&task, order);
        }
    }

    // --- leaving ---

    /// A task has ended, before that is durable: its seat is free, unless some of it lives on, and the next in line begins.
    pub(crate) fn leave_lane(&mut self, entry: &Entry, info: &TaskInfo) {
        let Some(seat) = &entry.doc.lane else { return };
        let Some(lane) = self.lanes.get_mut(&seat.name) else { return };
        let survivors = info.outcome.as_ref().map_or(0, |outcome| outcome.survivors().len());
        let blocked = (survivors > 0).then(|| format!("{survivors} of its processes could not be stopped"));
        let held = lane.holder.as_ref().is_some_and(|holding| holding.claim.task == entry.id);
        lane.leave(&entry.id, blocked.clone());
        if held {
            let About { task, session } = About::new(entry);
            let (lane, generation) = (seat.name.clone(), seat.generation);
            self.emit(&Event::LaneLeft { task, session, lane, generation, blocked });
        }
        self.grant(&seat.name);
    }

    /// Gives a free seat to the next in line. In any case the lane is recorded as it is now.
    pub(crate) fn grant(&mut self, name: &str) {
        let generation = self.next_event();
        let Some(lane) = self.lanes.get_mut(name) else { return };
        if let Some(id) = lane.grant(generation)
            && let Some(task) = self.tasks.get_mut(&id)
        {
            if let Some(seat) = &mut task.entry.doc.lane {
                seat.generation = Some(generation);
            }
            if let Some(start) = &mut task.start {
                // No shim has it yet: it begins when one does.
                start.held = false;
            }
            let (session, owner) = (task.entry.session.clone(), owner_in(&task.entry));
            self.changed.push(id.clone());
            let lane = name.to_owned();
            self.emit(&Event::LaneGranted { task: id.clone(), session, lane, generation, owner });
            self.admit(&id);
        }
        self.put_lane(name);
    }

    /// The place of a task that waits: 1 is next.
    pub(crate) fn place_in_lane(&self, entry: &Entry) -> Option<u64> {
        let lane = self.lanes.get(&entry.doc.lane.as_ref()?.name)?;
        let at = lane.queue.iter().position(|waiting| waiting.claim.task == entry.id)?;
        Some(at as u64 + 1)
    }

    // --- fences ---

    /// Somebody stops a task. If it holds a lane for somebody else, that owner may not have the lane until it is released; what
    /// waits there in its name is ended with it.
    pub(crate) fn fence_owner(&mut self, caller: &Caller, id: &str, order: &StopOrder) -> Option<FenceInfo> {
        let entry = &self.tasks.get(id)?.entry;
        let seat = entry.doc.lane.clone()?;
        if self.names_of(caller).contains(&seat.owner) {
            return None;
        }
        let lane = self.lanes.get_mut(&seat.name)?;
        lane.holder.as_ref().filter(|holding| holding.claim.task == id)?;
        let fence = Fence {
            owner: seat.owner,
            generation: seat.generation.unwrap_or(lane.generation),
            task: id.to_owned(),
            by: order.actor.clone(),
            at_ms: self.now.wall_ms,
            reason: order.reason.clone(),
        };
        let info = fence_info(&seat.name, &fence);
        let (in_vain, session) = (lane.fence(fence), entry.session.clone());
        self.put_lane(&seat.name);
        let FenceInfo { lane, owner, generation, task, by, at: _, reason } = info.clone();
        self.emit(&Event::LaneFenced { task, session, lane, owner, generation, by, reason });
        for task in in_vain {
            let reason = format!("{} may not have lane {} any more: {}", info.owner, info.lane, words(&info));
            self.order_stop(&task, StopOrder::new(Level::Terminate, order.actor.clone(), Some(&reason)));
        }
        Some(info)
    }

    /// The names under which somebody may own a lane: the owner that they would start for, and everything above.
    pub(crate) fn names_of(&self, caller: &Caller) -> Vec<String> {
        let (session, mut names) = match self.scope(caller) {
            Scope::Person => (STANDING.to_owned(), Vec::new()),
            Scope::Session(id) => {
                let above = self.sessions.get(&id).map(|session| session.doc.lineage.clone());
                (id, above.unwrap_or_default())
            }
            Scope::Task(id) => match self.tasks.get(&id) {
                Some(task) => {
                    let mut names = task.entry.doc.lineage.clone();
                    names.push(id);
                    (task.entry.session.clone(), names)
                }
                None => (STANDING.to_owned(), Vec::new()),
            },
        };
        let owner = owner_of(&session, &names);
        names.push(owner);
        // Whoever holds a session by its connection speaks for it.
        let held = self.sessions.iter().filter(|(_, session)| session.holders.contains(&caller.client));
        names.extend(held.map(|(id, _)| id.clone()));
        names
    }

    /// Refuses to talk to a task in a lane that the caller may not have any more.
    pub(crate) fn check_fence(&self, caller: &Caller, entry: &Entry) -> Result<(), RpcError> {
        let Some(seat) = &entry.doc.lane else { return Ok(()) };
        let Some(lane) = self.lanes.get(&seat.name) else { return Ok(()) };
        let names = self.names_of(caller);
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        match lane.fence_before(&names) {
            Some(fence) => Err(refused(&seat.name, Refusal::Fenced(fence.clone()), true)),
            None => Ok(()),
        }
    }
}

fn owner_in(entry: &Entry) -> Option<String> {
    entry.doc.lane.as_ref().map(|seat| seat.owner.clone())
}

/// Who fenced an owner, when and why.
fn words(fence: &FenceInfo) -> String {
    let why = fence.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    format!("{} stopped {} at {}{why}", fence.by, fence.task, fence.at)
}

/// What is said of a claim that is refused. Of a task that the caller may not see, only that there is one.
fn refused(lane: &str, refusal: Refusal, visible: bool) -> RpcError {
    match refusal {
        Refusal::Held(_) | Refusal::Awaited(_) if !visible => {
            let message = format!("lane {lane} is held by somebody else");
            RpcError::new(ErrorKind::LaneHeld, message).hint(format!("wait for your turn: {lane}:queue"))
        }
        Refusal::Held(Holding { claim, blocked: None }) => {
            let message = format!("lane {lane} is held by task {} of {}", claim.task, claim.owner);
            RpcError::new(ErrorKind::LaneHeld, message)
                .hint(format!(
                    "wait for it (belay wait {0}), ask for {lane}:queue, or for {lane}:replace",
                    claim.task
                ))
                .ids(vec![claim.task])
        }
        Refusal::Held(Holding { claim, blocked: Some(why) }) => {
            let message = format!("lane {lane} is blocked by what is left of task {}: {why}", claim.task);
            RpcError::new(ErrorKind::LaneHeld, message)
                .hint(format!("end what is left of it, then: belay lanes release {lane}"))
                .ids(vec![claim.task])
        }
        Refusal::Awaited(claim) => {
            let message = format!("task {} of {} is about to begin in lane {lane}", claim.task, claim.owner);
            RpcError::new(ErrorKind::LaneHeld, message).ids(vec![claim.task])
        }
        Refusal::Fenced(fence) => {
            let info = fence_info(lane, &fence);
            let message = format!("{} may not have lane {lane} any more: {}", info.owner, words(&info));
            RpcError::new(ErrorKind::Fenced, message)
                .hint(format!("ask the person who did that; belay lanes release {lane} lets it in again"))
                .fence(info)
        }
        Refusal::Stale { claimed } => {
            let message = format!("somebody else has held lane {lane} since generation {claimed}");
            RpcError::new(ErrorKind::Fenced, message).hint("look who has it: belay lanes")
        }
    }
    .field("lane")
}
