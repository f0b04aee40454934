//! Finding tasks and events: filters of lists, labels, who started a task, and pages of a filtered list.

use std::collections::BTreeSet;

use belay_client::Client;
use belay_protocol::event::{EventFilter, EventReadParams};
use belay_protocol::lane::LaneParams;
use belay_protocol::methods::{EventRead, SessionList, SessionOpen, TaskList};
use belay_protocol::session::{SessionListParams, SessionOpenParams};
use belay_protocol::task::{TaskListParams, TaskStartParams, TaskStatus};
use belay_protocol::{ErrorKind, Labels};
use belay_testkit::World;
use serde_json::json;

use crate::raw::Raw;
use crate::support::{FOREVER, refused, stop_of, world};

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// The ids of all pages, newest first; each page has at most `limit` rows.
fn list(client: &mut Client, params: &TaskListParams, limit: u32) -> Vec<String> {
    let mut params = TaskListParams { limit: Some(limit), ..params.clone() };
    let mut ids = Vec::new();
    loop {
        let page = client.call::<TaskList>(&params).unwrap();
        assert!(page.tasks.len() <= limit as usize);
        ids.extend(page.tasks.into_iter().map(|task| task.id));
        params.cursor = page.next_cursor;
        if params.cursor.is_none() {
            let unique: BTreeSet<&String> = ids.iter().collect();
            assert_eq!(unique.len(), ids.len(), "{ids:?}");
            return ids;
        }
    }
}

fn start(world: &World, argv: &[&str], change: impl FnOnce(&mut TaskStartParams)) -> String {
    let mut params = world.start_params(argv);
    change(&mut params);
    world.start(&params).id
}

// proves E3, L7
#[test]
fn list_filters_select_live_and_ended_tasks() {
    let world = world();
    let mut client = world.client();
    let session = client.call::<SessionOpen>(&SessionOpenParams::default()).unwrap().session.id;
    let build = start(&world, &["sh", "-c", "exit 3"], |start| {
        start.name = Some("build".to_owned());
        start.labels = labels(&[("team", "web"), ("path", "a/b%")]);
    });
    world.wait_ended(&build);
    let ended = world.inspect(&build).ended_at.unwrap();
    let other = start(&world, &["true"], |start| start.session = Some(session.clone()));
    world.wait_ended(&other);
    let server = start(&world, &["sleep", FOREVER], |start| {
        start.labels = labels(&[("team", "web")]);
        start.lane = Some(LaneParams { name: "deploy".to_owned(), ..LaneParams::default() });
    });
    let in_session = start(&world, &["sleep", "1001"], |start| start.session = Some(session.clone()));

    let all = TaskListParams { all: true, ..TaskListParams::default() };
    let team = labels(&[("team", "web")]);
    let cases: Vec<(TaskListParams, Vec<&String>)> = vec![
        (TaskListParams::default(), vec![&in_session, &server]),
        (all.clone(), vec![&in_session, &server, &other, &build]),
        (TaskListParams { status: vec![TaskStatus::Failed], ..TaskListParams::default() }, vec![&build]),
        (
            TaskListParams { status: vec![TaskStatus::Failed, TaskStatus::Running], ..all.clone() },
            vec![&in_session, &server, &build],
        ),
        (TaskListParams { session: Some(session.clone()), ..all.clone() }, vec![&in_session, &other]),
        (TaskListParams { lane: Some("deploy".to_owned()), ..all.clone() }, vec![&server]),
        (TaskListParams { name: Some("build".to_owned()), ..all.clone() }, vec![&build]),
        (TaskListParams { text: Some("EXIT 3".to_owned()), ..all.clone() }, vec![&build]),
        (TaskListParams { text: Some("uil".to_owned()), ..all.clone() }, vec![&build]),
        (TaskListParams { labels: team.clone(), ..all.clone() }, vec![&server, &build]),
        (
            TaskListParams { labels: labels(&[("team", "web"), ("path", "a/b%")]), ..all.clone() },
            vec![&build],
        ),
        (TaskListParams { labels: labels(&[("team", "w")]), ..all.clone() }, vec![]),
        (
            TaskListParams { actor: Some("user:".to_owned()), ..all.clone() },
            vec![&in_session, &server, &other, &build],
        ),
        (TaskListParams { actor: Some("via mcp".to_owned()), ..all.clone() }, vec![]),
        (
            TaskListParams {
                ended_before: Some(belay_protocol::Timestamp(ended.0 + 1)),
                ..TaskListParams::default()
            },
            vec![&build],
        ),
    ];
    for (params, expected) in &cases {
        for limit in [1, 2, 1000] {
            let found = list(&mut client, params, limit);
            assert_eq!(found.iter().collect::<Vec<_>>(), *expected, "{params:?}, {limit} a page");
        }
    }
    world.stop(&stop_of(&server));
    world.stop(&stop_of(&in_session));
    for (params, expected) in cases.iter().filter(|(params, _)| params.all && params.status.is_empty()) {
        let found = list(&mut client, params, 2);
        assert_eq!(found.iter().collect::<Vec<_>>(), *expected, "after the end: {params:?}");
    }
}

