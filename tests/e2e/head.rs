//! `logs --head`: the first lines, of both streams or of one, and the first matches of a search.

use belay_protocol::output::OutputChunk;

use crate::support::world;

// proves O2
#[test]
fn the_first_lines_are_shown_and_no_byte_more() {
    let world = world();
    let script = "echo one; read go; echo two >&2; read go; echo three; printf last";
    let id = world.run_detached(["--stdin", "--", "sh", "-c", script]);
    for so_far in ["one\n", "one\ntwo\n"] {
        world.wait_for_output(&id, "a line", |said| said == so_far.as_bytes());
        world.belay(["send", &id, "go"]).ok();
    }
    world.wait_ended(&id);
    let head = |words: &[&str]| world.belay([&["logs", &id], words].concat()).ok().stdout;
    assert_eq!(head(&["--head", "0"]), b"");
    assert_eq!(head(&["--head", "2"]), b"one\ntwo\n");
    assert_eq!(head(&["--head", "4"]), b"one\ntwo\nthree\nlast");
    assert_eq!(head(&["--head", "9"]), b"one\ntwo\nthree\nlast");
    assert_eq!(head(&["--head", "2", "--stream", "stdout"]), b"one\nthree\n");
    assert_eq!(head(&["--head", "2", "--raw"]), b"one\ntwo\n");
    let chunks: Vec<OutputChunk> = world.belay(["logs", &id, "--head", "2", "--json"]).ok().json_lines();
    assert_eq!(chunks.into_iter().map(|chunk| chunk.text.unwrap()).collect::<String>(), "one\ntwo\n");

    assert_eq!(head(&["--head", "2", "--grep", "[eo]"]), b"one\ntwo\n");
    assert_eq!(head(&["--head", "1", "--grep", "t", "--context", "1"]), b"one\ntwo\n");
    assert_eq!(head(&["--head", "1", "--grep", "on", "--context", "2"]), b"one\ntwo\nthree\n");
    assert_eq!(world.belay(["logs", &id, "--head", "1", "--grep", "four"]).code, Some(1));
}

// proves O2, O4
#[test]
fn of_much_output_no_more_is_read_than_is_shown() {
    let world = world();
    let id = world.run_detached(["--", "seq", "3000000"]);
    world.wait_ended(&id);
    let lines: String = (1..=200_000).map(|number| format!("{number}\n")).collect();
    assert_eq!(world.belay(["logs", &id, "--head", "200000"]).ok().stdout, lines.into_bytes());
    let found = world.belay(["logs", &id, "--head", "1500", "--grep", "7$"]).ok().stdout;
    let lines: String = (0..1500)
        .map(|number| format!("{}7\n", if number == 0 { String::new() } else { number.to_string() }))
        .collect();
    assert_eq!(String::from_utf8(found).unwrap(), lines);
}
