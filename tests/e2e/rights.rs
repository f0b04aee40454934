//! Who may do what: an agent sees, starts under and stops its own subtree and nothing else, whatever it says of itself; a person
//! sees all of theirs.

use belay_protocol::ErrorKind;
use belay_protocol::daemon::ScopeInfo;
use belay_protocol::event;
use belay_protocol::methods::{
    EventRead, OutputRead, SessionOpen, TaskGet, TaskList, TaskSetStall, TaskStart, TaskStop, TaskWrite,
};
use belay_protocol::output::{OutputFrom, OutputReadParams};
use belay_protocol::session::{SessionDefaults, SessionOpenParams};
use belay_protocol::task::{
    OnStall, StallParams, StallSetting, StopCounts, StopVerdict, TaskGetParams, TaskInfo, TaskListParams,
    TaskSetStallParams, TaskStartParams, TaskStatus, TaskStopResult, TaskWriteParams,
};
use belay_testkit::{Output, World};

use serde_json::json;

use crate::raw::Raw;
use crate::sessions::open;
use crate::support::{FOREVER, refused, stop_of, with_stdin, world};

/// Runs a line of shell inside a task of its own, as an agent would; `$BELAY` is the command.
fn inside(world: &World, line: &str) -> Output {
    let belay = world.program().to_str().unwrap();
    world.belay(["run", "--env", &format!("BELAY={belay}"), "-c", line])
}

fn ids(listed: Vec<TaskInfo>) -> Vec<String> {
    listed.into_iter().map(|task| task.id).collect()
}

