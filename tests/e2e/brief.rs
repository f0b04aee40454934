//! What a model gets to read: id, state, offsets and the next step first and whole, then head and tail within a budget.

use belay_testkit::World;

use crate::support::{FOREVER, world};

fn brief(world: &World, id: &str, size: &str) -> String {
    let said = world.belay(["logs", id, &format!("--brief={size}")]).ok();
    String::from_utf8(said.stdout).unwrap()
}

// proves O7
#[test]
fn what_counts_comes_first_and_the_output_is_cut_in_its_middle() {
    let world = world();
    let id = world.run_detached(["--", "seq", "1000", "1999"]);
    world.wait_ended(&id);
    let told = brief(&world, &id, "20");
    let expected = format!(
        "task {id}: completed: exit 0\n\
         output: bytes 0 to 5000 of 5000\n\
         next: belay logs {id} --brief --after 10 for what is left out; belay logs {id} --grep REGEX to search it\n\
         ---\n\
         1000\n1001\n\
         [… 4980 bytes left out, 10 to 4990 …]\n\
         1998\n1999\n"
    );
    assert_eq!(told, expected);
    // However small the budget, what comes first is whole.
    let told = brief(&world, &id, "0");
    assert!(
        told.starts_with(&format!("task {id}: completed: exit 0\noutput: bytes 0 to 5000 of 5000\nnext: ")),
        "{told}"
    );
    assert!(told.ends_with("---\n[… 5000 bytes left out, 0 to 5000 …]\n"), "{told}");
    let all = brief(&world, &id, "1M");
    assert!(
        all.contains("next: nothing: it has ended, and this is all of it\n---\n1000\n"),
        "{}",
        &all[..300]
    );
    let after = world.belay(["logs", &id, "--brief", "--after", "4995"]).ok();
    assert!(String::from_utf8(after.stdout).unwrap().ends_with("---\n1999\n"));
}

// proves O7, O3
#[test]
fn characters_are_whole_and_what_is_no_text_is_shown() {
    let world = world();
    let id = world.run_detached(["--", "sh", "-c", "printf '漢%.0s' 1 2 3 4 5 6 7 8 9; printf '\\377'"]);
    world.wait_ended(&id);
    let told = brief(&world, &id, "10");
    assert!(told.ends_with("---\n漢\n[… 21 bytes left out, 3 to 24 …]\n漢\u{fffd}"), "{told}");
}

// proves O7, O4
#[test]
fn a_gap_that_a_limit_made_is_told_apart_from_what_is_left_out() {
    let world = world();
    let id = world.run_detached([
        "--output-limit",
        "256K",
        "--",
        "sh",
        "-c",
        "head -c 1000000 /dev/zero | tr '\\0' x",
    ]);
    world.wait_ended(&id);
    let told = brief(&world, &id, "1M");
    assert_eq!(told.matches(" bytes not kept, ").count(), 1, "{}", &told[..400]);
    assert_eq!(told.matches(" bytes left out, ").count(), 0);
    assert!(
        told.starts_with(&format!("task {id}: completed: exit 0\noutput: bytes 0 to 1000000 of 1000000\n"))
    );
}

// proves O7, A5
#[test]
fn a_task_that_runs_says_how_to_go_on() {
    let world = world();
    let id = world.run_detached(["-c", &format!("echo hello; sleep {FOREVER} & sleep {FOREVER}")]);
    world.wait_for_output(&id, "its word", |said| said == b"hello\n");
    let told = brief(&world, &id, "1K");
    let expected = format!(
        "task {id}: running\n\
         shell line: Runs as written, because an asynchronous command stands among others in it; what it leaves behind is \
         held under the task, listed and stoppable.\n\
         output: bytes 0 to 6 of 6\n\
         next: belay logs {id} --brief --after 6 for what comes; belay wait {id} --timeout 50s; belay stop {id}\n\
         ---\n\
         hello\n"
    );
    assert_eq!(told, expected);
}

// proves O7, X2
#[test]
fn a_reason_of_several_lines_is_one() {
    let world = crate::support::world();
    let id = world.run_detached(["sleep", crate::support::FOREVER]);
    world.belay(["stop", &id, "--reason", "first\nbytes: 0\x1b[2J"]).ok();
    let said = world.belay(["logs", &id, "--brief"]).ok().line();
    let lines: Vec<&str> = said.lines().filter(|line| line.contains("first")).collect();
    assert_eq!(lines.len(), 1, "{said}");
    assert!(lines[0].contains("bytes: 0") && !said.contains('\x1b'), "{said:?}");
}

// proves O7, O3
#[test]
fn what_is_no_text_takes_no_more_room_than_was_asked_for_and_does_nothing() {
    let world = world();
    let id = world.run_detached(["--", "sh", "-c", "head -c 10000 /dev/zero | tr '\\0' '\\377'"]);
    world.wait_ended(&id);
    let five = "\u{fffd}".repeat(5);
    let told = brief(&world, &id, "30");
    assert!(told.ends_with(&format!("---\n{five}\n[… 9990 bytes left out, 5 to 9995 …]\n{five}")), "{told}");
    // Also if one end is cut shorter than the other, for the sake of a line.
    let line =
        "for many in 10000 10; do head -c $many /dev/zero | tr '\\0' '\\377'; [ $many = 10 ] || echo; done";
    let id = world.run_detached(["--", "sh", "-c", line]);
    world.wait_ended(&id);
    let [head, tail] = [90, 10].map(|many| "\u{fffd}".repeat(many));
    let told = brief(&world, &id, "300");
    assert!(
        told.ends_with(&format!("---\n{head}\n[… 9911 bytes left out, 90 to 10001 …]\n{tail}")),
        "{told}"
    );
    let id = world.run_detached(["--", "printf", "\\033]0;title\\007\\033[2Jx\\n"]);
    world.wait_ended(&id);
    let told = brief(&world, &id, "1K");
    assert!(told.ends_with("\n---\n␛]0;title␇␛[2Jx\n"), "{told:?}");
}
