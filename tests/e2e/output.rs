//! Output: absolute offsets, streams kept apart, bytes that are no text, characters that are never cut.

use std::collections::BTreeSet;

use belay_protocol::methods::{OutputRead, TaskWait};
use belay_protocol::output::{
    OutputChunk, OutputFrom as Begin, OutputLine, OutputReadParams, OutputReadResult, StreamName,
};
use belay_protocol::task::{TaskStatus, TaskWaitParams, WaitMet};
use belay_protocol::{Base64Bytes, ErrorKind};
use belay_testkit::{LONG, World, wait_until};

use serde_json::{Value, json};

use crate::raw::Raw;
use crate::support::{refused, world};

fn read_of(id: &str) -> OutputReadParams {
    OutputReadParams {
        id: id.to_owned(),
        from: Begin::Offset { offset: 0 },
        max_bytes: None,
        stream: None,
        text: false,
    }
}

fn joined(chunks: &[OutputChunk]) -> Vec<u8> {
    chunks.iter().flat_map(|chunk| chunk.data.0.clone()).collect()
}

/// A pipe with a name, at whose other end a task waits to be let go on.
fn gate(world: &World, name: &str) -> String {
    let path = world.dir().join(name).to_str().unwrap().to_owned();
    world.shell(&format!("mkfifo {path}")).ok();
    path
}

fn open(gate: &str) {
    std::fs::write(gate, "go\n").unwrap();
}

// proves O1
#[test]
fn offsets_are_stable_and_reading_takes_nothing_away() {
    let world = world();
    let (first, last) = (gate(&world, "first"), gate(&world, "last"));
    let script = r#"printf one; read -r _ < "$0"; printf two; read -r _ < "$1"; printf three"#;
    let id = world.run_detached(["sh", "-c", script, &first, &last]);
    world.wait_for_output(&id, "the first part", |said| said == b"one");
    let begun = world.read(&read_of(&id));
    assert_eq!((begun.next, begun.bytes, begun.eof), (3, 3, false));
    open(&first);
    world.wait_for_output(&id, "the second part", |said| said == b"onetwo");
    // Two readers at once, each at its own place.
    let again = world.read(&read_of(&id));
    assert_eq!(joined(&again.chunks), b"onetwo");
    let on = world.read(&OutputReadParams { from: Begin::Offset { offset: begun.next }, ..read_of(&id) });
    assert_eq!((joined(&on.chunks).as_slice(), on.chunks[0].offset, on.next), (&b"two"[..], 3, 6));
    open(&last);
    world.wait_ended(&id);
    let check = || {
        let whole = world.read(&read_of(&id));
        assert_eq!(
            (joined(&whole.chunks).as_slice(), whole.next, whole.eof),
            (&b"onetwothree"[..], 11, true)
        );
        let middle =
            OutputReadParams { from: Begin::Offset { offset: 4 }, max_bytes: Some(4), ..read_of(&id) };
        let middle = world.read(&middle);
        assert_eq!((joined(&middle.chunks).as_slice(), middle.next, middle.eof), (&b"woth"[..], 8, false));
        let end = world.read(&OutputReadParams { from: Begin::Offset { offset: 11 }, ..read_of(&id) });
        assert_eq!((end.chunks.as_slice(), end.next, end.eof), (&[][..], 11, true));
    };
    check();
    check();
    world.kill_daemon();
    check();
    let beyond = OutputReadParams { from: Begin::Offset { offset: 12 }, ..read_of(&id) };
    let error = refused(world.client().call::<OutputRead>(&beyond));
    let told = (error.data.kind, error.data.field.as_deref(), error.data.from);
    assert_eq!(told, (ErrorKind::Invalid, Some("from"), Some(11)));
}

