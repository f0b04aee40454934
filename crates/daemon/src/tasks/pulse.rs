//! `task/pulse`: how much a set of tasks writes and uses now. Live tasks are sampled by a worker, ended ones come from the
//! journal's reader.

use std::collections::HashMap;

use belay_journal::{Query, Rows};
use belay_protocol::error::RpcError;
use belay_protocol::life::OutputInfo;
use belay_protocol::task::{TaskPulse, TaskPulseParams, TaskPulseResult};

use super::{StoredTask, Task};
use crate::config::bounds;
use crate::effect::{Sample, SampleItem};
use crate::host::Host;
use crate::requests::{Answer, Caller};
use crate::runtime::Core;

impl<H: Host> Core<H> {
    pub(crate) fn task_pulse(
        &mut self,
        caller: &Caller,
        params: TaskPulseParams,
    ) -> Result<Answer, RpcError> {
        if params.ids.is_empty() || params.ids.len() > bounds::LIST_ITEMS {
            let message = format!("ids must name 1 to {} tasks", bounds::LIST_ITEMS);
            return Err(RpcError::invalid("ids", message));
        }
        // What was recorded before this call is contained in the reply.
        self.commit_or_retry();
        let others: Vec<String> = params.ids.iter().filter(|id| !self.tasks.contains(id)).cloned().collect();
        if others.is_empty() {
            return Ok(self.pulse_with_ended(caller, params.ids, Vec::new()));
        }
        self.await_worker(caller, |core, finish| {
            core.read_journal(Query::Tasks(others), move |core, rows| {
                let make = move |core: &mut Self, caller: &Caller| {
                    let rows = match rows? {
                        Rows::Tasks(rows) => rows,
                        _ => Vec::new(),
                    };
                    let unwritten = core.ctx.journal.unwritten_ends().cloned();
                    let ended = rows.into_iter().chain(unwritten);
                    let ended = ended.filter_map(|row| StoredTask::from_row(row).ok()).collect();
                    Ok(core.pulse_with_ended(caller, params.ids, ended))
                };
                finish(core, Box::new(make));
            });
        });
        Ok(Answer::Later)
    }

    fn pulse_with_ended(&mut self, caller: &Caller, ids: Vec<String>, ended: Vec<StoredTask>) -> Answer {
        let scope = self.scope(caller);
        let as_of = self.ctx.journal.last_event();
        let ended = ended.into_iter().filter(|stored| scope.covers_task(stored));
        let mut pulses: HashMap<String, TaskPulse> =
            ended.map(|stored| (stored.id.clone(), ended_pulse(&stored))).collect();
        let live = ids.iter().filter_map(|id| self.tasks.get(id));
        let live: Vec<&Task> = live.filter(|task| scope.covers_task(&task.stored)).collect();
        let samples: Vec<SampleItem> = live
            .iter()
            .map(|task| SampleItem {
                task: task.id().to_owned(),
                tree: task.tree(),
                log_dir: task.has_log_on_disk().then(|| self.ctx.config.task_dir(task.id())),
            })
            .collect();
        for task in &live {
            let output = if task.has_log_on_disk() { OutputInfo::default() } else { self.output_sums(task) };
            pulses.insert(task.id().to_owned(), live_pulse(task, &output));
        }
        if samples.is_empty() {
            return caller.answer(&in_order(&ids, pulses, as_of));
        }
        self.await_worker(caller, |core, finish| {
            core.sample(samples, move |core, sample| {
                add_sample(&mut pulses, sample);
                let result = in_order(&ids, pulses, as_of);
                finish(core, Box::new(move |_, caller| Ok(caller.answer(&result))));
            });
        });
        Answer::Later
    }
}

/// The pulses in the order of the ids, each once.
fn in_order(ids: &[String], mut pulses: HashMap<String, TaskPulse>, as_of: u64) -> TaskPulseResult {
    let mut result = TaskPulseResult { as_of, ..TaskPulseResult::default() };
    let mut named = std::collections::HashSet::new();
    for id in ids.iter().filter(|id| named.insert(*id)) {
        match pulses.remove(id) {
            Some(pulse) => result.pulses.push(pulse),
            None => result.unknown.push(id.clone()),
        }
    }
    result
}

fn add_sample(pulses: &mut HashMap<String, TaskPulse>, sample: Sample) {
    for (id, processes) in sample.processes {
        let Some(pulse) = pulses.get_mut(&id) else { continue };
        pulse.processes = processes.len() as u64;
        pulse.memory_bytes = processes.iter().map(|process| process.rss_bytes).sum();
        pulse.cpu_ms = processes.iter().map(|process| process.cpu_ms).sum();
    }
    for (id, output) in sample.output {
        let Some(pulse) = pulses.get_mut(&id) else { continue };
        (pulse.output_bytes, pulse.last_output_at) = (output.bytes, output.last_at);
    }
}

/// Without what a sample adds.
fn live_pulse(task: &Task, output: &OutputInfo) -> TaskPulse {
    pulse(&task.stored, output)
}

fn ended_pulse(stored: &StoredTask) -> TaskPulse {
    let output = stored.doc.end.as_ref().map(|end| end.output.clone()).unwrap_or_default();
    pulse(stored, &output)
}

fn pulse(stored: &StoredTask, output: &OutputInfo) -> TaskPulse {
    TaskPulse {
        id: stored.id.clone(),
        status: stored.doc.status,
        output_bytes: output.bytes,
        last_output_at: output.last_at,
        processes: 0,
        memory_bytes: 0,
        cpu_ms: 0,
        last_event: stored.doc.last_event,
    }
}
