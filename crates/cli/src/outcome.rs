//! How a task's end is said: the exit code for scripts, a sentence for people, the line of a receipt.

use belay_protocol::Timestamp;
use belay_protocol::life::{ClockName, ExitStatus, StartStage, StopReceipt, SurvivorInfo};
use belay_protocol::shell::LineVerdict;
use belay_protocol::task::{
    AttemptInfo, BudgetInfo, BudgetName, DetachedBy, LeaderInfo, Outcome, SpawnError, StallEvidence,
    StallInfo, StopReason, TaskInfo, TaskStatus,
};

use crate::ui::human;
use crate::ui::style::Style;

/// The exit codes that shells and `timeout` use.
pub(crate) const TIMED_OUT: u8 = 124;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;
const INTERRUPTED: u8 = 130;
const SIGNALLED: i32 = 128;
const ENOENT: i32 = 2;

/// What `run` and `wait` end with for this task.
pub(crate) fn exit_code(task: &TaskInfo) -> u8 {
    let Some(outcome) = &task.outcome else { return 1 };
    let own = code_of(outcome.signal(), outcome.exit_code());
    match outcome {
        Outcome::Exited { exit_code: 0, .. }
        | Outcome::TurnEnded { stop_reason: StopReason::EndTurn, .. } => 0,
        Outcome::Spawn { error, .. } => spawn_code(error),
        Outcome::Cancelled { .. } => own.unwrap_or(INTERRUPTED),
        Outcome::TimedOut { .. } => TIMED_OUT,
        Outcome::Exited { .. } | Outcome::Signaled { .. } | Outcome::Budget { .. } => {
            own.filter(|code| *code != 0).unwrap_or(1)
        }
        Outcome::StopFailed { .. } => 3,
        Outcome::Lost { .. }
        | Outcome::TurnEnded { .. }
        | Outcome::Refused { .. }
        | Outcome::MaxTokens { .. }
        | Outcome::Authentication { .. }
        | Outcome::Protocol { .. }
        | Outcome::Empty { .. } => 1,
    }
}

fn code_of(signal: Option<i32>, code: Option<i32>) -> Option<u8> {
    let number = match (signal, code) {
        (Some(signal), _) => SIGNALLED + signal,
        (None, Some(code)) => code,
        (None, None) => return None,
    };
    Some(u8::try_from(number & 0xff).unwrap_or(1))
}

/// The first process of a task that goes on without it.
pub(crate) fn left_behind(task: &TaskInfo) -> Option<&LeaderInfo> {
    let exited = |leader: &&LeaderInfo| leader.exit_code.is_some() || leader.signal.is_some();
    task.leader.as_ref().filter(exited).filter(|_| !task.status.is_ended())
}

pub(crate) fn leader_code(leader: &LeaderInfo) -> u8 {
    code_of(leader.signal, leader.exit_code).unwrap_or(1)
}

/// `leader exited 0, 2 processes running`.
pub(crate) fn left_words(task: &TaskInfo) -> Option<String> {
    let leader = left_behind(task)?;
    let how = match (leader.signal, leader.exit_code) {
        (Some(signal), _) => format!("died of {}", human::signal(signal)),
        (None, code) => format!("exited {}", code.unwrap_or_default()),
    };
    let many = task.processes.as_ref().map(|processes| processes.len() as u64);
    let rest = many.map(|many| format!(", {} running", human::count(many, "process", "processes")));
    Some(format!("leader {how}{}", rest.unwrap_or_default()))
}

/// What whoever waited is told about a task that goes on without them.
pub(crate) fn runs_on(task: &TaskInfo) -> String {
    let id = &task.id;
    let why = match (left_words(task), &task.detached_by) {
        (Some(words), _) => words,
        (None, Some(DetachedBy::Timeout)) => "the time limit passed, and it was detached".to_owned(),
        (None, Some(by)) => format!("detached by {by}"),
        (None, None) if is_detached_by_its_line(task) => "its line put it in the background".to_owned(),
        (None, None) => "detached".to_owned(),
    };
    let how = background(task.status).unwrap_or("runs on");
    format!("{id} {how}: {why}")
}

/// What one does that nobody waits for any more, where it is something else than to run.
pub(crate) const fn background(status: TaskStatus) -> Option<&'static str> {
    match status {
        TaskStatus::Stopping => Some("is being stopped"),
        TaskStatus::Queued => Some("waits in the background for its turn"),
        _ => None,
    }
}

/// What whoever waited ends with: one that is being stopped has no code of its own, and it did not go well.
pub(crate) fn released_code(task: &TaskInfo) -> u8 {
    let stopped = if task.status == TaskStatus::Stopping { INTERRUPTED } else { 0 };
    left_behind(task).map_or(stopped, leader_code)
}

