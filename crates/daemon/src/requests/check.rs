//! Checks of request parameters, made before a request has any effect. Each error names the field
//! and the remedy.

use belay_model::{Policy, TaskId};
use belay_protocol::Bytes;
use belay_protocol::error::{ErrorKind, RpcError};
use belay_protocol::labels::check_labels;
use belay_protocol::task::{ShellCommand, ShellSpec, StallParams, TaskSpec, TaskStartParams};
use belay_record::writer::SMALLEST_LIMIT_BYTES;

use crate::config::bounds;
use crate::defaults;
use crate::owners::check_hook;
use crate::tasks::check_size;

/// A name can be used wherever an id can, so it must not look like an id.
fn check_name(name: Option<&str>) -> Result<(), RpcError> {
    check_text("name", name, bounds::NAME_BYTES)?;
    if name.is_some_and(TaskId::is_prefix) {
        let message = "a name must not look like a task id or the beginning of a task id";
        return Err(
            RpcError::invalid("name", message).hint("choose a name that does not begin with sh- or ag-")
        );
    }
    Ok(())
}

/// Checks the parameters of a start.
pub(crate) fn check(params: &TaskStartParams) -> Result<(), RpcError> {
    match &params.spec {
        TaskSpec::Shell(shell) => check_shell(shell)?,
        TaskSpec::Agent(_) => {
            let message = "this version of the daemon starts no agents";
            return Err(RpcError::new(ErrorKind::Unsupported, message).field("spec").hint("use kind shell"));
        }
    }
    no_zero_bytes("cwd", std::slice::from_ref(&params.cwd))?;
    if !params.cwd.0.starts_with(b"/") {
        return Err(RpcError::invalid("cwd", "the working directory must be an absolute path"));
    }
    no_zero_bytes("env", &params.env)?;
    if params.env.iter().any(|entry| !entry.0.contains(&b'=') || entry.0.starts_with(b"=")) {
        return Err(RpcError::invalid("env", "every entry must have the form NAME=value"));
    }
    for (name, value) in &params.set_env {
        if name.is_empty() || name.contains(['=', '\0']) || value.0.contains(&0) {
            return Err(RpcError::invalid(
                "set_env",
                "a name is empty or contains =, or an entry contains a zero byte",
            ));
        }
    }
    check_retries(params)?;
    check_stall("stall", params.stall)?;
    check_name(params.name.as_deref())?;
    check_labels("labels", &params.labels)?;
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
    if params.umask.is_some_and(|umask| umask > 0o777) {
        return Err(RpcError::invalid("umask", "the umask must be at most 0777"));
    }
    if params.output_limit_bytes.is_some_and(|limit| limit < SMALLEST_LIMIT_BYTES) {
        let message =
            format!("the output limit must be at least {SMALLEST_LIMIT_BYTES} bytes, for head and tail");
        return Err(RpcError::invalid("output_limit_bytes", message));
    }
    Ok(())
}

fn check_shell(shell: &ShellSpec) -> Result<(), RpcError> {
    match &shell.command {
        ShellCommand::Argv { argv } if argv.first().is_none_or(|program| program.0.is_empty()) => {
            return Err(RpcError::invalid("command", "there is no command to run"));
        }
        ShellCommand::Argv { argv } => no_zero_bytes("command", argv)?,
        ShellCommand::Line { line, shell } => check_line(line, shell.as_ref())?,
    }
    check_text("stdin_from", shell.stdin_from.as_deref(), bounds::SOCKET_NAME_BYTES)?;
    if shell.stdin_from.is_some() && (shell.stdin || shell.pty.is_some()) {
        let message = "stdin_from cannot be combined with stdin or pty";
        return Err(RpcError::invalid("stdin_from", message).hint("leave out stdin and pty, or stdin_from"));
    }
    shell.pty.map_or(Ok(()), |size| check_size("pty", size))
}

fn check_retries(params: &TaskStartParams) -> Result<(), RpcError> {
    if params.retries > Policy::MAX_RETRIES {
        let message = format!("at most {} retries are allowed", Policy::MAX_RETRIES);
        return Err(
            RpcError::invalid("retries", message).hint("for more attempts, use a loop in the command")
        );
    }
    if params.retries > 0 && params.spec.shell().is_some_and(|shell| shell.stdin_from.is_some()) {
        let message = "retries cannot be combined with stdin_from, which can be read only once";
        return Err(RpcError::invalid("retries", message).hint("leave out retries, or stdin_from"));
    }
    if params.retries == 0 && params.retry_delay_ms.is_some() {
        return Err(RpcError::invalid("retry_delay_ms", "retry_delay_ms has no effect without retries")
            .hint("set retries, or leave out retry_delay_ms"));
    }
    if params.retry_delay_ms.is_some_and(|delay_ms| delay_ms > bounds::CLOCK_MS) {
        return Err(RpcError::invalid("retry_delay_ms", "the delay must be at most one year"));
    }
    Ok(())
}

pub(crate) fn check_stall(field: &str, stall: Option<StallParams>) -> Result<(), RpcError> {
    let after_ms = stall.map(|stall| stall.after_ms);
    if after_ms.is_some_and(|after_ms| after_ms < bounds::STALL_MS) {
        let message = format!("the stall interval must be at least {} ms", bounds::STALL_MS);
        return Err(RpcError::invalid(field, message).hint("leave it out for no stall check"));
    }
    check_clock(field, after_ms)
}

pub(crate) fn check_line(line: &Bytes, shell: Option<&Bytes>) -> Result<(), RpcError> {
    if shell.is_some_and(|shell| shell.0.is_empty()) {
        return Err(RpcError::invalid("shell", "the shell is empty"));
    }
    no_zero_bytes("command", std::slice::from_ref(line))?;
    no_zero_bytes("shell", shell.map(std::slice::from_ref).unwrap_or_default())
}

pub(crate) fn check_clock(field: &str, limit_ms: Option<u64>) -> Result<(), RpcError> {
    match limit_ms {
        Some(0) if field != "grace_ms" => {
            Err(RpcError::invalid(field, "a limit of 0 would end the task at once"))
                .map_err(|error| error.hint("leave it out for no limit"))
        }
        Some(ms) if ms > bounds::CLOCK_MS => {
            Err(RpcError::invalid(field, "the limit must be at most one year"))
        }
        _ => Ok(()),
    }
}

/// The size of one reply: the requested size, up to the bound.
pub(crate) fn at_most(
    field: &str,
    requested: Option<impl Into<u64>>,
    bound: usize,
) -> Result<usize, RpcError> {
    match requested.map(Into::into) {
        None => Ok(bound),
        Some(0) => Err(RpcError::invalid(field, format!("{field} must be at least 1"))
            .hint("leave it out for as much as fits into one reply")),
        Some(requested) => Ok(usize::try_from(requested).unwrap_or(bound).min(bound)),
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
        return Err(RpcError::invalid(field, format!("the {field} contains a control character")));
    }
    Ok(())
}

pub(crate) fn no_zero_bytes(field: &str, texts: &[Bytes]) -> Result<(), RpcError> {
    if texts.iter().any(|text| text.0.contains(&0)) {
        let message = format!("the {field} contains a zero byte, which cannot be passed to a program");
        return Err(RpcError::invalid(field, message));
    }
    Ok(())
}
