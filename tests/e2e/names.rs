//! Names: wherever a task is named by its id, the name that it was given does as well, as long as one task is meant.

use belay_protocol::ErrorKind;
use belay_protocol::methods::{SessionOpen, TaskGet, TaskStart};
use belay_protocol::session::SessionOpenParams;
use belay_protocol::task::{TaskGetParams, TaskInfo, TaskStopResult, TaskWaitResult};
use belay_testkit::World;

use crate::support::{FOREVER, refused, world};

fn named(world: &World, name: &str) -> String {
    world.run_detached(["--name", name, "--", "sleep", FOREVER])
}

fn get(name: &str) -> TaskGetParams {
    TaskGetParams { id: name.to_owned() }
}

// proves L8
#[test]
fn every_command_takes_the_name_of_a_task() {
    let world = world();
    let id = world.run_detached(["--name", "the web", "--stdin", "--", "cat"]);
    world.belay(["send", "the web", "hello"]).ok();
    let matched: TaskWaitResult =
        world.belay(["wait", "--json", "--match", "hello", "--timeout", "1m", "the web"]).ok().json();
    let shown: TaskInfo = world.belay(["inspect", "--json", "the web"]).ok().json();
    let detached: TaskInfo = world.belay(["detach", "--json", "the web"]).ok().json();
    assert_eq!([matched.id, shown.id, detached.id], [id.as_str(); 3]);
    assert_eq!(world.belay(["logs", "the web"]).ok().stdout, b"hello\n");
    world.belay(["signal", "CONT", "the web"]).ok();
    let attached = world.spawn(["attach", "the web"]);
    attached.wait_for_stdout("its last lines", |said| said == b"hello\n");
    let stopped: TaskStopResult = world.belay(["stop", "--json", "the web"]).ok().json();
    assert_eq!(stopped.id, id);
    attached.finish();
    let last = world.belay(["events", "--task", "the web", "--type", "task.ended"]).ok().line();
    assert!(last.contains(&id), "{last}");
    world.belay(["rm", "the web"]).ok();
    assert_eq!(refused(world.client().call::<TaskGet>(&get("the web"))).data.kind, ErrorKind::NotFound);
}

// proves L8
#[test]
fn a_live_task_comes_first_then_the_newest_and_two_live_ones_are_told_apart_by_id() {
    let world = world();
    let [first, second] = [(); 2].map(|()| named(&world, "web"));
    let both = world.belay(["stop", "web"]);
    assert_eq!((both.code, both.stdout.as_slice()), (Some(1), &b""[..]));
    let error = refused(world.client().call::<TaskGet>(&get("web")));
    let mut ids = [first.clone(), second.clone()];
    ids.sort_unstable();
    let told = format!("error: 2 live tasks have the name web\n hint: one of: {}\n", ids.join(", "));
    assert_eq!(String::from_utf8_lossy(&both.stderr), told, "once");
    assert_eq!(
        (error.data.kind, error.message.as_str()),
        (ErrorKind::Ambiguous, "2 live tasks have the name web")
    );
    assert_eq!(error.data.ids, ids);

    world.belay(["stop", &second]).ok();
    assert_eq!(world.inspect("web").id, first, "the live one, though the other is newer");
    world.belay(["stop", "web"]).ok();
    assert_eq!(world.inspect("web").id, second, "the newest of those that have ended");
    world.kill_daemon();
    assert_eq!(world.inspect("web").id, second, "also for the next daemon");
}

// proves L8, L6, X2
#[test]
fn an_id_is_no_name_and_nobody_is_told_of_names_beyond_what_is_theirs() {
    let world = world();
    let web = named(&world, "web");
    // What may be taken for an id, or for the beginning of one that is still to come, is no name.
    for id in [&web, &web[..8], "ag-0"] {
        let said = world.belay(["run", "-d", "--name", id, "--", "sleep", FOREVER]);
        let error = "error: a name must not look like a task id or the beginning of a task id\n hint: choose a name that does not begin with sh- or ag-\n";
        assert_eq!((said.code, String::from_utf8(said.stderr).unwrap().as_str()), (Some(2), error));
    }

    let opened = world.client().call::<SessionOpen>(&SessionOpenParams::default()).unwrap();
    let mut inside = world.client_as(&opened.token);
    assert_eq!(refused(inside.call::<TaskGet>(&get("web"))).data.kind, ErrorKind::NotFound);
    let mut params = world.start_params(&["sleep", FOREVER]);
    params.name = Some("web".to_owned());
    let own = inside.call::<TaskStart>(&params).unwrap();
    assert_eq!(inside.call::<TaskGet>(&get("web")).unwrap().id, own.id);
    for hostile in ["", "\u{1b}[31m", "../../etc/passwd", &"x".repeat(10_000)] {
        let error = refused(world.client().call::<TaskGet>(&get(hostile)));
        assert_eq!(error.data.kind, ErrorKind::NotFound, "{error:?}");
        assert!(error.message.len() < 100 && !error.message.contains('\u{1b}'), "{error:?}");
    }
}

