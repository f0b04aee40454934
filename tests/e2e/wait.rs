//! Waiting: for a match, for silence, for N of M; what is so already counts, and nothing is missed between two waits.

use belay_protocol::methods::TaskWait;
use belay_protocol::output::StreamName;
use belay_protocol::task::{OutputMatchParams, TaskStatus, TaskWaitParams, TaskWaitResult, WaitMet};
use belay_testkit::{LONG, World, wait_until};

use crate::support::{FOREVER, refused, stop_of, world};

fn matching(pattern: &str) -> OutputMatchParams {
    OutputMatchParams { pattern: pattern.to_owned(), after: 0, stream: None, cursor: None, text: true }
}

fn for_match(id: &str, matching: OutputMatchParams, timeout_ms: u64) -> TaskWaitParams {
    TaskWaitParams { matching: Some(matching), timeout_ms: Some(timeout_ms), ..TaskWaitParams::for_end(id) }
}

#[track_caller]
fn wait(world: &World, params: &TaskWaitParams) -> TaskWaitResult {
    world.client().call::<TaskWait>(params).unwrap()
}

fn found(waited: &TaskWaitResult) -> (u64, String) {
    let line = &waited.line.as_ref().unwrap().line;
    (line.offset, line.text.clone().unwrap())
}

// proves W1
#[test]
fn every_match_is_found_once_however_the_waits_are_cut() {
    let world = world();
    // In pieces, with pauses inside of lines, on both streams.
    let script = "for i in 1 2 3 4 5 6 7 8; do printf 'tick '; printf 'err %s' $i >&2; sleep 0.03; echo $i; \
                  sleep 0.02; echo >&2; done; echo done";
    let id = world.run_detached(["--", "sh", "-c", script]);
    let mut client = world.client();
    let mut next = matching(r"^tick \d$|^err \d$");
    let mut seen = Vec::new();
    loop {
        // Far too short for most of them: what one wait has not seen whole the next one sees.
        let waited = client.call::<TaskWait>(&for_match(&id, next.clone(), 20)).unwrap();
        next.cursor = waited.next.map(|next| next.cursor);
        match waited.met {
            WaitMet::Match => seen.push(found(&waited).1),
            WaitMet::Timeout => assert_eq!(waited.line, None),
            WaitMet::Ended => break,
            other => panic!("{other:?}"),
        }
    }
    let expected = |word: &str| (1..=8).map(|i| format!("{word} {i}")).collect::<Vec<_>>();
    let of = |word: &str| seen.iter().filter(|line| line.starts_with(word)).cloned().collect::<Vec<_>>();
    assert_eq!(of("tick"), expected("tick"), "{seen:?}");
    assert_eq!(of("err"), expected("err"), "{seen:?}");
    assert_eq!(seen.len(), 16, "{seen:?}");
}

// proves W1
#[test]
fn what_is_there_already_is_found_and_what_has_ended_too() {
    let world = world();
    let id = world.run_detached(["--", "sh", "-c", "echo one; echo two; echo three >&2"]);
    world.wait_ended(&id);
    let waited = wait(&world, &for_match(&id, matching("t"), 10_000));
    assert_eq!((waited.met, found(&waited)), (WaitMet::Match, (4, "two".to_owned())));
    // However short the time: it is there.
    let at_once = wait(&world, &for_match(&id, matching("t"), 0));
    assert_eq!((at_once.met, found(&at_once)), (WaitMet::Match, (4, "two".to_owned())));
    let on = OutputMatchParams { after: waited.next.unwrap().after, ..matching("t") };
    let waited = wait(&world, &for_match(&id, on, 10_000));
    assert_eq!((waited.met, found(&waited)), (WaitMet::Match, (8, "three".to_owned())));
    let cursor = waited.next.map(|next| next.cursor);
    let waited = wait(&world, &for_match(&id, OutputMatchParams { cursor, ..matching("t") }, 10_000));
    assert_eq!((waited.met, &waited.line), (WaitMet::Ended, &None));
    // Nor is a last line without its newline found twice.
    let open = world.run_detached(["--", "printf", "abc"]);
    world.wait_ended(&open);
    let waited = wait(&world, &for_match(&open, matching("b"), 10_000));
    assert_eq!((waited.met, found(&waited)), (WaitMet::Match, (0, "abc".to_owned())));
    let cursor = waited.next.map(|next| next.cursor);
    let waited = wait(&world, &for_match(&open, OutputMatchParams { cursor, ..matching("b") }, 10_000));
    assert_eq!((waited.met, &waited.line), (WaitMet::Ended, &None));
    assert_eq!(waited.task.status, TaskStatus::Completed);
    let stdout = OutputMatchParams { stream: Some(StreamName::Stdout), ..matching("three") };
    assert_eq!(wait(&world, &for_match(&id, stdout, 10_000)).met, WaitMet::Ended);
}

