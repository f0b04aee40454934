//! `belay send`: bytes for the standard input of a task, and keys for its terminal. What the task has not read yet is bounded by the daemon,
//! and we wait while it is full.

use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::time::{Duration, Instant};

use belay_client::{Client, ClientError};
use belay_protocol::methods::{TaskGet, TaskWrite};
use belay_protocol::task::{TaskGetParams, TaskWriteParams};
use belay_protocol::{Bytes, ErrorKind};

use crate::args::SendArgs;
use crate::caller;
use crate::context::Context;
use crate::error::CliError;

/// How long a daemon may take to reply, besides the time that it waits for room.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

const CHUNK_BYTES: usize = 64 * 1024;
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

pub(crate) fn run(args: &SendArgs, context: &mut Context) -> Result<u8, CliError> {
    let mut client = context.connect()?;
    let id = &context.task_id(&args.id)?;
    if !args.key.is_empty() {
        needs_terminal(&mut client, id)?;
    }
    match args.text.as_deref() {
        Some(dash) if dash == "-" => forward(&mut client, id)?,
        Some(text) => {
            let mut data = text.as_bytes().to_vec();
            if !args.no_newline && args.key.is_empty() {
                data.push(b'\n');
            }
            for piece in data.chunks(CHUNK_BYTES) {
                write(&mut client, id, piece, false)?;
            }
        }
        None => {}
    }
    let keys: Vec<u8> = args.key.iter().flat_map(|key| key.0.iter().copied()).collect();
    for piece in keys.chunks(CHUNK_BYTES) {
        write(&mut client, id, piece, false)?;
    }
    if args.eof {
        write(&mut client, id, &[], true)?;
    }
    Ok(0)
}

/// On a pipe a key is only a byte: Ctrl-C would interrupt nobody. Better nothing is sent.
fn needs_terminal(client: &mut Client, id: &str) -> Result<(), CliError> {
    let task = client.call::<TaskGet>(&TaskGetParams { id: id.to_owned() })?;
    match task.spec.pty() {
        Some(_) => Ok(()),
        None => Err(CliError::no(format!("{} has no terminal, so no key can be pressed there", task.id))
            .hint(format!(
                "belay stop {} --interrupt sends SIGINT; TEXT and --eof go to its standard input",
                task.id
            ))),
    }
}

fn forward(client: &mut Client, id: &str) -> Result<(), CliError> {
    let mut input = std::io::stdin().lock();
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        let length = match input.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(length) => length,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(CliError::io("read standard input", &error)),
        };
        write(client, id, &buffer[..length], false)?;
    }
}

/// Writes all of it, and waits while the task does not read.
fn write(client: &mut Client, id: &str, data: &[u8], close: bool) -> Result<(), CliError> {
    let key = Some(belay_client::random_token()?);
    let mut params =
        TaskWriteParams { id: id.to_owned(), data: Bytes(data.to_vec()), close, key, room_ms: None };
    let mut pause = SHORTEST_PAUSE;
    loop {
        params.room_ms = caller::room_ms(client);
        let limit = Duration::from_millis(params.room_ms.unwrap_or(0)) + ANSWER_LIMIT;
        match client.call_by::<TaskWrite>(&params, Some(Instant::now() + limit)) {
            Ok(_) => return Ok(()),
            Err(ClientError::Rpc(error)) if error.data.kind == ErrorKind::Busy => {}
            Err(error) => return Err(error.into()),
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
