//! Output under pressure: more than the quota, more than the disk holds, and as fast as it comes.

use belay_protocol::ErrorKind;
use belay_protocol::methods::{OutputRead, TaskStart};
use belay_protocol::output::{OutputFrom as Begin, OutputReadParams};
use belay_protocol::task::{OutcomeKind, TaskStatus};
use belay_testkit::{LONG, World, look_at, wait_until};

use crate::support::{builder, refused, world};

/// Every line of the generator has so many bytes, so that an offset names its content.
const LINE_BYTES: u64 = 20;

/// What stands at an offset of the numbered lines that [`lines`] prints.
fn expected(from: u64, length: u64) -> Vec<u8> {
    let (first, last) = (from / LINE_BYTES, (from + length).div_ceil(LINE_BYTES));
    let text: String = (first..last).map(|line| format!("{:019}\n", line + 1)).collect();
    let skip = usize::try_from(from - first * LINE_BYTES).unwrap();
    text.as_bytes()[skip..][..usize::try_from(length).unwrap()].to_vec()
}

/// A shell line that prints so many numbered lines.
fn lines(count: u64) -> String {
    format!("seq -f '%019.0f' 1 {count}")
}

/// Reads the whole log: every byte is right for its offset. Returns how many were kept, and the gaps.
fn check_all(world: &World, id: &str) -> (u64, Vec<[u64; 2]>) {
    let mut client = world.client();
    let (mut at, mut kept, mut gaps) = (0, 0, Vec::new());
    loop {
        let from = Begin::Offset { offset: at };
        let params = OutputReadParams { id: id.to_owned(), from, max_bytes: None, stream: None, text: false };
        let page = client.call::<OutputRead>(&params).unwrap();
        for chunk in &page.chunks {
            let length = chunk.data.0.len() as u64;
            assert!(chunk.data.0 == expected(chunk.offset, length), "wrong bytes at {}", chunk.offset);
            kept += length;
        }
        gaps.extend(page.gaps);
        assert!(page.next > at || page.eof, "stuck at {at}");
        at = page.next;
        if page.eof {
            assert_eq!(at, page.bytes);
            return (kept, gaps);
        }
    }
}

fn lost(gaps: &[[u64; 2]]) -> u64 {
    gaps.iter().map(|[from, to]| to - from).sum()
}

// proves O4
#[test]
fn a_quota_keeps_head_and_tail_and_marks_the_exact_gap() {
    const LINES: u64 = 1_000_000;
    let world = world();
    let gate = world.dir().join("gate").to_str().unwrap().to_owned();
    world.shell(&format!("mkfifo {gate}")).ok();
    let script = format!("{}; read -r _ < \"$0\"; exit 6", lines(LINES));
    let id = world.run_detached(["--output-limit", "1MiB", "--", "sh", "-c", &script, &gate]);
    let total = LINES * LINE_BYTES;
    let running = wait_until("all of the output", LONG, || {
        let task = world.get(&id);
        if task.output.bytes == total { Ok(task) } else { Err(format!("{:?}", task.output)) }
    });
    let peak = |pid: i32| look_at(pid).unwrap().peak_kib;
    let (shim, daemon) = (peak(running.held_by.unwrap().shim_pid), peak(world.daemon_pid()));
    assert!(shim < 16 * 1024 && daemon < 64 * 1024, "shim {shim} KiB, daemon {daemon} KiB");
    std::fs::write(&gate, "go\n").unwrap();
    let ended = world.wait_ended(&id);
    let outcome = ended.outcome.unwrap();
    assert_eq!((ended.status, outcome.exit_code(), outcome.capture()), (TaskStatus::Failed, Some(6), None));

    let (kept, gaps) = check_all(&world, &id);
    assert_eq!(gaps, ended.output.gaps);
    assert_eq!((gaps.len(), kept + lost(&gaps)), (1, total));
    let [from, to] = gaps[0];
    assert!(from >= 256 * 1024 && total - to >= 256 * 1024, "head and tail: {gaps:?}");
    assert!(kept <= 1024 * 1024, "{kept} bytes are kept");
    let on_disk: u64 = std::fs::read_dir(world.home().join("tasks").join(&id))
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .sum();
    assert!(on_disk <= 1024 * 1024, "{on_disk} bytes are on disk");
    let tail = world.belay(["logs", "--tail", "2", &id]).ok();
    assert_eq!(tail.stdout, expected(total - 40, 40));
    let whole = world.belay(["logs", "--raw", &id]).ok();
    assert_eq!(whole.stdout, [expected(0, from), expected(to, total - to)].concat());
    assert_ne!(whole.stderr, b"", "the gap is told beside the bytes");
}