// proves E3
#[test]
fn labels_select_events_and_sessions() {
    let world = world();
    let mut client = world.client();
    let team = labels(&[("team", "web")]);
    let open = SessionOpenParams { labels: team.clone(), ..SessionOpenParams::default() };
    let session = client.call::<SessionOpen>(&open).unwrap().session;
    assert_eq!(session.labels, team);
    client.call::<SessionOpen>(&SessionOpenParams::default()).unwrap();
    let listed = client
        .call::<SessionList>(&SessionListParams { labels: team.clone(), ..SessionListParams::default() })
        .unwrap();
    assert_eq!(listed.sessions.iter().map(|session| &session.id).collect::<Vec<_>>(), [&session.id]);

    let marked = start(&world, &["true"], |start| start.labels.clone_from(&team));
    start(&world, &["true"], |_| {});
    world.wait_ended(&marked);
    world.belay(["rm", &marked]).ok();
    let all = world.events();
    let is_marked = |task: Option<&str>, of: Option<&str>| {
        task == Some(&marked) || (task.is_none() && of == Some(session.id.as_str()))
    };
    let expected: Vec<u64> = all
        .iter()
        .filter(|info| is_marked(info.event.task(), info.event.session()))
        .map(|info| info.seq)
        .collect();
    assert!(expected.len() > 3, "{all:?}");
    let only = EventFilter { labels: team, ..EventFilter::default() };
    let read = client.call::<EventRead>(&EventReadParams { only, ..EventReadParams::default() }).unwrap();
    assert_eq!(read.events.iter().map(|info| info.seq).collect::<Vec<_>>(), expected);

    let mut wrong = world.start_params(&["true"]);
    wrong.labels = labels(&[("a=b", "c")]);
    let error = refused(client.call::<belay_protocol::methods::TaskStart>(&wrong));
    assert_eq!((error.data.kind, error.data.field.as_deref()), (ErrorKind::Invalid, Some("labels")));
}

#[test]
fn start_names_its_client_and_inherits_its_environment() {
    let world = world();
    let mut raw = Raw::greeted(&world);
    let spec = json!({ "kind": "shell", "command": { "kind": "argv", "argv": ["sh", "-c", "printf '%s|%s|%s' \"$PATH\" \"$HOME\" \"$EXTRA\""] } });
    let env = json!([format!("BELAY_HOME={}", world.marker()), "HOME=/replaced"]);
    let params = json!({ "spec": spec, "cwd": "/", "env": env, "set_env": { "EXTRA": "set" }, "inherit_env": true, "detached": true });
    let started = raw.call("task/start", &params);
    let id = started["result"]["id"].as_str().unwrap().to_owned();
    assert_eq!(started["result"]["client"], json!({ "name": "raw", "version": "0" }), "{started}");
    let by = started["result"]["started_by"].as_str().unwrap();
    assert!(by.starts_with("user:") && by.ends_with(" via api"), "{by}");
    assert_eq!(world.wait_ended(&id).status, TaskStatus::Completed);
    let path = std::env::var("PATH").unwrap();
    assert_eq!(String::from_utf8(world.stdout_of(&id)).unwrap(), format!("{path}|/replaced|set"));
}
