//! `belay run`: reads what was asked for, and starts it detached or in the foreground.

mod explain;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use belay_protocol::Bytes;
use belay_protocol::methods::TaskStart;
use belay_protocol::task::{
    AnswerWhen, Budgets, NoLimit, OnDisconnect, OnTimeout, Outcome, ShellCommand, ShellSpec,
    StartFollowParams, TaskStartParams,
};

use crate::args::{self, Limit, RunArgs};
use crate::caller::{self, ProcStatus};
use crate::context::Context;
use crate::duration::millis;
use crate::error::CliError;
use crate::live;
use crate::outcome;
#[cfg(test)]
pub(crate) use explain::lines as explained;

pub(crate) fn run(args: RunArgs, context: &mut Context) -> Result<u8, CliError> {
    let (detach, json) = (args.detach, args.json);
    let (status, explain) = (ProcStatus::read(), args.explain);
    let params = start_params(args, status)?;
    if explain {
        return explain::explain(&params, json, context);
    }
    if detach { detached(&params, json, context) } else { live::foreground(context, params, json, status) }
}

fn detached(params: &TaskStartParams, json: bool, context: &mut Context) -> Result<u8, CliError> {
    let task = context.connect()?.call::<TaskStart>(params)?;
    let failed = matches!(task.outcome, Some(Outcome::Spawn { .. }));
    if json {
        context.out.json(&task)?;
    } else {
        context.out.line(&task.id)?;
    }
    context.out.flush()?;
    if failed {
        context.complain(&CliError::no(format!("{} {}", task.id, outcome::sentence(&task))));
        // As if it had been waited for: a script need not ask how it was started.
        return Ok(outcome::exit_code(&task));
    }
    if !json {
        if let Some(line) = task.spec.line() {
            context.hint(&line.explanation);
        }
        context.hint(&outcome::go_on(&task));
    }
    Ok(0)
}

/// Everything the daemon is told. What is wrong is found here, before any daemon is asked.
pub(crate) fn start_params(args: RunArgs, status: ProcStatus) -> Result<TaskStartParams, CliError> {
    if args.retry.is_some() && args.stdin && !args.detach {
        let message = "--stdin gives it our standard input, which can be read once, and not by every attempt";
        return Err(CliError::usage(message)
            .hint("leave out --retry or --stdin, or start it with -d and use belay send"));
    }
    let command = command(args.line, args.shell, args.command)?;
    let name = args.name.map(name).transpose()?;
    let set_env = set_env(args.env)?;
    let token = match args.token {
        Some(token) if token.is_empty() => {
            return Err(CliError::usage("--token is empty").hint("leave it out, or give any text"));
        }
        Some(token) => token,
        None => belay_client::random_token()?,
    };
    let clocks =
        [(args.timeout, NoLimit::Timeout), (args.ttl, NoLimit::Ttl), (args.silence, NoLimit::Silence)];
    let no_limits = clocks.into_iter().filter(|(said, _)| *said == Some(Limit::None)).map(|(_, name)| name);
    let no_limits = no_limits.collect();
    let spec = ShellSpec {
        command,
        stdin: args.stdin,
        stdin_from: None,
        merge: args.merge,
        pty: args.pty.then(live::size_for_task),
    };
    let cwd = caller::directory(args.cwd.as_deref())?.into_os_string();
    Ok(TaskStartParams {
        env: caller::environment(),
        set_env,
        name,
        labels: args.label.into_iter().collect(),
        umask: status.umask,
        rlimits: caller::limits(),
        detached: args.detach,
        timeout_ms: args.timeout.and_then(Limit::ms),
        on_timeout: args.on_timeout.map(|what| match what {
            args::OnTimeout::Stop => OnTimeout::Stop,
            args::OnTimeout::Detach => OnTimeout::Detach,
        }),
        on_disconnect: match args.on_disconnect {
            args::OnDisconnect::Detach => OnDisconnect::Detach,
            args::OnDisconnect::Stop => OnDisconnect::Stop,
        },
        stall: args.stall,
        ttl_ms: args.ttl.and_then(Limit::ms),
        silence_ms: args.silence.and_then(Limit::ms),
        no_limits,
        grace_ms: args.grace.map(millis),
        retries: args.retry.unwrap_or(0),
        retry_delay_ms: args.retry_delay.map(millis),
        output_limit_bytes: args.output_limit,
        budgets: Budgets {
            output_bytes: args.budgets.output,
            memory_bytes: args.budgets.memory,
            processes: args.budgets.processes,
        },
        notify: args.notify,
        token: Some(token),
        session: args.session,
        keep: args.keep,
        lane: args.lane,
        answer: if args.detach { AnswerWhen::Started } else { AnswerWhen::Ended },
        follow: (!args.detach && !args.json).then(StartFollowParams::default),
        ..TaskStartParams::new(spec, cwd)
    })
}

fn command(
    line: Option<OsString>,
    shell: Option<OsString>,
    argv: Vec<OsString>,
) -> Result<ShellCommand, CliError> {
    let found = match (line, argv) {
        (Some(line), _) if line.as_bytes().trim_ascii().is_empty() => {
            return Err(CliError::usage("the line given with -c is empty"));
        }
        (Some(line), _) => ShellCommand::Line { line: line.into(), shell: shell.map(Bytes::from) },
        (None, argv) if argv.is_empty() => {
            return Err(CliError::usage("there is no command to run")
                .hint("belay run -- COMMAND ARG…, or belay run -c 'a line for the shell'"));
        }
        (None, argv) if argv[0].is_empty() => return Err(CliError::usage("the command is an empty word")),
        (None, argv) => ShellCommand::Argv { argv: argv.into_iter().map(Bytes::from).collect() },
    };
    Ok(found)
}

fn name(name: OsString) -> Result<String, CliError> {
    let text = name.into_string().map_err(|_| CliError::usage("--name is not UTF-8 text"))?;
    if text.trim().is_empty() {
        return Err(CliError::usage("--name is empty").hint("leave it out, or give it a word"));
    }
    if text.chars().any(char::is_control) {
        return Err(CliError::usage("--name has control characters in it").hint("use plain words"));
    }
    Ok(text)
}

fn set_env(entries: Vec<OsString>) -> Result<BTreeMap<String, Bytes>, CliError> {
    let mut set = BTreeMap::new();
    for entry in entries {
        let shown = entry.to_string_lossy().into_owned();
        let bytes = entry.into_vec();
        let wrong =
            |what: &str| CliError::usage(format!("--env {shown:?} {what}")).hint("write --env NAME=value");
        let at = bytes.iter().position(|byte| *byte == b'=').ok_or_else(|| wrong("has no ="))?;
        let name =
            String::from_utf8(bytes[..at].to_vec()).map_err(|_| wrong("has a name that is not UTF-8"))?;
        if name.is_empty() {
            return Err(wrong("has no name before the ="));
        }
        set.insert(name, Bytes(bytes[at + 1..].to_vec()));
    }
    Ok(set)
}
