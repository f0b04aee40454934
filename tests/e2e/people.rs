//! People at terminals: `belay run --pty` in a real terminal, with the programs that make the most of one. What a person
//! sees is looked at; nothing is hoped for.

use belay_os::signal::Signal;
use belay_protocol::task::{DetachedBy, TaskStatus};
use belay_testkit::{LONG, Modes, PROMPT, Seen, Tmux, World, send_signal, wait_until};

use crate::support::{FOREVER, running, world};

/// Waits for the shell again, and for the code that the last command ended with.
#[track_caller]
fn code(tmux: &Tmux<'_>, code: u8) -> String {
    let told = format!("code={code}\n{PROMPT}");
    let screen = tmux.wait_for(&told, |screen| screen.ends_with(&told));
    assert_eq!(tmux.modes(), Modes::PLAIN, "the terminal is as it was");
    screen
}

/// Remembers how the terminal is set.
fn note_settings(tmux: &Tmux<'_>, world: &World) {
    tmux.line(&format!("stty -g >{}/settings; clear", world.dir().display()));
    tmux.wait_for("an empty screen", |screen| screen == PROMPT);
}

/// It takes lines and echoes them as it did.
#[track_caller]
fn is_set_as_before(tmux: &Tmux<'_>, world: &World) {
    tmux.line(&format!("clear; stty -g | cmp - {}/settings && echo the same", world.dir().display()));
    tmux.wait_for("the settings of before", |screen| screen.starts_with("the same"));
}

/// The `belay` of somebody at a terminal.
fn command_at(world: &World, words: &str) -> Seen {
    wait_until("the command at the terminal", LONG, || {
        let everybody = world.everybody();
        let found =
            everybody.iter().find(|seen| seen.cmdline.contains(words) && seen.cmdline.contains("belay"));
        found.cloned().ok_or_else(|| format!("{everybody:?}"))
    })
}

// proves T1, T5
#[test]
fn vim_edits_a_file_and_leaves_the_screen_as_it_was() {
    let world = world();
    let tmux = Tmux::new(&world, 80, 24);
    note_settings(&tmux, &world);
    let file = world.dir().join("notes.txt");
    tmux.line("echo what was there before");
    tmux.line(&format!("$BELAY run --pty -- vim -u NONE -i NONE {}; echo code=$?", file.display()));
    tmux.wait_for("an empty file in vim", |screen| screen.contains("[New File]") && screen.contains("\n~\n"));
    assert!(tmux.modes().alternate);
    tmux.say("ione");
    tmux.press(&["Enter", "C-v", "Tab"]);
    tmux.say("two \u{20ac}");
    tmux.press(&["Escape"]);
    tmux.line(":wq");
    let screen = code(&tmux, 0);
    assert!(screen.contains("what was there before") && !screen.contains('~'), "{screen}");
    assert!(screen.contains("Ctrl-B d detaches"), "{screen}");
    assert_eq!(std::fs::read(&file).unwrap(), "one\n\ttwo \u{20ac}\n".as_bytes());
    is_set_as_before(&tmux, &world);
}

// proves T1, T5
#[test]
fn top_draws_and_quits() {
    let world = world();
    let tmux = Tmux::new(&world, 100, 30);
    tmux.line("$BELAY run --pty -- top; echo code=$?");
    tmux.wait_for("processes", |screen| screen.contains("PID") && screen.contains("%CPU"));
    tmux.say("q");
    code(&tmux, 0);
}

// proves T1
#[test]
fn python_answers_at_its_prompt_and_ends_with_its_input() {
    let world = world();
    let tmux = Tmux::new(&world, 80, 24);
    tmux.line("$BELAY run --pty -- python3 -q; echo code=$?");
    tmux.wait_for_text(">>>");
    tmux.line("2+3");
    tmux.wait_for("the sum", |screen| screen.contains(">>> 2+3\n5\n>>>"));
    tmux.press(&["C-d"]);
    code(&tmux, 0);
}

// proves T1, T5
#[test]
fn less_pages_and_quits() {
    let world = world();
    let file = world.dir().join("long");
    std::fs::write(&file, (1..=200).map(|n| format!("line {n}\n")).collect::<String>()).unwrap();
    let tmux = Tmux::new(&world, 80, 24);
    tmux.line(&format!("$BELAY run --pty -- less {}; echo code=$?", file.display()));
    tmux.wait_for("the first page", |screen| screen.starts_with("line 1\n") && screen.contains("line 23\n"));
    tmux.say(" ");
    tmux.wait_for("the second page", |screen| screen.starts_with("line 24\n"));
    tmux.say("q");
    code(&tmux, 0);
}

