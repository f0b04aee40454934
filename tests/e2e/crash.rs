//! Nothing is lost: under a load of starts, output, stops, ends and clocks the daemon is killed again and again, at
//! random instants, and afterwards everything is as it would have been without that.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use belay_os::process::signal_identity;
use belay_os::signal::Signal;
use belay_protocol::event::EventInfo;
use belay_protocol::life::ClockName;
use belay_protocol::methods::{OutputRead, TaskStart, TaskStop};
use belay_protocol::output::{From, ReadParams, StreamName};
use belay_protocol::task::{StartParams, Status, StopVerdict, TaskInfo};
use belay_testkit::{LONG, World, wait_until};

use crate::patient::{Dice, Patient, is_long};
use crate::support::{FOREVER, stop_of, world};

const CLIENTS: u64 = 3;

/// How many tasks one client has running before it waits for the oldest.
const AT_ONCE: usize = 8;

/// How a task is going to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Code(i32),
    Signal(i32),
    Stopped,
    Ttl(u64),
}

/// One task as it was meant.
#[derive(Debug)]
struct Plan {
    fate: Fate,
    lines: u64,
    /// Made by the command as its first deed: whether it was started is not for Belay to say.
    mark: PathBuf,
    params: StartParams,
}

impl Plan {
    fn throw(world: &World, name: &str, dice: &mut Dice) -> Self {
        let fate = match dice.below(10) {
            0..4 => Fate::Code(i32::try_from(dice.below(120)).unwrap()),
            4 => Fate::Signal(Signal::KILL.as_raw()),
            5 => Fate::Signal(Signal::SEGV.as_raw()),
            6..9 => Fate::Stopped,
            _ => Fate::Ttl(1_500 + dice.below(500)),
        };
        let lines = dice.below(60);
        let mark = world.dir().join(name);
        let pause = ["", "sleep 0.05; ", "sleep 0.2; "][usize::try_from(dice.below(3)).unwrap()];
        let end = match fate {
            Fate::Code(code) => format!("exit {code}"),
            Fate::Signal(number) => format!("kill -{number} $$"),
            Fate::Stopped | Fate::Ttl(_) => {
                format!("sleep {FOREVER} & setsid sleep {FOREVER} & sleep {FOREVER}")
            }
        };
        let script = format!(
            "ulimit -c 0; : >{}; {pause}i=0; \
             while [ $i -lt {lines} ]; do echo \"out $i\"; echo \"err $i\" >&2; i=$((i+1)); done; {pause}{end}",
            mark.display()
        );
        let mut params = world.start_params(&["sh", "-c", &script]);
        params.token = Some(name.to_owned());
        params.grace_ms = Some(2_000);
        if let Fate::Ttl(ms) = fate {
            params.ttl_ms = Some(ms);
        }
        Self { fate, lines, mark, params }
    }

    fn text(&self, word: &str) -> Vec<u8> {
        (0..self.lines).flat_map(|i| format!("{word} {i}\n").into_bytes()).collect()
    }
}

/// One client: starts what it throws, stops what is to be stopped, and waits for its oldest when it has enough.
fn client(world: &World, number: u64, mut dice: Dice, done: &AtomicBool) -> Vec<(String, Plan)> {
    let mut patient = Patient::new(world);
    let mut plans = Vec::new();
    let mut open = VecDeque::new();
    while !done.load(Ordering::Relaxed) {
        let plan = Plan::throw(world, &format!("task-{number}-{}", plans.len()), &mut dice);
        let task = patient.call::<TaskStart>(&plan.params);
        if dice.below(4) == 0 {
            assert_eq!(patient.call::<TaskStart>(&plan.params).id, task.id, "one token, one task");
        }
        if plan.fate == Fate::Stopped {
            stop_when_printed(&mut patient, &task, &plan);
        }
        open.push_back(task.id.clone());
        plans.push((task.id, plan));
        if open.len() > AT_ONCE
            && let Some(oldest) = open.pop_front()
        {
            patient.wait_ended(&oldest);
        }
    }
    for id in open {
        patient.wait_ended(&id);
    }
    plans
}

fn stop_when_printed(patient: &mut Patient<'_>, task: &TaskInfo, plan: &Plan) {
    let wanted = (plan.text("out").len() + plan.text("err").len()) as u64;
    let params = ReadParams {
        id: task.id.clone(),
        from: From::Offset(0),
        max_bytes: Some(1),
        stream: None,
        text: false,
    };
    let printed = wait_until("what a task prints", LONG, || {
        let page = patient.call::<OutputRead>(&params);
        // One whose daemon died while handing it over was never started and prints nothing.
        if page.bytes == wanted || page.eof { Ok(page.bytes == wanted) } else { Err(format!("{page:?}")) }
    });
    let stopped = patient.call::<TaskStop>(&stop_of(&task.id));
    // A repeated stop may find it ended already: by the first one.
    assert!(matches!(stopped.result, StopVerdict::Accepted | StopVerdict::AlreadyEnded), "{stopped:?}");
    let expected = if printed { Status::Cancelled } else { Status::Failed };
    assert!(wanted == 0 || stopped.status == Some(expected), "{stopped:?}");
}

/// Kills the daemon so many times, whatever it is doing.
fn kill_again_and_again(world: &World, times: u32, mut dice: Dice) {
    for _ in 0..times {
        // Sleeps because any instant will do, and a random one is what is meant.
        std::thread::sleep(Duration::from_millis(dice.below(250)));
        wait_until("a daemon to kill", LONG, || {
            let daemon = world.daemon().ok_or("nobody")?;
            signal_identity(daemon.identity, Signal::KILL).map_err(|error| error.to_string())
        });
    }
}

