//! Stops of several tasks with one reply: a task with everything below it, the tasks of a session
//! that ends, or all tasks of a daemon that exits.

use std::collections::BTreeSet;

use belay_model::StopOrder;
use belay_protocol::lane::LaneFenceInfo;
use belay_protocol::task::{StopVerdict, TaskStopResult};

use super::TaskEnded;
use super::stop::stop_result;
use crate::host::Host;
use crate::requests::{Answer, Caller, Progress, Reply, ReplyId, Waiter};
use crate::runtime::{Core, Work};

/// Several stops with one reply.
#[derive(Debug)]
pub(crate) struct StopManyReply {
    done: Vec<TaskStopResult>,
    /// The tasks that are being stopped now.
    open: BTreeSet<String>,
    order: StopOrder,
    then: AfterStops,
}

/// What follows when the tasks have ended.
#[derive(Debug)]
pub(crate) enum AfterStops {
    /// The daemon exits.
    Leave,
    /// The tasks on the level above are stopped next, up to the root.
    Cascade {
        root: String,
        fenced: Option<LaneFenceInfo>,
        /// The result for the root, if it ended before this stop reached it.
        root_ended: Option<Box<TaskStopResult>>,
    },
    CloseSession {
        session: String,
    },
}

impl StopManyReply {
    pub(crate) fn new(open: &[String], order: StopOrder, then: AfterStops) -> Self {
        Self { done: Vec::new(), open: open.iter().cloned().collect(), order, then }
    }
}

impl Reply for StopManyReply {
    fn tasks(&self) -> Vec<&str> {
        let mut tasks: Vec<&str> = self.open.iter().map(String::as_str).collect();
        if let AfterStops::Cascade { root, .. } = &self.then
            && !self.open.contains(root)
        {
            tasks.push(root);
        }
        tasks
    }

    fn task_ended(&mut self, ended: &TaskEnded) -> Progress {
        if self.open.remove(ended.id()) {
            self.done.push(stop_result(ended.info()));
        } else if let AfterStops::Cascade { root, root_ended, .. } = &mut self.then
            && root == ended.id()
        {
            *root_ended = Some(Box::new(already_ended(ended.info())));
        }
        if self.open.is_empty() { Progress::Complete } else { Progress::Keep }
    }

    /// The tasks of one level have ended: continues with the level above it, or with what follows
    /// the stops.
    fn complete<H: Host>(self, core: &mut Core<H>, waiter: Waiter, _: &TaskEnded) {
        core.go_on_stopping(waiter, self);
    }

    fn give_now<H: Host>(self, core: &mut Core<H>, waiter: Waiter) {
        core.finish_stops(&waiter.caller, self);
    }

    fn completes_last(&self) -> bool {
        true
    }

    fn delays_exit(&self) -> bool {
        matches!(self.then, AfterStops::Leave)
    }

    fn survives_client(&self) -> bool {
        true
    }
}

impl<H: Host> Core<H> {
    /// Stops a task with everything below it, leaves first.
    pub(super) fn stop_cascade(
        &mut self,
        caller: &Caller,
        root: String,
        order: StopOrder,
        fenced: Option<LaneFenceInfo>,
        wait: bool,
        root_ended: Option<TaskStopResult>,
    ) -> Answer {
        let all = self.tasks.below(&root);
        let levels = all.iter().map(|id| self.depth(id)).collect::<BTreeSet<_>>().len() + 1;
        let longest =
            all.iter().chain([&root]).map(|id| self.stop_deadline_ms(id, &order)).max().unwrap_or(0);
        let within = longest.saturating_mul(levels as u64);
        let answer = if wait {
            Answer::Later
        } else {
            let status = self.tasks.get(&root).map(super::Task::status);
            let bare = TaskStopResult::bare(root.clone(), StopVerdict::Accepted, status);
            caller.answer(&TaskStopResult { fenced: fenced.clone(), ..bare })
        };
        *self.tasks.closing.entry(root.clone()).or_default() += 1;
        let caller = Caller { request: caller.request.clone().filter(|_| wait), client: caller.client };
        let root_ended = root_ended.map(Box::new);
        let stops = StopManyReply::new(&[], order, AfterStops::Cascade { root, fenced, root_ended });
        let id = ReplyId(self.ctx.next_number());
        let deadline_ms = self.ctx.now.mono_ms.saturating_add(within);
        self.stop_next_level(Waiter { id, caller }, stops, Some(deadline_ms));
        answer
    }

