//! Clients that mean no good, or cannot do better: what they send is refused or made harmless, by field, and nobody else
//! notices.

use std::io::{ErrorKind as ErrorKindOfIo, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;

use belay_protocol::ErrorKind;
use belay_protocol::event::EventKind;
use belay_protocol::methods::{TaskGet, TaskStart};
use belay_protocol::task::{TaskGetParams, TaskStatus};
use belay_testkit::{LONG, NOBODY, World};
use serde_json::{Value, json};

use crate::patient::Patient;
use crate::raw::Raw;
use crate::support::{FOREVER, refused, world};

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o7777
}

/// As a process of another user would. The rights of a thread are its own.
fn connect_as_nobody(socket: &Path) -> std::io::Result<UnixStream> {
    let socket = socket.to_owned();
    let connecting = std::thread::spawn(move || {
        rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(NOBODY))?;
        UnixStream::connect(socket)
    });
    connecting.join().unwrap()
}

// proves X1, L6
#[test]
fn nobody_else_comes_in() {
    let world = world();
    // Even if the way to the socket is open, as a careless person may make it.
    std::fs::set_permissions(world.dir(), std::fs::Permissions::from_mode(0o755)).unwrap();
    world.run_detached(["sh", "-c", "echo secret; exec sleep 1000"]);
    let run = world.home().join("run");
    assert_eq!((mode(world.home()), mode(&run), mode(&run.join("s"))), (0o700, 0o700, 0o700));
    assert_eq!(mode(&run.join("daemon.sock")), 0o600);
    assert_eq!(mode(&world.home().join("journal.db")), 0o600);
    assert_eq!(mode(&world.home().join("tasks")), 0o700);
    for shim in std::fs::read_dir(run.join("s")).unwrap() {
        assert_eq!(mode(&shim.unwrap().path()) & 0o077, 0);
    }

    let socket = run.join("daemon.sock");
    assert_eq!(connect_as_nobody(&socket).unwrap_err().kind(), ErrorKindOfIo::PermissionDenied);
    // And if every lock is taken off, the daemon looks at who it is, and says nothing.
    for path in [world.home(), &run] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o666)).unwrap();
    let mut stream = connect_as_nobody(&socket).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let hello = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"daemon/hello\",\"params\":{\"client\":\"x\",\"protocol\":1}}\n";
    let _ = stream.write_all(hello);
    let mut said = Vec::new();
    match stream.read_to_end(&mut said) {
        Err(error) if error.kind() != ErrorKindOfIo::ConnectionReset => {
            panic!("it is not sent away: {error}")
        }
        _ => assert_eq!(said, b""),
    }
    for path in [world.home(), &run] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700)).unwrap();
    }
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o600)).unwrap();
}

// proves X2
#[test]
fn ids_that_are_none() {
    let world = world();
    let outside = world.dir().join("outside");
    std::fs::write(&outside, "theirs").unwrap();
    let mut client = world.client();
    let long = "x".repeat(1_000_000);
    let ids = [
        "",
        " ",
        ".",
        "..",
        "/",
        "../../etc/passwd",
        "../outside",
        "sh-../../../outside",
        "sh-",
        "sh-\0\0",
        "sh-%",
        "sh-\u{1b}[2J",
        "sh-AAAAAAAAAAAAAAAA",
        "ag-0000000000000000' OR 1=1 --",
        "\u{202e}hs",
        &long,
    ];
    for id in ids {
        let error = refused(client.call::<TaskGet>(&TaskGetParams { id: id.to_owned() }));
        let shown: String = id.chars().take(40).collect();
        assert_eq!(
            (error.data.kind, error.data.field.as_deref()),
            (ErrorKind::NotFound, Some("id")),
            "{shown:?}"
        );
        assert!(error.message.len() < 200, "the id is not repeated: {}", error.message.len());
    }
    for command in ["inspect", "logs", "wait", "rm", "stop"] {
        for id in ["../outside", "sh-../../../outside", "\u{1b}[2J", "sh-0000000000000000"] {
            let said = world.belay([command, id]);
            assert_eq!(
                (said.code, said.stdout.contains(&0x1b)),
                (Some(1), false),
                "{command} {id:?}: {said}"
            );
            assert!(!said.stderr.contains(&0x1b), "{command} {id:?}: {said}");
        }
    }
    assert_eq!(std::fs::read(&outside).unwrap(), b"theirs");
}

/// What a terminal would obey: a cursor move, a title, a colour, a bell, an overriding direction.
const ACTIVE: &str = "a\u{1b}[2J\u{1b}]0;title\u{7}\u{1b}[31mred\u{9b}1m\u{202e}txt";

