//! Budgets: what a task uses beyond one ends it under that budget's name, with a true receipt, whoever is there to see it.

use belay_protocol::daemon::{BudgetEnforcer, DaemonDoctorResult, FindingTopic};
use belay_protocol::error::ErrorKind;
use belay_protocol::event::{EventInfo, EventKind};
use belay_protocol::methods::TaskStart;
use belay_protocol::task::{
    BudgetInfo, BudgetName, Budgets, Outcome, OutcomeKind, TaskInfo, TaskStartParams, TaskStatus,
};
use belay_testkit::{LONG, World, carrying, wait_until};

use crate::support::{FOREVER, builder, refused, world};

/// Holds about eighty megabytes, and less than three hundred while it gets there.
const HOG: &str = r"x=$(head -c 80000000 /dev/zero | tr '\0' x); echo held; while :; do sleep 1; done";

/// Sixty processes, and no more.
const FORKS: &str = r#"i=0; while [ $i -lt 60 ]; do sleep "$0" & i=$((i+1)); done; wait"#;

/// Waits for the end by the command, which every user of a world can.
#[track_caller]
fn ended(world: &World, id: &str) -> TaskInfo {
    world.belay(["wait", id]);
    world.inspect(id)
}

#[track_caller]
fn assert_over(world: &World, task: &TaskInfo, name: BudgetName, limit: u64) -> BudgetInfo {
    let outcome = task.outcome.as_ref().unwrap_or_else(|| panic!("it runs on: {task:?}"));
    let Outcome::Budget { budget, receipt, .. } = outcome else { panic!("{task:?}") };
    assert_eq!(task.status, TaskStatus::Failed, "{task:?}");
    assert_eq!((budget.name, budget.limit), (name, limit));
    assert!(budget.used > limit, "{budget:?}");
    assert_eq!(
        (receipt.actor.as_str(), receipt.survivors.as_slice()),
        (format!("budget:{}", name.name()).as_str(), &[][..])
    );
    assert!(receipt.empty_at.is_some(), "{receipt:?}");
    assert_eq!(receipt.signals[0].signal, "SIGTERM", "{receipt:?}");
    assert_eq!(carrying(&format!("BELAY_TASK={}", task.id)), [], "somebody is left");
    let events: Vec<EventInfo> = world.belay(["events", "--json"]).ok().json_lines();
    let is_end = |info: &&EventInfo| {
        info.event.task() == Some(task.id.as_str()) && info.event.kind() == EventKind::TaskEnded
    };
    assert_eq!(events.iter().filter(is_end).count(), 1, "{events:?}");
    *budget
}

fn all_three(world: &World) {
    let id = world.run_detached(["--max-output", "1MB", "--", "yes"]);
    let task = ended(world, &id);
    let budget = assert_over(world, &task, BudgetName::Output, 1_000_000);
    assert!(task.output.bytes >= budget.used, "{task:?}");
    let id = world.run_detached(["--max-memory", "50MB", "--", "sh", "-c", HOG]);
    assert_over(world, &ended(world, &id), BudgetName::Memory, 50_000_000);
    let id = world.run_detached(["--max-processes", "20", "--", "sh", "-c", FORKS, FOREVER]);
    assert_over(world, &ended(world, &id), BudgetName::Processes, 20);
}

// proves R6
#[test]
fn each_budget_ends_the_task_under_its_own_name() {
    all_three(&world());
}

// proves R6
#[test]
fn budgets_are_enforced_without_cgroups() {
    all_three(&builder().env("BELAY_CGROUP", "off").build());
}

// proves R6
#[test]
fn budgets_are_enforced_for_an_ordinary_user() {
    all_three(&builder().as_nobody().build());
}

// proves R6
#[test]
fn a_task_within_its_budgets_ends_as_it_ends() {
    let world = world();
    let budgets = ["--max-output", "100", "--max-memory", "100MB", "--max-processes", "3"];
    // Exactly as much as it may.
    let words = ["--", "sh", "-c", "head -c 100 /dev/zero; sleep 0.6; exit 7"];
    let id = world.run_detached(budgets.iter().chain(&words));
    let task = ended(&world, &id);
    let outcome = task.outcome.as_ref().unwrap();
    assert_eq!(
        (outcome.kind(), outcome.exit_code(), &outcome.receipt()),
        (OutcomeKind::Exited, Some(7), &None)
    );
    let wanted = Budgets { output_bytes: Some(100), memory_bytes: Some(100_000_000), processes: Some(3) };
    assert_eq!((task.budgets, task.output.bytes), (wanted, 100));
    // The next task of the same shim has none of them.
    let id = world.run_detached([
        "sh",
        "-c",
        r"sleep 0.4 & sleep 0.4 & sleep 0.4 & sleep 0.4 & wait; head -c 5000 /dev/zero",
    ]);
    let task = ended(&world, &id);
    assert_eq!(
        (task.status, task.budgets, task.output.bytes),
        (TaskStatus::Completed, Budgets::default(), 5_000)
    );
}

