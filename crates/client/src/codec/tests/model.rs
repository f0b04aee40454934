//! A model of the daemon and of one client with its codec between two byte streams. The daemon's tasks and events outlive its
//! connections.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use belay_protocol::Timestamp;
use belay_protocol::event::EventFollowParams;
use belay_protocol::methods::{EventFollow, Notification, OutputFollow, TaskGet, TaskSignal, TaskStart};
use belay_protocol::output::{OutputChunk, OutputFollowParams, OutputFrom, StreamName};
use belay_protocol::task::{TaskGetParams, TaskSignalParams};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use serde_json::{Value, json};

use super::{start_params, submit};
use crate::codec::Codec;
use crate::error::ClientError;
use crate::message::{Message, request_of};
use crate::request::Ids;

/// What every task writes.
const OUTPUT: &[u8] = b"the quick brown fox jumps over the lazy dog";
/// The number of the last event.
const EVENTS: u64 = 12;
/// Connections that may be lost without progress.
const MAX_FRUITLESS: u32 = 5;

/// One thing that happens.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Get,
    Signal,
    Start,
    FollowOutput,
    FollowEvents,
    /// So many bytes of requests are written.
    Write(usize),
    /// The daemon handles one of its pending requests.
    Handle(usize),
    /// The daemon sends so much of one of its subscriptions.
    Notify(usize, usize),
    /// So many bytes of the daemon arrive.
    Read(usize),
    Pause(usize),
    Unpause(usize),
    Disconnect,
}

pub(crate) fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => Just(Step::Get),
        1 => Just(Step::Signal),
        1 => Just(Step::Start),
        1 => Just(Step::FollowOutput),
        1 => Just(Step::FollowEvents),
        6 => (1_usize..400).prop_map(Step::Write),
        6 => any::<usize>().prop_map(Step::Handle),
        6 => (any::<usize>(), 1_usize..20).prop_map(|(which, length)| Step::Notify(which, length)),
        6 => (1_usize..600).prop_map(Step::Read),
        1 => any::<usize>().prop_map(Step::Pause),
        1 => any::<usize>().prop_map(Step::Unpause),
        2 => Just(Step::Disconnect),
    ]
}

/// A subscription of the daemon's present connection.
struct Follow {
    wire: i64,
    number: u64,
    source: Source,
}

enum Source {
    Output {
        task: String,
        next: usize,
        /// The start that is answered behind the last byte.
        start: Option<i64>,
    },
    Events {
        after: u64,
    },
}

/// What a client call has asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Get,
    Signal,
    Start,
    FollowOutput,
    FollowEvents,
}

pub(crate) struct World {
    codec: Codec,
    now: Instant,
    asked: BTreeMap<i64, Asked>,
    paused: BTreeSet<i64>,
    // --- what the client has received ---
    replies: BTreeMap<i64, Vec<Result<(), ClientError>>>,
    output: BTreeMap<i64, Vec<u8>>,
    events: BTreeMap<i64, Vec<u64>>,
    fruitless: u32,
    // --- on the way ---
    to_daemon: Vec<u8>,
    to_client: Vec<u8>,
    // --- the daemon ---
    requests: VecDeque<Value>,
    follows: Vec<Follow>,
    numbers: u64,
    tasks: BTreeMap<String, String>,
    signals: BTreeMap<String, u32>,
}

pub(crate) fn chunk(request: i64, follow: u64, offset: usize, data: &[u8]) -> Value {
    let at = Timestamp(1_769_860_800_000);
    let chunk = OutputChunk::of_bytes(StreamName::Stdout, offset as u64, at, data.to_vec());
    let params = json!({
        "request": request, "id": "sh-1", "follow": follow, "chunks": [chunk], "gaps": [], "next": offset + data.len()
    });
    json!({"jsonrpc": "2.0", "method": "output/chunk", "params": params})
}

pub(crate) fn event(request: i64, follow: u64, seq: u64) -> Value {
    let event = json!({"seq": seq, "at": "2026-01-01T00:00:00.000Z", "type": "daemon.stopping"});
    let params = json!({"request": request, "follow": follow, "event": event});
    json!({"jsonrpc": "2.0", "method": "event/item", "params": params})
}

impl World {
    pub(crate) fn new() -> Self {
        Self {
            codec: Codec::new(Ids::default(), true),
            now: Instant::now(),
            asked: BTreeMap::new(),
            paused: BTreeSet::new(),
            replies: BTreeMap::new(),
            output: BTreeMap::new(),
            events: BTreeMap::new(),
            fruitless: 0,
            to_daemon: Vec::new(),
            to_client: Vec::new(),
            requests: VecDeque::new(),
            follows: Vec::new(),
            numbers: 0,
            tasks: BTreeMap::new(),
            signals: BTreeMap::new(),
        }
    }

