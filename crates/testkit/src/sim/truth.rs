//! What really happened to each task, as the simulated machine knows it, and whether a recorded end tells it. It shares
//! no code with the life that is being tested: it counts signals, exits and clocks by itself.

use belay_model::{Cause, Clock, Exit, Level, SpawnFailure};
use belay_protocol::life::{ClockName, ExitStatus, StopCause, StopOrderInfo, TaskEnd};
use belay_protocol::shim::{Clocks, Start};
use belay_protocol::task::ProcessInfo;
use belay_record::convert::Wire as _;
use belay_shim::core::Strike;

use super::Checked;
use super::process::{Process, SIGKILL};

/// How late a shim may look at its clocks: the simulated loop is never slower.
pub(crate) const LAG_MS: u64 = 20;

/// The clocks that can end a running task.
const CLOCKS: [Clock; 3] = [Clock::Foreground, Clock::Ttl, Clock::Silence];

#[derive(Debug, Default)]
pub(crate) struct Truth {
    pub(crate) processes: Vec<Process>,
    pub(crate) bytes: u64,
    pub(crate) clocks: Clocks,
    pub(crate) spawned_ms: Option<u64>,
    pub(crate) attempts: u32,
    /// Since when it is between two attempts.
    pub(crate) rests_since_ms: Option<u64>,
    pub(crate) ran_out_resting: Option<Clock>,
    pub(crate) failure: Option<SpawnFailure>,
    /// When each running clock must ring.
    pub(crate) due: [Option<u64>; 3],
    detached: bool,
    hit_leader: bool,
    hit_others: bool,
    hit_gently: bool,
    /// Stops that reached the shim, and whether a client asked for any.
    pub(crate) orders: Vec<StopOrderInfo>,
    pub(crate) stop_asked: bool,
    pub(crate) cause: Option<(Cause, u64)>,
    pub(crate) named: Vec<i32>,
    pub(crate) shim_killed: bool,
    pub(crate) record: Record,
}

/// What stands in the journal about the task, event by event.
#[derive(Debug, Default)]
pub(crate) struct Record {
    pub(crate) started: u32,
    pub(crate) leader_exited: u32,
    pub(crate) attempts_ended: u32,
    pub(crate) stalled: bool,
    pub(crate) detached: u32,
    pub(crate) end: Option<TaskEnd>,
    pub(crate) token: Option<String>,
    pub(crate) removed: bool,
    /// The task whose end it is run for.
    pub(crate) hook_of: Option<String>,
    pub(crate) has_hook: bool,
    /// It is stopped when the connection of whoever waits for it ends.
    pub(crate) ends_with_caller: bool,
}

impl Truth {
    pub(crate) fn spawned(&mut self, now_ms: u64, start: &Start, processes: Vec<Process>) {
        self.spawned_ms = Some(now_ms);
        self.processes = processes;
        self.attempts += 1;
        self.rests_since_ms = None;
        let due = |limit: Option<u64>| limit.map(|ms| now_ms + ms);
        if self.attempts > 1 {
            // The limits of the whole task count on.
            self.due[2] = due(self.clocks.silence_ms);
            return;
        }
        self.clocks = start.clocks;
        let Clocks { timeout_ms, ttl_ms, silence_ms, .. } = start.clocks;
        self.due = [due(timeout_ms), due(ttl_ms.filter(|_| start.detached)), due(silence_ms)];
        self.detached = start.detached;
    }

    /// Nobody waits for it: the limit of whoever waited counts no more, and its time to live begins. Once.
    pub(crate) fn detached(&mut self, now_ms: u64) {
        if !std::mem::replace(&mut self.detached, true) {
            self.due[0] = None;
            self.due[1] = self.clocks.ttl_ms.map(|ms| now_ms + ms);
        }
    }

    pub(crate) fn wrote(&mut self, now_ms: u64) {
        if self.cause.is_none() {
            self.due[2] = self.clocks.silence_ms.map(|ms| now_ms + ms);
        }
    }

    pub(crate) const fn struck(&mut self, strike: Strike) {
        self.hit_leader |= strike.leader;
        self.hit_others |= strike.others;
        self.hit_gently |= strike.processes > 0 && !matches!(strike.level, Level::Kill);
    }

    pub(crate) fn leader_exit(&self) -> Option<Exit> {
        self.processes.iter().find(|process| process.is_leader).and_then(|leader| leader.exit)
    }

    pub(crate) fn alive(&self) -> impl Iterator<Item = &Process> {
        self.processes.iter().filter(|process| process.is_alive())
    }

    pub(crate) fn infos(&self, shim_pid: i32) -> Vec<ProcessInfo> {
        self.alive().map(|process| process.info(shim_pid)).collect()
    }

    /// A stop has begun: was it time, and did somebody ask for it?
    pub(crate) fn stopping(&mut self, now_ms: u64, cause: &Cause) -> Checked {
        if self.cause.is_some() {
            return Ok(());
        }
        self.cause = Some((cause.clone(), now_ms));
        match cause {
            Cause::Asked(order) if self.orders.iter().all(|known| known.actor != order.actor) => {
                Err(format!("a stop by {} began, which never reached the shim", order.actor))
            }
            Cause::Asked(_) => Ok(()),
            Cause::Clock { clock, limit_ms, .. } => match self.due_of(*clock) {
                Some(due) if now_ms >= due && now_ms <= due + LAG_MS => Ok(()),
                due => {
                    Err(format!("the {} clock ({limit_ms} ms) rang at {now_ms}, due {due:?}", clock.name()))
                }
            },
            Cause::Budget { budget, .. } => Err(format!("there is no budget, but {} ran out", budget.name())),
        }
    }

