//! The daemon's side of parsing a shell line: starts a parser process, sends it the line, and waits
//! for its answer within a time limit.

use std::ffi::CString;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream as StdStream;
use std::rc::Rc;
use std::time::Duration;

use belay_os::fds;
use belay_os::process::{self, Identity};
use belay_os::signal::Signal;
use belay_os::spawn::{Rlimit, Session, SpawnSpec};
use belay_protocol::shell::{ShellReadParams, ShellReadResult};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use super::hub::Hub;
use super::shims::ShimRecipe;
use crate::input::{Input, JobId};

/// How long a parser may take. It has shorter limits of its own; this one is for a parser that
/// hangs.
const LIMIT: Duration = Duration::from_secs(4);

/// Resource limits of a parser: processor seconds, bytes of memory, and no core file.
const RLIMITS: [Rlimit; 3] = [
    Rlimit { resource: 0, soft: 3, hard: 4 },
    Rlimit { resource: 9, soft: 1 << 30, hard: 1 << 30 },
    Rlimit { resource: 4, soft: 0, hard: 0 },
];

/// The largest answer that is read; every real answer is smaller.
const ANSWER_BYTES: u64 = 4 * 1024 * 1024;

pub(crate) fn run(hub: &Rc<Hub>, job: JobId, params: ShellReadParams) {
    let hub = Rc::clone(hub);
    tokio::task::spawn_local(async move {
        let result = parse(&hub, &params).await.ok().map(Box::new);
        hub.dispatch(Input::LineParsed { job, result });
    });
}

async fn parse(hub: &Hub, params: &ShellReadParams) -> io::Result<ShellReadResult> {
    let question = serde_json::to_vec(params)?;
    let recipe = hub.recipe.clone();
    let started = hub.workers.spawner.run(move |()| start(&recipe)).await;
    let (stream, parser) = started.map_err(io::Error::other)??;
    let mut stream = UnixStream::from_std(stream)?;
    let exchange = async {
        stream.write_all(&question).await?;
        stream.shutdown().await?;
        let mut answer = Vec::new();
        stream.take(ANSWER_BYTES).read_to_end(&mut answer).await?;
        Ok::<_, io::Error>(serde_json::from_slice(&answer)?)
    };
    match tokio::time::timeout(LIMIT, exchange).await {
        Ok(result) => result,
        Err(late) => {
            // Its children are reparented to the daemon and reaped; they have limits of their own.
            let _ = process::signal_identity(parser, Signal::KILL);
            Err(late.into())
        }
    }
}

/// Starts a parser with one end of a socket pair as its standard input and output.
fn start(recipe: &ShimRecipe) -> io::Result<(StdStream, Identity)> {
    let (ours, theirs) = StdStream::pair()?;
    ours.set_nonblocking(true)?;
    let null = fds::null()?;
    let argv = [recipe.program.clone(), CString::from(c"reader")];
    let rlimits: Vec<Rlimit> = recipe.rlimits.iter().chain(&RLIMITS).copied().collect();
    let spec = SpawnSpec {
        argv: &argv,
        envp: &[],
        cwd: Some(c"/"),
        umask: Some(0o077),
        rlimits: &rlimits,
        stdin: theirs.as_fd(),
        stdout: theirs.as_fd(),
        stderr: null.as_fd(),
        cgroup: None,
        session: Session::NewSession,
    };
    let spawned = ShimRecipe::spawn(&spec).map_err(io::Error::other)?;
    Ok((ours, spawned.identity))
}
