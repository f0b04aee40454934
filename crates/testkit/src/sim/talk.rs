//! What simulated clients hear, held against what they asked and against what is durable: each request is answered
//! once and in time, and nothing is said that the journal does not know.

use std::collections::BTreeSet;

use belay_daemon::input::{ClientId, Input};
use belay_protocol::daemon::DaemonStopResult;
use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::methods::Notification;
use belay_protocol::rpc::{Incoming, RequestId};
use belay_protocol::task::{
    AnswerWhen, StopCounts, StopVerdict, TaskInfo, TaskListResult, TaskStopManyResult, TaskStopResult,
    TaskWaitResult, WaitMet,
};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::client::{Ask, Want};
use super::{Checked, Sim};

/// How late an answer may be, beyond its deadline: what the lines and the links take.
const SLACK_MS: u64 = 50;

impl Sim {
    pub(crate) fn answer_client(&mut self, connection: ClientId, line: &[u8]) -> Checked {
        let Some(daemon) = &self.daemon else { return Ok(()) };
        let generation = daemon.generation;
        let Some(&n) = daemon.clients.get(&connection) else { return Ok(()) };
        self.note("client", format_args!("{n} hears: {}", steady(&String::from_utf8_lossy(line))));
        self.owe(generation, 3, Input::ClientWritten { client: connection, bytes: line.len() });
        let incoming: Incoming<'_> = serde_json::from_slice(line).map_err(|error| error.to_string())?;
        let heard = match (&incoming.id, incoming.method.as_deref()) {
            (None, Some(method)) => self.hears_notice(n, method, incoming.params),
            (Some(RequestId::Number(id)), None) => match self.clients[n].open.remove(id) {
                Some(ask) => self.hears_answer(n, *id, &ask, incoming.result, incoming.error),
                None => Err(format!("request {id} was not asked, or was answered before")),
            },
            _ => Err("that is neither an answer nor a notification".to_owned()),
        };
        heard.map_err(|fault| format!("client {n}: {fault}: {}", String::from_utf8_lossy(line)))
    }

    fn hears_notice(&mut self, n: usize, method: &str, params: Option<&RawValue>) -> Checked {
        let known = params.map(|params| Notification::parse(method, params)).transpose();
        match known.map_err(|error| error.to_string())?.flatten() {
            Some(Notification::EventItem(item)) => {
                let event = item.event;
                let before = self.clients[n].events_seen.replace(event.seq).unwrap_or(0);
                let durable = self.observer.as_ref().is_some_and(|observer| event.seq <= observer.seen());
                if event.seq != before + 1 || !durable {
                    return Err(format!("event {} comes after {before}", event.seq));
                }
                Ok(())
            }
            Some(Notification::TaskStarted(start)) => {
                let info = start.task;
                let RequestId::Number(request) = start.request else {
                    return Err("it names no request of this client".to_owned());
                };
                let is_waiting = self.clients[n].open.get(&request).is_some_and(|ask| {
                    matches!(&ask.want, Want::Start { spec } if self.specs[*spec].params.name == info.name)
                });
                if !is_waiting || !self.clients[n].told_started.insert(request) {
                    return Err(format!(
                        "request {request} does not wait for it, or had task/started before"
                    ));
                }
                self.check_info(&info)
            }
            Some(Notification::TaskQueued(_) | Notification::OutputChunk(_) | Notification::OutputEnd(_)) => {
                Ok(())
            }
            Some(Notification::TaskStopped(stopped)) => {
                let RequestId::Number(request) = stopped.request else {
                    return Err("it names no request of this client".to_owned());
                };
                if !self.clients[n].open.contains_key(&request) {
                    return Err(format!("request {request} is answered already"));
                }
                *self.clients[n].receipts.entry(request).or_default() += 1;
                self.hears_stop(&stopped.result)
            }
            Some(Notification::TaskRemoved(_)) => Ok(()),
            Some(Notification::EventEnd(end)) => Err(format!("the events end: {}", end.error)),
            None => Err("there is no such notification".to_owned()),
        }
    }

