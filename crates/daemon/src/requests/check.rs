//! Checks of parameters, made before anything is done about a call. Each error names the field and the remedy.

use belay_model::{Policy, TaskId};
use belay_protocol::Bytes;
use belay_protocol::error::RpcError;
use belay_protocol::task::{Command, StallParams, StartParams};
use belay_record::writer::SMALLEST_LIMIT_BYTES;

use crate::config::bounds;
use crate::defaults;
use crate::owners::check_hook;
use crate::tasks::check_size;

/// A name can be used wherever an id can, and must not look like one.
fn check_name(name: Option<&str>) -> Result<(), RpcError> {
    check_text("name", name, bounds::NAME_BYTES)?;
    if name.is_some_and(TaskId::is_prefix) {
        let message = "a name must not look like the id of a task, or the beginning of one";
        return Err(RpcError::invalid("name", message).hint("begin it with something else than sh- or ag-"));
    }
    Ok(())
}

/// Checks a start.
pub(crate) fn check(params: &StartParams) -> Result<(), RpcError> {
    match &params.command {
        Command::Argv(argv) if argv.first().is_none_or(|program| program.0.is_empty()) => {
            return Err(RpcError::invalid("command", "there is no command to run"));
        }
        Command::Argv(argv) => no_zero_bytes("command", argv)?,
        Command::Line { line, shell } => check_line(line, shell.as_ref())?,
    }
    no_zero_bytes("cwd", std::slice::from_ref(&params.cwd))?;
    if !params.cwd.0.starts_with(b"/") {
        return Err(RpcError::invalid("cwd", "the working directory must be an absolute path"));
    }
    no_zero_bytes("env", &params.env)?;
    if params.env.iter().any(|entry| !entry.0.contains(&b'=') || entry.0.starts_with(b"=")) {
        return Err(RpcError::invalid("env", "every variable is written NAME=value"));
    }
    for (name, value) in &params.set_env {
        if name.is_empty() || name.contains(['=', '\0']) || value.0.contains(&0) {
            return Err(RpcError::invalid(
                "set_env",
                "a name is empty or has = in it, or a zero byte is in there",
            ));
        }
    }
    check_text("stdin_from", params.stdin_from.as_deref(), bounds::SOCKET_NAME_BYTES)?;
    if params.stdin_from.is_some() && (params.stdin || params.pty.is_some()) {
        let message =
            "a standard input that is handed over cannot be written to besides, nor be a terminal's";
        return Err(RpcError::invalid("stdin_from", message).hint("leave out stdin and pty, or stdin_from"));
    }
    check_retries(params)?;
    check_stall(params.stall)?;
    check_name(params.name.as_deref())?;
    check_text("token", params.token.as_deref(), bounds::TOKEN_BYTES)?;
    check_text("lane", params.lane.as_ref().map(|lane| lane.name.as_str()), bounds::NAME_BYTES)?;
    let clocks = [
        ("timeout_ms", params.timeout_ms),
        ("ttl_ms", params.ttl_ms),
        ("silence_ms", params.silence_ms),
        ("grace_ms", params.grace_ms),
    ];
    for (field, limit) in clocks {
        check_clock(field, limit)?;
    }
    defaults::check(params)?;
    check_hook(params.notify.as_deref())?;
    if let Some(size) = params.pty {
        check_size("pty", size)?;
    }
    if params.umask.is_some_and(|umask| umask > 0o777) {
        return Err(RpcError::invalid("umask", "a mask is at most 0777"));
    }
    if params.output_limit_bytes.is_some_and(|limit| limit < SMALLEST_LIMIT_BYTES) {
        let message =
            format!("less than {SMALLEST_LIMIT_BYTES} bytes of output cannot be kept head and tail");
        return Err(RpcError::invalid("output_limit_bytes", message));
    }
    Ok(())
}

fn check_retries(params: &StartParams) -> Result<(), RpcError> {
    if params.retries > Policy::MAX_RETRIES {
        let message = format!("more than {} attempts after the first are a mistake", Policy::MAX_RETRIES);
        return Err(RpcError::invalid("retries", message).hint("a loop in the command has no such limit"));
    }
    if params.retries > 0 && params.stdin_from.is_some() {
        let message = "a standard input that is handed over can be read once, and not by every attempt";
        return Err(RpcError::invalid("retries", message).hint("leave out retries, or stdin_from"));
    }
    if params.retries == 0 && params.retry_delay_ms.is_some() {
        return Err(RpcError::invalid("retry_delay_ms", "nothing is run again")
            .hint("say how often, with retries, or leave it out"));
    }
    if params.retry_delay_ms.is_some_and(|delay_ms| delay_ms > bounds::CLOCK_MS) {
        return Err(RpcError::invalid("retry_delay_ms", "a pause of more than a year is a mistake"));
    }
    Ok(())
}

fn check_stall(stall: Option<StallParams>) -> Result<(), RpcError> {
    let after_ms = stall.map(|stall| stall.after_ms);
    if after_ms.is_some_and(|after_ms| after_ms < bounds::STALL_MS) {
        let message = format!("more often than every {} ms nobody looks", bounds::STALL_MS);
        return Err(RpcError::invalid("stall", message).hint("leave it out, and nobody looks"));
    }
    check_clock("stall", after_ms)
}

pub(crate) fn check_line(line: &Bytes, shell: Option<&Bytes>) -> Result<(), RpcError> {
    if shell.is_some_and(|shell| shell.0.is_empty()) {
        return Err(RpcError::invalid("shell", "the shell has no name"));
    }
    no_zero_bytes("command", std::slice::from_ref(line))?;
    no_zero_bytes("shell", shell.map(std::slice::from_ref).unwrap_or_default())
}

pub(crate) fn check_clock(field: &str, limit_ms: Option<u64>) -> Result<(), RpcError> {
    match limit_ms {
        Some(0) if field != "grace_ms" => {
            Err(RpcError::invalid(field, "a limit of nothing ends the task at once"))
                .map_err(|error| error.hint("leave it out for no limit"))
        }
        Some(ms) if ms > bounds::CLOCK_MS => {
            Err(RpcError::invalid(field, "a limit of more than a year is a mistake"))
        }
        _ => Ok(()),
    }
}

/// How much goes into one reply: what was asked for, up to the bound.
pub(crate) fn at_most(field: &str, asked: Option<impl Into<u64>>, room: usize) -> Result<usize, RpcError> {
    match asked.map(Into::into) {
        None => Ok(room),
        Some(0) => Err(RpcError::invalid(field, "an answer must have room for 1 at least")
            .hint("leave it out for as much as fits")),
        Some(asked) => Ok(usize::try_from(asked).unwrap_or(room).min(room)),
    }
}

pub(crate) fn check_text(field: &str, text: Option<&str>, max_bytes: usize) -> Result<(), RpcError> {
    let Some(text) = text else { return Ok(()) };
    if text.trim().is_empty() {
        return Err(RpcError::invalid(field, format!("the {field} is empty")));
    }
    if text.len() > max_bytes {
        return Err(RpcError::invalid(field, format!("the {field} is longer than {max_bytes} bytes")));
    }
    if text.chars().any(char::is_control) {
        return Err(RpcError::invalid(field, format!("the {field} has a control character in it")));
    }
    Ok(())
}

pub(crate) fn no_zero_bytes(field: &str, texts: &[Bytes]) -> Result<(), RpcError> {
    if texts.iter().any(|text| text.0.contains(&0)) {
        return Err(RpcError::invalid(field, "there is a zero byte in it, which no program can be given"));
    }
    Ok(())
}
