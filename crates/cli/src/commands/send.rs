//! `belay send`: bytes for the standard input of a task. What the task has not read yet is bounded by the daemon,
//! and we wait while it is full.

use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

use belay_client::{Client, ClientError};
use belay_protocol::methods::TaskWrite;
use belay_protocol::task::WriteParams;
use belay_protocol::{Bytes, ErrorKind};

use crate::args::SendArgs;
use crate::context::Context;
use crate::error::CliError;

const CHUNK_BYTES: usize = 64 * 1024;
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

pub(crate) fn run(args: &SendArgs, context: &mut Context) -> Result<u8, CliError> {
    let mut client = context.connect()?;
    match args.text.as_deref() {
        Some(dash) if dash == "-" => forward(&mut client, &args.id)?,
        Some(text) => {
            let mut data = text.as_bytes().to_vec();
            if !args.no_newline {
                data.push(b'\n');
            }
            for piece in data.chunks(CHUNK_BYTES) {
                write(&mut client, &args.id, piece, false)?;
            }
        }
        None => {}
    }
    if args.eof {
        write(&mut client, &args.id, &[], true)?;
    }
    Ok(0)
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

/// Writes all of it, waiting where the task is slow.
fn write(client: &mut Client, id: &str, mut data: &[u8], close: bool) -> Result<(), CliError> {
    let mut pause = SHORTEST_PAUSE;
    loop {
        let params = WriteParams { id: id.to_owned(), data: Bytes(data.to_vec()), close };
        match client.call::<TaskWrite>(&params) {
            Ok(result) => {
                let taken = usize::try_from(result.accepted_bytes).unwrap_or(usize::MAX).min(data.len());
                data = &data[taken..];
                if data.is_empty() {
                    return Ok(());
                }
                if taken > 0 {
                    pause = SHORTEST_PAUSE;
                }
            }
            Err(ClientError::Rpc(error)) if error.data.kind == ErrorKind::Busy => {}
            Err(error) => return Err(error.into()),
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
