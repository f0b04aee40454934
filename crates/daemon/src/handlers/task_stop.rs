//! `task/stop`: ending tasks, one or with everything below them, and proving it. The stops of many at once, of a daemon that
//! leaves and of a session that ends, are answered here too.

use belay_model::{Level, Outcome, State, StopOrder};
use belay_protocol::Timestamp;
use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::lane::FenceInfo;
use belay_protocol::life::{OutputInfo, Receipt};
use belay_protocol::shim::{EndRecord, ToShim};
use belay_protocol::task::{StopParams, StopResult, StopVerdict, TaskInfo};
use belay_record::convert::Wire as _;

use super::check::{check_clock, check_text};
use crate::answer::{Caller, What};
use crate::config::bounds;
use crate::core::{Core, ShimStage};
use crate::doc::Entry;
use crate::event::Action;
use crate::life::stop_result;
use crate::rights::Scope;
use crate::sessions::STANDING;
use crate::world::{CrashPoint, World};

/// Several stops that are answered together.
#[derive(Debug)]
pub(crate) struct StopMany {
    pub(crate) done: Vec<StopResult>,
    /// Those that are being stopped now.
    pub(crate) open: Vec<String>,
    pub(crate) order: StopOrder,
    pub(crate) then: Then,
}

/// What comes when they are gone.
#[derive(Debug)]
pub(crate) enum Then {
    /// The daemon leaves.
    Leave,
    /// What is above them is next, up to this task.
    Cascade {
        root: String,
        fenced: Option<FenceInfo>,
    },
    Close {
        session: String,
    },
}

impl<W: World> Core<W> {
    pub(crate) fn task_stop(&mut self, caller: &Caller, params: &StopParams) {
        let found = check_text("actor", params.actor.as_deref(), bounds::NAME_BYTES)
            .and_then(|()| check_reason(params.reason.as_deref()))
            .and_then(|()| check_clock("grace_ms", params.grace_ms))
            .and_then(|()| self.find(caller, &params.id));
        let entry = match found {
            Ok(entry) => entry,
            Err(error) => return self.refuse_stop(caller, &params.id, error),
        };
        let level = params.level.map_or(Level::Terminate, Level::from_wire);
        let actor = self.stopper(caller, &entry, params.actor.as_deref());
        let order =
            StopOrder { grace_ms: params.grace_ms, ..StopOrder::new(level, actor, params.reason.as_deref()) };
        let fenced = self.fence_owner(caller, &entry.id, &order);
        if params.cascade {
            return self.stop_cascade(caller, entry.id, order, fenced, params.wait);
        }
        if !self.tasks.contains_key(&entry.id) {
            let result = stop_result(&Self::ended_info(&entry));
            return self.reply(caller, &StopResult { result: StopVerdict::AlreadyEnded, ..result });
        }
        if params.wait {
            let within = self.stop_deadline_ms(&entry.id, &order);
            self.promise(caller.clone(), What::Stop { task: entry.id.clone(), fenced }, Some(within));
        } else {
            let bare = StopResult::bare(entry.id.clone(), StopVerdict::Accepted, Some(entry.doc.status));
            self.reply(caller, &StopResult { fenced, ..bare });
        }
        self.order_stop(&entry.id, order);
    }

    /// Who stops a task: a connection that holds the task's session stops it in the session's name.
    fn stopper(&self, caller: &Caller, entry: &Entry, named: Option<&str>) -> String {
        let holds = entry.session != STANDING && self.speaks_for(caller.client, &entry.session);
        match (self.scope(caller), named) {
            (Scope::Person, Some(name)) if holds => format!("session:{} ({name})", entry.session),
            (Scope::Person, None) if holds => format!("session:{}", entry.session),
            _ => self.actor(caller, named),
        }
    }

    /// Of what is not there, or not the caller's, the answer says so: that is no error of the call.
    fn refuse_stop(&mut self, caller: &Caller, id: &str, error: RpcError) {
        let result = match error.data.kind {
            ErrorKind::NotFound => StopVerdict::NotFound,
            ErrorKind::NotPermitted => StopVerdict::NotPermitted,
            _ => return self.fail(caller, error),
        };
        self.reply(caller, &StopResult::bare(id.to_owned(), result, None));
    }

