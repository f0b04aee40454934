//! Every way a task can end: its exit code, and the sentence beside it.

use belay_protocol::life::{CaptureFault, ClockName, StartStage, StopLevel};
use belay_protocol::task::{Outcome, SpawnError, TaskInfo, TaskStatus};

use super::samples::{cancelled, died, ended, exited, over_budget, receipt, running, stop_failed, timed_out};
use crate::outcome::{exit_code, sentence, short};

fn spawn(what: StartStage, errno: i32, message: &str) -> TaskInfo {
    let error = SpawnError { what, errno: Some(errno), message: message.into() };
    ended(TaskStatus::Failed, Outcome::Spawn { error, capture: None })
}

fn all() -> Vec<TaskInfo> {
    let lost = Outcome::Lost { reason: "its shim was killed".into(), survivors: Vec::new(), capture: None };
    let unasked = Outcome::Cancelled {
        actor: "ada".into(),
        reason: None,
        level: StopLevel::Terminate,
        receipt: receipt(),
        exit_code: None,
        signal: None,
        capture: None,
    };
    vec![
        running(),
        exited(0),
        exited(2),
        exited(256 + 7),
        died(11),
        cancelled(),
        ended(TaskStatus::Cancelled, unasked),
        ended(TaskStatus::TimedOut, timed_out(ClockName::Silence, 300_000, Some(15))),
        ended(TaskStatus::Failed, over_budget(10, 11)),
        spawn(StartStage::Program, 2, "frobnicate: no such program"),
        spawn(StartStage::Program, 13, "./notes.txt: permission denied"),
        spawn(StartStage::Cwd, 2, "/gone: no such directory"),
        ended(TaskStatus::Lost, lost),
        ended(TaskStatus::StopFailed, stop_failed()),
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
    let capture = Some(CaptureFault { message: "no space left".into(), lost_bytes: 9 });
    let faulty = ended(TaskStatus::Completed, Outcome::Exited { exit_code: 0, capture });
    assert!(explanation(&faulty, false).unwrap().contains("no space left"));
}
