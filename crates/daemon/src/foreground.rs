//! Who waits for a task, and what happens when nobody does any more: detaching, callers that go away, and the output that
//! stays in memory while somebody waits. The shim decides when a task is detached; here is everything around it.

use std::collections::VecDeque;
use std::sync::Arc;

use belay_model::{Event, Level, State, StopOrder, step};
use belay_protocol::event::Event as ClientEvent;
use belay_protocol::life::{ClockName, OutputInfo};
use belay_protocol::shim::{LifeEvent, ToShim};
use belay_protocol::task::{AnswerWhen, DetachParams, DetachedBy, Met, OnDisconnect, TaskInfo};
use belay_record::{LogReader, MemoryLog};

use crate::answer::{Caller, Pending, What};
use crate::config::bounds;
use crate::core::{Core, Task, Timer, TimerKey};
use crate::event::{Action, ClientId, ShimId};
use crate::handlers::check::check_text;
use crate::world::World;

/// Why a task is detached whose caller's connection ended.
const DISCONNECT: &str = "disconnect";

/// The output of tasks that ended in the foreground: the last ones, while there is room.
#[derive(Debug)]
pub(crate) struct KeptMemory {
    logs: VecDeque<(String, u64, Arc<MemoryLog>)>,
    bytes: u64,
    most: usize,
}

impl KeptMemory {
    /// Room for the output of so many tasks.
    pub(crate) const fn of(most: usize) -> Self {
        Self { logs: VecDeque::new(), bytes: 0, most }
    }

    fn keep(&mut self, task: &str, bytes: u64, log: Arc<MemoryLog>) {
        self.logs.push_back((task.to_owned(), bytes, log));
        self.bytes += bytes;
        while self.bytes > bounds::KEPT_MEMORY_BYTES || self.logs.len() > self.most {
            let Some((_, bytes, _)) = self.logs.pop_front() else { return };
            self.bytes -= bytes;
        }
    }

    fn get(&self, task: &str) -> Option<Arc<MemoryLog>> {
        self.logs.iter().find(|(kept, ..)| kept == task).map(|(.., log)| Arc::clone(log))
    }

    pub(crate) fn forget(&mut self, task: &str) {
        self.logs.retain(|(kept, ..)| kept != task);
        self.bytes = self.logs.iter().map(|(_, bytes, _)| bytes).sum();
    }
}

/// Who moved a task to the background, in the words of the wire.
pub(crate) fn detached_by(event: &LifeEvent) -> DetachedBy {
    match event {
        LifeEvent::Detach { by } => DetachedBy::from(by.clone()),
        LifeEvent::ClockRanOut { clock: ClockName::Leave } => DetachedBy::Leader,
        _ => DetachedBy::Timeout,
    }
}

/// The sums of a log, as far as it is kept.
pub(crate) fn output_info(log: &LogReader, on_disk: bool) -> OutputInfo {
    let (bytes, first) = (log.end(), log.first());
    OutputInfo { bytes, gaps: log.gaps(), first, on_disk: on_disk && bytes > 0 }
}

impl<W: World> Core<W> {
    pub(crate) fn task_detach(&mut self, caller: &Caller, params: &DetachParams) {
        let found = check_text("actor", params.actor.as_deref(), bounds::NAME_BYTES)
            .and_then(|()| self.find(caller, &params.id));
        let entry = match found {
            Ok(entry) => entry,
            Err(error) => return self.fail(caller, error),
        };
        match self.tasks.get(&entry.id).map(|task| task.state.detached()) {
            None => self.reply(caller, &Self::ended_info(&entry)),
            Some(true) => self.reply_live(caller, &entry.id),
            Some(false) => {
                let what = What::Detach { task: entry.id.clone() };
                self.promise(caller.clone(), what, Some(bounds::SHIM_ANSWER_MS));
                let by = self.actor(caller, params.actor.as_deref());
                self.order_detach(&entry.id, by);
            }
        }
    }

    fn reply_live(&mut self, caller: &Caller, id: &str) {
        if let Some(info) = self.live_info(id, false, None) {
            self.reply(caller, &info);
        }
    }

    /// For whoever waits as a caller for a task that nobody waits for any more.
    pub(crate) fn answer_detached(&mut self, caller: &Caller, id: &str) {
        if let Some(info) = self.live_info(id, true, None) {
            self.answer_wait(caller, info, Met::Detached, None, None);
        }
    }

    /// Carries a detach to wherever the task is. What has ended by then, or is detached, stays as it is.
    fn order_detach(&mut self, id: &str, by: String) {
        let Some(task) = self.tasks.get_mut(id) else { return };
        if let Some(shim) = task.shim {
            self.actions.push(Action::ToShim { shim, message: ToShim::Detach { by } });
            return;
        }
        let State::Queued { .. } = task.state else { return };
        task.state = step(&task.policy, task.state.clone(), Event::Detach).state;
        let by = DetachedBy::from(by);
        task.entry.doc.detached_by = Some(by.clone());
        if let Some(start) = &mut task.start {
            // The shim will never have known it otherwise. Its limit was for whoever waited.
            start.detached = true;
            start.memory_bytes = 0;
            start.clocks.timeout_ms = None;
        }
        let session = task.entry.session.clone();
        self.changed.push(id.to_owned());
        self.emit(&ClientEvent::TaskDetached { task: id.to_owned(), session, by });
        self.released.push(id.to_owned());
    }

    /// Tasks that nobody waits for any more: whoever waited is answered, with the id and how to go on in it.
    pub(crate) fn release(&mut self) {
        for id in std::mem::take(&mut self.released) {
            let Some(info) = self.live_info(&id, true, None) else { continue };
            let Some(task) = self.tasks.get_mut(&id) else { continue };
            task.caller = None;
            let due = task.caller_due.take();
            let (waiting, follows) = (task.pending.clone(), task.follows.clone());
            self.expect_nobody(due);
            for pending in waiting {
                self.release_one(pending, &follows, &info);
            }
        }
    }