// proves O2
#[test]
fn the_log_can_be_cut_in_every_way() {
    let world = world();
    // Two pipes have no order between them: each line is written when the one before it has been seen.
    let script = "seen() { until [ -e \"$0/$1\" ]; do sleep 0.005; done; }; \
                  for i in 1 2 3 4 5 6; do echo out $i; seen out-$i; echo err $i >&2; seen err-$i; done";
    let id = world.run_detached(["sh", "-c", script, world.dir().to_str().unwrap()]);
    // A follower that came early sees the same as one that came late.
    let follower = world.spawn(["logs", "-f", "--raw", &id]);
    let mut whole = String::new();
    for (i, stream) in (1..=6).flat_map(|i| [(i, "out"), (i, "err")]) {
        whole.extend([stream, " ", &i.to_string(), "\n"]);
        world.wait_for_output(&id, "one more line", |heard| heard == whole.as_bytes());
        std::fs::write(world.dir().join(format!("{stream}-{i}")), "").unwrap();
    }
    world.wait_ended(&id);
    let logs = |args: &[&str]| {
        let said = world.belay([&["logs", &id], args].concat()).ok();
        String::from_utf8(said.stdout).unwrap()
    };
    assert_eq!(logs(&[]), whole);
    assert_eq!(String::from_utf8(follower.finish().ok().stdout).unwrap(), whole);
    assert_eq!(logs(&["-f"]), whole);
    assert_eq!(logs(&["--tail", "3"]), "err 5\nout 6\nerr 6\n");
    assert_eq!(logs(&["--tail", "0"]), "");
    assert_eq!(logs(&["--tail", "100"]), whole);
    assert_eq!(logs(&["--after", "60"]), "out 6\nerr 6\n");
    assert_eq!(logs(&["--after", "72"]), "");
    assert_eq!(logs(&["--stream", "stderr", "--tail", "2"]), "err 5\nerr 6\n");
    let errors: String = (1..=6).map(|i| format!("err {i}\n")).collect();
    assert_eq!(logs(&["--stream", "stderr"]), errors);
    assert_eq!(logs(&["--stream", "stderr", "-f"]), errors);
    assert_eq!(logs(&["--grep", "[25]$"]), "out 2\nerr 2\nout 5\nerr 5\n");
    assert_eq!(
        logs(&["--grep", "^out [25]$", "--context", "1"]),
        "err 1\nout 2\nerr 2\n--\nerr 4\nout 5\nerr 5\n"
    );
    assert_eq!(logs(&["--grep", "out 6", "--after", "12", "--stream", "stdout"]), "out 6\n");
    let none = world.belay(["logs", &id, "--grep", "nowhere"]);
    assert_eq!((none.code, none.stdout.as_slice()), (Some(1), &b""[..]), "{none}");
    let lines: Vec<OutputLine> = world.belay(["logs", &id, "--json", "--grep", "err 3"]).ok().json_lines();
    let found = OutputLine {
        stream: StreamName::Stderr,
        offset: 30,
        data: Base64Bytes::default(),
        text: Some("err 3".to_owned()),
        matched: true,
    };
    assert_eq!(lines, [found]);
}

// proves O3
#[test]
fn text_in_follows_splits_no_character() {
    let world = world();
    let mut raw = Raw::greeted(&world);
    // The bytes of a character come one by one, with a pause that lets each be sent alone.
    let script = "for i in 1 2 3; do for b in '\\360' '\\237' '\\230' '\\200'; do printf $b; sleep 0.05; done; done; printf 'a\\377b'";
    let params = json!({
        "spec": { "kind": "shell", "command": { "kind": "argv", "argv": ["bash", "-c", script] } },
        "cwd": "/",
        "env": [format!("BELAY_HOME={}", world.marker()), "PATH=/usr/bin:/bin"],
        "answer": "ended",
        "follow": { "text": true },
    });
    let line = json!({ "jsonrpc": "2.0", "id": 1, "method": "task/start", "params": params });
    raw.send(format!("{line}\n").as_bytes());
    let (mut texts, mut covered) = (Vec::new(), 0);
    let task = loop {
        let message = raw.hear();
        if message["id"] == 1 {
            break message["result"]["id"].as_str().unwrap().to_owned();
        }
        for chunk in message["params"]["chunks"].as_array().into_iter().flatten() {
            assert_eq!((&chunk["data"], &chunk["offset"]), (&Value::Null, &json!(covered)));
            covered += chunk["bytes"].as_u64().unwrap();
            texts.push(chunk["text"].as_str().unwrap().to_owned());
        }
    };
    assert_eq!((texts.concat().as_str(), covered), ("😀😀😀a\u{fffd}b", 15));
    assert!(texts.iter().all(|text| !text.is_empty()) && texts.len() > 1, "{texts:?}");
    // The same bytes, as they are.
    assert_eq!(world.stdout_of(&task), "😀😀😀".bytes().chain(*b"a\xffb").collect::<Vec<u8>>());
}

// proves O2, O3
#[test]
fn each_byte_belongs_to_its_stream() {
    let world = world();
    let script = "i=0; while [ $i -lt 400 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done";
    let id = world.run_detached(["sh", "-c", script]);
    world.wait_ended(&id);
    let expected = |word: &str| (0..400).map(|i| format!("{word} {i}\n")).collect::<String>().into_bytes();
    let whole = world.read(&read_of(&id));
    assert_eq!(whole.gaps, [] as [[u64; 2]; 0]);
    let of = |stream: StreamName| {
        let chunks: Vec<OutputChunk> =
            whole.chunks.iter().filter(|chunk| chunk.stream == stream).cloned().collect();
        joined(&chunks)
    };
    assert_eq!(of(StreamName::Stdout), expected("out"));
    assert_eq!(of(StreamName::Stderr), expected("err"));
    assert_eq!(world.stdout_of(&id), expected("out"));
    // The offsets of all chunks together leave nothing out and nothing twice.
    let mut at = 0;
    for chunk in &whole.chunks {
        assert_eq!(chunk.offset, at);
        at += chunk.data.0.len() as u64;
    }
    assert_eq!(at, whole.bytes);
}