    fn hears_answer(
        &mut self,
        n: usize,
        request: i64,
        ask: &Ask,
        result: Option<&RawValue>,
        error: Option<RpcError>,
    ) -> Checked {
        let took_ms = self.mono_ms - ask.sent_ms;
        if ask.within_ms.is_some_and(|within| took_ms > within + SLACK_MS) {
            return Err(format!("the answer took {took_ms} ms, not {:?}", ask.within_ms));
        }
        if let Some(error) = error {
            return self.hears_error(n, ask, &error);
        }
        match &ask.want {
            Want::Start { spec } => {
                let info: TaskInfo = read(result)?;
                let was_told = self.clients[n].told_started.remove(&request);
                // A task that was detached while it was queued has not started.
                let is_foreground = self.specs[*spec].params.answer == AnswerWhen::Ended;
                let is_missing = is_foreground && info.started_at.is_some() && !was_told;
                if is_missing || (was_told && !is_foreground) {
                    return Err(format!("task/started was sent before: {was_told}"));
                }
                self.hears_start(*spec, &info)
            }
            Want::Stop { .. } | Want::StopSpec { .. } => self.hears_stop(&read(result)?),
            Want::Wait { .. } | Want::WaitSpec { .. } => {
                let result: TaskWaitResult = read(result)?;
                if (result.met == WaitMet::Ended) != result.task.status.is_ended() {
                    return Err("the wait and the task say different things".to_owned());
                }
                self.check_info(&result.task)
            }
            Want::Get { .. } => self.check_info(&read(result)?),
            Want::List => self.hears_list(n, &read(result)?),
            Want::FollowEvents
            | Want::Hello
            | Want::Remove { .. }
            | Want::Status
            | Want::ReadEvents { .. }
            | Want::Collect => Ok(()),
            Want::StopMany { ids } => {
                let result: TaskStopManyResult = read(result)?;
                let ids: BTreeSet<&String> = ids.iter().collect();
                if result.counts.tasks != ids.len() as u64 {
                    return Err(format!("{:?} for {} tasks", result.counts, ids.len()));
                }
                self.hears_counts(n, request, result.counts)
            }
            Want::Down { .. } => {
                let result: DaemonStopResult = read(result)?;
                self.hears_counts(n, request, result.counts)
            }
            Want::Detach { .. } => {
                let info: TaskInfo = read(result)?;
                self.check_info(&info)?;
                let is_detached = info.detached || info.status.is_ended();
                if is_detached { Ok(()) } else { Err("it is not detached".to_owned()) }
            }
            Want::Write { .. } => Err("nothing here has a standard input".to_owned()),
        }
    }

    fn hears_error(&mut self, n: usize, ask: &Ask, error: &RpcError) -> Checked {
        let allowed = match (&ask.want, error.data.kind) {
            (_, ErrorKind::ShuttingDown)
            | (Want::Remove { .. }, ErrorKind::WrongState)
            | (Want::Write { .. }, ErrorKind::WrongState | ErrorKind::Deadline)
            | (Want::Detach { .. }, ErrorKind::Deadline) => true,
            (Want::Start { spec }, ErrorKind::Conflict) => self.is_conflict(*spec),
            (
                Want::Wait { id, .. }
                | Want::Get { id }
                | Want::Remove { id }
                | Want::Write { id }
                | Want::Detach { id },
                ErrorKind::NotFound,
            ) => self.tasks.get(id).is_some_and(|truth| truth.record.removed),
            _ => false,
        };
        if !allowed {
            return Err("that is no answer to it".to_owned());
        }
        let again = matches!(ask.want, Want::Start { .. } | Want::StopSpec { .. } | Want::WaitSpec { .. });
        if error.data.kind == ErrorKind::ShuttingDown && again && !self.is_closing {
            self.clients[n].wanted.push_back(ask.want.clone());
        }
        Ok(())
    }

