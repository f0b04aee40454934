//! Tables, blocks and receipts.

use belay_client::Paths;
use belay_protocol::config::{ConfigApplies, ConfigGetResult, ConfigItem, ConfigSetResult, ConfigSource};
use belay_protocol::daemon::{
    BudgetEnforcement, CgroupLayout, ContainmentInfo, ContainmentKind, DaemonNotice, DaemonStatusResult,
    DoctorFinding, FindingTopic, FindingVerdict, StepCostInfo,
};
use belay_protocol::life::{ExitStatus, StopLevel};
use belay_protocol::output::{OutputLine, OutputSearchLine, StreamName};
use belay_protocol::shell::{LineVerdict, ShellReadResult};
use belay_protocol::task::{
    AttemptInfo, ClockInfo, LanePreview, ProcessInfo, StallEvidence, StallInfo, StopVerdict, StoppingInfo,
    TaskBelow, TaskHealth, TaskInfo, TaskPreviewStopResult, TaskRemoveResult, TaskStatus, TaskStopResult,
};

use super::samples::{NOW, before, cancelled, crowded, died, exited, failed_receipt, receipt, running};
use crate::commands::run::explained;
use crate::commands::{config, doctor, down, gc, inspect, logs, ps, rm, status, stop, up, wait};

#[test]
fn ps_for_a_terminal() {
    let mut stalled = running();
    stalled.health = TaskHealth::Stalled;
    let tasks = [running(), stalled, crowded(), exited(0), exited(2), died(11), cancelled()];
    insta::assert_snapshot!(ps::render(&tasks, &[0; 9], true, NOW, Some(80), false));
    insta::assert_snapshot!(
        "ps_colours",
        ps::render(&tasks[..1], &[0], false, NOW, Some(60), true).replace('\x1b', "^")
    );
}

#[test]
fn ps_for_a_file() {
    insta::assert_snapshot!(ps::render(&[running(), crowded()], &[0, 1], false, NOW, None, false));
}

#[test]
fn inspect_blocks() {
    insta::assert_snapshot!("inspect_running", inspect::render(&crowded(), NOW, Some(72), false));
    insta::assert_snapshot!("inspect_cancelled", inspect::render(&cancelled(), NOW, Some(72), false));
    let mut stopping = TaskInfo { status: TaskStatus::Stopping, ..running() };
    let (actor, reason) = ("ada".into(), Some("too slow".into()));
    stopping.stopping = Some(StoppingInfo { level: StopLevel::Terminate, actor, reason });
    stopping.clocks.grace = Some(ClockInfo { limit_ms: 10_000, remaining_ms: Some(7_400) });
    insta::assert_snapshot!("inspect_stopping", inspect::render(&stopping, NOW, Some(72), false));
    let queued =
        TaskInfo { status: TaskStatus::Queued, started_at: None, pid: None, leader: None, ..running() };
    insta::assert_snapshot!("inspect_queued", inspect::render(&queued, NOW, Some(72), false));
    let waited = TaskInfo { started_at: Some(before(2_000)), ..running() };
    insta::assert_snapshot!("inspect_waited", inspect::render(&waited, NOW, Some(72), false));
}

#[test]
fn a_task_that_does_not_get_on() {
    let process = |pid, state: &str, command: &str| ProcessInfo {
        pid,
        ppid: 1,
        state: state.into(),
        command: command.into(),
        rss_bytes: 0,
        cpu_ms: 0,
    };
    let evidence = StallEvidence {
        silent_ms: 61_000,
        cpu_ms: 20,
        output_bytes: 5,
        processes: vec![process(41, "S", "npm run dev"), process(42, "D", "node server.js")],
        more: 0,
    };
    let mut stalled = TaskInfo { health: TaskHealth::Stalled, ..running() };
    stalled.stall = Some(Box::new(StallInfo { since: before(62_000), evidence }));
    stalled.clocks.stall = Some(ClockInfo { limit_ms: 60_000, remaining_ms: Some(58_000) });
    insta::assert_snapshot!("inspect_stalled", inspect::render(&stalled, NOW, Some(72), false));
}