// proves W1
#[test]
fn a_prompt_without_a_line_end_is_a_line() {
    let world = world();
    let id =
        world.run_detached(["--stdin", "--", "sh", "-c", "printf 'Name: '; read name; echo \"Hello $name\""]);
    let said = world.belay(["wait", &id, "--match", "^Name: $", "--timeout", "20s"]).ok();
    assert_eq!(said.line(), format!("{id} matched at 0: Name: "));
    world.belay(["send", &id, "Ada"]).ok();
    let said = world.belay(["wait", &id, "--match", "^Hello", "--after", "6", "--timeout", "20s"]).ok();
    assert_eq!(said.line(), format!("{id} matched at 6: Hello Ada"));
}

/// What is written in blocks is cut where a block ends. A piece of a line that goes on is no line.
// proves W1
#[test]
fn a_line_that_goes_on_in_the_next_block_is_not_taken_for_less() {
    let world = world();
    let line = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!";
    let script = format!("read -r _; yes '{line}' | head -n 20000; echo over; exec sleep {FOREVER}");
    for _ in 0..5 {
        let id = world.run_detached(["--stdin", "--", "sh", "-c", &script]);
        let waiting = world.spawn(["wait", &id, "--match", "^a+$|^over$", "--timeout", "60s"]);
        wait_until("the wait", LONG, || match world.status().calls_waiting {
            1 => Ok(()),
            count => Err(format!("{count} calls wait")),
        });
        world.belay(["send", &id, "go"]).ok();
        let said = waiting.finish().ok();
        assert_eq!(said.line(), format!("{id} matched at {}: over", 20_000 * (line.len() + 1)));
    }
}

/// At a terminal a line ends with a carriage return too.
// proves W1, O2
#[test]
fn the_end_of_a_line_is_the_end_of_a_line_at_a_terminal() {
    let world = world();
    let id = world.run_detached(["--pty", "--", "sh", "-c", "echo ready; echo 'ready set'"]);
    world.wait_ended(&id);
    let said = world.belay(["wait", &id, "--match", "^ready$"]).ok();
    assert_eq!(said.line(), format!("{id} matched at 0: ready"));
    let grep = world.belay(["logs", &id, "--grep", "^ready$"]).ok();
    assert_eq!(grep.stdout, b"ready\r\n");
}

// proves W1, R3
#[test]
fn a_match_beyond_a_daemons_death_is_not_missed() {
    let world = world();
    let gate = world.dir().join("gate");
    let script = format!(
        "printf 'rea'; until [ -e {} ]; do sleep 0.02; done; echo dy; sleep {FOREVER}",
        gate.display()
    );
    let id = world.run_detached(["--", "sh", "-c", &script]);
    world.wait_for_output(&id, "the first half", |said| said == b"rea");
    let waiting = world.spawn(["wait", &id, "--match", "^ready$", "--timeout", "30s", "--json"]);
    wait_until("the wait", LONG, || {
        let pending = world.status().clients;
        if pending >= 2 { Ok(()) } else { Err(format!("{pending} clients")) }
    });
    world.kill_daemon();
    std::fs::write(&gate, "").unwrap();
    let waited: TaskWaitResult = waiting.finish().ok().json();
    assert_eq!((waited.met, found(&waited)), (WaitMet::Match, (0, "ready".to_owned())));
}

// proves W1
#[test]
fn silence_counts_from_the_last_output_and_begins_anew_with_each() {
    let world = world();
    let noisy = "i=0; while [ $i -lt 40 ]; do echo $i; i=$((i+1)); sleep 0.02; done; sleep 1000";
    let id = world.run_detached(["--", "sh", "-c", noisy]);
    let silence = |silence_ms, timeout_ms| TaskWaitParams {
        silence_ms: Some(silence_ms),
        timeout_ms: Some(timeout_ms),
        ..TaskWaitParams::for_end(&id)
    };
    let waited = wait(&world, &silence(400, 20_000));
    assert_eq!(waited.met, WaitMet::Silence);
    let said = String::from_utf8(world.logs(&id)).unwrap();
    assert_eq!(said.lines().last(), Some("39"), "it was silent when it had said everything");
    // It has been silent for long enough before this wait began.
    assert_eq!(wait(&world, &silence(300, 20_000)).met, WaitMet::Silence);
    assert_eq!(wait(&world, &silence(3_600_000, 50)).met, WaitMet::Timeout);
    let told = world.belay(["wait", &id, "--silence", "300ms"]).ok();
    assert_eq!(told.line(), format!("{id} wrote nothing for 300ms"));
    world.stop(&stop_of(&id));
    assert_eq!(wait(&world, &silence(300, 20_000)).met, WaitMet::Ended);
    assert_eq!(world.belay(["wait", &id, "--silence", "300ms"]).code, Some(1));
}

