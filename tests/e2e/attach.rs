//! `belay attach`: coming to a task that runs, seeing what it shows, typing to it, and leaving it as it was.

use belay_protocol::task::{TaskInfo, TaskStatus};
use belay_testkit::{LONG, Modes, PROMPT, Tmux, World, wait_until};

use crate::support::{FOREVER, world};

fn attach(tmux: &Tmux<'_>, id: &str) {
    tmux.line(&format!("clear; $BELAY attach {id}; echo code=$?"));
}

fn detach(tmux: &Tmux<'_>) {
    tmux.press(&["C-b"]);
    tmux.say("d");
}

#[track_caller]
fn code(tmux: &Tmux<'_>, code: u8) -> String {
    let told = format!("code={code}\n{PROMPT}");
    let screen = tmux.wait_for(&told, |screen| screen.ends_with(&told));
    assert_eq!(tmux.modes(), Modes::PLAIN, "the terminal is as it was");
    screen
}

fn vim(world: &World, file: &str) -> String {
    let path = world.dir().join(file);
    std::fs::write(&path, "alpha\nbeta\ngamma\n").unwrap();
    let id = world.run_detached(["--pty", "--", "vim", "-u", "NONE", "-i", "NONE", path.to_str().unwrap()]);
    world.wait_for_output(&id, "vim's first screen", |heard| {
        heard.windows(5).any(|window| window == b"gamma")
    });
    id
}

// proves T4, T5, O1, W6
#[test]
fn a_running_vim_is_seen_by_all_and_left_by_each() {
    let world = world();
    let id = vim(&world, "shared.txt");
    let (one, two) = (Tmux::new(&world, 80, 24), Tmux::new(&world, 80, 24));
    attach(&one, &id);
    let screen = one.wait_for("vim's screen", |screen| screen.starts_with("alpha\nbeta\ngamma\n~\n"));
    assert!(one.modes().alternate, "{screen}");
    attach(&two, &id);
    two.wait_for("the same screen", |seen| seen == screen);

    one.say("Goone");
    two.wait_for_text("one");
    two.say(" and two");
    one.wait_for_text("one and two");
    one.press(&["Escape"]);
    detach(&one);
    let left = code(&one, 0);
    assert!(left.contains(&format!("belay: left {id}, which runs on")), "{left}");
    assert!(!left.contains("alpha"), "its screen is not left on ours: {left}");

    attach(&one, &id);
    one.wait_for("what was typed meanwhile", |screen| screen.contains("gamma\none and two\n~"));
    one.line(":wq");
    code(&one, 0);
    code(&two, 0);
    let text = std::fs::read_to_string(world.dir().join("shared.txt")).unwrap();
    assert_eq!(text, "alpha\nbeta\ngamma\none and two\n");
}

// proves T4, O4
#[test]
fn a_screen_is_found_at_the_end_of_much_output_and_in_a_smaller_window() {
    let world = world();
    let id = world.run_detached(["--pty", "--env", "PS1=inner% ", "--", "bash", "--norc"]);
    world.wait_for_output(&id, "a prompt", |heard| heard.ends_with(b"inner% "));
    world.belay(["send", &id, "seq 1 300000"]).ok();
    world.wait_for_output(&id, "the last number and a prompt", |heard| {
        heard.ends_with(b"inner% ") && heard.windows(6).any(|window| window == b"300000")
    });
    assert!(world.get(&id).output.bytes > 1024 * 1024 * 3 / 2);
    let tmux = Tmux::new(&world, 60, 10);
    attach(&tmux, &id);
    let numbers: String = (299_992..=300_000).map(|number| format!("{number}\n")).collect();
    tmux.wait_for("the end of it", |screen| screen == format!("{numbers}inner%"));
    tmux.line("stty size");
    tmux.wait_for_text("\n10 60\ninner%");
    tmux.line("exit 0");
    code(&tmux, 0);
}

// proves T3, T4, F1
#[test]
fn who_looks_on_does_not_detach_who_waits() {
    let world = world();
    let (caller, viewer) = (Tmux::new(&world, 80, 24), Tmux::new(&world, 100, 30));
    caller.line("PS1='inner% ' $BELAY run --pty -- bash --norc; echo code=$?");
    caller.wait_for_text("\ninner%");
    let listed: Vec<TaskInfo> = world.belay(["ps", "--json"]).ok().json_lines();
    let id = listed[0].id.clone();
    attach(&viewer, &id);
    viewer.wait_for_text("inner%");
    viewer.line("stty size");
    viewer.wait_for_text("30 100");
    caller.wait_for_text("30 100");
    detach(&viewer);
    code(&viewer, 0);
    assert!(!world.get(&id).detached, "its caller waits still");
    caller.line("exit 9");
    code(&caller, 9);
}

// proves T4, D1
#[test]
fn the_view_goes_on_when_the_daemon_dies() {
    let world = world();
    let id = world.run_detached(["--pty", "--env", "PS1=inner% ", "--", "bash", "--norc"]);
    let tmux = Tmux::new(&world, 80, 24);
    attach(&tmux, &id);
    tmux.wait_for("its screen, and nothing twice", |screen| screen == "inner%");
    for round in 1..=3 {
        world.kill_daemon();
        tmux.line(&format!("echo round $(({round} * 111))"));
        let answer = format!("\nround {round}{round}{round}\ninner%");
        tmux.wait_for("an answer and the prompt", |screen| screen.ends_with(&answer));
    }
    let screen = tmux.screen();
    assert_eq!(screen.matches("echo round").count(), 3, "typed once each: {screen}");
    tmux.line("exit 5");
    code(&tmux, 5);
    assert_eq!(world.wait_ended(&id).outcome.unwrap().exit_code(), Some(5));
}

