//! Tests of the core's steps: the rows that a step visits are counted with 10 tasks and with nearly 10,000, and long work is
//! done in pieces. Shims and the workers that read output are played here.

mod collection;
mod events;
mod output;

use std::collections::HashMap;

use belay_protocol::daemon::{ClientInfo, DaemonGcParams, DaemonHelloParams, DaemonStatusParams, Surface};
use belay_protocol::lane::LaneParams;
use belay_protocol::life::{ExitStatus, OutputInfo, TaskEnd};
use belay_protocol::methods::{
    DaemonGc, DaemonHello as HelloMethod, DaemonStatus, Method, SessionClose, SessionOpen, SessionRenew,
    SessionWait, TaskList, TaskRemove, TaskStart, TaskStop, TaskWait,
};
use belay_protocol::rpc::{Incoming, Outgoing, RequestId, Version};
use belay_protocol::session::{SessionCloseParams, SessionOpenParams, SessionRenewParams, SessionWaitParams};
use belay_protocol::shim::{
    EndRecord, FromShim, Hello, LifeEvent, LifeItem, ProcessId, SHIM_PROTOCOL, ToShim,
};
use belay_protocol::task::{
    TaskListParams, TaskRemoveParams, TaskStartParams, TaskStatus, TaskStopParams, TaskWaitParams,
};

use super::table::visited;
use crate::config::bounds;
use crate::effect::{Effect, Sample};
use crate::input::{ClientId, Input, ShimId};
use crate::tests::{NOW, TestDaemon, TestHost};

const FEW: usize = 10;
const MANY: usize = 9_900;

/// A daemon with its shims, and the replies that its clients got.
struct Fixture {
    daemon: TestDaemon,
    dir: tempfile::TempDir,
    /// The task of each shim that holds one, and how many life events it has reported.
    holds: HashMap<ShimId, (String, u64)>,
    /// The lines that were sent to clients.
    sent: Vec<Vec<u8>>,
    last_pid: i32,
    last_request: i64,
    /// Jobs of workers that hang.
    hanging: Vec<Effect>,
    /// How much a task has written by its end.
    output_bytes: u64,
}

