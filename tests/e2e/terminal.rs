//! Tasks at terminals of their own, without a person: every byte kept, sizes told and changed, and a terminal that lives
//! exactly as long as the tree at it.

use belay_protocol::ErrorKind;
use belay_protocol::methods::{TaskResize, TaskStart};
use belay_protocol::task::{
    TaskInfo, TaskResizeParams, TaskResizeResult, TaskStartParams, TaskStatus, TerminalSize,
};
use belay_testkit::{LONG, World, is_root, wait_until};

use crate::support::{FOREVER, builder, refused, stop_of, with_shell, world};

const SMALL: TerminalSize = TerminalSize { rows: 7, cols: 33 };

fn at_terminal(world: &World, script: &str, size: TerminalSize) -> TaskStartParams {
    with_shell(world.start_params(&["sh", "-c", script]), |shell| shell.pty = Some(size))
}

fn resize(world: &World, id: &str, rows: u16, cols: u16) -> TaskResizeResult {
    world.client().call::<TaskResize>(&TaskResizeParams { id: id.to_owned(), rows, cols }).unwrap()
}

/// What a terminal makes of lines.
fn typed(lines: &str) -> Vec<u8> {
    lines.replace('\n', "\r\n").into_bytes()
}

// proves T2, O1, F3
#[test]
fn every_byte_of_a_terminal_is_kept_and_none_comes_twice() {
    let world = world();
    let whole: String = (1..=200_000).map(|number| format!("{number}\n")).collect();
    let said = world.belay(["run", "--pty", "--", "seq", "1", "200000"]).ok();
    assert!(said.stdout == typed(&whole), "in the foreground: {} bytes", said.stdout.len());
    let id = world.run_detached(["--pty", "--", "seq", "1", "200000"]);
    assert_eq!(world.wait_ended(&id).outcome.unwrap().exit_code(), Some(0));
    assert!(world.logs(&id) == typed(&whole), "detached: {} bytes", world.logs(&id).len());
    assert!(world.stdout_of(&id) == typed(&whole), "all of it is one stream");
}

// proves T1, S6, O3
#[test]
fn a_task_at_a_terminal_has_what_programs_look_for() {
    let world = world();
    let script = "tty >/dev/null && stty size; echo to stderr >&2; echo TERM=$TERM; ps -o sid= -p $$ | tr -d ' '; \
                  echo $$; printf 'no end'; exit 3";
    let said = world.belay_with(["run", "--pty", "--", "sh", "-c", script], |command| {
        command.env_remove("TERM").env_remove("LINES").env_remove("COLUMNS");
    });
    assert_eq!(said.code, Some(3), "{said}");
    let text = String::from_utf8(said.stdout).unwrap();
    let lines: Vec<&str> = text.split("\r\n").collect();
    let [size, stderr, term, session, pid, rest] = lines[..] else { panic!("{text:?}") };
    assert_eq!((size, stderr, term), ("24 80", "to stderr", "TERM=xterm-256color"));
    assert_eq!((session, rest), (pid, "no end"), "it leads a session of its own");
    let sized = world.belay_with(["run", "--pty", "--", "sh", "-c", "stty size; echo $TERM"], |command| {
        command.env("LINES", "11").env("COLUMNS", "222").env("TERM", "vt220");
    });
    assert_eq!(sized.ok().stdout, typed("11 222\nvt220\n"));
}

// proves T2, O6
#[test]
fn a_terminal_that_nobody_has_open_for_a_while_is_not_over() {
    let world = world();
    let script =
        "exec <&- >&- 2>&-; sleep 0.3; echo late >/dev/tty; read answer </dev/tty; echo $answer >/dev/tty";
    let id = world.start(&at_terminal(&world, script, SMALL)).id;
    world.wait_for_output(&id, "what was printed late", |heard| heard == typed("late\n"));
    world.belay(["send", &id, "word"]).ok();
    assert_eq!(world.wait_ended(&id).status, TaskStatus::Completed);
    assert_eq!(world.logs(&id), typed("late\nword\nword\n"), "typed, echoed, and answered");
}

