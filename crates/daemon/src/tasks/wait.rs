//! `task/wait`: waits for the end of a task, for a matching line of its output, or for silence.
//! Each condition is a level: one that is met already is answered at once, and a wait that timed
//! out can be continued without missing anything.

use belay_protocol::error::RpcError;
use belay_protocol::output::{OutputSearchCursor, OutputSearchLine, OutputSearchParams};
use belay_protocol::task::{
    OutputMatchParams, TaskInfo, TaskKind, TaskWaitParams, TaskWaitResult, WaitMet, WaitUntil,
};

use super::output::pattern;
use super::{TaskEnded, TaskRef, ended_info};
use crate::config::bounds;
use crate::effect::{Pattern, Searched};
use crate::host::Host;
use crate::requests::check::check_clock;
use crate::requests::{Answer, Caller, DetachAnswer, Progress, Reply, ReplyId, Waiter};
use crate::runtime::{Core, Timer, TimerKey};

/// A wait for a task.
#[derive(Debug)]
pub(crate) struct WaitReply {
    task: String,
    until: WaitUntil,
    /// The caller waits in the foreground: a detach answers the wait.
    attached: bool,
    matching: Option<Matching>,
    silence: Option<Silence>,
    /// How the task ended, while its last lines are searched.
    ended: Option<Box<TaskInfo>>,
}

/// A wait for a line that matches.
#[derive(Debug)]
struct Matching {
    pattern: Pattern,
    params: OutputMatchParams,
    /// The position at which the next search begins.
    cursor: OutputSearchCursor,
    /// A search is running.
    searching: bool,
    /// More output was written since the search began.
    more: bool,
    /// The deadline has passed; the reply is given when the running search has finished.
    due: bool,
    unfinished: Option<Unfinished>,
}

/// A matching line without a newline, and when it is accepted if no output follows.
#[derive(Debug)]
struct Unfinished {
    line: OutputSearchLine,
    accepted_at_ms: u64,
}

#[derive(Debug)]
struct Silence {
    limit_ms: u64,
    /// When the task last wrote, on the monotonic clock, and how much it had written then.
    since_ms: u64,
    bytes: u64,
    timer: Option<TimerKey>,
}

impl WaitReply {
    /// Whether the wait needs a notification of all new output.
    pub(super) const fn watches_output(&self) -> bool {
        self.matching.is_some() || self.silence.is_some()
    }

    /// The position at which a later wait for the same match continues.
    fn next(&self) -> Option<OutputSearchCursor> {
        self.matching.as_ref().map(|matching| matching.cursor)
    }

    fn result(&self, task: TaskInfo, met: WaitMet, line: Option<OutputSearchLine>) -> TaskWaitResult {
        TaskWaitResult { id: task.id.clone(), met, line, next: self.next().map(Into::into), task }
    }

    /// Replies with a task that has not ended, or whose last lines were searched.
    fn answer<H: Host>(
        self,
        core: &mut Core<H>,
        caller: &Caller,
        met: WaitMet,
        line: Option<OutputSearchLine>,
    ) {
        if let Some(info) = &self.ended {
            let result = self.result((**info).clone(), met, line);
            return core.reply(caller, &result);
        }
        let id = self.task.clone();
        let make = Box::new(move |caller: &Caller, info| caller.answer(&self.result(info, met, line)));
        core.reply_live(caller, &id, false, None, make);
    }
}

impl Reply for WaitReply {
    fn tasks(&self) -> Vec<&str> {
        vec![&self.task]
    }

    /// A wait for a match searches the last lines of the output before it completes.
    fn task_ended(&mut self, ended: &TaskEnded) -> Progress {
        self.ended = Some(Box::new(ended.info().clone()));
        if self.matching.is_some() { Progress::Keep } else { Progress::Complete }
    }

    fn awaits_end(&self) -> bool {
        true
    }

    fn answered_by_detach(&self) -> Option<DetachAnswer> {
        self.attached.then_some(DetachAnswer::Wait)
    }

    fn hold_deadline(&mut self) -> bool {
        let Some(matching) = self.matching.as_mut().filter(|matching| matching.searching) else {
            return false;
        };
        matching.due = true;
        true
    }

    fn complete<H: Host>(self, core: &mut Core<H>, waiter: Waiter, ended: &TaskEnded) {
        core.reply(&waiter.caller, &self.result(ended.info().clone(), WaitMet::Ended, None));
    }

