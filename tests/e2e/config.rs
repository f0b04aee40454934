//! Settings in the file: what they do, where they come from, and what happens to a file that is wrong.

use std::os::unix::fs::PermissionsExt as _;

use belay_protocol::config::{ConfigGetResult, ConfigItem, ConfigSetParams, ConfigSource};
use belay_protocol::error::ErrorKind;
use belay_protocol::methods::{ConfigSet, TaskStart};
use belay_protocol::task::{ClockInfo, DetachedBy, TaskInfo, TaskStartParams};
use belay_testkit::World;
use serde_json::json;

use crate::support::{FOREVER, builder, refused, world};

fn write(world: &World, text: &str) {
    std::fs::write(world.home().join("config.toml"), text).unwrap();
}

fn limits(task: &TaskInfo) -> [Option<u64>; 3] {
    let ms = |clock: Option<ClockInfo>| clock.map(|clock| clock.limit_ms);
    [ms(task.clocks.timeout), ms(task.clocks.ttl), ms(task.clocks.silence)]
}

#[track_caller]
fn item(world: &World, key: &str) -> ConfigItem {
    let found: ConfigGetResult = world.belay(["config", "--json"]).ok().json();
    found.items.into_iter().find(|item| item.key == key).unwrap()
}

// proves R1, R8
#[test]
fn a_start_gets_the_limits_that_it_does_not_name() {
    let world = world();
    write(&world, "[defaults]\ntimeout = \"1h\"\nttl = \"2h\"\nsilence = \"3h\"\ngrace = \"150ms\"\n");
    let started = |args: &[&str]| {
        let id = world.run_detached(args.iter().chain(&["--", "sleep", FOREVER]));
        (limits(&world.inspect(&id)), id)
    };
    let (all, id) = started(&[]);
    assert_eq!(all, [Some(3_600_000), Some(7_200_000), Some(10_800_000)]);
    assert!(world.inspect(&id).clocks.ttl.unwrap().remaining_ms.is_some());
    let (some, _) = started(&["--timeout", "5m", "--ttl", "none"]);
    assert_eq!(some, [Some(300_000), None, Some(10_800_000)]);
    let (none, _) = started(&["--timeout", "none", "--ttl", "none", "--silence", "none"]);
    assert_eq!(none, [None, None, None]);

    // The grace, by its effect.
    let stubborn = "trap '' TERM; echo ready; while :; do sleep 0.02; done";
    let id = world.run_detached(["sh", "-c", stubborn]);
    world.wait_for_output(&id, "ready", |said| said == b"ready\n");
    world.belay(["stop", &id]).ok();
    let outcome = world.get(&id).outcome.unwrap();
    let receipt = outcome.receipt().unwrap();
    let between = receipt.signals[1].at.0 - receipt.signals[0].at.0;
    assert!((145..2_000).contains(&between), "{receipt:?}");
}

// proves R1, R8
#[test]
fn what_a_default_timeout_does_can_be_set_too() {
    let world = world();
    write(&world, "[defaults]\ntimeout = \"200ms\"\non_timeout = \"detach\"\n");
    let said = world.belay(["run", "--json", "--", "sleep", FOREVER]);
    let task: TaskInfo = said.json();
    assert_eq!((task.detached_by, task.status.is_ended()), (Some(DetachedBy::Timeout), false), "{said}");
    assert_eq!(world.belay(["run", "--on-timeout", "stop", "--", "sleep", FOREVER]).code, Some(124));
}

// proves S2, R8
#[test]
fn a_token_compares_what_was_said_and_not_what_was_set() {
    let world = world();
    let params = TaskStartParams { token: Some("one".into()), ..world.start_params(&["sleep", FOREVER]) };
    let first = world.start(&params);
    world.belay(["config", "set", "defaults.ttl", "1h"]).ok();
    assert_eq!(world.start(&params).id, first.id);
    let twice = TaskStartParams {
        ttl_ms: Some(5),
        no_limits: vec![belay_protocol::task::NoLimit::Ttl],
        ..world.start_params(&["true"])
    };
    let error = refused(world.client().call::<TaskStart>(&twice));
    assert_eq!((error.data.kind, error.data.field.as_deref()), (ErrorKind::Invalid, Some("no_limits")));
}

