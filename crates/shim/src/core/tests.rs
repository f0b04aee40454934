//! What the shim's core does about a start that it keeps: until its turn comes, or for its next attempt. No process is
//! started here.

mod watch;

use belay_model::{Event, Evidence, Exit, Outcome, State, step};
use belay_protocol::life::{ClockName, ExitStatus, OutputInfo, StopLevel, StopOrderInfo, TaskEnd};
use belay_protocol::shim::{Clocks, FromShim, Hello, LifeEvent, LifeItem, ProcessId, Start, ToShim};
use belay_protocol::task::{OnStall, StallParams, TerminalSize};
use belay_protocol::time::Timestamp;
use belay_record::convert::{Wire as _, event_from_wire, policy_from_wire};
use proptest::prelude::*;

use super::{Action, Core, Identity, Input, Look, Moment, Strike};

const LEADER: ProcessId = ProcessId { pid: 7, start_ticks: 70 };

fn core() -> Core {
    let process = ProcessId { pid: 2, start_ticks: 3 };
    Core::new(Identity { name: "shim".to_owned(), version: "test".to_owned(), process, cgroup: None })
}

fn start(held: bool) -> Box<Start> {
    retried(held, 0)
}

fn retried(held: bool, retries: u32) -> Box<Start> {
    Box::new(Start {
        task: "t".to_owned(),
        dir: "/nowhere/t".into(),
        argv: vec!["true".into()],
        is_shell: false,
        env: vec!["SECRET=1".into()],
        cwd: "/".into(),
        umask: None,
        rlimits: Vec::new(),
        stdin: false,
        stdin_from: None,
        merge: false,
        pty: Some(TerminalSize::USUAL),
        detached: false,
        clocks: Clocks {
            timeout_ms: Some(100),
            ttl_ms: Some(900),
            grace_ms: 50,
            kill_ms: 50,
            retries,
            retry_delay_ms: 40,
            ..Clocks::default()
        },
        output_limit_bytes: 1 << 20,
        budgets: belay_protocol::task::Budgets::default(),
        memory_bytes: 1 << 20,
        hurry: false,
        held,
    })
}

const fn at(ms: u64) -> Moment {
    Moment { wall_ms: 1_000_000 + ms.cast_signed(), mono_ms: ms }
}

fn say(core: &mut Core, ms: u64, message: ToShim) -> Vec<Action> {
    core.handle(at(ms), Input::Daemon(message))
}

fn admit(task: &str) -> ToShim {
    ToShim::Admit { task: task.to_owned() }
}

fn order(actor: &str) -> StopOrderInfo {
    StopOrderInfo { level: StopLevel::Terminate, grace_ms: None, actor: actor.to_owned(), reason: None }
}

fn hello(actions: &[Action]) -> &Hello {
    match actions.first() {
        Some(Action::Send(FromShim::Hello(hello))) => hello,
        other => panic!("no hello: {other:?}"),
    }
}

fn spawned(actions: Vec<Action>) -> Vec<Start> {
    let starts = actions.into_iter().map(|action| match action {
        Action::Spawn(start) => *start,
        other => panic!("more than a spawn: {other:?}"),
    });
    starts.collect()
}

// proves S7
#[test]
fn a_held_start_is_spawned_when_it_is_admitted_and_once() {
    let mut core = core();
    assert!(say(&mut core, 0, ToShim::Start(start(true))).is_empty());
    assert_eq!(core.state(), Some(&State::Queued { detached: false }));
    assert_eq!(core.next_deadline(), None, "no clock runs");
    assert!(say(&mut core, 1, admit("another")).is_empty());
    core.set_pty(TerminalSize { rows: 1, cols: 2 });
    let starts = spawned(say(&mut core, 2, admit("t")));
    let [spawn] = starts.as_slice() else { panic!("{starts:?}") };
    assert_eq!(*spawn, Start { pty: Some(TerminalSize { rows: 1, cols: 2 }), ..*start(true) });
    assert!(say(&mut core, 3, admit("t")).is_empty());
    core.handle(at(4), Input::Spawned(Ok(LEADER)));
    assert!(say(&mut core, 5, admit("t")).is_empty());
    assert_eq!(core.next_deadline(), Some(104), "from its spawn, not from its start");
}

