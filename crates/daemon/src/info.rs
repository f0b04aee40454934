//! How a task looks to others: from its entry in the journal and what is known of it now. Pure.

use belay_model::{Cause, Leader, State};
use belay_protocol::Timestamp;
use belay_protocol::lane::LaneSeat;
use belay_protocol::life::{ExitStatus, OutputInfo};
use belay_protocol::shim::Now;
use belay_protocol::task::{
    ClockInfo, ClocksInfo, Health, HeldBy, LeaderInfo, ProcessInfo, Status, StoppingInfo, TaskInfo,
};
use belay_record::convert::{Wire as _, outcome_from_record};

use crate::doc::Entry;

/// What only a live task has.
#[derive(Clone, Debug, Default)]
pub(crate) struct Live<'a> {
    pub state: Option<&'a State>,
    pub now: Option<&'a Now>,
    pub processes: Option<&'a Vec<ProcessInfo>>,
    /// The sums of its output, if somebody has looked.
    pub output: Option<OutputInfo>,
    /// Its place among those who wait for its lane.
    pub place: Option<u64>,
}

pub(crate) fn task_info(entry: &Entry, live: Live<'_>) -> TaskInfo {
    let doc = &entry.doc;
    let end = doc.end.as_ref();
    // What has ended does not stall, whoever ended it.
    let stall = doc.stalled.clone().filter(|_| end.is_none());
    TaskInfo {
        id: entry.id.clone(),
        kind: doc.kind,
        name: entry.name.clone(),
        status: doc.status,
        health: if stall.is_some() { Health::Stalled } else { Health::Ok },
        stall,
        detached: live.state.map_or(doc.detached || doc.detached_by.is_some(), State::detached),
        detached_by: doc.detached_by.clone(),
        command: doc.command.clone(),
        line: doc.line.clone(),
        argv: doc.argv.clone(),
        cwd: doc.cwd.clone(),
        session: entry.session.clone(),
        parent: entry.parent.clone(),
        lineage: doc.lineage.clone(),
        lane: doc.lane.as_ref().map(|seat| LaneSeat {
            name: seat.name.clone(),
            generation: seat.generation,
            place: live.place,
        }),
        keep: doc.keep,
        created_at: Timestamp(entry.created_ms),
        started_at: entry.started_ms().map(Timestamp),
        ended_at: end.map(|end| Timestamp(end.ended_at_ms)),
        pid: doc.leader.filter(|_| doc.status != Status::Resting).map(|leader| leader.pid),
        leader: leader_info(entry, live.state),
        attempt: doc.attempt,
        pty: live.now.and_then(|now| now.pty).or(doc.pty),
        processes: live.processes.cloned(),
        output: output_info(entry, live.now, live.output),
        clocks: clocks_info(entry, live.state, live.now),
        budgets: doc.budgets,
        stopping: live.state.and_then(stopping_info),
        outcome: end.map(outcome_from_record),
        held_by: doc
            .shim
            .as_ref()
            .filter(|_| end.is_none())
            .map(|shim| HeldBy { shim_pid: shim.process.pid, cgroup: shim.cgroup.clone() }),
    }
}

fn leader_info(entry: &Entry, state: Option<&State>) -> Option<LeaderInfo> {
    // Between two attempts there is none.
    let leader = entry.doc.leader.filter(|_| entry.doc.status != Status::Resting)?;
    let seen = state.and_then(State::leader).and_then(Leader::exit).map(|exit| exit.to_wire());
    let (exit_code, signal) = match seen.or(entry.doc.leader_exit) {
        Some(ExitStatus::Code(code)) => (Some(code), None),
        Some(ExitStatus::Signal { number, .. }) => (None, Some(number)),
        None => (None, None),
    };
    Some(LeaderInfo { pid: leader.pid, exit_code, signal })
}

/// What the end says, or the shim itself, or else what was found where the output lies.
fn output_info(entry: &Entry, now: Option<&Now>, seen: Option<OutputInfo>) -> OutputInfo {
    let told = entry.doc.end.as_ref().map(|end| &end.output).or_else(|| now.map(|now| &now.output));
    told.cloned().or(seen).unwrap_or_default()
}

fn clocks_info(entry: &Entry, state: Option<&State>, now: Option<&Now>) -> ClocksInfo {
    use belay_protocol::life::ClockName;
    let clocks = &entry.doc.clocks;
    let clock = |name: ClockName, limit_ms: Option<u64>| {
        let running = now.and_then(|now| now.clocks.iter().find(|(clock, _)| *clock == name));
        limit_ms.map(|limit_ms| ClockInfo { limit_ms, remaining_ms: running.map(|(_, left)| *left) })
    };
    // A stop may come with a grace of its own.
    let grace_ms = match state {
        Some(State::Stopping(stopping)) => stopping.grace_ms,
        _ => clocks.grace_ms,
    };
    ClocksInfo {
        timeout: clock(ClockName::Timeout, clocks.timeout_ms),
        ttl: clock(ClockName::Ttl, clocks.ttl_ms),
        silence: clock(ClockName::Silence, clocks.silence_ms),
        stall: clock(ClockName::Stall, clocks.stall.map(|stall| stall.after_ms)),
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

/// A command as one would type it: quoted where a shell would need it.
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