    pub(crate) fn take(&mut self, step: &Step) {
        match step {
            Step::Get | Step::Signal | Step::Start | Step::FollowOutput | Step::FollowEvents => {
                self.ask(step);
            }
            Step::Write(bytes) => self.write(*bytes),
            Step::Handle(which) => {
                if !self.requests.is_empty()
                    && let Some(request) = self.requests.remove(which % self.requests.len())
                {
                    self.handle(&request);
                }
            }
            Step::Notify(which, length) => {
                if !self.follows.is_empty() {
                    self.notify(which % self.follows.len(), *length);
                }
            }
            Step::Read(bytes) => self.read(*bytes),
            Step::Pause(which) => {
                if let Some(id) = self.subscription(*which) {
                    self.codec.pause(id);
                    self.paused.insert(id);
                }
            }
            Step::Unpause(which) => {
                if let Some(id) = self.paused.iter().copied().nth(which % self.paused.len().max(1)) {
                    self.paused.remove(&id);
                    self.codec.unpause(id, true);
                }
            }
            Step::Disconnect => self.disconnect(),
        }
    }

    /// One that has delivered something already: only such a one is paused.
    fn subscription(&self, which: usize) -> Option<i64> {
        let begun: Vec<i64> = self.output.keys().chain(self.events.keys()).copied().collect();
        begun.get(which % begun.len().max(1)).copied()
    }

    fn ask(&mut self, step: &Step) {
        let (codec, now) = (&mut self.codec, self.now);
        let task = || "sh-1".to_owned();
        let (id, asked) = match step {
            Step::Signal => {
                let params = TaskSignalParams { id: task(), signal: format!("{}", self.asked.len()) };
                (submit::<TaskSignal>(codec, &params, now), Asked::Signal)
            }
            Step::Start => (submit::<TaskStart>(codec, &start_params(), now), Asked::Start),
            Step::FollowOutput => {
                let params =
                    OutputFollowParams { id: task(), from: OutputFrom::default(), stream: None, text: false };
                (submit::<OutputFollow>(codec, &params, now), Asked::FollowOutput)
            }
            Step::FollowEvents => {
                (submit::<EventFollow>(codec, &EventFollowParams::default(), now), Asked::FollowEvents)
            }
            _ => (submit::<TaskGet>(codec, &TaskGetParams { id: task() }, now), Asked::Get),
        };
        self.asked.insert(id, asked);
    }

    // --- bytes ---

