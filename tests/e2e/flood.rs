//! Too much of everything: half messages, endless lines, questions without end, readers that do not read, connections
//! that only sit there. Memory stays bounded, and others are served meanwhile.

use std::io::Write as _;
use std::time::{Duration, Instant};

use belay_client::{Client, Message};
use belay_os::fds::raise_nofile;
use belay_protocol::daemon::DaemonStatusParams;
use belay_protocol::methods::{DaemonStatus, Notification, OutputFollow, TaskStart};
use belay_protocol::output::{OutputFollowParams, OutputFrom};
use belay_protocol::task::TaskInfo;
use belay_testkit::{LONG, World, look_at, wait_until};
use serde_json::{Value, json};

use crate::patient::is_long;
use crate::raw::Raw;
use crate::support::{FOREVER, world};

/// What the daemon may need at most, whatever is done to it here.
const MEMORY_KIB: u64 = 100 * 1024;

/// How long somebody else may have to wait for a short answer.
const PATIENCE: Duration = Duration::from_secs(5);

#[track_caller]
fn assert_bounded(world: &World) {
    let peak = look_at(world.daemon_pid()).unwrap().peak_kib;
    assert!(peak < MEMORY_KIB, "the daemon needed {peak} KiB");
}

/// Somebody else comes and is served.
#[track_caller]
fn assert_served(world: &World) {
    let began = Instant::now();
    assert_eq!(world.belay(["run", "--", "echo", "well"]).ok().stdout, b"well\n");
    let took = began.elapsed();
    assert!(took < PATIENCE, "somebody else waited for {took:?}");
}

