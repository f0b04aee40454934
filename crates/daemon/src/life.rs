//! Following the tasks that shims hold: each life event is applied once, recorded once, and told to whoever waits.

use belay_model::{Cause, Event, Leader, Outcome, State, StopOrder, step};
use belay_protocol::Timestamp;
use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::event::Event as ClientEvent;
use belay_protocol::life::{CaptureFault, Receipt, SignalSent, StopLevel, SurvivorInfo};
use belay_protocol::methods::notify;
use belay_protocol::shim::{
    EndRecord, FromShim, Hello, LifeEvent, LifeItem, Now, SHIM_PROTOCOL, SHIM_PROTOCOL_OLDEST, ToShim,
};
use belay_protocol::task::{AnswerWhen, Met, Status, StopResult, StopVerdict, TaskInfo};
use belay_record::convert::{Wire as _, event_from_wire, status};

use crate::answer::{Pending, What};
use crate::core::{Core, ShimStage};
use crate::event::{Action, LostTask, Moment, ShimId};
use crate::foreground::detached_by;
use crate::handlers::task::not_running;
use crate::handlers::terminal::no_terminal_now;
use crate::info::{Live, task_info};
use crate::telling::{self, About};
use crate::world::{CrashPoint, World};

/// What becomes of the output of a task whose shim was ended with it.
const UNREAD: &str = "its shim did not answer and was ended with it: what the shim had not read is missing, how much is not known";

/// Whoever left its session, its parents and its environment went to nobody who would know it.
const MAYBE_OTHERS: &str = "; without a cgroup there may be others that left no trace";

impl<W: World> Core<W> {
    pub(crate) fn shim_said(&mut self, shim: ShimId, message: FromShim) {
        match message {
            FromShim::Hello(hello) => self.shim_greets(shim, hello),
            FromShim::Ready => self.shim_ready(shim),
            FromShim::Life(item) => self.life(shim, item),
            FromShim::Output { bytes } => self.output_grew(shim, bytes),
            FromShim::Memory { numbers } => self.output_lies(shim, numbers),
            FromShim::Now(now) => self.shim_told(&now),
            FromShim::Written { write, result } => self.shim_wrote(write, &result),
            FromShim::Room => self.shim_has_room(shim),
            FromShim::Signalled { ask, processes } => self.shim_signalled(ask, processes),
            FromShim::Resized { resize, pty } => self.shim_resized(resize, pty),
        }
    }

    fn shim_greets(&mut self, id: ShimId, hello: Hello) {
        let Some(shim) = self.shims.get_mut(&id) else { return };
        shim.process = Some(hello.process);
        shim.cgroup = hello.cgroup;
        let memory = hello.memory;
        let pty = hello.spec.as_ref().and_then(|spec| spec.pty);
        if !(SHIM_PROTOCOL_OLDEST..=SHIM_PROTOCOL).contains(&hello.protocol) {
            // It holds its task and keeps its end; a daemon that understands it will adopt it.
            let holds = shim.task.clone().unwrap_or_else(|| "no task".to_owned());
            let message =
                format!("the shim of {holds} speaks protocol {}, which this daemon does not", hello.protocol);
            self.notice(message, "run the newer belay: belay down, then any command of the newer one");
            self.give_up_talking(id);
            return;
        }
        if shim.stray {
            self.stray_found(id, hello.task, hello.spec, hello.queued);
        } else if shim.stage == ShimStage::Coming && shim.task.is_some() {
            self.shim_found(id, hello.task, hello.queued);
        }
        self.output_lies(id, memory);
        self.terminal_is(id, pty);
    }

    /// One event of a life, at its number. Numbers that were seen before say nothing new. A shim that has not noticed yet
    /// that this is another daemon goes on where it was; it will be greeted and tell the whole life, from its beginning.
    fn life(&mut self, shim: ShimId, item: LifeItem) {
        let shim = self.shims.get(&shim).filter(|shim| shim.stage != ShimStage::Coming);
        let Some(id) = shim.and_then(|shim| shim.task.clone()) else { return };
        if item.task == id {
            self.apply_life(&id, item);
        }
    }