#[test]
fn a_task_between_two_attempts() {
    let last = Some(ExitStatus::Code(7));
    let mut resting = TaskInfo { status: TaskStatus::Retrying, pid: None, leader: None, ..running() };
    resting.attempt = Some(AttemptInfo { number: 1, of: 4, last });
    resting.clocks.retry = Some(ClockInfo { limit_ms: 1_000, remaining_ms: Some(800) });
    insta::assert_snapshot!("inspect_resting", inspect::render(&resting, NOW, Some(72), false));
    let first = TaskInfo { attempt: Some(AttemptInfo { number: 1, of: 4, last: None }), ..running() };
    let second = TaskInfo { attempt: Some(AttemptInfo { number: 2, of: 4, last }), ..running() };
    insta::assert_snapshot!(
        "ps_attempts",
        ps::render(&[resting, first, second], &[0; 3], false, NOW, Some(80), false)
    );
}

#[test]
fn the_settings_with_their_sources() {
    let item = |key: &str, value: serde_json::Value, source: ConfigSource| ConfigItem {
        key: key.into(),
        value,
        source,
        from_next_start: None,
    };
    let file = |place: &str| ConfigSource::File { place: place.into() };
    let env = ConfigSource::Env { variable: "BELAY_RETENTION".into() };
    let mut idle = item("daemon.idle_exit", "30m".into(), ConfigSource::Default);
    idle.from_next_start = Some("never".into());
    let items = vec![
        idle.clone(),
        item("daemon.max_tasks", 500.into(), file("/home/ada/.local/state/belay/config.toml:3")),
        item("retention.age", "1d".into(), env),
        item("defaults.timeout", serde_json::Value::Null, ConfigSource::Default),
        item("hooks.on_end", serde_json::json!(["notify-send", "a task ended"]), file("/c.toml:9")),
    ];
    let found = ConfigGetResult { path: "/c.toml".into(), items: items.clone(), problem: None };
    insta::assert_snapshot!("config", config::render(&found, None, false));
    insta::assert_snapshot!("config_narrow", config::render(&found, Some(60), false));
    let done = [
        (ConfigApplies::NextStart, idle),
        (ConfigApplies::Now, items[1].clone()),
        (ConfigApplies::Overridden, items[2].clone()),
        (ConfigApplies::Now, items[3].clone()),
    ];
    let lines: Vec<String> = done
        .into_iter()
        .map(|(counts, item)| config::sentence(&ConfigSetResult { path: "/c.toml".into(), item, counts }))
        .collect();
    insta::assert_snapshot!("config_set", lines.concat());
}