    fn write(&mut self, mut bytes: usize) {
        while let Some(frame) = self.codec.frame() {
            let length = frame.bytes.len().min(bytes);
            if length == 0 {
                break;
            }
            self.to_daemon.extend_from_slice(&frame.bytes[..length]);
            self.codec.wrote(length);
            bytes -= length;
        }
        while let Some(end) = self.to_daemon.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.to_daemon.drain(..=end).collect();
            self.requests.push_back(serde_json::from_slice(&line).unwrap());
        }
    }

    fn read(&mut self, bytes: usize) {
        let length = bytes.min(self.to_client.len());
        let arrived: Vec<u8> = self.to_client.drain(..length).collect();
        self.codec.room().unwrap().extend_from_slice(&arrived);
        while let Some(message) = self.codec.next().unwrap() {
            // A call that failed with its connection is no progress.
            if !matches!(&message, Message::Response(response) if response.result.is_err()) {
                self.fruitless = 0;
            }
            self.receive(message);
        }
    }

    fn receive(&mut self, message: Message) {
        match message {
            Message::Response(response) => {
                let result = response.result.map(|_| ());
                self.replies.entry(response.id).or_default().push(result);
            }
            Message::Notification(notification) => {
                let id = request_of(&notification).unwrap();
                match notification {
                    Notification::OutputChunk(chunk) => {
                        let heard = self.output.entry(id).or_default();
                        chunk.chunks.iter().for_each(|chunk| heard.extend(&chunk.data.0));
                    }
                    Notification::EventItem(item) => {
                        self.events.entry(id).or_default().push(item.event.seq);
                    }
                    _ => {}
                }
            }
            other => panic!("{other:?}"),
        }
    }

    fn disconnect(&mut self) {
        if self.fruitless >= MAX_FRUITLESS {
            return;
        }
        self.fruitless += 1;
        self.to_daemon.clear();
        self.to_client.clear();
        self.requests.clear();
        self.follows.clear();
        self.codec.disconnected(ClientError::Closed).unwrap();
        self.codec.connected(self.now).unwrap();
    }

    // --- the daemon ---

    fn say(&mut self, message: &Value) {
        self.to_client.extend_from_slice(message.to_string().as_bytes());
        self.to_client.push(b'\n');
    }

    fn reply(&mut self, id: i64, result: &Value) {
        // As the daemon writes it.
        self.to_client.extend_from_slice(
            format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{result}}}\n").as_bytes(),
        );
    }

    fn follow(&mut self, wire: i64, source: Source) -> u64 {
        self.numbers += 1;
        self.follows.push(Follow { wire, number: self.numbers, source });
        self.numbers
    }

    fn handle(&mut self, request: &Value) {
        let id = request["id"].as_i64().unwrap();
        let params = &request["params"];
        match request["method"].as_str().unwrap() {
            "task/signal" => {
                *self.signals.entry(params["signal"].as_str().unwrap().to_owned()).or_default() += 1;
                self.reply(id, &json!({"id": "sh-1", "processes": 1}));
            }
            "task/start" => {
                let token = params["token"].as_str().unwrap().to_owned();
                let name = format!("sh-{}", self.tasks.len() + 10);
                let task = self.tasks.entry(token).or_insert(name).clone();
                match params["follow"]["from"].as_u64() {
                    Some(from) => {
                        let next = usize::try_from(from).unwrap();
                        self.follow(id, Source::Output { task, next, start: Some(id) });
                    }
                    None => self.reply(id, &json!({"id": task})),
                }
            }
            "output/follow" => {
                let from = params["from"]["offset"].as_u64().unwrap_or(0);
                let task = params["id"].as_str().unwrap().to_owned();
                let next = usize::try_from(from).unwrap();
                let number = self.follow(id, Source::Output { task: task.clone(), next, start: None });
                self.reply(id, &json!({"id": task, "follow": number, "from": from}));
            }
            "event/follow" => {
                let after = params["after"].as_u64().unwrap();
                let number = self.follow(id, Source::Events { after });
                self.reply(id, &json!({"follow": number, "after": after, "first": 1, "last": EVENTS}));
            }
            "output/unfollow" | "event/unfollow" => {
                let number = params["follow"].as_u64().unwrap();
                if let Some(at) = self.follows.iter().position(|follow| follow.number == number) {
                    // A start is then answered without the rest of its output.
                    if let Source::Output { start: Some(start), task, .. } = self.follows.remove(at).source {
                        self.reply(start, &json!({"id": task}));
                    }
                }
                self.reply(id, &json!({"ended": 1}));
            }
            _ => self.reply(id, &json!({"id": "sh-1"})),
        }
    }

    fn notify(&mut self, at: usize, length: usize) {
        let Follow { wire, number, source } = &mut self.follows[at];
        let (wire, number) = (*wire, *number);
        match source {
            Source::Events { after } if *after < EVENTS => {
                *after += 1;
                let message = event(wire, number, *after);
                self.say(&message);
            }
            Source::Events { .. } => {}
            Source::Output { task, next, start } => {
                let (task, start, from) = (task.clone(), *start, *next);
                let to = (from + length).min(OUTPUT.len());
                if from < to {
                    *next = to;
                    let mut message = chunk(wire, number, from, &OUTPUT[from..to]);
                    message["params"]["id"] = task.into();
                    return self.say(&message);
                }
                self.follows.remove(at);
                let params = json!({"request": wire, "id": task, "follow": number, "bytes": OUTPUT.len()});
                self.say(&json!({"jsonrpc": "2.0", "method": "output/end", "params": params}));
                if let Some(start) = start {
                    self.reply(start, &json!({"id": task}));
                }
            }
        }
    }

    // --- the end ---

    /// Goes on without losing a connection until nothing changes any more.
    pub(crate) fn finish(&mut self) {
        for id in std::mem::take(&mut self.paused) {
            self.codec.unpause(id, true);
        }
        for _ in 0..400 {
            self.write(usize::MAX);
            while let Some(request) = self.requests.pop_front() {
                self.handle(&request);
            }
            for at in (0..self.follows.len()).rev() {
                self.notify(at, 7);
            }
            self.read(usize::MAX);
        }
    }

    pub(crate) fn check(&self) -> Result<(), TestCaseError> {
        for (id, asked) in &self.asked {
            let replies = self.replies.get(id).map_or(&[][..], Vec::as_slice);
            prop_assert_eq!(replies.len(), 1, "{:?} {} has {:?}", asked, id, replies);
            match (asked, &replies[0]) {
                (_, Ok(())) | (Asked::Signal, Err(ClientError::OutcomeUnknown { .. })) => {}
                (asked, other) => prop_assert!(false, "{asked:?}: {other:?}"),
            }
            match asked {
                Asked::Start | Asked::FollowOutput => {
                    let heard = self.output.get(id).map_or(&[][..], Vec::as_slice);
                    prop_assert_eq!(heard, OUTPUT, "{:?} {}", asked, id);
                }
                Asked::FollowEvents => {
                    prop_assert_eq!(self.events.get(id), Some(&(1..=EVENTS).collect()), "{}", id);
                }
                Asked::Get | Asked::Signal => {}
            }
        }
        prop_assert!(self.signals.values().all(|times| *times == 1), "{:?}", self.signals);
        let starts = self.asked.values().filter(|asked| **asked == Asked::Start).count();
        prop_assert_eq!(self.tasks.len(), starts);
        Ok(())
    }
}