// proves T1, K1
#[test]
fn control_c_goes_to_what_is_in_the_foreground_there() {
    let world = world();
    let tmux = Tmux::new(&world, 80, 24);
    tmux.line(&format!("$BELAY run --pty -- sleep {FOREVER}; echo code=$?"));
    running(&world);
    tmux.press(&["C-c"]);
    code(&tmux, 130);

    tmux.line("clear; PS1='inner% ' $BELAY run --pty -- bash --norc; echo code=$?");
    tmux.wait_for_text("\ninner%");
    tmux.line(&format!("sleep {FOREVER}"));
    wait_until("a sleep in bash", LONG, || {
        let processes = world.get(&running(&world).id).processes.unwrap_or_default();
        if processes.len() == 2 { Ok(()) } else { Err(format!("{processes:?}")) }
    });
    tmux.press(&["C-c"]);
    tmux.wait_for("bash again", |screen| screen.contains("^C\ninner%"));
    tmux.line("exit 7");
    code(&tmux, 7);
}

/// Waits until the `cat` of the one task is in this state.
#[track_caller]
fn wait_for_cat(world: &World, right: impl Fn(&str) -> bool) {
    wait_until("a cat", LONG, || {
        let processes = world.get(&running(world).id).processes.unwrap_or_default();
        let found = processes.iter().any(|process| process.command == "cat" && right(&process.state));
        if found { Ok(()) } else { Err(format!("{processes:?}")) }
    });
}

// proves T1
#[test]
fn a_job_is_suspended_and_brought_back_by_the_shell_inside() {
    let world = world();
    let tmux = Tmux::new(&world, 80, 24);
    tmux.line("PS1='inner% ' $BELAY run --pty -- bash --norc; echo code=$?");
    tmux.wait_for_text("\ninner%");
    tmux.line("cat");
    // Before it is there the terminal is the shell's, in which Enter is another character.
    wait_for_cat(&world, |state| state == "S");
    tmux.line("first");
    tmux.wait_for("an echo and an answer", |screen| screen.contains("first\nfirst"));
    tmux.press(&["C-z"]);
    tmux.wait_for("a suspended job", |screen| screen.contains("Stopped") && screen.ends_with("inner%"));
    wait_for_cat(&world, |state| state == "T");
    tmux.line("fg");
    wait_for_cat(&world, |state| state == "S");
    tmux.line("second");
    tmux.wait_for("the job again", |screen| screen.contains("second\nsecond"));
    tmux.press(&["C-d"]);
    tmux.wait_for("its end", |screen| screen.ends_with("second\ninner%"));
    tmux.press(&["C-d"]);
    code(&tmux, 0);
}

// proves T1, T5
#[test]
fn a_script_may_use_the_terminal_and_a_job_in_the_background_leaves_it_alone() {
    let world = world();
    let tmux = Tmux::new(&world, 80, 24);
    note_settings(&tmux, &world);
    tmux.line(
        "sh -c '$BELAY run --pty -- sh -c \"echo here; read word; echo got \\$word\"; exit 3'; echo code=$?",
    );
    tmux.wait_for("a script's command", |screen| screen.contains("\nhere"));
    tmux.line("word");
    tmux.wait_for_text("got word");
    code(&tmux, 3);
    tmux.line("clear; $BELAY run --pty -- sh -c 'sleep 0.2; tty >/dev/null && echo its own' & wait $!; echo code=$?");
    tmux.wait_for("its end", |screen| screen.starts_with("its own\ncode=0"));
    is_set_as_before(&tmux, &world);
}

// proves T3
#[test]
fn the_size_of_the_window_is_the_size_of_the_terminal() {
    let world = world();
    let tmux = Tmux::new(&world, 81, 25);
    tmux.line("$BELAY run --pty -- bash -c 'trap \"stty size\" WINCH; stty size; while :; do sleep 0.05; done'; echo code=$?");
    tmux.wait_for_text("25 81");
    tmux.resize(120, 40);
    tmux.wait_for_text("40 120");
    tmux.resize(60, 15);
    tmux.wait_for_text("15 60");
    wait_until("the size in the list", LONG, || {
        let size = running(&world).spec.pty();
        if size.is_some_and(|size| (size.rows, size.cols) == (15, 60)) {
            Ok(())
        } else {
            Err(format!("{size:?}"))
        }
    });
    tmux.press(&["C-c"]);
    tmux.wait_for_text("code=130");
}