const CLIENT: ClientId = ClientId(1);

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let (daemon, effects) = TestDaemon::start(dir.path(), TestHost::new(Vec::new()));
        let mut fixture = Self {
            daemon,
            dir,
            holds: HashMap::new(),
            sent: Vec::new(),
            last_pid: 10,
            last_request: 0,
            hanging: Vec::new(),
            output_bytes: 0,
        };
        fixture.execute(effects);
        fixture.connect(CLIENT);
        fixture
    }

    fn connect(&mut self, client: ClientId) {
        self.tell(Input::ClientConnected { client, uid: 0, ancestors: vec![7], in_task: false });
        let hello = DaemonHelloParams {
            client: ClientInfo::new("test", "1"),
            protocol: 1,
            surface: Surface::Api,
            token: None,
        };
        self.call::<HelloMethod>(client, &hello);
    }

    fn tell(&mut self, input: Input) {
        let effects = self.daemon.handle(input);
        self.execute(effects);
    }

    /// Every timer that is due a moment later.
    fn pass_time(&mut self) {
        self.daemon.now.mono_ms += 50;
        while self.daemon.core.next_deadline().is_some_and(|at| at <= self.daemon.now.mono_ms) {
            self.tell(Input::Tick);
        }
    }

    /// Does what the core wants done, as shims and workers would.
    fn execute(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Send { lines, .. } => {
                    let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
                    self.sent.extend(lines.map(<[u8]>::to_vec));
                }
                Effect::SpawnShim { shim, .. } => {
                    self.last_pid += 1;
                    let process = ProcessId { pid: self.last_pid, start_ticks: 1 };
                    self.tell(Input::ShimSpawned { shim, process });
                    let hello = FromShim::Hello(hello(process));
                    self.tell(Input::ShimMessages { shim, messages: vec![hello, FromShim::Ready] });
                }
                Effect::ToShim { shim, message } => self.shim_receives(shim, message),
                job @ (Effect::ReadJournal { .. }
                | Effect::FlushJournal(_)
                | Effect::RemoveDirs { .. }
                | Effect::ReadOutput { .. }
                | Effect::ExpireEvents { .. }) => self.hanging.push(job),
                job @ Effect::Sample { .. } if self.daemon.workers_hang => self.hanging.push(job),
                Effect::Sample { job, .. } => {
                    self.tell(Input::Sampled { job, sample: Box::new(Sample::default()) });
                }
                _ => {}
            }
        }
    }

    fn shim_receives(&mut self, shim: ShimId, message: ToShim) {
        match message {
            ToShim::Start(start) => {
                self.holds.insert(shim, (start.task.clone(), 0));
                self.last_pid += 1;
                let process = ProcessId { pid: self.last_pid, start_ticks: 1 };
                self.report(shim, LifeEvent::Spawned { process, mono_ms: 1 }, None);
            }
            ToShim::Stop { order } => {
                self.report(shim, LifeEvent::Stop { order: order.clone() }, None);
                let end = TaskEnd::Cancelled { order, exit: None };
                self.report(shim, LifeEvent::TreeEmpty, Some(end));
            }
            ToShim::Ack { .. } => {
                self.holds.remove(&shim);
                self.tell(Input::ShimMessages { shim, messages: vec![FromShim::Ready] });
            }
            _ => {}
        }
    }

    fn report(&mut self, shim: ShimId, event: LifeEvent, end: Option<TaskEnd>) {
        let Some((task, number)) = self.holds.get_mut(&shim) else { return };
        *number += 1;
        let output = OutputInfo { bytes: self.output_bytes, on_disk: true, ..OutputInfo::default() };
        let record = end.map(|end| {
            Box::new(EndRecord { end, ended_at_ms: NOW.wall_ms, receipt: None, output, capture: None })
        });
        let item = LifeItem { task: task.clone(), number: *number, at_ms: NOW.wall_ms, event, end: record };
        self.tell(Input::ShimMessages { shim, messages: vec![FromShim::Life(item)] });
    }

    /// Sends a request and returns its number.
    fn send<M: Method>(&mut self, client: ClientId, params: &M::Params) -> i64 {
        self.last_request += 1;
        let id = self.last_request;
        let request = Outgoing { jsonrpc: Version::V2, id, method: M::NAME, params };
        self.tell(Input::ClientLine { client, line: serde_json::to_vec(&request).unwrap() });
        id
    }

    /// The reply to a request, if there is one.
    fn reply<M: Method>(&self, id: i64) -> Option<M::Result> {
        let replies =
            self.sent.iter().rev().map(|line| serde_json::from_slice::<Incoming<'_>>(line).unwrap());
        let reply = replies.into_iter().find(|reply| reply.id == Some(RequestId::Number(id)))?;
        assert_eq!(reply.error, None, "{}", M::NAME);
        Some(serde_json::from_str(reply.result.unwrap().get()).unwrap())
    }

    fn call<M: Method>(&mut self, client: ClientId, params: &M::Params) -> M::Result {
        let id = self.send::<M>(client, params);
        // Acknowledgements that were held back, and what else waits for a timer.
        self.pass_time();
        self.tell(Input::ClientWritten { client, bytes: usize::MAX });
        self.reply::<M>(id).unwrap_or_else(|| panic!("{} was not answered", M::NAME))
    }

    fn start(&mut self, change: impl FnOnce(&mut TaskStartParams)) -> String {
        let command = r#"{"spec": {"kind": "shell", "command": {"kind": "argv", "argv": ["x"]}}, "cwd": "/", "detached": true}"#;
        let mut params: TaskStartParams = serde_json::from_str(command).unwrap();
        change(&mut params);
        self.call::<TaskStart>(CLIENT, &params).id
    }

    fn open_session(&mut self) -> String {
        let params = SessionOpenParams { lease_ms: Some(100_000_000), ..SessionOpenParams::default() };
        self.call::<SessionOpen>(CLIENT, &params).session.id
    }

    fn shim_of(&self, task: &str) -> ShimId {
        *self.holds.iter().find(|(_, (held, _))| held == task).expect("a shim holds it").0
    }

    fn exit(&mut self, task: &str) {
        let shim = self.shim_of(task);
        let exit = ExitStatus::Code(0);
        self.report(shim, LifeEvent::LeaderExited { exit }, None);
        self.report(shim, LifeEvent::TreeEmpty, Some(TaskEnd::Exited { exit }));
        self.pass_time();
    }

    fn count(&mut self, what: impl FnOnce(&mut Self)) -> u64 {
        let before = visited();
        what(self);
        visited() - before
    }
}

