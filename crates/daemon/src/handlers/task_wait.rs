//! `task/wait`: for the end of a task, for a line of its output that matches, for silence. Each is a level: what is so
//! already is answered at once, and a wait that ran out of time goes on in the next one without missing anything.

use belay_protocol::error::RpcError;
use belay_protocol::output::{SearchCursor, SearchLine, SearchParams};
use belay_protocol::task::{MatchParams, Met, TaskInfo, WaitParams, WaitResult};

use super::check::check_clock;
use super::output::pattern;
use crate::answer::{Caller, Pending, What};
use crate::config::bounds;
use crate::core::{Core, Timer, TimerKey};
use crate::event::{Action, Pattern, Searched};
use crate::world::World;

/// What ends a wait before its task does.
#[derive(Debug)]
pub(crate) struct Until {
    matching: Option<Matching>,
    silence: Option<Silence>,
}

#[derive(Debug)]
struct Matching {
    pattern: Pattern,
    params: MatchParams,
    /// From where the next search looks on.
    cursor: SearchCursor,
    /// A search is under way.
    looking: bool,
    /// More was written since it began.
    more: bool,
    /// The time is over, and is told when this search has ended: what is there already is found in no time at all.
    due: bool,
    /// A line without its end that matches, as it was last seen, and when it counts if nothing follows.
    open: Option<(SearchLine, u64)>,
}

#[derive(Debug)]
struct Silence {
    limit_ms: u64,
    /// When it last wrote, on the clock that measures, and how much it had written then.
    since_ms: u64,
    bytes: u64,
    timer: Option<TimerKey>,
}

impl Until {
    /// From where a later wait for the same match goes on.
    fn next(&self) -> Option<SearchCursor> {
        self.matching.as_ref().map(|matching| matching.cursor)
    }
}

impl<W: World> Core<W> {
    pub(crate) fn task_wait(&mut self, caller: &Caller, params: &WaitParams) {
        if let Err(error) = self.try_wait(caller, params) {
            self.fail(caller, error);
        }
    }

    fn try_wait(&mut self, caller: &Caller, params: &WaitParams) -> Result<(), RpcError> {
        check_clock("silence_ms", params.silence_ms)?;
        if params.attach && (params.matching.is_some() || params.silence_ms.is_some()) {
            let message = "whoever waits in the place of a task's caller waits for its end";
            return Err(
                RpcError::invalid("attach", message).hint("wait for a match or for silence without it")
            );
        }
        let pattern = params.matching.as_ref().map(|matching| pattern(&matching.pattern)).transpose()?;
        let entry = self.find(caller, &params.id)?;
        let live = self.tasks.get(&entry.id);
        if live.is_none() && params.matching.is_none() {
            self.told_by_wait(caller, &entry);
            self.answer_wait(caller, Self::ended_info(&entry), Met::Ended, None, None);
            return Ok(());
        }
        if params.attach && live.is_some_and(|task| task.state.detached()) {
            self.answer_detached(caller, &entry.id);
            return Ok(());
        }
        let until = self.until(&entry.id, params, pattern)?;
        if params.attach {
            self.called_by(&entry.id, caller.client);
        }
        let within = params.timeout_ms.unwrap_or(bounds::WAIT_MS).min(bounds::WAIT_MS);
        let id = entry.id.clone();
        let what = What::Wait { task: entry.id, attached: params.attach, until: until.map(Box::new) };
        let wait = self.promise(caller.clone(), what, Some(within));
        if params.matching.is_some() || params.silence_ms.is_some() {
            self.watch_output(&id);
        }
        self.look_for_match(wait);
        self.silence_is_due(wait);
        Ok(())
    }

    fn until(
        &self,
        id: &str,
        params: &WaitParams,
        pattern: Option<Pattern>,
    ) -> Result<Option<Until>, RpcError> {
        if pattern.is_none() && params.silence_ms.is_none() {
            return Ok(None);
        }
        let now = self.output_now(self.entry(id)?)?;
        let matching = match (pattern, params.matching.clone()) {
            (Some(pattern), Some(params)) => {
                if params.after > now.bytes {
                    let message = format!(
                        "offset {} is beyond the end: the task has written {} bytes",
                        params.after, now.bytes
                    );
                    return Err(RpcError::invalid("after", message).from_position(now.bytes));
                }
                let begin = SearchCursor { at: params.after, ..SearchCursor::default() };
                let cursor = params.cursor.unwrap_or(begin);
                Some(Matching {
                    pattern,
                    params,
                    cursor,
                    looking: false,
                    more: false,
                    due: false,
                    open: None,
                })
            }
            _ => None,
        };
        let silence = params.silence_ms.filter(|_| !now.ended).map(|limit_ms| {
            let wrote = now.log.last_at_ms().ok().flatten();
            let wrote = wrote.or_else(|| self.tasks.get(id).and_then(|task| task.entry.started_ms()));
            Silence {
                limit_ms,
                since_ms: self.now.mono_ms.saturating_sub(self.quiet_ms(wrote)),
                bytes: now.bytes,
                timer: None,
            }
        });
        Ok(Some(Until { matching, silence }))
    }

