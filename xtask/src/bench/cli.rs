//! `cli`: one program run for each task, as people and scripts do it; with peers that keep a daemon too.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::measure::{Contender, ROUNDS, compare, per_second, time};
use super::peers::{self, MANY, Peer};
use super::rate::both;
use super::report::{Report, Target};
use super::start::{TRUE, bare};
use super::subject::Subject;
use super::value::{Unit, Value};
use super::world::World;
use crate::run::{Outcome, output, succeed};

const TIMES: usize = 20;
const EACH: usize = 50;

pub(crate) fn run(subject: &Subject, report: &mut Report) -> Outcome {
    let world = World::new(subject)?;
    let run = || time(|| succeed(&mut belay(&world, &["run", "--", TRUE])));
    let version = || time(|| succeed(belay(&world, &["--version"]).stdout(Stdio::null())));
    let [run, version, theirs] =
        compare(subject.rounds(ROUNDS), TIMES, [Box::new(run), Box::new(version), Box::new(bare)])?;
    report.times("cli", "`belay run -- true`", run, ("bare spawn and wait", theirs), Target::AtMost(5.0));
    report.times("cli", "`belay --version`", version, ("bare `true`", theirs), Target::None);
    let rate = rate(subject, &world)?;
    report.value("cli", "`belay run -- true`, two at once", Value::new(rate, Unit::PerSecond));
    // Peers say nothing about the difference between two binaries.
    if subject.is_compared {
        return Ok(());
    }
    for peer in peers::all(report) {
        against(report, &world, &peer)?;
    }
    Ok(())
}

/// The command in this world.
pub(crate) fn belay(world: &World, words: &[&str]) -> Command {
    let mut command = Command::new(&world.exe);
    command.args(words).current_dir("/").stdin(Stdio::null());
    command.env(belay_protocol::vars::HOME, &world.paths.home);
    command.env(belay_protocol::vars::RUNTIME_DIR, &world.paths.runtime_dir);
    command
}

fn rate(subject: &Subject, world: &World) -> Outcome<f64> {
    let work: fn(&mut &World) -> Outcome =
        |world| (0..EACH).try_for_each(|_| succeed(&mut belay(world, &["run", "--", TRUE])));
    let [took] = compare(subject.rounds(ROUNDS), 1, [Box::new(|| both(&mut [world, world], work))])?;
    Ok(per_second(2 * EACH, took))
}

/// The same work by a peer, in turns with ours.
fn against(report: &mut Report, world: &World, peer: &Peer) -> Outcome {
    let ours: Contender =
        Box::new(|| time(|| succeed(belay(world, &["run", "--", TRUE]).stdout(Stdio::null()))));
    let theirs: Contender = Box::new(|| peer.start_to_end());
    let [ours, theirs] = compare(5, peer.times(), [ours, theirs])?;
    let what = format!("`belay run -- true` against {}", peer.name());
    report.times("cli", &what, ours, (peer.name(), theirs), Target::None);
    let [ours, theirs] = compare(3, 1, [Box::new(|| many(world)), Box::new(|| peer.many())])?;
    let rate = |took: Duration| Value::new(per_second(MANY, took), Unit::PerSecond);
    let what =
        format!("{MANY} tasks handed over one by one, to the end of the last, against {}", peer.name());
    report.share("cli", &what, rate(ours), (peer.name(), rate(theirs)), Target::None);
    Ok(())
}

/// From the first task that was handed over to the end of the last.
fn many(world: &World) -> Outcome<Duration> {
    time(|| {
        let ids = (0..MANY).map(|_| output(&mut belay(world, &["run", "-d", "--", TRUE])));
        let ids = ids.collect::<Outcome<Vec<_>>>()?;
        let words: Vec<&str> = std::iter::once("wait").chain(ids.iter().map(|id| id.trim())).collect();
        succeed(belay(world, &words).stdout(Stdio::null()))
    })
}

/// Whether a program is there and says so.
pub(crate) fn answers(program: &Path, words: &[&str]) -> bool {
    crate::run::succeeds_quietly(Command::new(program).args(words).stdin(Stdio::null()))
}

/// How long a command takes to a good end, in silence.
pub(crate) fn timed(command: &mut Command) -> Outcome<Duration> {
    time(|| succeed(command.stdout(Stdio::null()).stdin(Stdio::null())))
}
