//! Simulated clients: what they want, when they ask for it, and what they do when the daemon dies under them. What they
//! make of an answer is in `talk`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use belay_daemon::input::{ClientId, Input};
use belay_protocol::CLIENT_PROTOCOL;
use belay_protocol::life::StopLevel;
use belay_protocol::task::{
    AnswerWhen, OnDisconnect, OnStall, OnTimeout, ShellCommand, StallParams, StartFollowParams,
    TaskStartParams,
};
use serde_json::{Value, json};

use super::agenda::Job;
use super::rng::Rng;
use super::{Checked, Sim};

/// A start that some client wants, with its token: asked for again, it is the same.
#[derive(Debug)]
pub(crate) struct Spec {
    pub(crate) params: TaskStartParams,
    pub(crate) id: Option<String>,
}

#[derive(Clone, Debug)]
pub(crate) enum Want {
    Hello,
    Start {
        spec: usize,
    },
    Stop {
        id: String,
        level: StopLevel,
        grace_ms: Option<u64>,
        wait: bool,
    },
    StopMany {
        ids: Vec<String>,
    },
    /// Stops what a start has given, once it is known.
    StopSpec {
        spec: usize,
    },
    WaitSpec {
        spec: usize,
    },
    Wait {
        id: String,
        timeout_ms: u64,
    },
    Get {
        id: String,
    },
    Remove {
        id: String,
    },
    List,
    Status,
    ReadEvents {
        wait_ms: u64,
    },
    FollowEvents,
    Down {
        stop_tasks: bool,
    },
    Write {
        id: String,
    },
    Detach {
        id: String,
    },
    Collect,
}

/// A request that is on its way, and by when it must be answered.
#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) want: Want,
    pub(crate) sent_ms: u64,
    pub(crate) within_ms: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) connection: Option<ClientId>,
    pub(crate) rng: Rng,
    pub(crate) wants_left: u64,
    pub(crate) wanted: VecDeque<Want>,
    pub(crate) open: BTreeMap<i64, Ask>,
    last_request: i64,
    lines: VecDeque<Vec<u8>>,
    last_line_ms: u64,
    pub(crate) events_seen: Option<u64>,
    /// The open requests that were told of their start, on this connection.
    pub(crate) told_started: BTreeSet<i64>,
    /// How many receipts came for each open request, on this connection.
    pub(crate) receipts: BTreeMap<i64, u64>,
}

impl Client {
    pub(crate) const fn new(wants_left: u64, rng: Rng) -> Self {
        Self {
            connection: None,
            rng,
            wants_left,
            wanted: VecDeque::new(),
            open: BTreeMap::new(),
            last_request: 0,
            lines: VecDeque::new(),
            last_line_ms: 0,
            events_seen: None,
            told_started: BTreeSet::new(),
            receipts: BTreeMap::new(),
        }
    }

    /// It has nothing more to ask for.
    pub(crate) fn is_content(&self) -> bool {
        self.wants_left == 0 && self.wanted.is_empty()
    }
}

impl Sim {
    pub(crate) fn client_acts(&mut self, n: usize) -> Checked {
        if self.is_over {
            return Ok(());
        }
        let pause_ms = self.clients[n].rng.pick(&[0, 1, 10, 10, 200, 200, 2_000, 8_000]);
        if self.clients[n].connection.is_none() {
            self.act_again(n, 5 + pause_ms.min(200));
            return self.come_in(n);
        }
        if self.leaves_abruptly(n) {
            self.act_again(n, 5 + pause_ms);
            return self.client_goes(n);
        }
        if let Some(want) = self.clients[n].wanted.pop_front() {
            self.ask(n, want);
        } else if self.is_closing {
            return self.close_up(n);
        } else if self.clients[n].wants_left > 0 {
            self.clients[n].wants_left -= 1;
            let want = self.make_want(n);
            self.ask(n, want);
        }
        let idles = self.clients[n].is_content();
        self.act_again(n, if idles { pause_ms.max(50) } else { pause_ms });
        Ok(())
    }