    // --- with everything below ---

    fn stop_cascade(
        &mut self,
        caller: &Caller,
        root: String,
        order: StopOrder,
        fenced: Option<FenceInfo>,
        wait: bool,
    ) {
        let all = self.below(&root);
        let levels = all.iter().map(|id| self.depth(id)).collect::<std::collections::BTreeSet<_>>().len() + 1;
        let longest =
            all.iter().chain([&root]).map(|id| self.stop_deadline_ms(id, &order)).max().unwrap_or(0);
        let within = longest.saturating_mul(levels as u64);
        if !wait {
            let status = self.tasks.get(&root).map(|task| task.entry.doc.status);
            let bare = StopResult::bare(root.clone(), StopVerdict::Accepted, status);
            self.reply(caller, &StopResult { fenced: fenced.clone(), ..bare });
        }
        let caller = Caller { request: caller.request.clone().filter(|_| wait), ..*caller };
        self.closing.push(root.clone());
        let then = Then::Cascade { root, fenced };
        let many = StopMany { done: Vec::new(), open: Vec::new(), order, then };
        let pending = self.promise(caller, What::StopMany(Box::new(many)), Some(within));
        self.go_on_stopping(pending);
    }

    /// The live tasks below this one.
    pub(crate) fn below(&self, root: &str) -> Vec<String> {
        let is_below = |lineage: &[String]| lineage.iter().any(|above| above == root);
        // What was to be run when a task has ended is run, whoever ended it.
        let live = self.tasks.values().filter(|task| task.entry.doc.hook.is_none());
        let found = live.filter(|task| is_below(&task.entry.doc.lineage));
        found.map(|task| task.entry.id.clone()).collect()
    }

    fn depth(&self, id: &str) -> usize {
        self.tasks.get(id).map_or(0, |task| task.entry.doc.lineage.len())
    }

    /// Those of a level are gone: the next one, from the leaves up; then what comes after them.
    fn go_on_stopping(&mut self, pending: u64) {
        let Some(What::StopMany(many)) = self.pending.get(&pending).map(|pending| &pending.what) else {
            return;
        };
        let Then::Cascade { root, .. } = &many.then else { return self.answer_is_due(pending) };
        let below = self.below(root);
        let deepest = below.iter().map(|id| self.depth(id)).max();
        let mut next: Vec<String> = below.into_iter().filter(|id| Some(self.depth(id)) == deepest).collect();
        if next.is_empty() && self.tasks.contains_key(root) {
            next.push(root.clone());
        }
        let order = many.order.clone();
        if let Some(What::StopMany(many)) = self.pending.get_mut(&pending).map(|pending| &mut pending.what) {
            many.open.clone_from(&next);
        }
        if next.is_empty() {
            return self.answer_is_due(pending);
        }
        for id in next {
            self.order_stop(&id, order.clone());
        }
    }

    /// One of several that are waited for together may have ended.
    pub(crate) fn one_of_many_ended(&mut self, info: &TaskInfo) {
        let mut finished = Vec::new();
        for (id, pending) in &mut self.pending {
            let What::StopMany(many) = &mut pending.what else { continue };
            if let Some(place) = many.open.iter().position(|task| *task == info.id) {
                many.open.remove(place);
                many.done.push(stop_result(info));
                if many.open.is_empty() {
                    finished.push(*id);
                }
            }
        }
        for id in finished {
            self.go_on_stopping(id);
        }
    }

    fn still_going(&self, id: String) -> StopResult {
        let status = self.tasks.get(&id).map(|task| task.entry.doc.status);
        StopResult::bare(id, StopVerdict::Accepted, status)
    }

