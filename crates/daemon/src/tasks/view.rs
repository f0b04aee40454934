//! A task as clients see it: built from its stored form and what is known of it now. Pure.

use belay_model::{Cause, Leader, State};
use belay_protocol::Timestamp;
use belay_protocol::lane::LaneSeat;
use belay_protocol::life::{ExitStatus, OutputInfo};
use belay_protocol::shim::Now;
use belay_protocol::task::{
    ClockInfo, ClocksInfo, HeldBy, LeaderInfo, ProcessInfo, StoppingInfo, TaskHealth, TaskInfo, TaskSpecInfo,
    TaskStatus,
};
use belay_record::convert::{Wire as _, outcome_from_record};

use super::{StoredTask, TaskDoc};

/// What is known of a live task only.
#[derive(Clone, Debug, Default)]
pub(super) struct Live<'a> {
    pub(super) state: Option<&'a State>,
    pub(super) now: Option<&'a Now>,
    pub(super) processes: Option<&'a Vec<ProcessInfo>>,
    /// The sums of its output, if they were looked up.
    pub(super) output: Option<OutputInfo>,
    /// Its place in the queue of its lane.
    pub(super) place: Option<u64>,
}

/// An ended task.
pub(crate) fn ended_info(stored: &StoredTask) -> TaskInfo {
    task_info(stored, Live::default())
}

pub(super) fn task_info(stored: &StoredTask, live: Live<'_>) -> TaskInfo {
    let doc = &stored.doc;
    let end = doc.end.as_ref();
    // An ended task is not stalled.
    let stall = doc.stalled.clone().filter(|_| end.is_none());
    TaskInfo {
        id: stored.id.clone(),
        kind: doc.spec.kind(),
        name: stored.name.clone(),
        labels: doc.labels.clone(),
        status: doc.status,
        health: if stall.is_some() { TaskHealth::Stalled } else { TaskHealth::Ok },
        stall,
        detached: live.state.map_or(doc.detached || doc.detached_by.is_some(), State::detached),
        detached_by: doc.detached_by.clone(),
        command: doc.command.clone(),
        spec: spec_info(doc, live.now),
        cwd: doc.cwd.clone(),
        session: stored.session.clone(),
        parent: stored.parent.clone(),
        started_by: doc.started_by.clone(),
        client: doc.client.clone(),
        lineage: doc.lineage.clone(),
        lane: doc.lane.as_ref().map(|seat| LaneSeat {
            name: seat.name.clone(),
            generation: seat.generation,
            place: live.place,
        }),
        keep: doc.keep,
        created_at: Timestamp(stored.created_ms),
        started_at: stored.started_ms().map(Timestamp),
        ended_at: end.map(|end| Timestamp(end.ended_at_ms)),
        pid: doc.leader.filter(|_| doc.status != TaskStatus::Retrying).map(|leader| leader.pid),
        leader: leader_info(stored, live.state),
        attempt: doc.attempt,
        processes: live.processes.cloned(),
        output: output_info(stored, live.now, live.output),
        clocks: clocks_info(stored, live.state, live.now),
        budgets: doc.budgets,
        stopping: live.state.and_then(stopping_info),
        outcome: end.map(outcome_from_record),
        last_event: doc.last_event,
        held_by: doc
            .shim
            .as_ref()
            .filter(|_| end.is_none())
            .map(|shim| HeldBy { shim_pid: shim.process.pid, cgroup: shim.cgroup.clone() }),
    }
}

/// With the size that the terminal has now.
fn spec_info(doc: &TaskDoc, now: Option<&Now>) -> TaskSpecInfo {
    let mut spec = doc.spec.clone();
    if let (Some(shell), Some(size)) = (spec.shell_mut(), now.and_then(|now| now.pty)) {
        shell.pty = Some(size);
    }
    spec
}

fn leader_info(stored: &StoredTask, state: Option<&State>) -> Option<LeaderInfo> {
    // Between two attempts there is no leader.
    let leader = stored.doc.leader.filter(|_| stored.doc.status != TaskStatus::Retrying)?;
    let seen = state.and_then(State::leader).and_then(Leader::exit).map(|exit| exit.to_wire());
    let (exit_code, signal) = match seen.or(stored.doc.leader_exit) {
        Some(ExitStatus::Code(code)) => (Some(code), None),
        Some(ExitStatus::Signal { number, .. }) => (None, Some(number)),
        None => (None, None),
    };
    Some(LeaderInfo { pid: leader.pid, exit_code, signal })
}

/// What the end says, or the shim, or else what was found in the log.
fn output_info(stored: &StoredTask, now: Option<&Now>, seen: Option<OutputInfo>) -> OutputInfo {
    let reported = stored.doc.end.as_ref().map(|end| &end.output).or_else(|| now.map(|now| &now.output));
    reported.cloned().or(seen).unwrap_or_default()
}

fn clocks_info(stored: &StoredTask, state: Option<&State>, now: Option<&Now>) -> ClocksInfo {
    use belay_protocol::life::ClockName;
    let clocks = &stored.doc.clocks;
    let clock = |name: ClockName, limit_ms: Option<u64>| {
        let running = now.and_then(|now| now.clocks.iter().find(|(clock, _)| *clock == name));
        limit_ms.map(|limit_ms| ClockInfo { limit_ms, remaining_ms: running.map(|(_, left)| *left) })
    };
    // A stop can have a grace period of its own.
    let grace_ms = match state {
        Some(State::Stopping(stopping)) => stopping.grace_ms,
        _ => clocks.grace_ms,
    };
    ClocksInfo {
        timeout: clock(ClockName::Timeout, clocks.timeout_ms),
        ttl: clock(ClockName::Ttl, clocks.ttl_ms),
        silence: clock(ClockName::Silence, clocks.silence_ms),
        stall: clock(ClockName::Stall, stored.doc.stall().map(|stall| stall.after_ms)),
        retry: clock(ClockName::Retry, (clocks.retries > 0).then_some(clocks.retry_delay_ms)),
        grace: clock(ClockName::Grace, Some(grace_ms)).filter(|grace| grace.remaining_ms.is_some()),
    }
}

fn stopping_info(state: &State) -> Option<StoppingInfo> {
    let State::Stopping(stopping) = state else { return None };
    let (actor, reason) = match &stopping.cause {
        Cause::Asked(order) => (order.actor.clone(), order.reason.clone()),
        Cause::Clock { clock, limit_ms, reason } => {
            let limit = format!("limit {limit_ms} ms");
            let why = reason.as_ref().map_or_else(|| limit.clone(), |reason| format!("{limit}: {reason}"));
            (format!("clock:{}", clock.name()), Some(why))
        }
        Cause::Budget { budget, limit, used } => {
            (format!("budget:{}", budget.name()), Some(format!("used {used}, limit {limit}")))
        }
    };
    Some(StoppingInfo { level: stopping.level.to_wire(), actor, reason })
}

/// A command as a person would type it: quoted where a shell needs it.
pub(crate) fn typed(argv: &[belay_protocol::Bytes]) -> String {
    let quote = |word: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c);
        if !word.is_empty() && word.chars().all(plain) {
            word.to_owned()
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    };
    argv.iter().map(|word| quote(&word.to_text_lossy())).collect::<Vec<_>>().join(" ")
}
