//! `task/stop`: stops one task and replies with a receipt. Stops of several tasks at once are in
//! `stop_many`; the stop itself is carried out by the task's shim.

use belay_model::{Level, Outcome, State, StopOrder};
use belay_protocol::Timestamp;
use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::lane::LaneFenceInfo;
use belay_protocol::life::{OutputInfo, StopLevel, StopReceipt};
use belay_protocol::shim::{EndRecord, ToShim};
use belay_protocol::task::{StopVerdict, TaskInfo, TaskStatus, TaskStopParams, TaskStopResult};
use belay_record::convert::Wire as _;

use super::stop_many::already_ended;
use super::{StopRequest, TaskEnded, TaskRef, ended_info, not_found};
use crate::config::bounds;
use crate::effect::Effect;
use crate::host::{CrashPoint, Host};
use crate::requests::check::{check_clock, check_text};
use crate::requests::{Answer, Caller, Reply, Waiter};
use crate::runtime::{Core, Stage};

/// How a stop is asked for, in every call that stops tasks by id.
#[derive(Clone, Copy, Debug)]
pub(super) struct StopRequestParams<'a> {
    pub(super) level: Option<StopLevel>,
    pub(super) grace_ms: Option<u64>,
    pub(super) reason: Option<&'a str>,
    pub(super) actor: Option<&'a str>,
}

/// A stop whose caller waits for the receipt.
#[derive(Debug)]
pub(crate) struct StopReply {
    task: String,
    fenced: Option<LaneFenceInfo>,
}

impl Reply for StopReply {
    fn tasks(&self) -> Vec<&str> {
        vec![&self.task]
    }

    fn awaits_end(&self) -> bool {
        true
    }

    fn complete<H: Host>(self, core: &mut Core<H>, waiter: Waiter, ended: &TaskEnded) {
        core.reply(&waiter.caller, &TaskStopResult { fenced: self.fenced, ..stop_result(ended.info()) });
    }

    fn give_now<H: Host>(self, core: &mut Core<H>, waiter: Waiter) {
        let status = core.tasks.get(&self.task).map(super::Task::status);
        let bare = TaskStopResult::bare(self.task, StopVerdict::Accepted, status);
        core.reply(&waiter.caller, &TaskStopResult { fenced: self.fenced, ..bare });
    }
}

impl<H: Host> Core<H> {
    pub(crate) fn task_stop(&mut self, caller: &Caller, params: TaskStopParams) -> Result<Answer, RpcError> {
        let order = self.stop_order(
            caller,
            StopRequestParams {
                level: params.level,
                grace_ms: params.grace_ms,
                reason: params.reason.as_deref(),
                actor: params.actor.as_deref(),
            },
        )?;
        let id = params.id.clone();
        self.with_task_or_error(caller, &id, move |core, caller, found| match found {
            Ok(task) => core.stop_found(caller, &params, order, &task),
            Err(error) => {
                if error.data.kind == ErrorKind::NotPermitted {
                    tracing::info!(actor = core.actor(caller, None), cause = error.message, "stop refused");
                }
                refuse_stop(caller, &params.id, error)
            }
        })
    }

    /// Checks how a stop is asked for.
    pub(super) fn stop_order(
        &self,
        caller: &Caller,
        params: StopRequestParams<'_>,
    ) -> Result<StopOrder, RpcError> {
        check_text("actor", params.actor, bounds::NAME_BYTES)?;
        check_reason(params.reason)?;
        check_clock("grace_ms", params.grace_ms)?;
        let level = params.level.map_or(Level::Terminate, Level::from_wire);
        let actor = self.actor(caller, params.actor);
        Ok(StopOrder { grace_ms: params.grace_ms, ..StopOrder::new(level, actor, params.reason) })
    }

    fn stop_found(
        &mut self,
        caller: &Caller,
        params: &TaskStopParams,
        order: StopOrder,
        task: &TaskRef,
    ) -> Result<Answer, RpcError> {
        let id = task.id();
        let stored = match task {
            TaskRef::Live(id) => self.tasks.get(id).map(|task| &task.stored),
            TaskRef::Ended(stored) => Some(&**stored),
        };
        let stored = stored.ok_or_else(|| not_found(id))?;
        let ended = matches!(task, TaskRef::Ended(_)).then(|| already_ended(&ended_info(stored)));
        let fenced = self.fence_owner(caller, id, &order, params.fence);
        if params.cascade {
            return Ok(self.stop_cascade(caller, id.to_owned(), order, fenced, params.wait, ended));
        }
        if let Some(result) = ended {
            return Ok(caller.answer(&result));
        }
        let answer = if params.wait {
            let within = self.stop_deadline_ms(id, &order);
            self.defer_reply(caller.clone(), StopReply { task: id.to_owned(), fenced }, Some(within));
            Answer::Later
        } else {
            let status = self.tasks.get(id).map(super::Task::status);
            let bare = TaskStopResult::bare(id.to_owned(), StopVerdict::Accepted, status);
            caller.answer(&TaskStopResult { fenced, ..bare })
        };
        self.order_stop(id, order);
        Ok(answer)
    }

