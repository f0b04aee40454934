//! What scripts rely on: JSON wherever it was asked for, and exit codes that mean the same everywhere.

use serde_json::{Value, json};

use crate::support::world;

// proves S3
#[test]
fn what_cannot_be_started_has_the_same_code_in_front_and_in_the_background() {
    let world = world();
    let file = world.dir().join("not-executable");
    std::fs::write(&file, "echo\n").unwrap();
    for (program, code) in [("no-such-program-at-all", 127), (file.to_str().unwrap(), 126)] {
        for words in [&["run", "--"][..], &["run", "-d", "--"], &["run", "-d", "--json", "--"]] {
            let said = world.belay([words, &[program]].concat());
            assert_eq!(said.code, Some(code), "{words:?}: {said}");
            assert!(!said.stderr.is_empty(), "it is told: {said}");
        }
    }
}

// proves K4
#[test]
fn whether_there_is_a_daemon_is_answered_in_json_where_json_was_asked_for() {
    let world = world();
    for (verb, code, expected) in
        [("status", 1, json!({ "running": false })), ("down", 0, json!({ "running": false }))]
    {
        let said = world.belay([verb, "--json"]);
        assert_eq!((said.code, said.stderr.as_slice()), (Some(code), &b""[..]), "{verb}: {said}");
        assert_eq!(said.json::<Value>(), expected, "{verb}");
    }
    world.belay(["up"]).ok();
    let status: Value = world.belay(["status", "--json"]).ok().json();
    assert_eq!((&status["running"], &status["tasks_live"]), (&json!(true), &json!(0)));
    let down: Value = world.belay(["down", "--json"]).ok().json();
    assert_eq!(down, json!({ "running": false, "receipts": [], "left_running": 0 }));
}