    fn give_now<H: Host>(self, core: &mut Core<H>, waiter: Waiter) {
        self.answer(core, &waiter.caller, WaitMet::Timeout, None);
    }

    fn removed<H: Host>(&self, core: &mut Core<H>, _: ReplyId) {
        if !self.watches_output() {
            return;
        }
        core.ctx.cancel(self.silence.as_ref().and_then(|silence| silence.timer));
        core.drop_output_wait(&self.task);
    }
}

impl<H: Host> Core<H> {
    pub(crate) fn task_wait(&mut self, caller: &Caller, params: TaskWaitParams) -> Result<Answer, RpcError> {
        check_clock("silence_ms", params.silence_ms)?;
        if params.attach && (params.matching.is_some() || params.silence_ms.is_some()) {
            let message = "attach cannot be combined with a match or with silence";
            return Err(
                RpcError::invalid("attach", message).hint("wait for a match or for silence without attach")
            );
        }
        if params.attach && params.until != WaitUntil::Ended {
            return Err(RpcError::invalid("attach", "attach waits for the end, and for nothing else")
                .hint("leave out until, or attach"));
        }
        let pattern = params.matching.as_ref().map(|matching| pattern(&matching.pattern)).transpose()?;
        let id = params.id.clone();
        self.with_task(caller, &id, move |core, caller, task| core.wait_for(caller, &params, pattern, task))
    }

    fn wait_for(
        &mut self,
        caller: &Caller,
        params: &TaskWaitParams,
        pattern: Option<Pattern>,
        task: TaskRef,
    ) -> Result<Answer, RpcError> {
        let ended = match &task {
            TaskRef::Ended(stored) if params.matching.is_none() => {
                let info = ended_info(stored);
                self.acknowledge_by_reply(caller, stored);
                let result = TaskWaitResult {
                    id: info.id.clone(),
                    met: WaitMet::Ended,
                    line: None,
                    next: None,
                    task: info,
                };
                return Ok(caller.answer(&result));
            }
            TaskRef::Ended(stored) => Some(Box::new(ended_info(stored))),
            TaskRef::Live(_) => None,
        };
        let id = task.id().to_owned();
        self.check_until(&task, params.until)?;
        if params.until == WaitUntil::Started
            && self.tasks.get(&id).is_some_and(|task| task.state.has_begun())
        {
            self.answer_started_wait(caller, &id);
            return Ok(Answer::Later);
        }
        if params.attach && self.tasks.get(&id).is_some_and(|task| task.state.detached()) {
            self.answer_detached_wait(caller, &id);
            return Ok(Answer::Later);
        }
        let (matching, silence) = self.conditions(&task, params, pattern)?;
        if params.attach {
            self.attach_caller(&id, caller.client);
        }
        let within = params.timeout_ms.unwrap_or(bounds::WAIT_MS).min(bounds::WAIT_MS);
        let (until, attached) = (params.until, params.attach);
        let reply = WaitReply { task: id.clone(), until, attached, matching, silence, ended };
        let watches = reply.watches_output();
        let wait = self.defer_reply(caller.clone(), reply, Some(within));
        if watches {
            self.add_output_wait(&id);
        }
        self.search_for_match(wait);
        self.quiet_due(wait);
        Ok(Answer::Later)
    }

    /// Only an agent has turns and asks for input.
    fn check_until(&self, task: &TaskRef, until: WaitUntil) -> Result<(), RpcError> {
        let kind = match task {
            TaskRef::Live(id) => self.tasks.get(id).map(|task| task.stored.doc.spec.kind()),
            TaskRef::Ended(stored) => Some(stored.doc.spec.kind()),
        };
        match (until, kind) {
            (WaitUntil::Turn | WaitUntil::InputNeeded, Some(TaskKind::Shell)) => {
                let message =
                    format!("task {} is a command: only an agent has turns and asks for input", task.id());
                Err(RpcError::invalid("until", message).hint("wait until it has started or ended"))
            }
            _ => Ok(()),
        }
    }

    /// The reply to a caller that waits for the start of a task that runs.
    fn answer_started_wait(&mut self, caller: &Caller, id: &str) {
        let make = Box::new(|caller: &Caller, task: TaskInfo| {
            let id = task.id.clone();
            caller.answer(&TaskWaitResult { id, met: WaitMet::Started, line: None, next: None, task })
        });
        self.reply_live(caller, id, false, None, make);
    }