// proves X3
#[test]
fn half_a_message_keeps_nobody_waiting() {
    let world = world();
    world.belay(["up"]).ok();
    let mut halves: Vec<Raw> = (0..50).map(|_| Raw::silent(&world)).collect();
    for half in &mut halves {
        half.send(br#"{"jsonrpc":"2.0","id":7,"method":"daemon/hello","params":{"client":{"name":"slow","version":"1"},"#);
    }
    assert_served(&world);
    for half in &mut halves {
        let answer = half.say(br#""protocol":1}}"#);
        assert_eq!(answer["result"]["protocol"], 1);
    }
    assert_bounded(&world);
}

// proves X3
#[test]
fn many_long_halves_are_bounded_together() {
    let world = world();
    world.belay(["up"]).ok();
    let halves: Vec<Raw> = (0..30).map(|_| Raw::silent(&world)).collect();
    let writers: Vec<_> = halves
        .iter()
        .map(|raw| {
            let mut stream = raw.stream().try_clone().unwrap();
            std::thread::spawn(move || stream.write_all(&vec![b'x'; 4 << 20]).is_ok())
        })
        .collect();
    let taken = writers.into_iter().map(|writer| writer.join().unwrap());
    let taken = taken.filter(|whole| *whole).count();
    assert!((1..30).contains(&taken), "{taken} of 30 could send all of it");
    assert_served(&world);
    assert_bounded(&world);
    drop(halves);
    // There is room again for a long request of somebody who means it.
    let mut params = world.start_params(&["true"]);
    params.env.push(format!("LONG={}", "x".repeat(6 << 20)).into());
    wait_until("room for a long request", LONG, || match world.client().call::<TaskStart>(&params) {
        Ok(task) => Ok(task),
        Err(error) => Err(error.to_string()),
    });
}

// proves X3
#[test]
fn a_line_without_an_end_is_cut_off() {
    let world = world();
    let mut raw = Raw::greeted(&world);
    let writing = {
        let mut stream = raw.stream().try_clone().unwrap();
        // The daemon stops listening on the way, so this may fail.
        std::thread::spawn(move || drop(stream.write_all(&vec![b'x'; 10 << 20])))
    };
    let answer = raw.hear();
    let error = json!({ "code": -32007, "message": "a request is at most 8388608 bytes long, on one line",
        "data": { "kind": "too_large" } });
    assert_eq!((&answer["id"], &answer["error"]), (&Value::Null, &error));
    assert_eq!(raw.last_words(), "");
    writing.join().unwrap();
    assert_served(&world);
    assert_bounded(&world);
}

// proves X3
#[test]
fn questions_without_end_from_somebody_who_does_not_read() {
    let count = if is_long() { 1_000_000 } else { 100_000 };
    let world = world();
    let mut raw = Raw::greeted(&world);
    let mut stream = raw.stream().try_clone().unwrap();
    stream.set_write_timeout(None).unwrap();
    let asking = std::thread::spawn(move || {
        let mut lines = Vec::new();
        for number in 0..count {
            let line = format!("{{\"jsonrpc\":\"2.0\",\"id\":{number},\"method\":\"daemon/status\"}}\n");
            lines.extend_from_slice(line.as_bytes());
        }
        stream.write_all(&lines).unwrap();
    });
    // It stands still when nobody reads the answers; everybody else does not.
    for _ in 0..5 {
        assert_served(&world);
    }
    assert!(!asking.is_finished(), "{count} questions went in unread");
    assert_bounded(&world);
    // Every one of them is answered, in order, as soon as somebody reads.
    for number in 0..count {
        let answer = raw.hear();
        assert_eq!(answer["id"], number);
        assert!(answer["result"]["pid"].is_number(), "{answer}");
    }
    asking.join().unwrap();
    assert_bounded(&world);
}

/// Long answers, asked for at once: whoever does not read them has few of them in the daemon's memory, and one who leaves has
/// none made.
// proves X3
#[test]
fn long_answers_to_somebody_who_does_not_read_or_leaves() {
    let world = world();
    let long = "x".repeat(100_000);
    let ids: Vec<String> = (0..20).map(|_| world.run_detached(["true", &long])).collect();
    let question = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"task/list\",\"params\":{\"all\":true}}\n";
    let mut silent: Vec<Raw> = (0..20).map(|_| Raw::greeted(&world)).collect();
    for raw in &mut silent {
        raw.send(question.repeat(50).as_bytes());
        assert_served(&world);
    }
    assert_bounded(&world);
    drop(silent);
    let asked = Instant::now();
    for _ in 0..5 {
        Raw::greeted(&world).send(question.repeat(500).as_bytes());
    }
    assert_served(&world);
    assert!(asked.elapsed() < PATIENCE, "those who left kept the daemon for {:?}", asked.elapsed());
    // And in pages everybody is there once.
    let listed: Vec<TaskInfo> = world.belay(["ps", "-a", "--json"]).ok().json_lines();
    let mut listed: Vec<String> =
        listed.into_iter().map(|task| task.id).filter(|id| ids.contains(id)).collect();
    listed.reverse();
    assert_eq!(listed, ids);
}

// proves X3
#[test]
fn too_many_waits_on_one_connection_are_refused() {
    let world = world();
    let id = world.run_detached(["sleep", FOREVER]);
    let mut raw = Raw::greeted(&world);
    for number in 0..4_100 {
        let line = json!({ "jsonrpc": "2.0", "id": number, "method": "task/wait", "params": { "id": id } });
        raw.send(format!("{line}\n").as_bytes());
    }
    for number in 4_096..4_100 {
        let answer = raw.hear();
        assert_eq!((&answer["id"], &answer["error"]["data"]["kind"]), (&json!(number), &json!("busy")));
    }
    world.belay(["stop", &id]).ok();
    let mut told: Vec<u64> = (0..4_096)
        .map(|_| {
            let answer = raw.hear();
            assert_eq!(answer["result"]["met"], "ended");
            answer["id"].as_u64().unwrap()
        })
        .collect();
    told.sort_unstable();
    assert_eq!(told, (0..4_096).collect::<Vec<_>>());
}

// proves X3
#[test]
fn connections_that_only_sit_there() {
    let _ = raise_nofile();
    let world = world();
    world.belay(["up"]).ok();
    let mut idle: Vec<Raw> = (0..600).map(|_| Raw::silent(&world)).collect();
    let excess = idle.split_off(512);
    let busy = "512 clients are connected already";
    for raw in excess {
        let words: Value = serde_json::from_str(&raw.last_words()).unwrap();
        assert_eq!(
            (&words["error"]["message"], &words["error"]["data"]["kind"]),
            (&json!(busy), &json!("busy"))
        );
    }
    let said = world.belay(["ps"]);
    let expected = format!("error: {busy}\n hint: close some connections, or try again later\n");
    assert_eq!((said.code, String::from_utf8_lossy(&said.stderr).into_owned()), (Some(1), expected));
    // Those who are in are served.
    let answer = idle[511]
        .call("daemon/hello", &json!({ "client": { "name": "patient", "version": "1" }, "protocol": 1 }));
    assert_eq!(answer["result"]["protocol"], 1);
    let answer = idle[511].call("daemon/status", &json!({}));
    assert_eq!(answer["result"]["clients"], 512);
    assert_bounded(&world);
    drop(idle);
    wait_until("room for others", LONG, || {
        let said = world.belay(["run", "--", "echo", "well"]);
        if said.code == Some(0) && said.stdout == b"well\n" { Ok(()) } else { Err(said.to_string()) }
    });
}

/// Follows a task to its end: every byte, at its offset.
fn follow(client: &mut Client) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let said = client.next_notification(Some(Instant::now() + LONG)).unwrap();
        match said {
            Notification::OutputChunk(chunk) => {
                assert_eq!(chunk.gaps, [[0_u64; 2]; 0]);
                for chunk in chunk.chunks {
                    assert_eq!(chunk.offset, all.len() as u64);
                    all.extend(chunk.data.0);
                }
            }
            Notification::OutputEnd(end) => {
                assert_eq!(end.bytes, all.len() as u64);
                return all;
            }
            other => panic!("{other:?}"),
        }
    }
}

