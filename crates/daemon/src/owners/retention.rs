//! Retention: ended tasks, their output and old events are removed by rule; live tasks never are. The journal's workers find and
//! delete; what is removed is decided and recorded here, a slice at a time.

use std::collections::{BTreeMap, HashSet, VecDeque};

use belay_journal::{EventRule, ExpiredTask, Loaded, Query, Rows, TaskRule};
use belay_protocol::daemon::DaemonGcResult;
use belay_protocol::error::RpcError;
use belay_protocol::event::{Event, EventKind};
use belay_protocol::methods::notifications::TaskRemoved;
use belay_protocol::task::TaskRemovedNotification;

use crate::config::bounds;
use crate::effect::Effect;
use crate::host::{CrashPoint, Host};
use crate::requests::{Answer, Caller, Reply, ReplyId, Waiter};
use crate::runtime::{Core, Phase, Stage};
use crate::tasks::StoredTask;

/// How many ends there may be between two looks at the rules.
const LOOK_EVERY: u32 = 100;

/// How many events one look removes at most.
const EXPIRE_EVENTS: usize = 10_000;

/// How many slices of one collection may wait for their directories to be removed; then it pauses.
const SLICES_REMOVED_AT_ONCE: usize = 8;

/// What retention knows: how much is kept, what was removed last, and whether it is at work.
#[derive(Debug, Default)]
pub(crate) struct Retention {
    ended: u64,
    output_bytes: u64,
    ended_since_look: u32,
    /// The collections that are running, by number.
    collections: BTreeMap<u64, Collection>,
    /// Directories are being removed.
    removing: usize,
    /// Tasks that were removed last: a shim that still holds one of them may forget it.
    removed: HashSet<String>,
    removed_order: VecDeque<String>,
    /// Directories that a daemon that died may have left of tasks it removed.
    leftover_dirs: Vec<String>,
}

/// A task that can be removed.
#[derive(Clone, Debug)]
pub(crate) struct Removable {
    id: String,
    session: String,
    /// What its events are found by.
    tags: String,
    kept_bytes: u64,
}

impl Removable {
    pub(crate) fn of(stored: &StoredTask) -> Self {
        Self {
            id: stored.id.clone(),
            session: stored.session.clone(),
            tags: stored.tags(),
            kept_bytes: stored.kept_bytes(),
        }
    }

    fn of_expired(expired: ExpiredTask) -> Self {
        let ExpiredTask { id, session, tags, output_bytes, .. } = expired;
        Self { id, session, tags, kept_bytes: output_bytes }
    }
}

impl Retention {
    pub(crate) fn load(&mut self, loaded: &Loaded) {
        (self.ended, self.output_bytes) = (loaded.ended, loaded.output_bytes);
        let removed = loaded.recent_events.iter().filter(|event| event.kind == EventKind::TaskRemoved.name());
        for task in removed.filter_map(|event| event.task.clone()) {
            self.leftover_dirs.push(task.clone());
            self.remember_removed(task);
        }
    }

    pub(crate) const fn ended_count(&self) -> u64 {
        self.ended
    }

    pub(crate) const fn output_bytes(&self) -> u64 {
        self.output_bytes
    }

    /// Whether this task was removed a short while ago.
    pub(crate) fn is_removed(&self, id: &str) -> bool {
        self.removed.contains(id)
    }

    pub(crate) const fn is_removing(&self) -> bool {
        self.removing > 0
    }

    /// Whether a collection without a call is running. There are few at a time.
    fn is_collecting_by_rule(&self) -> bool {
        self.collections.values().any(|collection| collection.reply.is_none())
    }

    /// The rules are applied at the end of this step.
    pub(crate) const fn look_soon(&mut self) {
        self.ended_since_look = LOOK_EVERY;
    }

    pub(crate) const fn task_ended(&mut self, kept_bytes: u64) {
        self.ended += 1;
        self.output_bytes += kept_bytes;
        self.ended_since_look += 1;
    }

    fn remember_removed(&mut self, id: String) {
        if self.removed_order.len() == bounds::REMOVED_REMEMBERED
            && let Some(oldest) = self.removed_order.pop_front()
        {
            self.removed.remove(&oldest);
        }
        self.removed.insert(id.clone());
        self.removed_order.push_back(id);
    }