    /// Sends a stop to the task's shim, or ends the task here if no shim has received its start
    /// yet.
    pub(crate) fn order_stop(&mut self, id: &str, order: StopOrder) {
        let (level, actor, reason) = (order.level.name(), order.actor.as_str(), order.reason.as_deref());
        tracing::info!(task = id, level, actor, reason, "stop");
        let patience_ms = self.stop_patience_ms(id, &order);
        let now = self.ctx.now;
        let stopped = self.tasks.update(id, |task| {
            let first_asked = task.stop.as_ref().map_or(now, |stop| stop.first_asked);
            if task.stop.as_ref().is_none_or(|kept| order.level > kept.order.level) {
                task.stop = Some(StopRequest { order: order.clone(), first_asked });
            }
            (task.shim, matches!(task.state, State::Queued { .. }))
        });
        match stopped {
            Some((None, true)) => self.end_queued(id, order),
            Some((Some(shim), _)) if self.shims.is_reconnecting(shim) => {
                self.stop_unreachable(shim, order.to_wire(), patience_ms);
            }
            Some((Some(shim), _)) => {
                let stage = self.ctx.effects.stage_of_message_to(shim);
                let message = ToShim::Stop { order: order.to_wire() };
                self.ctx.effects.push(stage, Effect::ToShim { shim, message });
                self.ctx.effects.push(stage, Effect::CrashPoint(CrashPoint::AfterStopSent));
                // A shim that has not received its start cannot work on a stop.
                if stage == Stage::Unconditional {
                    self.arm_watchdog(shim, patience_ms + bounds::SHIM_ANSWER_MS);
                }
            }
            // Its shim is gone and a worker finds out how the task ended. The reply waits for that
            // end.
            Some((None, false)) | None => {}
        }
    }

    /// Ends a queued task that no shim has received yet: it has no process.
    pub(super) fn end_queued(&mut self, id: &str, order: StopOrder) {
        let now = Timestamp(self.ctx.now.wall_ms);
        let receipt = StopReceipt {
            level: order.level.to_wire(),
            actor: order.actor.clone(),
            reason: order.reason.clone(),
            signals: Vec::new(),
            requested_at: now,
            empty_at: Some(now),
            took_ms: 0,
            survivors: Vec::new(),
        };
        let record = EndRecord {
            end: Outcome::Cancelled { order, exit: None }.to_wire(),
            ended_at_ms: now.0,
            receipt: Some(receipt),
            output: OutputInfo::default(),
            capture: None,
        };
        self.end_here(id, record);
    }

    /// How long a stop may take: a grace period for each level, then the kill, and a margin for the
    /// report.
    pub(crate) fn stop_deadline_ms(&self, id: &str, order: &StopOrder) -> u64 {
        const MARGIN_MS: u64 = 5_000;
        let kill_ms = self.tasks.get(id).map_or(0, |task| task.policy.kill_ms);
        self.stop_patience_ms(id, order).saturating_add(kill_ms).saturating_add(MARGIN_MS)
    }

    /// How long the process tree may take before it is killed.
    pub(super) fn stop_patience_ms(&self, id: &str, order: &StopOrder) -> u64 {
        let Some(task) = self.tasks.get(id) else { return 0 };
        let grace = order.grace_ms.unwrap_or(task.policy.grace_ms);
        let levels =
            Level::ALL.iter().filter(|level| **level >= order.level && **level < Level::Kill).count() as u64;
        grace.saturating_mul(levels)
    }
}

/// For a task that does not exist or is not the caller's, the reply has a verdict instead of an
/// error.
fn refuse_stop(caller: &Caller, id: &str, error: RpcError) -> Result<Answer, RpcError> {
    let result = match error.data.kind {
        ErrorKind::NotFound => StopVerdict::NotFound,
        ErrorKind::NotPermitted => StopVerdict::NotPermitted,
        _ => return Err(error),
    };
    Ok(caller.answer(&TaskStopResult::bare(id.to_owned(), result, None)))
}

/// The reply to a stop, once the task has ended.
pub(super) fn stop_result(info: &TaskInfo) -> TaskStopResult {
    let receipt = info.outcome.as_ref().and_then(|outcome| outcome.receipt()).cloned();
    // Without a receipt the stop came too late: the command had ended by itself. For a lost task
    // that is unknown.
    let accepted = receipt.is_some() || info.status == TaskStatus::Lost;
    let result = if accepted { StopVerdict::Accepted } else { StopVerdict::AlreadyEnded };
    TaskStopResult { receipt, ..TaskStopResult::bare(info.id.clone(), result, Some(info.status)) }
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
