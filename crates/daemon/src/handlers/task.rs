//! `task/get list stop write signal remove`: looking at tasks, ending them, forgetting them.

use belay_model::{Level, Outcome, State, StopOrder};
use belay_os::signal::Signal;
use belay_protocol::Timestamp;
use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::life::{OutputInfo, Receipt};
use belay_protocol::shim::{EndRecord, ToShim};
use belay_protocol::task::{
    GetParams, ListParams, ListResult, RemoveParams, RemoveResult, SignalParams, SignalResult, StopParams,
    StopResult, StopVerdict, TaskInfo, WriteParams,
};
use belay_record::convert::Wire as _;
use serde_json::json;

use super::task_start::{check_clock, check_text};
use crate::answer::{Caller, Pending, What};
use crate::config::bounds;
use crate::core::{Core, ShimStage};
use crate::doc::Entry;
use crate::event::Action;
use crate::life::{object, stop_result};
use crate::record::journal_error;
use crate::world::{CrashPoint, World};

impl<W: World> Core<W> {
    pub(crate) fn task_get(&mut self, caller: &Caller, params: &GetParams) {
        let id = match self.resolve(&params.id) {
            Ok(id) => id,
            Err(error) => return self.fail(caller, error),
        };
        if let Some(shim) = self.tasks.get(&id).and_then(|task| task.shim) {
            // The shim knows its clocks and sums; if it does not answer, the answer goes without them.
            let query =
                self.promise(caller.clone(), What::Inspect { task: id }, Some(bounds::SHIM_ANSWER_MS));
            self.actions.push(Action::ToShim { shim, message: ToShim::Query { query } });
            return;
        }
        if let Some(info) = self.live_info(&id, true, None) {
            return self.reply(caller, &info);
        }
        match self.entry(&id) {
            Ok(entry) => self.reply(caller, &Self::ended_info(&entry)),
            Err(error) => self.fail(caller, error),
        }
    }

    pub(crate) fn task_list(&mut self, caller: &Caller, params: &ListParams) {
        match self.list(params) {
            Ok(result) => self.reply(caller, &result),
            Err(error) => self.fail(caller, error),
        }
    }

    fn list(&self, params: &ListParams) -> Result<ListResult, RpcError> {
        let limit =
            params.limit.map_or(bounds::LIST_ITEMS, |limit| limit as usize).clamp(1, bounds::LIST_ITEMS);
        let before = match &params.cursor {
            None => None,
            Some(cursor) => {
                let number = cursor.parse::<u64>();
                Some(
                    number
                        .map_err(|_| RpcError::invalid("cursor", "that is no cursor of an earlier list"))?,
                )
            }
        };
        let wanted = |entry: &Entry| {
            before.is_none_or(|before| entry.number < before)
                && params.session.as_ref().is_none_or(|session| *session == entry.session)
        };
        let mut found: Vec<(u64, TaskInfo)> = self
            .tasks
            .values()
            .filter(|task| wanted(&task.entry))
            .filter_map(|task| Some((task.entry.number, self.live_info(&task.entry.id, false, None)?)))
            .collect();
        if params.all {
            let session = params.session.clone();
            let filter = belay_journal::TaskFilter {
                ended: Some(true),
                before,
                limit: limit + 1,
                session,
                ..Default::default()
            };
            let rows = self.journal.tasks(&filter).map_err(|error| journal_error(&error))?;
            let kept = rows.into_iter().filter(|row| !self.batch.removed.contains(&row.id));
            // Ends that the disk has no room for yet.
            let waiting = self.batch.put.iter().filter(|row| row.ended_ms.is_some()).cloned();
            let entries = kept.chain(waiting).filter_map(|row| Entry::from_row(row).ok()).filter(&wanted);
            found.extend(entries.map(|entry| (entry.number, Self::ended_info(&entry))));
        }
        found.sort_unstable_by_key(|(number, _)| std::cmp::Reverse(*number));
        let more = found.len() > limit;
        found.truncate(limit);
        let next_cursor = found.last().filter(|_| more).map(|(number, _)| number.to_string());
        Ok(ListResult { tasks: found.into_iter().map(|(_, info)| info).collect(), next_cursor })
    }

    pub(crate) fn task_stop(&mut self, caller: &Caller, params: &StopParams) {
        let found = check_text("actor", params.actor.as_deref(), bounds::NAME_BYTES)
            .and_then(|()| check_reason(params.reason.as_deref()))
            .and_then(|()| check_clock("grace_ms", params.grace_ms))
            .and_then(|()| self.resolve(&params.id));
        let id = match found.and_then(|id| self.entry(&id).map(|entry| entry.id)) {
            Ok(id) => id,
            Err(error) if error.data.kind == ErrorKind::NotFound => {
                let result = StopVerdict::NotFound;
                return self.reply(
                    caller,
                    &StopResult { id: params.id.clone(), result, status: None, receipt: None },
                );
            }
            Err(error) => return self.fail(caller, error),
        };
        let level = params.level.map_or(Level::Terminate, Level::from_wire);
        let order = StopOrder {
            grace_ms: params.grace_ms,
            ..StopOrder::new(level, self.actor(caller, params.actor.as_deref()), params.reason.as_deref())
        };
        if !self.tasks.contains_key(&id) {
            return self.answer_already_ended(caller, &id);
        }
        let within = self.stop_deadline_ms(&id, &order);
        if params.wait {
            self.promise(caller.clone(), What::Stop { task: id.clone() }, Some(within));
        } else {
            let status = self.tasks.get(&id).map(|task| task.entry.doc.status);
            let accepted =
                StopResult { id: id.clone(), result: StopVerdict::Accepted, status, receipt: None };
            self.reply(caller, &accepted);
        }
        self.order_stop(&id, order);
    }