    fn forget_task(&mut self, task: &Removable) {
        self.ended = self.ended.saturating_sub(1);
        self.output_bytes = self.output_bytes.saturating_sub(task.kept_bytes);
        self.remember_removed(task.id.clone());
    }
}

/// `daemon/gc` while it runs.
#[derive(Debug)]
pub(crate) struct CollectReply {
    done: DaemonGcResult,
}

impl Reply for CollectReply {
    fn give_now<H: Host>(self, core: &mut Core<H>, waiter: Waiter) {
        core.reply_behind_parts(&waiter.caller, &self.done);
    }
}

/// A collection: for a call, or by rule. Ended tasks go first, slice by slice; the directories of a slice are removed while the
/// next slice is looked up. Then old events go.
#[derive(Debug)]
struct Collection {
    reply: Option<ReplyId>,
    all: bool,
    /// How far it has come: when the last task of the last slice ended, and its number.
    after: Option<(i64, u64)>,
    stage: CollectionStage,
    /// Slices whose directories are being removed.
    removing: usize,
    /// What it has removed so far.
    tasks: usize,
    freed_bytes: u64,
    events: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CollectionStage {
    /// The next slice of tasks is being looked up.
    FindingTasks,
    /// It continues with the next slice when fewer directories wait to be removed.
    Paused,
    ExpiringEvents,
    /// It ends when the last directory is removed.
    Finished,
}

impl<H: Host> Core<H> {
    /// Applies the rules now and then: when serving begins, when the rules change, and after so many ends. An idle daemon does
    /// not look.
    pub(crate) fn collect_now_and_then(&mut self) {
        let is_due = self.retention.ended_since_look >= LOOK_EVERY;
        if !is_due || self.retention.is_collecting_by_rule() || self.ctx.phase != Phase::Serving {
            return;
        }
        self.retention.ended_since_look = 0;
        self.begin_collection(None, false);
    }

    /// Removes what removals of a daemon that died may have left: their records went, their directories did not.
    pub(crate) fn remove_leftover_dirs(&mut self) {
        let ids = std::mem::take(&mut self.retention.leftover_dirs);
        let gone = ids.into_iter().filter(|id| !self.tasks.contains(id));
        let dirs: Vec<_> = gone.map(|id| self.ctx.config.task_dir(&id)).collect();
        if !dirs.is_empty() {
            self.retention.removing += 1;
            self.remove_dirs(Stage::Unconditional, dirs, |core, _| core.retention.removing -= 1);
        }
    }

    /// `daemon/gc`.
    pub(crate) fn collect(&mut self, caller: &Caller, all: bool, dry_run: bool) -> Answer {
        if dry_run {
            self.report_collection(caller, all);
        } else {
            let reply =
                self.defer_reply(caller.clone(), CollectReply { done: DaemonGcResult::default() }, None);
            self.begin_collection(Some(reply), all);
        }
        Answer::Later
    }

    /// What a collection would remove now.
    fn report_collection(&mut self, caller: &Caller, all: bool) {
        let query = Query::Expired(self.task_rule(all, None, usize::MAX));
        self.await_worker(caller, |core, finish| {
            core.read_journal(query, move |core, rows| {
                let make = move |core: &mut Self, caller: &Caller| {
                    let mut result = DaemonGcResult { dry_run: true, ..DaemonGcResult::default() };
                    if let Rows::Expired(tasks) = rows? {
                        result.removed = tasks.len() as u64;
                        result.freed_bytes = tasks.iter().map(|task| task.output_bytes).sum();
                        for slice in tasks.chunks(bounds::GC_ITEMS) {
                            core.send_removed(caller, slice.iter().map(|task| task.id.clone()).collect());
                        }
                    }
                    core.reply_behind_parts(caller, &result);
                    Ok(Answer::Sent)
                };
                finish(core, Box::new(make));
            });
        });
    }

    /// Tells the caller of a collection what it removes.
    fn send_removed(&mut self, caller: &Caller, ids: Vec<String>) {
        if let Some(request) = caller.request.clone() {
            self.send_part::<TaskRemoved>(caller, &TaskRemovedNotification { request, ids });
        }
    }