// proves S7
#[test]
fn a_shim_that_nobody_talks_to_keeps_what_it_holds_and_says_so() {
    let mut core = core();
    say(&mut core, 0, ToShim::Start(start(true)));
    assert!(core.handle(at(1), Input::DaemonGone).is_empty());
    assert!(core.handle(at(9_000), Input::Tick).is_empty());
    let greeted = say(&mut core, 9_001, ToShim::Hello { protocol: 1, seen: 0 });
    let found = hello(&greeted);
    assert_eq!((found.task.as_deref(), found.queued), (Some("t"), true));
    assert_eq!(spawned(say(&mut core, 9_002, admit("t"))).len(), 1);
    core.handle(at(9_003), Input::Spawned(Ok(LEADER)));
    let greeted = say(&mut core, 9_004, ToShim::Hello { protocol: 1, seen: 0 });
    assert!(!hello(&greeted).queued);
}

// proves K5
#[test]
fn a_held_start_that_is_stopped_never_begins() {
    let mut core = core();
    say(&mut core, 0, ToShim::Start(start(true)));
    let actions = say(&mut core, 5, ToShim::Stop { order: order("somebody") });
    assert!(matches!(actions.as_slice(), [Action::Finish]), "{actions:?}");
    let actions = core.handle(at(5), Input::Finished { output: OutputInfo::default(), capture: None });
    let [Action::Send(FromShim::Life(item))] = actions.as_slice() else { panic!("{actions:?}") };
    assert_eq!((item.number, &item.event), (1, &LifeEvent::Stop { order: order("somebody") }));
    let record = item.end.as_ref().unwrap();
    assert_eq!(record.end, TaskEnd::Cancelled { order: order("somebody"), exit: None });
    let receipt = record.receipt.as_ref().unwrap();
    assert_eq!((receipt.level, receipt.actor.as_str()), (StopLevel::Terminate, "somebody"));
    assert!(receipt.signals.is_empty() && receipt.survivors.is_empty());
    assert_eq!((receipt.requested_at, receipt.empty_at), (Timestamp(1_000_005), Some(Timestamp(1_000_005))));
    assert!(say(&mut core, 6, admit("t")).is_empty());
    // Nobody was there to hear it: it is in its file, although there never was a process.
    let actions = core.handle(at(7), Input::DaemonGone);
    let [Action::WriteEndFile(dir, end)] = actions.as_slice() else { panic!("{actions:?}") };
    assert_eq!((dir.to_str(), end.task.as_str(), end.life.len()), (Some("/nowhere/t"), "t", 1));
}

// proves F4
#[test]
fn a_held_start_that_is_detached_begins_without_the_limit_of_who_waited() {
    let mut core = core();
    say(&mut core, 0, ToShim::Start(start(true)));
    let actions = say(&mut core, 1, ToShim::Detach { by: "user:me".to_owned() });
    let [Action::Send(FromShim::Life(item))] = actions.as_slice() else { panic!("{actions:?}") };
    assert_eq!((item.number, &item.event), (1, &LifeEvent::Detach { by: "user:me".to_owned() }));
    let starts = spawned(say(&mut core, 2, admit("t")));
    let [spawn] = starts.as_slice() else { panic!("{starts:?}") };
    assert_eq!((spawn.detached, spawn.memory_bytes, spawn.clocks.timeout_ms), (true, 0, None));
    core.handle(at(3), Input::Spawned(Ok(LEADER)));
    assert_eq!(core.next_deadline(), Some(903), "its time to live");
}

fn end_of(actions: &[Action]) -> &belay_protocol::shim::EndRecord {
    match actions.last() {
        Some(Action::Send(FromShim::Life(LifeItem { end: Some(record), .. }))) => record,
        other => panic!("no end: {other:?}"),
    }
}

fn fails(core: &mut Core, ms: u64) -> Vec<Action> {
    core.handle(at(ms), Input::LeaderExited(Exit::Code(3)));
    core.handle(at(ms), Input::TreeEmpty)
}

