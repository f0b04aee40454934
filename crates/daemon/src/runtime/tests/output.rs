//! Output that is read beside the core: what happens to a task while its output is being read loses no byte, and no step sends
//! more than one piece.

use belay_protocol::methods::{Notification, OutputFollow, TaskStart};
use belay_protocol::output::OutputFollowParams;
use belay_protocol::rpc::Incoming;
use belay_protocol::shim::{FromShim, LifeEvent};
use belay_protocol::task::TaskStartParams;
use belay_record::{LogWriter, Stream};

use super::{CLIENT, Fixture};
use crate::config::bounds;
use crate::effect::{Effect, OutputPage, OutputRead};
use crate::input::{Input, JobId, ShimId};

/// What a follower was sent.
#[derive(Debug, Default, PartialEq, Eq)]
struct Received {
    data: Vec<u8>,
    gaps: Vec<[u64; 2]>,
    /// How many bytes the end of the subscription names.
    end: Option<u64>,
}

impl Fixture {
    fn log(&self, task: &str) -> LogWriter {
        LogWriter::new(&self.dir.path().join("tasks").join(task), 1 << 30, 0)
    }

    fn report_output(&mut self, shim: ShimId, bytes: u64) {
        self.tell(Input::ShimMessages { shim, messages: vec![FromShim::Output { bytes }] });
    }

    /// The read of output that is waiting for its worker.
    fn take_read(&mut self) -> (JobId, Box<OutputRead>) {
        let at = self.hanging.iter().position(|effect| matches!(effect, Effect::ReadOutput { .. }));
        match self.hanging.remove(at.expect("output is being read")) {
            Effect::ReadOutput { job, read } => (job, read),
            other => panic!("{other:?}"),
        }
    }

    fn finish_read(&mut self, job: JobId, page: OutputPage) {
        self.tell(Input::OutputRead { job, result: Box::new(Ok(page)) });
    }

    /// A worker reads what is to be read, until nothing is.
    fn finish_reads(&mut self) {
        while self.hanging.iter().any(|effect| matches!(effect, Effect::ReadOutput { .. })) {
            let (job, read) = self.take_read();
            self.finish_read(job, read.run().unwrap());
        }
    }

    fn received(&self) -> Received {
        let mut received = Received::default();
        for line in &self.sent {
            let message: Incoming<'_> = serde_json::from_slice(line).unwrap();
            let (Some(method), Some(params)) = (message.method, message.params) else { continue };
            match Notification::parse(&method, params).unwrap() {
                Some(Notification::OutputChunk(chunk)) => {
                    let chunk = *chunk;
                    received.data.extend(chunk.chunks.into_iter().flat_map(|chunk| chunk.data.0));
                    received.gaps.extend(chunk.gaps);
                }
                Some(Notification::OutputEnd(end)) => received.end = Some(end.bytes),
                _ => {}
            }
        }
        received
    }

    fn follow(&mut self, task: &str) {
        let params: OutputFollowParams = serde_json::from_str(&format!(r#"{{"id": "{task}"}}"#)).unwrap();
        let request = self.send::<OutputFollow>(CLIENT, &params);
        // The position is looked up first.
        let (job, read) = self.take_read();
        self.finish_read(job, read.run().unwrap());
        self.reply::<OutputFollow>(request).expect("the position is known");
    }

    /// Starts a task whose caller follows it, and returns its id and the number of the request.
    fn start_followed(&mut self) -> (String, i64) {
        let command = r#"{"spec": {"kind": "shell", "command": {"kind": "argv", "argv": ["x"]}}, "cwd": "/", "answer": "ended", "follow": {}}"#;
        let params: TaskStartParams = serde_json::from_str(command).unwrap();
        let before: Vec<ShimId> = self.holds.keys().copied().collect();
        let request = self.send::<TaskStart>(CLIENT, &params);
        self.pass_time();
        let (_, (task, _)) = self.holds.iter().find(|(shim, _)| !before.contains(shim)).unwrap();
        (task.clone(), request)
    }
}

// proves O1
#[test]
fn end_during_read_leaves_no_gap() {
    let mut fixture = Fixture::new();
    let task = fixture.start(|_| ());
    fixture.follow(&task);
    // The worker has found nothing, and its result is on the way.
    let (job, read) = fixture.take_read();
    let stale = read.run().unwrap();
    fixture.log(&task).append(Stream::Stdout, 1, b"the last words");
    fixture.output_bytes = 14;
    fixture.exit(&task);
    fixture.finish_read(job, stale);
    assert_eq!(fixture.received(), Received::default());
    fixture.finish_reads();
    let all = Received { data: b"the last words".to_vec(), gaps: Vec::new(), end: Some(14) };
    assert_eq!(fixture.received(), all);
}

// proves O1
#[test]
fn output_reported_during_read_is_read() {
    let mut fixture = Fixture::new();
    let task = fixture.start(|_| ());
    fixture.follow(&task);
    let shim = fixture.shim_of(&task);
    let (job, read) = fixture.take_read();
    let stale = read.run().unwrap();
    fixture.log(&task).append(Stream::Stdout, 1, b"first");
    fixture.report_output(shim, 5);
    fixture.finish_read(job, stale);
    fixture.finish_reads();
    assert_eq!(fixture.received(), Received { data: b"first".to_vec(), ..Received::default() });
}

// proves F3
#[test]
fn detach_is_answered_after_output_before_it() {
    let mut fixture = Fixture::new();
    let (task, request) = fixture.start_followed();
    let shim = fixture.shim_of(&task);
    let mut log = fixture.log(&task);
    log.append(Stream::Stdout, 1, b"before");
    fixture.report_output(shim, 6);
    fixture.report(shim, LifeEvent::Detach { by: "user:x".to_owned() }, None);
    assert!(fixture.reply::<TaskStart>(request).is_none(), "{:?}", fixture.received());
    log.append(Stream::Stdout, 1, b" and after");
    fixture.report_output(shim, 16);
    let (job, read) = fixture.take_read();
    fixture.finish_read(job, read.run().unwrap());
    let info = fixture.reply::<TaskStart>(request).expect("the caller is released");
    assert!(info.detached, "{info:?}");
    // What was written in the background is not sent any more.
    fixture.finish_reads();
    assert_eq!(fixture.received().data, b"before and after");
    log.append(Stream::Stdout, 1, b" and later");
    fixture.report_output(shim, 26);
    fixture.finish_reads();
    assert_eq!(fixture.received().data, b"before and after");
}

// proves X3
#[test]
fn step_sends_one_piece_of_output() {
    let mut fixture = Fixture::new();
    let (task, _) = fixture.start_followed();
    let shim = fixture.shim_of(&task);
    // As base64, less than what is sent to a client that does not read.
    let data: Vec<u8> = (0..700_000_u32).map(|at| b'a' + (at % 26) as u8).collect();
    let mut log = LogWriter::new(&fixture.dir.path().join("none"), 1 << 30, bounds::MEMORY_BYTES);
    log.append(Stream::Stdout, 1, &data);
    let numbers = log.memory();
    fixture.tell(Input::ShimMessages { shim, messages: vec![FromShim::Memory { numbers }] });
    let before = fixture.sent.len();
    fixture.report_output(shim, data.len() as u64);
    let mut steps = 1;
    loop {
        assert!(fixture.sent.len() <= before + steps, "step {steps}");
        if !fixture.daemon.core.has_backlog() {
            break;
        }
        steps += 1;
        fixture.tell(Input::Continue);
    }
    assert_eq!(fixture.received().data, data);
    assert!(steps >= data.len() / bounds::FOLLOW_BYTES, "{steps}");
}