// proves R8
#[test]
fn a_setting_counts_at_once_and_the_file_keeps_its_comments() {
    let world = world();
    write(&world, "# ours\n[defaults]\n# long enough\nttl = \"1h\" # an hour\n");
    assert_eq!(world.belay(["config", "get", "defaults.ttl"]).ok().line(), "1h");
    let said = world.belay(["config", "set", "defaults.ttl", "90m"]).ok();
    assert_eq!(said.line(), "defaults.ttl is 1h30m from now on.");
    let text = || std::fs::read_to_string(world.home().join("config.toml")).unwrap();
    assert_eq!(text(), "# ours\n[defaults]\n# long enough\nttl = \"1h30m\" # an hour\n");
    let id = world.run_detached(["sleep", FOREVER]);
    assert_eq!(limits(&world.inspect(&id)), [None, Some(5_400_000), None]);

    world.belay(["config", "set", "daemon.max_tasks", "1"]).ok();
    let refused = world.belay(["run", "-d", "--", "sleep", FOREVER]);
    assert_eq!(refused.code, Some(1), "{refused}");
    let first = String::from_utf8(refused.stderr).unwrap().lines().next().unwrap().to_owned();
    assert_eq!(first, "error: the limit of live tasks is reached (daemon.max_tasks = 1)");
    world.belay(["config", "unset", "daemon.max_tasks"]).ok();
    world.run_detached(["true"]);

    // For the rest the answer says when.
    let said = world.belay(["config", "set", "daemon.idle_exit", "never"]).ok();
    assert_eq!(
        said.line(),
        "daemon.idle_exit is never from the next start of the daemon on: belay down, belay up."
    );
    let idle = item(&world, "daemon.idle_exit");
    assert_eq!((idle.value, idle.from_next_start), (json!("30m"), Some(json!("never"))));
    world.belay(["down"]).ok();
    let idle = item(&world, "daemon.idle_exit");
    let source = ConfigSource::File { place: format!("{}/config.toml:7", world.marker()) };
    let expected = (json!("never"), source, None);
    assert_eq!((idle.value, idle.source, idle.from_next_start), expected, "{}", text());
}

// proves R8, D8
#[test]
fn a_rule_of_retention_is_applied_as_soon_as_it_is_set() {
    let world = world();
    let ids: Vec<String> = (0..3).map(|_| world.run_detached(["true"])).collect();
    for id in &ids {
        world.wait_ended(id);
    }
    world.belay(["config", "set", "retention.tasks", "1"]).ok();
    let left: Vec<TaskInfo> = world.belay(["ps", "-a", "--json"]).ok().json_lines();
    assert_eq!(left.len(), 1, "{left:?}");
}

// proves R8
#[test]
fn the_environment_counts_before_the_file() {
    let world = builder().env("BELAY_IDLE_EXIT", "17m").build();
    write(&world, "[daemon]\nidle_exit = \"5m\"\nmax_tasks = 12\n");
    let found: ConfigGetResult = world.belay(["config", "--json"]).ok().json();
    let told = |key: &str| {
        let item = found.items.iter().find(|item| item.key == key).unwrap();
        (item.value.clone(), item.source.clone())
    };
    let variable = "BELAY_IDLE_EXIT".to_owned();
    let place = format!("{}/config.toml:3", world.marker());
    assert_eq!(told("daemon.idle_exit"), (json!("17m"), ConfigSource::Env { variable }));
    assert_eq!(told("daemon.max_tasks"), (json!(12), ConfigSource::File { place }));
    assert_eq!(told("retention.age"), (json!("7d"), ConfigSource::Default));
    assert_eq!(world.status().idle_exit_ms, Some(17 * 60_000));
    let said = world.belay(["config", "set", "daemon.idle_exit", "1h"]).ok();
    let line = "The file is changed, but daemon.idle_exit stays 17m: BELAY_IDLE_EXIT of the daemon counts before it.";
    assert_eq!(said.line(), line);
    assert_eq!(world.belay(["config", "get", "daemon.idle_exit"]).ok().line(), "17m");
}

// proves R8
#[test]
fn a_wrong_file_keeps_a_daemon_from_starting_and_changes_nothing_for_one_that_runs() {
    let world = world();
    write(&world, "[daemon]\nidle_exit = \"soon\"\n");
    let place = format!("{}/config.toml", world.marker());
    let fault = format!(
        "{place}:2: daemon.idle_exit cannot be \"soon\": write it as a duration above 0 such as \"30s\", \"10m\" or \"2h\", at most a year, or \"never\""
    );
    let said = world.belay(["up"]);
    assert_eq!(said.code, Some(4), "{said}");
    let first = String::from_utf8(said.stderr).unwrap().lines().next().unwrap().to_owned();
    assert_eq!(first, format!("error: the daemon could not be started: {fault}"));
    assert_eq!(world.belay(["config", "path"]).ok().line(), place, "without a daemon");

    write(&world, "[defaults]\nttl = \"1h\"\n");
    world.belay(["up"]).ok();
    write(&world, "[defaults]\nttl = \"2h\"\nttls = 1\n");
    let id = world.run_detached(["sleep", FOREVER]);
    assert_eq!(limits(&world.inspect(&id)), [None, Some(3_600_000), None], "as before");
    let found: ConfigGetResult = world.belay(["config", "--json"]).ok().json();
    let fault = format!(
        "{place}:3: there is no setting ttls in [defaults]; there are timeout, on_timeout, ttl, silence, grace, output_limit"
    );
    assert_eq!(found.problem.as_deref(), Some(fault.as_str()));
    assert_eq!(world.status().notices.last().unwrap().message, fault);
    let error = refused(
        world.client().call::<ConfigSet>(&ConfigSetParams { key: "defaults.ttl".into(), value: json!("3h") }),
    );
    assert_eq!((error.data.kind, error.message), (ErrorKind::WrongState, fault));

    write(&world, "[defaults]\nttl = \"2h\"\n");
    let id = world.run_detached(["sleep", FOREVER]);
    assert_eq!(limits(&world.inspect(&id)), [None, Some(7_200_000), None], "by hand, without a word");
}

