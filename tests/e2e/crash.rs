//! Nothing is lost: under a load of starts, output, stops, ends and clocks the daemon is killed again and again, at
//! random instants, and afterwards everything is as it would have been without that.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use belay_os::process::signal_identity;
use belay_os::signal::Signal;
use belay_protocol::event::{Event, EventInfo, EventKind};
use belay_protocol::life::ClockName;
use belay_protocol::methods::{OutputRead, TaskStart, TaskStop, TaskWait};
use belay_protocol::output::{OutputFrom, OutputReadParams, StreamName};
use belay_protocol::task::{
    Outcome, OutcomeKind, StopVerdict, TaskInfo, TaskStartParams, TaskStatus, TaskWaitParams, WaitMet,
};
use belay_testkit::{LONG, World, wait_until};

use crate::patient::{Dice, Patient, is_long};
use crate::support::{FOREVER, builder, stop_of, world};

const CLIENTS: u64 = 3;

/// How many tasks one client has running before it waits for the oldest.
const AT_ONCE: usize = 8;

/// How much later than its clock says a task may have ended, on a busy machine.
const SLACK_MS: u64 = 4_000;

const TIMEOUT_MS: u64 = 2_000;
const SILENCE_MS: u64 = 2_500;

/// The daemon is killed over and over for so long at least: a clock that began anew with every daemon would run until after
/// that, which is later than any clock here may, with all its slack.
const KILLING: Duration = Duration::from_millis(SILENCE_MS + SLACK_MS + 1_000);

/// How a task is going to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Code(i32),
    Signal(i32),
    Stopped,
    Ttl(u64),
    /// After its last line, which it writes at once.
    Silence,
    /// Somebody waits for it.
    Timeout,
}

/// One task as it was meant.
#[derive(Debug)]
struct Plan {
    fate: Fate,
    lines: u64,
    /// Made by the command as its first deed: whether it was started is not for Belay to say.
    mark: PathBuf,
    params: TaskStartParams,
}

