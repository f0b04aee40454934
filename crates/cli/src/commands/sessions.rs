//! `belay sessions`: opening, holding, looking at, waiting for and ending sessions.

pub(crate) mod show;

use std::convert::Infallible;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use belay_protocol::ErrorKind;
use belay_protocol::Labels;
use belay_protocol::methods::{
    Notification, SessionClose, SessionGet, SessionList, SessionNotices, SessionOpen, SessionRenew,
    SessionWait,
};
use belay_protocol::session::{
    OnSessionEnd, SessionCloseParams, SessionDefaults, SessionGetParams, SessionHold, SessionInfo,
    SessionListParams, SessionNoticesParams, SessionOpenParams, SessionOpenResult, SessionRenewParams,
    SessionWaitParams,
};
use belay_protocol::task::OnDisconnect;
use belay_protocol::task::TaskStopResult;
use belay_protocol::vars;

use serde::Serialize;

use crate::args::RunArgs;
use crate::args::owners::{
    self, CloseArgs, DrainArgs, NoticesArgs, OneArgs, OpenArgs, PolicyArgs, RunInArgs, SessionAction,
    SessionsArgs,
};
use crate::caller::ProcStatus;
use crate::commands::run::start_params;
use crate::commands::stop;
use crate::context::{self, Context};
use crate::duration::millis;
use crate::error::CliError;
use crate::live;
use crate::outcome;
use crate::ui::text::one_line;

/// How long one call waits before it is asked again.
const ONE_WAIT: Duration = Duration::from_secs(50);

/// How long a renewal that did not succeed is left alone at most before it is tried again.
const SOON: Duration = Duration::from_secs(1);

pub(crate) fn run(args: SessionsArgs, context: &mut Context) -> Result<u8, CliError> {
    match args.action {
        None => list(args.all, args.label.into_iter().collect(), args.json, context),
        Some(SessionAction::Open(open)) => self::open(open, context),
        Some(SessionAction::Run(run)) => run_in(run, context),
        Some(SessionAction::Renew(one)) => renew(&one, context),
        Some(SessionAction::Show(one)) => show_one(&one, context),
        Some(SessionAction::Wait(wait)) => drain(&wait, context),
        Some(SessionAction::Close(close)) => self::close(&close, context),
        Some(SessionAction::Notices(notices)) => self::notices(&notices, context),
    }
}

fn list(all: bool, labels: Labels, json: bool, context: &mut Context) -> Result<u8, CliError> {
    let mut client = context.connect()?;
    let mut params = SessionListParams { all, labels, ..SessionListParams::default() };
    let mut sessions = Vec::new();
    loop {
        let page = client.call::<SessionList>(&params)?;
        sessions.extend(page.sessions);
        params.cursor = page.next_cursor;
        if params.cursor.is_none() {
            break;
        }
    }
    if json {
        for session in &sessions {
            context.out.json(session)?;
        }
        return Ok(0);
    }
    let (width, colour) = (context.term.width, context.term.colour_out);
    context.out.text(&show::render(&sessions, context::now(), width, colour))?;
    Ok(0)
}

fn open_params(policy: &PolicyArgs) -> SessionOpenParams {
    SessionOpenParams {
        name: policy.name.clone(),
        labels: policy.label.iter().cloned().collect(),
        hold: SessionHold::Lease,
        lease_ms: policy.lease.map(millis),
        grace_ms: policy.lease_grace.map(millis),
        on_end: on_end(policy.on_end),
        defaults: SessionDefaults {
            timeout_ms: policy.timeout.map(millis),
            on_timeout: None,
            ttl_ms: policy.ttl.map(millis),
            silence_ms: policy.silence.map(millis),
            grace_ms: policy.grace.map(millis),
            output_limit_bytes: None,
            stall: policy.stall,
        },
        max_tasks: policy.max_tasks,
        key: None,
    }
}

