//! Conversions of a lane to and from its stored form and its wire form. No I/O.

use belay_model::lane::{Claim, Fence, Holding, Lane, Waiting};
use belay_protocol::Timestamp;
use belay_protocol::lane::{LaneFenceInfo, LaneHolderInfo, LaneInfo};
use serde::{Deserialize, Serialize};

use crate::config::bounds;

/// A task's seat in a lane, as it is stored with the task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SeatDoc {
    pub name: String,
    pub owner: String,
    /// None while the task is queued.
    pub generation: Option<u64>,
}

/// A lane as it is stored in the journal.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct LaneDoc {
    generation: u64,
    holder: Option<(ClaimDoc, Option<String>)>,
    queue: Vec<(ClaimDoc, bool)>,
    fences: Vec<LaneFenceInfo>,
    /// The boot during which the lane was stored. No process outlives a boot. Empty if unknown.
    #[serde(default)]
    pub(super) boot: String,
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
    pub(super) fn new(name: &str, lane: &Lane, boot: &str) -> Self {
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

    pub(super) fn read(self) -> Lane {
        let fence = |fence: LaneFenceInfo| Fence {
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

pub(super) fn fence_info(lane: &str, fence: &Fence) -> LaneFenceInfo {
    let Fence { owner, generation, task, by, at_ms, reason } = fence.clone();
    LaneFenceInfo { lane: lane.to_owned(), owner, generation, task, by, at: Timestamp(at_ms), reason }
}

/// A lane with everything in it; [`bounded`] cuts it to what a reply may have.
pub(super) fn lane_info(name: &str, lane: &Lane) -> LaneInfo {
    let info = |claim: &Claim, blocked: Option<String>| LaneHolderInfo {
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
        queued: lane.queue.len() as u64,
        fences: lane.fences.iter().map(|fence| fence_info(name, fence)).collect(),
        fenced: lane.fences.len() as u64,
    }
}

/// The first tasks of the queue and the newest fences, with the counts of all.
pub(super) fn bounded(mut lane: LaneInfo) -> LaneInfo {
    (lane.queued, lane.fenced) = (lane.queue.len() as u64, lane.fences.len() as u64);
    lane.queue.truncate(bounds::LANE_ROWS);
    lane.fences.drain(..lane.fences.len().saturating_sub(bounds::LANE_ROWS));
    lane
}