    fn depth(&self, id: &str) -> usize {
        self.tasks.get(id).map_or(0, |task| task.stored.doc.lineage.len())
    }

    fn go_on_stopping(&mut self, waiter: Waiter, stops: StopManyReply) {
        match stops.then {
            AfterStops::Cascade { .. } => self.stop_next_level(waiter, stops, None),
            AfterStops::Leave | AfterStops::CloseSession { .. } => self.finish_stops(&waiter.caller, stops),
        }
    }

    /// Stops the deepest tasks of a cascade that still run; its root comes last.
    fn stop_next_level(&mut self, waiter: Waiter, mut stops: StopManyReply, deadline_ms: Option<u64>) {
        let AfterStops::Cascade { root, .. } = &stops.then else { return };
        let below = self.tasks.below(root);
        let deepest = below.iter().map(|id| self.depth(id)).max();
        let mut next: Vec<String> = below.into_iter().filter(|id| Some(self.depth(id)) == deepest).collect();
        if next.is_empty() && self.tasks.contains(root) {
            next.push(root.clone());
        }
        if next.is_empty() {
            return self.finish_stops(&waiter.caller, stops);
        }
        stops.open = next.iter().cloned().collect();
        let order = stops.order.clone();
        // Each level may take as long as the longest stop in it.
        let within = deadline_ms.map_or_else(
            || next.iter().map(|id| self.stop_deadline_ms(id, &order)).max().unwrap_or(0),
            |at_ms| at_ms.saturating_sub(self.ctx.now.mono_ms),
        );
        self.defer_as(waiter, stops.into(), Some(within));
        self.do_in_slices(Work::Stop { tasks: next.into(), order, fence_for: None });
    }

    fn still_stopping(&self, id: String) -> TaskStopResult {
        let status = self.tasks.get(&id).map(super::Task::status);
        TaskStopResult::bare(id, StopVerdict::Accepted, status)
    }

    /// Replies: the tasks have ended, or the deadline has passed.
    pub(crate) fn finish_stops(&mut self, caller: &Caller, stops: StopManyReply) {
        let StopManyReply { mut done, open, then, .. } = stops;
        let left = open.len();
        done.extend(open.into_iter().map(|id| self.still_stopping(id)));
        match then {
            AfterStops::Leave => self.finish_leaving(caller, done, left),
            AfterStops::CloseSession { session } => self.answer_close(caller, &session, done),
            AfterStops::Cascade { root, fenced, root_ended } => {
                self.stop_of_subtree_over(&root);
                let own = done.iter().position(|result| result.id == root).map(|at| done.remove(at));
                let own = own.or(root_ended.map(|ended| *ended));
                let own = own.unwrap_or_else(|| self.still_stopping(root));
                self.reply(caller, &TaskStopResult { fenced, below: done, ..own });
            }
        }
    }

    /// Allows starts below the root again, unless another stop of the same subtree is under way.
    fn stop_of_subtree_over(&mut self, root: &str) {
        if let Some(count) = self.tasks.closing.get_mut(root) {
            *count -= 1;
            if *count == 0 {
                self.tasks.closing.remove(root);
            }
        }
    }
}

/// The result of a stop that came too late.
pub(super) fn already_ended(info: &belay_protocol::task::TaskInfo) -> TaskStopResult {
    TaskStopResult { result: StopVerdict::AlreadyEnded, ..stop_result(info) }
}
