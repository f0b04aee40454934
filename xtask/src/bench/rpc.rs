//! `rpc`: one question and its answer, against a line that comes back unread from a bare process.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use belay_client::Client;
use belay_protocol::daemon::DaemonStatusParams;

use super::measure::{ROUNDS, compare, time};
use super::report::{Report, Target};
use super::subject::Subject;
use super::wire::DaemonStatus;
use super::world::{World, scratch};
use crate::run::{Outcome, command, start};

const LINE: &[u8] = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"daemon/status\",\"params\":{}}\n";

pub(crate) fn run(subject: &Subject, report: &mut Report) -> Outcome {
    let world = World::new(subject)?;
    let mut client = world.connect()?;
    let mut echo = Echo::start()?;
    let [ours, theirs] = compare(
        subject.rounds(ROUNDS),
        500,
        [Box::new(|| status(&mut client)), Box::new(|| echo.round_trip())],
    )?;
    echo.end()?;
    report.times("rpc", "`daemon/status`, there and back", ours, ("echo of a line", theirs), Target::None);
    Ok(())
}

/// The cheapest question.
pub(crate) fn status(client: &mut Client) -> Outcome<Duration> {
    time(|| {
        client.call::<DaemonStatus>(&DaemonStatusParams::default())?;
        Ok(())
    })
}

/// A process of ours with a socket, started when it says that it listens.
pub(crate) struct Part {
    dir: PathBuf,
    child: Child,
}

impl Part {
    pub(crate) fn start(name: &str, more: &[&str]) -> Outcome<Self> {
        let dir = scratch()?;
        let mut part = command(std::env::current_exe()?, &["part", name]);
        let mut child = start(part.arg(dir.join("socket")).args(more).stdout(Stdio::piped()))?;
        if let Some(said) = child.stdout.take() {
            BufReader::new(said).read_line(&mut String::new())?;
        }
        Ok(Self { dir, child })
    }

    pub(crate) fn connect(&self) -> Outcome<UnixStream> {
        Ok(UnixStream::connect(self.dir.join("socket"))?)
    }

    /// It ends by itself when its connections have.
    pub(crate) fn end(mut self) -> Outcome {
        self.child.wait()?;
        Ok(std::fs::remove_dir_all(self.dir)?)
    }
}

/// A bare process that sends every line back.
pub(crate) struct Echo {
    part: Part,
    stream: BufReader<UnixStream>,
    line: Vec<u8>,
}

impl Echo {
    pub(crate) fn start() -> Outcome<Self> {
        let part = Part::start("echo", &[])?;
        let stream = BufReader::new(part.connect()?);
        Ok(Self { part, stream, line: Vec::new() })
    }

    pub(crate) fn round_trip(&mut self) -> Outcome<Duration> {
        time(|| {
            self.stream.get_mut().write_all(LINE)?;
            self.line.clear();
            self.stream.read_until(b'\n', &mut self.line)?;
            Ok(())
        })
    }

    pub(crate) fn end(self) -> Outcome {
        drop(self.stream);
        self.part.end()
    }
}