// proves O3
#[test]
fn every_byte_survives_and_a_last_line_needs_no_end() {
    let world = world();
    let mut bytes: Vec<u8> = (0..40).flat_map(|_| 0..=255).collect();
    bytes.extend_from_slice(b"\xf0\x9f\x98 no end");
    let file = world.dir().join("bytes");
    std::fs::write(&file, &bytes).unwrap();
    let id = world.run_detached(["cat", file.to_str().unwrap()]);
    world.wait_ended(&id);
    assert_eq!(world.logs(&id), bytes);
    assert_eq!(world.belay(["logs", "-f", "--raw", &id]).ok().stdout, bytes);
    let chunks: Vec<OutputChunk> = world.belay(["logs", "--json", "--raw", &id]).ok().json_lines();
    assert_eq!(joined(&chunks), bytes);
    let chunks: Vec<OutputChunk> = world.belay(["logs", "--json", &id]).ok().json_lines();
    let text: String = chunks.into_iter().map(|chunk| chunk.text.unwrap()).collect();
    assert_eq!(text, String::from_utf8_lossy(&bytes));
    assert_eq!(world.belay(["run", "--", "cat", file.to_str().unwrap()]).ok().stdout, bytes);
    assert_eq!(world.belay(["logs", "--raw", "--tail", "1", &id]).ok().stdout, b"\x0b\x0c\r\x0e\x0f\x10\x11\x12\x13\x14\x15\x16\x17\x18\x19\x1a\x1b\x1c\x1d\x1e\x1f !\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz{|}~\x7f".iter().copied().chain(128..=255).chain(b"\xf0\x9f\x98 no end".iter().copied()).collect::<Vec<u8>>());
}

// proves O3
#[test]
fn text_is_never_cut_within_a_character() {
    let world = world();
    let text = "aé漢😀ß — zwölf Boxkämpfer 🏴 jagen über den großen Sylter Deich\n".repeat(5);
    let file = world.dir().join("text");
    std::fs::write(&file, &text).unwrap();
    let id = world.run_detached(["cat", file.to_str().unwrap()]);
    world.wait_ended(&id);
    let mut client = world.client();
    let mut sizes = BTreeSet::new();
    for max_bytes in 4..=20 {
        let (mut params, mut read) =
            (OutputReadParams { text: true, max_bytes: Some(max_bytes), ..read_of(&id) }, String::new());
        loop {
            let page: OutputReadResult = client.call::<OutputRead>(&params).unwrap();
            let part: String = page.chunks.iter().map(|chunk| chunk.text.clone().unwrap()).collect();
            assert!(part.len() as u64 <= max_bytes && !part.is_empty(), "{max_bytes}: {part:?}");
            sizes.insert(part.len());
            read.push_str(&part);
            assert_eq!(page.next, read.len() as u64);
            if page.eof {
                break;
            }
            params.from = Begin::Offset { offset: page.next };
        }
        assert_eq!(read, text, "{max_bytes} bytes at a time");
    }
    assert!(sizes.len() > 10, "{sizes:?}");
}

// proves O6
#[test]
fn a_grandchild_that_holds_the_pipe_keeps_the_task_running_and_hangs_nobody() {
    let world = world();
    let later = gate(&world, "later");
    let script = r#"{ read -r _ < "$0"; echo later; } & echo now; exit 4"#;
    let id = world.run_detached(["sh", "-c", script, &later]);
    wait_until("a leader that has gone", LONG, || {
        let leader = world.get(&id).leader;
        if leader.as_ref().is_some_and(|leader| leader.exit_code == Some(4)) {
            Ok(())
        } else {
            Err(format!("{leader:?}"))
        }
    });
    let waited = world
        .client()
        .call::<TaskWait>(&TaskWaitParams { timeout_ms: Some(100), ..TaskWaitParams::for_end(&id) })
        .unwrap();
    assert_eq!((waited.met, waited.task.status), (WaitMet::Timeout, TaskStatus::Running));
    assert_eq!(world.logs(&id), b"now\n");
    let said = world.belay(["wait", "--timeout", "100ms", &id]);
    assert_eq!(said.code, Some(1), "{said}");
    let follower = world.spawn(["logs", "-f", "--raw", &id]);
    follower.wait_for_stdout("what is there", |said| said == b"now\n");
    open(&later);
    assert_eq!(follower.finish().ok().stdout, b"now\nlater\n");
    assert_eq!(world.logs(&id), b"now\nlater\n");
    assert_eq!(world.belay(["wait", &id]).code, Some(4));
}
