//! `belay events`: what happened, in order, from any number on.

mod describe;

use belay_client::Message;
use belay_protocol::ErrorKind;
use belay_protocol::event::{Event, EventFilter, EventFollowParams, EventInfo, EventReadParams};
use belay_protocol::methods::{EventFollow, EventRead, Notification};

use crate::args::EventsArgs;
use crate::context::Context;
use crate::error::CliError;
use crate::outcome;
use crate::ui::style::Style;
use crate::ui::text::{cut, one_line, width};

/// As wide as the id of a task.
const ID_COLUMNS: usize = 19;

pub(crate) fn run(mut args: EventsArgs, context: &mut Context) -> Result<u8, CliError> {
    if let Some(task) = &mut args.task {
        *task = context.task_id(task)?;
    }
    if args.follow {
        follow(&args, context)?;
    } else {
        read(&args, context)?;
    }
    Ok(0)
}

fn read(args: &EventsArgs, context: &mut Context) -> Result<(), CliError> {
    let mut client = context.connect()?;
    let mut after = args.after;
    let mut last = None;
    loop {
        let page = client
            .call::<EventRead>(&EventReadParams { after, max: None, wait_ms: 0, only: only(args) })
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

fn only(args: &EventsArgs) -> EventFilter {
    EventFilter {
        task: args.task.clone(),
        session: args.session.clone(),
        types: args.types.clone(),
        labels: args.label.iter().cloned().collect(),
    }
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
    let mut client = context.connect()?;
    client
        .call::<EventFollow>(&EventFollowParams { after: args.after, only: only(args) })
        .map_err(|error| explain_expired(error.into()))?;
    loop {
        match context.next_message(&mut client)? {
            Message::Notification(Notification::EventItem(item)) => show(&item.event, args.json, context)?,
            Message::EventsExpired { first, last, .. } => {
                context.out.flush()?;
                context.note(&format!("events {first} to {last} are no longer kept"));
            }
            Message::SubscriptionEnded { error, .. } => return Err(explain_expired(error.into())),
            _ => {}
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

/// One event on one line. In a file it can be searched by its type; a terminal has no room for that, nor for more of the time than
/// one reads.
pub(crate) fn line(event: &EventInfo, limit: Option<usize>, colour: bool) -> String {
    let about = event.event.task().or(event.event.session()).unwrap_or("-");
    let about = format!("{:<ID_COLUMNS$}  ", one_line(about));
    let words = describe::describe(&event.event);
    let (words, style) = (one_line(&words), kind_style(&event.event));
    let at = event.at.to_string();
    let Some(limit) = limit else {
        return format!(
            "{:>6}  {at}  {:<18}  {about}{}",
            event.seq,
            event.event.kind().name(),
            style.paint(&words, colour)
        );
    };
    let (day, time) = (at.get(5..10).unwrap_or_default(), at.get(11..19).unwrap_or_default());
    let head = format!("{:>6}  {day} {time}Z  {about}", event.seq);
    let head = cut(&head, limit);
    let words = cut(&words, limit - width(&head));
    format!("{head}{}", style.paint(&words, colour))
}

const fn kind_style(event: &Event) -> Style {
    match event {
        Event::TaskEnded { status, .. } => outcome::status_style(*status),
        Event::TaskStarted { .. } | Event::TaskAdopted { .. } | Event::TaskRecovered { .. } => Style::Good,
        Event::TaskStopping { .. }
        | Event::TaskAttemptEnded { .. }
        | Event::TaskStalled { .. }
        | Event::SessionLapsed { .. }
        | Event::SessionEnding { .. }
        | Event::LaneQueued { .. }
        | Event::DaemonStopping => Style::Busy,
        Event::LaneFenced { .. } | Event::Lost => Style::Bad,
        Event::TaskCreated { .. }
        | Event::TaskLeaderExited { .. }
        | Event::TaskDetached { .. }
        | Event::TaskStallSet { .. }
        | Event::TaskSignalled { .. }
        | Event::TaskRemoved { .. }
        | Event::SessionOpened { .. }
        | Event::SessionBusy { .. }
        | Event::SessionDrained { .. }
        | Event::SessionRegained { .. }
        | Event::SessionEnded { .. }
        | Event::LaneGranted { .. }
        | Event::LaneLeft { .. }
        | Event::LaneReleased { .. }
        | Event::DaemonStarted { .. } => Style::Plain,
    }
}
