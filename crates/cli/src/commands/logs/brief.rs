//! `belay logs --brief`: one task for somebody with little room to read, first of all a model.

use belay_client::Client;
use belay_protocol::methods::TaskGet;
use belay_protocol::task::{TaskGetParams, TaskInfo};

use crate::args::LogsArgs;
use crate::context::{self, Context};
use crate::error::CliError;
use crate::excerpt::{Excerpt, Part, report};
use crate::outcome;
use crate::ui::filter::Filter;
use crate::ui::text::one_line;

pub(super) fn run(args: &LogsArgs, budget: u64, context: &mut Context) -> Result<u8, CliError> {
    let mut client = context.connect()?;
    let task = client.call::<TaskGet>(&TaskGetParams { id: args.id.clone() })?;
    let budget = usize::try_from(budget).unwrap_or(usize::MAX);
    let excerpt = fitting(&mut client, &task.id, args.after.unwrap_or(0), budget)?;
    let text = report(&task, &status(&task), &next(&task, &excerpt), &excerpt);
    context.out.bytes(&harmless(&text))?;
    Ok(0)
}

/// What is no text takes more room when it is shown: it is read again, as much less of it as fits.
fn fitting(client: &mut Client, id: &str, from: u64, budget: usize) -> Result<Excerpt, CliError> {
    let mut room = budget;
    loop {
        let excerpt = Excerpt::read(client, id, from, room)?;
        let shown = excerpt.parts.iter().map(shown_bytes).sum::<usize>();
        if shown <= budget {
            return Ok(excerpt);
        }
        let less = room as u128 * budget as u128 / shown as u128;
        room = usize::try_from(less).unwrap_or(room).min(room - 1);
    }
}

fn shown_bytes(part: &Part) -> usize {
    match part {
        Part::Text { data, .. } => harmless(&String::from_utf8_lossy(data)).len(),
        Part::LeftOut { .. } | Part::NotKept { .. } => 0,
    }
}

/// Whoever reads it may show it to somebody: it is as harmless as at a terminal.
fn harmless(text: &str) -> Vec<u8> {
    let mut filter = Filter::default();
    let mut shown = filter.feed(text.as_bytes());
    shown.extend(filter.finish());
    shown
}

/// One line, whatever somebody gave as a reason: what follows it must not look like it.
fn status(task: &TaskInfo) -> String {
    let words = match (outcome::left_words(task), &task.stall) {
        (Some(left), _) => format!("running ({left})"),
        (None, Some(stall)) => format!("running ({})", outcome::stalled(stall, context::now())),
        (None, None) if task.status.is_ended() => outcome::sentence(task),
        (None, None) => outcome::short(task),
    };
    one_line(&words).into_owned()
}

/// What can be done now: read what was left out, wait for more, or end it.
pub(crate) fn next(task: &TaskInfo, excerpt: &Excerpt) -> String {
    let id = &task.id;
    let left_out = excerpt.parts.iter().find_map(|part| match part {
        Part::LeftOut { from, .. } => Some(*from),
        Part::Text { .. } | Part::NotKept { .. } => None,
    });
    let mut steps = Vec::new();
    if let Some(from) = left_out {
        steps.push(format!("belay logs {id} --brief --after {from} for what is left out"));
        steps.push(format!("belay logs {id} --grep REGEX to search it"));
    }
    if !task.status.is_ended() {
        steps.push(format!("belay logs {id} --brief --after {} for what comes", excerpt.to));
        steps.push(format!("belay wait {id} --timeout 50s"));
        steps.push(format!("belay stop {id}"));
    }
    if steps.is_empty() {
        "nothing: it has ended, and this is all of it".to_owned()
    } else {
        steps.join("; ")
    }
}
