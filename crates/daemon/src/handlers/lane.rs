//! `lane/list release`: looking at lanes, and letting a fenced owner have one again.

use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::event::Event;
use belay_protocol::lane::{LaneInfo, ListResult, ReleaseParams, ReleaseResult};

use super::task_stop::check_reason;
use crate::answer::Caller;
use crate::core::Core;
use crate::lanes::{fence_info, lane_info};
use crate::rights::Scope;
use crate::world::World;

impl<W: World> Core<W> {
    pub(crate) fn lane_list(&mut self, caller: &Caller) {
        let scope = self.scope(caller);
        let lanes = self.lanes.iter().map(|(name, lane)| self.seen(caller, &scope, lane_info(name, lane)));
        let lanes = lanes.filter(|lane| !is_blank(lane)).collect();
        self.reply(caller, &ListResult { lanes });
    }

    /// A lane as somebody may see it: an agent sees its own place in it, not the tasks of others.
    fn seen(&self, caller: &Caller, scope: &Scope, mut lane: LaneInfo) -> LaneInfo {
        if *scope == Scope::Person {
            return lane;
        }
        let names = self.names_of(caller);
        let covers = |task: &str| self.tasks.get(task).is_some_and(|task| scope.covers_task(&task.entry));
        lane.holder = lane.holder.filter(|holder| covers(&holder.task));
        lane.queue.retain(|waiting| covers(&waiting.task));
        lane.fences.retain(|fence| names.contains(&fence.owner));
        lane
    }

    pub(crate) fn lane_release(&mut self, caller: &Caller, params: &ReleaseParams) {
        match self.release_lane(caller, params) {
            Ok(result) => self.reply(caller, &result),
            Err(error) => self.fail(caller, error),
        }
    }

    fn release_lane(&mut self, caller: &Caller, params: &ReleaseParams) -> Result<ReleaseResult, RpcError> {
        check_reason(params.reason.as_deref())?;
        self.may_release(caller, params)?;
        let name = &params.name;
        let Some(lane) = self.lanes.get_mut(name).filter(|lane| !lane.is_idle()) else {
            let shown: String = name.chars().filter(|c| !c.is_control()).take(60).collect();
            let error =
                RpcError::new(ErrorKind::NotFound, format!("nobody holds, awaits or misses lane {shown}"));
            return Err(error.field("name").hint("belay lanes lists them"));
        };
        let (released, unblocked) = lane.release(params.owner.as_deref());
        let released: Vec<_> = released.iter().map(|fence| fence_info(name, fence)).collect();
        if !(released.is_empty() && unblocked.is_none()) {
            let event = Event::LaneReleased {
                lane: name.clone(),
                owners: released.iter().map(|fence| fence.owner.clone()).collect(),
                unblocked: unblocked.clone(),
                by: self.actor(caller, None),
                reason: params.reason.clone(),
            };
            self.emit(&event);
        }
        self.grant(name);
        let lane = self.lanes.get(name).cloned().unwrap_or_default();
        let lane = self.seen(caller, &self.scope(caller), lane_info(name, &lane));
        Ok(ReleaseResult { lane, released, unblocked })
    }

    /// A person may; and whoever is above the owner that is fenced, not the owner itself nor anybody below it.
    fn may_release(&self, caller: &Caller, params: &ReleaseParams) -> Result<(), RpcError> {
        let scope = self.scope(caller);
        if scope == Scope::Person {
            return Ok(());
        }
        let owner = params.owner.as_deref().unwrap_or_default();
        let lineage = match (self.sessions.get(owner), self.tasks.get(owner)) {
            (Some(session), _) => session.doc.lineage.as_slice(),
            (None, Some(task)) => task.entry.doc.lineage.as_slice(),
            (None, None) => &[],
        };
        let fences = self.lanes.get(&params.name).map(|lane| lane.fences.as_slice()).unwrap_or_default();
        let is_fenced = fences.iter().any(|fence| fence.owner == owner);
        let is_above = is_fenced && lineage.iter().any(|above| Some(above.as_str()) == scope.id());
        if is_above {
            return Ok(());
        }
        self.only_a_person(caller, "release this lane").map_err(|error| error.field("name"))
    }
}

const fn is_blank(lane: &LaneInfo) -> bool {
    lane.holder.is_none() && lane.queue.is_empty() && lane.fences.is_empty()
}
