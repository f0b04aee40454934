//! `follow`: a follower of events whose filter skips a long journal, until it has caught up, and how long another client waits
//! meanwhile.

use std::time::{Duration, Instant};

use belay_client::Client;
use belay_protocol::event::EventFollowParams;
use belay_protocol::methods::{EventFollow, Notification, SessionClose, SessionOpen};
use belay_protocol::session::SessionOpenParams;
use serde_json::json;

use super::bystander::longest_wait;
use super::filled::{EVENTS, fill_world};
use super::measure::{median, time};
use super::report::Report;
use super::subject::Subject;
use super::world::World;
use crate::run::Outcome;

const ROUNDS: usize = 5;
const LIMIT: Duration = Duration::from_mins(1);
/// A type that is not in the journal until the bench makes one such event.
const WANTED: &str = "session.ended";

pub(crate) fn run(subject: &Subject, report: &mut Report) -> Outcome {
    let (mut durations, mut waits) = (Vec::new(), Vec::new());
    for round in 0..subject.rounds(ROUNDS) {
        let world = fill_world(World::new(subject)?, 1, EVENTS)?;
        let (mut follower, mut other) = (world.connect()?, world.connect()?);
        let catch_up = || time(|| catch_up(&mut follower, &mut other, &format!("wanted-{round}")));
        let (duration, wait) = longest_wait(&world, catch_up)?;
        durations.push(duration);
        waits.push(wait);
    }
    let what = "filtered `event/follow` over 199 000 events, until an event of the wanted type arrives";
    report.value("follow", what, median(durations).into());
    report.value("follow", "longest `daemon/status` of another client meanwhile", median(waits).into());
    Ok(())
}

/// Follows from the beginning of the journal, makes one event of the wanted type, and waits until it arrives.
fn catch_up(follower: &mut Client, other: &mut Client, name: &str) -> Outcome {
    follow_filtered(follower)?;
    other.send::<SessionOpen>(&SessionOpenParams {
        name: Some(name.to_owned()),
        ..SessionOpenParams::default()
    })?;
    other.send::<SessionClose>(&serde_json::from_value(json!({"id": name}))?)?;
    let item = follower.next_notification(Some(Instant::now() + LIMIT))?;
    match item {
        Notification::EventItem(item) if item.event.event.kind().name() == WANTED => Ok(()),
        other => Err(format!("not the wanted event: {other:?}").into()),
    }
}

/// Sends the request; the daemon begins to read the journal from its first event.
pub(crate) fn follow_filtered(follower: &mut Client) -> Outcome {
    let params: EventFollowParams = serde_json::from_value(json!({"after": 0, "only": {"types": [WANTED]}}))?;
    follower.send::<EventFollow>(&params)?;
    Ok(())
}

/// A client that follows the whole journal of this world for events that never come.
pub(crate) fn idle_follower(world: &World) -> Outcome<Client> {
    let mut follower = world.connect()?;
    follow_filtered(&mut follower)?;
    Ok(follower)
}
