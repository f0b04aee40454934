//! `fan-out`: many who follow the events: how fast all of them have everything, against lines that a bare process writes to as
//! many connections; and what they cost whoever starts a task.

use std::cell::Cell;
use std::io::Write as _;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use belay_client::{Client, Message};
use belay_protocol::daemon::DaemonStatusParams;
use belay_protocol::event::EventFollowParams;
use belay_protocol::methods::{EventFollow, SessionClose, SessionOpen};
use belay_protocol::session::SessionOpenParams;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use serde_json::json;

use super::lease::start_in;
use super::measure::{ROUNDS, compare, median, per_second};
use super::report::{Report, Target};
use super::rpc::Part;
use super::subject::Subject;
use super::value::{Unit, Value};
use super::wire::DaemonStatus;
use super::world::World;
use crate::run::Outcome;

const FOLLOWERS: usize = 100;
/// Each is opened and closed, which are the events that cost the daemon least besides telling them.
const SESSIONS: usize = 100;
const EVENTS: usize = 3 * SESSIONS;
const STARTS: usize = 40;

pub(crate) fn run(subject: &Subject, report: &mut Report) -> Outcome {
    delivery(subject, report)?;
    start(subject, report)
}

fn delivery(subject: &Subject, report: &mut Report) -> Outcome {
    let world = World::new(subject)?;
    let mut asking = world.connect()?;
    let mut followers = follow(&world)?;
    let bare = Part::start("tell", &[&FOLLOWERS.to_string()])?;
    let mut orders = bare.connect()?;
    let mut streams = (0..FOLLOWERS).map(|_| bare.connect()).collect::<Outcome<Vec<_>>>()?;
    let (line_bytes, mut lags) = (Cell::new(0), Vec::new());
    let ours = || {
        let (took, lag, bytes) = told(&mut asking, &mut followers)?;
        line_bytes.set(bytes / EVENTS / FOLLOWERS);
        lags.push(lag);
        Ok(took)
    };
    let theirs = || {
        let began = Instant::now();
        writeln!(orders, "{EVENTS} {}", line_bytes.get())?;
        read_lines(&mut streams, EVENTS)?;
        Ok(began.elapsed())
    };
    let [ours, theirs] = compare(subject.rounds(ROUNDS), 1, [Box::new(ours), Box::new(theirs)])?;
    drop((orders, streams));
    bare.end()?;
    let rate = |took| Value::new(per_second(EVENTS * FOLLOWERS, took), Unit::PerSecond);
    let what = format!("{EVENTS} events to {FOLLOWERS} followers, made and delivered");
    let bare = ("lines from a bare process", rate(theirs));
    report.share("fan-out", &what, rate(ours), bare, Target::None);
    let what = "from the last reply to their maker until every follower has every event";
    report.value("fan-out", what, median(lags).into());
    Ok(())
}

/// Connections that are told everything from now on.
fn follow(world: &World) -> Outcome<Vec<Client>> {
    let mut clients = (0..FOLLOWERS).map(|_| world.connect()).collect::<Outcome<Vec<_>>>()?;
    if let Some(first) = clients.first_mut() {
        let after = first.call::<DaemonStatus>(&DaemonStatusParams::default())?.events_last;
        for client in &mut clients {
            client.call::<EventFollow>(&EventFollowParams { after, ..EventFollowParams::default() })?;
        }
    }
    Ok(clients)
}

/// How long it takes until everybody has been told of all of it, how much of that after the last answer, and how many bytes
/// that were.
fn told(asking: &mut Client, followers: &mut [Client]) -> Outcome<(Duration, Duration, usize)> {
    let began = Instant::now();
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| make_events(asking));
        let bytes = read_lines(followers, EVENTS)?;
        let all = Instant::now();
        let answered = asked.join().map_err(|_| "a thread has panicked")??;
        Ok((all.duration_since(began), all.saturating_duration_since(answered), bytes))
    })
}

/// Makes the events as fast as they are taken, and tells when the last answer came.
fn make_events(client: &mut Client) -> Outcome<Instant> {
    for count in 0..SESSIONS {
        let name = format!("burst-{count}");
        client.send::<SessionOpen>(&SessionOpenParams {
            name: Some(name.clone()),
            ..SessionOpenParams::default()
        })?;
        client.send::<SessionClose>(&serde_json::from_value(json!({"id": name}))?)?;
    }
    let mut answers = 0;
    while answers < 2 * SESSIONS {
        if let Message::Response(answer) = client.receive()? {
            answer.result?;
            answers += 1;
        }
    }
    Ok(Instant::now())
}

/// Reads until so many lines have come on each of these, and tells how many bytes they were.
fn read_lines<S: AsFd>(streams: &mut [S], lines: usize) -> Outcome<usize> {
    let mut left = vec![lines; streams.len()];
    let (mut buffer, mut bytes) = (vec![0; 64 << 10], 0);
    loop {
        let open: Vec<usize> = (0..left.len()).filter(|at| left[*at] > 0).collect();
        if open.is_empty() {
            return Ok(bytes);
        }
        for at in readable(open.iter().map(|at| (*at, streams[*at].as_fd())))? {
            let filled = rustix::io::read(&streams[at], &mut buffer)?;
            let ends = buffer[..filled].split(|byte| *byte == b'\n').count() - 1;
            if filled == 0 || ends > left[at] {
                return Err("a connection has ended, or says more than it should".into());
            }
            left[at] -= ends;
            bytes += filled;
        }
    }
}

/// Those of them from which something can be read; waits until there is one.
fn readable<'a>(streams: impl Iterator<Item = (usize, BorrowedFd<'a>)>) -> Outcome<Vec<usize>> {
    let (places, fds): (Vec<usize>, Vec<BorrowedFd<'a>>) = streams.unzip();
    let mut polled: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    loop {
        match poll(&mut polled, None) {
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
            Ok(_) => break,
        }
    }
    let found = places.into_iter().zip(&polled).filter(|(_, fd)| !fd.revents().is_empty());
    Ok(found.map(|(at, _)| at).collect())
}

/// The same start in two worlds, one of them full of followers who read all the time.
fn start(subject: &Subject, report: &mut Report) -> Outcome {
    let (followed, quiet) = (World::new(subject)?, World::new(subject)?);
    let (mut there, mut here) = (followed.connect()?, quiet.connect()?);
    let followers = follow(&followed)?;
    let (done, over) = UnixStream::pair()?;
    let [with, without] = std::thread::scope(|scope| {
        let reading = scope.spawn(|| drain(&followers, &over));
        let took = compare(
            subject.rounds(ROUNDS),
            STARTS,
            [Box::new(|| start_in(&mut there, "user")), Box::new(|| start_in(&mut here, "user"))],
        );
        drop(done);
        reading.join().map_err(|_| "a thread has panicked")??;
        took
    })?;
    let what = format!("start to end of `true` by RPC, with {FOLLOWERS} followers of all events");
    report.times("fan-out", &what, with, ("with none", without), Target::None);
    Ok(())
}

/// Reads whatever comes, until it is over.
fn drain(followers: &[Client], over: &UnixStream) -> Outcome {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let all = followers.iter().map(AsFd::as_fd).chain([over.as_fd()]).enumerate();
        for at in readable(all)? {
            let Some(follower) = followers.get(at) else { return Ok(()) };
            if rustix::io::read(follower, &mut buffer)? == 0 {
                return Err("a connection has ended".into());
            }
        }
    }
}