    fn act_again(&mut self, client: usize, in_ms: u64) {
        self.agenda.add(self.mono_ms + in_ms, &mut self.rng, Job::ClientActs { client });
    }

    /// The door is open once a daemon has adopted what its predecessor left.
    fn come_in(&mut self, n: usize) -> Checked {
        let Some(daemon) = self.daemon.as_mut().filter(|daemon| daemon.core.is_serving()) else {
            return Ok(());
        };
        self.last_client += 1;
        let client = ClientId(self.last_client);
        daemon.clients.insert(client, n);
        self.clients[n].connection = Some(client);
        self.clients[n].lines.clear();
        self.clients[n].told_started.clear();
        self.clients[n].receipts.clear();
        self.tell_daemon(Input::ClientConnected {
            client,
            uid: 1000,
            ancestors: Vec::new(),
            in_task: false,
        })?;
        self.ask(n, Want::Hello);
        if self.clients[n].events_seen.is_some() {
            self.ask(n, Want::FollowEvents);
        }
        Ok(())
    }

    fn leaves_abruptly(&mut self, n: usize) -> bool {
        let seldom = self.plan.wants > 0 && !self.is_closing;
        seldom && self.clients[n].rng.percent(3)
    }

    /// It closes its connection, whatever it was waiting for.
    pub(crate) fn client_goes(&mut self, n: usize) -> Checked {
        let Some(client) = self.clients[n].connection.take() else { return Ok(()) };
        self.note("client", format_args!("{n} goes"));
        self.clients[n].open.clear();
        self.clients[n].lines.clear();
        if let Some(daemon) = &mut self.daemon {
            daemon.clients.remove(&client);
        }
        self.tell_daemon(Input::ClientGone { client })
    }

    /// Every connection is dead; what was asked for is asked for again, or given up.
    pub(crate) fn clients_lose_daemon(&mut self) {
        for client in &mut self.clients {
            client.connection = None;
            client.lines.clear();
            for ask in std::mem::take(&mut client.open).into_values() {
                let again = match &ask.want {
                    Want::StopSpec { .. } | Want::WaitSpec { .. } => true,
                    Want::Start { .. } => self.plan.wants == 0 || client.rng.percent(80),
                    Want::Stop { .. } | Want::StopMany { .. } | Want::Wait { .. } => client.rng.percent(50),
                    _ => false,
                };
                if again && !self.is_closing {
                    client.wanted.push_back(ask.want);
                }
            }
        }
    }

    // --- wanting ---

    fn make_want(&mut self, n: usize) -> Want {
        let known: Vec<String> = self.specs.iter().filter_map(|spec| spec.id.clone()).collect();
        let follows = self.clients[n].events_seen.is_some();
        let rng = &mut self.clients[n].rng;
        if known.is_empty() || rng.percent(40) {
            return Want::Start { spec: self.make_spec(n) };
        }
        let id = known[rng.index(known.len())].clone();
        let levels = [StopLevel::Drain, StopLevel::Interrupt, StopLevel::Terminate, StopLevel::Kill];
        match rng.below(30) {
            0..2 => {
                let ids = (0..=rng.below(3)).map(|_| known[rng.index(known.len())].clone());
                Want::StopMany { ids: ids.collect() }
            }
            2..10 => Want::Stop {
                id,
                level: rng.pick(&levels),
                grace_ms: rng.pick(&[None, Some(0), Some(30), Some(1_000)]),
                wait: rng.percent(80),
            },
            10..15 => Want::Wait { id, timeout_ms: rng.pick(&[0, 1, 500, 600_000]) },
            15..19 => Want::Get { id },
            19..22 => Want::Remove { id },
            22 if rng.percent(70) => Want::Detach { id },
            22 => Want::List,
            23 => Want::Write { id },
            24 if rng.percent(30) => Want::Collect,
            24 => Want::Status,
            25 => Want::ReadEvents { wait_ms: rng.pick(&[0, 3_000]) },
            // Following once is enough: a second follow on one connection would begin anew.
            26..28 if follows => Want::List,
            26..28 => {
                self.clients[n].events_seen = Some(0);
                Want::FollowEvents
            }
            28 => Want::Down { stop_tasks: rng.percent(50) },
            _ => Want::Start { spec: rng.index(self.specs.len()) },
        }
    }