// proves T2, O6, K3
#[test]
fn a_child_that_outlives_its_leader_keeps_the_terminal() {
    let world = world();
    for child in ["sh -c", "setsid sh -c"] {
        let go = world.dir().join(child.replace(' ', "-"));
        let inner = format!("until [ -e {} ]; do sleep 0.01; done; stty size; echo child", go.display());
        // As nohup does it, but for its file: the end of the leader hangs up on those it leaves.
        let script = format!("trap '' HUP; exec 3<&0; {child} '{inner}' <&3 & echo leader");
        let id = world.start(&at_terminal(&world, &script, SMALL)).id;
        wait_until("the leader's end", LONG, || {
            let leader = world.get(&id).leader;
            let exited = leader.as_ref().is_some_and(|leader| leader.exit_code == Some(0));
            if exited { Ok(()) } else { Err(format!("{leader:?}")) }
        });
        assert_eq!(world.get(&id).status, TaskStatus::Running, "{child}");
        std::fs::write(&go, "").unwrap();
        assert_eq!(world.wait_ended(&id).status, TaskStatus::Completed, "{child}");
        let said = String::from_utf8(world.logs(&id)).unwrap();
        assert!(said == "leader\r\n7 33\r\nchild\r\n", "{child}: {said:?}");
    }
}

// proves T2, O6, K10
#[test]
fn whoever_holds_the_terminal_from_outside_keeps_nobody() {
    let world = world();
    let id = world.start(&at_terminal(&world, "tty; read go; echo end", SMALL)).id;
    let said = world.wait_for_output(&id, "its terminal's name", |heard| heard.ends_with(b"\r\n"));
    let name = String::from_utf8(said).unwrap().trim().to_owned();
    let outside = std::fs::File::options().read(true).write(true).open(&name).unwrap();
    world.belay(["send", &id, "go"]).ok();
    assert_eq!(world.wait_ended(&id).status, TaskStatus::Completed);
    assert!(world.logs(&id).ends_with(b"end\r\n"));
    drop(outside);
    assert_eq!(world.belay(["run", "--pty", "--", "echo", "next"]).ok().stdout, b"next\r\n");
}

// proves T2, K10
#[test]
fn whoever_goes_on_writing_from_outside_keeps_nobody() {
    let world = world();
    let id = world.start(&at_terminal(&world, "tty; read go; echo end", SMALL)).id;
    let said = world.wait_for_output(&id, "its terminal's name", |heard| heard.ends_with(b"\r\n"));
    let name = String::from_utf8(said).unwrap().trim().to_owned();
    // It ends when the terminal is gone for good.
    let outside =
        world.shell_in_background(&format!("for i in 1 2 3 4; do yes >{name} 2>/dev/null & done; wait"));
    world.wait_for_output(&id, "a stranger's words", |heard| heard.ends_with(b"y\r\n"));
    world.belay(["send", &id, "go"]).ok();
    let ended = world.wait_ended(&id);
    assert_eq!(ended.status, TaskStatus::Completed);
    assert_eq!(
        world.logs(&id).len() as u64,
        ended.output.bytes,
        "what comes after the end is not the task's"
    );
    outside.finish();
}

// proves T1, W6
#[test]
fn a_flood_of_input_arrives_whole() {
    let world = world();
    let file = world.dir().join("typed");
    let script = format!("stty -echo; echo ready; cat >{}", file.display());
    let id = world.start(&at_terminal(&world, &script, SMALL)).id;
    world.wait_for_output(&id, "a reader", |heard| heard == typed("ready\n"));
    let whole: String = (1..=100_000).map(|number| format!("{number}\n")).collect();
    let mut sender = world.spawn_with_stdin(["send", &id, "-", "--eof"]);
    sender.write(whole.as_bytes());
    assert_eq!(sender.finish().code, Some(0));
    assert_eq!(world.wait_ended(&id).status, TaskStatus::Completed);
    assert!(std::fs::read_to_string(&file).unwrap() == whole);
}

// proves T1, W6
#[test]
fn the_end_of_input_is_typed_once_and_input_goes_on() {
    let world = world();
    let id = world
        .start(&at_terminal(&world, "stty -echo; echo ready; cat; echo first; cat; echo second", SMALL))
        .id;
    world.wait_for_output(&id, "the first reader", |heard| heard == typed("ready\n"));
    world.belay(["send", &id, "a", "--eof"]).ok();
    world.wait_for_output(&id, "the second reader", |heard| heard == typed("ready\na\nfirst\n"));
    world.belay(["send", &id, "b"]).ok();
    world.belay(["send", &id, "--eof"]).ok();
    assert_eq!(world.wait_ended(&id).status, TaskStatus::Completed);
    assert_eq!(world.logs(&id), typed("ready\na\nfirst\nb\nsecond\n"));
}