// proves R6
#[test]
fn more_output_than_allowed_is_too_much_also_from_one_that_ends_at_once() {
    let world = world();
    for _ in 0..5 {
        let said =
            world.belay(["run", "--json", "--max-output", "1000", "--", "head", "-c", "1001", "/dev/zero"]);
        let task: TaskInfo = said.json();
        let outcome = task.outcome.as_ref().unwrap();
        let Outcome::Budget { budget, .. } = outcome else { panic!("{said}") };
        let expected = BudgetInfo { name: BudgetName::Output, limit: 1_000, used: 1_001 };
        assert_eq!((task.status, budget), (TaskStatus::Failed, &expected), "{said}");
        assert_eq!(said.code, Some(if outcome.signal().is_some() { 143 } else { 1 }));
    }
}

// proves R6, R4, D2
#[test]
fn budgets_are_enforced_while_no_daemon_runs() {
    let world = world();
    let gate = world.dir().join("gate").to_str().unwrap().to_owned();
    world.shell(&format!("mkfifo {gate}")).ok();
    let scripts = [
        (BudgetName::Output, "--max-output", "1MB", "read -r _ < \"$0\"; exec yes"),
        (BudgetName::Memory, "--max-memory", "50MB", &format!("read -r _ < \"$0\"; {HOG}")),
        (
            BudgetName::Processes,
            "--max-processes",
            "20",
            r#"read -r _ < "$0"; i=0; while [ $i -lt 60 ]; do sleep 1000 & i=$((i+1)); done; wait"#,
        ),
    ];
    for (name, flag, limit, script) in scripts {
        let id = world.run_detached([flag, limit, "--", "sh", "-c", script, &gate]);
        let leader = world.get(&id).pid.unwrap();
        world.kill_daemon();
        std::fs::write(&gate, "go\n").unwrap();
        world.wait_dead("the leader, by its budget alone", leader);
        wait_until("an empty tree", LONG, || match carrying(&format!("BELAY_TASK={id}")) {
            left if left.is_empty() => Ok(()),
            left => Err(format!("{left:?}")),
        });
        assert_eq!(world.daemon(), None, "nobody started a daemon meanwhile");
        let limit = match name {
            BudgetName::Output => 1_000_000,
            BudgetName::Memory => 50_000_000,
            BudgetName::Processes => 20,
        };
        assert_over(&world, &ended(&world, &id), name, limit);
    }
}

// proves R6
#[test]
fn who_does_not_listen_is_killed() {
    let world = world();
    let script = "trap '' TERM; while :; do echo more than enough; done";
    let id = world.run_detached(["--max-output", "1K", "--grace", "150ms", "--", "sh", "-c", script]);
    let task = ended(&world, &id);
    assert_over(&world, &task, BudgetName::Output, 1_024);
    let receipt = task.outcome.as_ref().and_then(Outcome::receipt).unwrap();
    let signals: Vec<&str> = receipt.signals.iter().map(|sent| sent.signal.as_str()).collect();
    assert_eq!(signals, ["SIGTERM", "SIGKILL"]);
}

// proves R6
#[test]
fn budgets_of_nothing_are_refused() {
    let world = world();
    let with = |budgets| TaskStartParams { budgets, ..world.start_params(&["true"]) };
    let none = Budgets::default();
    for budgets in [
        Budgets { output_bytes: Some(0), ..none },
        Budgets { processes: Some(0), ..none },
        Budgets { memory_bytes: Some(0), ..none },
        Budgets { memory_bytes: Some(50), ..none },
    ] {
        let error = refused(world.client().call::<TaskStart>(&with(budgets)));
        assert_eq!(
            (error.data.kind, error.data.field.as_deref()),
            (ErrorKind::Invalid, Some("budgets")),
            "{error}"
        );
        assert!(error.data.hint.is_some());
    }
    assert_eq!(world.belay(["run", "--max-memory", "50", "--", "true"]).code, Some(2));
}