    /// A task has started: callers that wait for that get their reply.
    pub(super) fn answer_started_waits(&mut self, id: &str) {
        for wait in self.requests.of_task(id) {
            let is_met = |wait: &WaitReply| wait.until == WaitUntil::Started;
            if self.requests.reply::<WaitReply>(wait).is_some_and(is_met)
                && let Some((waiter, _)) = self.take_reply::<WaitReply>(wait)
            {
                self.answer_started_wait(&waiter.caller, id);
            }
        }
    }

    /// The reply to a caller that waits in the foreground for a task that is in the background.
    pub(super) fn answer_detached_wait(&mut self, caller: &Caller, id: &str) {
        let make = Box::new(|caller: &Caller, task: TaskInfo| {
            let id = task.id.clone();
            caller.answer(&TaskWaitResult { id, met: WaitMet::Detached, line: None, next: None, task })
        });
        self.reply_live(caller, id, true, None, make);
    }

    fn conditions(
        &self,
        task: &TaskRef,
        params: &TaskWaitParams,
        pattern: Option<Pattern>,
    ) -> Result<(Option<Matching>, Option<Silence>), RpcError> {
        if pattern.is_none() && params.silence_ms.is_none() {
            return Ok((None, None));
        }
        let output = self.output_now(task)?;
        let matching = match (pattern, params.matching.clone()) {
            (Some(pattern), Some(params)) => {
                if params.after > output.bytes {
                    let message = format!(
                        "offset {} is beyond the end: the task has written {} bytes",
                        params.after, output.bytes
                    );
                    return Err(RpcError::invalid("after", message).from_position(output.bytes));
                }
                let begin = OutputSearchCursor { at: params.after, ..OutputSearchCursor::default() };
                let cursor = params.cursor.unwrap_or(begin);
                Some(Matching {
                    pattern,
                    params,
                    cursor,
                    searching: false,
                    more: false,
                    due: false,
                    unfinished: None,
                })
            }
            _ => None,
        };
        let silence = params.silence_ms.filter(|_| !output.ended).map(|limit_ms| {
            let wrote = output.log.last_at_ms().ok().flatten();
            let started = || self.tasks.get(task.id()).and_then(|task| task.stored.started_ms());
            Silence {
                limit_ms,
                since_ms: self.ctx.now.mono_ms.saturating_sub(self.quiet_ms(wrote.or_else(started))),
                bytes: output.bytes,
                timer: None,
            }
        });
        Ok((matching, silence))
    }

    // --- matches ---

    /// The task has new output: `bytes` is its total size.
    pub(super) fn wait_sees_output(&mut self, wait: ReplyId, bytes: u64) {
        let now_ms = self.ctx.now.mono_ms;
        let Some(reply) = self.requests.reply_mut::<WaitReply>(wait) else { return };
        if let Some(silence) = reply.silence.as_mut().filter(|silence| bytes > silence.bytes) {
            // The timer is not moved: when it fires, it is armed again for the rest of the time.
            (silence.since_ms, silence.bytes) = (now_ms, bytes);
        }
        self.search_for_match(wait);
    }

    /// The task has ended: a wait for a match searches its last lines.
    pub(super) fn wait_sees_end(&mut self, wait: ReplyId) {
        self.search_for_match(wait);
    }

    fn search_for_match(&mut self, wait: ReplyId) {
        let Some(reply) = self.requests.reply_mut::<WaitReply>(wait) else { return };
        let Some(matching) = &mut reply.matching else { return };
        if matching.searching {
            matching.more = true;
            return;
        }
        (matching.searching, matching.more) = (true, false);
        let params = OutputSearchParams {
            id: reply.task.clone(),
            pattern: String::new(),
            after: 0,
            stream: matching.params.stream,
            context: 0,
            max_matches: Some(1),
            cursor: Some(matching.cursor),
            text: matching.params.text,
        };
        let pattern = matching.pattern.clone();
        let ended_bytes = reply.ended.as_ref().map(|info| info.output.bytes);
        self.begin_search(wait, params, pattern, ended_bytes);
    }