// proves L6, K4
#[test]
fn what_runs_inside_a_task_sees_and_stops_its_own_subtree_and_nothing_else() {
    let world = world();
    let foreign = world.run_detached(["sh", "-c", &format!("echo secret; sleep {FOREVER}")]);
    let listed: Vec<TaskInfo> = inside(&world, r#"exec "$BELAY" ps -a --json"#).ok().json_lines();
    assert_eq!(listed.len(), 1, "itself: {listed:?}");
    assert_eq!(listed[0].command, r#"exec "$BELAY" ps -a --json"#);
    for line in ["logs", "inspect", "wait", "rm", "detach", "attach"] {
        let said = inside(&world, &format!(r#""$BELAY" {line} {foreign}"#));
        assert_eq!((said.code, said.stdout.as_slice()), (Some(1), b"".as_slice()), "{line}: {said}");
    }
    let said = inside(&world, &format!(r#""$BELAY" stop {foreign}"#));
    assert_eq!(said.code, Some(1));
    let told = format!("{foreign} not permitted: this task is not yours to stop\n");
    assert_eq!(String::from_utf8(said.stderr).unwrap(), told);
    assert_eq!(world.get(&foreign).status, TaskStatus::Running);
    // Not even by the beginning of its name.
    let said = inside(&world, &format!(r#""$BELAY" stop {}"#, &foreign[..8]));
    assert_eq!(said.code, Some(1), "{said}");
    assert_eq!(world.get(&foreign).status, TaskStatus::Running);
    // What it starts is its own.
    let line = format!(
        r#"id=$("$BELAY" run -d -- sleep {FOREVER}) && "$BELAY" stop "$id" >/dev/null && echo "$id""#
    );
    let own = inside(&world, &line).ok().line();
    assert_eq!(world.wait_ended(&own).status, TaskStatus::Cancelled);
    let outcome = world.get(&own).outcome.unwrap();
    let actor = outcome.actor().unwrap();
    assert_eq!(actor, format!("task:{} via cli", world.get(&own).parent.unwrap()));
}

/// A process that hides where it comes from is looked at, not believed.
// proves L6, X4
#[test]
fn a_task_cannot_speak_as_a_person_by_forgetting_who_it_is() {
    let world = world();
    let foreign = world.run_detached(["sleep", FOREVER]);
    let home = world.home().to_str().unwrap();
    let bare = format!(r#"env -i BELAY_HOME='{home}' "$BELAY""#);
    for how in [
        bare.clone(),
        format!("setsid {bare}"),
        // An orphan: its parent is gone when it connects.
        format!("{{ (sleep 0.2; exec {bare} stop {foreign}) & }}; exit"),
    ] {
        let line = if how.contains("exit") { how } else { format!("{how} stop {foreign}") };
        inside(&world, &line);
        assert_eq!(world.get(&foreign).status, TaskStatus::Running, "{line}");
    }
    // Not even in the moment after it has killed its own holder.
    for _ in 0..3 {
        let line = format!("kill -9 $PPID; while :; do {bare} stop {foreign} >/dev/null 2>&1; done");
        inside(&world, &line);
        assert_eq!(world.get(&foreign).status, TaskStatus::Running);
    }
    for verb in ["down --stop-tasks", "gc --all", "doctor"] {
        let said = inside(&world, &format!("{bare} {verb}"));
        assert_eq!(said.code, Some(1), "{verb}: {said}");
    }
    assert_eq!(world.get(&foreign).status, TaskStatus::Running);
    // With a token of somebody above it, it speaks for nobody.
    let outer = open(&world, SessionOpenParams::default());
    let line = format!("BELAY_TOKEN='{}' \"$BELAY\" ps", outer.token);
    let said = inside(&world, &line);
    assert_eq!(said.code, Some(1), "{said}");
}

// proves L6, L2
#[test]
fn a_token_narrows_a_connection_to_its_session() {
    let world = world();
    let (one, other) =
        (open(&world, SessionOpenParams::default()), open(&world, SessionOpenParams::default()));
    let mut client = world.client_as(&one.token);
    assert_eq!(client.hello().unwrap().scope, ScopeInfo::Session { id: one.session.id.clone() });
    let params = with_stdin(world.start_params(&["cat"]));
    let own = client.call::<TaskStart>(&params).unwrap();
    assert_eq!((own.session.as_str(), own.parent.as_deref()), (one.session.id.as_str(), None));
    let foreign = world.client_as(&other.token).call::<TaskStart>(&params).unwrap();
    let listed = |client: &mut belay_client::Client| {
        ids(client
            .call::<TaskList>(&TaskListParams { all: true, ..TaskListParams::default() })
            .unwrap()
            .tasks)
    };
    assert_eq!(listed(&mut client), [own.id.as_str()]);
    assert_eq!(listed(&mut world.client()), [foreign.id.as_str(), own.id.as_str()]);
    let get = TaskGetParams { id: foreign.id.clone() };
    assert_eq!(refused(client.call::<TaskGet>(&get)).data.kind, ErrorKind::NotPermitted);
    let read = OutputReadParams {
        id: foreign.id.clone(),
        from: OutputFrom::Offset { offset: 0 },
        max_bytes: None,
        stream: None,
        text: false,
    };
    assert_eq!(refused(client.call::<OutputRead>(&read)).data.kind, ErrorKind::NotPermitted);
    let write =
        TaskWriteParams { id: foreign.id.clone(), data: "x".into(), close: false, key: None, room_ms: None };
    assert_eq!(refused(client.call::<TaskWrite>(&write)).data.kind, ErrorKind::NotPermitted);
    let stopped = client.call::<TaskStop>(&stop_of(&foreign.id)).unwrap();
    assert_eq!(stopped.result, StopVerdict::NotPermitted);
    // Nor can it start something in a session that is not its own.
    let elsewhere = TaskStartParams { session: Some(other.session.id), ..params };
    assert_eq!(refused(client.call::<TaskStart>(&elsewhere)).data.kind, ErrorKind::NotFound);
    // Its events are those of its own tasks, under the numbers that they have for everybody.
    let all = event::EventReadParams::default();
    let seen = client.call::<EventRead>(&all).unwrap();
    let others = world.client().call::<EventRead>(&all).unwrap().events;
    let mine = |event: &event::EventInfo| event.event.session() == Some(one.session.id.as_str());
    let mine: Vec<event::EventInfo> = others.into_iter().filter(mine).collect();
    assert_eq!(seen.events, mine);
    assert!(seen.events.iter().all(|event| event.event.task().is_none_or(|task| task == own.id)));
}

// proves X4
#[test]
fn what_runs_inside_a_session_cannot_change_the_policy_that_binds_it() {
    let world = world();
    let defaults =
        SessionDefaults { ttl_ms: Some(60_000), grace_ms: Some(500), ..SessionDefaults::default() };
    let opened =
        open(&world, SessionOpenParams { defaults, max_tasks: Some(3), ..SessionOpenParams::default() });
    let id = opened.session.id.clone();
    let belay = world.program().to_str().unwrap();
    let try_inside =
        |line: &str| world.belay(["run", "--session", &id, "--env", &format!("BELAY={belay}"), "-c", line]);
    for (line, words) in [
        (format!(r#""$BELAY" run -d --keep -- sleep {FOREVER}"#), "cannot change that"),
        (format!(r#""$BELAY" run -d --ttl 2h -- sleep {FOREVER}"#), "the session allows at most 60000"),
        (format!(r#""$BELAY" run -d --grace 1m -- sleep {FOREVER}"#), "the session allows at most 500"),
        (format!(r#""$BELAY" run -d --ttl none -- sleep {FOREVER}"#), "no limit was requested"),
        (r#""$BELAY" config set defaults.ttl 1h"#.to_owned(), "may not change a setting"),
        (format!(r#""$BELAY" sessions close {id}"#), "only its client or a person may do this"),
        (format!(r#""$BELAY" sessions renew {id}"#), "only its client or a person may do this"),
        (format!(r#""$BELAY" run -d --session user -- sleep {FOREVER}"#), "there is no session user"),
    ] {
        let said = try_inside(&line);
        assert_eq!(said.code, Some(1), "{line}: {said}");
        let told = String::from_utf8(said.stderr).unwrap();
        assert!(told.contains(words), "{line}: {told}");
    }
    // A session of its own inside does not lift the limit of the one around it.
    let line = format!(
        r#"eval "$("$BELAY" sessions open --on-end keep --export)"; n=0
        while "$BELAY" run -d --ttl 10s -- sleep {FOREVER} >/dev/null 2>&1; do n=$((n+1)); done; echo $n"#
    );
    assert_eq!(try_inside(&line).ok().line(), "2", "three with the shell itself");
    // Less is always allowed; and its own client may ask for more.
    try_inside(r#""$BELAY" sessions show "$BELAY_SESSION" >/dev/null"#).ok();
    let mut client = world.client_as(&opened.token);
    client
        .call::<belay_protocol::methods::SessionClose>(&belay_protocol::session::SessionCloseParams {
            id: id.clone(),
            on_end: None,
            reason: None,
            actor: None,
        })
        .unwrap();
    let reopened = open(&world, SessionOpenParams { defaults, ..SessionOpenParams::default() });
    let longer =
        TaskStartParams { ttl_ms: Some(600_000), keep: true, ..world.start_params(&["sleep", FOREVER]) };
    world.client_as(&reopened.token).call::<TaskStart>(&longer).unwrap();
}

// proves K7, L2
#[test]
fn a_cascade_stops_what_was_started_below_leaf_first_and_without_it_they_stay() {
    let world = world();
    let belay = world.program().to_str().unwrap();
    // Three levels: each prints what it has started, and stays.
    let line = format!(
        r#"if [ "$1" -gt 0 ]; then "$0" run -d -- sh -c "$2" "$0" $(($1 - 1)) "$2"; fi; sleep {FOREVER}"#
    );
    let nest = || {
        let root = world.run_detached(["sh", "-c", &line, belay, "2", &line]);
        let below = |id: &str| {
            let said = world.wait_for_output(id, "what it has started", |said| said.ends_with(b"\n"));
            String::from_utf8(said).unwrap().trim_end().to_owned()
        };
        let middle = below(&root);
        let leaf = below(&middle);
        [root, middle, leaf]
    };
    let [root, middle, leaf] = nest();
    assert_eq!(world.get(&leaf).lineage, [root.as_str(), middle.as_str()]);
    let shown = world.belay(["ps", "--tree"]).ok().line();
    let rows: Vec<&str> = shown.lines().skip(1).map(|row| row.split("  sh-").next().unwrap()).collect();
    assert!(
        rows.len() == 3
            && shown.contains(&format!("\n  {middle}"))
            && shown.contains(&format!("\n    {leaf}")),
        "{shown}"
    );
    let told = world.belay(["stop", "--cascade", "--json", &root]).ok();
    let told: Vec<TaskStopResult> = told.json_lines();
    let order: Vec<&str> = told.iter().map(|stopped| stopped.id.as_str()).collect();
    assert_eq!(order, [leaf.as_str(), middle.as_str(), root.as_str()]);
    let counts = StopCounts { tasks: 2, stopped: 2, ..StopCounts::default() };
    assert_eq!(told[2].below, Some(counts));
    let ended = |id: &str| world.get(id).ended_at.unwrap();
    assert!(ended(&leaf) <= ended(&middle) && ended(&middle) <= ended(&root));

    let [root, middle, leaf] = nest();
    world.stop(&stop_of(&root));
    assert_eq!([world.get(&middle).status, world.get(&leaf).status], [TaskStatus::Running; 2]);
    // The lineage goes on without the one that is gone.
    let told = world.belay(["stop", "--cascade", "--json", &root]).ok();
    let told: Vec<TaskStopResult> = told.json_lines();
    assert_eq!((told.len(), told[2].result), (3, StopVerdict::AlreadyEnded));
    assert_eq!(told[2].below, Some(counts));
    assert_eq!(world.get(&leaf).status, TaskStatus::Cancelled);
    let mut agent = world.client();
    let session = agent.call::<SessionOpen>(&SessionOpenParams::default()).unwrap();
    assert!(session.session.drained);
}

// proves L6, X4
#[test]
fn second_hello_is_refused_and_changes_nothing() {
    let world = world();
    let session = open(&world, SessionOpenParams::default());
    world.start(&world.start_params(&["sleep", FOREVER]));
    let mut raw = Raw::silent(&world);
    let hello = |token: Option<&str>| json!({ "client": { "name": "raw", "version": "0" }, "protocol": 1, "token": token });
    let first = raw.call("daemon/hello", &hello(Some(&session.token)));
    assert_eq!(first["result"]["scope"], json!({ "kind": "session", "id": session.session.id }));
    for token in [None, Some(session.token.as_str())] {
        let second = raw.call("daemon/hello", &hello(token));
        assert_eq!(second["error"]["data"]["kind"], "wrong_state", "{second}");
    }
    assert_eq!(raw.call("task/list", &json!({}))["result"]["tasks"], json!([]), "it is still the session");
}

// proves X4
#[test]
fn stall_policy_of_session_cannot_be_weakened_from_inside() {
    let world = world();
    let stall = |policy| Some(StallParams { after_ms: 60_000, policy });
    let defaults = |policy| SessionDefaults { stall: stall(policy), ..SessionDefaults::default() };
    let outer =
        open(&world, SessionOpenParams { defaults: defaults(OnStall::Stop), ..SessionOpenParams::default() });
    // The client of a session sets its policy; a session inside it may not weaken it.
    let mut client = world.client_as(&outer.token);
    let inner = client.call::<SessionOpen>(&SessionOpenParams::default()).unwrap();
    let mut within = world.client_as(&inner.token);
    let weaker = SessionOpenParams { defaults: defaults(OnStall::Tell), ..SessionOpenParams::default() };
    let error = refused(within.call::<SessionOpen>(&weaker));
    assert_eq!(
        (error.data.kind, error.data.field.as_deref()),
        (ErrorKind::NotPermitted, Some("defaults.stall"))
    );
    let task = within.call::<TaskStart>(&world.start_params(&["sleep", FOREVER])).unwrap();
    assert_eq!(task.clocks.stall.unwrap().limit_ms, 60_000);
    let off = TaskSetStallParams { id: task.id, stall: StallSetting::Off };
    let error = refused(within.call::<TaskSetStall>(&off));
    assert_eq!((error.data.kind, error.data.field.as_deref()), (ErrorKind::NotPermitted, Some("stall")));
    assert_eq!(world.client().call::<TaskSetStall>(&off).unwrap().clocks.stall, None, "a person may");
}
