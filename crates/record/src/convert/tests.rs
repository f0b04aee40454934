//! The outcomes that clients see, kind by kind, as JSON that scripts rely on.

use belay_protocol::life::{CaptureFault, OutputInfo, SignalSent};
use belay_protocol::task::OutcomeKind;
use serde_json::{Value, json};

use super::*;

fn order() -> StopOrderInfo {
    StopOrderInfo {
        level: StopLevel::Interrupt,
        grace_ms: Some(10),
        actor: "user:ada".to_owned(),
        reason: Some("too slow".to_owned()),
    }
}

fn survivor() -> SurvivorInfo {
    SurvivorInfo { pid: 7, start_ticks: 8, uid: 0, command: "sleep".to_owned() }
}

fn receipt() -> StopReceipt {
    StopReceipt {
        level: StopLevel::Kill,
        actor: "user:ada".to_owned(),
        reason: None,
        signals: vec![SignalSent {
            signal: "SIGKILL".to_owned(),
            processes: 1,
            refused: 0,
            at: Timestamp(2_000),
        }],
        requested_at: Timestamp(1_000),
        empty_at: Some(Timestamp(3_000)),
        took_ms: 2_000,
        survivors: Vec::new(),
    }
}

fn record(end: TaskEnd, receipt: Option<StopReceipt>) -> EndRecord {
    EndRecord { end, ended_at_ms: 3_000, receipt, output: OutputInfo::default(), capture: None }
}

/// Every kind of end that the shim records, with a receipt where there is one, and what clients see of it.
fn ends() -> Vec<(EndRecord, Value)> {
    let code = Some(ExitStatus::Code(3));
    let signal = Some(ExitStatus::Signal { number: 9, core_dumped: true });
    let shown = json!(receipt());
    let error = StartError { stage: StartStage::Program, errno: 0, message: "no such program".to_owned() };
    let clock = TaskEnd::TimedOut { clock: ClockName::Silence, limit_ms: 500, reason: None, exit: signal };
    let stall = TaskEnd::TimedOut {
        clock: ClockName::Stall,
        limit_ms: 500,
        reason: Some("no progress".to_owned()),
        exit: None,
    };
    let budget = TaskEnd::Budget { budget: BudgetName::Output, limit: 10, used: 11, exit: None };
    let cause = StopCause::Asked { order: order() };
    let failed = TaskEnd::StopFailed { cause, survivors: vec![survivor()], exit: code };
    let lost = TaskEnd::Lost { known: "its shim was killed".to_owned(), survivors: vec![survivor()] };
    vec![
        (
            record(TaskEnd::Exited { exit: ExitStatus::Code(3) }, None),
            json!({ "kind": "exited", "exit_code": 3 }),
        ),
        (
            record(TaskEnd::Exited { exit: ExitStatus::Signal { number: 11, core_dumped: true } }, None),
            json!({ "kind": "signaled", "signal": 11, "core_dumped": true }),
        ),
        (
            record(TaskEnd::Spawn { error }, None),
            json!({
                "kind": "spawn",
                "error": { "what": "program", "errno": null, "message": "no such program" },
            }),
        ),
        (
            record(TaskEnd::Cancelled { order: order(), exit: signal }, Some(receipt())),
            json!({
                "kind": "cancelled", "actor": "user:ada", "reason": "too slow", "level": "interrupt",
                "receipt": shown, "signal": 9,
            }),
        ),
        (
            record(clock, Some(receipt())),
            json!({
                "kind": "timed_out", "clock": "silence", "limit_ms": 500, "receipt": shown, "signal": 9,
            }),
        ),
        (
            record(stall, Some(receipt())),
            json!({
                "kind": "timed_out", "clock": "stall", "limit_ms": 500, "receipt": shown,
                "reason": "no progress",
            }),
        ),
        (
            record(budget, Some(receipt())),
            json!({
                "kind": "budget", "budget": { "name": "output", "limit": 10, "used": 11 },
                "receipt": shown,
            }),
        ),
        (
            record(failed, Some(receipt())),
            json!({
                "kind": "stop_failed", "survivors": [survivor()], "receipt": shown,
                "cause": "asked", "order": order(), "exit_code": 3,
            }),
        ),
        (
            record(lost, None),
            json!({ "kind": "lost", "reason": "its shim was killed", "survivors": [survivor()] }),
        ),
    ]
}

#[test]
fn outcome_has_exact_fields_of_its_kind() {
    let mut kinds = Vec::new();
    for (record, expected) in ends() {
        let outcome = outcome_from_record(&record);
        assert_eq!(json!(outcome), expected);
        assert_eq!(expected["kind"], outcome.kind().name());
        assert_eq!(serde_json::from_value::<ClientOutcome>(expected).unwrap(), outcome);
        assert_eq!(outcome.receipt(), record.receipt.as_ref());
        kinds.push(outcome.kind());
    }
    kinds.dedup();
    // The ends of agents are no ends that a shim records.
    let of_shims: Vec<OutcomeKind> =
        OutcomeKind::ALL.iter().copied().filter(|kind| !kind.is_of_agent()).collect();
    assert_eq!(kinds, of_shims);
}

#[test]
fn capture_fault_is_on_every_kind() {
    let fault = CaptureFault { message: "no space left".to_owned(), lost_bytes: 9 };
    for (record, mut expected) in ends() {
        let outcome = outcome_from_record(&EndRecord { capture: Some(fault.clone()), ..record });
        expected["capture"] = json!(fault);
        assert_eq!(json!(outcome), expected);
        assert_eq!(outcome.capture(), Some(&fault));
    }
}

#[test]
fn stopped_task_without_receipt_gets_bare_one() {
    for (with, _) in ends().into_iter().filter(|(record, _)| record.receipt.is_some()) {
        let outcome = outcome_from_record(&EndRecord { receipt: None, ..with });
        let bare = outcome.receipt().unwrap();
        assert_eq!((bare.signals.as_slice(), bare.took_ms), (&[][..], 0));
        assert_eq!(bare.survivors, outcome.survivors());
        assert_eq!(bare.empty_at.is_some(), outcome.kind() != OutcomeKind::StopFailed);
        assert!(!bare.actor.is_empty());
    }
}
