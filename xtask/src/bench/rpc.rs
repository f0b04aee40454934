//! `rpc`: one question and its answer, against a line that comes back unread from a bare process.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use belay_protocol::daemon::StatusParams;
use belay_protocol::methods::DaemonStatus;

use super::measure::{ROUNDS, compare, time};
use super::report::{Report, Target};
use super::world::{World, scratch};
use crate::run::{Outcome, command, start};

const LINE: &[u8] = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"daemon/status\",\"params\":{}}\n";

pub(crate) fn run(report: &mut Report) -> Outcome {
    let world = World::new()?;
    let mut client = world.connect()?;
    let dir = scratch()?;
    let socket = dir.join("echo");
    let mut part = command(std::env::current_exe()?, &["part", "echo"]);
    let mut child = start(part.arg(&socket).stdout(Stdio::piped()))?;
    if let Some(said) = child.stdout.take() {
        BufReader::new(said).read_line(&mut String::new())?;
    }
    let mut stream = UnixStream::connect(&socket)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut line = Vec::new();
    let echo = || {
        time(|| {
            stream.write_all(LINE)?;
            line.clear();
            reader.read_until(b'\n', &mut line)?;
            Ok(())
        })
    };
    let ask = || {
        time(|| {
            client.call::<DaemonStatus>(&StatusParams {})?;
            Ok(())
        })
    };
    let [ours, theirs] = compare(ROUNDS, 500, [Box::new(ask), Box::new(echo)])?;
    drop((stream, reader));
    child.wait()?;
    std::fs::remove_dir_all(dir)?;
    report.times("rpc", "`daemon/status`, there and back", ours, ("echo of a line", theirs), Target::None);
    Ok(())
}
