//! Every way a task can end: its exit code, and the sentence beside it.

use belay_protocol::life::{CaptureFault, ClockName};
use belay_protocol::task::{BudgetInfo, ErrorInfo, OutcomeInfo, Status, TaskInfo};

use super::samples::{cancelled, died, ended, exited, outcome, running, survivor};
use crate::outcome::{exit_code, sentence, short};

fn spawn(what: &str, errno: i32, message: &str) -> TaskInfo {
    let error = ErrorInfo { what: what.into(), errno: Some(errno), message: message.into() };
    ended(Status::Failed, OutcomeInfo { error: Some(error), ..outcome("spawn") })
}

fn all() -> Vec<TaskInfo> {
    let limit = OutcomeInfo {
        clock: Some(ClockName::Silence),
        limit_ms: Some(300_000),
        signal: Some(15),
        ..outcome("timed_out")
    };
    let budget = BudgetInfo { name: "output".into(), limit: 10, used: 11 };
    let lost = ErrorInfo { what: "lost".into(), errno: None, message: "its shim was killed".into() };
    let unasked = OutcomeInfo { actor: Some("ada".into()), ..outcome("cancelled") };
    vec![
        running(),
        exited(0),
        exited(2),
        exited(256 + 7),
        died(11),
        cancelled(),
        ended(Status::Cancelled, unasked),
        ended(Status::TimedOut, limit),
        ended(Status::Failed, OutcomeInfo { budget: Some(budget), ..outcome("budget") }),
        spawn("program", 2, "frobnicate: no such program"),
        spawn("program", 13, "./notes.txt: permission denied"),
        spawn("cwd", 2, "/gone: no such directory"),
        ended(Status::Lost, OutcomeInfo { error: Some(lost), ..outcome("lost") }),
        ended(Status::StopFailed, OutcomeInfo { survivors: vec![survivor()], ..outcome("stop_failed") }),
    ]
}

#[test]
fn every_end_has_its_code_and_its_words() {
    let lines: Vec<String> = all()
        .iter()
        .map(|task| format!("{:>3}  {:<18}  {}", exit_code(task), short(task), sentence(task)))
        .collect();
    insta::assert_snapshot!(lines.join("\n"), @r#"
      1  running             running
      0  completed           completed: exit 0
      2  failed (exit 2)     failed: exit 2
      7  failed (exit 263)   failed: exit 263
    139  failed (SIGSEGV)    failed: died of SIGSEGV, core dumped
    143  cancelled           cancelled by ada: port is taken (died of SIGTERM)
    130  cancelled           cancelled by ada
    124  timed out           timed out: the silence limit of 5m passed
      1  failed (budget)     failed: it wrote 11 B, and may write 10 B
    127  not started         could not be started: program: frobnicate: no such program
    126  not started         could not be started: program: ./notes.txt: permission denied
    126  not started         could not be started: cwd: /gone: no such directory
      1  lost                lost: its shim was killed
      3  stop failed         stop failed: 1 process survives: 4712 (uid 0) sudo sleep 1000
    "#);
}

#[test]
fn only_what_is_out_of_the_ordinary_is_explained() {
    use crate::live::explanation;
    assert_eq!(explanation(&exited(0), false), None);
    assert_eq!(explanation(&exited(2), false), None);
    assert_eq!(explanation(&died(11), false), None);
    assert_eq!(explanation(&cancelled(), true), None);
    assert!(explanation(&cancelled(), false).is_some());
    let mut faulty = exited(0);
    let fault = CaptureFault { message: "no space left".into(), lost_bytes: 9 };
    faulty.outcome.as_mut().unwrap().capture = Some(fault);
    assert!(explanation(&faulty, false).unwrap().contains("no space left"));
}