// proves T3, D1
#[test]
fn a_size_can_be_changed_and_outlives_the_daemon() {
    let world = world();
    let script = "trap 'stty size' WINCH; stty size; while :; do sleep 0.02; done";
    let started = world.start(&at_terminal(&world, script, SMALL));
    assert_eq!(started.spec.pty(), Some(SMALL));
    let id = started.id;
    world.wait_for_output(&id, "the first size", |heard| heard == typed("7 33\n"));
    assert_eq!(resize(&world, &id, 50, 200), TaskResizeResult { id: id.clone(), rows: 50, cols: 200 });
    world.wait_for_output(&id, "the second size", |heard| heard == typed("7 33\n50 200\n"));
    let second = Some(TerminalSize { rows: 50, cols: 200 });
    assert_eq!(world.get(&id).spec.pty(), second);
    let listed: Vec<TaskInfo> = world.belay(["ps", "--json"]).ok().json_lines();
    assert_eq!(listed[0].spec.pty(), second);
    let shown = world.belay(["inspect", &id]).ok().line();
    assert!(shown.contains("Terminal   50 rows, 200 columns"), "{shown}");

    world.kill_daemon();
    let listed: Vec<TaskInfo> = world.belay(["ps", "--json"]).ok().json_lines();
    assert_eq!(listed[0].spec.pty(), second, "the next daemon knows it");
    world.kill_daemon();
    for entry in std::fs::read_dir(world.home()).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name().to_string_lossy().starts_with("journal.") {
            std::fs::remove_file(entry.path()).unwrap();
        }
    }
    assert_eq!(world.get(&id).spec.pty(), second, "and one with an empty journal hears it from the shim");
    resize(&world, &id, 3, 4);
    world.wait_for_output(&id, "the third size", |heard| heard == typed("7 33\n50 200\n3 4\n"));
    let stopped = world.stop(&stop_of(&id));
    assert_eq!(stopped.status, Some(TaskStatus::Cancelled));
    assert_eq!(
        world.get(&id).spec.pty(),
        Some(TerminalSize { rows: 3, cols: 4 }),
        "an ended task tells its last"
    );
}

// proves T3, X2
#[test]
fn what_cannot_be_sized_is_refused_by_name() {
    let world = world();
    let mut client = world.client();
    let no_rows = at_terminal(&world, "true", TerminalSize { rows: 0, cols: 80 });
    let error = refused(client.call::<TaskStart>(&no_rows));
    assert_eq!((error.data.kind, error.data.field.as_deref()), (ErrorKind::Invalid, Some("pty")));

    let plain = world.run_detached(["--", "sleep", FOREVER]);
    let mut ask = |id: &str, rows, cols| {
        refused(client.call::<TaskResize>(&TaskResizeParams { id: id.to_owned(), rows, cols }))
    };
    let error = ask(&plain, 24, 80);
    assert_eq!(error.data.kind, ErrorKind::WrongState);
    assert_eq!(error.data.hint.as_deref(), Some("start it with --pty to give it one"));
    assert_eq!(ask(&plain, 0, 80).data.field.as_deref(), Some("rows"));
    assert_eq!(ask("sh-zzzz", 24, 80).data.kind, ErrorKind::NotFound);
    let over = world.start(&at_terminal(&world, "true", SMALL)).id;
    world.wait_ended(&over);
    let error = ask(&over, 24, 80);
    assert_eq!(
        (error.data.kind, error.message.contains("is not running")),
        (ErrorKind::WrongState, true),
        "{error}"
    );
}

// proves S2
#[test]
fn one_token_is_one_task_with_its_terminal() {
    let world = world();
    let line = |more: &[&'static str]| {
        let mut words = vec!["run", "-d", "--token", "one"];
        words.extend(more);
        words.extend(["--", "sleep", FOREVER]);
        world.belay(words)
    };
    let id = line(&["--pty"]).ok().line();
    assert_eq!(line(&["--pty"]).ok().line(), id);
    let other = line(&[]);
    assert_eq!(other.code, Some(1), "{other}");
}