    /// The task has written so many bytes by now.
    pub(crate) fn wait_saw_output(&mut self, wait: u64, bytes: u64) {
        let now_ms = self.now.mono_ms;
        if let Some(Pending { what: What::Wait { until: Some(until), .. }, .. }) = self.pending.get_mut(&wait)
            && let Some(silence) = until.silence.as_mut().filter(|silence| bytes > silence.bytes)
        {
            // The timer finds out by itself that it has to go on.
            (silence.since_ms, silence.bytes) = (now_ms, bytes);
        }
        self.look_for_match(wait);
    }

    fn look_for_match(&mut self, wait: u64) {
        let Some(Pending { what: What::Wait { task, until: Some(until), .. }, .. }) =
            self.pending.get_mut(&wait)
        else {
            return;
        };
        let Some(matching) = &mut until.matching else { return };
        if matching.looking {
            matching.more = true;
            return;
        }
        (matching.looking, matching.more) = (true, false);
        let params = SearchParams {
            id: task.clone(),
            pattern: String::new(),
            after: 0,
            stream: matching.params.stream,
            context: 0,
            max_matches: Some(1),
            cursor: Some(matching.cursor),
        };
        let pattern = matching.pattern.clone();
        let found = self.entry(&params.id).and_then(|entry| self.prepare_search(entry, params, pattern));
        match found {
            Ok(what) => self.actions.push(Action::Search { search: wait, what: Box::new(what) }),
            Err(error) => self.looked_for_match(wait, Err(error)),
        }
    }

    pub(crate) fn looked_for_match(&mut self, wait: u64, found: Result<Searched, RpcError>) {
        let Some(Pending { what: What::Wait { task, until: Some(until), .. }, .. }) =
            self.pending.get_mut(&wait)
        else {
            return;
        };
        let Some(matching) = &mut until.matching else { return };
        let (live, mut found) = (
            self.tasks.contains_key(task),
            match found {
                Ok(found) => found,
                Err(error) => {
                    if let Some(Pending { caller, .. }) = self.take_pending(wait) {
                        self.fail(&caller, error);
                    }
                    return;
                }
            },
        );
        matching.looking = false;
        let line = found.result.lines.pop();
        if let Some(line) = line.as_ref().filter(|line| line.open && live)
            && !self.is_a_prompt(wait, line)
        {
            return;
        }
        let Some(matching) = self.matching(wait) else { return };
        matching.cursor = found.resume;
        if let Some(line) = line {
            self.end_wait(wait, Met::Match, Some(line));
        } else if matching.due {
            self.end_wait(wait, Met::Timeout, None);
        } else if matching.more || !found.result.complete {
            self.look_for_match(wait);
        } else if !live {
            self.end_wait(wait, Met::Ended, None);
        }
    }

    fn matching(&mut self, wait: u64) -> Option<&mut Matching> {
        match self.pending.get_mut(&wait) {
            Some(Pending { what: What::Wait { until: Some(until), .. }, .. }) => until.matching.as_mut(),
            _ => None,
        }
    }

    /// Whether a line that has no end yet is likely to have none: a prompt, and not a piece of what comes in blocks. It is when nothing has
    /// followed for a moment. Else it is looked at again then, or as soon as something follows, and not before the time is over.
    fn is_a_prompt(&mut self, wait: u64, line: &SearchLine) -> bool {
        let now_ms = self.now.mono_ms;
        let log = self.pending.get(&wait).and_then(|pending| self.log_of(pending.task()?).ok());
        let quiet_ms = self.quiet_ms(log.and_then(|log| log.last_at_ms().ok().flatten()));
        let Some(matching) = self.matching(wait) else { return false };
        let known = matching.open.as_ref().filter(|(seen, _)| seen == line).map(|(_, due_ms)| *due_ms);
        let due_ms = known.unwrap_or(now_ms + bounds::OPEN_LINE_MS.saturating_sub(quiet_ms));
        if now_ms >= due_ms {
            return true;
        }
        matching.open = Some((line.clone(), due_ms));
        let (more, due) = (matching.more, matching.due);
        if known.is_none() {
            self.arm(due_ms - now_ms, Timer::Silence(wait));
        }
        if due {
            self.end_wait(wait, Met::Timeout, None);
        } else if more {
            self.look_for_match(wait);
        }
        false
    }