// proves S2
#[test]
fn budgets_are_part_of_what_a_token_compares() {
    let world = world();
    let params = TaskStartParams { token: Some("one".into()), ..world.start_params(&["sleep", FOREVER]) };
    let first = world.start(&params);
    let other =
        TaskStartParams { budgets: Budgets { processes: Some(5), ..Budgets::default() }, ..params.clone() };
    let error = refused(world.client().call::<TaskStart>(&other));
    assert_eq!((error.data.kind, error.data.ids), (ErrorKind::Conflict, vec![first.id.clone()]));
    assert_eq!(world.start(&params).id, first.id);
}

// proves R6
#[test]
fn the_doctor_says_how_budgets_are_enforced() {
    let world = builder().env("BELAY_CGROUP", "off").build();
    assert_eq!(world.status().containment.budgets.memory, BudgetEnforcer::Sampling);
    let found: DaemonDoctorResult = world.belay(["doctor", "--json"]).ok().json();
    let finding = found.findings.iter().find(|finding| finding.topic == FindingTopic::Budgets).unwrap();
    let sampled = "sampled four times a second, so it can be exceeded for a moment";
    assert_eq!(
        finding.message,
        format!(
            "output is counted as it is written; memory: {sampled}; processes: {sampled} (cgroups are switched off by BELAY_CGROUP)"
        )
    );
}

// proves R6
#[test]
fn inspect_tells_the_budget_in_words() {
    let world = world();
    let id = world.run_detached(["--max-processes", "20", "--", "sh", "-c", FORKS, FOREVER]);
    let task = ended(&world, &id);
    let Some(Outcome::Budget { budget: BudgetInfo { used, .. }, .. }) = task.outcome else {
        panic!("{task:?}")
    };
    let text = String::from_utf8(world.belay(["inspect", &id]).ok().stdout).unwrap();
    let line =
        |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim).map(str::to_owned);
    assert_eq!(line("Status"), Some(format!("failed: it had {used} processes, and may have 20")));
    assert_eq!(line("Budgets"), Some("20 processes".to_owned()));
}

/// What it starts through Belay counts with it: nobody gets around a budget by starting tasks.
// proves R6, X4
#[test]
fn what_is_below_a_task_counts_with_it() {
    let world = world();
    let belay = world.program().to_str().unwrap();
    // Four children of fifteen processes each, in a task that may have forty.
    let forks = r#"i=0; while [ $i -lt 14 ]; do sleep "$0" & i=$((i+1)); done; wait"#;
    let line = r#"for n in 1 2 3 4; do "$0" run -d -- sh -c "$1" "$2"; done; sleep "$2""#;
    let root = world.run_detached(["--max-processes", "40", "--", "sh", "-c", line, belay, forks, FOREVER]);
    let task = ended(&world, &root);
    assert_over(&world, &task, BudgetName::Processes, 40);
    let below: Vec<TaskInfo> = world.belay(["ps", "-a", "--json"]).ok().json_lines();
    let below: Vec<TaskInfo> = below.into_iter().filter(|task| task.parent.as_ref() == Some(&root)).collect();
    assert!(!below.is_empty());
    for child in below {
        let outcome = ended(&world, &child.id).outcome.unwrap();
        let actor = outcome.actor().unwrap_or_default();
        assert!(actor == "budget:processes" || actor.is_empty(), "{actor}");
        assert_eq!(carrying(&format!("BELAY_TASK={}", child.id)), []);
    }
    // Output of those that have ended counts too, also for the next daemon.
    let line = r#"for n in 1 2 3; do until "$0" run -- head -c 400000 /dev/zero >/dev/null 2>&1; do sleep 0.1; done; done; sleep "$1""#;
    let root = world.run_detached(["--max-output", "1MB", "--", "sh", "-c", line, belay, FOREVER]);
    wait_until("the first of them", LONG, || {
        let all: Vec<TaskInfo> = world.belay(["ps", "-a", "--json"]).ok().json_lines();
        let done =
            all.iter().filter(|task| task.parent.as_ref() == Some(&root) && task.status.is_ended()).count();
        if done > 0 { Ok(()) } else { Err(format!("{all:?}")) }
    });
    world.kill_daemon();
    let budget = assert_over(&world, &ended(&world, &root), BudgetName::Output, 1_000_000);
    // One that was under way when the daemon died may have been run again.
    assert!(budget.used.is_multiple_of(400_000), "{budget:?}");
}