    fn begin_collection(&mut self, reply: Option<ReplyId>, all: bool) {
        let number = self.ctx.next_number();
        let collection = Collection {
            reply,
            all,
            after: None,
            stage: CollectionStage::FindingTasks,
            removing: 0,
            tasks: 0,
            freed_bytes: 0,
            events: 0,
        };
        self.retention.collections.insert(number, collection);
        self.find_tasks(number);
    }

    /// Looks up the next slice of tasks that the rules no longer keep.
    fn find_tasks(&mut self, number: u64) {
        let Some(collection) = self.retention.collections.get_mut(&number) else { return };
        collection.stage = CollectionStage::FindingTasks;
        let (all, after) = (collection.all, collection.after);
        let query = Query::Expired(self.task_rule(all, after, bounds::GC_ITEMS));
        self.read_journal(query, move |core, rows| match rows {
            _ if core.is_abandoned(number) => core.finish_collection(number, Ok(())),
            Ok(Rows::Expired(tasks)) if tasks.is_empty() => core.collect_events(number),
            Ok(Rows::Expired(tasks)) => core.remove_slice(number, tasks),
            Ok(_) => core.finish_collection(number, Ok(())),
            Err(error) => core.finish_collection(number, Err(error)),
        });
    }

    fn remove_slice(&mut self, number: u64, mut tasks: Vec<ExpiredTask>) {
        // Where the disk is full, the journal may have a task whose removal could not be recorded yet.
        let last = tasks.last().map(|task| (task.ended_ms, task.number));
        tasks.retain(|task| !self.ctx.journal.is_being_removed(&task.id));
        let Some(collection) = self.retention.collections.get_mut(&number) else { return };
        collection.after = last;
        collection.tasks += tasks.len();
        collection.removing += 1;
        collection.stage = CollectionStage::Paused;
        let tasks: Vec<Removable> = tasks.into_iter().map(Removable::of_expired).collect();
        if let Some(id) = collection.reply
            && let Some(reply) = self.requests.reply_mut::<CollectReply>(id)
        {
            reply.done.removed += tasks.len() as u64;
            if let Some(caller) = self.requests.caller(id).cloned() {
                self.send_removed(&caller, tasks.iter().map(|task| task.id.clone()).collect());
            }
        }
        self.forget_tasks(tasks, move |core, freed_bytes| core.slice_removed(number, freed_bytes));
        if self.ctx.journal.is_batch_empty() {
            self.continue_collection(number);
        } else {
            // There was no room to record it. There will be; then the rest follows.
            self.finish_collection(number, Ok(()));
        }
    }

    /// The directories of a slice are removed.
    fn slice_removed(&mut self, number: u64, freed_bytes: u64) {
        let Some(collection) = self.retention.collections.get_mut(&number) else { return };
        collection.removing -= 1;
        collection.freed_bytes += freed_bytes;
        if let Some(reply) = collection.reply.and_then(|id| self.requests.reply_mut::<CollectReply>(id)) {
            reply.done.freed_bytes += freed_bytes;
        }
        self.continue_collection(number);
    }

    fn continue_collection(&mut self, number: u64) {
        let Some(collection) = self.retention.collections.get(&number) else { return };
        let (stage, removing) = (collection.stage, collection.removing);
        match stage {
            CollectionStage::Paused if removing < SLICES_REMOVED_AT_ONCE => self.find_tasks(number),
            CollectionStage::Finished if removing == 0 => self.end_collection(number, Ok(())),
            _ => {}
        }
    }

    /// Only events in the database can be removed: those in the buffer go there first.
    fn collect_events(&mut self, number: u64) {
        if let Some(collection) = self.retention.collections.get_mut(&number) {
            collection.stage = CollectionStage::ExpiringEvents;
            self.flush_then(move |core| core.collect_flushed_events(number));
        }
    }

    fn collect_flushed_events(&mut self, number: u64) {
        let rule = EventRule {
            now_ms: self.ctx.now.wall_ms,
            max_age_ms: Some(self.ctx.config.retention.age_ms),
            max_count: Some(self.ctx.config.retention.events),
            limit: EXPIRE_EVENTS,
        };
        self.expire_events(rule, move |core, expired| match expired {
            Ok(expired) if expired.removed > 0 && !core.is_abandoned(number) => {
                core.count_expired_events(number, expired.removed);
                core.collect_flushed_events(number);
            }
            Ok(_) => core.finish_collection(number, Ok(())),
            Err(error) => core.finish_collection(number, Err(error)),
        });
    }