/// Whether its line has put it in the background.
pub(crate) fn is_detached_by_its_line(task: &TaskInfo) -> bool {
    task.spec.line().is_some_and(|line| line.verdict == LineVerdict::Detach)
}

pub(crate) fn go_on(task: &TaskInfo) -> String {
    if task.status == TaskStatus::Stopping {
        return format!("belay wait {} to see its end", task.id);
    }
    let see = if task.spec.pty().is_some() { "belay attach" } else { "belay logs -f" };
    let what = if task.spec.pty().is_some() { "come back to it" } else { "follow it" };
    format!("{see} {0} to {what}, belay stop {0} to end it", task.id)
}

const fn spawn_code(error: &SpawnError) -> u8 {
    let missing =
        matches!(error.errno, Some(ENOENT)) && matches!(error.what, StartStage::Program | StartStage::Shell);
    if missing { NOT_FOUND } else { NOT_EXECUTABLE }
}

/// `completed`, `failed (exit 2)`, `failed (SIGSEGV)`: short enough for a table.
pub(crate) fn short(task: &TaskInfo) -> String {
    let status = status_name(task.status);
    match &task.outcome {
        Some(outcome) if task.status == TaskStatus::Failed => match outcome {
            Outcome::Spawn { .. } => "not started".to_owned(),
            Outcome::Budget { .. } => format!("{status} (budget)"),
            Outcome::Signaled { signal, .. } => format!("{status} ({})", human::signal(*signal)),
            Outcome::Exited { exit_code, .. } => format!("{status} (exit {exit_code})"),
            Outcome::TurnEnded { .. }
            | Outcome::Refused { .. }
            | Outcome::MaxTokens { .. }
            | Outcome::Authentication { .. }
            | Outcome::Protocol { .. }
            | Outcome::Empty { .. } => format!("{status} ({})", agent_words(outcome)),
            Outcome::Cancelled { .. }
            | Outcome::TimedOut { .. }
            | Outcome::StopFailed { .. }
            | Outcome::Lost { .. } => status.to_owned(),
        },
        _ => match task.attempt.filter(|attempt| !task.status.is_ended() && is_again(task, *attempt)) {
            Some(attempt) => format!("{status} (attempt {} of {})", attempt.number, attempt.of),
            None => status.to_owned(),
        },
    }
}

/// Whether something of it has failed already.
fn is_again(task: &TaskInfo, attempt: AttemptInfo) -> bool {
    attempt.number > 1 || task.status == TaskStatus::Retrying
}

/// `stalled: no progress for 2m 3s, processor time 20 ms when it was seen`.
pub(crate) fn stalled(stall: &StallInfo, now: Timestamp) -> String {
    let StallEvidence { silent_ms, cpu_ms, .. } = stall.evidence;
    let silent = human::duration(silent_ms + human::between(stall.since, now));
    format!("stalled: no progress for {silent}, processor time {} when it was seen", human::took(cpu_ms))
}

/// `2 of 4; the last failure: exit 1; the next one in 800 ms`.
pub(crate) fn attempt(task: &TaskInfo) -> Option<String> {
    let AttemptInfo { number, of, last } = task.attempt?;
    let last = last.map(|exit| match exit {
        ExitStatus::Code(code) => format!("; the last failure: exit {code}"),
        ExitStatus::Signal { number, .. } => format!("; the last failure: died of {}", human::signal(number)),
    });
    let next = task.clocks.retry.and_then(|clock| clock.remaining_ms);
    let next = next.map(|ms| format!("; the next one in {}", human::duration(ms)));
    Some(format!("{number} of {of}{}{}", last.unwrap_or_default(), next.unwrap_or_default()))
}

pub(crate) const fn status_name(status: TaskStatus) -> &'static str {
    match status {
        TaskStatus::InputNeeded => "input needed",
        TaskStatus::TimedOut => "timed out",
        TaskStatus::StopFailed => "stop failed",
        other => other.name(),
    }
}

pub(crate) const fn status_style(status: TaskStatus) -> Style {
    match status {
        TaskStatus::Running => Style::Good,
        TaskStatus::Queued
        | TaskStatus::Starting
        | TaskStatus::Retrying
        | TaskStatus::InputNeeded
        | TaskStatus::Stopping => Style::Busy,
        TaskStatus::Idle | TaskStatus::Completed | TaskStatus::Cancelled => Style::Dim,
        TaskStatus::Failed | TaskStatus::TimedOut | TaskStatus::Lost | TaskStatus::StopFailed => Style::Bad,
    }
}

/// The whole end in a sentence: `failed: exit 2`, `timed out: the silence limit of 5m passed`.
pub(crate) fn sentence(task: &TaskInfo) -> String {
    sentence_of(task.status, task.outcome.as_ref())
}

