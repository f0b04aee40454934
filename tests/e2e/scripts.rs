//! What scripts rely on: JSON wherever it was asked for, and exit codes that mean the same everywhere.

use serde_json::{Value, json};

use crate::support::world;

// proves K4
#[test]
fn whether_there_is_a_daemon_is_answered_in_json_where_json_was_asked_for() {
    let world = world();
    for (verb, code, expected) in [
        ("status", 1, json!({ "running": false })),
        ("down", 0, json!({ "running": false, "receipts": [], "left_running": 0 })),
    ] {
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