#[test]
fn receipts() {
    let answer = |result, status, receipt| TaskStopResult {
        receipt,
        ..TaskStopResult::bare("sh-4f".into(), result, status)
    };
    let answers = [
        answer(StopVerdict::Accepted, Some(TaskStatus::Cancelled), Some(receipt())),
        answer(StopVerdict::Accepted, Some(TaskStatus::Completed), Some(receipt())),
        answer(StopVerdict::Accepted, Some(TaskStatus::StopFailed), Some(failed_receipt())),
        answer(StopVerdict::AlreadyEnded, Some(TaskStatus::Completed), None),
        answer(StopVerdict::AlreadyEnded, Some(TaskStatus::TimedOut), None),
        answer(StopVerdict::NotFound, None, None),
        answer(StopVerdict::NotPermitted, None, None),
    ];
    let lines: Vec<String> =
        answers.iter().map(|answer| format!("{}  {}", stop::exit_code(answer), stop::line(answer))).collect();
    insta::assert_snapshot!(lines.join("\n"), @r#"
    0  sh-4f stopped: SIGTERM to 3 processes, tree empty after 12 ms
    0  sh-4f completed: SIGTERM to 3 processes, tree empty after 12 ms
    3  sh-4f stop failed: SIGTERM to 3 processes, SIGKILL to 0 processes (1 refused), not empty after 15.3 s, 1 process survives: 4712 (uid 0) sudo sleep 1000
    0  sh-4f already ended: completed (exit 0)
    0  sh-4f already ended: timed out
    1  sh-4f not found: there is no task with that id or name
    1  sh-4f not permitted: this task is not yours to stop
    "#);
    let result = down::Stopped { receipts: answers[..1].to_vec(), left_running: 2 };
    insta::assert_snapshot!(down::render(&result, true), @r#"
    sh-4f stopped: SIGTERM to 3 processes, tree empty after 12 ms
    The daemon has ended.
    2 tasks run on; the next daemon adopts them.
    "#);
}

#[test]
fn stop_preview() {
    let process = |pid, command: &str| ProcessInfo {
        pid,
        ppid: 1,
        state: "S".into(),
        command: command.into(),
        rss_bytes: 0,
        cpu_ms: 0,
    };
    let below = TaskBelow {
        id: "sh-9a".into(),
        name: None,
        status: TaskStatus::Running,
        command: "npm run dev".into(),
    };
    let lane = LanePreview {
        lane: "deploy".into(),
        is_holder: true,
        fenced: Some("se-1".into()),
        stopped: vec!["sh-7k".into()],
        next: Some("sh-3m".into()),
    };
    let preview = TaskPreviewStopResult {
        id: "sh-4f".into(),
        status: TaskStatus::Running,
        processes: vec![process(4711, "make"), process(4712, "cc -c \u{1b}[2J.c")],
        process_count: 5,
        grace_ms: 5_000,
        below: vec![below],
        below_count: 1,
        below_is_stopped: false,
        lane: Some(lane),
    };
    insta::assert_snapshot!(stop::preview_text(&preview));
    let ended = TaskPreviewStopResult { status: TaskStatus::TimedOut, ..preview };
    insta::assert_snapshot!(stop::preview_text(&ended), @"sh-4f already ended: timed out");
}

#[test]
fn single_lines() {
    insta::assert_snapshot!(wait::line(&exited(2)), @"sh-9arw51tz8cpe failed: exit 2, after 2m 12s");
    insta::assert_snapshot!(rm::line(&TaskRemoveResult { id: "sh-4f".into(), freed_bytes: 1536 }), @"sh-4f removed, 1.5 KiB freed");
    let removed = vec!["sh-4f".to_owned(), "sh-9a".to_owned()];
    let mut result = gc::Collected { removed, freed_bytes: 3 << 20, events_expired: 40, dry_run: true };
    insta::assert_snapshot!(gc::render(&result), @r#"
    sh-4f would be removed
    sh-9a would be removed
    2 tasks and 40 events would go, 3.0 MiB would be freed
    "#);
    (result.dry_run, result.removed) = (false, Vec::new());
    insta::assert_snapshot!(gc::render(&result), @"0 tasks and 40 events removed, 3.0 MiB freed");
}

fn daemon_status() -> DaemonStatusResult {
    DaemonStatusResult {
        version: "0.1.0".into(),
        pid: 4000,
        home: "/home/ada/.local/state/belay".into(),
        runtime_dir: "/run/user/1000/belay".into(),
        started_at: before(7_500_000),
        uptime_ms: 7_500_000,
        tasks_live: 3,
        tasks_ended: 120,
        output_bytes: 9_000_000,
        journal_bytes: 400_000,
        events_first: 1,
        events_last: 960,
        clients: 3,
        calls_waiting: 2,
        shims_ready: 2,
        containment: ContainmentInfo {
            kind: ContainmentKind::Cgroup,
            layout: CgroupLayout::V2,
            cgroup: Some("/sys/fs/cgroup/user.slice/belay".into()),
            why: "delegated by systemd".into(),
            budgets: BudgetEnforcement::default(),
        },
        idle_exit_ms: None,
        steps: StepCostInfo { count: 9_000, longest_cpu_us: 800, longest_wall_us: 1_200, kinds: Vec::new() },
        notices: vec![DaemonNotice {
            at: before(60_000),
            message: "a damaged journal was set aside as journal.db.damaged-1".into(),
            hint: Some("belay doctor".into()),
        }],
    }
}

#[test]
fn the_daemon() {
    insta::assert_snapshot!("status", status::render(&daemon_status(), NOW, false));
    let paths = Paths::new("/h".into(), "/r".into());
    insta::assert_snapshot!("up", up::render(&daemon_status(), &paths, false));
}

#[test]
fn findings() {
    let finding = |verdict, topic, message: &str, hint: Option<&str>| DoctorFinding {
        verdict,
        topic,
        message: message.into(),
        hint: hint.map(Into::into),
    };
    let findings = [
        finding(FindingVerdict::Ok, FindingTopic::Home, "/home/ada/.local/state/belay", None),
        finding(FindingVerdict::Note, FindingTopic::Outside, "docker is not ours to hold", None),
        finding(
            FindingVerdict::Warning,
            FindingTopic::Containment,
            "no cgroup",
            Some("systemd-run --user --scope belay up"),
        ),
        finding(FindingVerdict::Problem, FindingTopic::Journal, "the disk is full", Some("belay gc --all")),
    ];
    let long = finding(
        FindingVerdict::Warning,
        FindingTopic::Budgets,
        "a budget of memory or processes is looked at four times a second, and can be exceeded for a moment",
        Some("run the daemon where it may make cgroups: as root, or below a delegated one of your own"),
    );
    insta::assert_snapshot!("doctor_narrow", doctor::render(&[long], Some(64), false));
    insta::assert_snapshot!("doctor", doctor::render(&findings, None, false));
    insta::assert_snapshot!(doctor::render(&findings[..1], None, false), @r#"
    ok       home         /home/ada/.local/state/belay
    All is well.
    "#);
}

#[test]
fn matches_with_context() {
    let found = |number, text: &str, open| OutputSearchLine {
        line: OutputLine {
            stream: StreamName::Stdout,
            offset: 0,
            data: text.into(),
            text: None,
            matched: true,
        },
        number,
        open,
    };
    let mut groups = logs::Groups::new(true);
    let lines = [
        found(1, "one", false),
        found(2, "two", false),
        found(9, "far \x1b[2Jaway", false),
        found(10, "open", true),
        found(11, "too", true),
    ];
    let text: Vec<u8> = lines.iter().flat_map(|found| groups.text(found, true)).collect();
    assert_eq!(String::from_utf8(text).unwrap(), "one\ntwo\n--\nfar ␛[2Jaway\nopen\ntoo");
}

#[test]
fn explained_lines() {
    let read = |verdict, command: Option<&str>, ampersands: &[[u64; 2]]| ShellReadResult {
        verdict,
        explanation: "What is done, and why.".into(),
        command: command.map(Into::into),
        shell: "/bin/bash".into(),
        ampersands: ampersands.to_vec(),
    };
    let shown = |line: &str, read: &ShellReadResult| explained(&line.into(), read).join("\n");
    assert_eq!(
        shown("echo ä漢 & x &", &read(LineVerdict::Held, None, &[[11, 12], [15, 16]])),
        "held: What is done, and why.\n  shell  /bin/bash\n  line   echo ä漢 & x &\n                  ^   ^"
    );
    assert_eq!(
        shown("x &\n", &read(LineVerdict::Detach, Some("x  \n"), &[[2, 3]])),
        "detach: What is done, and why.\n  shell  /bin/bash\n  runs   x"
    );
    assert_eq!(
        shown("x", &read(LineVerdict::Plain, None, &[])),
        "plain: What is done, and why.\n  shell  /bin/bash"
    );
}
