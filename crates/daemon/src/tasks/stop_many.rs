//! Stops of several tasks with one reply: tasks by id, a task with everything below it, the tasks of a session
//! that ends, or all tasks of a daemon that exits. The receipt of each is sent when the task has ended.

use std::collections::BTreeSet;

use belay_model::StopOrder;
use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::lane::LaneFenceInfo;
use belay_protocol::methods::notifications::TaskStopped;
use belay_protocol::task::{
    StopCounts, StopFence, StopVerdict, TaskStopManyParams, TaskStopManyResult, TaskStopResult,
    TaskStoppedNotification,
};

use super::stop::{StopRequestParams, stop_result};
use super::{TaskEnded, TaskRef, ended_info};
use crate::config::bounds;
use crate::host::Host;
use crate::requests::{Answer, Caller, Progress, Reply, ReplyId, Requests, Waiter};
use crate::runtime::{Core, Work};

/// Several stops with one reply.
#[derive(Debug)]
pub(crate) struct StopManyReply {
    /// How the stops went that are over.
    counts: StopCounts,
    /// The receipts that have not been sent yet.
    unsent: Vec<TaskStopResult>,
    /// The tasks that are being stopped now.
    open: BTreeSet<String>,
    /// How many tasks are still being looked up.
    looked_up: usize,
    order: StopOrder,
    then: AfterStops,
}