    fn make_spec(&mut self, n: usize) -> usize {
        let place = self.specs.len();
        let other = self.rng.below(place.max(1) as u64);
        let rng = &mut self.clients[n].rng;
        let mut params = start_params("simulated");
        params.detached = rng.percent(50);
        params.timeout_ms = rng.pick(&[None, None, Some(1), Some(700), Some(4_000)]);
        params.on_timeout = Some(rng.pick(&[OnTimeout::Stop, OnTimeout::Detach]));
        params.on_disconnect = rng.pick(&[OnDisconnect::Detach, OnDisconnect::Detach, OnDisconnect::Stop]);
        params.ttl_ms = rng.pick(&[None, None, Some(900), Some(5_000)]);
        params.silence_ms = rng.pick(&[None, None, None, Some(100), Some(2_500)]);
        params.grace_ms = rng.pick(&[None, None, Some(0), Some(250)]);
        let stall = StallParams { after_ms: 400, policy: OnStall::Tell };
        params.stall = rng.pick(&[None, None, None, Some(stall)]);
        params.retries = rng.pick(&[0, 0, 1, 4]);
        params.retry_delay_ms = (params.retries > 0).then(|| rng.pick(&[0, 30, 800, 3_000]));
        params.answer = rng.pick(&[AnswerWhen::Started, AnswerWhen::Started, AnswerWhen::Ended]);
        params.follow = rng.percent(20).then(StartFollowParams::default);
        params.name = Some(format!("spec-{place}"));
        params.notify = rng.percent(15).then(|| "tell somebody".to_owned());
        // Some tokens are used for two different starts, which is a conflict.
        let owner = if rng.percent(5) { other } else { place as u64 };
        params.token = rng.percent(80).then(|| format!("token-{owner}"));
        self.specs.push(Spec { params, id: None });
        place
    }

    // --- asking ---

    pub(crate) fn ask(&mut self, n: usize, want: Want) {
        let Some(connection) = self.clients[n].connection else { return };
        let allowance_ms = worker_jobs(&want) * self.plan.worker_ms();
        let Some((method, params, within_ms)) = self.spelled(n, &want) else {
            return self.clients[n].wanted.push_back(want);
        };
        let ids = match &want {
            Want::Stop { id, .. } => vec![id.clone()],
            Want::StopMany { ids } => ids.clone(),
            Want::StopSpec { spec } => self.specs[*spec].id.iter().cloned().collect(),
            _ => Vec::new(),
        };
        for id in ids {
            if let Some(truth) = self.tasks.get_mut(&id) {
                truth.stop_asked = true;
            }
        }
        self.down_asked |= matches!(want, Want::Down { stop_tasks: true });
        let client = &mut self.clients[n];
        client.last_request += 1;
        let line = json!({ "jsonrpc": "2.0", "id": client.last_request, "method": method, "params": params });
        client.lines.push_back(line.to_string().into_bytes());
        let within_ms = within_ms.map(|within_ms| within_ms + allowance_ms);
        client.open.insert(client.last_request, Ask { want, sent_ms: self.mono_ms, within_ms });
        let arrives = self.mono_ms + client.rng.pick(&[0, 0, 1, 4]);
        client.last_line_ms = client.last_line_ms.max(arrives);
        let (at, daemon) = (client.last_line_ms, self.generation);
        self.note("client", format_args!("{n} ({}) asks: {line}", connection.0));
        self.agenda.add(at, &mut self.rng, Job::ClientLine { client: n, daemon });
    }