    pub(crate) fn due_of(&self, clock: Clock) -> Option<u64> {
        let place = CLOCKS.iter().position(|known| *known == clock);
        place.and_then(|place| self.due[place])
    }

    /// No clock is ever overdue, and no stop takes longer than its levels may.
    pub(crate) fn on_time(&self, now_ms: u64) -> Checked {
        self.begins_in_time(now_ms)?;
        match &self.cause {
            None => match self.due.iter().flatten().min() {
                Some(due) if now_ms > due + LAG_MS => {
                    Err(format!("a clock was due at {due} and did not ring"))
                }
                _ => Ok(()),
            },
            Some((_, began_ms)) => {
                let asked = self.orders.iter().filter_map(|order| order.grace_ms);
                let grace = asked.chain([self.clocks.grace_ms]).max().unwrap_or(0);
                let bound = began_ms + 3 * grace + self.clocks.kill_ms + LAG_MS;
                if now_ms > bound {
                    Err(format!("a stop of {began_ms} goes on after {bound}"))
                } else {
                    Ok(())
                }
            }
        }
    }

    /// Whether this end, recorded now, is the true one.
    pub(crate) fn judge(&self, end: &TaskEnd) -> Checked {
        let true_end = self.judge_resting(end).unwrap_or_else(|| match end {
            TaskEnd::Lost { survivors, .. } => {
                let alive =
                    self.alive().all(|process| survivors.iter().any(|named| named.pid == process.pid));
                self.shim_killed && alive
            }
            TaskEnd::Spawn { error } => {
                let failed = self.failure.as_ref().is_some_and(|failure| failure.to_wire() == *error);
                failed || (self.spawned_ms.is_none() && self.failure.is_none())
            }
            TaskEnd::Cancelled { order, exit: None } if self.spawned_ms.is_none() => {
                self.stop_asked || (self.record.ends_with_caller && order.actor == "disconnect")
            }
            TaskEnd::StopFailed { cause, survivors, exit } => {
                let pids: Vec<i32> = survivors.iter().map(|survivor| survivor.pid).collect();
                !pids.is_empty() && pids == self.named && self.is_cause(cause) && self.is_exit(*exit)
            }
            TaskEnd::Exited { exit } => {
                self.is_exit(Some(*exit)) && self.ended_by_itself() && self.is_given_up(*exit)
            }
            TaskEnd::Cancelled { order, exit } => {
                let asked =
                    |known: &StopOrderInfo| known.actor == order.actor && known.reason == order.reason;
                let first = matches!(&self.cause, Some((Cause::Asked(first), _)) if asked(&first.to_wire()));
                first && self.is_exit(*exit) && !self.ended_by_itself()
            }
            TaskEnd::TimedOut { clock, limit_ms, reason, exit } => {
                let (clock, limit_ms, reason) = (*clock, *limit_ms, reason.clone());
                let cause = StopCause::Clock { clock, limit_ms, reason };
                self.is_cause(&cause)
                    && self.limit(clock) == Some(limit_ms)
                    && self.is_exit(*exit)
                    && !self.ended_by_itself()
            }
            TaskEnd::Budget { .. } => false,
        });
        let named = matches!(end, TaskEnd::Lost { .. } | TaskEnd::StopFailed { .. });
        if !named && let Some(alive) = self.alive().next() {
            return Err(format!("it is said to have ended ({end:?}) and process {} lives", alive.pid));
        }
        if true_end { Ok(()) } else { Err(format!("its end is recorded as {end:?}, the truth is {self:?}")) }
    }

    fn is_exit(&self, exit: Option<ExitStatus>) -> bool {
        self.spawned_ms.is_some() && self.leader_exit().map(|exit| exit.to_wire()) == exit
    }

    fn is_cause(&self, cause: &StopCause) -> bool {
        match (&self.cause, cause) {
            (Some((Cause::Asked(first), _)), StopCause::Asked { order }) => first.actor == order.actor,
            (Some((first, _)), _) => first.to_wire() == *cause,
            (None, _) => false,
        }
    }

    const fn limit(&self, clock: ClockName) -> Option<u64> {
        match clock {
            ClockName::Timeout => self.clocks.timeout_ms,
            ClockName::Ttl => self.clocks.ttl_ms,
            ClockName::Silence => self.clocks.silence_ms,
            ClockName::Stall | ClockName::Leave | ClockName::Retry | ClockName::Grace | ClockName::Kill => {
                None
            }
        }
    }

    /// Nothing of a stop reached it, or only a SIGKILL that found its only process dead.
    fn ended_by_itself(&self) -> bool {
        let untouched = !self.hit_leader && !self.hit_others;
        let too_late = !self.hit_gently && !self.hit_others && self.leader_exit() != Some(SIGKILL);
        untouched || too_late
    }
}