    /// Whether the token of this start belongs to another start.
    fn is_conflict(&self, spec: usize) -> bool {
        let token = &self.specs[spec].params.token;
        self.specs.iter().enumerate().any(|(other, known)| other != spec && known.params.token == *token)
    }

    fn hears_start(&mut self, spec: usize, info: &TaskInfo) -> Checked {
        let params = &self.specs[spec].params;
        if info.name != params.name {
            return Err("that is another start's task".to_owned());
        }
        let is_due = info.status.is_ended() || (info.detached && info.detached_by.is_some());
        if params.answer == AnswerWhen::Ended && !is_due {
            return Err("it was to be answered at the end, or when it was detached".to_owned());
        }
        let owner = params.token.as_ref().and_then(|token| self.observer.as_ref()?.tokens.get(token));
        let removed = self.tasks.get(&info.id).is_some_and(|truth| truth.record.removed);
        if params.token.is_some() && !removed && owner != Some(&info.id) {
            return Err(format!("its token belongs to {owner:?}"));
        }
        self.specs[spec].id = Some(info.id.clone());
        self.check_info(info)
    }

    fn hears_stop(&mut self, result: &TaskStopResult) -> Checked {
        let truth = self.tasks.get(&result.id);
        match result.result {
            StopVerdict::NotFound if truth.is_some_and(|truth| !truth.record.removed) => {
                Err("it is there".to_owned())
            }
            StopVerdict::AlreadyEnded if truth.is_none_or(|truth| truth.record.end.is_none()) => {
                Err("it has not ended".to_owned())
            }
            _ if result.receipt.is_some() && truth.is_none_or(|truth| truth.record.end.is_none()) => {
                Err("a receipt for a task that has not ended".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// As many receipts came before the result as it counts.
    fn hears_counts(&mut self, n: usize, request: i64, counts: StopCounts) -> Checked {
        let came = self.clients[n].receipts.remove(&request).unwrap_or(0);
        let parts = counts.stopped + counts.already_ended + counts.failed + counts.refused;
        if came == counts.tasks && parts == counts.tasks {
            Ok(())
        } else {
            Err(format!("{came} receipts came, and the result counts {counts:?}"))
        }
    }

    fn hears_list(&mut self, n: usize, result: &TaskListResult) -> Checked {
        for info in &result.tasks {
            self.check_info(info)?;
        }
        if self.is_closing {
            self.stop_these(n, result.tasks.iter().map(|info| info.id.clone()).collect());
        }
        Ok(())
    }

    /// Whatever is said of a task stands in the journal, and an end is never said before it is durable.
    fn check_info(&self, info: &TaskInfo) -> Checked {
        if !self.tasks.contains_key(&info.id) {
            return Err(format!("nobody has recorded {}", info.id));
        }
        if !info.status.is_ended() {
            return Ok(());
        }
        let durable = self.observer.as_ref().and_then(|observer| observer.outcomes.get(&info.id));
        match durable {
            Some(known) if Some(known) == info.outcome.as_ref() => Ok(()),
            known => Err(format!("the journal has {known:?} as its end")),
        }
    }
}

fn read<T: DeserializeOwned>(text: Option<&RawValue>) -> Result<T, String> {
    serde_json::from_str(text.map_or("null", RawValue::get)).map_err(|error| error.to_string())
}

/// What was said, without the size of the journal's files: a thread of its own tidies them, at no moment of the simulated time.
fn steady(line: &str) -> String {
    const SIZE: &str = "\"journal_bytes\":";
    match line.split_once(SIZE) {
        Some((before, after)) => {
            format!("{before}{}", after.trim_start_matches(|c: char| c.is_ascii_digit()))
        }
        None => line.to_owned(),
    }
}