// proves K9
#[test]
fn a_command_that_fails_is_run_again_with_all_it_had_and_no_more_than_it_may() {
    let mut core = core();
    let starts = spawned(say(&mut core, 0, ToShim::Start(retried(false, 1))));
    core.handle(at(0), Input::Spawned(Ok(LEADER)));
    core.handle(at(5), Input::DaemonGone);
    assert!(fails(&mut core, 10).is_empty());
    assert!(core.is_resting() && !core.has_tree());
    assert_eq!(core.next_deadline(), Some(50), "its pause, and not its limit");
    assert!(core.handle(at(49), Input::Tick).is_empty());
    assert_eq!(spawned(core.handle(at(50), Input::Tick)), starts);
    core.handle(at(50), Input::Spawned(Ok(LEADER)));
    assert_eq!(core.next_deadline(), Some(100), "the limit of all attempts");
    assert!(core.task.as_ref().unwrap().start.is_none(), "no environment is kept for nothing");
    let actions = fails(&mut core, 60);
    assert!(matches!(actions.as_slice(), [Action::Finish]), "{actions:?}");
    assert_eq!(core.state(), Some(&State::Ended(Outcome::Exited(Exit::Code(3)))));
}

// proves K9, K6: a stop between two attempts is the end, with a receipt, and so is a limit
#[test]
fn between_two_attempts_there_is_nobody_to_be_stopped() {
    for by_limit in [false, true] {
        let mut core = core();
        say(&mut core, 0, ToShim::Start(retried(false, 9)));
        core.handle(at(0), Input::Spawned(Ok(LEADER)));
        fails(&mut core, 70);
        let stop = ToShim::Stop { order: order("me") };
        let what = if by_limit { Input::Tick } else { Input::Daemon(stop) };
        let actions = core.handle(at(100), what);
        assert!(matches!(actions.as_slice(), [Action::Finish]), "{actions:?}");
        assert!(core.task.as_ref().unwrap().start.is_none());
        let actions = core.handle(at(100), Input::Finished { output: OutputInfo::default(), capture: None });
        let record = end_of(&actions);
        let exit = Some(ExitStatus::Code(3));
        let (end, actor) = if by_limit {
            (
                TaskEnd::TimedOut { clock: ClockName::Timeout, limit_ms: 100, reason: None, exit },
                "clock:timeout",
            )
        } else {
            (TaskEnd::Cancelled { order: order("me"), exit }, "me")
        };
        assert_eq!(record.end, end);
        let receipt = record.receipt.as_ref().unwrap();
        assert_eq!((receipt.actor.as_str(), receipt.signals.len(), receipt.took_ms), (actor, 0, 0));
        assert_eq!(receipt.empty_at, Some(Timestamp(1_000_100)));
        assert_eq!(core.next_deadline(), None);
        assert!(core.handle(at(9_000), Input::Tick).is_empty());
    }
}

/// What may reach a shim that holds one task.
#[derive(Clone, Copy, Debug)]
enum Happens {
    Admit,
    Stop,
    Kill,
    Detach,
    Exit(i32),
    Gone,
    Hello,
    Wait(u64),
}

fn happenings() -> impl Strategy<Value = Vec<Happens>> {
    let one = prop_oneof![
        3 => Just(Happens::Admit),
        1 => Just(Happens::Stop),
        1 => Just(Happens::Kill),
        1 => Just(Happens::Detach),
        3 => (0..3i32).prop_map(Happens::Exit),
        1 => Just(Happens::Gone),
        2 => Just(Happens::Hello),
        2 => (1..200u64).prop_map(Happens::Wait),
    ];
    prop::collection::vec(one, 0..30)
}

/// The shim's loop around one process, in a few lines.
#[derive(Default)]
struct Loop {
    now_ms: u64,
    spawns: u32,
    alive: bool,
    connected: bool,
    told: Vec<LifeItem>,
    greeting: Option<(bool, Vec<LifeItem>)>,
}