    pub(crate) fn client_line(&mut self, n: usize, daemon: u64) -> Checked {
        let Some(client) = self.clients[n].connection else { return Ok(()) };
        if self.generation != daemon {
            return Ok(());
        }
        let Some(line) = self.clients[n].lines.pop_front() else { return Ok(()) };
        self.tell_daemon(Input::ClientLine { client, line })
    }

    /// The method, its parameters, and how long its answer may take; none if it cannot be asked yet.
    fn spelled(&self, n: usize, want: &Want) -> Option<(&'static str, Value, Option<u64>)> {
        let now = Some(0);
        Some(match want {
            Want::Hello => (
                "daemon/hello",
                json!({ "client": { "name": "sim", "version": "1" }, "protocol": CLIENT_PROTOCOL }),
                now,
            ),
            Want::Start { spec } => {
                let params = &self.specs[*spec].params;
                let within = (params.answer == AnswerWhen::Started).then_some(30_000);
                ("task/start", serde_json::to_value(params).unwrap_or_default(), within)
            }
            Want::Stop { id, level, grace_ms, wait } => {
                let params = json!({ "id": id, "level": level, "grace_ms": grace_ms, "wait": wait, "actor": n.to_string() });
                // Three levels with their grace, the kill, and the daemon's margin.
                let within = if *wait { 3 * grace_ms.unwrap_or(5_000) + 15_000 } else { 0 };
                ("task/stop", params, Some(within))
            }
            Want::StopMany { ids } => ("task/stop_many", json!({ "ids": ids }), Some(30_000)),
            Want::StopSpec { spec } => {
                ("task/stop", json!({ "id": self.specs[*spec].id.as_ref()? }), Some(30_000))
            }
            Want::WaitSpec { spec } => {
                ("task/wait", json!({ "id": self.specs[*spec].id.as_ref()? }), Some(600_000))
            }
            Want::Wait { id, timeout_ms } => {
                ("task/wait", json!({ "id": id, "timeout_ms": timeout_ms }), Some(*timeout_ms))
            }
            Want::Get { id } => ("task/get", json!({ "id": id }), Some(2_000)),
            Want::Remove { id } => ("task/remove", json!({ "id": id }), now),
            Want::List => ("task/list", json!({ "all": !self.is_closing }), now),
            Want::Status => ("daemon/status", json!({}), now),
            Want::ReadEvents { wait_ms } => {
                let after = self.observer.as_ref().map_or(0, super::Observer::seen);
                ("event/read", json!({ "after": after, "wait_ms": wait_ms }), Some(*wait_ms))
            }
            Want::FollowEvents => {
                ("event/follow", json!({ "after": self.clients[n].events_seen.unwrap_or(0) }), now)
            }
            Want::Detach { id } => ("task/detach", json!({ "id": id }), Some(2_000)),
            Want::Write { id } => ("task/write", json!({ "id": id, "data": "x" }), Some(2_000)),
            Want::Collect => ("daemon/gc", json!({ "all": true }), now),
            Want::Down { stop_tasks } => ("daemon/stop", json!({ "stop_tasks": stop_tasks }), Some(40_000)),
        })
    }
}

/// How many jobs of workers an answer may have to wait for, one after the other. What needs none is answered at once, however
/// slow a worker is.
const fn worker_jobs(want: &Want) -> u64 {
    match want {
        Want::Hello | Want::Status | Want::FollowEvents => 0,
        Want::Start { .. }
        | Want::Stop { .. }
        | Want::StopSpec { .. }
        | Want::Write { .. }
        | Want::ReadEvents { .. } => 1,
        Want::WaitSpec { .. }
        | Want::Wait { .. }
        | Want::Get { .. }
        | Want::Remove { .. }
        | Want::List
        | Want::Detach { .. } => 2,
        // What is removed goes slice by slice, and a daemon that leaves finishes what it does.
        Want::StopMany { .. } | Want::Collect | Want::Down { .. } => 8,
    }
}

pub(crate) fn start_params(program: &str) -> TaskStartParams {
    TaskStartParams::new(ShellCommand::argv([program]), "/")
}