    fn answer_already_ended(&mut self, caller: &Caller, id: &str) {
        match self.entry(id) {
            Ok(entry) => {
                let result = stop_result(&Self::ended_info(&entry));
                self.reply(caller, &StopResult { result: StopVerdict::AlreadyEnded, ..result });
            }
            Err(error) => self.fail(caller, error),
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

    /// Who asks: always the user, and what the caller calls itself.
    pub(crate) fn actor(&self, caller: &Caller, named: Option<&str>) -> String {
        let uid = self.clients.get(&caller.client).map(|client| client.uid);
        let user = uid.map_or_else(|| "nobody".to_owned(), |uid| self.world.user_name(uid));
        match named {
            Some(name) => format!("user:{user} ({name})"),
            None => format!("user:{user}"),
        }
    }

    pub(crate) fn task_write(&mut self, caller: &Caller, params: WriteParams) {
        let found = check_text("key", params.key.as_deref(), bounds::NAME_BYTES)
            .and_then(|()| self.resolve(&params.id))
            .and_then(|id| self.entry(&id));
        let id = match found {
            Ok(entry) => entry.id,
            Err(error) => return self.fail(caller, error),
        };
        let shim = self.tasks.get(&id).and_then(|task| task.shim);
        let Some(shim) = shim else { return self.fail(caller, not_running()) };
        let what = What::Write { task: id, bytes: params.data.0.len() as u64 };
        let write = self.promise(caller.clone(), what, Some(bounds::SHIM_ANSWER_MS));
        let message = ToShim::Write { write, data: params.data, close: params.close, key: params.key };
        self.actions.push(Action::ToShim { shim, message });
    }

    pub(crate) fn task_signal(&mut self, caller: &Caller, params: &SignalParams) {
        if let Err(error) = self.try_signal(caller, params) {
            self.fail(caller, error);
        }
    }

    fn try_signal(&mut self, caller: &Caller, params: &SignalParams) -> Result<(), RpcError> {
        let signal = Signal::from_name(&params.signal).ok_or_else(|| {
            let shown: String = params.signal.chars().filter(|c| !c.is_control()).take(30).collect();
            RpcError::invalid("signal", format!("there is no signal {shown:?}"))
                .hint("INT, TERM, USR1, HUP, or a number; kill -l lists them")
        })?;
        let id = self.entry(&self.resolve(&params.id)?)?.id;
        let shim = self.tasks.get(&id).and_then(|task| task.shim).ok_or_else(not_running)?;
        let session = self.tasks.get(&id).map(|task| task.entry.session.clone()).unwrap_or_default();
        let by = self.actor(caller, None);
        let ask =
            self.promise(caller.clone(), What::Signal { task: id.clone() }, Some(bounds::SHIM_ANSWER_MS));
        self.emit(
            "task.signalled",
            Some((&id, &session)),
            object(json!({ "signal": signal.name(), "by": by })),
        );
        self.actions.push(Action::ToShim { shim, message: ToShim::Signal { ask, signal: signal.as_raw() } });
        Ok(())
    }

    pub(crate) fn shim_signalled(&mut self, ask: u64, processes: u64) {
        if let Some(Pending { what: What::Signal { task }, caller, .. }) = self.take_pending(ask) {
            self.reply(&caller, &SignalResult { id: task, processes });
        }
    }

    pub(crate) fn task_remove(&mut self, caller: &Caller, params: &RemoveParams) {
        let found = self.resolve(&params.id).and_then(|id| self.entry(&id));
        let entry = match found {
            Ok(entry) => entry,
            Err(error) => return self.fail(caller, error),
        };
        if self.tasks.contains_key(&entry.id) {
            let message = format!("task {} has not ended", entry.id);
            let error = RpcError::new(ErrorKind::WrongState, message).field("id");
            return self.fail(caller, error.hint(format!("stop it first: belay stop {}", entry.id)));
        }
        let freed_bytes = self.forget(&entry);
        match self.commit_removals() {
            Ok(()) => self.reply(caller, &RemoveResult { id: entry.id, freed_bytes }),
            Err(error) => self.fail(caller, journal_error(&error)),
        }
    }

    /// For `daemon/stop`: one of the tasks that it waits for may have ended.
    pub(crate) fn one_of_all_ended(&mut self, info: &TaskInfo) {
        let mut finished = Vec::new();
        for (id, pending) in &mut self.pending {
            let What::StopAll { done, open } = &mut pending.what else { continue };
            if let Some(place) = open.iter().position(|task| *task == info.id) {
                open.remove(place);
                done.push(stop_result(info));
            }
            if open.is_empty() {
                finished.push(*id);
            }
        }
        for id in finished {
            self.answer_is_due(id);
        }
    }
}

pub(crate) fn not_running() -> RpcError {
    RpcError::new(ErrorKind::WrongState, "the task does not run, so nothing can be written or sent to it")
        .field("id")
}

fn check_reason(reason: Option<&str>) -> Result<(), RpcError> {
    match reason {
        Some(text) if text.len() > bounds::REASON_BYTES => {
            let message = format!("the reason is longer than {} bytes", bounds::REASON_BYTES);
            Err(RpcError::invalid("reason", message))
        }
        _ => Ok(()),
    }
}
