//! Commands that hold a session, or wait for something in it, while the daemon is busy, or leaves and is followed by another.

use belay_client::Client;
use belay_os::fds::raise_nofile;
use belay_protocol::methods::{SessionGet, SessionList};
use belay_protocol::session::{
    SessionGetParams, SessionInfo, SessionListParams, SessionOpenParams, SessionState,
};
use belay_protocol::task::TaskStartParams;
use belay_testkit::{LONG, World, wait_until};

use crate::raw::Raw;
use crate::sessions::open;
use crate::support::world;

#[track_caller]
fn wait_state(client: &mut Client, id: &str, state: SessionState) {
    wait_until("the session's state", LONG, || {
        let info = client.call::<SessionGet>(&SessionGetParams { id: id.to_owned() }).unwrap();
        if info.state == state { Ok(()) } else { Err(format!("{info:?}")) }
    });
}

/// The session with this name.
fn named(client: &mut Client, name: &str) -> SessionInfo {
    let listed =
        client.call::<SessionList>(&SessionListParams { all: true, ..SessionListParams::default() }).unwrap();
    listed.sessions.into_iter().find(|session| session.name.as_deref() == Some(name)).unwrap()
}

/// All places at the daemon that are left. Those who come now are told that it is busy.
fn all_places(world: &World) -> Vec<Raw> {
    let busy =
        "error: 512 clients are connected already\n hint: close some connections, or try again later\n";
    let mut taken: Vec<Raw> = (0..512).map(|_| Raw::silent(world)).collect();
    wait_until("a daemon that takes nobody any more", LONG, || {
        let said = world.belay(["ps"]);
        if said.stderr == busy.as_bytes() {
            return Ok(());
        }
        // Somebody has left meanwhile.
        taken.push(Raw::silent(world));
        Err(said.to_string())
    });
    taken
}

// proves L1
#[test]
fn a_session_is_held_on_when_the_daemon_was_busy_for_a_while() {
    let _ = raise_nofile();
    let world = world();
    let mut client = world.client();
    let policy = ["--name", "held", "--lease", "1s", "--lease-grace", "100s"];
    let command = ["--", "sh", "-c", "echo ready; read -r code; exit \"$code\""];
    let mut holder = world.spawn_with_stdin(["sessions", "run"].iter().chain(&policy).chain(&command));
    holder.wait_for_stdout("the command", |said| said == b"ready\n");
    let id = named(&mut client, "held").id;
    let taken = all_places(&world);
    // Nobody gets in to renew it.
    wait_state(&mut client, &id, SessionState::Lapsed);
    drop(taken);
    wait_state(&mut client, &id, SessionState::Open);
    holder.write(b"7\n");
    let ended = holder.finish();
    assert_eq!((ended.code, ended.stderr), (Some(7), Vec::new()));
    assert_eq!(named(&mut client, "held").reason.as_deref(), Some("its command has ended"));
}

// proves W3, W5
#[test]
fn whoever_waits_for_something_in_a_session_goes_on_with_the_next_daemon() {
    let world = world();
    let id = open(&world, SessionOpenParams { lease_ms: Some(600_000), ..SessionOpenParams::default() })
        .session
        .id;
    let gate = world.dir().join("gate").to_str().unwrap().to_owned();
    world.shell(&format!("mkfifo {gate}")).ok();
    let command = world.start_params(&["sh", "-c", "read -r code < \"$0\"; exit \"$code\"", &gate]);
    let task = world.start(&TaskStartParams { session: Some(id.clone()), ..command });
    let drained = world.spawn(["sessions", "wait", &id]);
    let told = world.spawn(["sessions", "notices", "--follow", &id]);
    for _ in 0..3 {
        let daemon = wait_until("both of them with a daemon", LONG, || match world.daemon() {
            Some(daemon) if world.status().clients == 3 => Ok(daemon.identity),
            other => Err(format!("{other:?}")),
        });
        world.belay(["down"]).ok();
        wait_until("the next daemon", LONG, || match world.daemon() {
            Some(next) if next.identity != daemon => Ok(()),
            other => Err(format!("{other:?}, {:?}, {:?}", drained.stderr_so_far(), told.stderr_so_far())),
        });
    }
    std::fs::write(&gate, "9\n").unwrap();
    let ended = drained.finish();
    assert_eq!((ended.code, ended.stderr), (Some(0), Vec::new()));
    assert_eq!(ended.stdout, format!("{id} is drained\n").as_bytes());
    let line = told.wait_for_stdout("its end", |said| said.ends_with(b"\n"));
    let line = String::from_utf8(line).unwrap();
    assert!(line.starts_with(&format!("{} failed", task.id)), "{line}");
}