impl Plan {
    fn throw(world: &World, name: &str, dice: &mut Dice) -> Self {
        let fate = match dice.below(11) {
            0..4 => Fate::Code(i32::try_from(dice.below(120)).unwrap()),
            4 => Fate::Signal(Signal::KILL.as_raw()),
            5 => Fate::Signal(Signal::SEGV.as_raw()),
            6..9 => Fate::Stopped,
            9 => Fate::Silence,
            _ => Fate::Ttl(1_500 + dice.below(500)),
        };
        // One at least: whoever is to be stopped is stopped when it has printed, and so has begun.
        let lines = 1 + dice.below(60);
        let mark = world.dir().join(name);
        let pause = match (fate, dice.below(3)) {
            (Fate::Silence, _) | (_, 0) => "",
            (_, 1) => "sleep 0.05; ",
            _ => "sleep 0.2; ",
        };
        let end = match fate {
            Fate::Code(code) => format!("exit {code}"),
            Fate::Signal(number) => format!("kill -{number} $$"),
            Fate::Stopped | Fate::Ttl(_) | Fate::Silence | Fate::Timeout => {
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
        match fate {
            Fate::Ttl(ms) => params.ttl_ms = Some(ms),
            Fate::Silence => params.silence_ms = Some(SILENCE_MS),
            Fate::Code(_) | Fate::Signal(_) | Fate::Stopped | Fate::Timeout => {}
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
    let params = OutputReadParams {
        id: task.id.clone(),
        from: OutputFrom::Offset { offset: 0 },
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
    let expected = if printed { TaskStatus::Cancelled } else { TaskStatus::Failed };
    assert_eq!(stopped.status, Some(expected), "{stopped:?}");
}

/// A caller that waits for its task until the time limit ends it, however many daemons die meanwhile.
fn foreground(world: &World) -> (String, Plan) {
    let mark = world.dir().join("task-in-the-foreground");
    // It writes nothing: what it wrote would lie in memory, and a daemon that dies after its end takes that along.
    let script = format!(": >{}; sleep {FOREVER}", mark.display());
    let mut params = world.start_params(&["sh", "-c", &script]);
    (params.detached, params.timeout_ms) = (false, Some(TIMEOUT_MS));
    params.token = Some("in the foreground".to_owned());
    let mut patient = Patient::new(world);
    let id = patient.call::<TaskStart>(&params).id;
    let wait = TaskWaitParams { attach: true, timeout_ms: Some(5_000), ..TaskWaitParams::for_end(&id) };
    wait_until("the end of the task in the foreground", LONG, || {
        let waited = patient.call::<TaskWait>(&wait);
        if waited.met == WaitMet::Ended { Ok(()) } else { Err(format!("{waited:?}")) }
    });
    (id, Plan { fate: Fate::Timeout, lines: 0, mark, params })
}

/// Kills the daemon so many times and for so long at least, whatever it is doing.
fn kill_again_and_again(world: &World, times: u32, mut dice: Dice) {
    let until = Instant::now() + KILLING;
    let mut killed = 0;
    while killed < times || Instant::now() < until {
        killed += 1;
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
    let (status, kind) = (task.status, outcome.kind());
    let shown = format!("{plan:?}\n{task:?}");
    assert_eq!((outcome.capture(), outcome.survivors()), (None, &[][..]), "{shown}");
    match plan.fate {
        Fate::Code(code) => {
            let expected = if code == 0 { TaskStatus::Completed } else { TaskStatus::Failed };
            assert_eq!(
                (status, kind, outcome.exit_code()),
                (expected, OutcomeKind::Exited, Some(code)),
                "{shown}"
            );
            assert_eq!((outcome.signal(), outcome.receipt()), (None, None), "{shown}");
        }
        Fate::Signal(number) => {
            assert_eq!(
                (status, kind, outcome.signal()),
                (TaskStatus::Failed, OutcomeKind::Signaled, Some(number)),
                "{shown}"
            );
            assert_eq!((outcome.exit_code(), outcome.receipt()), (None, None), "{shown}");
        }
        Fate::Stopped => {
            assert_eq!((status, kind), (TaskStatus::Cancelled, OutcomeKind::Cancelled), "{shown}");
            assert!(outcome.receipt().is_some_and(|receipt| receipt.empty_at.is_some()), "{shown}");
        }
        Fate::Ttl(ms) => check_clock(task, ClockName::Ttl, ms),
        Fate::Silence => check_clock(task, ClockName::Silence, SILENCE_MS),
        Fate::Timeout => check_clock(task, ClockName::Timeout, TIMEOUT_MS),
    }
}

/// The clock ended it, not before its time, and not as late as one that begins anew with every daemon.
fn check_clock(task: &TaskInfo, clock: ClockName, ms: u64) {
    let Some(Outcome::TimedOut { clock: which, limit_ms, .. }) = &task.outcome else { panic!("{task:?}") };
    assert_eq!((task.status, *which, *limit_ms), (TaskStatus::TimedOut, clock, ms), "{task:?}");
    let ran = u64::try_from(task.ended_at.unwrap().0 - task.started_at.unwrap().0).unwrap();
    // Each moment is cut to a millisecond, and so is the clock.
    assert!((ms - 5..ms + SLACK_MS).contains(&ran), "it ran for {ran} ms: {task:?}");
}

/// The numbers have no hole, and every task was created once and ended once, as it stands in its record.
fn check_events(events: &[EventInfo], tasks: &BTreeMap<String, TaskInfo>, started: &BTreeSet<String>) {
    let numbers: Vec<u64> = events.iter().map(|event| event.seq).collect();
    assert_eq!(numbers, (1..=events.len() as u64).collect::<Vec<_>>());
    let of = |kind: EventKind| {
        let mut of: Vec<String> = events
            .iter()
            .filter(|event| event.event.kind() == kind)
            .map(|event| event.event.task().unwrap().to_owned())
            .collect();
        of.sort_unstable();
        of
    };
    let all: Vec<String> = tasks.keys().cloned().collect();
    assert_eq!(of(EventKind::TaskCreated), all, "each task is created once");
    assert_eq!(of(EventKind::TaskEnded), all, "each task ends once");
    assert_eq!(
        of(EventKind::TaskStarted),
        started.iter().cloned().collect::<Vec<_>>(),
        "each is started once"
    );
    for info in events {
        if let Event::TaskEnded { task, status, outcome, .. } = &info.event {
            let task = &tasks[task];
            assert_eq!((*status, outcome), (task.status, &task.outcome));
        }
    }
}

fn exists(mark: &Path) -> bool {
    mark.exists()
}

/// Throws tasks at a world whose daemon is killed so many times, and says what was meant with each of them.
fn throw_and_kill(world: &World, kills: u32, mut dice: Dice) -> Vec<(String, Plan)> {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let done = &done;
        let killing = dice.another();
        let waiting = scope.spawn(move || foreground(world));
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
        let plans = clients.into_iter().flat_map(|client| client.join().unwrap());
        let plans = plans.chain([waiting.join().unwrap()]).collect();
        killed.unwrap();
        plans
    })
}

fn nothing_is_lost(world: &World, kills: u32) {
    let plans = throw_and_kill(world, kills, Dice::thrown("nothing is lost"));
    let mut patient = Patient::new(world);
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
            assert_eq!((task.status, outcome.kind()), (TaskStatus::Failed, OutcomeKind::Spawn), "{task:?}");
        }
    }
    // What was not handed over goes on when it is said again with its token, and these clients do say it again.
    let (all, begun) = (plans.len(), started.len());
    assert!(all > AT_ONCE && begun * 10 >= all * 9, "of {all} tasks {begun} were started");
    check_events(&patient.events(0), &tasks, &started);
    let own: Vec<_> = world.shims().into_iter().chain(world.daemon()).map(|seen| seen.identity).collect();
    let mut left = world.everybody();
    left.retain(|seen| !own.contains(&seen.identity));
    assert_eq!(left, [], "nobody is left of any task");
}

// proves D1, D2, S1, S2, W4, R4
#[test]
fn nothing_is_lost_when_the_daemon_is_killed_again_and_again() {
    nothing_is_lost(&world(), if is_long() { 100 } else { 20 });
}

// proves D1, D2, S1, S2, W4, R4
#[test]
fn nothing_is_lost_without_a_cgroup_either() {
    nothing_is_lost(&builder().env("BELAY_CGROUP", "off").build(), if is_long() { 50 } else { 10 });
}
