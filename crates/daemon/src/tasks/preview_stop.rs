//! `task/preview_stop`: what a stop of a task would do now. Nothing is changed; the processes are sampled by a worker.

use belay_model::Level;
use belay_model::StopOrder;
use belay_protocol::error::RpcError;
use belay_protocol::task::{TaskBelow, TaskPreviewStopParams, TaskPreviewStopResult};

use super::{Task, TaskRef, not_found};
use crate::config::bounds;
use crate::effect::SampleItem;
use crate::host::Host;
use crate::requests::{Answer, Caller};
use crate::runtime::Core;

impl<H: Host> Core<H> {
    pub(crate) fn task_preview_stop(
        &mut self,
        caller: &Caller,
        params: TaskPreviewStopParams,
    ) -> Result<Answer, RpcError> {
        let id = params.id.clone();
        self.with_task(caller, &id, move |core, caller, task| core.preview_stop(caller, &params, &task))
    }

    fn preview_stop(
        &mut self,
        caller: &Caller,
        params: &TaskPreviewStopParams,
        task: &TaskRef,
    ) -> Result<Answer, RpcError> {
        let id = task.id();
        let stored = match task {
            TaskRef::Live(id) => self.tasks.get(id).map(Task::stored),
            TaskRef::Ended(stored) => Some(&**stored),
        };
        let status = stored.ok_or_else(|| not_found(id))?.doc.status;
        let order = StopOrder::new(Level::Terminate, String::new(), None);
        let below = self.tasks.below(id);
        let mut preview = TaskPreviewStopResult {
            id: id.to_owned(),
            status,
            processes: Vec::new(),
            process_count: 0,
            grace_ms: self.stop_patience_ms(id, &order),
            below: below.iter().take(bounds::LANE_ROWS).filter_map(|id| self.task_below(id)).collect(),
            below_count: below.len() as u64,
            below_is_stopped: params.cascade,
            lane: self.lane_preview(caller, id, params.fence),
        };
        let Some(tree) = self.tasks.get(id).and_then(Task::tree) else {
            return Ok(caller.answer(&preview));
        };
        let item = SampleItem { task: id.to_owned(), tree: Some(tree), log_dir: None };
        let id = id.to_owned();
        self.await_worker(caller, |core, finish| {
            core.sample(vec![item], move |core, mut sample| {
                preview.processes = sample.processes.remove(&id).unwrap_or_default();
                preview.process_count = preview.processes.len() as u64;
                preview.processes.truncate(bounds::LANE_ROWS);
                finish(core, Box::new(move |_, caller| Ok(caller.answer(&preview))));
            });
        });
        Ok(Answer::Later)
    }

    fn task_below(&self, id: &str) -> Option<TaskBelow> {
        let stored = self.tasks.get(id)?.stored();
        Some(TaskBelow {
            id: stored.id.clone(),
            name: stored.name.clone(),
            status: stored.doc.status,
            command: stored.doc.command.chars().take(bounds::PREVIEW_CHARS).collect(),
        })
    }
}
