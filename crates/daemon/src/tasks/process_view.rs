//! Replies that describe a live task. Its processes are sampled by a worker, so such a reply may come a moment later; a task
//! without a request for its processes is described at once.

use belay_protocol::error::RpcError;
use belay_protocol::life::OutputInfo;
use belay_protocol::shim::Now;
use belay_protocol::task::{ProcessInfo, TaskInfo};

use super::view::{Live, task_info};
use super::{Task, TaskRef, ended_info, not_found};
use crate::effect::{SampleItem, TreeRoot};
use crate::host::Host;
use crate::requests::{Answer, Caller};
use crate::runtime::Core;

/// Makes a reply from the description of a task.
pub(super) type MakeReply = Box<dyn FnOnce(&Caller, TaskInfo) -> Answer>;

/// The description itself is the reply.
pub(super) fn task_info_reply() -> MakeReply {
    Box::new(|caller, info| caller.answer(&info))
}

impl Task {
    /// Its leader has exited and others have not: then it is always described with its processes.
    pub(super) fn has_left_children(&self) -> bool {
        self.state.leader().is_some_and(|leader| leader.exit().is_some())
    }

    /// Where its processes are. None as long as no shim holds it.
    pub(super) fn tree(&self) -> Option<TreeRoot> {
        let shim = self.stored.doc.shim.as_ref()?;
        let cgroup = shim.cgroup.as_ref().map(|path| std::path::PathBuf::from(path.as_os_str()));
        Some(TreeRoot { shim: shim.process, cgroup })
    }
}

impl<H: Host> Core<H> {
    /// How a live task looks now, without its processes.
    pub(crate) fn live_info(&self, id: &str) -> Option<TaskInfo> {
        self.tasks.get(id).map(|task| self.info_of(task, None))
    }

    pub(super) fn info_of(&self, task: &Task, now: Option<&Now>) -> TaskInfo {
        // A shim that was asked knows its output better.
        let output = now.is_none().then(|| self.output_sums(task));
        self.info_with(task, now, output)
    }

    pub(super) fn info_with_output(&self, task: &Task, output: OutputInfo) -> TaskInfo {
        self.info_with(task, None, Some(output))
    }

    fn info_with(&self, task: &Task, now: Option<&Now>, output: Option<OutputInfo>) -> TaskInfo {
        let place = self.lanes.place_of(&task.stored);
        task_info(&task.stored, Live { state: Some(&task.state), now, processes: None, output, place })
    }

    /// Replies with a live task: with its processes if they are wanted or some outlived its leader.
    pub(super) fn reply_live(
        &mut self,
        caller: &Caller,
        id: &str,
        with_processes: bool,
        now: Option<&Now>,
        make: MakeReply,
    ) {
        let Some(task) = self.tasks.get(id) else {
            let ended = self.tasks.recent(id).map(ended_info).ok_or_else(|| not_found(id));
            return self.finish_call(caller, ended.map(|info| make(caller, info)));
        };
        let info = self.info_of(task, now);
        if !with_processes && !task.has_left_children() {
            let answer = make(caller, info);
            return self.finish_call(caller, Ok(answer));
        }
        let Some(tree) = task.tree() else {
            let answer = make(caller, TaskInfo { processes: Some(Vec::new()), ..info });
            return self.finish_call(caller, Ok(answer));
        };
        let id = id.to_owned();
        self.await_worker(caller, move |core, finish| {
            let item = SampleItem { task: id.clone(), tree: Some(tree), log_dir: None };
            core.sample(vec![item], move |core, mut sample| {
                let processes: Vec<ProcessInfo> = sample.processes.remove(&id).unwrap_or_default();
                let info = TaskInfo { processes: Some(processes), ..info };
                finish(core, Box::new(move |_, caller| Ok(make(caller, info))));
            });
        });
    }

    /// Replies with a task as it is, live or ended.
    pub(super) fn reply_task(
        &mut self,
        caller: &Caller,
        task: &TaskRef,
        with_processes: bool,
    ) -> Result<Answer, RpcError> {
        match task {
            TaskRef::Live(id) if self.tasks.contains(id) => {
                self.reply_live(caller, id, with_processes, None, task_info_reply());
                Ok(Answer::Later)
            }
            TaskRef::Live(id) => {
                let stored = self.tasks.recent(id).ok_or_else(|| not_found(id))?;
                Ok(caller.answer(&ended_info(stored)))
            }
            TaskRef::Ended(stored) => Ok(caller.answer(&ended_info(stored))),
        }
    }
}