    pub(crate) fn apply_life(&mut self, id: &str, item: LifeItem) {
        let Some(task) = self.tasks.get_mut(id) else { return };
        if item.number <= task.applied {
            return;
        }
        task.applied = item.number;
        let doc = &mut task.entry.doc;
        let before = task.state.clone();
        let was_detached = before.detached();
        task.state = step(&task.policy, before, event_from_wire(item.event.clone())).state;
        doc.note(&item.event, &task.state, Timestamp(item.at_ms));
        if let Some(end) = &item.end {
            // The shim was there; what it says about the end counts, also if a newer daemon would judge otherwise.
            task.state = State::Ended(Outcome::from_wire(end.end.clone()));
            doc.end = Some((**end).clone());
        }
        if task.state.detached() && !was_detached && !task.state.is_ended() {
            doc.detached_by = Some(detached_by(&item.event));
            self.released.push(id.to_owned());
        }
        doc.status = status(&task.state);
        let is_fresh = item.number > doc.seen;
        doc.seen = doc.seen.max(item.number);
        let ended = task.state.is_ended();
        if is_fresh {
            self.world.reach(if ended { CrashPoint::BeforeEnd } else { CrashPoint::BeforeLife });
            self.record_life(id, &item);
        }
        if ended {
            self.finish_task(id);
        } else {
            self.moved.push(id.to_owned());
        }
    }

    fn record_life(&mut self, id: &str, item: &LifeItem) {
        let Some(task) = self.tasks.get(id) else { return };
        let (about, ended) = (About::new(&task.entry), task.state.is_ended());
        let stalled = match &item.event {
            LifeEvent::Stalled { evidence } => {
                let About { task: id, session } = about.clone();
                let policy = task.entry.doc.clocks.stall.map(|stall| stall.policy);
                Some(ClientEvent::TaskStalled { task: id, session, evidence: (**evidence).clone(), policy })
            }
            _ => None,
        };
        let step = if ended {
            Some(telling::ended(about, status(&task.state), item.end.as_deref()))
        } else {
            telling::life_step(about, &item.event, &task.state, &task.policy)
        };
        for event in stalled.into_iter().chain(step) {
            self.emit(&event);
        }
        if !ended {
            if !self.changed.iter().any(|changed| changed == id) {
                self.changed.push(id.to_owned());
            }
            self.durable.push(Action::Reach(CrashPoint::AfterLife));
        }
    }

    /// Whoever waited for the start gets the id; whoever waits for the end hears it too, once. If it waits for its turn, they hear
    /// that.
    pub(crate) fn answer_started(&mut self, id: &str) {
        self.may_read_now(id);
        let Some(task) = self.tasks.get(id) else { return };
        let word = match task.state {
            State::Running(_) | State::Resting(_) | State::Stopping(_) => notify::TASK_STARTED,
            State::Queued { .. } if task.shim.is_some() => notify::TASK_QUEUED,
            State::Queued { .. } | State::Starting { .. } | State::Ended(_) => return,
        };
        for pending in task.pending.clone() {
            let Some(Pending { what: What::Start { when, told, .. }, caller, .. }) =
                self.pending.get_mut(&pending)
            else {
                continue;
            };
            if told.replace(word) == Some(word) {
                continue;
            }
            let (when, caller) = (*when, caller.clone());
            let Some(info) = self.live_info(id, false, None) else { return };
            match when {
                AnswerWhen::Started => {
                    self.take_pending(pending);
                    self.reply(&caller, &info);
                }
                AnswerWhen::Ended => self.notify(caller.client, word, &info),
            }
        }
    }

    /// The end: durable first, then everybody who waited hears of it, then the shim may forget.
    pub(crate) fn finish_task(&mut self, id: &str) {
        let Some(task) = self.tasks.remove(id) else { return };
        self.put(&task.entry);
        self.wish_for_hooks(&task.entry);
        self.expect_nobody(task.caller_due);
        self.expect_nobody(task.unsaid);
        self.excuse(task.entry.parent.as_deref());
        self.counted_below(&task.entry);
        self.waiting.retain(|waiting| waiting != id);
        if let Some(shim) = task.shim.and_then(|shim| self.shims.get_mut(&shim)) {
            shim.task = None;
            (shim.watched, shim.excused) = (false, None);
        }
        self.durable.push(Action::Reach(CrashPoint::AfterEnd));
        if let Some(shim) = task.shim {
            self.trust(shim);
            let stopped = task.entry.doc.end.as_ref().is_some_and(|end| end.receipt.is_some());
            let acks = if stopped { &mut self.slow_acks.0 } else { &mut self.acks };
            acks.push(Action::ToShim { shim, message: ToShim::Ack { task: id.to_owned() } });
            acks.push(Action::Reach(CrashPoint::AfterAck));
        }
        let info = task_info(&task.entry, Live::default());
        self.leave_lane(&task.entry, &info);
        let told = Self::is_told(&task, &info);
        let seq = self.end_number(id);
        self.note_end(&task.entry, &info, seq, told);
        // Said only when durable: a daemon that dies now says it again, and says the same. (Where the disk is full it is
        // said nevertheless, and the shim keeps it.)
        self.commit_or_retry();
        if !info.output.on_disk {
            self.keep_memory(id, info.output.bytes, task.memory);
        }
        for pending in task.pending {
            if self.look_once_more(pending) {
                continue;
            }
            if let Some(pending) = self.take_pending(pending) {
                if pending.awaited().is_some() {
                    self.told_by_wait(&pending.caller, &task.entry);
                }
                self.answer_ended(pending, &info, &task.follows);
            }
        }
        self.serve_sessions_of(&task.entry);
        self.one_of_many_ended(&info);
        for follow in task.follows {
            self.end_follow(follow, info.output.bytes);
        }
        self.ended_since_gc += 1;
    }

