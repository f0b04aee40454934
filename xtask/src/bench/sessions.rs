//! `sessions`: whether anything becomes slower with the number of open sessions, and whether they keep the daemon awake.

use std::time::{Duration, Instant};

use belay_client::Client;
use belay_protocol::methods::{SessionClose, SessionGet, SessionList};
use belay_protocol::session::{SessionGetParams, SessionListParams, SessionState};
use belay_protocol::task;
use serde_json::json;

use super::idle::wakes;
use super::lease::{LONG_MS, open, start_in};
use super::measure::{ROUNDS, compare, number, time};
use super::report::{Report, Target};
use super::rpc::status;
use super::subject::Subject;
use super::value::Value;
use super::wire::{List, Start};
use super::world::{World, start_params};
use crate::run::{Outcome, wait_until};

const MANY: usize = 1_000;
const TASKS: usize = 200;
const CRASHES: usize = 5;
const LAPSES: usize = 5;
const LEASE_MS: u64 = 60_000;
/// Long enough to open all of them.
const SHORT_MS: u64 = 2_000;

/// A daemon with so many open sessions, and running tasks spread over them.
struct Crowd {
    world: World,
    client: Client,
    sessions: Vec<String>,
    tasks: usize,
}

pub(crate) fn run(subject: &Subject, report: &mut Report) -> Outcome {
    let (mut many, mut one) =
        (Crowd::new(subject, MANY, TASKS, LONG_MS)?, Crowd::new(subject, 1, TASKS, LONG_MS)?);
    for (what, times, work) in [
        ("`session/open`", 100, Crowd::open as fn(&mut Crowd) -> Outcome<Duration>),
        ("`session/close`", 100, Crowd::close),
        ("`session/get`", 200, Crowd::get),
        ("`session/list`, all of them", 20, Crowd::list),
        ("start to end of `true` by RPC in one of them", 40, Crowd::start),
    ] {
        let [many, one] = compare(
            subject.rounds(ROUNDS),
            times,
            [Box::new(|| work(&mut many)), Box::new(|| work(&mut one))],
        )?;
        let what = format!("{what}, with 1 000 sessions and 200 tasks");
        report.times("sessions", &what, many, ("with 1 and 200", one), Target::None);
    }
    let [many, one] =
        compare(subject.rounds(CRASHES), 1, [Box::new(|| many.crash()), Box::new(|| one.crash())])?;
    let what = "from a killed daemon to the next one with all 1 000, and 200 tasks";
    report.times("sessions", what, many, ("with 1 and 200", one), Target::None);
    let [many, one] = compare(
        subject.rounds(LAPSES),
        1,
        [Box::new(|| lapse(subject, MANY)), Box::new(|| lapse(subject, 1))],
    )?;
    let what = "longest `daemon/status` while 1 000 leases are lost, and the sessions end, at once";
    report.times("sessions", what, many, ("while one is", one), Target::None);
    idle(subject, report)
}

/// The longest that somebody waits for an answer while nobody renews any of so many leases. A new daemon counts all of them
/// from its beginning, so that they are over at the same moment.
fn lapse(subject: &Subject, sessions: usize) -> Outcome<Duration> {
    let mut crowd = Crowd::new(subject, sessions, 0, SHORT_MS)?;
    crowd.crash()?;
    let until = Instant::now() + Duration::from_millis(2 * SHORT_MS + 500);
    let mut longest = Duration::ZERO;
    while Instant::now() < until {
        longest = longest.max(status(&mut crowd.client)?);
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(longest)
}

fn idle(subject: &Subject, report: &mut Report) -> Outcome {
    let crowd = Crowd::new(subject, MANY, 0, LEASE_MS)?;
    let [wakes] = wakes([crowd.world.daemon()?.pid])?;
    let what = "wake-ups of a daemon in 10 s, 1 000 leases of one minute held";
    report.alone("sessions", what, Value::count(wakes), number(wakes), Target::AtMost(0.0));
    Ok(())
}

impl Crowd {
    fn new(subject: &Subject, sessions: usize, tasks: usize, lease_ms: u64) -> Outcome<Self> {
        let world = World::new(subject)?;
        let mut client = world.connect()?;
        let sessions =
            (0..sessions).map(|_| open(&mut client, lease_ms)).collect::<Outcome<Vec<String>>>()?;
        for session in sessions.iter().cycle().take(tasks) {
            let more = json!({"detached": true, "session": session});
            client.call::<Start>(&start_params(&["/bin/sleep", "1000"], &more)?)?;
        }
        let mut crowd = Self { world, client, sessions, tasks };
        if crowd.is_whole()? { Ok(crowd) } else { Err("not all sessions and tasks are there".into()) }
    }

    /// One in the middle.
    fn some(&self) -> String {
        self.sessions[self.sessions.len() / 2].clone()
    }

    fn open(&mut self) -> Outcome<Duration> {
        Ok(self.open_and_close()?.0)
    }

    fn close(&mut self) -> Outcome<Duration> {
        Ok(self.open_and_close()?.1)
    }

    /// One more, and one less again.
    fn open_and_close(&mut self) -> Outcome<(Duration, Duration)> {
        let began = Instant::now();
        let id = open(&mut self.client, LONG_MS)?;
        let opened = began.elapsed();
        let close = serde_json::from_value(json!({"id": id}))?;
        let closed = time(|| {
            self.client.call::<SessionClose>(&close)?;
            Ok(())
        })?;
        Ok((opened, closed))
    }

    fn get(&mut self) -> Outcome<Duration> {
        let params = SessionGetParams { id: self.some() };
        time(|| {
            self.client.call::<SessionGet>(&params)?;
            Ok(())
        })
    }

    fn list(&mut self) -> Outcome<Duration> {
        time(|| if self.has_sessions()? { Ok(()) } else { Err("sessions are missing".into()) })
    }

    fn start(&mut self) -> Outcome<Duration> {
        let session = self.some();
        start_in(&mut self.client, &session)
    }

    /// Kills the daemon and starts the next; done when that one answers for everything.
    fn crash(&mut self) -> Outcome<Duration> {
        self.world.kill_daemon()?;
        time(|| {
            self.world.start_daemon()?;
            self.client = self.world.connect()?;
            let all = wait_until(Duration::from_secs(30), || self.is_whole())?;
            if all { Ok(()) } else { Err("sessions or tasks are missing".into()) }
        })
    }

    fn is_whole(&mut self) -> Outcome<bool> {
        let tasks = self.client.call::<List>(&task::TaskListParams::default())?.tasks;
        let running = tasks.iter().filter(|task| task.is_running()).count();
        Ok(running == self.tasks && self.has_sessions()?)
    }

    /// The standing one is the oldest, so that all others are on the first page.
    fn has_sessions(&mut self) -> Outcome<bool> {
        let listed = self.client.call::<SessionList>(&SessionListParams::default())?.sessions;
        let open = listed.iter().filter(|one| one.id != "user" && one.state == SessionState::Open).count();
        Ok(open == self.sessions.len())
    }
}