// proves T4, D7
#[test]
fn a_terminal_that_goes_away_ends_the_looking_and_not_the_task() {
    let world = world();
    let id = world.run_detached(["--pty", "--", "sh", "-c", "echo here; exec cat"]);
    let tmux = Tmux::new(&world, 80, 24);
    attach(&tmux, &id);
    tmux.wait_for("its screen", |screen| screen == "here");
    tmux.line("word");
    tmux.wait_for("an answer", |screen| screen.contains("word\nword"));
    drop(tmux);
    wait_until("the end of the looking", LONG, || {
        let left = world.everybody().into_iter().find(|seen| seen.cmdline.contains(" attach "));
        left.map_or(Ok(()), |seen| Err(format!("{seen:?}")))
    });
    assert_eq!(world.get(&id).status, TaskStatus::Running);
}

// proves T4, O2, K1
#[test]
fn a_task_without_a_terminal_is_followed_and_interrupted() {
    let world = world();
    let script = "seq 1 30; echo err >&2; while read line; do echo got $line; done; sleep 1000";
    let id = world.run_detached(["--stdin", "--", "sh", "-c", script]);
    world.wait_for_output(&id, "its lines", |heard| heard.ends_with(b"err\n"));
    let tmux = Tmux::new(&world, 80, 24);
    attach(&tmux, &id);
    tmux.wait_for("its last lines", |screen| screen.starts_with("22\n") && screen.contains("30\nerr"));
    tmux.line("hello");
    tmux.wait_for("an answer", |screen| screen.ends_with("hello\ngot hello"));
    // At a task on pipes the key alone leaves.
    tmux.press(&["C-b"]);
    let left = code(&tmux, 0);
    assert!(left.contains(&format!("belay: left {id}, which runs on")), "{left}");
    assert_eq!(world.get(&id).status, TaskStatus::Running);
    attach(&tmux, &id);
    tmux.wait_for_text("got hello");
    tmux.press(&["C-c"]);
    tmux.wait_for("its end", |screen| screen.contains("code=130"));
    assert_eq!(world.wait_ended(&id).status, TaskStatus::Cancelled);
}

// proves O2, K4
#[test]
fn what_has_ended_is_told_with_its_last_lines_and_its_code() {
    let world = world();
    let id = world.run_detached(["--", "sh", "-c", "seq 1 30; exit 6"]);
    world.wait_ended(&id);
    let said = world.belay(["attach", &id]);
    let lines: String = (21..=30).map(|number| format!("{number}\n")).collect();
    assert_eq!((said.code, String::from_utf8(said.stdout).unwrap()), (Some(6), lines));
    let told = String::from_utf8(said.stderr).unwrap();
    assert!(told.contains(&format!("{id} has ended: failed: exit 6")), "{told}");
    let unknown = world.belay(["attach", "sh-zzzz"]);
    assert_eq!(unknown.code, Some(1), "{unknown}");
    assert!(String::from_utf8(unknown.stderr).unwrap().contains("there is no task"));
}

// proves T4, W6, D7
#[test]
fn without_a_terminal_bytes_go_both_ways_and_an_end_is_only_ours() {
    let world = world();
    for more in [&["--stdin"][..], &["--pty"]] {
        let script = "stty -echo 2>/dev/null; echo on; read a; echo got $a; read b; echo got $b; exit 4";
        let words = more.iter().copied().chain(["--", "sh", "-c", script]);
        let id = world.run_detached(words);
        world.wait_for_output(&id, "a reader", |heard| heard.starts_with(b"on"));
        let mut viewer = world.spawn_with_stdin(["attach", &id]);
        viewer.write(b"one\n");
        viewer.wait_for_stdout("an answer", |said| String::from_utf8_lossy(said).contains("got one"));
        // Our end is not the task's: it waits for its second line, and we for its end.
        viewer.close_stdin();
        let used = |world: &World| world.get(&id).status;
        assert_eq!(used(&world), TaskStatus::Running);
        world.belay(["send", &id, "two"]).ok();
        let said = viewer.finish();
        assert_eq!(said.code, Some(4), "{said}");
        let text = String::from_utf8(said.stdout).unwrap().replace('\r', "");
        assert_eq!(text, "on\ngot one\ngot two\n");
    }
    let id = world.run_detached(["--stdin", "--", "sleep", FOREVER]);
    let viewer = world.spawn(["attach", &id]);
    let stopped = world.belay(["stop", "--kill", &id]);
    assert_eq!(stopped.code, Some(0), "{stopped}");
    assert_eq!(viewer.finish().code, Some(137), "with nothing to read from the beginning");
}

// proves X2
#[test]
fn a_task_is_not_shown_to_itself() {
    let world = world();
    let line = format!("{} attach $BELAY_TASK; echo code=$?", world.program().display());
    let said = world.belay(["run", "--", "sh", "-c", &line]).ok();
    assert_eq!(said.stdout, b"code=2\n", "{said}");
}