    /// They are gone, or the time is over.
    pub(crate) fn finish_many(&mut self, caller: &Caller, many: StopMany) {
        let StopMany { mut done, open, then, .. } = many;
        let left = open.len();
        done.extend(open.into_iter().map(|id| self.still_going(id)));
        match then {
            Then::Leave => self.finish_leaving(caller, done, left),
            Then::Close { session } => self.answer_close(caller, &session, done),
            Then::Cascade { root, fenced } => {
                self.closing.retain(|other| *other != root);
                let own = done.iter().position(|result| result.id == root).map(|at| done.remove(at));
                let own = own.or_else(|| {
                    let ended = self.entry(&root).ok().filter(|_| !self.tasks.contains_key(&root));
                    let result = ended.map(|entry| stop_result(&Self::ended_info(&entry)))?;
                    Some(StopResult { result: StopVerdict::AlreadyEnded, ..result })
                });
                let own = own.unwrap_or_else(|| self.still_going(root));
                self.reply(caller, &StopResult { fenced, below: done, ..own });
            }
        }
    }

    /// Carries a stop to wherever the task is: its shim, its start that is not handed over yet, or nowhere.
    pub(crate) fn order_stop(&mut self, id: &str, order: StopOrder) {
        let patience_ms = self.patience_ms(id, &order);
        let Some(task) = self.tasks.get_mut(id) else { return };
        let first = task.stop.as_ref().map_or(self.now, |(_, asked)| *asked);
        if task.stop.as_ref().is_none_or(|(kept, _)| order.level > kept.level) {
            task.stop = Some((order.clone(), first));
        }
        match (task.shim, &task.state) {
            (None, State::Queued { .. }) => {
                let now = Timestamp(self.now.wall_ms);
                let receipt = Receipt {
                    level: order.level.to_wire(),
                    actor: order.actor.clone(),
                    reason: order.reason.clone(),
                    signals: Vec::new(),
                    requested_at: now,
                    empty_at: Some(now),
                    took_ms: 0,
                    survivors: Vec::new(),
                };
                let outcome = Outcome::Cancelled { order, exit: None };
                let record = EndRecord {
                    end: outcome.to_wire(),
                    ended_at_ms: self.now.wall_ms,
                    receipt: Some(receipt),
                    output: OutputInfo::default(),
                    capture: None,
                };
                self.end_here(id, record);
            }
            (Some(shim), _) if self.shims.get(&shim).is_some_and(|shim| shim.stage == ShimStage::Coming) => {
                self.stop_unreachable(shim, order.to_wire(), patience_ms);
            }
            (Some(shim), _) => {
                // Behind a start that waits for its record to be durable. Otherwise at once: a full disk stops no stop.
                let is_to_it =
                    |action: &Action| matches!(action, Action::ToShim { shim: to, .. } if *to == shim);
                let waits = self.durable.iter().any(is_to_it);
                let way = if waits { &mut self.durable } else { &mut self.actions };
                way.push(Action::ToShim { shim, message: ToShim::Stop { order: order.to_wire() } });
                way.push(Action::Reach(CrashPoint::AfterStopSent));
                self.doubt_in(shim, patience_ms + bounds::SHIM_ANSWER_MS);
            }
            // Its shim is gone and its tree is being dealt with: that is its end, and the answer waits for it.
            (None, _) => {}
        }
    }

    /// Every level may take its grace; then the kill, and a margin for the telling.
    pub(crate) fn stop_deadline_ms(&self, id: &str, order: &StopOrder) -> u64 {
        const MARGIN_MS: u64 = 5_000;
        let kill_ms = self.tasks.get(id).map_or(0, |task| task.policy.kill_ms);
        self.patience_ms(id, order).saturating_add(kill_ms).saturating_add(MARGIN_MS)
    }

    /// How long the tree may take before it is killed.
    fn patience_ms(&self, id: &str, order: &StopOrder) -> u64 {
        let Some(task) = self.tasks.get(id) else { return 0 };
        let grace = order.grace_ms.unwrap_or(task.policy.grace_ms);
        let levels =
            Level::ALL.iter().filter(|level| **level >= order.level && **level < Level::Kill).count() as u64;
        grace.saturating_mul(levels)
    }
}

pub(crate) fn check_reason(reason: Option<&str>) -> Result<(), RpcError> {
    match reason {
        Some(text) if text.len() > bounds::REASON_BYTES => {
            let message = format!("the reason is longer than {} bytes", bounds::REASON_BYTES);
            Err(RpcError::invalid("reason", message))
        }
        _ => Ok(()),
    }
}
