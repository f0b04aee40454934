//! `belay events`: what happened, in order, from any number on.

use std::fmt::Write as _;
use std::time::Duration;

use belay_client::Client;
use belay_protocol::ErrorKind;
use belay_protocol::event::{EventInfo, Filter, FollowParams, ReadParams};
use belay_protocol::methods::{EventFollow, EventRead, notify};
use serde_json::Value;

use crate::args::EventsArgs;
use crate::context::Context;
use crate::error::{CliError, Kind};
use crate::ui::style::Style;
use crate::ui::text::{cut, one_line, width};

/// How often a daemon may go away without having sent anything before we give up.
const MAX_FRUITLESS: u32 = 5;

pub(crate) fn run(args: &EventsArgs, context: &mut Context) -> Result<u8, CliError> {
    if args.follow {
        follow(args, context)?;
    } else {
        read(args, context)?;
    }
    Ok(0)
}

fn read(args: &EventsArgs, context: &mut Context) -> Result<(), CliError> {
    let mut client = context.connect()?;
    let mut after = args.after;
    let mut last = None;
    loop {
        let page = client
            .call::<EventRead>(&ReadParams { after, max: None, wait_ms: 0, only: only(args) })
            .map_err(|error| explain_expired(error.into()))?;
        for event in &page.events {
            show(event, args.json, context)?;
        }
        // What was there when we began; a busy daemon would never let us end otherwise.
        let last = *last.get_or_insert(page.last);
        if page.next <= after || page.next >= last {
            return Ok(());
        }
        after = page.next;
    }
}

fn only(args: &EventsArgs) -> Filter {
    Filter { task: args.task.clone(), session: args.session.clone(), types: args.types.clone() }
}

/// From here one can go on: that is the hint, whatever else the daemon says.
fn explain_expired(error: CliError) -> CliError {
    match error.rpc() {
        Some(rpc) if rpc.data.kind == ErrorKind::Expired => match rpc.data.from {
            Some(from) => error.hint(format!("the events that are kept: belay events --after {from}")),
            None => error,
        },
        _ => error,
    }
}

fn follow(args: &EventsArgs, context: &mut Context) -> Result<(), CliError> {
    let mut after = args.after;
    let mut fruitless = 0;
    loop {
        let before = after;
        let mut client = context.connect()?;
        let error = match follow_once(&mut client, args, &mut after, context) {
            Ok(never) => match never {},
            Err(error) => error,
        };
        fruitless = if after > before { 0 } else { fruitless + 1 };
        let expired =
            error.rpc().filter(|rpc| rpc.data.kind == ErrorKind::Expired).and_then(|rpc| rpc.data.from);
        match expired {
            // Only what is gone between two connections is skipped; what was asked for and is gone is an error.
            Some(from) if before > args.after && from > after => {
                context.note(&format!("events {} to {from} are no longer kept", after + 1));
                after = from;
            }
            _ if error.kind == Kind::Disconnected && fruitless <= MAX_FRUITLESS => {
                std::thread::sleep(Duration::from_millis(20) * fruitless);
            }
            _ => return Err(explain_expired(error)),
        }
    }
}

fn follow_once(
    client: &mut Client,
    args: &EventsArgs,
    after: &mut u64,
    context: &mut Context,
) -> Result<std::convert::Infallible, CliError> {
    client.call::<EventFollow>(&FollowParams { after: *after, only: only(args) })?;
    loop {
        let said = client.next_notification(None)?;
        if said.method != notify::EVENT_ITEM {
            continue;
        }
        let event: EventInfo = serde_json::from_str(said.params.get()).map_err(|error| {
            CliError::new(Kind::Unreachable, format!("an event that cannot be read: {error}"))
        })?;
        if event.seq > *after {
            *after = event.seq;
            show(&event, args.json, context)?;
        }
        if !client.has_buffered() {
            context.out.flush()?;
        }
    }
}

fn show(event: &EventInfo, json: bool, context: &mut Context) -> Result<(), CliError> {
    if json {
        context.out.json(event)
    } else {
        let text = line(event, context.term.width, context.term.colour_out);
        context.out.line(&text)
    }
}

/// One event on one line: number, time, type, task, and what is special to it.
pub(crate) fn line(event: &EventInfo, limit: Option<usize>, colour: bool) -> String {
    let head = format!("{:>6}  {}  ", event.seq, event.at);
    let kind = format!("{:<20}", one_line(&event.kind));
    let mut rest = event.task.as_deref().or(event.session.as_deref()).unwrap_or("-").to_owned();
    for (name, value) in event.more.iter().filter(|(_, value)| !value.is_null()) {
        let _ = write!(rest, "  {name}={}", value_text(value));
    }
    let rest = one_line(&rest).into_owned();
    let Some(limit) = limit else {
        return format!("{head}{}  {rest}", kind_style(event).paint(&kind, colour));
    };
    let head = cut(&head, limit).into_owned();
    let kind = cut(&kind, limit - width(&head)).into_owned();
    let room = limit - width(&head) - width(&kind);
    let rest = cut(&rest, room.saturating_sub(2)).into_owned();
    let gap = if rest.is_empty() { "" } else { "  " };
    format!("{head}{}{gap}{rest}", kind_style(event).paint(&kind, colour))
}

fn value_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn kind_style(event: &EventInfo) -> Style {
    match event.kind.as_str() {
        "task.started" | "task.adopted" | "task.recovered" => Style::Good,
        "task.stopping" | "task.attempt_ended" | "task.stalled" | "session.lapsed" | "session.ending"
        | "lane.queued" | "daemon.stopping" => Style::Busy,
        "daemon.notice" | "lane.fenced" => Style::Bad,
        _ => Style::Plain,
    }
}
