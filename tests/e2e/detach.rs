//! From the foreground to the background: whoever waits is released with the id, the task goes on, and no byte is lost.

use std::time::Duration;

use belay_client::{Client, Message, decode};
use belay_protocol::event;
use belay_protocol::event::EventKind;
use belay_protocol::methods::{EventRead, TaskDetach, TaskStart, TaskStop};
use belay_protocol::task::{
    AnswerWhen, DetachedBy, OnDisconnect, OnTimeout, TaskDetachParams, TaskInfo, TaskStartParams, TaskStatus,
    TaskStopParams,
};
use belay_testkit::{LONG, World, wait_until};

use crate::support::{FOREVER, running, stop_of, world};

fn detach(world: &World, id: &str) -> TaskInfo {
    world.client().call::<TaskDetach>(&TaskDetachParams { id: id.to_owned(), actor: None }).unwrap()
}

fn foreground(world: &World, script: &str) -> TaskStartParams {
    let mut params = world.start_params(&["sh", "-c", script]);
    params.detached = false;
    params.answer = AnswerWhen::Ended;
    params
}

fn output_files(world: &World, id: &str) -> usize {
    std::fs::read_dir(world.home().join("tasks").join(id)).map_or(0, Iterator::count)
}

// proves F1, F2, F3, F5
#[test]
fn a_running_command_is_detached_by_anybody_and_loses_nothing() {
    let world = world();
    let go = world.dir().join("go");
    let script = format!(
        "echo before; echo err >&2; until [ -e {} ]; do sleep 0.01; done; echo after; exit 7",
        go.display()
    );
    let caller = world.spawn(["run", "--", "sh", "-c", &script]);
    caller.wait_for_stdout("the first line", |said| said == b"before\n");
    let id = running(&world).id;
    assert_eq!(output_files(&world, &id), 0, "it lies in memory while somebody waits");
    assert_eq!(world.logs(&id), b"before\nerr\n", "and can be read there by anybody");

    let told = world.belay(["detach", &id]).ok().line();
    assert!(told.starts_with(&format!("{id} runs in the background (detached by user:")), "{told}");
    let released = caller.finish();
    assert_eq!(released.code, Some(0), "{released}");
    assert_eq!(released.stdout, format!("before\n{id}\n").into_bytes());
    assert!(output_files(&world, &id) > 0, "what came before is on disk now");
    let again = detach(&world, &id);
    assert_eq!((again.status, again.detached), (TaskStatus::Running, true), "once more changes nothing");

    std::fs::write(&go, "").unwrap();
    let ended = world.wait_ended(&id);
    assert_eq!(ended.outcome.unwrap().exit_code(), Some(7));
    assert_eq!(world.logs(&id), b"before\nerr\nafter\n");
    assert_eq!(world.stdout_of(&id), b"before\nafter\n");
    assert_eq!(detach(&world, &id).status, TaskStatus::Failed, "an ended task is answered as it is");
    let events = world.events_of(&id);
    assert_eq!(events.iter().filter(|kind| **kind == EventKind::TaskDetached).count(), 1, "{events:?}");
}

// proves F8, O1
#[test]
fn a_short_command_in_the_foreground_leaves_no_file_and_can_be_read_after_its_end() {
    let world = world();
    let said = world.belay(["run", "--", "sh", "-c", "echo out; echo err >&2; exit 3"]);
    assert_eq!(
        (said.code, said.stdout.as_slice(), said.stderr.as_slice()),
        (Some(3), &b"out\n"[..], &b"err\n"[..])
    );
    let tasks: Vec<TaskInfo> = world.belay(["ps", "-a", "--json"]).ok().json_lines();
    let [task] = tasks.as_slice() else { panic!("{tasks:?}") };
    assert_eq!((task.output.bytes, task.output.on_disk), (8, false));
    assert_eq!(output_files(&world, &task.id), 0);
    assert_eq!(world.logs(&task.id), b"out\nerr\n");
    // Only the daemon has it, and a new one says so.
    world.kill_daemon();
    let logs = world.belay(["logs", "--raw", &task.id]);
    assert_eq!((logs.code, logs.stdout.as_slice()), (Some(0), &b""[..]));
    assert_eq!(String::from_utf8(logs.stderr).unwrap(), "[… 8 bytes not kept: offsets 0–8 …]\n");
}