const fn on_end(asked: owners::OnEnd) -> OnSessionEnd {
    match asked {
        owners::OnEnd::Stop => OnSessionEnd::Stop,
        owners::OnEnd::Keep => OnSessionEnd::Keep,
    }
}

fn open(args: OpenArgs, context: &mut Context) -> Result<u8, CliError> {
    let opened = context.connect()?.call::<SessionOpen>(&open_params(&args.policy))?;
    if args.json {
        context.out.json(&opened)?;
    } else if args.export {
        let home = context.paths()?.home;
        let home = home.to_string_lossy();
        context.out.text(&export(&opened, &home))?;
    } else {
        context.out.line(&opened.session.id)?;
        let lease = crate::ui::human::duration(opened.session.lease_ms);
        context.hint(&format!(
            "it ends unless it is renewed within {lease}: belay sessions renew {}",
            opened.session.id
        ));
    }
    Ok(0)
}

/// What a shell evaluates to speak in the session's name.
fn export(opened: &SessionOpenResult, home: &str) -> String {
    let quoted = |text: &str| format!("'{}'", text.replace('\'', r"'\''"));
    let pairs = [
        (vars::SESSION, opened.session.id.as_str()),
        (vars::TOKEN, opened.token.as_str()),
        (vars::TOKEN_HOME, home),
    ];
    pairs.map(|(name, value)| format!("export {name}={}\n", quoted(value))).concat()
}

/// The command is a task in the foreground, in a session that is held while it runs and closed after it.
fn run_in(args: RunInArgs, context: &mut Context) -> Result<u8, CliError> {
    let status = ProcStatus::read();
    let asked = RunArgs {
        pty: args.pty,
        stdin: !args.pty,
        on_disconnect: crate::args::OnDisconnect::Stop,
        ..RunArgs::of(args.command)
    };
    let mut params = start_params(asked, status)?;
    params.on_disconnect = OnDisconnect::Stop;
    let opened = context.connect()?.call::<SessionOpen>(&open_params(&args.policy))?;
    let id = opened.session.id.clone();
    params.session = Some(id.clone());
    let (running, over) = mpsc::channel();
    let result = std::thread::scope(|scope| {
        let session = &opened.session;
        scope.spawn(move || hold(session, &over));
        let result = live::foreground(context, params, false, status);
        drop(running);
        result
    });
    let close = SessionCloseParams {
        id,
        on_end: None,
        reason: Some("its command has ended".to_owned()),
        actor: None,
    };
    let closed = context.connect().and_then(|mut client| Ok(client.call::<SessionClose>(&close)?));
    match (result, closed) {
        (Ok(code), Ok(_)) => Ok(code),
        (Err(error), _) | (Ok(_), Err(error)) => Err(error),
    }
}

/// Renews a session until its command is over, which is when the other end of `over` is gone. A daemon that dies is followed by
/// another, and one that is busy or slow has time later: only a session that is not to be renewed any more is given up.
fn hold(session: &SessionInfo, over: &Receiver<Infallible>) {
    let context = Context::from_process();
    let lease = Duration::from_millis(session.lease_ms);
    let soon = (lease / 20).min(SOON);
    let params = SessionRenewParams { id: session.id.clone() };
    let mut pause = lease / 3;
    while over.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        let renewed = context.connect().and_then(|mut client| Ok(client.call::<SessionRenew>(&params)?));
        pause = match renewed {
            Ok(_) => lease / 3,
            Err(error) if is_final(&error) => return,
            Err(_) => soon,
        };
    }
}

/// The session has ended, is not known, or is not ours to renew: no later answer is another one.
fn is_final(error: &CliError) -> bool {
    let kind = error.rpc().map(|rpc| rpc.data.kind);
    matches!(kind, Some(ErrorKind::NotFound | ErrorKind::NotPermitted | ErrorKind::WrongState))
}

