//! `lease`: what it costs to hold a session, and to work in one.

use std::time::Duration;

use belay_client::Client;
use belay_protocol::methods::{SessionOpen, SessionRenew};
use belay_protocol::session::{SessionOpenParams, SessionRenewParams};
use serde_json::json;

use super::measure::{ROUNDS, compare, time};
use super::report::{Report, Target};
use super::rpc::{Echo, status};
use super::start::TRUE;
use super::subject::Subject;
use super::wire::Start;
use super::world::{World, start_params};
use crate::run::Outcome;

/// Longer than the benchmarks take: what is not to be measured does not come to an end.
pub(crate) const LONG_MS: u64 = 3_600_000;

pub(crate) fn run(subject: &Subject, report: &mut Report) -> Outcome {
    let world = World::new(subject)?;
    let (mut client, mut other) = (world.connect()?, world.connect()?);
    let id = open(&mut client, LONG_MS)?;
    let mut echo = Echo::start()?;
    let renew = || {
        time(|| {
            client.call::<SessionRenew>(&SessionRenewParams { id: id.clone() })?;
            Ok(())
        })
    };
    let [renewed, asked, echoed] = compare(
        subject.rounds(ROUNDS),
        500,
        [Box::new(renew), Box::new(|| status(&mut other)), Box::new(|| echo.round_trip())],
    )?;
    echo.end()?;
    let what = "`session/renew`, there and back";
    report.times("lease", what, renewed, ("`daemon/status`", asked), Target::AtMost(2.0));
    report.times_again("lease", renewed, ("echo of a line", echoed));

    let [within, standing] = compare(
        subject.rounds(ROUNDS),
        60,
        [Box::new(|| start_in(&mut client, &id)), Box::new(|| start_in(&mut other, "user"))],
    )?;
    let what = "start to end of `true` in a session, by RPC";
    report.times("lease", what, within, ("in the standing one", standing), Target::None);
    Ok(())
}

/// A session that is held by a lease of so long, and as long again can be regained.
pub(crate) fn open(client: &mut Client, lease_ms: u64) -> Outcome<String> {
    let params = SessionOpenParams {
        lease_ms: Some(lease_ms),
        grace_ms: Some(lease_ms),
        ..SessionOpenParams::default()
    };
    Ok(client.call::<SessionOpen>(&params)?.session.id)
}

/// From asking to knowing the end of `true` in this session.
pub(crate) fn start_in(client: &mut Client, session: &str) -> Outcome<Duration> {
    let params = start_params(&[TRUE], &json!({"answer": "ended", "session": session}))?;
    time(|| client.call::<Start>(&params)?.completed())
}
