//! Tasks and answers to render.

use belay_protocol::Labels;
use belay_protocol::Timestamp;
use belay_protocol::daemon::ClientInfo;
use belay_protocol::life::{
    ClockName, OutputInfo, SignalSent, StopCause, StopLevel, StopOrderInfo, StopReceipt, SurvivorInfo,
};
use belay_protocol::task::{
    BudgetInfo, BudgetName, Budgets, ClockInfo, ClocksInfo, HeldBy, LeaderInfo, Outcome, ProcessInfo,
    ShellInfo, TaskHealth, TaskInfo, TaskKind, TaskSpecInfo, TaskStatus,
};

/// 2026-01-31T12:00:00Z
pub(super) const NOW: Timestamp = Timestamp(1_769_860_800_000);

pub(super) const fn before(ms: i64) -> Timestamp {
    Timestamp(NOW.0 - ms)
}

pub(super) fn running() -> TaskInfo {
    TaskInfo {
        id: "sh-4fq7k2m9x3vd".into(),
        kind: TaskKind::Shell,
        name: None,
        labels: Labels::new(),
        status: TaskStatus::Running,
        health: TaskHealth::Ok,
        stall: None,
        detached: true,
        detached_by: None,
        command: "npm run dev -- --port 3000".into(),
        spec: TaskSpecInfo::Shell(ShellInfo {
            argv: ["npm", "run", "dev", "--", "--port", "3000"].map(Into::into).to_vec(),
            line: None,
            pty: None,
        }),
        cwd: "/home/ada/site".into(),
        session: "user".into(),
        parent: None,
        started_by: "user:ada via cli".into(),
        client: Some(ClientInfo::new("belay", "0.1.0")),
        lineage: Vec::new(),
        keep: false,
        lane: None,
        created_at: before(192_000),
        started_at: Some(before(192_000)),
        ended_at: None,
        pid: Some(4711),
        leader: Some(LeaderInfo { pid: 4711, exit_code: None, signal: None }),
        attempt: None,
        processes: None,
        output: OutputInfo {
            bytes: 1536,
            gaps: Vec::new(),
            first: 0,
            on_disk: true,
            last_at: Some(before(3_000)),
        },
        clocks: ClocksInfo::default(),
        budgets: Budgets::default(),
        stopping: None,
        outcome: None,
        last_event: 0,
        held_by: None,
    }
}

pub(super) fn ended(status: TaskStatus, outcome: Outcome) -> TaskInfo {
    TaskInfo {
        id: "sh-9arw51tz8cpe".into(),
        name: Some("build".into()),
        status,
        pid: None,
        ended_at: Some(before(60_000)),
        outcome: Some(outcome),
        ..running()
    }
}

pub(super) fn exited(code: i32) -> TaskInfo {
    let status = if code == 0 { TaskStatus::Completed } else { TaskStatus::Failed };
    ended(status, Outcome::Exited { exit_code: code, capture: None })
}

pub(super) fn died(signal: i32) -> TaskInfo {
    ended(TaskStatus::Failed, Outcome::Signaled { signal, core_dumped: true, capture: None })
}

pub(super) fn receipt() -> StopReceipt {
    StopReceipt {
        level: StopLevel::Terminate,
        actor: "ada".into(),
        reason: Some("port is taken".into()),
        signals: vec![SignalSent { signal: "SIGTERM".into(), processes: 3, refused: 0, at: before(60_012) }],
        requested_at: before(60_012),
        empty_at: Some(before(60_000)),
        took_ms: 12,
        survivors: Vec::new(),
    }
}

pub(super) fn survivor() -> SurvivorInfo {
    SurvivorInfo { pid: 4712, start_ticks: 99, uid: 0, command: "sudo sleep 1000".into() }
}

pub(super) fn failed_receipt() -> StopReceipt {
    let kill = SignalSent { signal: "SIGKILL".into(), processes: 0, refused: 1, at: before(60_000) };
    let mut signals = receipt().signals;
    signals.push(kill);
    StopReceipt {
        level: StopLevel::Kill,
        signals,
        empty_at: None,
        took_ms: 15_300,
        survivors: vec![survivor()],
        ..receipt()
    }
}

pub(super) fn cancelled() -> TaskInfo {
    let end = Outcome::Cancelled {
        actor: "ada".into(),
        reason: Some("port is taken".into()),
        level: StopLevel::Terminate,
        receipt: receipt(),
        exit_code: None,
        signal: Some(15),
        capture: None,
    };
    ended(TaskStatus::Cancelled, end)
}

pub(super) fn stop_failed() -> Outcome {
    let order = StopOrderInfo {
        level: StopLevel::Terminate,
        grace_ms: None,
        actor: "ada".into(),
        reason: Some("port is taken".into()),
    };
    Outcome::StopFailed {
        survivors: vec![survivor()],
        receipt: failed_receipt(),
        cause: StopCause::Asked { order },
        exit_code: None,
        signal: None,
        capture: None,
    }
}

pub(super) fn over_budget(limit: u64, used: u64) -> Outcome {
    Outcome::Budget {
        budget: BudgetInfo { name: BudgetName::Output, limit, used },
        receipt: receipt(),
        exit_code: None,
        signal: None,
        capture: None,
    }
}

pub(super) fn timed_out(clock: ClockName, limit_ms: u64, signal: Option<i32>) -> Outcome {
    let receipt = receipt();
    Outcome::TimedOut { clock, limit_ms, receipt, exit_code: None, signal, reason: None, capture: None }
}

/// A task with something in every field.
pub(super) fn crowded() -> TaskInfo {
    let process = |pid, ppid, command: &str| ProcessInfo {
        pid,
        ppid,
        state: "S".into(),
        command: command.into(),
        rss_bytes: 52_000_000,
        cpu_ms: 4_210,
    };
    TaskInfo {
        name: Some("web\x1b[2J".into()),
        parent: Some("sh-0000000000aa".into()),
        leader: Some(LeaderInfo { pid: 4711, exit_code: Some(0), signal: None }),
        processes: Some(vec![process(4711, 4700, "npm run dev"), process(4712, 4711, "node\nserver.js")]),
        output: OutputInfo {
            bytes: 900_000_000,
            gaps: vec![[100, 4196]],
            first: 0,
            on_disk: true,
            last_at: Some(before(3_000)),
        },
        clocks: ClocksInfo {
            timeout: Some(ClockInfo { limit_ms: 600_000, remaining_ms: Some(408_000) }),
            silence: Some(ClockInfo { limit_ms: 60_000, remaining_ms: None }),
            ..ClocksInfo::default()
        },
        budgets: Budgets {
            output_bytes: Some(100 << 20),
            memory_bytes: Some(2_000_000_000),
            processes: Some(50),
        },
        held_by: Some(HeldBy { shim_pid: 4700, cgroup: Some("/sys/fs/cgroup/belay/sh-4f".into()) }),
        ..running()
    }
}