    /// For how long nothing has been written, if that was the last time.
    fn quiet_ms(&self, wrote_ms: Option<i64>) -> u64 {
        let quiet = self.now.wall_ms.saturating_sub(wrote_ms.unwrap_or(self.now.wall_ms));
        u64::try_from(quiet).unwrap_or(0)
    }

    /// The task has ended: a wait for a match looks at its last lines before it ends too.
    pub(crate) fn look_once_more(&mut self, wait: u64) -> bool {
        let looks = matches!(
            self.pending.get(&wait),
            Some(Pending { what: What::Wait { until: Some(until), .. }, .. }) if until.matching.is_some()
        );
        if looks {
            self.look_for_match(wait);
        }
        looks
    }

    /// It may have been quiet for long enough, for whoever waits for silence or for a line that has no end.
    pub(crate) fn silence_is_due(&mut self, wait: u64) {
        let now_ms = self.now.mono_ms;
        if self.matching(wait).is_some_and(|matching| matching.open.is_some()) {
            self.look_for_match(wait);
        }
        let Some(Pending { what: What::Wait { until: Some(until), .. }, .. }) = self.pending.get_mut(&wait)
        else {
            return;
        };
        let Some(silence) = &mut until.silence else { return };
        let at_ms = silence.since_ms.saturating_add(silence.limit_ms);
        if at_ms <= now_ms {
            return self.end_wait(wait, Met::Silence, None);
        }
        // It may not have been its own timer that brought us here.
        if let Some(earlier) = silence.timer.take() {
            self.disarm(earlier);
        }
        let timer = self.arm(at_ms - now_ms, Timer::Silence(wait));
        if let Some(Pending { what: What::Wait { until: Some(until), .. }, .. }) = self.pending.get_mut(&wait)
            && let Some(silence) = &mut until.silence
        {
            silence.timer = Some(timer);
        }
    }

    /// Nobody waits for it any more.
    pub(crate) fn stop_looking(&mut self, task: &str, until: &Until) {
        if let Some(timer) = until.silence.as_ref().and_then(|silence| silence.timer) {
            self.disarm(timer);
        }
        self.unwatch_output(task);
    }

    fn end_wait(&mut self, wait: u64, met: Met, line: Option<SearchLine>) {
        let Some(Pending { caller, what: What::Wait { task, until, .. }, .. }) = self.take_pending(wait)
        else {
            return;
        };
        let info = match self.live_info(&task, false, None) {
            Some(info) => Ok(info),
            None => self.entry(&task).map(|entry| Self::ended_info(&entry)),
        };
        match info {
            Ok(info) => self.answer_wait(&caller, info, met, until.as_deref(), line),
            Err(error) => self.fail(&caller, error),
        }
    }

    /// Whether a search is under way that has to come to its end before a wait does.
    pub(crate) fn looks_to_the_end(&mut self, wait: u64) -> bool {
        let Some(Pending { what: What::Wait { until: Some(until), .. }, .. }) = self.pending.get_mut(&wait)
        else {
            return false;
        };
        let Some(matching) = until.matching.as_mut().filter(|matching| matching.looking) else {
            return false;
        };
        matching.due = true;
        true
    }

    /// Answers a wait whose time is over.
    pub(crate) fn wait_is_due(&mut self, caller: &Caller, task: &str, until: Option<&Until>) {
        if let Some(info) = self.live_info(task, false, None) {
            return self.answer_wait(caller, info, Met::Timeout, until, None);
        }
        match self.entry(task) {
            Ok(entry) => self.answer_wait(caller, Self::ended_info(&entry), Met::Timeout, until, None),
            Err(error) => self.fail(caller, error),
        }
    }

    pub(crate) fn answer_wait(
        &mut self,
        caller: &Caller,
        task: TaskInfo,
        met: Met,
        until: Option<&Until>,
        line: Option<SearchLine>,
    ) {
        let next = until.and_then(Until::next).map(Into::into);
        self.reply(caller, &WaitResult { id: task.id.clone(), met, line, next, task });
    }
}