// proves F8, F3
#[test]
fn what_is_beyond_the_bound_goes_to_disk_whole() {
    let world = world();
    let script = "head -c 3000000 /dev/zero | tr '\\0' x; echo; echo end";
    let said = world.belay(["run", "--", "sh", "-c", script]);
    assert_eq!((said.code, said.stdout.len()), (Some(0), 3_000_005));
    let tasks: Vec<TaskInfo> = world.belay(["ps", "-a", "--json"]).ok().json_lines();
    assert!(output_files(&world, &tasks[0].id) > 0);
    assert_eq!(world.logs(&tasks[0].id), said.stdout);
}

// proves F6, F4, R1
#[test]
fn the_time_limit_detaches_if_it_shall_and_then_applies_no_more() {
    let world = world();
    let line = ["run", "--timeout", "200ms", "--on-timeout", "detach", "--", "sh", "-c"];
    let script = format!("echo working; exec sleep {FOREVER}");
    let released = world.belay(line.iter().copied().chain([script.as_str()]));
    assert_eq!(released.code, Some(0), "{released}");
    let task = running(&world);
    assert_eq!((task.detached, task.detached_by), (true, Some(DetachedBy::Timeout)));
    assert_eq!(released.stdout, format!("working\n{}\n", task.id).into_bytes());
    let note = String::from_utf8(released.stderr).unwrap();
    assert!(note.contains("the time limit passed, and it was detached"), "{note}");
    let timeout = world.get(&task.id).clocks.timeout.unwrap();
    assert_eq!(timeout.remaining_ms, None, "its limit was for whoever waited");
}

// proves F4, R1
#[test]
fn a_detached_task_has_its_time_to_live_from_then_on() {
    let world = world();
    let params = TaskStartParams { ttl_ms: Some(300), ..foreground(&world, &format!("sleep {FOREVER}")) };
    let mut client = world.client();
    client.send::<TaskStart>(&params).unwrap();
    let id = running(&world).id;
    assert_eq!(world.get(&id).clocks.ttl.unwrap().remaining_ms, None);
    detach(&world, &id);
    assert_eq!(world.wait_ended(&id).status, TaskStatus::TimedOut);
}

// proves F7, D7
#[test]
fn a_caller_that_dies_leaves_its_task_to_its_policy() {
    for (policy, status) in
        [(OnDisconnect::Detach, TaskStatus::Running), (OnDisconnect::Stop, TaskStatus::Cancelled)]
    {
        let world = world();
        let params =
            TaskStartParams { on_disconnect: policy, ..foreground(&world, &format!("sleep {FOREVER}")) };
        let mut client = world.client();
        client.send::<TaskStart>(&params).unwrap();
        let id = running(&world).id;
        drop(client);
        wait_until("what the policy says", LONG, || {
            let task = world.get(&id);
            let by = task.detached_by == Some(DetachedBy::Disconnect);
            let right = task.status == status && (by || status == TaskStatus::Cancelled);
            if right { Ok(()) } else { Err(format!("{task:?}")) }
        });
    }
}

// proves F7, D1
#[test]
fn a_caller_that_comes_back_to_the_next_daemon_is_still_the_caller() {
    let world = world();
    let go = world.dir().join("go");
    let script = format!("echo one; until [ -e {} ]; do sleep 0.01; done; echo two; exit 4", go.display());
    let caller = world.spawn(["run", "--on-disconnect", "stop", "--", "sh", "-c", &script]);
    caller.wait_for_stdout("the first line", |said| said == b"one\n");
    world.kill_daemon();
    wait_until("the caller at the next daemon", LONG, || match world.daemon() {
        Some(_) => Ok(()),
        None => Err("no daemon".to_owned()),
    });
    assert!(!running(&world).detached, "it is in the foreground as before");
    std::fs::write(&go, "").unwrap();
    let done = caller.finish();
    assert_eq!((done.code, done.stdout.as_slice()), (Some(4), &b"one\ntwo\n"[..]), "{done}");
}

// proves A3, O6
#[test]
fn whoever_waits_for_a_leader_that_left_others_behind_is_answered_with_its_code() {
    let world = world();
    let script = format!("sleep {FOREVER} & sleep {FOREVER} & echo started; exit 5");
    let said = world.belay(["run", "--", "sh", "-c", &script]);
    assert_eq!((said.code, said.stdout.as_slice()), (Some(5), &b"started\n"[..]), "{said}");
    let note = String::from_utf8(said.stderr).unwrap();
    assert!(note.contains("runs on: leader exited 5, 2 processes running"), "{note}");
    let task = running(&world);
    assert_eq!((task.detached_by, task.leader.unwrap().exit_code), (Some(DetachedBy::Leader), Some(5)));
    let shown = world.belay(["ps"]).ok();
    assert!(
        String::from_utf8_lossy(&shown.stdout).contains("leader exited 5, 2 processes running"),
        "{shown}"
    );
    let stopped = world.stop(&stop_of(&task.id));
    assert_eq!(stopped.status, Some(TaskStatus::Cancelled));
}