fn check_end(task: &TaskInfo, plan: &Plan) {
    let outcome = task.outcome.as_ref().unwrap();
    let (status, kind) = (task.status, outcome.kind.as_str());
    let shown = format!("{plan:?}\n{task:?}");
    assert_eq!((outcome.capture.as_ref(), outcome.survivors.as_slice()), (None, &[][..]), "{shown}");
    match plan.fate {
        Fate::Code(code) => {
            let expected = if code == 0 { Status::Completed } else { Status::Failed };
            assert_eq!((status, kind, outcome.exit_code), (expected, "exited", Some(code)), "{shown}");
            assert_eq!((outcome.signal, outcome.receipt.as_ref()), (None, None), "{shown}");
        }
        Fate::Signal(number) => {
            assert_eq!((status, kind, outcome.signal), (Status::Failed, "exited", Some(number)), "{shown}");
            assert_eq!((outcome.exit_code, outcome.receipt.as_ref()), (None, None), "{shown}");
        }
        Fate::Stopped => {
            assert_eq!((status, kind), (Status::Cancelled, "cancelled"), "{shown}");
            assert!(outcome.receipt.as_ref().is_some_and(|receipt| receipt.empty_at.is_some()), "{shown}");
        }
        Fate::Ttl(ms) => {
            let clock = (status, kind, outcome.clock, outcome.limit_ms);
            assert_eq!(clock, (Status::TimedOut, "timed_out", Some(ClockName::Ttl), Some(ms)), "{shown}");
            let ran = task.ended_at.unwrap().0 - task.started_at.0;
            assert!(ran >= i64::try_from(ms).unwrap(), "it ran for {ran} ms only: {shown}");
        }
    }
}

/// The numbers have no hole, and every task was created once and ended once, as it stands in its record.
fn check_events(events: &[EventInfo], tasks: &BTreeMap<String, TaskInfo>, started: &BTreeSet<String>) {
    let numbers: Vec<u64> = events.iter().map(|event| event.seq).collect();
    assert_eq!(numbers, (1..=events.len() as u64).collect::<Vec<_>>());
    let of = |kind: &str| {
        let mut of: Vec<String> = events
            .iter()
            .filter(|event| event.kind == kind)
            .map(|event| event.task.clone().unwrap())
            .collect();
        of.sort_unstable();
        of
    };
    let all: Vec<String> = tasks.keys().cloned().collect();
    assert_eq!(of("task.created"), all, "each task is created once");
    assert_eq!(of("task.ended"), all, "each task ends once");
    assert_eq!(of("task.started"), started.iter().cloned().collect::<Vec<_>>(), "each is started once");
    for event in events.iter().filter(|event| event.kind == "task.ended") {
        let task = &tasks[event.task.as_ref().unwrap()];
        assert_eq!(event.more["status"], task.status.name());
    }
}

fn exists(mark: &Path) -> bool {
    mark.exists()
}

// proves D1, D2, S1, S2, W4, R4
#[test]
fn nothing_is_lost_when_the_daemon_is_killed_again_and_again() {
    let world = world();
    let kills = if is_long() { 100 } else { 20 };
    let mut dice = Dice::thrown("nothing is lost");
    let done = AtomicBool::new(false);
    let plans: Vec<(String, Plan)> = std::thread::scope(|scope| {
        let (world, done) = (&world, &done);
        let killing = dice.another();
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let dice = dice.another();
                scope.spawn(move || client(world, number, dice, done))
            })
            .collect();
        // The clients end also if this panics.
        let killed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            kill_again_and_again(world, kills, killing);
        }));
        done.store(true, Ordering::Relaxed);
        let plans = clients.into_iter().flat_map(|client| client.join().unwrap()).collect();
        killed.unwrap();
        plans
    });

    let mut patient = Patient::new(&world);
    let tasks = patient.tasks();
    let planned: BTreeSet<String> = plans.iter().map(|(id, _)| id.clone()).collect();
    assert_eq!(planned.len(), plans.len(), "every token has a task of its own");
    assert_eq!(tasks.keys().cloned().collect::<BTreeSet<_>>(), planned, "no task but these");
    let mut started = BTreeSet::new();
    for (id, plan) in &plans {
        let task = &tasks[id];
        if exists(&plan.mark) {
            check_end(task, plan);
            assert_eq!(patient.output(id, StreamName::Stdout), plan.text("out"), "{task:?}");
            assert_eq!(patient.output(id, StreamName::Stderr), plan.text("err"), "{task:?}");
            started.insert(id.clone());
        } else {
            // The daemon died between the record and the start, and that is what is told.
            let outcome = task.outcome.as_ref().unwrap();
            assert_eq!((task.status, outcome.kind.as_str()), (Status::Failed, "spawn"), "{task:?}");
        }
    }
    println!("{} tasks, of which {} were started", plans.len(), started.len());
    check_events(&patient.events(0), &tasks, &started);
    let own: Vec<_> = world.shims().into_iter().chain(world.daemon()).map(|seen| seen.identity).collect();
    let mut left = world.everybody();
    left.retain(|seen| !own.contains(&seen.identity));
    assert_eq!(left, [], "nobody is left of any task");
}