    fn answer_ended(&mut self, pending: Pending, info: &TaskInfo, follows: &[u64]) {
        let Pending { caller, what, .. } = pending;
        match what {
            What::Start { when, .. } => {
                let own =
                    |follow: &u64| self.follows.get(follow).is_some_and(|follow| follow.answers(&caller));
                match follows.iter().copied().find(own) {
                    // Its output first, to the last byte.
                    Some(follow) if when == AnswerWhen::Ended => {
                        self.answer_after_follow(follow, caller, info.clone());
                    }
                    _ => self.reply(&caller, info),
                }
            }
            What::Inspect { .. } | What::Detach { .. } => self.reply(&caller, info),
            What::Wait { until, .. } => {
                self.answer_wait(&caller, info.clone(), Met::Ended, until.as_deref(), None);
            }
            What::Stop { fenced, .. } => self.reply(&caller, &StopResult { fenced, ..stop_result(info) }),
            What::Write { .. } | What::Room { .. } => {
                let error =
                    RpcError::new(ErrorKind::WrongState, "the task has ended and reads no more").field("id");
                self.fail(&caller, error);
            }
            What::Signal { .. } => self.fail(&caller, not_running()),
            What::Resize { task } => self.fail(&caller, no_terminal_now(&task)),
            What::Events { .. }
            | What::StopMany(_)
            | What::Drained { .. }
            | What::Notices { .. }
            | What::Search
            | What::Collect(_)
            | What::Reading { .. } => {}
        }
    }

    fn shim_told(&mut self, now: &Now) {
        let Some(Pending { what: What::Inspect { task }, caller, .. }) = self.pending.get(&now.query) else {
            return;
        };
        let (id, caller) = (task.clone(), caller.clone());
        self.take_pending(now.query);
        if let Some(info) = self.live_info(&id, true, Some(now)) {
            self.reply(&caller, &info);
        }
    }

    /// What is left of a task whose shim is gone has been dealt with: that is its end.
    pub(crate) fn lost_killed(&mut self, lost: &LostTask, found: u64, survivors: Vec<SurvivorInfo>) {
        let id = lost.task.as_str();
        let mut known = format!("its shim was killed; {}", found_and_killed(found, survivors.len() as u64));
        let was_begun = self.tasks.get(id).is_some_and(|task| task.entry.doc.status != Status::Queued);
        if was_begun && lost.adopted && lost.cgroup.is_none() {
            known.push_str(MAYBE_OTHERS);
        }
        // Only when that is durable: a socket that is gone says that its shim left by itself.
        let shim_doc = self.tasks.get(id).and_then(|task| task.entry.doc.shim.as_ref());
        let socket = shim_doc.map(|shim| Action::RemoveSocket { name: shim.name.clone() });
        self.durable.extend(socket);
        let stop = self.tasks.get(id).and_then(|task| task.stop.clone());
        match stop {
            // Asked for, done, and proved by the cgroup: it was a stop, if not by the usual hand. If nobody was left to
            // be killed, nobody knows how it ended.
            Some((order, asked)) if lost.cgroup.is_some() && found > 0 => {
                self.end_stopped(id, order, asked, found, survivors);
            }
            // What is known of the stop is not lost with the proof of it.
            Some((StopOrder { actor, reason, .. }, _)) => {
                let why = reason.map(|reason| format!(", for: {reason}")).unwrap_or_default();
                self.lose_task(id, format!("{known}; {actor} had asked for its stop{why}"), survivors);
            }
            None => self.lose_task(id, known, survivors),
        }
        self.burying = self.burying.saturating_sub(1);
        self.open_doors_when_done();
    }