// proves W1
#[test]
fn n_of_m_is_enough() {
    let world = world();
    let slow = world.run_detached(["--", "sleep", FOREVER]);
    let quick: Vec<String> =
        (0..3).map(|code| world.run_detached(["--", "sh", "-c", &format!("exit {code}")])).collect();
    let all: Vec<&str> = [&slow, &quick[0], &quick[1], &quick[2]].map(String::as_str).to_vec();
    let with = |any: &'static str| [&["wait", "--json", "--any", any], all.as_slice()].concat();
    let said = world.belay(with("3"));
    let waited: Vec<TaskWaitResult> = said.json_lines();
    assert_eq!((said.code, waited.len()), (Some(1), 3), "{said}");
    assert!(waited.iter().all(|waited| waited.met == WaitMet::Ended && waited.id != slow), "{waited:?}");
    assert_eq!(world.inspect(&slow).status, TaskStatus::Running);
    let said = world.belay(["wait", "--any", "1", &slow, &quick[0], "--timeout", "20s"]);
    assert_eq!(said.code, Some(0), "{said}");
    for any in ["0", "5"] {
        assert_eq!(world.belay(with(any)).code, Some(2), "--any {any}");
    }
}

/// More than a connection takes at once, all of them answered at once: nobody waits for the other to read.
// proves W1, X3
#[test]
fn many_are_waited_for_over_one_connection() {
    let world = world();
    let mut client = world.client();
    let ids: Vec<String> = (0..1500)
        .map(|_| {
            client.call::<belay_protocol::methods::TaskStart>(&world.start_params(&["true"])).unwrap().id
        })
        .collect();
    let words = ["wait", "--json"].into_iter().chain(ids.iter().map(String::as_str));
    let waited: Vec<TaskWaitResult> = world.belay(words).ok().json_lines();
    assert_eq!(waited.len(), 1500);
}

// proves W2, D7
#[test]
fn a_wait_whose_caller_is_gone_leaves_the_task_alone() {
    let world = world();
    let id = world.run_detached(["--", "sh", "-c", "while :; do echo x; sleep 0.01; done"]);
    for more in [&["--match", "never"][..], &["--silence", "1h"], &[]] {
        let before = world.status().clients;
        let waiting = world.spawn([&["wait", &id], more].concat());
        wait_until("the wait", LONG, || {
            let clients = world.status().clients;
            if clients > before { Ok(()) } else { Err(format!("{clients} clients")) }
        });
        drop(waiting);
        wait_until("its end", LONG, || {
            let clients = world.status().clients;
            if clients <= before { Ok(()) } else { Err(format!("{clients} clients")) }
        });
        assert_eq!(world.inspect(&id).status, TaskStatus::Running);
    }
}

// proves W1, X2
#[test]
fn what_cannot_be_waited_for_is_refused_by_name() {
    let world = world();
    let id = world.run_detached(["--", "sleep", FOREVER]);
    let mut client = world.client();
    let mut field = |params: &TaskWaitParams| refused(client.call::<TaskWait>(params)).data.field;
    assert_eq!(field(&for_match(&id, matching("("), 10)).as_deref(), Some("pattern"));
    assert_eq!(
        field(&for_match(&id, OutputMatchParams { after: 1, ..matching("x") }, 10)).as_deref(),
        Some("after")
    );
    let attached = TaskWaitParams { attach: true, ..for_match(&id, matching("x"), 10) };
    assert_eq!(field(&attached).as_deref(), Some("attach"));
    let nothing = TaskWaitParams { silence_ms: Some(0), ..TaskWaitParams::for_end(&id) };
    assert_eq!(field(&nothing).as_deref(), Some("silence_ms"));
    assert_eq!(field(&for_match("sh-nobody", matching("x"), 10)).as_deref(), Some("id"));
    assert_eq!(world.belay(["wait", &id, "--match", "("]).code, Some(2));
    assert_eq!(world.belay(["wait", &id, "--after", "3"]).code, Some(2));
}