// proves X2
#[test]
fn escape_sequences_reach_no_terminal() {
    let world = world();
    let mut params = world.start_params(&["sh", "-c", "exec sleep 1000", ACTIVE]);
    params.name = Some(format!("n{ACTIVE}"));
    let error = refused(world.client().call::<TaskStart>(&params));
    assert_eq!((error.data.kind, error.data.field.as_deref()), (ErrorKind::Invalid, Some("name")));
    assert_eq!(error.message, "the name contains a control character");
    // A command may have any argument; it is shown as a picture of itself.
    params.name = Some("right\u{202e}left".to_owned());
    let id = world.start(&params).id;
    let is_harmless = |bytes: &[u8]| {
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        let active = |c: &char| (c.is_control() && *c != '\n') || *c == '\u{202e}';
        assert_eq!(text.chars().find(active), None, "{text:?}");
        assert!(text.contains("title"), "{text}");
    };
    let stop = ["stop", "--reason", ACTIVE, &id];
    for args in
        [&["ps"][..], &["inspect", &id], &["events"], &stop, &["ps", "-a"], &["inspect", &id], &["events"]]
    {
        let said = world.belay(args).ok();
        if args != stop {
            is_harmless(&said.stdout);
        }
        assert!(!said.stdout.contains(&0x1b), "{args:?}");
    }
    let shown: Value = world.belay(["inspect", "--json", &id]).ok().json();
    assert_eq!(shown["spec"]["argv"][3], ACTIVE, "programs get it as it is");
}

/// One line and the error that it must get: kind and field.
#[track_caller]
fn assert_refused(raw: &mut Raw, line: &[u8], kind: &str, field: Option<&str>, id: &Value) {
    let answer = raw.say(line);
    let shown = String::from_utf8_lossy(&line[..line.len().min(200)]).into_owned();
    let error = &answer["error"]["data"];
    assert_eq!((&error["kind"], error["field"].as_str()), (&json!(kind), field), "{shown}: {answer}");
    assert_eq!(answer["id"], *id, "{shown}");
    assert!(answer.to_string().len() < 2_000, "{shown}: {answer}");
}

fn spec(command: &Value) -> Value {
    json!({ "kind": "shell", "command": command })
}

