//! `belay lanes`: who holds which seat, who waits for it, who may not have it, and letting them in again.

use std::fmt::Write as _;

use belay_protocol::Timestamp;
use belay_protocol::lane::{
    LaneHolderInfo, LaneInfo, LaneListParams, LaneMode, LaneParams, LaneReleaseParams, LaneReleaseResult,
};
use belay_protocol::methods::{LaneList, LaneRelease};

use crate::args::owners::{LaneAction, LanesArgs, ReleaseArgs};
use crate::context::{self, Context};
use crate::error::CliError;
use crate::ui::human;
use crate::ui::style::Style;
use crate::ui::table::{Cell, Column, Table};
use crate::ui::text::one_line;

pub(crate) fn run(args: &LanesArgs, context: &mut Context) -> Result<u8, CliError> {
    if let Some(LaneAction::Release(release)) = &args.action {
        return self::release(release, context);
    }
    let mut client = context.connect()?;
    let (mut lanes, mut params) = (Vec::new(), LaneListParams::default());
    loop {
        let page = client.call::<LaneList>(&params)?;
        lanes.extend(page.lanes);
        params.cursor = page.next_cursor;
        if params.cursor.is_none() {
            break;
        }
    }
    if args.json {
        for lane in &lanes {
            context.out.json(lane)?;
        }
        return Ok(0);
    }
    if lanes.is_empty() {
        context.note("No lane is held.");
        context.hint("hold one: belay run --lane NAME -- COMMAND");
        return Ok(0);
    }
    let (width, colour) = (context.term.width, context.term.colour_out);
    context.out.text(&render(&lanes, context::now(), width, colour))?;
    Ok(0)
}

/// A line for the holder, one for each that waits, one for each that is fenced.
pub(crate) fn render(lanes: &[LaneInfo], now: Timestamp, width: Option<usize>, colour: bool) -> String {
    let mut table = Table::new(vec![
        Column::new("LANE"),
        Column::new("IS"),
        Column::new("TASK"),
        Column::new("OWNER"),
        Column::new("SINCE"),
        Column::new("NOTE").flexible(10),
    ]);
    for lane in lanes {
        let mut name = lane.name.as_str();
        let mut row = |is: &str, style: Style, who: &LaneHolderInfo, note: &str| {
            table.row(vec![
                Cell::new(std::mem::take(&mut name)),
                Cell::new(is).style(style),
                Cell::new(&who.task),
                Cell::new(&who.owner),
                Cell::new(&human::ago(who.since, now)),
                Cell::new(note),
            ]);
        };
        if let Some(holder) = &lane.holder {
            let (is, style) =
                if holder.blocked.is_some() { ("blocked", Style::Bad) } else { ("held", Style::Good) };
            let generation = format!("generation {}", lane.generation);
            row(is, style, holder, holder.blocked.as_deref().unwrap_or(&generation));
        }
        for (place, waiting) in lane.queue.iter().enumerate() {
            row("waiting", Style::Busy, waiting, &format!("place {}", place + 1));
        }
        for fence in &lane.fences {
            let why = fence.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
            let who = LaneHolderInfo {
                task: fence.task.clone(),
                owner: fence.owner.clone(),
                since: fence.at,
                blocked: None,
            };
            row("fenced", Style::Bad, &who, &format!("by {}{why}", fence.by));
        }
    }
    table.render(width, colour)
}

fn release(args: &ReleaseArgs, context: &mut Context) -> Result<u8, CliError> {
    let params = LaneReleaseParams {
        name: args.name.clone(),
        owner: args.owner.clone(),
        reason: args.reason.as_deref().map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned),
    };
    let result = context.connect()?.call::<LaneRelease>(&params)?;
    let nothing = result.released.is_empty() && result.unblocked.is_none();
    if args.json {
        context.out.json(&result)?;
    } else if nothing {
        context.note(&format!("Nobody is fenced from lane {}, and nothing blocks it.", args.name));
    } else {
        context.out.line(&one_line(&released(&result)))?;
    }
    Ok(u8::from(nothing))
}

pub(crate) fn released(result: &LaneReleaseResult) -> String {
    let mut text = format!("lane {} released", result.lane.name);
    for fence in &result.released {
        let _ = write!(text, "; {} may have it again", fence.owner);
    }
    if let Some(task) = &result.unblocked {
        let _ = write!(text, "; what is left of {task} no longer blocks it");
    }
    text
}

/// `NAME[:reject|queue|replace]`, as it is typed.
pub(crate) fn parse(text: &str) -> Result<LaneParams, String> {
    let (name, mode) = match text.rsplit_once(':') {
        None => (text, LaneMode::Reject),
        Some((name, "reject")) => (name, LaneMode::Reject),
        Some((name, "queue")) => (name, LaneMode::Queue),
        Some((name, "replace")) => (name, LaneMode::Replace),
        Some((_, other)) => return Err(format!("{other:?} is none of reject, queue, replace")),
    };
    if name.trim().is_empty() {
        return Err("a lane has a name: NAME[:reject|queue|replace]".to_owned());
    }
    Ok(LaneParams { name: name.to_owned(), mode, generation: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_is_typed_with_its_mode_behind_it() {
        let lane = |name: &str, mode| Ok(LaneParams { name: name.to_owned(), mode, generation: None });
        assert_eq!(parse("build"), lane("build", LaneMode::Reject));
        assert_eq!(parse("build:queue"), lane("build", LaneMode::Queue));
        assert_eq!(parse("host:22:replace"), lane("host:22", LaneMode::Replace));
        assert_eq!(parse("build:later"), Err("\"later\" is none of reject, queue, replace".to_owned()));
        assert!(parse(":queue").is_err() && parse("").is_err());
    }
}