// proves O5, O8
#[test]
fn a_full_disk_costs_output_and_nothing_else() {
    const LINES: u64 = 500_000;
    let world = builder().small_disk("4m").build();
    world.belay(["up"]).ok();
    let daemon = world.daemon_pid();
    let script = format!("{}; exit 5", lines(LINES));
    let id = world.run_detached(["sh", "-c", &script]);
    let ended = world.wait_ended(&id);
    let outcome = ended.outcome.unwrap();
    assert_eq!(
        (ended.status, outcome.kind(), outcome.exit_code()),
        (TaskStatus::Failed, OutcomeKind::Exited, Some(5))
    );
    let fault = outcome.capture().expect("what could not be captured is told");
    assert_eq!(fault.message, "No space left on device (os error 28)");
    assert_eq!(ended.output.bytes, LINES * LINE_BYTES, "every byte is counted");
    let (kept, gaps) = check_all(&world, &id);
    assert_eq!(gaps, ended.output.gaps);
    assert_eq!(kept + lost(&gaps), ended.output.bytes);
    assert_eq!(fault.lost_bytes, lost(&gaps));
    assert!(kept > 1024 * 1024, "{kept} bytes fitted");
    assert_eq!(world.daemon_pid(), daemon, "the daemon lives");

    // A start is refused with the reason, or works; it never hangs and leaves nothing behind.
    match world.client().call::<TaskStart>(&world.start_params(&["true"])) {
        Ok(task) => assert_eq!(world.wait_ended(&task.id).status, TaskStatus::Completed),
        error => {
            assert_eq!(refused(error).data.kind, ErrorKind::DiskFull);
            assert_eq!(world.status().tasks_live, 0);
        }
    }
    // What filled the disk can be removed, although there is no room to record even that; then all is well again.
    world.belay(["rm", &id]).ok();
    wait_until("a start that works again", LONG, || {
        let said = world.belay(["run", "--", "echo", "well"]);
        if said.code == Some(0) && said.stdout == b"well\n" { Ok(()) } else { Err(said.to_string()) }
    });
    assert_eq!(world.belay(["inspect", &id]).code, Some(1), "it is forgotten");
    assert_eq!(world.daemon_pid(), daemon);
}

// proves O4, O1
#[test]
fn a_flood_is_captured_to_the_last_byte() {
    const BYTES: usize = 100 << 20;
    let world = world();
    // Text that never repeats: what is lost, doubled or moved shows.
    let mut seed: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut bytes = Vec::with_capacity(BYTES);
    while bytes.len() < BYTES {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        bytes.extend_from_slice(&(seed & 0x3f3f_3f3f_3f3f_3f3f | 0x4040_4040_4040_4040).to_le_bytes());
    }
    let file = world.dir().join("flood");
    std::fs::write(&file, &bytes).unwrap();
    let id = world.run_detached(["cat", file.to_str().unwrap()]);
    let ended = world.wait_ended(&id);
    assert_eq!((ended.status, ended.output.bytes), (TaskStatus::Completed, bytes.len() as u64));
    assert_eq!(ended.output.gaps, [] as [[u64; 2]; 0]);
    assert!(world.logs(&id) == bytes, "the log differs from what was written");
    let peak = look_at(world.daemon_pid()).unwrap().peak_kib;
    assert!(peak < 64 * 1024, "the daemon took {peak} KiB");
}