// proves X2
#[test]
fn messages_that_are_none() {
    let world = world();
    let mut raw = Raw::greeted(&world);
    let none = Value::Null;
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let deep_params = format!(r#"{{"jsonrpc":"2.0","id":7,"method":"task/get","params":{{"id":{deep}}}}}"#);
    let long_method = format!(r#"{{"jsonrpc":"2.0","id":7,"method":"{}"}}"#, "m".repeat(1_000_000));
    let malformed: [&[u8]; 14] = [
        b"hello",
        b"{",
        b"[]",
        b"null",
        b"17",
        b"\"text\"",
        b"\xff\xfe\x00\x01",
        b"{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"task/list\xff\"}",
        br#"{"jsonrpc":"1.0","id":7,"method":"task/list"}"#,
        br#"{"id":7,"method":"task/list"}"#,
        br#"{"jsonrpc":"2.0","id":7}"#,
        br#"{"jsonrpc":"2.0","id":{"a":1},"method":"task/list"}"#,
        br#"[{"jsonrpc":"2.0","id":7,"method":"task/list"}]"#,
        deep.as_bytes(),
    ];
    for line in malformed {
        assert_refused(&mut raw, line, "malformed", None, &none);
    }
    let seven = json!(7);
    assert_refused(&mut raw, deep_params.as_bytes(), "invalid", Some("id"), &seven);
    assert_refused(&mut raw, long_method.as_bytes(), "unknown_method", Some("method"), &seven);
    let unknown = br#"{"jsonrpc":"2.0","id":"seven","method":"task/\u001b[2J"}"#;
    assert_refused(&mut raw, unknown, "unknown_method", Some("method"), &json!("seven"));
    for (params, field) in [
        (r#"{"id":"sh-1","extra":1}"#, "extra"),
        (r"{}", "id"),
        (r#"{"id":17}"#, "id"),
        (r"[]", "params"),
        (r#""sh-1""#, "params"),
    ] {
        let line = format!(r#"{{"jsonrpc":"2.0","id":7,"method":"task/get","params":{params}}}"#);
        assert_refused(&mut raw, line.as_bytes(), "invalid", Some(field), &seven);
    }
    // A notification gets no answer, whatever is wrong with it; blank lines are nothing; then all is well.
    raw.send(b"{\"jsonrpc\":\"2.0\",\"method\":\"task/get\",\"params\":{\"x\":1}}\n\n  \r\n");
    assert_eq!(raw.call("task/list", &json!({}))["result"]["tasks"], json!([]));
}

/// A start that is wrong in one field.
#[track_caller]
fn assert_start_refused(world: &World, change: &Value, field: &str) {
    let mut params =
        json!({ "spec": spec(&json!({ "kind": "argv", "argv": ["true"] })), "cwd": "/", "env": [] });
    for (name, value) in change.as_object().unwrap() {
        params[name] = value.clone();
    }
    let answer = Raw::greeted(world).call("task/start", &params);
    let data = &answer["error"]["data"];
    assert_eq!((&data["kind"], &data["field"]), (&json!("invalid"), &json!(field)), "{change}: {answer}");
}

// proves X2, S4
#[test]
fn starts_that_cannot_be_meant() {
    let world = world();
    let long = "x".repeat(100_000);
    for (change, field) in [
        (json!({ "spec": spec(&json!({ "kind": "argv", "argv": [] })) }), "command"),
        (json!({ "spec": spec(&json!({ "kind": "argv", "argv": [""] })) }), "command"),
        (json!({ "spec": spec(&json!({ "kind": "argv", "argv": ["a\0b"] })) }), "command"),
        (json!({ "spec": spec(&json!({ "kind": "line", "line": "echo \0" })) }), "command"),
        (json!({ "cwd": "relative" }), "cwd"),
        (json!({ "cwd": "" }), "cwd"),
        (json!({ "cwd": "/a\0b" }), "cwd"),
        (json!({ "env": ["no equals sign"] }), "env"),
        (json!({ "env": ["A=b\0"] }), "env"),
        (json!({ "env": ["=b"] }), "env"),
        (json!({ "set_env": { "": "x" } }), "set_env"),
        (json!({ "set_env": { "A=B": "x" } }), "set_env"),
        (json!({ "name": "" }), "name"),
        (json!({ "name": " \t" }), "name"),
        (json!({ "name": "a\nb" }), "name"),
        (json!({ "name": long }), "name"),
        (json!({ "token": "" }), "token"),
        (json!({ "token": long }), "token"),
        (json!({ "umask": 0o1000 }), "umask"),
        (json!({ "timeout_ms": 0 }), "timeout_ms"),
        (json!({ "ttl_ms": u64::MAX }), "ttl_ms"),
        (json!({ "output_limit_bytes": 1 }), "output_limit_bytes"),
        (json!({ "rlimits": [[7, 10, 5]] }), "rlimits"),
        (json!({ "rlimits": [[700, 1, 1]] }), "rlimits"),
        (json!({ "shell_line": "true" }), "shell_line"),
    ] {
        assert_start_refused(&world, &change, field);
    }
    assert_eq!(Patient::new(&world).tasks().len(), 0, "none of them left a trace");
    assert_eq!(world.events().iter().filter(|event| event.event.kind() == EventKind::TaskCreated).count(), 0);
    let fine = world.run_detached(["sleep", FOREVER]);
    assert_eq!(world.belay(["stop", &fine]).code, Some(0));
}

/// Two homes that share a runtime directory by mistake: nobody is served by the wrong daemon.
// proves X2
#[test]
fn the_daemon_of_another_home_is_not_taken_for_ours() {
    let world = world();
    let id = world.run_detached(["sleep", FOREVER]);
    let socket = world.status().runtime_dir;
    let other = world.dir().join("other");
    let said = world.belay_with(["stop", &id], |command| {
        command.env("BELAY_HOME", &other).env("BELAY_RUNTIME_DIR", socket.as_os_str());
    });
    assert_eq!(said.code, Some(4), "{said}");
    let told = String::from_utf8(said.stderr).unwrap();
    let shown = std::path::Path::new(socket.as_os_str()).join("daemon.sock");
    let home = world.home().display();
    assert_eq!(
        told,
        format!(
            "error: the socket {} is that of the daemon of another home, {home}\n hint: give every home a runtime directory of its own: set BELAY_RUNTIME_DIR, or set BELAY_HOME={home}\n",
            shown.display()
        )
    );
    assert_eq!(world.get(&id).status, TaskStatus::Running);
    // The same home by another way is the same home.
    let link = world.dir().join("link");
    std::os::unix::fs::symlink(world.home(), &link).unwrap();
    let said = world.belay_with(["stop", &id], |command| {
        command.env("BELAY_HOME", &link).env("BELAY_RUNTIME_DIR", socket.as_os_str());
    });
    said.ok();
}