/// Others' ids that begin alike come before somebody's own, and still it is told that two of its own do.
// proves L6, X2
#[test]
fn a_beginning_that_fits_two_of_ones_own_is_ambiguous_however_many_others_it_fits() {
    let world = world();
    let opened = world.client().call::<SessionOpen>(&SessionOpenParams::default()).unwrap();
    let mut inside = world.client_as(&opened.token);
    let params = world.start_params(&["true"]);
    // Among so many two begin alike, with the first letter of 32.
    let own: Vec<String> = (0..33).map(|_| inside.call::<TaskStart>(&params).unwrap().id).collect();
    let alike = |id: &String| own.iter().filter(|other| other[..4] == id[..4]).count() > 1;
    let beginning = own.iter().find(|id| alike(id)).unwrap()[..4].to_owned();
    let mut person = world.client();
    let mut others = 0;
    while others < 15 {
        others += usize::from(person.call::<TaskStart>(&params).unwrap().id.starts_with(&beginning));
    }
    let mut ids: Vec<String> = own.into_iter().filter(|id| id.starts_with(&beginning)).collect();
    ids.sort_unstable();
    let error = refused(inside.call::<TaskGet>(&get(&beginning)));
    assert_eq!((error.data.kind, error.data.ids), (ErrorKind::Ambiguous, ids));
    let all = refused(person.call::<TaskGet>(&get(&beginning)));
    let message = format!("more than 10 tasks begin with {beginning}");
    assert_eq!((all.message, all.data.ids.len()), (message, 10));
}

// proves L8, K4
#[test]
fn whoever_names_nobody_is_told_where_to_look() {
    let world = world();
    world.belay(["up"]).ok();
    let hint = " hint: belay ps -a lists them; ended ones are removed by the rules of retention\n";
    for (verb, first) in [
        ("stop", "nobody not found: there is no task with that id or name\n"),
        ("inspect", "error: there is no task nobody\n"),
        ("logs", "error: there is no task nobody\n"),
    ] {
        let said = world.belay([verb, "nobody"]);
        assert_eq!((said.code, String::from_utf8(said.stderr).unwrap()), (Some(1), format!("{first}{hint}")));
    }
}

// proves L8, X2
#[test]
fn a_script_is_answered_about_every_id_also_about_one_that_does_not_exist() {
    let world = world();
    world.belay(["up"]).ok();
    let told = |words: &[&str]| {
        let said = world.belay(words);
        assert_eq!(said.code, Some(1), "{said}");
        let answer: serde_json::Value = said.json();
        (answer["id"].clone(), answer["error"]["data"]["kind"].clone())
    };
    for words in [
        &["signal", "--json", "CONT", "nobody"][..],
        &["wait", "--json", "nobody"],
        &["detach", "--json", "nobody"],
        &["rm", "--json", "nobody"],
    ] {
        assert_eq!(told(words), ("nobody".into(), "not_found".into()), "{words:?}");
    }
}

// proves L8, X2
#[test]
fn what_was_asked_for_is_repeated_so_that_it_can_be_told_from_what_there_is() {
    let world = world();
    let id = named(&world, "web");
    for (asked, shown) in [(format!("{id}\n"), format!("{id}\\n")), ("\u{1}".to_owned(), "\\u{1}".to_owned())]
    {
        let error = refused(world.client().call::<TaskGet>(&get(&asked)));
        assert_eq!(
            (error.data.kind, error.message),
            (ErrorKind::NotFound, format!("there is no task {shown}"))
        );
    }
    // Also if it fits one task only: whoever left out the rest did not mean that one.
    let error = refused(world.client().call::<TaskGet>(&get("sh-")));
    assert_eq!(
        (error.data.kind, error.message.as_str(), error.data.ids),
        (ErrorKind::Ambiguous, "sh- alone is too short for the beginning of an id", vec![id])
    );
    assert_eq!(refused(world.client().call::<TaskGet>(&get("ag-"))).data.kind, ErrorKind::NotFound);
}
