//! `lane/list` and `lane/release`: lists the lanes that a caller may see, and removes fences and
//! blocks from a lane.

use std::ops::Bound;

use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::event::Event;
use belay_protocol::lane::{
    LaneFenceInfo, LaneInfo, LaneListParams, LaneListResult, LaneReleaseParams, LaneReleaseResult,
};

use super::stored::{bounded, fence_info, lane_info};
use crate::config::bounds;
use crate::host::Host;
use crate::owners::Session;
use crate::requests::check::at_most;
use crate::requests::{Answer, Caller, Scope};
use crate::runtime::Core;
use crate::tasks::check_reason;

impl<H: Host> Core<H> {
    pub(crate) fn lane_list(&mut self, caller: &Caller, params: &LaneListParams) -> Result<Answer, RpcError> {
        let limit = at_most("limit", params.limit, bounds::LIST_ITEMS)?;
        // What was recorded before this call is contained in the list.
        self.commit_or_retry();
        let scope = self.scope(caller);
        let after = params.cursor.clone().map_or(Bound::Unbounded, Bound::Excluded);
        let all = self.lanes.all.range((after, Bound::Unbounded));
        let lanes = all.map(|(name, lane)| self.visible_lane(caller, &scope, lane_info(name, lane)));
        let mut lanes = lanes.filter(|lane| !is_blank(lane));
        let (mut page, mut bytes) = (Vec::new(), 0);
        let mut next_cursor = None;
        while let Some(lane) = lanes.next() {
            bytes += lane_bytes(&lane);
            page.push(lane);
            if page.len() == limit || bytes > bounds::LIST_BYTES {
                next_cursor = lanes.next().and(page.last()).map(|last| last.name.clone());
                break;
            }
        }
        let as_of = self.ctx.journal.last_event();
        Ok(caller.answer(&LaneListResult { lanes: page, as_of, next_cursor }))
    }

    /// A lane as a caller may see it: an agent sees its own tasks and fences, not those of others.
    fn visible_lane(&self, caller: &Caller, scope: &Scope, mut lane: LaneInfo) -> LaneInfo {
        if *scope == Scope::Person {
            return bounded(lane);
        }
        let names = self.owner_names(caller);
        let covers = |task: &str| self.tasks.get(task).is_some_and(|task| scope.covers_task(task.stored()));
        lane.holder = lane.holder.filter(|holder| covers(&holder.task));
        lane.queue.retain(|waiting| covers(&waiting.task));
        lane.fences.retain(|fence| names.contains(&fence.owner));
        bounded(lane)
    }

    pub(crate) fn lane_release(
        &mut self,
        caller: &Caller,
        params: &LaneReleaseParams,
    ) -> Result<Answer, RpcError> {
        check_reason(params.reason.as_deref())?;
        self.check_may_release(caller, params)?;
        let name = &params.name;
        if self.lanes.all.get(name).is_none_or(belay_model::Lane::is_idle) {
            let shown: String = name.chars().filter(|c| !c.is_control()).take(60).collect();
            let error = RpcError::new(ErrorKind::NotFound, format!("no such lane: {shown}"));
            return Err(error.field("name").hint("belay lanes lists them"));
        }
        let released = self.lanes.update(name, |lane| lane.release(params.owner.as_deref()));
        let (released, unblocked) = released.unwrap_or_default();
        let released: Vec<_> = released.iter().map(|fence| fence_info(name, fence)).collect();
        if !(released.is_empty() && unblocked.is_none()) {
            let by = self.actor(caller, None);
            tracing::info!(lane = name, by, reason = params.reason, fences = released.len(), "lane released");
            let event = Event::LaneReleased {
                lane: name.clone(),
                owners: released.iter().map(|fence| fence.owner.clone()).collect(),
                unblocked: unblocked.clone(),
                by,
                reason: params.reason.clone(),
            };
            self.ctx.record(event, String::new());
        }
        self.grant_lane(name);
        let lane = self.lanes.all.get(name).cloned().unwrap_or_default();
        let lane = self.visible_lane(caller, &self.scope(caller), lane_info(name, &lane));
        Ok(caller.answer(&LaneReleaseResult { lane, released, unblocked }))
    }

    /// A lane is released by a person, or by a scope above the fenced owner; not by the owner or
    /// anything below it.
    fn check_may_release(&self, caller: &Caller, params: &LaneReleaseParams) -> Result<(), RpcError> {
        let scope = self.scope(caller);
        if scope == Scope::Person {
            return Ok(());
        }
        let owner = params.owner.as_deref().unwrap_or_default();
        let lineage = match (self.sessions.get(owner).map(Session::lineage), self.tasks.get(owner)) {
            (Some(lineage), _) => lineage,
            (None, Some(task)) => task.stored().doc.lineage.as_slice(),
            (None, None) => &[],
        };
        let fences = self.lanes.all.get(&params.name).map(|lane| lane.fences.as_slice()).unwrap_or_default();
        let is_fenced = fences.iter().any(|fence| fence.owner == owner);
        let is_above = is_fenced && lineage.iter().any(|above| Some(above.as_str()) == scope.id());
        if is_above {
            return Ok(());
        }
        self.only_a_person(caller, "release this lane").map_err(|error| error.field("name"))
    }
}

/// About how large a lane is in a reply.
fn lane_bytes(lane: &LaneInfo) -> usize {
    let fence = |fence: &LaneFenceInfo| 300 + fence.reason.as_ref().map_or(0, String::len);
    200 + lane.name.len() + 150 * lane.queue.len() + lane.fences.iter().map(fence).sum::<usize>()
}

const fn is_blank(lane: &LaneInfo) -> bool {
    lane.holder.is_none() && lane.queue.is_empty() && lane.fences.is_empty()
}