// proves R8
#[test]
fn what_cannot_be_set_is_refused_and_nothing_changes() {
    let world = world();
    world.belay(["up"]).ok();
    let set = |key: &str, value| {
        refused(world.client().call::<ConfigSet>(&ConfigSetParams { key: key.into(), value }))
    };
    let error = set("daemon.max_task", json!(1));
    assert_eq!(
        (error.data.field.as_deref(), error.message.as_str()),
        (Some("key"), "there is no setting \"daemon.max_task\"")
    );
    for (key, value) in [
        ("daemon.max_tasks", json!(0)),
        ("daemon.max_tasks", json!(1.5)),
        ("daemon.max_tasks", json!({})),
        ("defaults.timeout", json!("0s")),
        ("defaults.timeout", json!("2000d")),
        ("defaults.output_limit", json!("1")),
        ("hooks.on_end", json!([])),
        ("hooks.on_end", json!(["", "x"])),
        ("hooks.on_end", json!("a\0b")),
    ] {
        let error = set(key, value.clone());
        assert_eq!(
            (error.data.kind, error.data.field.as_deref()),
            (ErrorKind::Invalid, Some("value")),
            "{value}"
        );
        assert!(error.message.starts_with(&format!("{key} cannot be ")), "{error}");
    }
    assert!(!world.home().join("config.toml").exists());
}

// proves R8
#[test]
fn a_home_that_cannot_be_written_is_told() {
    let world = builder().as_nobody().build();
    world.belay(["up"]).ok();
    let mode = |mode| std::fs::set_permissions(world.home(), std::fs::Permissions::from_mode(mode)).unwrap();
    mode(0o500);
    let said = world.belay(["config", "set", "defaults.ttl", "1h"]);
    mode(0o700);
    assert_eq!(said.code, Some(1), "{said}");
    let first = String::from_utf8(said.stderr).unwrap().lines().next().unwrap().to_owned();
    let path = format!("{}/config.toml", world.marker());
    assert_eq!(first, format!("error: {path} cannot be written: Permission denied (os error 13)"));
    assert_eq!(world.belay(["config", "get", "defaults.ttl"]).code, Some(1), "nothing is set");
}

// proves R8
#[test]
fn a_link_to_the_file_stays_one() {
    let world = world();
    let real = world.dir().join("mine.toml");
    std::fs::write(&real, "[daemon]\n").unwrap();
    std::os::unix::fs::symlink(&real, world.home().join("config.toml")).unwrap();
    world.belay(["config", "set", "daemon.max_tasks", "9"]).ok();
    assert_eq!(std::fs::read_to_string(&real).unwrap(), "[daemon]\nmax_tasks = 9\n");
    assert!(world.home().join("config.toml").is_symlink());
}

// proves R8, X4
#[test]
fn what_runs_in_a_task_reads_the_settings_and_cannot_change_them() {
    let world = world();
    let belay = world.program().to_str().unwrap();
    assert_eq!(world.belay(["run", "--", belay, "config", "get", "retention.age"]).ok().line(), "7d");
    assert_eq!(world.belay(["run", "--", belay, "config", "set", "retention.age", "1d"]).code, Some(1));
    assert!(!world.home().join("config.toml").exists());
}

// proves R8
#[test]
fn settings_changed_at_once_are_all_kept() {
    let world = world();
    world.belay(["up"]).ok();
    let set = |key: &str, value: u64| {
        let params = ConfigSetParams { key: key.to_owned(), value: json!(value) };
        world.client().call::<ConfigSet>(&params).unwrap();
    };
    let keys = ["retention.tasks", "retention.events", "daemon.max_tasks"];
    for round in 1..=20 {
        std::thread::scope(|scope| {
            for key in keys {
                scope.spawn(|| set(key, 1_000 + round));
            }
        });
        for key in keys {
            assert_eq!(item(&world, key).value, json!(1_000 + round), "{key}, round {round}");
        }
    }
}

// proves R8, X3
#[test]
fn pipe_in_place_of_settings_blocks_no_caller() {
    let world = world();
    world.belay(["up"]).ok();
    let path = world.home().join("config.toml");
    world.shell(&format!("mkfifo {}", path.display())).ok();
    assert_eq!(world.belay(["run", "--", "echo", "served"]).ok().line(), "served");
    let refusal = refused(
        world
            .client()
            .call::<ConfigSet>(&ConfigSetParams { key: "retention.tasks".to_owned(), value: json!(5) }),
    );
    assert_eq!(refusal.message, format!("{} cannot be read: it is not a file", path.display()));
    std::fs::remove_file(&path).unwrap();
    world.belay(["config", "set", "retention.tasks", "5"]).ok();
    assert_eq!(item(&world, "retention.tasks").value, json!(5));
}