fn hello(process: ProcessId) -> Hello {
    Hello {
        protocol: SHIM_PROTOCOL,
        version: "test".to_owned(),
        shim: "one".to_owned(),
        process,
        cgroup: None,
        task: None,
        queued: false,
        spec: None,
        memory: None,
    }
}

fn lane(name: &str) -> LaneParams {
    LaneParams { name: name.to_owned(), mode: belay_protocol::lane::LaneMode::Reject, generation: None }
}

/// A daemon with so many live tasks, each in a session and a lane of its own.
fn loaded(live: usize) -> Fixture {
    let mut fixture = Fixture::new();
    for number in 0..live {
        let session = fixture.open_session();
        let name = format!("task-{number}");
        fixture.start(|params| {
            params.lane = Some(lane(&name));
            params.session = Some(session);
            params.token = Some(name.clone());
            params.name = Some(name);
        });
    }
    fixture
}

/// How many rows each kind of work visits while so many tasks are live.
fn work(live: usize) -> Vec<(&'static str, u64)> {
    let mut fixture = loaded(live);
    let once = |fixture: &mut Fixture| fixture.start(|params| params.token = Some("once".to_owned()));
    let mut counts = Vec::new();
    let mut started = String::new();
    counts.push(("start", fixture.count(|fixture| started = once(fixture))));
    counts.push(("same token", fixture.count(|fixture| drop(once(fixture)))));
    counts.push(("end", fixture.count(|fixture| fixture.exit(&started))));
    let stopped = fixture.start(|params| {
        params.lane = Some(lane("one"));
        params.name = Some("alone".to_owned());
    });
    counts.push((
        "wait by name",
        fixture.count(|fixture| {
            let params = TaskWaitParams { timeout_ms: Some(1), ..TaskWaitParams::for_end("alone") };
            fixture.call::<TaskWait>(CLIENT, &params);
        }),
    ));
    counts.push((
        "stop",
        fixture.count(|fixture| {
            let params: TaskStopParams = serde_json::from_str(&format!(r#"{{"id": "{stopped}"}}"#)).unwrap();
            fixture.call::<TaskStop>(CLIENT, &params);
        }),
    ));
    counts.push((
        "list",
        fixture.count(|fixture| {
            let params = TaskListParams { limit: Some(5), ..TaskListParams::default() };
            fixture.call::<TaskList>(CLIENT, &params);
        }),
    ));
    counts.push((
        "client",
        fixture.count(|fixture| {
            fixture.connect(ClientId(2));
            fixture.call::<DaemonStatus>(ClientId(2), &DaemonStatusParams::default());
            fixture.tell(Input::ClientGone { client: ClientId(2) });
        }),
    ));
    counts.push((
        "session",
        fixture.count(|fixture| {
            let id = fixture.open_session();
            let task = fixture.start(|params| params.session = Some(id.clone()));
            fixture.call::<SessionRenew>(CLIENT, &SessionRenewParams { id: id.clone() });
            fixture.exit(&task);
            fixture.call::<SessionWait>(CLIENT, &SessionWaitParams { id: id.clone(), timeout_ms: None });
            let close = SessionCloseParams { id, on_end: None, reason: None, actor: None };
            fixture.call::<SessionClose>(CLIENT, &close);
        }),
    ));
    counts.push(("idle", fixture.count(Fixture::pass_time)));
    counts
}

// proves X3
#[test]
fn work_of_a_step_is_independent_of_live_tasks() {
    let (few, many) = (work(FEW), work(MANY));
    assert_eq!(few, many);
    assert!(few.iter().all(|(_, rows)| *rows < 200), "{few:?}");
}

// proves S2
#[test]
fn starts_with_token_of_removed_task_name_one_task() {
    let mut fixture = Fixture::new();
    let removed = fixture.start(|params| params.token = Some("once".to_owned()));
    fixture.exit(&removed);
    // No longer among the last ended ones, which are in memory.
    for _ in 0..bounds::RECENT_TASKS {
        let task = fixture.start(|_| ());
        fixture.exit(&task);
    }
    let others = [ClientId(2), ClientId(3)];
    for client in others {
        fixture.connect(client);
    }
    fixture.daemon.workers_hang = true;
    let params: TaskRemoveParams = serde_json::from_str(&format!(r#"{{"id": "{removed}"}}"#)).unwrap();
    fixture.send::<TaskRemove>(CLIENT, &params);
    let command = r#"{"spec": {"kind": "shell", "command": {"kind": "argv", "argv": ["x"]}}, "cwd": "/", "detached": true, "token": "once"}"#;
    let params: TaskStartParams = serde_json::from_str(command).unwrap();
    let starts = others.map(|client| fixture.send::<TaskStart>(client, &params));
    fixture.daemon.workers_hang = false;
    let hanging = std::mem::take(&mut fixture.hanging);
    let effects = fixture.daemon.work(hanging);
    fixture.execute(effects);
    fixture.pass_time();
    let [first, second] = starts.map(|id| fixture.reply::<TaskStart>(id).expect("it is started").id);
    assert_eq!(first, second);
    assert_ne!(first, removed);
}

/// How many rows are visited when a client leaves that has so many waits for one task.
fn leave_with_waits(waits: usize) -> u64 {
    let mut fixture = Fixture::new();
    let task = fixture.start(|_| ());
    let client = ClientId(2);
    fixture.connect(client);
    let params: TaskWaitParams =
        serde_json::from_str(&format!(r#"{{"id": "{task}", "silence_ms": 60000}}"#)).unwrap();
    for _ in 0..waits {
        fixture.send::<TaskWait>(client, &params);
    }
    fixture.count(|fixture| fixture.tell(Input::ClientGone { client }))
}

// proves X3
#[test]
fn work_of_leaving_client_is_linear_in_its_waits() {
    let (few, many) = (leave_with_waits(10), leave_with_waits(1_000));
    assert!(many <= 100 * few, "{few} rows for 10 waits, {many} for 1,000");
}

// proves X3
#[test]
fn hanging_workers_delay_no_other_call() {
    let mut fixture = loaded(FEW);
    let ended = fixture.start(|_| ());
    fixture.exit(&ended);
    fixture.daemon.workers_hang = true;
    let other = ClientId(2);
    fixture.connect(other);
    // Each of these waits for a worker.
    let all = TaskListParams { all: true, ..TaskListParams::default() };
    let list = fixture.send::<TaskList>(CLIENT, &all);
    let gc = fixture.send::<DaemonGc>(CLIENT, &DaemonGcParams { all: true, dry_run: false });
    fixture.pass_time();
    // None of these does.
    fixture.call::<DaemonStatus>(other, &DaemonStatusParams::default());
    let task = fixture.start(|_| ());
    let params: TaskStopParams = serde_json::from_str(&format!(r#"{{"id": "{task}"}}"#)).unwrap();
    fixture.call::<TaskStop>(other, &params);
    fixture.call::<TaskWait>(other, &TaskWaitParams::for_end(task.as_str()));
    assert!(fixture.reply::<TaskList>(list).is_none() && fixture.reply::<DaemonGc>(gc).is_none());
    // When the workers go on, everything is answered, with what happened meanwhile.
    fixture.daemon.workers_hang = false;
    let hanging = std::mem::take(&mut fixture.hanging);
    let effects = fixture.daemon.work(hanging);
    fixture.execute(effects);
    let listed = fixture.reply::<TaskList>(list).expect("the list is answered").tasks;
    assert!(listed.iter().any(|info| info.id == task && info.status == TaskStatus::Cancelled), "{listed:?}");
    assert_eq!(listed.len(), FEW + 2);
}