// proves T5, F1, F2, F3
#[test]
fn the_prefix_and_d_leave_it_running_and_everything_else_goes_through() {
    let world = world();
    let tmux = Tmux::new(&world, 80, 24);
    note_settings(&tmux, &world);
    tmux.line("$BELAY run --pty -- sh -c 'stty raw -echo; echo ready; dd bs=1 count=4 2>/dev/null | od -An -tx1; stty sane; cat'; echo code=$?");
    tmux.wait_for("a program that reads keys", |screen| screen.contains("\nready"));
    let id = running(&world).id;
    tmux.press(&["C-b", "C-b", "C-b", "x"]);
    tmux.say("y");
    tmux.wait_for_text("02 02 78 79");
    tmux.press(&["C-b"]);
    tmux.say("d");
    let screen = code(&tmux, 0);
    assert!(screen.contains(&format!("belay: {id} runs on: detached by user:")), "{screen}");
    assert!(screen.contains(&format!("belay attach {id}")), "{screen}");
    is_set_as_before(&tmux, &world);
    let task = running(&world);
    assert_eq!((task.detached, task.id.as_str()), (true, id.as_str()));
    world.belay(["send", &id, "still there", "--eof"]).ok();
    assert_eq!(world.wait_ended(&id).status, TaskStatus::Completed);
    assert!(world.logs(&id).ends_with(b"still there\r\nstill there\r\n"));
}

// proves F1
#[test]
fn the_prefix_can_be_another_key_or_none() {
    let world = world();
    let tmux = Tmux::new(&world, 80, 24);
    tmux.line("BELAY_DETACH_KEY=ctrl-g $BELAY run --pty -- cat; echo code=$?");
    tmux.wait_for_text("Ctrl-G d detaches");
    let first = running(&world).id;
    tmux.press(&["C-g"]);
    tmux.say("d");
    code(&tmux, 0);
    world.belay(["stop", "--kill", &first]).ok();
    tmux.line("clear; BELAY_DETACH_KEY=none $BELAY run --pty -- sh -c 'stty raw -echo; echo ready; dd bs=1 count=2 2>/dev/null | od -An -tx1'; echo code=$?");
    tmux.wait_for_text("ready");
    tmux.press(&["C-b"]);
    tmux.say("d");
    tmux.wait_for_text("02 64");
    code(&tmux, 0);
}

// proves T1, D1
#[test]
fn a_command_at_a_terminal_goes_on_when_the_daemon_dies() {
    let world = world();
    let tmux = Tmux::new(&world, 80, 24);
    tmux.line("PS1='inner% ' $BELAY run --pty -- bash --norc; echo code=$?");
    tmux.wait_for_text("\ninner%");
    for round in 1..=3 {
        world.kill_daemon();
        tmux.line(&format!("echo round $(({round} * 111))"));
        let answer = format!("\nround {round}{round}{round}\ninner%");
        tmux.wait_for("an answer and the prompt", |screen| screen.ends_with(&answer));
    }
    let screen = tmux.screen();
    assert_eq!(screen.matches("inner% echo round").count(), 3, "typed once each: {screen}");
    assert!(!running(&world).detached, "its caller came back");
    tmux.line("exit 5");
    code(&tmux, 5);
}

// proves T5, F7, D7
#[test]
fn a_terminal_that_goes_away_detaches_the_task() {
    let world = world();
    let tmux = Tmux::new(&world, 80, 24);
    tmux.line("$BELAY run --pty -- sh -c 'echo here; exec cat'; echo code=$?");
    tmux.wait_for("the task", |screen| screen.contains("\nhere"));
    let id = running(&world).id;
    drop(tmux);
    wait_until("a task that nobody waits for", LONG, || {
        let task = world.get(&id);
        if task.detached_by == Some(DetachedBy::Disconnect) { Ok(()) } else { Err(format!("{task:?}")) }
    });
    world.belay(["send", &id, "--eof"]).ok();
    assert_eq!(world.wait_ended(&id).status, TaskStatus::Completed);
}

// proves T5, K1, K6
#[test]
fn whoever_ends_the_command_gives_the_terminal_back() {
    let world = world();
    let tmux = Tmux::new(&world, 80, 24);
    note_settings(&tmux, &world);
    tmux.line("$BELAY run --pty -- vim -u NONE -i NONE; echo code=$?");
    tmux.wait_for("vim", |screen| screen.contains("VIM - Vi IMproved"));
    let seen = command_at(&world, " run --pty");
    send_signal(seen.identity, Signal::TERM);
    tmux.wait_for_text(&format!("\n{PROMPT}"));
    assert_eq!(tmux.modes(), Modes::PLAIN);
    is_set_as_before(&tmux, &world);

    tmux.line("clear; $BELAY run --pty -- vim -u NONE -i NONE; echo code=$?");
    tmux.wait_for("vim", |screen| screen.contains("VIM - Vi IMproved"));
    let id = running(&world).id;
    world.belay(["stop", "--kill", &id]).ok();
    code(&tmux, 137);
    is_set_as_before(&tmux, &world);
}
