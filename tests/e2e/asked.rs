//! What is asked in a way that cannot be meant: every method says so in the same words, and names what is wrong.

use serde_json::json;

use crate::raw::Raw;
use crate::support::{FOREVER, world};

// proves X2
#[test]
fn an_answer_with_room_for_nothing_is_refused_by_every_method() {
    let world = world();
    let id = world.run_detached(["echo", "a line"]);
    world.wait_ended(&id);
    let mut raw = Raw::greeted(&world);
    let session = raw.call("session/open", &json!({}))["result"]["session"]["id"].clone();
    for (method, params, field) in [
        ("task/list", json!({}), "limit"),
        ("session/list", json!({}), "limit"),
        ("session/notices", json!({ "id": session }), "max"),
        ("event/read", json!({}), "max"),
        ("output/read", json!({ "id": id }), "max_bytes"),
        ("output/search", json!({ "id": id, "pattern": "line" }), "max_matches"),
    ] {
        let mut asked = params;
        asked[field] = json!(0);
        let error = raw.call(method, &asked)["error"].clone();
        assert_eq!(error["message"], format!("{field} must be at least 1"), "{method}: {error}");
        let data = json!({ "kind": "invalid", "field": field, "hint": "leave it out for as much as fits into one reply" });
        assert_eq!(error["data"], data, "{method}");
        asked[field] = json!(1);
        let fine = raw.call(method, &asked);
        assert!(fine["result"].is_object(), "{method}: {fine}");
    }
}

// proves X2
#[test]
fn parameters_are_an_object_for_every_method_or_left_out() {
    let world = world();
    let id = world.run_detached(["sleep", FOREVER]);
    let mut raw = Raw::greeted(&world);
    for method in belay_protocol::methods::NAMES {
        for (params, what) in [
            (json!([id]), "an array"),
            (json!([]), "an array"),
            (json!(id), "a string"),
            (json!(7), "a number"),
            (json!(true), "a boolean"),
        ] {
            let error = raw.call(method, &params)["error"].clone();
            let expected = json!({
                "code": -32602,
                "message": format!("expected an object, got {what}"),
                "data": {
                    "kind": "invalid",
                    "field": "params",
                    "hint": "the schema of every method is in docs/schema/client.json",
                },
            });
            assert_eq!(error, expected, "{method} {params}");
        }
    }
    for fine in [
        json!({ "jsonrpc": "2.0", "id": 7, "method": "task/list" }),
        json!({ "jsonrpc": "2.0", "id": 7, "method": "task/list", "params": null }),
        json!({ "jsonrpc": "2.0", "id": 7, "method": "task/list", "params": {} }),
    ] {
        let answer = raw.say(fine.to_string().as_bytes());
        assert_eq!(answer["result"]["tasks"][0]["id"], id, "{fine}: {answer}");
        assert_eq!(answer["result"]["tasks"][0]["status"], "running", "nobody has stopped it");
    }
}