    /// A search for a wait has finished.
    pub(super) fn match_searched(&mut self, wait: ReplyId, found: Result<Searched, RpcError>) {
        let mut found = match found {
            Ok(found) => found,
            Err(error) => {
                if let Some((waiter, _)) = self.take_reply::<WaitReply>(wait) {
                    self.fail(&waiter.caller, error);
                }
                return;
            }
        };
        let Some(reply) = self.requests.reply_mut::<WaitReply>(wait) else { return };
        let is_live = reply.ended.is_none();
        let Some(matching) = &mut reply.matching else { return };
        matching.searching = false;
        let line = found.result.lines.pop();
        if let Some(line) = line.as_ref().filter(|line| line.open && is_live)
            && !self.is_prompt(wait, line)
        {
            return;
        }
        let Some(matching) = self.matching(wait) else { return };
        matching.cursor = found.resume;
        if let Some(line) = line {
            self.end_wait(wait, WaitMet::Match, Some(line));
        } else if matching.due {
            self.end_wait(wait, WaitMet::Timeout, None);
        } else if matching.more || !found.result.complete {
            self.search_for_match(wait);
        } else if !is_live {
            self.end_wait(wait, WaitMet::Ended, None);
        }
    }

    fn matching(&mut self, wait: ReplyId) -> Option<&mut Matching> {
        self.requests.reply_mut::<WaitReply>(wait)?.matching.as_mut()
    }

    /// Whether a line without a newline is a prompt, and not part of a line that is still being
    /// written. It is a prompt if no output has followed for a moment; otherwise it is searched
    /// again after that moment, or when output follows.
    fn is_prompt(&mut self, wait: ReplyId, line: &OutputSearchLine) -> bool {
        let now_ms = self.ctx.now.mono_ms;
        let task = self.requests.reply::<WaitReply>(wait).map(|reply| reply.task.clone());
        let log = task.and_then(|task| self.log_of(&task).ok());
        let quiet_ms = self.quiet_ms(log.and_then(|log| log.last_at_ms().ok().flatten()));
        let Some(matching) = self.matching(wait) else { return false };
        let known = matching.unfinished.as_ref().filter(|known| known.line == *line);
        let known_ms = known.map(|known| known.accepted_at_ms);
        let accepted_at_ms = known_ms.unwrap_or(now_ms + bounds::OPEN_LINE_MS.saturating_sub(quiet_ms));
        if now_ms >= accepted_at_ms {
            return true;
        }
        matching.unfinished = Some(Unfinished { line: line.clone(), accepted_at_ms });
        let (more, due) = (matching.more, matching.due);
        if known_ms.is_none() {
            self.ctx.schedule(accepted_at_ms - now_ms, Timer::Quiet(wait));
        }
        if due {
            self.end_wait(wait, WaitMet::Timeout, None);
        } else if more {
            self.search_for_match(wait);
        }
        false
    }

    // --- silence ---

    /// The time since the last output, by the wall clock.
    fn quiet_ms(&self, wrote_ms: Option<i64>) -> u64 {
        let now_ms = self.ctx.now.wall_ms;
        u64::try_from(now_ms.saturating_sub(wrote_ms.unwrap_or(now_ms))).unwrap_or(0)
    }

    /// The output may have been quiet for long enough: for a wait for silence, or for an unfinished line.
    pub(crate) fn quiet_due(&mut self, wait: ReplyId) {
        let now_ms = self.ctx.now.mono_ms;
        if self.matching(wait).is_some_and(|matching| matching.unfinished.is_some()) {
            self.search_for_match(wait);
        }
        let Some(reply) = self.requests.reply_mut::<WaitReply>(wait) else { return };
        let Some(silence) = &mut reply.silence else { return };
        let at_ms = silence.since_ms.saturating_add(silence.limit_ms);
        if at_ms <= now_ms {
            return self.end_wait(wait, WaitMet::Silence, None);
        }
        // This call may be due to another timer.
        let earlier = silence.timer.take();
        self.ctx.cancel(earlier);
        let timer = self.ctx.schedule(at_ms - now_ms, Timer::Quiet(wait));
        if let Some(silence) =
            self.requests.reply_mut::<WaitReply>(wait).and_then(|reply| reply.silence.as_mut())
        {
            silence.timer = Some(timer);
        }
    }

    fn end_wait(&mut self, wait: ReplyId, met: WaitMet, line: Option<OutputSearchLine>) {
        if let Some((waiter, reply)) = self.take_reply::<WaitReply>(wait) {
            reply.answer(self, &waiter.caller, met, line);
        }
    }
}
