//! What the shim's core makes of looking at a task: told once, taken back when it gets on, or the end of it.

use belay_model::{Evidence, Exit, Level};
use belay_protocol::life::{ClockName, ExitStatus, OutputInfo, TaskEnd};
use belay_protocol::shim::{FromShim, LifeEvent, Start, ToShim};
use belay_protocol::task::{OnStall, ProcessInfo, StallParams};

use super::super::{Action, Core, Input, Look, Strike};
use super::{LEADER, at, core, end_of, say, start};

fn look(core: &mut Core, ms: u64, output_bytes: u64, cpu_ms: u64) -> Vec<Action> {
    let evidence = Evidence { output_bytes, cpu_ms };
    let processes = vec![ProcessInfo {
        pid: 7,
        ppid: 2,
        state: "S".to_owned(),
        command: "true".to_owned(),
        rss_bytes: 1,
        cpu_ms,
    }];
    core.handle(at(ms), Input::Looked(Look { evidence, processes, more: 0 }))
}

fn told(actions: &[Action]) -> &LifeEvent {
    match actions {
        [Action::Send(FromShim::Life(item))] => &item.event,
        other => panic!("no life: {other:?}"),
    }
}

fn watched(policy: OnStall) -> Box<Start> {
    let mut start = start(false);
    start.clocks.timeout_ms = None;
    start.clocks.stall = Some(StallParams { after_ms: 1_000, policy });
    start
}

/// A task that has begun at 0 and was looked at once.
fn begun(start: Box<Start>) -> Core {
    let mut core = core();
    say(&mut core, 0, ToShim::Start(start));
    let actions = core.handle(at(0), Input::Spawned(Ok(LEADER)));
    assert!(matches!(actions.as_slice(), [Action::Send(_), Action::Look]), "{actions:?}");
    assert!(look(&mut core, 0, 0, 500).is_empty());
    core
}

fn rings(core: &mut Core, ms: u64) {
    assert_eq!(core.next_deadline(), Some(ms));
    let actions = core.handle(at(ms), Input::Tick);
    assert!(matches!(actions.as_slice(), [Action::Look]), "{actions:?}");
}

// proves R7
#[test]
fn a_task_is_looked_at_and_its_stall_is_told_once_until_it_gets_on() {
    let mut core = begun(watched(OnStall::Tell));
    rings(&mut core, 1_000);
    assert!(look(&mut core, 1_000, 0, 520).is_empty(), "work is progress");
    rings(&mut core, 2_000);
    assert!(look(&mut core, 2_000, 3, 520).is_empty(), "a byte is progress");
    rings(&mut core, 3_000);
    let actions = look(&mut core, 3_000, 3, 525);
    let LifeEvent::Stalled { evidence } = told(&actions) else { panic!("{actions:?}") };
    assert_eq!((evidence.silent_ms, evidence.cpu_ms, evidence.output_bytes), (1_000, 5, 3));
    assert_eq!(evidence.processes.iter().map(|one| one.pid).collect::<Vec<_>>(), [7]);
    assert!(core.state().unwrap().is_stalled() && core.minds_output());
    rings(&mut core, 4_000);
    assert!(look(&mut core, 4_000, 3, 525).is_empty(), "it is known already");
    assert_eq!(told(&core.handle(at(4_500), Input::Output)), &LifeEvent::Recovered);
    assert!(!core.minds_output());
    rings(&mut core, 5_500);
    assert!(look(&mut core, 5_500, 9, 525).is_empty());
    rings(&mut core, 6_500);
    assert!(matches!(told(&look(&mut core, 6_500, 9, 525)), LifeEvent::Stalled { .. }));
    assert_eq!(told(&say(&mut core, 6_600, ToShim::Excuse { on: true })), &LifeEvent::Recovered);
}

// proves R7
#[test]
fn a_task_that_waits_for_another_is_excused_and_begins_anew_after_that() {
    let mut core = begun(watched(OnStall::Stop));
    assert!(say(&mut core, 10, ToShim::Excuse { on: true }).is_empty());
    for ms in [1_000, 2_000] {
        rings(&mut core, ms);
        assert!(look(&mut core, ms, 0, 500).is_empty());
    }
    let actions = say(&mut core, 2_900, ToShim::Excuse { on: false });
    assert!(matches!(actions.as_slice(), [Action::Look]), "{actions:?}");
    assert!(look(&mut core, 2_900, 0, 500).is_empty());
    assert!(say(&mut core, 2_950, ToShim::Excuse { on: false }).is_empty(), "said twice, it is said once");
    rings(&mut core, 3_900);
    let actions = look(&mut core, 3_900, 0, 500);
    let [Action::Signal(_), Action::Send(FromShim::Life(item))] = actions.as_slice() else {
        panic!("{actions:?}")
    };
    let LifeEvent::Stalled { evidence } = &item.event else { panic!("{item:?}") };
    assert_eq!(evidence.silent_ms, 1_000, "not while it was excused");
    core.handle(
        at(3_901),
        Input::Signalled(Strike {
            level: Level::Terminate,
            processes: 1,
            refused: 0,
            leader: true,
            others: false,
        }),
    );
    core.handle(at(3_902), Input::LeaderExited(Exit::Signal { signal: 15, core_dumped: false }));
    core.handle(at(3_902), Input::TreeEmpty);
    let actions = core.handle(at(3_902), Input::Finished { output: OutputInfo::default(), capture: None });
    let record = end_of(&actions);
    let words = "nothing written in 1000 ms and 0 ms of processor time used: 7 (S) true";
    let exit = Some(ExitStatus::Signal { number: 15, core_dumped: false });
    let reason = Some(words.to_owned());
    let end = TaskEnd::TimedOut { clock: ClockName::Stall, limit_ms: 1_000, reason: reason.clone(), exit };
    assert_eq!(record.end, end);
    let receipt = record.receipt.as_ref().unwrap();
    assert_eq!((receipt.actor.as_str(), &receipt.reason), ("clock:stall", &reason));
}
