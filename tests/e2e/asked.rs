//! What is asked in a way that cannot be meant: every method says so in the same words, and names what is wrong.

use serde_json::json;

use crate::raw::Raw;
use crate::support::world;

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
        assert_eq!(error["message"], "an answer must have room for 1 at least", "{method}: {error}");
        let data = json!({ "kind": "invalid", "field": field, "hint": "leave it out for as much as fits" });
        assert_eq!(error["data"], data, "{method}");
        asked[field] = json!(1);
        let fine = raw.call(method, &asked);
        assert!(fine["result"].is_object(), "{method}: {fine}");
    }
}