    /// Ends a task whose tree was killed on request, without its shim.
    fn end_stopped(
        &mut self,
        id: &str,
        order: StopOrder,
        asked: Moment,
        killed: u64,
        survivors: Vec<SurvivorInfo>,
    ) {
        let now = Timestamp(self.now.wall_ms);
        let receipt = Receipt {
            // Whatever was asked for, this is what ended it.
            level: StopLevel::Kill,
            actor: order.actor.clone(),
            reason: order.reason.clone(),
            signals: vec![SignalSent {
                signal: "SIGKILL".to_owned(),
                processes: killed,
                refused: survivors.len() as u64,
                at: now,
            }],
            requested_at: Timestamp(asked.wall_ms),
            empty_at: survivors.is_empty().then_some(now),
            took_ms: self.now.mono_ms.saturating_sub(asked.mono_ms),
            survivors: survivors.clone(),
        };
        let Some(task) = self.tasks.get(id) else { return };
        let exit = task.state.leader().and_then(Leader::exit);
        if !matches!(task.state, State::Stopping(_)) {
            let cause = Cause::Asked(order.clone());
            let event = telling::stopping(About::new(&task.entry), order.level, &cause);
            self.emit(&event);
        }
        let outcome = if survivors.is_empty() {
            Outcome::Cancelled { order, exit }
        } else {
            Outcome::StopFailed { cause: Cause::Asked(order), survivors: Vec::from_wire(survivors), exit }
        };
        let record = EndRecord {
            end: outcome.to_wire(),
            ended_at_ms: self.now.wall_ms,
            receipt: Some(receipt),
            output: self.output_of_lost(id),
            capture: Some(CaptureFault { message: UNREAD.to_owned(), lost_bytes: 0 }),
        };
        self.end_here(id, record);
    }

    /// Ends a task that nobody can say the end of.
    pub(crate) fn lose_task(&mut self, id: &str, known: String, survivors: Vec<SurvivorInfo>) {
        let output = self.output_of_lost(id);
        let Some(task) = self.tasks.get_mut(id) else { return };
        let event = Event::ShimLost { known: known.clone(), survivors: Vec::from_wire(survivors.clone()) };
        task.state = step(&task.policy, task.state.clone(), event).state;
        let Some(outcome) = task.state.outcome() else { return };
        let record = EndRecord {
            end: outcome.to_wire(),
            ended_at_ms: self.now.wall_ms,
            receipt: None,
            output,
            capture: None,
        };
        self.end_here(id, record);
        self.notice(format!("task {id} was lost: {known}"), "inspect it for what is known");
    }

    /// Ends a task by the daemon's own hand: it never had a shim, or has none any more.
    pub(crate) fn end_here(&mut self, id: &str, record: EndRecord) {
        let Some(task) = self.tasks.get_mut(id) else { return };
        task.shim = None;
        task.state = State::Ended(Outcome::from_wire(record.end.clone()));
        task.entry.doc.status = status(&task.state);
        task.entry.doc.end = Some(record);
        let entry = &task.entry;
        let event = telling::ended(About::new(entry), entry.doc.status, entry.doc.end.as_ref());
        self.emit(&event);
        self.finish_task(id);
    }
}

/// What became of those that were found of a tree without its shim.
fn found_and_killed(found: u64, survivors: u64) -> String {
    match (found, survivors) {
        (0, 0) => "nobody of its tree was found alive".to_owned(),
        (1, 0) => "1 process of its tree was found and killed".to_owned(),
        (_, 0) => format!("{found} processes of its tree were found and killed"),
        (0 | 1, _) => "1 process of its tree was found and could not be killed".to_owned(),
        _ => format!("{found} processes of its tree were found, of whom {survivors} could not be killed"),
    }
}

/// The answer to a stop, once the task has ended.
pub(crate) fn stop_result(info: &TaskInfo) -> StopResult {
    let receipt = info.outcome.as_ref().and_then(|outcome| outcome.receipt().cloned());
    // Without a receipt the stop came too late: the command had ended by itself. Of a lost one nobody knows.
    let accepted = receipt.is_some() || info.status == Status::Lost;
    let result = if accepted { StopVerdict::Accepted } else { StopVerdict::AlreadyEnded };
    StopResult { receipt, ..StopResult::bare(info.id.clone(), result, Some(info.status)) }
}