    fn release_one(&mut self, id: u64, follows: &[u64], info: &TaskInfo) {
        let waits = |pending: &Pending| {
            matches!(
                pending.what,
                What::Detach { .. }
                    | What::Start { when: AnswerWhen::Ended, .. }
                    | What::Wait { attached: true, .. }
            )
        };
        if !self.pending.get(&id).is_some_and(waits) {
            return;
        }
        let Some(Pending { caller, what, .. }) = self.take_pending(id) else { return };
        if let What::Wait { .. } = what {
            return self.answer_wait(&caller, info.clone(), Met::Detached, None, None);
        }
        let own = |follow: &u64| self.follows.get(follow).is_some_and(|follow| follow.answers(&caller));
        if let Some(follow) = follows.iter().copied().find(own) {
            self.drop_follow(follow);
        }
        self.reply(&caller, info);
    }

    // --- callers ---

    /// Somebody waits for this task, on this connection.
    pub(crate) fn called_by(&mut self, id: &str, client: ClientId) {
        if let Some(task) = self.tasks.get_mut(id).filter(|task| !task.state.detached()) {
            task.caller = Some(client);
            let due = task.caller_due.take();
            self.expect_nobody(due);
        }
    }

    pub(crate) fn expect_nobody(&mut self, due: Option<TimerKey>) {
        if let Some(key) = due {
            self.disarm(key);
        }
    }

    /// A connection has ended: the tasks that were waited for on it are dealt with by their policy.
    pub(crate) fn caller_gone(&mut self, client: ClientId) {
        let waited_for: Vec<String> = self
            .tasks
            .iter()
            .filter(|(_, task)| task.caller == Some(client) && !task.state.detached())
            .map(|(id, _)| id.clone())
            .collect();
        for id in waited_for {
            self.leave_alone(&id);
        }
    }

    /// A task in the foreground was found again, and its caller was not: it may come back.
    pub(crate) fn await_caller(&mut self, id: &str) {
        let number = self.tasks.get(id).filter(|task| !task.state.detached()).map(|task| task.entry.number);
        let Some(number) = number else { return };
        let due = self.arm(bounds::CALLER_MS, Timer::Caller(number));
        let older = self.tasks.get_mut(id).and_then(|task| task.caller_due.replace(due));
        self.expect_nobody(older);
    }

    pub(crate) fn caller_is_due(&mut self, number: u64) {
        let missed = |task: &crate::core::Task| {
            task.entry.number == number && task.caller.is_none() && !task.state.detached()
        };
        let found = self.tasks.iter().find(|(_, task)| missed(task)).map(|(id, _)| id.clone());
        if let Some(id) = found {
            self.leave_alone(&id);
        }
    }

    /// Nobody waits for it any more, and nobody said what to do about it but its policy.
    fn leave_alone(&mut self, id: &str) {
        let Some(task) = self.tasks.get_mut(id) else { return };
        (task.caller, task.caller_due) = (None, None);
        match task.entry.doc.on_disconnect {
            OnDisconnect::Detach => self.order_detach(id, DISCONNECT.to_owned()),
            OnDisconnect::Stop => {
                let reason = "the connection of whoever waited for it has ended";
                self.order_stop(id, StopOrder::new(Level::Terminate, DISCONNECT, Some(reason)));
            }
        }
    }

    // --- output in memory ---

    /// The shim says where the output of its task lies.
    pub(crate) fn output_lies(&mut self, shim: ShimId, numbers: Option<[i32; 2]>) {
        let Some((task, process)) =
            self.shims.get(&shim).and_then(|shim| shim.task.clone().zip(shim.process))
        else {
            return;
        };
        let opened = numbers.map(|numbers| self.world.memory_log(process, numbers));
        let Some(task) = self.tasks.get_mut(&task) else { return };
        task.memory = match opened {
            Some(Ok(log)) => Some(Arc::new(log)),
            // The shim holds it, and puts it on disk when it is detached; until then nobody can look.
            Some(Err(_)) | None => None,
        };
        task.silent &= numbers.is_some();
    }

    /// A task has ended in the foreground: its output is kept while there is room, so that it can be looked at once more.
    pub(crate) fn keep_memory(&mut self, id: &str, bytes: u64, memory: Option<Arc<MemoryLog>>) {
        if let Some(log) = memory.filter(|_| bytes > 0) {
            self.kept_memory.keep(id, bytes, log);
        }
    }

    /// The log of a task, wherever it lies.
    pub(crate) fn memory_of(&self, id: &str) -> Option<Arc<MemoryLog>> {
        match self.tasks.get(id) {
            Some(task) => task.memory.clone(),
            None => self.kept_memory.get(id),
        }
    }

    /// The sums of a live task's output, by one look at where it lies. What cannot be looked at is not there.
    pub(crate) fn output_of(&self, task: &Task) -> OutputInfo {
        let log = match &task.memory {
            Some(log) => LogReader::in_memory(Arc::clone(log)),
            // A list of a thousand tasks does not look a thousand times for nothing.
            None if task.silent => return OutputInfo::default(),
            None => self.world.log_at_a_glance(&self.config.task_dir(&task.entry.id)),
        };
        let on_disk = task.memory.is_none();
        log.map_or_else(|_| OutputInfo::default(), |log| output_info(&log, on_disk))
    }

    pub(crate) fn log_of(&self, id: &str) -> std::io::Result<LogReader> {
        match self.memory_of(id) {
            Some(log) => LogReader::in_memory(log),
            None => self.world.log(&self.config.task_dir(id)),
        }
    }
}