// proves K1, K2, R1
#[test]
fn a_task_at_a_terminal_ends_as_any_other() {
    let world = world();
    let script = format!("sleep {FOREVER} & nohup sleep {FOREVER} & setsid sleep {FOREVER} & wait");
    let id = world.start(&at_terminal(&world, &script, SMALL)).id;
    wait_until("its whole tree", LONG, || {
        let processes = world.get(&id).processes.unwrap_or_default();
        if processes.len() == 4 { Ok(()) } else { Err(format!("{processes:?}")) }
    });
    let receipt = world.stop(&stop_of(&id)).receipt.unwrap();
    assert_eq!((receipt.signals[0].processes, receipt.survivors.len()), (4, 0));
    let late = world.belay(["run", "--pty", "--timeout", "200ms", "--", "sleep", FOREVER]);
    assert_eq!(late.code, Some(124), "{late}");
    let missing = world.belay(["run", "--pty", "--", "no-such-program"]);
    assert_eq!(missing.code, Some(127), "{missing}");
    let killed = world.belay(["run", "--pty", "--", "sh", "-c", "kill -SEGV $$"]);
    assert_eq!(killed.code, Some(139), "{killed}");
}

// proves T2
#[test]
fn a_shim_serves_again_after_a_terminal_and_after_a_start_that_failed() {
    let world = world();
    let pids = || world.shims().iter().map(|seen| seen.identity.pid).collect::<Vec<_>>();
    assert_eq!(world.belay(["run", "--pty", "--", "true"]).code, Some(0));
    let before = pids();
    assert!(!before.is_empty());
    for (more, program, code) in
        [("--pty", "true", 0), ("--pty", "no-such-program", 127), ("--merge", "no-such-program", 127)]
    {
        // So often that one that left each time would have taken all of them along.
        for _ in 0..12 {
            assert_eq!(world.belay(["run", more, "--", program]).code, Some(code));
        }
        let now = pids();
        assert!(
            before.iter().all(|pid| now.contains(pid)),
            "{more} {program}: of {before:?} there are {now:?}"
        );
    }
}

// proves W6, X2
#[test]
fn keys_are_pressed_by_name_where_there_is_a_terminal() {
    let world = world();
    let script = "stty raw -echo; echo ready; dd bs=1 count=9 2>/dev/null | od -An -tx1";
    let id = world.start(&at_terminal(&world, script, SMALL)).id;
    world.wait_for_output(&id, "a program that reads keys", |heard| heard.starts_with(b"ready"));
    world
        .belay(["send", &id, "ab", "--key", "ctrl-c", "--key", "up", "--key", "alt-x", "--key", "enter"])
        .ok();
    world.wait_ended(&id);
    let said = String::from_utf8(world.logs(&id)).unwrap();
    assert_eq!(said.trim_start_matches("ready").trim(), "61 62 03 1b 5b 41 1b 78 0d");

    let interrupted = world.run_detached(["--pty", "--", "sh", "-c", &format!("echo on; sleep {FOREVER}")]);
    world.wait_for_output(&interrupted, "a command that runs", |heard| heard == b"on\r\n");
    world.belay(["send", &interrupted, "--key", "ctrl-c"]).ok();
    assert_eq!(world.wait_ended(&interrupted).outcome.unwrap().signal(), Some(2));

    let plain = world.run_detached(["--stdin", "--", "cat"]);
    let none = world.belay(["send", &plain, "--key", "ctrl-c"]);
    assert_eq!(none.code, Some(1), "{none}");
    let told = String::from_utf8(none.stderr).unwrap();
    assert!(told.contains("has no terminal") && told.contains("belay stop"), "{told}");
    let unknown = world.belay(["send", &plain, "--key", "hyper-x"]);
    assert_eq!(unknown.code, Some(2), "{unknown}");
    assert!(String::from_utf8(unknown.stderr).unwrap().contains("keys are enter, tab, esc"));
}

// proves T1
#[test]
fn an_ordinary_user_has_terminals_too() {
    if !is_root() {
        println!("NOT RUN: only root can become another user; the other tests were run as one");
        return;
    }
    let world = builder().as_nobody().build();
    let said = world.belay(["run", "--pty", "--", "sh", "-c", "echo hi >/dev/tty; stty size; id -u"]).ok();
    assert_eq!(said.stdout, typed("hi\n24 80\n65534\n"));
}