impl Loop {
    fn feed(&mut self, core: &mut Core, input: Input) {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            for action in core.handle(at(self.now_ms), input) {
                inputs.extend(self.carry_out(action));
            }
        }
    }

    fn carry_out(&mut self, action: Action) -> Option<Input> {
        match action {
            Action::Send(FromShim::Hello(hello)) => self.greeting = Some((hello.queued, Vec::new())),
            Action::Send(FromShim::Life(item)) => {
                assert!(self.connected, "it speaks to nobody");
                self.greeting.iter_mut().for_each(|(_, life)| life.push(item.clone()));
                self.told.push(item);
            }
            Action::Spawn(_) => {
                self.spawns += 1;
                self.alive = true;
                return Some(Input::Spawned(Ok(LEADER)));
            }
            Action::Signal(level) => {
                let leader = self.alive;
                let processes = u64::from(leader);
                return Some(Input::Signalled(Strike {
                    level,
                    processes,
                    refused: 0,
                    leader,
                    others: false,
                }));
            }
            Action::Look => {
                let evidence = Evidence::default();
                return Some(Input::Looked(Look { evidence, processes: Vec::new(), more: 0 }));
            }
            Action::NameSurvivors => return Some(Input::Survivors(Vec::new())),
            Action::Finish => {
                return Some(Input::Finished { output: OutputInfo::default(), capture: None });
            }
            Action::WriteEndFile(..) => return Some(Input::EndFileWritten(false)),
            Action::Send(_) | Action::Recycle | Action::Exit => {}
        }
        None
    }

    fn exits(&mut self, core: &mut Core, exit: Exit) {
        if std::mem::take(&mut self.alive) {
            self.feed(core, Input::LeaderExited(exit));
            self.feed(core, Input::TreeEmpty);
        }
    }

    fn happens(&mut self, core: &mut Core, what: Happens) {
        let daemon = Input::Daemon;
        match what {
            Happens::Hello => {
                self.connected = true;
                self.feed(core, daemon(ToShim::Hello { protocol: 1, seen: 0 }));
            }
            Happens::Gone => {
                self.connected = false;
                self.feed(core, Input::DaemonGone);
            }
            Happens::Exit(code) => self.exits(core, Exit::Code(code)),
            Happens::Wait(ms) => {
                self.now_ms += ms;
                self.feed(core, Input::Tick);
            }
            // These need somebody to say them.
            _ if !self.connected => {}
            Happens::Admit => self.feed(core, daemon(admit("t"))),
            Happens::Stop => self.feed(core, daemon(ToShim::Stop { order: order("stop") })),
            Happens::Kill => {
                let order = StopOrderInfo { level: StopLevel::Kill, ..order("kill") };
                self.feed(core, daemon(ToShim::Stop { order }));
                self.exits(core, Exit::Signal { signal: 9, core_dumped: false });
            }
            Happens::Detach => self.feed(core, daemon(ToShim::Detach { by: "user".to_owned() })),
        }
    }
}

/// The state as a daemon makes it out of what it is told.
fn replay(queued: bool, life: &[LifeItem], start: &Start) -> State {
    let policy = policy_from_wire(&start.clocks, start.detached);
    let mut state = State::new(start.detached);
    if !queued {
        state = step(&policy, state, Event::Admitted).state;
    }
    for item in life {
        state = step(&policy, state, event_from_wire(item.event.clone())).state;
        if let Some(end) = &item.end {
            state = State::Ended(Outcome::from_wire(end.end.clone()));
        }
    }
    state
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    // proves K5, K9, F5: whatever comes in whatever order, a held start begins as often as it may and not after a stop, and a
    // daemon that comes back makes the same of what it is told
    #[test]
    fn a_held_start_begins_only_as_it_may(retries in 0..3u32, looked_at: bool, events in happenings()) {
        let mut core = core();
        let mut around = Loop { connected: true, ..Loop::default() };
        let mut start = retried(true, retries);
        let policy = OnStall::Tell;
        start.clocks.stall = looked_at.then_some(StallParams { after_ms: 30, policy });
        around.feed(&mut core, Input::Daemon(ToShim::Start(start.clone())));
        let mut stopped = false;
        for what in events {
            let before = around.spawns;
            stopped |= core.state().is_some_and(State::is_ended);
            stopped |= around.connected && matches!(what, Happens::Stop | Happens::Kill);
            around.happens(&mut core, what);
            prop_assert!(around.spawns <= 1 + retries);
            prop_assert!(!(stopped && around.spawns > before), "begun after its end");
            prop_assert_eq!(core.is_queued() && around.spawns > 0, false);
            if let Some((queued, life)) = around.greeting.take() {
                prop_assert_eq!(Some(&replay(queued, &life, &start)), core.state());
            }
        }
        let ends = around.told.iter().filter(|item| item.end.is_some());
        let numbers: std::collections::BTreeSet<u64> = ends.map(|item| item.number).collect();
        prop_assert!(numbers.len() <= 1, "two ends: {numbers:?}");
    }
}