/// What follows when the tasks have ended.
#[derive(Debug)]
pub(crate) enum AfterStops {
    /// The caller gets the counts.
    Reply,
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
        let open = open.iter().cloned().collect();
        Self { counts: StopCounts::default(), unsent: Vec::new(), open, looked_up: 0, order, then }
    }

    /// One of the tasks has ended, or is not stopped at all.
    fn add(&mut self, result: TaskStopResult) {
        self.counts.add(&result);
        self.unsent.push(result);
    }

    fn is_over(&self) -> bool {
        self.open.is_empty() && self.looked_up == 0
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
            // The root of a cascade gets its receipt with the result of the call.
            match &mut self.then {
                AfterStops::Cascade { root, root_ended, .. } if root == ended.id() => {
                    *root_ended = Some(Box::new(stop_result(ended.info())));
                }
                _ => self.add(stop_result(ended.info())),
            }
        } else if let AfterStops::Cascade { root, root_ended, .. } = &mut self.then
            && root == ended.id()
        {
            *root_ended = Some(Box::new(already_ended(ended.info())));
        }
        if self.is_over() { Progress::Complete } else { Progress::Keep }
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
            AfterStops::Reply | AfterStops::Leave | AfterStops::CloseSession { .. } => {
                self.finish_stops(&waiter.caller, stops);
            }
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

    /// Sends the receipts that have come since the last ones.
    pub(super) fn send_receipts(&mut self, reply: ReplyId) {
        let Some(caller) = self.requests.caller(reply).cloned() else { return };
        let Some(stops) = self.requests.reply_mut::<StopManyReply>(reply) else { return };
        let unsent = std::mem::take(&mut stops.unsent);
        self.send_as_parts(&caller, unsent);
    }

    fn send_as_parts(&mut self, caller: &Caller, receipts: Vec<TaskStopResult>) {
        let Some(request) = &caller.request else { return };
        for result in receipts {
            let params = TaskStoppedNotification { request: request.clone(), result };
            self.send_part::<TaskStopped>(caller, &params);
        }
    }

    /// Replies: the tasks have ended, or the deadline has passed.
    pub(crate) fn finish_stops(&mut self, caller: &Caller, mut stops: StopManyReply) {
        let open = std::mem::take(&mut stops.open);
        let left = open.len();
        for id in open {
            let is_root = matches!(&stops.then, AfterStops::Cascade { root, .. } if *root == id);
            if !is_root {
                stops.add(self.still_stopping(id));
            }
        }
        let StopManyReply { counts, unsent, then, .. } = stops;
        self.send_as_parts(caller, unsent);
        match then {
            AfterStops::Reply => self.reply_behind_parts(caller, &TaskStopManyResult { counts }),
            AfterStops::Leave => self.finish_leaving(caller, counts, left),
            AfterStops::CloseSession { session } => self.answer_close(caller, &session, counts),
            AfterStops::Cascade { root, fenced, root_ended } => {
                self.stop_of_subtree_over(&root);
                let own = root_ended.map_or_else(|| self.still_stopping(root), |ended| *ended);
                self.reply_behind_parts(caller, &TaskStopResult { fenced, below: Some(counts), ..own });
            }
        }
    }

    // --- tasks by id ---

    pub(crate) fn task_stop_many(
        &mut self,
        caller: &Caller,
        params: &TaskStopManyParams,
    ) -> Result<Answer, RpcError> {
        if params.ids.is_empty() || params.ids.len() > bounds::STOP_IDS {
            let message = format!("ids must name 1 to {} tasks", bounds::STOP_IDS);
            return Err(RpcError::invalid("ids", message));
        }
        let order = self.stop_order(
            caller,
            StopRequestParams {
                level: params.level,
                grace_ms: params.grace_ms,
                reason: params.reason.as_deref(),
                actor: params.actor.as_deref(),
            },
        )?;
        // Each id once, however often it is named.
        let ids: BTreeSet<&String> = params.ids.iter().collect();
        let mut stops = StopManyReply::new(&[], order, AfterStops::Reply);
        stops.looked_up = ids.len();
        let reply = self.defer_reply(caller.clone(), stops, None);
        let (fence, scope) = (params.fence, self.scope(caller));
        for id in ids {
            let (named, caller) = (id.clone(), caller.clone());
            let stop = move |core: &mut Self, found| core.stop_one_of(reply, &caller, &named, fence, found);
            // The stops go on if their caller leaves, and so do these lookups.
            match self.find_in_memory(&scope, id) {
                Ok(Some(task)) => stop(self, Ok(task)),
                Err(error) => stop(self, Err(error)),
                Ok(None) => self.look_up(scope.clone(), id.clone(), Box::new(stop)),
            }
        }
        Ok(Answer::Later)
    }

    /// A task of a stop by ids was looked up.
    fn stop_one_of(
        &mut self,
        reply: ReplyId,
        caller: &Caller,
        named: &str,
        fence: StopFence,
        found: Result<TaskRef, RpcError>,
    ) {
        let Some(order) = self.requests.reply::<StopManyReply>(reply).map(|stops| stops.order.clone()) else {
            return;
        };
        let live = match &found {
            Ok(TaskRef::Live(id)) => Some(id.clone()),
            Ok(TaskRef::Ended(_)) | Err(_) => None,
        };
        if let Some(id) = &live {
            // Whether a client that has left is the owner is not known any more.
            let is_gone = self.requests.client(caller.client).is_none();
            let fence = if is_gone && fence == StopFence::Auto { StopFence::No } else { fence };
            self.requests.add_task_to_stops(reply, id);
            self.fence_owner(caller, id, &order, fence);
            self.order_stop(id, order);
        }
        let Some(stops) = self.requests.reply_mut::<StopManyReply>(reply) else { return };
        stops.looked_up -= 1;
        match found {
            Ok(TaskRef::Live(_)) => {}
            Ok(TaskRef::Ended(stored)) => stops.add(already_ended(&ended_info(&stored))),
            Err(error) => stops.add(TaskStopResult::bare(named.to_owned(), verdict(&error), None)),
        }
        self.send_receipts(reply);
        let Some(stops) = self.requests.reply::<StopManyReply>(reply) else { return };
        if stops.is_over() {
            self.reply_due(reply);
        } else if stops.looked_up == 0 {
            let longest = stops.open.iter().map(|id| self.stop_deadline_ms(id, &stops.order)).max();
            self.set_reply_deadline(reply, longest.unwrap_or(0));
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

impl Requests {
    /// The reply waits for the end of this task, too.
    fn add_task_to_stops(&mut self, reply: ReplyId, id: &str) {
        if let Some(stops) = self.reply_mut::<StopManyReply>(reply)
            && stops.open.insert(id.to_owned())
        {
            self.watch_task(id, reply);
        }
    }
}

/// Why a task that was named is not stopped.
fn verdict(error: &RpcError) -> StopVerdict {
    match error.data.kind {
        ErrorKind::NotPermitted => StopVerdict::NotPermitted,
        ErrorKind::Ambiguous => StopVerdict::Ambiguous,
        _ => StopVerdict::NotFound,
    }
}

/// The result of a stop that came too late.
pub(super) fn already_ended(info: &belay_protocol::task::TaskInfo) -> TaskStopResult {
    TaskStopResult { result: StopVerdict::AlreadyEnded, ..stop_result(info) }
}