fn renew(args: &OneArgs, context: &mut Context) -> Result<u8, CliError> {
    let info = context.connect()?.call::<SessionRenew>(&SessionRenewParams { id: args.id.clone() })?;
    if args.json {
        context.out.json(&info)?;
    } else {
        let left = info.due_in_ms.map(crate::ui::human::duration);
        let left = left.map(|left| format!(" for {left}")).unwrap_or_default();
        context.out.line(&format!("{} held{left}", info.id))?;
    }
    Ok(0)
}

fn show_one(args: &OneArgs, context: &mut Context) -> Result<u8, CliError> {
    let info = context.connect()?.call::<SessionGet>(&SessionGetParams { id: args.id.clone() })?;
    if args.json {
        context.out.json(&info)?;
    } else {
        context.out.text(&show::one(&info, context::now(), context.term.colour_out))?;
    }
    Ok(0)
}

fn drain(args: &DrainArgs, context: &mut Context) -> Result<u8, CliError> {
    let end = args.timeout.map(|timeout| Instant::now() + timeout);
    let mut client = context.connect()?;
    let result = loop {
        let left = end.map_or(ONE_WAIT, |end| end.saturating_duration_since(Instant::now()).min(ONE_WAIT));
        let params = SessionWaitParams { id: args.id.clone(), timeout_ms: Some(millis(left)) };
        let result = client.call::<SessionWait>(&params)?;
        if result.drained || end.is_some_and(|end| Instant::now() >= end) {
            break result;
        }
    };
    if args.json {
        context.out.json(&result)?;
    } else {
        context.out.text(&show::drained(&result))?;
    }
    Ok(u8::from(!result.drained))
}

/// A closed session, and what became of its tasks.
#[derive(Debug, Serialize)]
struct Closed<'a> {
    session: &'a SessionInfo,
    receipts: &'a [TaskStopResult],
}

fn close(args: &CloseArgs, context: &mut Context) -> Result<u8, CliError> {
    let params = SessionCloseParams {
        id: args.id.clone(),
        on_end: args.on_end.map(on_end),
        reason: args.reason.as_deref().map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned),
        actor: None,
    };
    let mut receipts = Vec::new();
    let closed = context.connect()?.call_with_parts::<SessionClose>(&params, |part| {
        if let Notification::TaskStopped(part) = part {
            receipts.push(part.result);
        }
    })?;
    let worst = receipts.iter().map(stop::exit_code).max().unwrap_or(0);
    if args.json {
        context.out.json(&Closed { session: &closed.session, receipts: &receipts })?;
        return Ok(worst);
    }
    for stopped in &receipts {
        context.out.line(&one_line(&stop::line(stopped)))?;
    }
    context.out.line(&format!("{} {}", closed.session.id, closed.session.state.name()))?;
    Ok(worst)
}

fn notices(args: &NoticesArgs, context: &mut Context) -> Result<u8, CliError> {
    let mut client = context.connect()?;
    let mut ack = None;
    loop {
        let wait_ms = if args.follow { millis(ONE_WAIT) } else { 0 };
        let params = SessionNoticesParams { id: args.id.clone(), ack, wait_ms, max: None };
        let found = client.call::<SessionNotices>(&params)?;
        for notice in &found.notices {
            if args.json {
                context.out.json(notice)?;
            } else {
                let text = format!("{} {}", notice.task.id, outcome::sentence(&notice.task));
                context.out.line(&one_line(&text))?;
            }
        }
        // Shown first, and only then taken as told.
        context.out.flush()?;
        ack = found.notices.last().map(|notice| notice.seq);
        if !args.follow {
            if let Some(seq) = ack.filter(|_| !args.peek) {
                let params =
                    SessionNoticesParams { id: args.id.clone(), ack: Some(seq), wait_ms: 0, max: Some(1) };
                client.call::<SessionNotices>(&params)?;
            }
            if found.more == 0 || args.peek {
                return Ok(0);
            }
            ack = None;
        }
    }
}