pub(crate) fn sentence_of(ended: TaskStatus, outcome: Option<&Outcome>) -> String {
    let status = status_name(ended);
    let Some(outcome) = outcome else { return status.to_owned() };
    let why = outcome.reason().map(|reason| format!(": {reason}")).unwrap_or_default();
    match outcome {
        Outcome::Exited { exit_code, .. } => format!("{status}: exit {exit_code}"),
        Outcome::Signaled { signal, core_dumped, .. } => {
            let core = if *core_dumped { ", core dumped" } else { "" };
            format!("{status}: died of {}{core}", human::signal(*signal))
        }
        Outcome::Spawn { error, .. } => {
            format!("could not be started: {}: {}", error.what.name(), error.message)
        }
        Outcome::Cancelled { actor, exit_code, signal, .. } => {
            let own = match (signal, exit_code) {
                (Some(signal), _) => format!(" (died of {})", human::signal(*signal)),
                (None, Some(code)) => format!(" (exit {code})"),
                (None, None) => String::new(),
            };
            format!("{status} by {actor}{why}{own}")
        }
        Outcome::TimedOut { clock, limit_ms, .. } => {
            format!("{status}: the {} of {} passed{why}", clock_name(*clock), human::duration(*limit_ms))
        }
        Outcome::Budget { budget, .. } => format!("{status}: {}", beyond(budget)),
        Outcome::StopFailed { survivors: alive, .. } => format!("{status}: {}", survivors(alive)),
        Outcome::Lost { reason, .. } => format!("{status}: {reason}"),
        Outcome::TurnEnded { .. }
        | Outcome::Refused { .. }
        | Outcome::MaxTokens { .. }
        | Outcome::Authentication { .. }
        | Outcome::Protocol { .. }
        | Outcome::Empty { .. } => format!("{status}: {}{why}", agent_words(outcome)),
    }
}

/// How the turn of an agent ended.
const fn agent_words(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::TurnEnded { stop_reason: StopReason::MaxTurnRequests, .. } => {
            "too many requests in one turn"
        }
        Outcome::TurnEnded { stop_reason: StopReason::Cancelled, .. } => "turn cancelled",
        Outcome::Refused { .. } => "refused",
        Outcome::MaxTokens { .. } => "token limit reached",
        Outcome::Authentication { .. } => "not signed in",
        Outcome::Protocol { .. } => "protocol error",
        Outcome::Empty { .. } => "nothing said",
        _ => "turn ended",
    }
}

/// Which budget, what it used, and what it may use.
pub(crate) fn beyond(budget: &BudgetInfo) -> String {
    let BudgetInfo { name, limit, used } = budget;
    let (may, size) = (*limit, human::size);
    match name {
        BudgetName::Output => format!("it wrote {}, and may write {}", size(*used), size(may)),
        BudgetName::Memory => format!("it used {} of memory, and may use {}", size(*used), size(may)),
        BudgetName::Processes => {
            format!("it had {}, and may have {may}", human::count(*used, "process", "processes"))
        }
    }
}

pub(crate) const fn clock_name(clock: ClockName) -> &'static str {
    match clock {
        ClockName::Timeout => "time limit",
        ClockName::Ttl => "time to live",
        ClockName::Silence => "silence limit",
        ClockName::Stall => "stall limit",
        ClockName::Leave => "wait for others",
        ClockName::Retry => "pause between attempts",
        ClockName::Grace => "grace",
        ClockName::Kill => "kill limit",
    }
}

/// `SIGTERM to 3 processes, SIGKILL to 1 process, tree empty after 12 ms`.
pub(crate) fn receipt(receipt: &StopReceipt) -> String {
    let mut parts: Vec<String> = receipt
        .signals
        .iter()
        .map(|sent| {
            let refused =
                if sent.refused == 0 { String::new() } else { format!(" ({} refused)", sent.refused) };
            let name = sent.signal.strip_prefix("SIG").unwrap_or(&sent.signal);
            format!("SIG{name} to {}{refused}", human::count(sent.processes, "process", "processes"))
        })
        .collect();
    let took = human::took(receipt.took_ms);
    parts.push(match receipt.empty_at {
        Some(_) => format!("tree empty after {took}"),
        None => format!("not empty after {took}"),
    });
    if !receipt.survivors.is_empty() {
        parts.push(survivors(&receipt.survivors));
    }
    parts.join(", ")
}

/// `2 processes survive: 4711 (uid 0) sudo sleep, 4712 (uid 0) sleep`.
pub(crate) fn survivors(survivors: &[SurvivorInfo]) -> String {
    let named: Vec<String> =
        survivors.iter().map(|one| format!("{} (uid {}) {}", one.pid, one.uid, one.command)).collect();
    let many = u64::try_from(survivors.len()).unwrap_or(u64::MAX);
    let verb = if many == 1 { "survives" } else { "survive" };
    format!("{} {verb}: {}", human::count(many, "process", "processes"), named.join(", "))
}