    fn count_expired_events(&mut self, number: u64, removed: u64) {
        let Some(collection) = self.retention.collections.get_mut(&number) else { return };
        collection.events += removed;
        if let Some(reply) = collection.reply.and_then(|id| self.requests.reply_mut::<CollectReply>(id)) {
            reply.done.events_expired += removed;
        }
    }

    /// The client that asked for it has gone, or the daemon leaves.
    fn is_abandoned(&self, number: u64) -> bool {
        let Some(collection) = self.retention.collections.get(&number) else { return true };
        match collection.reply {
            Some(reply) => self.requests.reply::<CollectReply>(reply).is_none(),
            None => self.ctx.phase != Phase::Serving,
        }
    }

    /// Nothing more is looked for. The collection ends when what it has begun to remove is gone; with an error, at once.
    fn finish_collection(&mut self, number: u64, result: Result<(), RpcError>) {
        let Some(collection) = self.retention.collections.get_mut(&number) else { return };
        collection.stage = CollectionStage::Finished;
        if result.is_err() {
            self.end_collection(number, result);
        } else {
            self.continue_collection(number);
        }
    }

    fn end_collection(&mut self, number: u64, result: Result<(), RpcError>) {
        let Some(collection) = self.retention.collections.remove(&number) else { return };
        let Collection { tasks, freed_bytes, events, .. } = collection;
        if tasks > 0 || events > 0 {
            tracing::info!(tasks, freed_bytes, events, by_rule = !collection.all, "removed by retention");
        }
        let Some(reply) = collection.reply else {
            if let Err(error) = result {
                self.ctx.notice(format!("old tasks could not be removed: {error}"), "belay gc tries again");
            }
            return;
        };
        match (self.take_reply::<CollectReply>(reply), result) {
            (Some((waiter, reply)), Ok(())) => {
                self.reply_behind_parts(&waiter.caller, &reply.done);
            }
            (Some((waiter, _)), Err(error)) => self.fail(&waiter.caller, error),
            (None, _) => {}
        }
    }

    /// Takes ended tasks out of the journal, and their directories off the disk once that is durable. Where the disk has no
    /// room even for that, the output goes first and its record follows as soon as it can: else a full disk could never be
    /// freed.
    pub(crate) fn forget_tasks(
        &mut self,
        tasks: Vec<Removable>,
        then: impl FnOnce(&mut Self, u64) + 'static,
    ) {
        self.ctx.crash_point(CrashPoint::BeforeRemove);
        let mut dirs = Vec::with_capacity(tasks.len());
        for task in &tasks {
            self.tasks.forget(&task.id);
            self.retention.forget_task(task);
            self.ctx.journal.remove_task(&task.id);
            let removed = Event::TaskRemoved { task: task.id.clone(), session: task.session.clone() };
            self.ctx.record(removed, task.tags.clone());
            dirs.push(self.ctx.config.task_dir(&task.id));
        }
        self.ctx.effects.push(Stage::AfterCommit, Effect::CrashPoint(CrashPoint::AfterRemove));
        self.retention.removing += 1;
        self.remove_dirs(Stage::AfterCommit, dirs, move |core, freed_bytes| {
            core.retention.removing -= 1;
            then(core, freed_bytes);
        });
        if self.commit().is_err() {
            self.ctx.effects.release_removals();
            self.commit_or_retry();
        }
    }

    fn task_rule(&self, all: bool, after: Option<(i64, u64)>, limit: usize) -> TaskRule {
        let retention = &self.ctx.config.retention;
        let rule = TaskRule {
            now_ms: self.ctx.now.wall_ms,
            max_age_ms: None,
            max_count: Some(0),
            max_output_bytes: None,
            count: self.retention.ended,
            bytes: self.retention.output_bytes,
            after,
            limit,
        };
        if all {
            return rule;
        }
        TaskRule {
            max_age_ms: Some(retention.age_ms),
            max_count: Some(retention.tasks),
            max_output_bytes: Some(retention.output_bytes),
            ..rule
        }
    }
}