// proves X3, O1
#[test]
fn a_slow_reader_hurts_no_fast_one_and_misses_nothing() {
    const LINES: usize = 2_500_000;
    let world = world();
    let go = world.dir().join("go");
    let script = format!("until [ -e {} ]; do sleep 0.01; done; exec seq -f %019.0f 1 {LINES}", go.display());
    let id = world.run_detached(["sh", "-c", &script]);
    let params = OutputFollowParams {
        id: id.clone(),
        from: OutputFrom::Offset { offset: 0 },
        stream: None,
        text: false,
    };
    let (mut slow, mut fast) = (world.client(), world.client());
    slow.call::<OutputFollow>(&params).unwrap();
    fast.call::<OutputFollow>(&params).unwrap();
    std::fs::write(&go, "").unwrap();
    let heard = follow(&mut fast);
    assert_eq!(heard.len(), LINES * 20);
    assert!(heard.starts_with(b"0000000000000000001\n") && heard.ends_with(b"0000000000002500000\n"));
    assert_served(&world);
    assert_bounded(&world);
    // Now the other one begins to read.
    assert!(follow(&mut slow) == heard, "both have read the same");
    assert_bounded(&world);
}

// proves X3, K10
#[test]
fn a_moment_without_descriptors_costs_no_connection_its_answers() {
    const ASKED: usize = 800;
    let _ = raise_nofile();
    let world = world();
    world.shell("ulimit -n 60 && exec \"$BELAY\" up").ok();
    let mut patient = world.client();
    let idle: Vec<Raw> = (0..80).map(|_| Raw::silent(&world)).collect();
    wait_until("a daemon without a free descriptor", LONG, || {
        let open =
            std::fs::read_dir(format!("/proc/{}/fd", world.daemon().unwrap().identity.pid)).unwrap().count();
        // The last one is for looking at who comes.
        if open >= 59 { Ok(()) } else { Err(format!("{open} are open")) }
    });
    for _ in 0..ASKED {
        patient.send::<DaemonStatus>(&DaemonStatusParams::default()).unwrap();
    }
    drop(idle);
    for answered in 0..ASKED {
        let said = patient.receive_by(Some(Instant::now() + LONG));
        assert!(matches!(said, Ok(Message::Response(_))), "after {answered}: {said:?}");
    }
}