/// The answer to one request; what else is said meanwhile is not looked at.
fn answer_to(client: &mut Client, request: i64) -> TaskInfo {
    loop {
        if let Message::Response(response) = client.receive().unwrap()
            && response.id == request
        {
            return decode::<TaskStart>(&response.result.unwrap()).unwrap();
        }
    }
}

// proves F5, F3, F2
#[test]
fn detaches_that_race_exits_limits_and_stops_give_one_outcome_and_every_byte() {
    let rounds = if std::env::var_os("BELAY_TEST_LONG").is_some() { 10_000 } else { 300 };
    let world = world();
    let mut client = world.client();
    let mut caller = world.client();
    let mut after = 0;
    for round in 0..rounds {
        let script = format!(
            "i=0; while [ $i -lt {} ]; do echo line $i; i=$((i+1)); done; exit {}",
            round % 40,
            round % 3
        );
        let mut params = foreground(&world, &script);
        (params.follow, params.token) = (None, Some(format!("race-{round}")));
        params.timeout_ms = (round % 5 == 0).then_some(1 + round % 7);
        params.on_timeout = Some(if round % 2 == 0 { OnTimeout::Detach } else { OnTimeout::Stop });
        let asked = caller.send::<TaskStart>(&params).unwrap();
        params.answer = AnswerWhen::Started;
        let id = client.call::<TaskStart>(&params).unwrap().id;
        if round % 4 != 3 {
            // Sleeps because any moment will do: it is the moments that are tried.
            std::thread::sleep(Duration::from_micros(round * 37 % 2_000));
            client.call::<TaskDetach>(&TaskDetachParams { id: id.clone(), actor: None }).unwrap();
        }
        if round % 11 == 0 {
            client.call::<TaskStop>(&stop_of(&id)).unwrap();
        }
        let ended = world.wait_ended(&id);
        let whole: String = (0..round % 40).map(|i| format!("line {i}\n")).collect();
        let kept = world.logs(&id);
        assert!(whole.as_bytes().starts_with(&kept), "round {round}: {kept:?}");
        if matches!(ended.status, TaskStatus::Completed | TaskStatus::Failed) {
            assert_eq!(kept, whole.as_bytes(), "round {round}: {ended:?}");
        }
        assert_eq!(ended.output.bytes, kept.len() as u64, "round {round}");
        // Whoever waited has one answer: that it was detached, or how it ended.
        let answer = answer_to(&mut caller, asked);
        assert!(
            answer.id == id && (answer.detached || answer.outcome == ended.outcome),
            "round {round}: {answer:?}"
        );
        let page = client
            .call::<EventRead>(&event::EventReadParams { after, ..event::EventReadParams::default() })
            .unwrap();
        after = page.next;
        let own = page.events.into_iter().filter(|event| event.event.task() == Some(id.as_str()));
        let events: Vec<EventKind> = own.map(|event| event.event.kind()).collect();
        for kind in [EventKind::TaskEnded, EventKind::TaskDetached] {
            let count = events.iter().filter(|event| **event == kind).count();
            assert!(
                count <= 1 && (kind == EventKind::TaskDetached || count == 1),
                "round {round}: {events:?}"
            );
        }
    }
}

// proves F1, F2
#[test]
fn a_key_at_the_terminal_detaches_and_the_terminal_is_as_before() {
    let world = world();
    let script = format!("echo working; exec sleep {FOREVER}");
    let line = format!(
        "set -m; before=$(stty -g); \"$BELAY\" run -- sh -c '{script}'; echo code $?; [ \"$before\" = \"$(stty -g)\" ] && echo same"
    );
    let mut terminal = world.at_terminal(&line);
    terminal.wait_for_stdout("its first line", |said| said == b"working\r\n");
    let id = running(&world).id;
    terminal.write(b"\x02");
    let done = terminal.finish();
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(
        said.starts_with(&format!("working\r\n^B{id}\r\nbelay: {id} runs on: detached by user:")),
        "{said:?}"
    );
    assert!(said.ends_with("code 0\r\nsame\r\n"), "{said:?}");
    assert!(running(&world).detached);
}

