//! `capture`: how fast output is taken in and kept, against the best bare way from a pipe of 1 MiB into a file: read by
//! 64 KiB and written, or spliced. And how much memory that takes.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use belay_client::Client;
use belay_protocol::methods::TaskRemove;
use belay_protocol::task::{TaskGetParams, TaskRemoveParams, TaskStartParams, TaskWaitParams};
use serde_json::json;

use super::measure::{compare, number, time};
use super::memory::pss_bytes;
use super::report::{Report, Target};
use super::subject::Subject;
use super::value::{Unit, Value};
use super::wire::{Get, Start, Wait};
use super::world::{World, scratch, start_params};
use crate::run::{self, Outcome};

const BYTES: u64 = 512 << 20;
/// Writing half a gigabyte takes now longer, now shorter, by what the disk has to do beside it.
const ROUNDS: usize = 11;
const PIPE_BYTES: usize = 1 << 20;
const READ_BYTES: usize = 64 << 10;

pub(crate) fn run(subject: &Subject, report: &mut Report) -> Outcome {
    let world = World::new(subject)?;
    let mut client = world.connect()?;
    let bytes = BYTES.to_string();
    let argv = ["/usr/bin/head", "-c", &bytes, "/dev/zero"];
    let params = start_params(&argv, &json!({"detached": true, "output_limit_bytes": 2 * BYTES}))?;
    let dir = scratch()?;
    let file = dir.join("out");
    let result = compare(
        subject.rounds(ROUNDS),
        1,
        [
            Box::new(|| captured(&mut client, &params)),
            Box::new(|| piped(&argv, &file, copy)),
            Box::new(|| piped(&argv, &file, splice)),
        ],
    );
    std::fs::remove_dir_all(&dir)?;
    let [ours, copied, spliced] = result?.map(|took| number(BYTES) / took.as_secs_f64());
    let speed = |amount| Value::new(amount, Unit::BytesPerSecond);
    let (best, way) = if copied > spliced { (copied, "read and written") } else { (spliced, "spliced") };
    report.share(
        "capture",
        "512 MiB of output, kept whole on disk",
        speed(ours),
        (&format!("bare pipe to a file, {way}"), speed(best)),
        Target::AtLeast(0.85),
    );
    report.note(format!(
        "bare pipe to a file: read and written {}, spliced {}; the better one counts",
        speed(copied),
        speed(spliced)
    ));
    let (shim, daemon) = memory(&world, &mut client, &params)?;
    report.value("capture", "most memory of the shim meanwhile (PSS)", Value::bytes(shim));
    report.value("capture", "most memory of the daemon meanwhile (PSS)", Value::bytes(daemon));
    Ok(())
}

fn captured(client: &mut Client, params: &TaskStartParams) -> Outcome<Duration> {
    let began = Instant::now();
    let id = client.call::<Start>(params)?.id;
    let ended = client.call::<Wait>(&TaskWaitParams::for_end(&id))?.task;
    let took = began.elapsed();
    ended.completed()?;
    if ended.output.bytes != BYTES || !ended.output.gaps.is_empty() {
        return Err("bytes are missing".into());
    }
    client.call::<TaskRemove>(&TaskRemoveParams { id })?;
    Ok(took)
}

fn piped(argv: &[&str], file: &Path, take: fn(&OwnedFd, &File) -> Outcome) -> Outcome<Duration> {
    let took = time(|| {
        let (reader, writer) = belay_os::fds::pipe(PIPE_BYTES)?;
        let mut command = Command::new(argv[0]);
        command.args(&argv[1..]).stdin(Stdio::null()).stdout(writer);
        let mut child = run::start(&mut command)?;
        // The command keeps its copy of the writing end until it is dropped.
        drop(command);
        take(&reader, &File::create(file)?)?;
        child.wait()?;
        Ok(())
    })?;
    if file.metadata()?.len() != BYTES {
        return Err("bytes are missing in the bare way".into());
    }
    std::fs::remove_file(file)?;
    Ok(took)
}

fn copy(pipe: &OwnedFd, out: &File) -> Outcome {
    let mut buffer = vec![0; READ_BYTES];
    loop {
        match rustix::io::read(pipe, &mut buffer)? {
            0 => return Ok(()),
            filled => std::io::Write::write_all(&mut &*out, &buffer[..filled])?,
        }
    }
}

fn splice(pipe: &OwnedFd, out: &File) -> Outcome {
    use rustix::pipe::{SpliceFlags, splice};
    while splice(pipe, None, out, None, PIPE_BYTES, SpliceFlags::MOVE)? > 0 {}
    Ok(())
}

/// The most that shim and daemon were seen to hold during a run that is not timed.
fn memory(world: &World, client: &mut Client, params: &TaskStartParams) -> Outcome<(u64, u64)> {
    let daemon = world.daemon()?.pid;
    let task = client.call::<Start>(params)?;
    let id = task.id;
    let mut most = (0, 0);
    loop {
        let now = client.call::<Get>(&TaskGetParams { id: id.clone() })?;
        if !now.is_running() {
            break;
        }
        if let Some(held) = now.held_by {
            most.0 = most.0.max(pss_bytes(held.shim_pid).unwrap_or(0));
        }
        most.1 = most.1.max(pss_bytes(daemon).unwrap_or(0));
    }
    client.call::<TaskRemove>(&TaskRemoveParams { id })?;
    Ok(most)
}