// proves F1
#[test]
fn the_key_can_be_moved_and_switched_off() {
    let world = world();
    let script = format!("echo working; exec sleep {FOREVER}");
    let mut terminal =
        world.at_terminal(&format!("set -m; BELAY_DETACH_KEY=ctrl-g \"$BELAY\" run -- sh -c '{script}'"));
    terminal.wait_for_stdout("its first line", |said| said == b"working\r\n");
    let id = running(&world).id;
    terminal.write(b"\x07");
    assert_eq!(terminal.finish().code, Some(0));
    world.stop(&stop_of(&id));
    let refused = world.belay_with(["run", "--", "true"], |command| {
        command.env("BELAY_DETACH_KEY", "ctrl-c");
    });
    assert_eq!(refused.code, Some(2), "{refused}");
}

// proves D2, F3, F8
#[test]
fn what_ends_in_the_foreground_while_no_daemon_runs_is_on_disk_and_says_so() {
    let world = world();
    let go = world.dir().join("go");
    let script = format!("echo one; until [ -e {} ]; do sleep 0.01; done; echo two; exit 6", go.display());
    let mut client = world.client();
    client.send::<TaskStart>(&foreground(&world, &script)).unwrap();
    let task = world.get(&running(&world).id);
    let (id, shim) = (task.id, task.held_by.unwrap().shim_pid);
    world.wait_for_output(&id, "its first line", |said| said == b"one\n");
    assert_eq!(output_files(&world, &id), 0);
    world.kill_daemon();
    std::fs::write(&go, "").unwrap();
    world.wait_dead("a shim that has written everything down", shim);
    let ended = world.get(&id);
    assert_eq!(
        (ended.outcome.unwrap().exit_code(), ended.output.on_disk, ended.output.bytes),
        (Some(6), true, 8)
    );
    assert_eq!(world.logs(&id), b"one\ntwo\n");
}

/// Who is released from one that is being killed must not go on as if it had been well: 130, as of any that was stopped
/// and has no code of its own.
// proves F1, F2, K5
#[test]
fn one_that_is_being_stopped_is_told_as_that_and_not_as_running() {
    let world = world();
    let script = "trap '' TERM; echo ready; while :; do sleep 0.05; done";
    let caller = world.spawn(["run", "--", "sh", "-c", script]);
    caller.wait_for_stdout("its first line", |said| said == b"ready\n");
    let id = running(&world).id;
    world.stop(&TaskStopParams { grace_ms: Some(600_000), wait: false, ..stop_of(&id) });
    wait_until("its grace", LONG, || match world.get(&id).status {
        TaskStatus::Stopping => Ok(()),
        other => Err(format!("{other:?}")),
    });
    let who = format!("detached by user:{} via cli", world.shell("id -un").ok().line());
    let told = world.belay(["detach", &id]).ok().line();
    assert_eq!(told, format!("{id} is being stopped ({who})"));
    let released = caller.finish();
    let note = String::from_utf8(released.stderr).unwrap();
    assert_eq!((released.code, note), (Some(130), format!("belay: {id} is being stopped: {who}\n")));
    assert_eq!(released.stdout, format!("ready\n{id}\n").into_bytes());
    world.belay(["stop", "--kill", &id]).ok();
}

// proves F1, F2, L4
#[test]
fn one_that_waits_for_its_turn_is_told_as_that_and_not_as_running() {
    let world = world();
    let first = world.run_detached(["--lane", "seat", "--", "sleep", FOREVER]);
    let caller = world.spawn(["run", "--lane", "seat:queue", "--", "true"]);
    let id = wait_until("one in line", LONG, || {
        let listed: Vec<TaskInfo> = world.belay(["ps", "--json"]).ok().json_lines();
        let queued = listed.iter().find(|task| task.status == TaskStatus::Queued);
        queued.map(|task| task.id.clone()).ok_or_else(|| format!("{listed:?}"))
    });
    let who = format!("detached by user:{} via cli", world.shell("id -un").ok().line());
    let told = world.belay(["detach", &id]).ok().line();
    assert_eq!(told, format!("{id} waits in the background for its turn ({who})"));
    let released = caller.finish();
    let note = String::from_utf8(released.stderr).unwrap();
    assert_eq!(
        (released.code, note),
        (Some(0), format!("belay: {id} waits in the background for its turn: {who}\n"))
    );
    assert_eq!(released.stdout, format!("{id}\n").into_bytes());
    world.stop(&stop_of(&first));
    assert_eq!(world.wait_ended(&id).status, TaskStatus::Completed);
}
